//! Arrays of the environments and of the normaliser in a checkpoint.

use rlox_core::{
    Normalizer, Pcg64, Result, checkpoint::Checkpoint, field::FieldMut, normalize::RunningMeanStd, vector::EnvSnapshot,
};

use super::in_section;

const ENV: &str = "environment";

/// Adds the snapshot of `n` environments to a checkpoint.
pub(super) fn write_env(checkpoint: &mut Checkpoint, snapshot: &EnvSnapshot<'_>, n: usize) -> Result<()> {
    let EnvSnapshot { states, episode_returns, episode_steps, finished, streams } = snapshot;
    checkpoint.insert_arrays(
        ENV,
        &[
            ("states", &[n, states.len() / n], states[..].into()),
            ("episode_returns", &[n], episode_returns[..].into()),
            ("episode_steps", &[n], episode_steps[..].into()),
            ("finished", &[n], finished[..].into()),
            ("streams", &[n, Pcg64::STATE_LEN], streams[..].into()),
        ],
    )
}

/// Reads the snapshot of `n` environments; `None` if the checkpoint has none.
pub(super) fn read_env(checkpoint: &Checkpoint, n: usize) -> Result<Option<EnvSnapshot<'static>>> {
    if checkpoint.safetensors(ENV).is_none() {
        return Ok(None);
    }
    let shapes = checkpoint.shapes(ENV)?;
    let states_shape = shapes.iter().find(|(name, _)| name == "states").map(|(_, shape)| &shape[..]);
    let Some(&[rows, width]) = states_shape.filter(|shape| shape.first() == Some(&n)) else {
        return Err(checkpoint.corrupt(ENV, format!("arrays {shapes:?} instead of states of {n} environments")));
    };
    let (mut states, mut episode_returns) = (vec![0.0; rows * width], vec![0.0; n]);
    let (mut episode_steps, mut finished, mut streams) = (vec![0; n], vec![0; n], vec![0; n * Pcg64::STATE_LEN]);
    checkpoint.read_array(ENV, "states", &[n, width], FieldMut::F64(&mut states))?;
    checkpoint.read_array(ENV, "episode_returns", &[n], FieldMut::F64(&mut episode_returns))?;
    checkpoint.read_array(ENV, "episode_steps", &[n], FieldMut::I64(&mut episode_steps))?;
    checkpoint.read_array(ENV, "finished", &[n], FieldMut::Bool(&mut finished))?;
    checkpoint.read_array(ENV, "streams", &[n, Pcg64::STATE_LEN], FieldMut::I64(&mut streams))?;
    let finished = finished.into_iter().map(|flag| flag != 0).collect();
    Ok(Some(EnvSnapshot {
        states: states.into(),
        episode_returns: episode_returns.into(),
        episode_steps: episode_steps.into(),
        finished,
        streams: streams.into(),
    }))
}

const NORMALIZER: &str = "normalizer";

/// Adds the normaliser's statistics to a checkpoint, if observations or rewards are normalised.
pub(super) fn write_normalizer(checkpoint: &mut Checkpoint, normalizer: Option<&Normalizer>) -> Result<()> {
    let Some(normalizer) = filter_enabled(normalizer) else { return Ok(()) };
    let (obs, reward, returns) = (normalizer.obs(), normalizer.reward(), normalizer.returns());
    let shapes = array_shapes(obs.mean().len(), returns.len());
    let counts = [[obs.count()], [reward.count()]];
    let arrays = [obs.mean(), obs.var(), &counts[0], reward.mean(), reward.var(), &counts[1], returns];
    let named: Vec<_> = shapes.iter().zip(arrays).map(|((name, len), array)| (*name, &len[..], array.into())).collect();
    checkpoint.insert_arrays(NORMALIZER, &named)
}

/// Returns the normaliser if it normalises observations or rewards.
fn filter_enabled(normalizer: Option<&Normalizer>) -> Option<&Normalizer> {
    normalizer.filter(|normalizer| normalizer.options().obs || normalizer.options().reward)
}

/// Returns the names and shapes of a normaliser's arrays.
fn array_shapes(dim: usize, num_envs: usize) -> [(&'static str, [usize; 1]); 7] {
    [
        ("obs_mean", [dim]),
        ("obs_var", [dim]),
        ("obs_count", [1]),
        ("return_mean", [1]),
        ("return_var", [1]),
        ("return_count", [1]),
        ("returns", [num_envs]),
    ]
}

/// Returns a copy of the normaliser with the statistics of the checkpoint.
pub(super) fn read_normalizer(checkpoint: &Checkpoint, normalizer: Option<&Normalizer>) -> Result<Option<Normalizer>> {
    let Some(ours) = filter_enabled(normalizer) else {
        return if checkpoint.safetensors(NORMALIZER).is_none() {
            Ok(normalizer.cloned())
        } else {
            Err(checkpoint.corrupt(NORMALIZER, "statistics for a trainer without normalisation"))
        };
    };
    let mut arrays = Vec::new();
    for (name, len) in array_shapes(ours.obs().mean().len(), ours.returns().len()) {
        let mut array = vec![0.0; len[0]];
        checkpoint.read_array(NORMALIZER, name, &len, FieldMut::F64(&mut array))?;
        arrays.push(array);
    }
    let mut next = arrays.into_iter().map(|array: Vec<f64>| (array.first().copied().unwrap_or(0.0), array));
    let mut statistics = || {
        let [(_, mean), (_, var), (count, _)] = [next.next(), next.next(), next.next()].map(Option::unwrap_or_default);
        RunningMeanStd::from_parts(mean, var, count)
    };
    let mut normalizer = ours.clone();
    let read = statistics().and_then(|obs| Ok((obs, statistics()?)));
    let returns = next.next().unwrap_or_default().1;
    let restored = read.and_then(|(obs, reward)| normalizer.restore(obs, reward, &returns));
    restored.map_err(|error| in_section(error, checkpoint, NORMALIZER))?;
    Ok(Some(normalizer))
}
