//! Table that compares the backends from the results that criterion wrote.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{env, fs};

use serde_json::Value;

const BACKENDS: [&str; 3] = ["built_in", "candle", "burn"];

/// Prints the medians of benchmarks that ran after `start`, and their ratios to those of the built-in network.
#[expect(clippy::print_stdout, reason = "what the benchmark is for")]
pub(crate) fn print_since(start: SystemTime) {
    let mut rows = BTreeMap::<String, BTreeMap<String, f64>>::new();
    for (name, median) in measured(&home(), start) {
        if let Some((row, backend)) = name.strip_prefix("nn_backends/").and_then(|name| name.rsplit_once('/')) {
            rows.entry(row.to_owned()).or_default().insert(backend.to_owned(), median);
        }
    }
    if rows.is_empty() {
        return;
    }
    println!("\n{:<28}{:>14}{:>24}{:>24}", "median", BACKENDS[0], BACKENDS[1], BACKENDS[2]);
    for (row, medians) in rows {
        let cell = |backend| {
            let Some(nanoseconds) = medians.get(backend) else { return String::new() };
            let time = format!("{:.2} us", nanoseconds / 1e3);
            match medians.get(BACKENDS[0]) {
                Some(ours) if backend != BACKENDS[0] => format!("{time} {:>6.2}x", nanoseconds / ours),
                _ => time,
            }
        };
        let [ours, candle, burn] = BACKENDS.map(cell);
        println!("{row:<28}{ours:>14}{candle:>24}{burn:>24}");
    }
}

/// Returns the folder of criterion's results.
fn home() -> PathBuf {
    if let Some(home) = env::var_os("CRITERION_HOME") {
        return home.into();
    }
    // The program is in release/deps of the target folder.
    let target = env::current_exe().ok().and_then(|program| program.ancestors().nth(3).map(Path::to_owned));
    target.unwrap_or_else(|| "target".into()).join("criterion")
}

/// Returns the names of the benchmarks in a folder that ran after `start`, with their medians in nanoseconds.
fn measured(folder: &Path, start: SystemTime) -> Vec<(String, f64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name() == "new" {
            found.extend(one(&path, start));
        } else if path.is_dir() {
            found.extend(measured(&path, start));
        }
    }
    found
}

fn one(folder: &Path, start: SystemTime) -> Option<(String, f64)> {
    let estimates = folder.join("estimates.json");
    if fs::metadata(&estimates).ok()?.modified().ok()? < start {
        return None;
    }
    let read = |path: &Path| -> Option<Value> { serde_json::from_slice(&fs::read(path).ok()?).ok() };
    let name = read(&folder.join("benchmark.json"))?["full_id"].as_str()?.to_owned();
    Some((name, read(&estimates)?["median"]["point_estimate"].as_f64()?))
}
