//! Pushes, samples and memory shared by all replay buffers.

use std::borrow::Cow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use numpy::{Element, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt};
use rlox_core::replay::{
    AnySampler, Column, FieldSpec, NStep, Replay, ReplayStorage, SampleIndices, SequenceIndices, TransitionBatch,
    TransitionSchema,
};
use rlox_core::{
    Error, Pcg64, Result, SeedSequence,
    field::{DType, FieldData},
    interrupt::InterruptCheck,
};

use super::sample::{ExtraOutput, OutputArrays, OutputColumn, Target, output_columns};
use super::schema::{FieldsArgument, OneOrMany, draw_entropy, key_of, make_schema};
use super::source::ReplayBackend;
use crate::convert::args::{REAL, argument, expect_shape_or, has, is_subclassed, number, short_repr, size};
use crate::convert::flags::{flag, flag_argument};
use crate::convert::observation::ObsInput;
use crate::convert::seed::seed_of;
use crate::error::{to_py, type_error};
use crate::sync::borrow::{Elements, Kind, typed};
use crate::sync::cell::{GuardedCell, try_guard};
use crate::sync::gil::{detach, is_alone};
use crate::sync::rwlock::FairRwLock;

/// Number of elements above which a push releases the GIL, because it may take more than 5 us.
const DETACH_ABOVE_ELEMENTS: usize = 8192;

/// Hint for rewards and flags of a wrong shape.
const ROWS_HINT: &str = "pass a one-dimensional array with one item per row of obs";

/// Counts of transitions and elements above which a sample releases the GIL.
const DETACH_ABOVE_SAMPLES: (usize, usize) = (128, 16_384);

/// Maximum number of items in a pool, and so of simultaneous calls that reuse memory.
const POOL_MAX_ITEMS: usize = 8;
/// Maximum number of bytes in a pool; the memory of larger calls is freed.
const POOL_MAX_BYTES: usize = 8 << 20;

/// Implementation of all replay buffers.
pub(super) struct Buffer<B = Replay<AnySampler>> {
    pub(super) inner: FairRwLock<B>,
    /// Random stream of samples without a seed.
    ///
    /// A call locks the stream while it holds the buffer's lock, and only to draw.
    pub(super) rng: GuardedCell<Pcg64>,
    sample_pool: ScratchPool<SampleIndices>,
    pub(super) sequence_pool: ScratchPool<SequenceIndices>,
    pub(super) schema: TransitionSchema,
    pub(super) num_envs: usize,
    /// Number of elements of one transition.
    pub(super) width: usize,
    pub(super) columns: Vec<OutputColumn>,
    prioritized: bool,
    /// True if sampled transitions span several steps.
    has_n_step: bool,
    /// Name of the argument `capacity` in errors.
    capacity_name: Cow<'static, str>,
}

/// The buffer's random stream before and after a draw; `None` for a draw from a call's own stream.
pub(super) type RngSteps = Option<(Pcg64, Pcg64)>;

/// Constructor settings shared by all buffers.
pub(super) struct BufferParts {
    pub(super) storage: ReplayStorage,
    n_step: Option<NStep>,
    rng: Pcg64,
    capacity_name: Cow<'static, str>,
}

impl BufferParts {
    /// Renames the argument `capacity` of an error to the name that the caller used.
    pub(super) fn name(&self, error: Error) -> Error {
        error.rename_argument("capacity", self.capacity_name.clone())
    }
}

impl Buffer {
    pub(super) fn new(py: Python<'_>, parts: BufferParts, sampler: AnySampler, name: &'static str) -> PyResult<Self> {
        let BufferParts { storage, n_step, rng, capacity_name } = parts;
        let mut buffer = Replay::from_parts(storage, sampler).map_err(to_py)?;
        if let Some(n_step) = n_step {
            buffer = buffer.with_n_step(n_step).map_err(to_py)?;
        }
        Ok(Self { capacity_name, ..Self::from_replay(py, buffer, rng, name) })
    }

    /// Wraps a replay buffer of the core.
    pub(super) fn from_replay(py: Python<'_>, buffer: Replay<AnySampler>, rng: Pcg64, name: &'static str) -> Self {
        let prioritized = matches!(buffer.sampler(), AnySampler::Prioritized(_));
        let has_n_step = buffer.n_step().is_some();
        Self { prioritized, has_n_step, ..Self::from_backend(py, buffer, rng, name) }
    }
}

impl<B: ReplayBackend> Buffer<B> {
    pub(super) fn from_backend(py: Python<'_>, buffer: B, rng: Pcg64, name: &'static str) -> Self {
        let (schema, num_envs) = (buffer.schema().clone(), buffer.num_envs());
        let columns = output_columns(py, &schema);
        let width = 2 * schema.obs.iter().map(FieldSpec::width).sum::<usize>() + schema.action.width();
        let (inner, rng) = (FairRwLock::new(name, B::REOPEN_HINT, buffer), GuardedCell::new(name, rng));
        let (sample_pool, sequence_pool) = (ScratchPool::new(), ScratchPool::new());
        let capacity_name = Cow::Borrowed("capacity");
        let (prioritized, has_n_step) = (false, false);
        Self {
            inner,
            rng,
            sample_pool,
            sequence_pool,
            schema,
            num_envs,
            width,
            columns,
            prioritized,
            has_n_step,
            capacity_name,
        }
    }

    /// Renames the argument `capacity` of an error to the name that the caller used.
    pub(super) fn name(&self, error: Error) -> Error {
        error.rename_argument("capacity", self.capacity_name.clone())
    }

    /// Adds one transition to a buffer of one environment.
    pub(super) fn push(&self, py: Python<'_>, transition: Transition<'_, '_>) -> PyResult<()> {
        if let Some(pushed) = self.push_arrays(py, &transition) {
            return pushed;
        }
        let Transition { obs, action, reward, terminated, truncated, next_obs, extra } = transition;
        let obs = FieldsArgument::new("obs", obs, &self.schema.obs)?;
        let action = FieldsArgument::new("action", action, std::slice::from_ref(&self.schema.action))?;
        let next_obs = next_obs.map(|next| FieldsArgument::new("next_obs", next, &self.schema.obs)).transpose()?;
        let extra = self.extra(extra)?;
        let reward = number("reward", reward)? as f32;
        let (terminated, truncated) = (flag("terminated", terminated)?, flag("truncated", truncated)?);
        let hold = obs.len() + action.len() + extra.len() <= DETACH_ABOVE_ELEMENTS
            && is_alone(py)
            && !self.is_write_due(py, 1)?;
        let (obs, action, extra) = (obs.read(None, hold)?, action.read(None, hold)?, extra.read(None, hold)?);
        let next_obs = next_obs.map(|next| next.read(None, hold)).transpose()?;
        let (rewards, terminated, truncated) = ([reward], [terminated], [truncated]);
        let (obs, next_obs) = (obs.each(ObsInput::get), next_obs.as_ref().map(|next| next.each(ObsInput::get)));
        let (action, extra) = (action.each(ObsInput::get), extra.each(ObsInput::get));
        let batch = TransitionBatch {
            obs: obs.as_slice(),
            actions: action.as_slice()[0],
            rewards: &rewards,
            terminated: &terminated,
            truncated: &truncated,
            next_obs: next_obs.as_ref().map(OneOrMany::as_slice),
            extra: extra.as_slice(),
        };
        if self.num_envs != 1 {
            let (got, fix) =
                (format!("{} environments", self.num_envs), "push one row per environment with push_batch");
            return Err(to_py(Error::config("push", "a buffer of one environment", got, fix)));
        }
        self.inner
            .write(py, !hold, |buffer| buffer.push(&batch, false).map_err(|error| self.name(rename_action(error))))
    }

    /// Adds a batch of transitions.
    pub(super) fn push_batch(&self, py: Python<'_>, transition: Transition<'_, '_>, in_order: bool) -> PyResult<()> {
        if let Some(pushed) = self.push_array_batch(py, &transition, in_order) {
            return pushed;
        }
        let Transition { obs, action, reward, terminated, truncated, next_obs, extra } = transition;
        let obs = FieldsArgument::new("obs", obs, &self.schema.obs)?;
        let actions = FieldsArgument::new("actions", action, std::slice::from_ref(&self.schema.action))?;
        let next_obs = next_obs.map(|next| FieldsArgument::new("next_obs", next, &self.schema.obs)).transpose()?;
        let extra = self.extra(extra)?;
        let rewards = argument::<f32>("rewards", reward, &REAL)?;
        let (terminated, truncated) =
            (flag_argument("terminated", terminated)?, flag_argument("truncated", truncated)?);
        let hold = obs.len() + actions.len() + extra.len() <= DETACH_ABOVE_ELEMENTS
            && is_alone(py)
            && !self.is_write_due(py, rewards.len())?;
        let rewards = rewards.read(hold)?;
        let rows = rewards.slice().len();
        expect_shape_or("rewards", rewards.shape(), (rows, &[]), ROWS_HINT)?;
        let (terminated, truncated) = (terminated.read(py, hold)?, truncated.read(py, hold)?);
        expect_shape_or("terminated", terminated.shape(), (rows, &[]), ROWS_HINT)?;
        expect_shape_or("truncated", truncated.shape(), (rows, &[]), ROWS_HINT)?;
        let (obs, actions) = (obs.read(Some(rows), hold)?, actions.read(Some(rows), hold)?);
        let next_obs = next_obs.map(|next| next.read(Some(rows), hold)).transpose()?;
        let extra = extra.read(Some(rows), hold)?;
        let (obs, next_obs) = (obs.each(ObsInput::get), next_obs.as_ref().map(|next| next.each(ObsInput::get)));
        let (actions, extra) = (actions.each(ObsInput::get), extra.each(ObsInput::get));
        let batch = TransitionBatch {
            obs: obs.as_slice(),
            actions: actions.as_slice()[0],
            rewards: rewards.slice(),
            terminated: terminated.slice(),
            truncated: truncated.slice(),
            next_obs: next_obs.as_ref().map(OneOrMany::as_slice),
            extra: extra.as_slice(),
        };
        self.inner.write(py, !hold, |buffer| buffer.push(&batch, in_order).map_err(|error| self.name(error)))
    }

    /// Adds one transition of float32 arrays, a float and two bools, without conversions.
    ///
    /// Returns `None` for other arguments.
    fn push_arrays(&self, py: Python<'_>, transition: &Transition<'_, '_>) -> Option<PyResult<()>> {
        let Self { schema: TransitionSchema { obs: specs, action, extra, .. }, num_envs: 1, .. } = self else {
            return None;
        };
        let (false, [spec], [], None) = (B::DOES_IO, &**specs, &**extra, transition.extra) else { return None };
        if self.width > DETACH_ABOVE_ELEMENTS || !is_alone(py) {
            return None;
        }
        let (obs, action) = (row_elements(transition.obs, spec, None)?, row_elements(transition.action, action, None)?);
        let next_obs = transition.next_obs.map(|next| row_elements(next, spec, None).ok_or(())).transpose().ok()?;
        let flag = |flag: &Bound<'_, PyAny>| flag.cast::<PyBool>().map(PyBoolMethods::is_true).ok();
        let rewards = [transition.reward.cast_exact::<PyFloat>().ok()?.value() as f32];
        let (terminated, truncated) = ([flag(transition.terminated)?], [flag(transition.truncated)?]);
        let next_obs = next_obs.as_ref().map(|next| [FieldData::F32(next.slice())]);
        let batch = TransitionBatch {
            obs: &[FieldData::F32(obs.slice())],
            actions: FieldData::F32(action.slice()),
            rewards: &rewards,
            terminated: &terminated,
            truncated: &truncated,
            next_obs: next_obs.as_ref().map(|next| &next[..]),
            extra: &[],
        };
        Some(
            self.inner
                .write(py, false, |buffer| buffer.push(&batch, false).map_err(|error| self.name(rename_action(error)))),
        )
    }

    /// Adds a batch of float32 and bool arrays without conversions.
    ///
    /// Returns `None` for other arguments.
    fn push_array_batch(
        &self,
        py: Python<'_>,
        transition: &Transition<'_, '_>,
        in_order: bool,
    ) -> Option<PyResult<()>> {
        let TransitionSchema { obs: specs, action, extra, .. } = &self.schema;
        let (false, [spec], [], None) = (B::DOES_IO, &**specs, &**extra, transition.extra) else { return None };
        let rewards = flat_elements::<f32>(transition.reward)?;
        let rows = rewards.slice().len();
        if rows.saturating_mul(self.width) > DETACH_ABOVE_ELEMENTS || !is_alone(py) {
            return None;
        }
        let (obs, actions) =
            (row_elements(transition.obs, spec, Some(rows))?, row_elements(transition.action, action, Some(rows))?);
        let next_obs =
            transition.next_obs.map(|next| row_elements(next, spec, Some(rows)).ok_or(())).transpose().ok()?;
        let (terminated, truncated) =
            (flat_elements::<bool>(transition.terminated)?, flat_elements::<bool>(transition.truncated)?);
        if terminated.slice().len() != rows || truncated.slice().len() != rows {
            return None;
        }
        let next_obs = next_obs.as_ref().map(|next| [FieldData::F32(next.slice())]);
        let batch = TransitionBatch {
            obs: &[FieldData::F32(obs.slice())],
            actions: FieldData::F32(actions.slice()),
            rewards: rewards.slice(),
            terminated: terminated.slice(),
            truncated: truncated.slice(),
            next_obs: next_obs.as_ref().map(|next| &next[..]),
            extra: &[],
        };
        Some(self.inner.write(py, false, |buffer| buffer.push(&batch, in_order).map_err(|error| self.name(error))))
    }

    /// Returns true if pushing this many rows waits for writes to a disk.
    fn is_write_due(&self, py: Python<'_>, rows: usize) -> PyResult<bool> {
        if B::DOES_IO { self.inner.read(py, false, |buffer| Ok(buffer.is_write_due(rows))) } else { Ok(false) }
    }

    /// Converts the extra fields. A buffer without extra fields accepts only None.
    fn extra<'py>(&self, extra: Option<&Bound<'py, PyAny>>) -> PyResult<FieldsArgument<'_, 'py>> {
        match extra {
            Some(extra) if self.schema.extra.is_empty() => Err(type_error(
                "extra",
                "None, because the buffer has no extra fields",
                &short_repr(extra),
                "leave it out",
            )),
            Some(extra) => FieldsArgument::new("extra", extra, &self.schema.extra),
            None if self.schema.extra.is_empty() => Ok(FieldsArgument::none()),
            None => {
                let names: Vec<_> = self.schema.extra.iter().map(|spec| spec.name.as_str()).collect();
                let fix = "pass one array per extra field";
                Err(type_error("extra", &format!("a dict of {}", names.join(", ")), "None", fix))
            }
        }
    }

    /// Samples transitions, and copies them to new arrays or to those of `out`.
    ///
    /// If `beta` is given, it is set before the sample.
    pub(super) fn sample<'py>(
        &self,
        py: Python<'py>,
        batch_size: &Bound<'py, PyAny>,
        seed: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        beta: Option<f32>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let batch_size = size("batch_size", batch_size)?;
        let seeded_rng = seed.map(rng_of).transpose()?;
        let out = parse_out(out)?;
        self.inner.read(py, false, |buffer| buffer.check_batch_size(batch_size))?;
        let mut arrays = OutputArrays::new(py, &self.columns, &[batch_size], out)?;
        let discounts = ExtraOutput::new("discounts", self.has_n_step, out, batch_size)?;
        let weights = ExtraOutput::new("weights", self.prioritized, out, batch_size)?;
        let indices = ExtraOutput::new("indices", self.prioritized, out, batch_size)?;
        let long = B::DOES_IO
            || batch_size > DETACH_ABOVE_SAMPLES.0
            || batch_size.saturating_mul(self.width) > DETACH_ABOVE_SAMPLES.1;
        let targets = arrays.targets();
        let fill = |buffer: &B| self.fill(buffer, batch_size, seeded_rng, targets, long);
        let sample_indices = match beta {
            None => self.inner.read(py, long, fill),
            Some(beta) => self.inner.write(py, long, |buffer| {
                let before = buffer.set_beta(beta)?;
                let filled = fill(buffer);
                if filled.is_err() {
                    buffer.set_beta(before)?;
                }
                filled
            }),
        }?;
        let dict = arrays.into_dict(py, out)?;
        discounts.write_into(py, &dict, sample_indices.discounts(), |x| x)?;
        weights.write_into(py, &dict, sample_indices.weights(), |x| x)?;
        indices.write_into(py, &dict, sample_indices.indices(), |index| index as i64)?;
        self.sample_pool.release(sample_indices);
        Ok(dict)
    }

    /// Draws transitions and copies them to `targets`. Other threads may do so at the same time.
    fn fill(
        &self,
        buffer: &B,
        batch_size: usize,
        mut seeded_rng: Option<Pcg64>,
        targets: Vec<(Column, Target<'_>)>,
        long: bool,
    ) -> Result<SampleIndices> {
        let (mut sample_indices, mut interrupt) = (self.sample_pool.take(), InterruptCheck::default());
        let drawn = self.draw(seeded_rng.as_mut(), |rng| buffer.draw(&mut sample_indices, batch_size, rng))?;
        self.restore_rng_on_error(drawn, || {
            buffer.find(&mut sample_indices)?;
            for (column, target) in targets {
                if long {
                    interrupt.check()?;
                }
                target.write(&sample_indices, buffer, column)?;
            }
            Ok(())
        })?;
        Ok(sample_indices)
    }

    /// Draws from the stream of the call's seed, or without a seed from the buffer's stream.
    pub(super) fn draw(
        &self,
        seeded_rng: Option<&mut Pcg64>,
        draw: impl FnOnce(&mut Pcg64) -> Result<()>,
    ) -> Result<RngSteps> {
        if let Some(seeded_rng) = seeded_rng {
            return draw(seeded_rng).map(|()| None);
        }
        self.rng.enter(|rng| {
            let mut after = rng.clone();
            draw(&mut after)?;
            Ok(Some((std::mem::replace(rng, after.clone()), after)))
        })
    }

    /// Calls `work`, the part of a sample after the draw.
    ///
    /// If `work` fails, the buffer's stream is reset, unless other calls have drawn since.
    pub(super) fn restore_rng_on_error(&self, drawn: RngSteps, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let done = work();
        if let (Err(_), Some((before, after))) = (&done, drawn) {
            // The caller receives the first error.
            let _ = self.rng.enter(|rng| {
                if *rng == after {
                    *rng = before;
                }
                Ok(())
            });
        }
        done
    }

    pub(super) fn set_stream(&self, stream: Pcg64) -> Result<()> {
        self.rng.enter(|rng| {
            *rng = stream;
            Ok(())
        })
    }

    pub(super) fn len(&self, py: Python<'_>) -> PyResult<usize> {
        self.inner.read(py, false, |buffer| Ok(buffer.len()))
    }

    /// Formats the class, capacity, length and fields, and further items.
    pub(super) fn format_repr(&self, py: Python<'_>, class: &str, extra: &[(&str, String)]) -> String {
        // A signal handler may call this during a push. The counts are then unavailable and are
        // left out.
        let counts = self.inner.read(py, false, |buffer| Ok((buffer.capacity(), buffer.len()))).ok();
        let obs = match &*self.schema.obs {
            [spec] if key_of(spec).is_none() => field_text(spec),
            specs => {
                let each = |spec| format!("{}: {}", key_of(spec).unwrap_or_default(), field_text(spec));
                format!("{{{}}}", specs.iter().map(each).collect::<Vec<_>>().join(", "))
            }
        };
        let mut items = Vec::new();
        if let Some((capacity, len)) = counts {
            items.extend([format!("capacity={capacity}"), format!("len={len}")]);
        }
        items.extend([format!("obs={obs}"), format!("actions={}", field_text(&self.schema.action))]);
        if self.num_envs > 1 {
            items.push(format!("num_envs={}", self.num_envs));
        }
        items.extend(extra.iter().map(|(name, value)| format!("{name}={value}")));
        format!("{class}({})", items.join(", "))
    }

    /// Returns the bytes of memory in use; `backend_bytes` returns those of the buffer's contents.
    pub(super) fn nbytes(&self, py: Python<'_>, backend_bytes: impl FnOnce(&B) -> usize + Send) -> PyResult<usize> {
        self.inner
            .read(py, false, |buffer| Ok(backend_bytes(buffer) + self.sample_pool.bytes() + self.sequence_pool.bytes()))
    }

    /// Calls `last` with the storage, then frees all memory.
    pub(super) fn close(&self, py: Python<'_>, last: impl FnOnce(&mut B) -> Result<()> + Send) -> PyResult<()> {
        self.inner.close(py, last)?;
        self.sample_pool.close();
        self.sequence_pool.close();
        Ok(())
    }
}

/// One transition or a batch, as Python objects.
pub(super) struct Transition<'a, 'py> {
    pub(super) obs: &'a Bound<'py, PyAny>,
    pub(super) action: &'a Bound<'py, PyAny>,
    pub(super) reward: &'a Bound<'py, PyAny>,
    pub(super) terminated: &'a Bound<'py, PyAny>,
    pub(super) truncated: &'a Bound<'py, PyAny>,
    pub(super) next_obs: Option<&'a Bound<'py, PyAny>>,
    pub(super) extra: Option<&'a Bound<'py, PyAny>>,
}

/// Renames arguments in an error to the singular names of `push`.
fn rename_action(error: Error) -> Error {
    error.rename_argument("actions", "action").rename_argument("rewards", "reward")
}

/// Returns the argument `out` as a dict.
pub(super) fn parse_out<'a, 'py>(out: Option<&'a Bound<'py, PyAny>>) -> PyResult<Option<&'a Bound<'py, PyDict>>> {
    let mismatch =
        |object| type_error("out", "a dict from an earlier sample", &short_repr(object), "pass such a dict or None");
    out.map(|object| object.cast::<PyDict>().map_err(|_| mismatch(object))).transpose()
}

/// Returns the random stream of a seed or, without a seed, of the system's entropy.
pub(super) fn rng_or_os_entropy(seed: Option<&Bound<'_, PyAny>>) -> PyResult<Pcg64> {
    seed.map_or_else(|| Ok(Pcg64::from_seed_sequence(&SeedSequence::from_os())), rng_of)
}

/// Returns the random stream of an integer seed, or of two draws from a NumPy generator.
pub(super) fn rng_of(seed: &Bound<'_, PyAny>) -> PyResult<Pcg64> {
    if !seed.is_exact_instance_of::<PyInt>() && has(seed, "integers")? {
        let entropy = draw_entropy(seed)?.map(|word| [word as u32, (word >> 32) as u32]);
        return Ok(Pcg64::from_seed_sequence(&SeedSequence::from_entropy(entropy.as_flattened())));
    }
    Ok(Pcg64::seed_from(seed_of(seed)?.into()))
}

/// Makes the storage, options and random stream from the arguments of a constructor.
pub(super) fn make_parts(
    py: Python<'_>,
    [capacity, obs_dim, act_dim]: [&Bound<'_, PyAny>; 3],
    options: BufferOptions<'_, '_>,
) -> PyResult<BufferParts> {
    let or_one = |name, value: Option<&Bound<'_, PyAny>>| value.map_or(Ok(1), |value| size(name, value));
    let capacity_name = options.capacity_name.map_or(Cow::Borrowed("capacity"), |name| Cow::Owned(name.to_owned()));
    let capacity = size(&capacity_name, capacity)?;
    let num_envs = or_one("num_envs", options.num_envs)?;
    let frame_stack = or_one("frame_stack", options.frame_stack)?;
    let dtypes = [options.obs_dtype, options.act_dtype];
    let schema = make_schema([obs_dim, act_dim], dtypes, options.extra, frame_stack)?;
    let n = or_one("n_step", options.n_step)?;
    let n_step = (n != 1).then_some(NStep { n, gamma: options.gamma });
    let rng = rng_or_os_entropy(options.seed)?;
    let name = |error: Error| error.rename_argument("capacity", capacity_name.clone());
    let storage = detach(py, || ReplayStorage::new(capacity, num_envs, schema).map_err(name)).map_err(to_py)?;
    Ok(BufferParts { storage, n_step, rng, capacity_name })
}

/// Keyword arguments of a constructor.
pub(super) struct BufferOptions<'a, 'py> {
    pub(super) num_envs: Option<&'a Bound<'py, PyAny>>,
    pub(super) obs_dtype: Option<&'a Bound<'py, PyAny>>,
    pub(super) act_dtype: Option<&'a Bound<'py, PyAny>>,
    pub(super) frame_stack: Option<&'a Bound<'py, PyAny>>,
    pub(super) n_step: Option<&'a Bound<'py, PyAny>>,
    pub(super) gamma: f64,
    pub(super) extra: Option<&'a Bound<'py, PyAny>>,
    pub(super) seed: Option<&'a Bound<'py, PyAny>>,
    /// Name of the argument `capacity` in errors; not part of the documented signature.
    pub(super) capacity_name: Option<&'a str>,
}

/// Borrows the elements of a float32 array that has the field's shape, or `rows` rows of it.
///
/// Returns `None` for any other object.
fn row_elements<'py>(object: &Bound<'py, PyAny>, spec: &FieldSpec, rows: Option<usize>) -> Option<Elements<'py, f32>> {
    let is_fast = |_: &&_| spec.dtype == DType::F32 && key_of(spec).is_none() && !is_subclassed(object);
    let array = typed::<f32>(object).filter(is_fast)?;
    // Compared in place, because a function call takes longer than comparing a few numbers.
    array.shape().iter().eq(rows.iter().chain(&spec.shape)).then(|| Elements::try_new(array)).flatten()
}

/// Borrows the elements of a one-dimensional array; `None` for any other object.
fn flat_elements<'py, T: Kind + Element + 'static>(object: &Bound<'py, PyAny>) -> Option<Elements<'py, T>> {
    let array = typed::<T>(object).filter(|_| !is_subclassed(object))?;
    (array.ndim() == 1).then(|| Elements::try_new(array)).flatten()
}

/// Returns a text for the rows of a field, such as "uint8[4, 84, 84]".
fn field_text(spec: &FieldSpec) -> String {
    let dtype = match spec.dtype {
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::I64 => "int64",
        DType::U8 => "uint8",
        DType::Bool => "bool",
    };
    format!("{dtype}{:?}", spec.shape)
}

/// Values that a pool can store for reuse.
pub(super) trait Pooled: Default {
    /// Returns the bytes of memory in use.
    fn bytes(&self) -> usize;
}

impl Pooled for SampleIndices {
    fn bytes(&self) -> usize {
        self.memory()
    }
}

impl Pooled for SequenceIndices {
    fn bytes(&self) -> usize {
        self.memory()
    }
}

/// Pool of memory from finished calls, for reuse.
///
/// No call waits for the pool's lock. `bytes` changes only under the lock.
pub(super) struct ScratchPool<T> {
    /// `None` after the pool is closed.
    items: Mutex<Option<Vec<T>>>,
    bytes: AtomicUsize,
}

impl<T: Pooled> ScratchPool<T> {
    pub(super) fn new() -> Self {
        Self { items: Mutex::new(Some(Vec::new())), bytes: AtomicUsize::new(0) }
    }

    /// Returns the bytes in the pool.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes an item from the pool, or makes a new one.
    pub(super) fn take(&self) -> T {
        let thing = try_guard(self.items.try_lock()).and_then(|mut items| {
            let thing = items.as_mut()?.pop()?;
            self.bytes.store(self.bytes() - thing.bytes(), Ordering::Relaxed);
            Some(thing)
        });
        thing.unwrap_or_default()
    }

    /// Adds an item to the pool, unless the pool is full.
    pub(super) fn release(&self, thing: T) {
        if let Some(mut guard) = try_guard(self.items.try_lock())
            && let Some(items) = guard.as_mut()
            && items.len() < POOL_MAX_ITEMS
            && self.bytes().saturating_add(thing.bytes()) <= POOL_MAX_BYTES
        {
            self.bytes.store(self.bytes() + thing.bytes(), Ordering::Relaxed);
            items.push(thing);
        }
    }

    /// Frees all items. Later items are not stored.
    pub(super) fn close(&self) {
        // Calls hold the lock only briefly. After a fork, the thread that holds it may not exist.
        for _ in 0..1000 {
            if let Some(mut items) = try_guard(self.items.try_lock()) {
                self.bytes.store(0, Ordering::Relaxed);
                return drop(items.take());
            }
            std::thread::yield_now();
        }
    }
}
