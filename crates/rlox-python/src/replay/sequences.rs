//! The method `sample_sequences` of replay buffers.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::replay::{Column, ReplayStorage, SequenceIndices, Sequences};
use rlox_core::{Result, field::DType, interrupt::InterruptCheck};

use super::buffer::{Buffer, parse_out, rng_of};
use super::sample::{ExtraOutput, OutputArrays, OutputMemory, Target, at_name};
use crate::convert::args::{count, size};
use crate::sync::interrupt::copy;

/// Arguments of a sequence sample.
pub(super) struct SequenceRequest<'a, 'py> {
    pub(super) batch_size: &'a Bound<'py, PyAny>,
    pub(super) length: &'a Bound<'py, PyAny>,
    pub(super) seed: Option<&'a Bound<'py, PyAny>>,
    pub(super) burn_in: Option<&'a Bound<'py, PyAny>>,
    pub(super) whole_episodes: bool,
    pub(super) out: Option<&'a Bound<'py, PyAny>>,
}

/// Names of the boolean arrays for existing steps and for first steps of episodes.
const FLAGS: [&str; 2] = ["mask", "episode_starts"];

impl Buffer {
    /// Samples sequences, and copies them to new arrays or to those of `out`.
    pub(super) fn sample_sequences<'py>(
        &self,
        py: Python<'py>,
        request: &SequenceRequest<'_, 'py>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (batch_size, length) = (size("batch_size", request.batch_size)?, size("length", request.length)?);
        let burn_in = request.burn_in.map_or(Ok(0), |value| count("burn_in", value))?;
        let sequences = Sequences { length, burn_in, whole_episodes: request.whole_episodes };
        let mut seeded_rng = request.seed.map(rng_of).transpose()?;
        let out = parse_out(request.out)?;
        self.inner.read(py, false, |buffer| sequences.check(buffer.storage(), batch_size))?;
        let lead = [burn_in + length, batch_size];
        let mut arrays = OutputArrays::new(py, &self.columns, &lead, out)?;
        let flags = FLAGS.map(|name| match out {
            None => OutputMemory::new(py, DType::Bool, &lead),
            Some(out) => OutputMemory::from_out(&at_name(out, name)?, DType::Bool, &lead),
        });
        let [mask, starts] = flags;
        let (mut mask, mut starts) = (mask?, starts?);
        let lengths = ExtraOutput::<i64>::new("lengths", true, out, batch_size)?;
        let indices = ExtraOutput::<i64>::new("indices", true, out, batch_size)?;
        let targets = arrays.targets();
        let (mask_to, starts_to) = (mask.target(), starts.target());
        let sequence_indices = self.inner.read(py, true, |buffer| {
            let (storage, mut sequence_indices, mut interrupt) =
                (buffer.storage(), self.sequence_pool.take(), InterruptCheck::default());
            let drawn =
                self.draw(seeded_rng.as_mut(), |rng| sequences.draw(storage, batch_size, rng, &mut sequence_indices))?;
            self.restore_rng_on_error(drawn, || {
                sequences.find(storage, &mut sequence_indices)?;
                for (column, target) in targets {
                    interrupt.check()?;
                    write(target, &sequence_indices, storage, column)?;
                }
                for (target, flags) in
                    [(mask_to, sequence_indices.mask()), (starts_to, sequence_indices.episode_starts())]
                {
                    if let Target::Flags(to) = target {
                        copy(to, flags, &mut interrupt)?;
                    }
                }
                Ok(())
            })?;
            Ok(sequence_indices)
        })?;
        let dict = arrays.into_dict(py, out)?;
        for (name, flags) in FLAGS.into_iter().zip([mask, starts]) {
            if let Some(array) = flags.into_array() {
                dict.set_item(name, array)?;
            }
        }
        lengths.write_into(py, &dict, sequence_indices.lengths(), |length| length as i64)?;
        indices.write_into(py, &dict, sequence_indices.indices(), |index| index as i64)?;
        self.sequence_pool.release(sequence_indices);
        Ok(dict)
    }
}

fn write(
    target: Target<'_>,
    sequence_indices: &SequenceIndices,
    storage: &ReplayStorage,
    column: Column,
) -> Result<()> {
    match target {
        Target::Numbers(numbers) => sequence_indices.read(storage, column, numbers),
        Target::Flags(flags) => sequence_indices.read_bools(storage, column, flags),
    }
}
