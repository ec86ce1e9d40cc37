//! Running statistics of observations and rewards as a member of a checkpoint.

use rlox_core::{Checkpoint, FieldMut, Normalizer, Result, RunningMeanStd};

use super::in_section;

const MEMBER: &str = "normalizer";

/// Adds the statistics of a normaliser that is enabled.
pub(super) fn write(checkpoint: &mut Checkpoint, normalizer: Option<&Normalizer>) -> Result<()> {
    let Some(normalizer) = filter_enabled(normalizer) else { return Ok(()) };
    let (obs, reward, returns) = (normalizer.obs(), normalizer.reward(), normalizer.returns());
    let shapes = array_shapes(obs.mean().len(), returns.len());
    let counts = [[obs.count()], [reward.count()]];
    let arrays = [obs.mean(), obs.var(), &counts[0], reward.mean(), reward.var(), &counts[1], returns];
    let named: Vec<_> = shapes.iter().zip(arrays).map(|((name, len), array)| (*name, &len[..], array.into())).collect();
    checkpoint.insert_arrays(MEMBER, &named)
}

/// Returns the normaliser if it normalises observations or rewards.
fn filter_enabled(normalizer: Option<&Normalizer>) -> Option<&Normalizer> {
    normalizer.filter(|normalizer| normalizer.options().obs || normalizer.options().reward)
}

/// Returns names and shapes of a normaliser's arrays.
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

/// Returns the normaliser with the statistics of the checkpoint.
pub(super) fn read(checkpoint: &Checkpoint, normalizer: Option<&Normalizer>) -> Result<Option<Normalizer>> {
    let Some(ours) = filter_enabled(normalizer) else {
        return if checkpoint.safetensors(MEMBER).is_none() {
            Ok(normalizer.cloned())
        } else {
            Err(checkpoint.corrupt(MEMBER, "statistics for a trainer without normalisation"))
        };
    };
    let mut arrays = Vec::new();
    for (name, len) in array_shapes(ours.obs().mean().len(), ours.returns().len()) {
        let mut array = vec![0.0; len[0]];
        checkpoint.read_array(MEMBER, name, &len, FieldMut::F64(&mut array))?;
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
    restored.map_err(|error| in_section(error, checkpoint, MEMBER))?;
    Ok(Some(normalizer))
}
