//! Snapshot of the environments as a member of a checkpoint.

use rlox_core::{Checkpoint, EnvSnapshot, FieldMut, Pcg64, Result};

const MEMBER: &str = "environment";

/// Adds the snapshot of `n` environments.
pub(super) fn write(checkpoint: &mut Checkpoint, snapshot: &EnvSnapshot<'_>, n: usize) -> Result<()> {
    let EnvSnapshot { states, episode_returns, episode_steps, finished, streams } = snapshot;
    checkpoint.insert_arrays(
        MEMBER,
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
pub(super) fn read(checkpoint: &Checkpoint, n: usize) -> Result<Option<EnvSnapshot<'static>>> {
    if checkpoint.safetensors(MEMBER).is_none() {
        return Ok(None);
    }
    let shapes = checkpoint.shapes(MEMBER)?;
    let states_shape = shapes.iter().find(|(name, _)| name == "states").map(|(_, shape)| &shape[..]);
    let Some(&[rows, width]) = states_shape.filter(|shape| shape.first() == Some(&n)) else {
        return Err(checkpoint.corrupt(MEMBER, format!("arrays {shapes:?} instead of states of {n} environments")));
    };
    let (mut states, mut episode_returns) = (vec![0.0; rows * width], vec![0.0; n]);
    let (mut episode_steps, mut finished, mut streams) = (vec![0; n], vec![0; n], vec![0; n * Pcg64::STATE_LEN]);
    checkpoint.read_array(MEMBER, "states", &[n, width], FieldMut::F64(&mut states))?;
    checkpoint.read_array(MEMBER, "episode_returns", &[n], FieldMut::F64(&mut episode_returns))?;
    checkpoint.read_array(MEMBER, "episode_steps", &[n], FieldMut::I64(&mut episode_steps))?;
    checkpoint.read_array(MEMBER, "finished", &[n], FieldMut::Bool(&mut finished))?;
    checkpoint.read_array(MEMBER, "streams", &[n, Pcg64::STATE_LEN], FieldMut::I64(&mut streams))?;
    let finished = finished.into_iter().map(|flag| flag != 0).collect();
    Ok(Some(EnvSnapshot {
        states: states.into(),
        episode_returns: episode_returns.into(),
        episode_steps: episode_steps.into(),
        finished,
        streams: streams.into(),
    }))
}
