//! `Buffer`: pushes, samples and memory that all replay buffers share.

use std::borrow::Cow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use numpy::{Element, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt};
use rlox_core::replay::{
    AnySampler, Chosen, ChosenSequences, Column, Layout, NStep, Part, Replay, ReplayStorage, Steps,
};
use rlox_core::{DType, Error, FieldData, Pcg64, Result, SeedSequence, Watch};

use super::sample::{Beside, Columns, Place, Target, places_of};
use super::schema::{Few, PartsArgument, key_of, layout_of, words_from};
use super::source::Source;
use crate::convert::args::{REAL, argument, expect_shape_or, has, is_subclassed, number, shown, size};
use crate::convert::flags::{flag, flag_argument};
use crate::convert::observation::ObsInput;
use crate::convert::seed::seed_of;
use crate::error::{to_py, type_error};
use crate::sync::borrow::{Elements, Kind, typed};
use crate::sync::cell::{Shared, free};
use crate::sync::gil::{alone, detached};
use crate::sync::rwlock::Readable;

/// From how many elements on a push may take more than 5 us.
const LONG: usize = 8192;

/// What rewards and flags are to be.
const EACH: &str = "pass one for each row of obs, in one axis";

/// From how many transitions or elements on a sample may take more than 5 us.
const MANY: (usize, usize) = (128, 16_384);

/// Number of finished calls whose memory is kept: so many calls at once find memory that is there already.
const KEPT: usize = 8;
/// Bytes that all of them have at most: what a larger call has used goes back to the system.
const BYTES: usize = 8 << 20;

/// What all replay buffers do.
pub(super) struct Buffer<B = Replay<AnySampler>> {
    pub(super) inner: Readable<B>,
    /// What samples without a seed draw from. Entered inside of the buffer, and only to draw: others may wait for it.
    pub(super) rng: Shared<Pcg64>,
    chosen: Spare<Chosen>,
    pub(super) sequences: Spare<ChosenSequences>,
    pub(super) layout: Layout,
    pub(super) num_envs: usize,
    /// Elements of one transition.
    pub(super) width: usize,
    pub(super) places: Vec<Place>,
    prioritized: bool,
    /// Whether transitions span several steps.
    spans: bool,
    /// Name of the argument `capacity` in errors.
    capacity_name: Cow<'static, str>,
}

/// The buffer's own stream before and after a call has drawn from it.
pub(super) type Drawn = Option<(Pcg64, Pcg64)>;

/// The settings that all buffers share.
pub(super) struct Made {
    pub(super) storage: ReplayStorage,
    n_step: Option<NStep>,
    rng: Pcg64,
    capacity_name: Cow<'static, str>,
}

impl Made {
    /// Returns an error with the name of the argument that the caller passed as the capacity.
    pub(super) fn name(&self, error: Error) -> Error {
        error.rename_argument("capacity", self.capacity_name.clone())
    }
}

impl Buffer {
    pub(super) fn new(py: Python<'_>, made: Made, sampler: AnySampler, name: &'static str) -> PyResult<Self> {
        let Made { storage, n_step, rng, capacity_name } = made;
        let mut buffer = Replay::with(storage, sampler).map_err(to_py)?;
        if let Some(n_step) = n_step {
            buffer = buffer.with_n_step(n_step).map_err(to_py)?;
        }
        Ok(Self { capacity_name, ..Self::with(py, buffer, rng, name) })
    }

    /// What Python sees of a buffer of the core's.
    pub(super) fn with(py: Python<'_>, buffer: Replay<AnySampler>, rng: Pcg64, name: &'static str) -> Self {
        let prioritized = matches!(buffer.sampler(), AnySampler::Prioritized(_));
        let spans = buffer.n_step().is_some();
        Self { prioritized, spans, ..Self::of(py, buffer, rng, name) }
    }
}

impl<B: Source> Buffer<B> {
    pub(super) fn of(py: Python<'_>, buffer: B, rng: Pcg64, name: &'static str) -> Self {
        let (layout, num_envs) = (buffer.layout().clone(), buffer.num_envs());
        let places = places_of(py, &layout);
        let width = 2 * layout.obs.iter().map(Part::width).sum::<usize>() + layout.action.width();
        let (inner, rng) = (Readable::new(name, B::REOPEN, buffer), Shared::new(name, rng));
        let (chosen, sequences) = (Spare::new(), Spare::new());
        let capacity_name = Cow::Borrowed("capacity");
        let (prioritized, spans) = (false, false);
        Self { inner, rng, chosen, sequences, layout, num_envs, width, places, prioritized, spans, capacity_name }
    }

    /// Returns an error with the name of the argument that the caller passed as the capacity.
    pub(super) fn name(&self, error: Error) -> Error {
        error.rename_argument("capacity", self.capacity_name.clone())
    }

    /// Adds one transition of the only environment.
    pub(super) fn push(&self, py: Python<'_>, given: Transition<'_, '_>) -> PyResult<()> {
        if let Some(pushed) = self.push_arrays(py, &given) {
            return pushed;
        }
        let Transition { obs, action, reward, terminated, truncated, next_obs, extra } = given;
        let obs = PartsArgument::new("obs", obs, &self.layout.obs)?;
        let action = PartsArgument::new("action", action, std::slice::from_ref(&self.layout.action))?;
        let next_obs = next_obs.map(|next| PartsArgument::new("next_obs", next, &self.layout.obs)).transpose()?;
        let extra = self.extra(extra)?;
        let reward = number("reward", reward)? as f32;
        let (terminated, truncated) = (flag("terminated", terminated)?, flag("truncated", truncated)?);
        let hold = obs.len() + action.len() + extra.len() <= LONG && alone(py) && !self.is_due(py, 1)?;
        let (obs, action, extra) = (obs.read(None, hold)?, action.read(None, hold)?, extra.read(None, hold)?);
        let next_obs = next_obs.map(|next| next.read(None, hold)).transpose()?;
        let (rewards, terminated, truncated) = ([reward], [terminated], [truncated]);
        let (obs, next_obs) = (obs.each(ObsInput::get), next_obs.as_ref().map(|next| next.each(ObsInput::get)));
        let (action, extra) = (action.each(ObsInput::get), extra.each(ObsInput::get));
        let steps = Steps {
            obs: obs.as_slice(),
            actions: action.as_slice()[0],
            rewards: &rewards,
            terminated: &terminated,
            truncated: &truncated,
            next_obs: next_obs.as_ref().map(Few::as_slice),
            extra: extra.as_slice(),
        };
        if self.num_envs != 1 {
            let (got, fix) = (format!("{} environments", self.num_envs), "push a row for each with push_batch");
            return Err(to_py(Error::config("push", "a buffer of one environment", got, fix)));
        }
        self.inner.write(py, !hold, |buffer| buffer.push(&steps, false).map_err(|error| self.name(of_action(error))))
    }

    /// Adds rows.
    pub(super) fn push_batch(&self, py: Python<'_>, given: Transition<'_, '_>, in_order: bool) -> PyResult<()> {
        if let Some(pushed) = self.push_array_batch(py, &given, in_order) {
            return pushed;
        }
        let Transition { obs, action, reward, terminated, truncated, next_obs, extra } = given;
        let obs = PartsArgument::new("obs", obs, &self.layout.obs)?;
        let actions = PartsArgument::new("actions", action, std::slice::from_ref(&self.layout.action))?;
        let next_obs = next_obs.map(|next| PartsArgument::new("next_obs", next, &self.layout.obs)).transpose()?;
        let extra = self.extra(extra)?;
        let rewards = argument::<f32>("rewards", reward, &REAL)?;
        let (terminated, truncated) =
            (flag_argument("terminated", terminated)?, flag_argument("truncated", truncated)?);
        let hold = obs.len() + actions.len() + extra.len() <= LONG && alone(py) && !self.is_due(py, rewards.len())?;
        let rewards = rewards.read(hold)?;
        let rows = rewards.slice().len();
        expect_shape_or("rewards", rewards.shape(), (rows, &[]), EACH)?;
        let (terminated, truncated) = (terminated.read(py, hold)?, truncated.read(py, hold)?);
        expect_shape_or("terminated", terminated.shape(), (rows, &[]), EACH)?;
        expect_shape_or("truncated", truncated.shape(), (rows, &[]), EACH)?;
        let (obs, actions) = (obs.read(Some(rows), hold)?, actions.read(Some(rows), hold)?);
        let next_obs = next_obs.map(|next| next.read(Some(rows), hold)).transpose()?;
        let extra = extra.read(Some(rows), hold)?;
        let (obs, next_obs) = (obs.each(ObsInput::get), next_obs.as_ref().map(|next| next.each(ObsInput::get)));
        let (actions, extra) = (actions.each(ObsInput::get), extra.each(ObsInput::get));
        let steps = Steps {
            obs: obs.as_slice(),
            actions: actions.as_slice()[0],
            rewards: rewards.slice(),
            terminated: terminated.slice(),
            truncated: truncated.slice(),
            next_obs: next_obs.as_ref().map(Few::as_slice),
            extra: extra.as_slice(),
        };
        self.inner.write(py, !hold, |buffer| buffer.push(&steps, in_order).map_err(|error| self.name(error)))
    }

    /// `push` of float32 arrays of the right shapes beside a float and two bools; none of anything else.
    fn push_arrays(&self, py: Python<'_>, given: &Transition<'_, '_>) -> Option<PyResult<()>> {
        let Self { layout: Layout { obs: parts, action, extra, .. }, num_envs: 1, .. } = self else { return None };
        let (false, [part], [], None) = (B::WAITS, &**parts, &**extra, given.extra) else { return None };
        if self.width > LONG || !alone(py) {
            return None;
        }
        let (obs, action) = (row(given.obs, part, None)?, row(given.action, action, None)?);
        let next_obs = given.next_obs.map(|next| row(next, part, None).ok_or(())).transpose().ok()?;
        let flag = |flag: &Bound<'_, PyAny>| flag.cast::<PyBool>().map(PyBoolMethods::is_true).ok();
        let rewards = [given.reward.cast_exact::<PyFloat>().ok()?.value() as f32];
        let (terminated, truncated) = ([flag(given.terminated)?], [flag(given.truncated)?]);
        let next_obs = next_obs.as_ref().map(|next| [FieldData::F32(next.slice())]);
        let steps = Steps {
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
                .write(py, false, |buffer| buffer.push(&steps, false).map_err(|error| self.name(of_action(error)))),
        )
    }

    /// `push_batch` of float32 and bool arrays of the right shapes; none of anything else.
    fn push_array_batch(&self, py: Python<'_>, given: &Transition<'_, '_>, in_order: bool) -> Option<PyResult<()>> {
        let Layout { obs: parts, action, extra, .. } = &self.layout;
        let (false, [part], [], None) = (B::WAITS, &**parts, &**extra, given.extra) else { return None };
        let rewards = flat::<f32>(given.reward)?;
        let rows = rewards.slice().len();
        if rows.saturating_mul(self.width) > LONG || !alone(py) {
            return None;
        }
        let (obs, actions) = (row(given.obs, part, Some(rows))?, row(given.action, action, Some(rows))?);
        let next_obs = given.next_obs.map(|next| row(next, part, Some(rows)).ok_or(())).transpose().ok()?;
        let (terminated, truncated) = (flat::<bool>(given.terminated)?, flat::<bool>(given.truncated)?);
        if terminated.slice().len() != rows || truncated.slice().len() != rows {
            return None;
        }
        let next_obs = next_obs.as_ref().map(|next| [FieldData::F32(next.slice())]);
        let steps = Steps {
            obs: &[FieldData::F32(obs.slice())],
            actions: FieldData::F32(actions.slice()),
            rewards: rewards.slice(),
            terminated: terminated.slice(),
            truncated: truncated.slice(),
            next_obs: next_obs.as_ref().map(|next| &next[..]),
            extra: &[],
        };
        Some(self.inner.write(py, false, |buffer| buffer.push(&steps, in_order).map_err(|error| self.name(error))))
    }

    /// Whether pushing so many rows waits for a disk.
    fn is_due(&self, py: Python<'_>, rows: usize) -> PyResult<bool> {
        if B::WAITS { self.inner.read(py, false, |buffer| Ok(buffer.is_due(rows))) } else { Ok(false) }
    }

    /// Further parts, which only some buffers have.
    fn extra<'py>(&self, extra: Option<&Bound<'py, PyAny>>) -> PyResult<PartsArgument<'_, 'py>> {
        match extra {
            Some(extra) if self.layout.extra.is_empty() => {
                Err(type_error("extra", "None, as the buffer stores nothing else", &shown(extra), "leave it out"))
            }
            Some(extra) => PartsArgument::new("extra", extra, &self.layout.extra),
            None if self.layout.extra.is_empty() => Ok(PartsArgument::none()),
            None => {
                let names: Vec<_> = self.layout.extra.iter().map(|part| part.name.as_str()).collect();
                let fix = "pass an array for each of the buffer's extra parts";
                Err(type_error("extra", &format!("a dict of {}", names.join(", ")), "None", fix))
            }
        }
    }

    /// Samples and copies; where `beta` is given, it is set first.
    pub(super) fn sample<'py>(
        &self,
        py: Python<'py>,
        batch_size: &Bound<'py, PyAny>,
        seed: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        beta: Option<f32>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let batch_size = size("batch_size", batch_size)?;
        let own = seed.map(rng_of).transpose()?;
        let out = out_of(out)?;
        self.inner.read(py, false, |buffer| buffer.check_batch_size(batch_size))?;
        let mut columns = Columns::new(py, &self.places, &[batch_size], out)?;
        let discounts = Beside::new("discounts", self.spans, out, batch_size)?;
        let weights = Beside::new("weights", self.prioritized, out, batch_size)?;
        let indices = Beside::new("indices", self.prioritized, out, batch_size)?;
        let long = B::WAITS || batch_size > MANY.0 || batch_size.saturating_mul(self.width) > MANY.1;
        let targets = columns.targets();
        let fill = |buffer: &B| self.fill(buffer, batch_size, own, targets, long);
        let chosen = match beta {
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
        let dict = columns.into_dict(py, out)?;
        discounts.put(py, &dict, chosen.discounts(), |x| x)?;
        weights.put(py, &dict, chosen.weights(), |x| x)?;
        indices.put(py, &dict, chosen.indices(), |index| index as i64)?;
        self.chosen.leave(chosen);
        Ok(dict)
    }

    /// Chooses transitions and copies them; others may do so at the same time.
    fn fill(
        &self,
        buffer: &B,
        batch_size: usize,
        mut own: Option<Pcg64>,
        targets: Vec<(Column, Target<'_>)>,
        long: bool,
    ) -> Result<Chosen> {
        let (mut chosen, mut watch) = (self.chosen.take(), Watch::default());
        let drawn = self.draw(own.as_mut(), |rng| buffer.draw(&mut chosen, batch_size, rng))?;
        self.or_undone(drawn, || {
            buffer.find(&mut chosen)?;
            for (column, target) in targets {
                if long {
                    watch.check()?;
                }
                target.write(&chosen, buffer, column)?;
            }
            Ok(())
        })?;
        Ok(chosen)
    }

    /// Draws from a call's own stream, or else from the buffer's.
    pub(super) fn draw(&self, own: Option<&mut Pcg64>, draw: impl FnOnce(&mut Pcg64) -> Result<()>) -> Result<Drawn> {
        if let Some(own) = own {
            return draw(own).map(|()| None);
        }
        self.rng.enter(|rng| {
            let mut after = rng.clone();
            draw(&mut after)?;
            Ok(Some((std::mem::replace(rng, after.clone()), after)))
        })
    }

    /// Does what comes after a draw. If it fails, the buffer's stream is as before, unless others have drawn since.
    pub(super) fn or_undone(&self, drawn: Drawn, rest: impl FnOnce() -> Result<()>) -> Result<()> {
        let done = rest();
        if let (Err(_), Some((before, after))) = (&done, drawn) {
            // What went wrong first is what the caller is told.
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

    /// Its class, how much it can hold and holds, of what, and what else there is to say.
    pub(super) fn told(&self, py: Python<'_>, class: &str, beside: &[(&str, String)]) -> String {
        // Whoever asks in the middle of a push, as a signal's handler does, learns all but how much there is.
        let counts = self.inner.read(py, false, |buffer| Ok((buffer.capacity(), buffer.len()))).ok();
        let obs = match &*self.layout.obs {
            [part] if key_of(part).is_none() => row_text(part),
            parts => {
                let each = |part| format!("{}: {}", key_of(part).unwrap_or_default(), row_text(part));
                format!("{{{}}}", parts.iter().map(each).collect::<Vec<_>>().join(", "))
            }
        };
        let mut told = Vec::new();
        if let Some((capacity, len)) = counts {
            told.extend([format!("capacity={capacity}"), format!("len={len}")]);
        }
        told.extend([format!("obs={obs}"), format!("actions={}", row_text(&self.layout.action))]);
        if self.num_envs > 1 {
            told.push(format!("num_envs={}", self.num_envs));
        }
        told.extend(beside.iter().map(|(name, value)| format!("{name}={value}")));
        format!("{class}({})", told.join(", "))
    }

    /// Bytes of memory, of which what it samples from has so many.
    pub(super) fn nbytes(&self, py: Python<'_>, of: impl FnOnce(&B) -> usize + Send) -> PyResult<usize> {
        self.inner.read(py, false, |buffer| Ok(of(buffer) + self.chosen.bytes() + self.sequences.bytes()))
    }

    /// Does the last thing, and lets everything go.
    pub(super) fn close(&self, py: Python<'_>, last: impl FnOnce(&mut B) -> Result<()> + Send) -> PyResult<()> {
        self.inner.close(py, last)?;
        self.chosen.close();
        self.sequences.close();
        Ok(())
    }
}

/// One transition, or many, as Python gave it.
pub(super) struct Transition<'a, 'py> {
    pub(super) obs: &'a Bound<'py, PyAny>,
    pub(super) action: &'a Bound<'py, PyAny>,
    pub(super) reward: &'a Bound<'py, PyAny>,
    pub(super) terminated: &'a Bound<'py, PyAny>,
    pub(super) truncated: &'a Bound<'py, PyAny>,
    pub(super) next_obs: Option<&'a Bound<'py, PyAny>>,
    pub(super) extra: Option<&'a Bound<'py, PyAny>>,
}

/// An error in the words of a single push.
fn of_action(error: Error) -> Error {
    error.rename_argument("actions", "action").rename_argument("rewards", "reward")
}

/// The dict to be overwritten.
pub(super) fn out_of<'a, 'py>(out: Option<&'a Bound<'py, PyAny>>) -> PyResult<Option<&'a Bound<'py, PyDict>>> {
    let wrong = |given| type_error("out", "a dict that an earlier sample gave", &shown(given), "pass one");
    out.map(|given| given.cast::<PyDict>().map_err(|_| wrong(given))).transpose()
}

/// The stream of a seed; of none, one of its own.
pub(super) fn own_rng(seed: Option<&Bound<'_, PyAny>>) -> PyResult<Pcg64> {
    seed.map_or_else(|| Ok(Pcg64::from_seed_sequence(&SeedSequence::from_os())), rng_of)
}

/// The stream of a seed, or of what a NumPy generator draws.
pub(super) fn rng_of(seed: &Bound<'_, PyAny>) -> PyResult<Pcg64> {
    if !seed.is_exact_instance_of::<PyInt>() && has(seed, "integers")? {
        let words = words_from(seed)?.map(|word| [word as u32, (word >> 32) as u32]);
        return Ok(Pcg64::from_seed_sequence(&SeedSequence::from_words(words.as_flattened())));
    }
    Ok(Pcg64::seed_from(seed_of(seed)?.into()))
}

/// The storage and what goes with it, of a constructor's arguments.
pub(super) fn made(
    py: Python<'_>,
    [capacity, obs_dim, act_dim]: [&Bound<'_, PyAny>; 3],
    settings: Settings<'_, '_>,
) -> PyResult<Made> {
    let or_one = |name, given: Option<&Bound<'_, PyAny>>| given.map_or(Ok(1), |given| size(name, given));
    let capacity_name = settings.capacity_name.map_or(Cow::Borrowed("capacity"), |name| Cow::Owned(name.to_owned()));
    let capacity = size(&capacity_name, capacity)?;
    let num_envs = or_one("num_envs", settings.num_envs)?;
    let frame_stack = or_one("frame_stack", settings.frame_stack)?;
    let dtypes = [settings.obs_dtype, settings.act_dtype];
    let layout = layout_of([obs_dim, act_dim], dtypes, settings.extra, frame_stack)?;
    let n = or_one("n_step", settings.n_step)?;
    let n_step = (n != 1).then_some(NStep { n, gamma: settings.gamma });
    let rng = own_rng(settings.seed)?;
    let name = |error: Error| error.rename_argument("capacity", capacity_name.clone());
    let storage = detached(py, || ReplayStorage::new(capacity, num_envs, layout).map_err(name)).map_err(to_py)?;
    Ok(Made { storage, n_step, rng, capacity_name })
}

/// The keywords of a constructor.
pub(super) struct Settings<'a, 'py> {
    pub(super) num_envs: Option<&'a Bound<'py, PyAny>>,
    pub(super) obs_dtype: Option<&'a Bound<'py, PyAny>>,
    pub(super) act_dtype: Option<&'a Bound<'py, PyAny>>,
    pub(super) frame_stack: Option<&'a Bound<'py, PyAny>>,
    pub(super) n_step: Option<&'a Bound<'py, PyAny>>,
    pub(super) gamma: f64,
    pub(super) extra: Option<&'a Bound<'py, PyAny>>,
    pub(super) seed: Option<&'a Bound<'py, PyAny>>,
    /// Name of the argument `capacity` in errors; it is not part of the documented signature.
    pub(super) capacity_name: Option<&'a str>,
}

/// The numbers of an array of the part's dtype and shape, or of so many rows of it, float32, as they lie; none of any other
/// object.
fn row<'py>(object: &Bound<'py, PyAny>, part: &Part, rows: Option<usize>) -> Option<Elements<'py, f32>> {
    let usual = |_: &&_| part.dtype == DType::F32 && key_of(part).is_none() && !is_subclassed(object);
    let array = typed::<f32>(object).filter(usual)?;
    // Compared in place: a call for a few numbers takes longer than they do.
    array.shape().iter().eq(rows.iter().chain(&part.shape)).then(|| Elements::of(array)).flatten()
}

/// What an array of one axis holds, as it lies; none of any other object.
fn flat<'py, T: Kind + Element + 'static>(object: &Bound<'py, PyAny>) -> Option<Elements<'py, T>> {
    let array = typed::<T>(object).filter(|_| !is_subclassed(object))?;
    (array.ndim() == 1).then(|| Elements::of(array)).flatten()
}

/// What a row of a part is, as in "uint8[4, 84, 84]".
fn row_text(part: &Part) -> String {
    let dtype = match part.dtype {
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::I64 => "int64",
        DType::U8 => "uint8",
        DType::Bool => "bool",
    };
    format!("{dtype}{:?}", part.shape)
}

/// What can be kept.
pub(super) trait Kept: Default {
    /// Bytes of memory.
    fn bytes(&self) -> usize;
}

impl Kept for Chosen {
    fn bytes(&self) -> usize {
        self.memory()
    }
}

impl Kept for ChosenSequences {
    fn bytes(&self) -> usize {
        self.memory()
    }
}

/// Memory of calls that are over, for later ones. Nobody ever waits for it. The bytes change under its lock.
pub(super) struct Spare<T> {
    /// None once it is closed.
    kept: Mutex<Option<Vec<T>>>,
    bytes: AtomicUsize,
}

impl<T: Kept> Spare<T> {
    pub(super) fn new() -> Self {
        Self { kept: Mutex::new(Some(Vec::new())), bytes: AtomicUsize::new(0) }
    }

    /// Bytes that are kept.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What another call has left, or something new.
    pub(super) fn take(&self) -> T {
        let thing = free(self.kept.try_lock()).and_then(|mut kept| {
            let thing = kept.as_mut()?.pop()?;
            self.bytes.store(self.bytes() - thing.bytes(), Ordering::Relaxed);
            Some(thing)
        });
        thing.unwrap_or_default()
    }

    /// Leaves it to others, if there is room.
    pub(super) fn leave(&self, thing: T) {
        if let Some(mut guard) = free(self.kept.try_lock())
            && let Some(kept) = guard.as_mut()
            && kept.len() < KEPT
            && self.bytes().saturating_add(thing.bytes()) <= BYTES
        {
            self.bytes.store(self.bytes() + thing.bytes(), Ordering::Relaxed);
            kept.push(thing);
        }
    }

    /// Lets everything go, and keeps nothing any more.
    pub(super) fn close(&self) {
        // Others have it for no longer than it takes to push or pop; after a fork its holder may not be there.
        for _ in 0..1000 {
            if let Some(mut kept) = free(self.kept.try_lock()) {
                self.bytes.store(0, Ordering::Relaxed);
                return drop(kept.take());
            }
            std::thread::yield_now();
        }
    }
}
