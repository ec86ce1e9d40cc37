//! Sampled sequences as arrays.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::replay::{ChosenSequences, Column, ReplayStorage, Sequences};
use rlox_core::{DType, Result, Watch};

use super::buffer::{Buffer, out_of, rng_of};
use super::sample::{Beside, Columns, Memory, Target, at_name};
use crate::convert::args::{count, size};
use crate::sync::interrupt::copy;

/// What a caller asked for.
pub(super) struct Asked<'a, 'py> {
    pub(super) batch_size: &'a Bound<'py, PyAny>,
    pub(super) length: &'a Bound<'py, PyAny>,
    pub(super) seed: Option<&'a Bound<'py, PyAny>>,
    pub(super) burn_in: Option<&'a Bound<'py, PyAny>>,
    pub(super) whole: bool,
    pub(super) out: Option<&'a Bound<'py, PyAny>>,
}

/// The steps that are there, and those that are the first of an episode.
const FLAGS: [&str; 2] = ["mask", "episode_starts"];

impl Buffer {
    /// Samples and copies sequences.
    pub(super) fn sample_sequences<'py>(
        &self,
        py: Python<'py>,
        asked: &Asked<'_, 'py>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (batch_size, length) = (size("batch_size", asked.batch_size)?, size("length", asked.length)?);
        let burn_in = asked.burn_in.map_or(Ok(0), |given| count("burn_in", given))?;
        let sequences = Sequences { length, burn_in, whole: asked.whole };
        let mut own = asked.seed.map(rng_of).transpose()?;
        let out = out_of(asked.out)?;
        self.inner.read(py, false, |buffer| sequences.check(buffer.storage(), batch_size))?;
        let lead = [burn_in + length, batch_size];
        let mut columns = Columns::new(py, &self.places, &lead, out)?;
        let flags = FLAGS.map(|name| match out {
            None => Memory::new(py, DType::Bool, &lead),
            Some(out) => Memory::given(&at_name(out, name)?, DType::Bool, &lead),
        });
        let [mask, starts] = flags;
        let (mut mask, mut starts) = (mask?, starts?);
        let lengths = Beside::<i64>::new("lengths", true, out, batch_size)?;
        let indices = Beside::<i64>::new("indices", true, out, batch_size)?;
        let targets = columns.targets();
        let (mask_to, starts_to) = (mask.target(), starts.target());
        let chosen = self.inner.read(py, true, |buffer| {
            let (storage, mut chosen, mut watch) = (buffer.storage(), self.sequences.take(), Watch::default());
            let drawn = self.draw(own.as_mut(), |rng| sequences.draw(storage, batch_size, rng, &mut chosen))?;
            self.or_undone(drawn, || {
                sequences.find(storage, &mut chosen)?;
                for (column, target) in targets {
                    watch.check()?;
                    write(target, &chosen, storage, column)?;
                }
                for (target, flags) in [(mask_to, chosen.mask()), (starts_to, chosen.episode_starts())] {
                    if let Target::Flags(to) = target {
                        copy(to, flags, &mut watch)?;
                    }
                }
                Ok(())
            })?;
            Ok(chosen)
        })?;
        let dict = columns.into_dict(py, out)?;
        for (name, flags) in FLAGS.into_iter().zip([mask, starts]) {
            if let Some(array) = flags.into_array() {
                dict.set_item(name, array)?;
            }
        }
        lengths.put(py, &dict, chosen.lengths(), |length| length as i64)?;
        indices.put(py, &dict, chosen.indices(), |index| index as i64)?;
        self.sequences.leave(chosen);
        Ok(dict)
    }
}

fn write(target: Target<'_>, chosen: &ChosenSequences, storage: &ReplayStorage, column: Column) -> Result<()> {
    match target {
        Target::Numbers(numbers) => chosen.read(storage, column, numbers),
        Target::Flags(flags) => chosen.read_bools(storage, column, flags),
    }
}
