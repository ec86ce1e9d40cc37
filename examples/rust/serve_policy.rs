//! Serves a trained policy: loads a checkpoint of Python or Rust and prints greedy actions.
//!
//! Run it with `cargo run --release -p rlox-nn --example serve_policy -- CHECKPOINT < OBSERVATIONS`. Each line of the
//! input has the numbers of one observation, separated by spaces. The output has one action per line in the same form.

use std::io::{BufRead, Write};
use std::path::Path;

use rlox_core::{
    Error, Pcg64, Result, Space, checkpoint::Checkpoint, envs, field::FieldMut, normalize::RunningMeanStd,
};
use rlox_nn::{Activation, Init, Mlp, NamedTensors, Network, Workspace};
use serde_json::Value;

/// Limit of the absolute mean action (before tanh) of SAC with gSDE.
const CLIP_MEAN: f32 = 2.0;

/// Policy of a checkpoint: the network, and the settings and statistics that inference needs.
struct ServedPolicy {
    algorithm: String,
    network: Mlp,
    normalizer: Option<RunningMeanStd>,
    actions: Space,
    clip_mean: f32,
    scratch: Workspace,
}

impl ServedPolicy {
    /// Loads the checkpoint in a folder, or in its subfolder `checkpoint`.
    ///
    /// The environment must be native, and the networks must be built-in networks.
    fn load(path: impl AsRef<Path>) -> Result<Self> {
        let saved = Checkpoint::read(path)?;
        let text = |key: &str| saved.manifest.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (algorithm, settings) = (text("algorithm"), saved.object("settings")?);
        let is_set = |key: &str| settings.get(key).and_then(Value::as_bool).unwrap_or(false);
        let activation = match settings.get("activation").and_then(Value::as_str) {
            Some("tanh") => Activation::Tanh,
            Some("relu") => Activation::Relu,
            Some("silu") => Activation::Silu,
            Some("gelu") => Activation::Gelu,
            other => {
                let got = format!("{other:?}");
                return Err(Error::config("activation", "tanh, relu, silu or gelu", got, "extend this example"));
            }
        };
        let bytes = saved.safetensors("networks").ok_or_else(|| saved.corrupt("networks", "no such member"))?;
        let layers = layers(&NamedTensors::from_safetensors(bytes)?, &algorithm)?;
        let widths = layers.iter().filter(|tensor| tensor.shape.len() == 2).map(|tensor| tensor.shape[0]);
        let first = layers.iter().next().and_then(|tensor| tensor.shape.get(1).copied());
        let sizes: Vec<_> = first.into_iter().chain(widths).collect();
        let mut network = Mlp::new(&sizes, activation, Init::orthogonal(1.0), &mut Pcg64::seed_from(0))?;
        network.load(&layers)?;

        let normalizer = if is_set("normalize_obs") { Some(statistics(&saved, network.in_dim())?) } else { None };
        let options = envs::MakeOptions { num_envs: 1, ..Default::default() };
        let actions = envs::make(&text("env"), &options)?.spec().action.clone();
        let clip_mean = if is_set("use_sde") { CLIP_MEAN } else { f32::INFINITY };
        Ok(Self { algorithm, network, normalizer, actions, clip_mean, scratch: Workspace::default() })
    }

    /// Returns the greedy action for a raw observation, in the representation of the environment.
    fn act(&mut self, observation: &[f32]) -> Result<Vec<f32>> {
        let (expected, mut row) = (self.network.in_dim(), observation.to_vec());
        if row.len() != expected || row.iter().any(|x| !x.is_finite()) {
            let got = format!("{observation:?}");
            return Err(Error::shape("observation", format!("{expected} finite numbers"), got, "pass one observation"));
        }
        if let Some(statistics) = &self.normalizer {
            statistics.normalize(&mut row, 10.0, 1e-8)?;
        }
        let mut out = vec![0.0; self.network.out_dim()];
        self.network.infer(&row, 1, &mut out, &mut self.scratch)?;
        match &self.actions {
            // A dueling network outputs n advantages and then the state value, which does not affect the greedy action.
            Space::Discrete { n, start } => {
                let values = out.iter().take(usize::try_from(*n).unwrap_or(0));
                let (best, _) = values
                    .enumerate()
                    .fold((0, f32::NEG_INFINITY), |best, (i, &value)| if value > best.1 { (i, value) } else { best });
                Ok(vec![(*start + best as i64) as f32])
            }
            Space::Box { low, high, .. } => {
                let squashed = matches!(self.algorithm.as_str(), "sac" | "td3");
                let bounded = |((&x, &low), &high): ((&f32, &f32), &f32)| {
                    let half = 0.5 * x.clamp(-self.clip_mean, self.clip_mean).tanh();
                    let x = if squashed { (0.5 - half) * low + (0.5 + half) * high } else { x };
                    x.clamp(low, high)
                };
                Ok(out.iter().zip(low).zip(high).map(bounded).collect())
            }
            other => Err(Error::config("env", "Discrete or Box actions", format!("{other:?}"), "extend this example")),
        }
    }
}

/// Returns the weights and biases of the network that selects actions, with consecutive layer numbers.
fn layers(networks: &NamedTensors, algorithm: &str) -> Result<NamedTensors> {
    let parts = if algorithm == "dqn" { vec!["q_net"] } else { vec!["trunk", "actor"] };
    let (mut layers, mut begin) = (NamedTensors::default(), 0);
    for part in parts {
        let tensors = networks.strip_prefix(part);
        let mut count = 0;
        while let Some(weight) = tensors.find(&format!("{count}.weight")) {
            for (name, tensor) in [("weight", Some(weight)), ("bias", tensors.find(&format!("{count}.bias")))] {
                let Some(tensor) = tensor else { continue };
                layers.push(format!("{}.{name}", begin + count), &tensor.shape, tensor.data.clone())?;
            }
            count += 2;
        }
        begin += count;
    }
    Ok(layers)
}

/// Returns the statistics that normalise observations.
fn statistics(saved: &Checkpoint, dim: usize) -> Result<RunningMeanStd> {
    let (mut mean, mut var, mut count) = (vec![0.0; dim], vec![0.0; dim], [0.0]);
    saved.read_array("normalizer", "obs_mean", &[dim], FieldMut::F64(&mut mean))?;
    saved.read_array("normalizer", "obs_var", &[dim], FieldMut::F64(&mut var))?;
    saved.read_array("normalizer", "obs_count", &[1], FieldMut::F64(&mut count))?;
    RunningMeanStd::from_parts(mean, var, count[0])
}

/// Writes the action for the observation in each line of the input.
fn serve(path: impl AsRef<Path>, lines: impl BufRead, mut output: impl Write) -> Result<()> {
    let to_io_error = |source| Error::Io { path: "the observations or actions".to_owned(), source };
    let mut policy = ServedPolicy::load(path)?;
    for line in lines.lines() {
        let line = line.map_err(to_io_error)?;
        let numbers: Vec<_> = line.split_whitespace().map(|text| text.parse().unwrap_or(f32::NAN)).collect();
        let action: Vec<_> = policy.act(&numbers)?.iter().map(f32::to_string).collect();
        writeln!(output, "{}", action.join(" ")).map_err(to_io_error)?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let Some(path) = std::env::args().nth(1) else {
        return Err(Error::config("CHECKPOINT", "the folder of a checkpoint", "nothing", "pass its path"));
    };
    serve(path, std::io::stdin().lock(), std::io::stdout().lock())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{ServedPolicy, serve};

    // Observations of each environment. The expected actions below are those of `rlox.load(...).predict` in Python.
    const PENDULUM: &str = "0.5 -0.25 1.5\n-0.9 0.4 -6\n";
    const CARTPOLE: &str = "0.5 -0.25 0.1 1.5\n-0.9 0.4 -0.1 -1\n";

    fn fixture(name: &str) -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "tests/fixtures/checkpoint", name].iter().collect()
    }

    #[test]
    fn actions_equal_pythons() {
        let cases: [(&str, &str, [f32; 2]); 9] = [
            ("python-half", PENDULUM, [0.012_746_958, -0.006_467_344_3]),
            ("rust-half", PENDULUM, [0.012_746_958, -0.006_467_344_3]),
            ("rust-a2c", CARTPOLE, [0.0, 0.0]),
            ("python-dqn", CARTPOLE, [0.0, 1.0]),
            ("rust-dqn", CARTPOLE, [0.0, 1.0]),
            ("python-sac", PENDULUM, [1.010_268_2, 0.238_056]),
            ("rust-sac", PENDULUM, [1.010_268_2, 0.238_056]),
            ("python-td3", PENDULUM, [0.352_859_74, -0.260_747_85]),
            ("rust-td3", PENDULUM, [0.352_859_74, -0.260_747_85]),
        ];
        for (name, observations, expected) in cases {
            let mut output = Vec::new();
            serve(fixture(name), observations.as_bytes(), &mut output).unwrap();
            let output = String::from_utf8(output).unwrap();
            let got: Vec<f32> = output.lines().map(|line| line.parse().unwrap()).collect();
            assert_eq!(got.len(), 2, "{name}: {output}");
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() < 1e-5, "{name}: {got} instead of {expected}");
            }
        }
    }

    #[test]
    fn invalid_observations_and_checkpoints_are_rejected() {
        for line in ["1 2", "1 2 x", "1 2 inf", ""] {
            let result = serve(fixture("python-half"), format!("{line}\n").as_bytes(), Vec::new());
            assert!(result.unwrap_err().to_string().contains("expected 3 finite numbers"), "{line:?}");
        }
        assert!(ServedPolicy::load(fixture("nowhere")).is_err());
    }
}
