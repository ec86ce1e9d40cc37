//! What manifests count.

use std::collections::VecDeque;

use rlox_core::{Checkpoint, Result};
use serde_json::{Map, Value};

use crate::train::collector::Run;
use crate::train::episodes::RECENT;

/// What a manifest counts.
pub(in crate::train) struct Counted {
    pub(in crate::train) seed: Option<u64>,
    pub(in crate::train) timesteps: u64,
    pub(in crate::train) updates: u64,
    pub(in crate::train) run: Run,
    pub(in crate::train) episodes: u64,
    pub(in crate::train) recent: VecDeque<(f64, u32)>,
}

impl Counted {
    pub(super) fn read(saved: &Checkpoint) -> Result<Self> {
        let (counters, run) = (saved.object("counters")?, saved.object("run")?);
        let count = |section: &str, from: &Map<String, Value>, name: &str| {
            let wrong = || saved.corrupt(section, format!("no count {name:?}"));
            // Counters go on from there; a run may end nowhere.
            let fits = |count: &u64| section == "run" || *count < 1 << 62;
            from.get(name).and_then(Value::as_u64).filter(fits).ok_or_else(wrong)
        };
        let wrong = || saved.corrupt("counters", "other than the last 100 episodes' returns and lengths");
        let listed = counters.get("episodes").and_then(Value::as_object).ok_or_else(wrong)?;
        let list = |name| listed.get(name).and_then(Value::as_array).ok_or_else(wrong);
        let (episodes, returns, lengths) = (count("counters", listed, "count")?, list("returns")?, list("lengths")?);
        let recent = returns
            .iter()
            .zip(lengths)
            .map(|(episode_return, length)| Some((episode_return.as_f64()?, u32::try_from(length.as_u64()?).ok()?)));
        let recent: VecDeque<_> = recent.collect::<Option<_>>().ok_or_else(wrong)?;
        if returns.len() != lengths.len() || returns.len() as u64 != episodes.min(RECENT as u64) {
            return Err(wrong());
        }
        let run = Run { start: count("run", run, "start")?, target: count("run", run, "target")? };
        if run.start > run.target {
            return Err(saved.corrupt("run", format!("a run from {} to {}", run.start, run.target)));
        }
        Ok(Self {
            seed: saved.manifest.get("seed").and_then(Value::as_u64),
            timesteps: count("counters", counters, "timesteps")?,
            updates: count("counters", counters, "updates")?,
            run,
            episodes,
            recent,
        })
    }
}
