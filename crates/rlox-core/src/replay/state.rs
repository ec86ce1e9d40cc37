//! State of replay buffers, as named fields and in checkpoints.
//!
//! A buffer that loads a state continues exactly like the original buffer. The fields do not depend
//! on the layout of a row in memory, so that other versions can read them. Overwritten rows are
//! omitted, and so are next observations that equal a stored observation.
//!
//! A row is a transition in the ring buffer of a [`ReplayStorage`]. Next observations and older
//! frames that no row holds are outside the ring, in pools.

use std::fmt::Display;
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value};

use super::Replay;
use super::n_step::NStep;
use super::sampler::{Sampler, Uniform};
use super::schema::{FieldSpec, TransitionSchema, check_finite, count};
use super::storage::{CONTINUES, HEAD, NextObs, ReplayStorage, STORED, TERMINATED, TRUNCATED};
use crate::{
    Error, Result, alloc,
    checkpoint::Checkpoint,
    field::{DType, Field, FieldData},
    interrupt::InterruptCheck,
};

/// Name of the checkpoint member that holds a buffer, and of the manifest entry with its
/// configuration.
const MEMBER: &str = "replay";
/// Name of a field for a random stream, which callers may add to the fields of a buffer.
const STREAM: &str = "stream";

const HINT: &str = "pass the state of a buffer with the same arguments";
/// Numbers of rows, and of bytes of rows, between two interrupt checks.
const POLL_EVERY_ROWS: usize = 1 << 12;
const POLL_EVERY_BYTES: usize = 1 << 20;

/// Names of the fields with flags of transitions, and the bits of these flags in a row.
const FLAGS: [(&str, u8); 4] = [
    ("step.terminated", TERMINATED),
    ("step.truncated", TRUNCATED),
    ("continues", CONTINUES),
    ("next_is_stored", STORED),
];
/// Name of the field whose flags mark rows with older frames in the fields `older.*`.
const OLDER: &str = "older_is_stored";
/// Name of the field with one flag per environment.
///
/// The flag is true if the oldest stored transition continues an episode whose start is
/// overwritten.
const CUT: &str = "cut";
/// Locations of last next observations. A state stores the position of a location in this list.
const NEXT_OBS_CODES: [NextObs; 4] = [NextObs::None, NextObs::InNextRow, NextObs::Overflow, NextObs::Deferred];

/// Configuration of a buffer, as entries of a manifest.
pub type SamplerConfig = Map<String, Value>;

/// A sampler that can be recreated from a file.
pub trait PersistSampler: Sampler + Sized {
    /// Returns the settings of the sampler, with its name as the entry `sampler`.
    fn to_config(&self) -> SamplerConfig;

    /// Creates a sampler with the settings of a configuration.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration is invalid or belongs to another sampler.
    fn from_config(config: &SamplerConfig, storage: &ReplayStorage) -> Result<Self>;
}

impl PersistSampler for Uniform {
    fn to_config(&self) -> SamplerConfig {
        SamplerConfig::from_iter([("sampler".to_owned(), "uniform".into())])
    }

    fn from_config(config: &SamplerConfig, _: &ReplayStorage) -> Result<Self> {
        check_sampler(config, "uniform").map(|()| Self)
    }
}

impl<S: Sampler> Replay<S> {
    /// Returns the state of the buffer as fields.
    ///
    /// The fields hold the stored transitions in the order of pushes, the data that later pushes need, and the state of
    /// the sampler. The size depends on the stored transitions, not on the capacity.
    ///
    /// ```
    /// use rlox_core::replay::{ReplayBuffer, SampledBatch};
    ///
    /// let mut buffer = ReplayBuffer::new(1000, 1, 1)?;
    /// for i in 0..10 {
    ///     buffer.push_slices(&[i as f32], &[i as f32 + 1.0], &[0.0], 1.0, false, i == 9)?;
    /// }
    /// let mut copy = ReplayBuffer::new(1000, 1, 1)?;
    /// copy.load_state(&buffer.state()?)?;
    /// let (mut batch, mut again) = (SampledBatch::default(), SampledBatch::default());
    /// buffer.sample_into(&mut batch, 4, 7)?;
    /// copy.sample_into(&mut again, 4, 7)?;
    /// assert_eq!(batch.f32s("obs"), again.f32s("obs"));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if an allocation fails. [`Error::Interrupted`] if the interrupt check of
    /// the process stops the call.
    pub fn state(&self) -> Result<Vec<Field>> {
        let mut fields = self.storage().state()?;
        fields.extend(self.settings()?);
        Ok(fields)
    }

    /// Returns the fields of a state that do not come from the storage: n-step settings and sampler
    /// state.
    fn settings(&self) -> Result<Vec<Field>> {
        let mut fields = Vec::new();
        let (n, gamma) = self.n_step().map_or((0, 0.0), |n_step| (n_step.n, n_step.gamma));
        fields.push(number_field("n_step", n)?);
        let mut field = FieldDescriptor::new("gamma", &[], DType::F64, 1).field()?;
        field.write_at(0, FieldData::F64(&[gamma]));
        fields.push(field);
        fields.extend(self.sampler().state(self.storage())?);
        Ok(fields)
    }

    /// Loads the state of a buffer that was created with the same arguments.
    ///
    /// Later samples and pushes have the same results as those of the original buffer.
    ///
    /// # Errors
    /// - [`Error::Config`], [`Error::Space`], [`Error::Shape`] or [`Error::NotFinite`] if an array
    ///   is missing, unknown or invalid; the error names the array;
    /// - [`Error::Memory`] if an allocation fails;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    ///
    /// After an error, the buffer is unchanged, except that an interruption after the checks leaves
    /// it empty.
    pub fn load_state(&mut self, state: &[Field]) -> Result<()> {
        let checked = self.storage().check_state(state)?;
        let (n, gamma) = self.n_step().map_or((0, 0.0), |n_step| (n_step.n, n_step.gamma));
        let got = number(state, "n_step")?;
        if got != n {
            return Err(invalid_field("n_step", describe_n_step(n), describe_n_step(got)));
        }
        if let FieldData::F64(&[got]) = FieldDescriptor::new("gamma", &[], DType::F64, 1).lookup(state)?
            && got != gamma
        {
            return Err(invalid_field("gamma", gamma, got));
        }
        let mut names = self.sampler().check_state(checked.sampled(self.storage().num_envs()), state)?;
        names.extend(["n_step", "gamma"].map(str::to_owned));
        names.extend_from_slice(checked.names());
        if let Some(field) = state.iter().find(|field| !names.iter().any(|name| name == field.name())) {
            return Err(Error::config(key(field.name()), "no array of that name", "an array", HINT));
        }
        let (storage, sampler) = self.all_mut();
        storage.reserve_state(state, &checked)?;
        storage.clear();
        sampler.clear()?;
        let result = storage.restore_state(state, checked).and_then(|()| sampler.load_state(storage, state));
        if result.is_err() {
            storage.clear();
            sampler.clear()?;
        }
        result
    }
}

impl<S: PersistSampler> Replay<S> {
    /// Returns the configuration of the buffer: sizes, schema, n-step settings and the sampler's settings.
    pub fn to_config(&self) -> SamplerConfig {
        let mut config = self.storage().schema().to_json();
        config.insert("capacity".into(), self.storage().capacity().into());
        config.insert("num_envs".into(), self.storage().num_envs().into());
        if let Some(n_step) = self.n_step() {
            config.insert("n_step".into(), n_step.n.into());
            config.insert("gamma".into(), n_step.gamma.into());
        }
        config.extend(self.sampler().to_config());
        config
    }

    /// Creates an empty buffer from a configuration.
    ///
    /// # Errors
    /// [`Error::Config`] or [`Error::Shape`] if the configuration is invalid. [`Error::Memory`] if
    /// the buffer does not fit into memory.
    pub fn from_config(config: &SamplerConfig) -> Result<Self> {
        let invalid = |got: String| Error::config("replay", "the settings of a replay buffer", got, "use another copy");
        let number = |key| count(config, key).map_err(invalid);
        let schema = TransitionSchema::from_json(config).map_err(invalid)?;
        let storage = ReplayStorage::new(number("capacity")?, number("num_envs")?, schema)?;
        let sampler = S::from_config(config, &storage)?;
        let buffer = Self::from_parts(storage, sampler)?;
        if config.contains_key("n_step") {
            return buffer.with_n_step(NStep { n: number("n_step")?, gamma: float(config, "gamma")? });
        }
        Ok(buffer)
    }

    /// Adds the state of the buffer and the fields `beside` to a checkpoint.
    ///
    /// The transitions are copied once, directly into the checkpoint.
    ///
    /// # Errors
    /// The errors of [`Replay::state`].
    pub fn write_to_checkpoint(&self, checkpoint: &mut Checkpoint, beside: Vec<Field>) -> Result<()> {
        let mut fields = self.storage().counters()?;
        fields.extend(self.settings()?);
        fields.extend(beside);
        let (descriptors, rows): (Vec<_>, Vec<_>) = self.storage().rows().into_iter().unzip();
        let shape = |rows: usize, row: &[usize]| [&[rows], row].concat();
        let shapes: Vec<_> = fields.iter().map(|field| shape(field.rows(), field.shape())).collect();
        let each = fields.iter().zip(&shapes);
        let mut named: Vec<_> = each.map(|(field, shape)| (field.name(), &shape[..], field.dtype())).collect();
        let row_shapes: Vec<_> = descriptors.iter().flatten().map(|field| shape(field.rows, &field.shape)).collect();
        let each = descriptors.iter().flatten().zip(&row_shapes);
        named.extend(each.map(|(descriptor, shape)| (descriptor.name.as_str(), &shape[..], descriptor.dtype)));
        checkpoint.insert_with(MEMBER, &named, |mut memory| {
            let mut row_memory = memory.split_off(fields.len());
            memory.into_iter().zip(&fields).for_each(|(to, field)| to.copy_from_slice(field.data().bytes()));
            for (descriptors, rows) in descriptors.iter().zip(rows) {
                let rest = row_memory.split_off(descriptors.len());
                copy_rows(descriptors, rows, std::mem::replace(&mut row_memory, rest))?;
            }
            Ok(())
        })?;
        checkpoint.manifest.insert(MEMBER.into(), self.to_config().into());
        Ok(())
    }

    /// Reads a buffer and the fields named in `beside` from a checkpoint.
    ///
    /// # Errors
    /// - [`Error::Corrupt`] if a section is invalid; the error names the file and the section;
    /// - [`Error::Config`] if the stored buffer has another sampler;
    /// - [`Error::Memory`] if the buffer does not fit into memory.
    pub fn from_checkpoint(checkpoint: &Checkpoint, beside: &[&str]) -> Result<(Self, Vec<Field>)> {
        let damaged = |error: Error| match error {
            Error::Config(mismatch) if mismatch.argument == "sampler" => Error::Config(mismatch),
            other => checkpoint.damaged(MEMBER, other),
        };
        let mut buffer = Self::from_config(checkpoint.object(MEMBER)?).map_err(damaged)?;
        let fields = checkpoint.fields(MEMBER)?;
        let (others, state): (Vec<_>, Vec<_>) = fields.into_iter().partition(|field| beside.contains(&field.name()));
        buffer.load_state(&state).map_err(damaged)?;
        Ok((buffer, others))
    }

    /// Writes the buffer to the folder `path` as a checkpoint ([`Checkpoint::write`]).
    ///
    /// ```
    /// use rlox_core::replay::ReplayBuffer;
    ///
    /// let folder = std::env::temp_dir().join(format!("rlox-buffer-{}", std::process::id()));
    /// let mut buffer = ReplayBuffer::new(1000, 1, 1)?;
    /// buffer.push_slices(&[0.0], &[1.0], &[0.5], 1.0, true, false)?;
    /// buffer.save(&folder)?;
    /// assert_eq!(ReplayBuffer::load(&folder)?.len(), 1);
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] if `path` exists and is neither a checkpoint nor an empty folder, or if the
    /// system reports an error. [`Error::Memory`] if an allocation fails.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut checkpoint = Checkpoint::default();
        self.write_to_checkpoint(&mut checkpoint, Vec::new())?;
        checkpoint.write(path)
    }

    /// Reads a buffer that [`Replay::save`] or the Python package has written.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::read`] and [`Replay::from_checkpoint`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::from_checkpoint(&Checkpoint::read(path)?, &[STREAM])?.0)
    }
}

/// Checks that a configuration belongs to the sampler `name`.
pub(super) fn check_sampler(config: &SamplerConfig, name: &str) -> Result<()> {
    let got = config.get("sampler").and_then(Value::as_str).unwrap_or("none");
    if got == name { Ok(()) } else { Err(Error::config("sampler", name, got, "load it with that sampler")) }
}

/// Returns the number `name` of a configuration.
pub(super) fn float(config: &SamplerConfig, name: &'static str) -> Result<f64> {
    let entry = config.get(name);
    entry
        .and_then(Value::as_f64)
        .ok_or_else(|| Error::config(name, "a number", format!("{entry:?}"), "use another copy"))
}

/// Returns the error text for `n` of n-step returns, which is 0 in a state without n-step returns.
fn describe_n_step(n: usize) -> String {
    match n {
        0 => "1".to_owned(),
        1 => "1 with discounts".to_owned(),
        n => n.to_string(),
    }
}

// State of a storage, field by field.

/// Descriptor of a field of a state: name, shape of a row, dtype and number of rows.
pub(crate) struct FieldDescriptor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
}

impl FieldDescriptor {
    pub(crate) fn new(name: impl Into<String>, shape: &[usize], dtype: DType, rows: usize) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), dtype, rows }
    }

    /// Creates a field of zeros.
    pub(crate) fn field(&self) -> Result<Field> {
        Field::new(self.name.clone(), self.rows, &self.shape, self.dtype)
    }

    /// Returns the size of a row in bytes.
    fn bytes_each(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// Returns the elements that a state has for this field.
    ///
    /// # Errors
    /// [`Error::Config`] if the field is missing. [`Error::Space`] or [`Error::Shape`] if its dtype
    /// or shape differs.
    pub(crate) fn lookup<'a>(&self, state: &'a [Field]) -> Result<FieldData<'a>> {
        let Some(field) = state.iter().find(|field| field.name() == self.name) else {
            return Err(Error::config(key(&self.name), "an array", "none", HINT));
        };
        if field.dtype() != self.dtype {
            let (expected, got) = (format!("{:?}", self.dtype), format!("{:?}", field.dtype()));
            return Err(Error::space(key(&self.name), expected, got, HINT));
        }
        if (field.rows(), field.shape()) != (self.rows, &self.shape[..]) {
            let shape = |rows, shape: &[usize]| format!("shape {:?}", [&[rows], shape].concat());
            let (expected, got) = (shape(self.rows, &self.shape), shape(field.rows(), field.shape()));
            return Err(Error::shape(key(&self.name), expected, got, HINT));
        }
        Ok(field.data())
    }
}

/// Returns the argument name that errors have for an array of a state.
pub(crate) fn key(name: &str) -> String {
    format!("arrays[{name:?}]")
}

/// Returns the error for an array of a state that contradicts the buffer.
pub(crate) fn invalid_field(name: &str, expected: impl Display, got: impl Display) -> Error {
    Error::config(key(name), expected.to_string(), got.to_string(), HINT)
}

/// Returns the integer that a state has for the field `name`, which must be at least 0.
pub(crate) fn number(state: &[Field], name: &str) -> Result<usize> {
    let FieldData::I64(&[number]) = FieldDescriptor::new(name, &[], DType::I64, 1).lookup(state)? else { return Ok(0) };
    usize::try_from(number).map_err(|_| invalid_field(name, "at least 0", number))
}

/// Creates a field that holds one integer.
pub(crate) fn number_field(name: &str, number: usize) -> Result<Field> {
    let mut field = FieldDescriptor::new(name, &[], DType::I64, 1).field()?;
    field.write_at(0, FieldData::I64(&[number as i64]));
    Ok(field)
}

/// Ranges of the indices of transitions that a state contains.
struct Ranges {
    /// Stored transitions, including those whose next observation the next push will provide.
    transitions: Range<usize>,
    /// Transitions whose newest frame the state contains.
    ///
    /// With stacked frames, these include earlier transitions, which provide older frames of stored
    /// transitions.
    frame_rows: Range<usize>,
}

/// Name of a field of flags, the bit of its flag in a row, and the transitions that it covers.
type Flagged = (&'static str, u8, Range<usize>);

impl ReplayStorage {
    /// Returns the ranges of a storage to which `pushed` time steps have been pushed.
    fn ranges(&self, pushed: usize) -> Ranges {
        let steps = self.capacity() / self.num_envs;
        let from = |steps: usize| pushed.saturating_sub(steps) * self.num_envs..pushed * self.num_envs;
        Ranges { transitions: from(steps), frame_rows: from(steps + self.schema.frame_stack - 1) }
    }

    /// Returns the settings that must equal those of a loaded state.
    fn settings(&self) -> [(&'static str, usize); 3] {
        [("capacity", self.capacity()), ("num_envs", self.num_envs), ("frame_stack", self.schema.frame_stack)]
    }

    /// Returns the fields of flags that a state contains.
    fn flagged(&self, ranges: &Ranges) -> Vec<Flagged> {
        let mut all: Vec<_> = FLAGS.iter().map(|(name, flag)| (*name, *flag, ranges.transitions.clone())).collect();
        if self.schema.frame_stack > 1 {
            all.push((OLDER, HEAD, ranges.frame_rows.clone()));
        }
        all
    }

    /// Returns the fields of a transition except observations and flags, in the order of a row.
    fn row_fields(&self, rows: usize) -> Vec<FieldDescriptor> {
        let parts = std::iter::once(&self.schema.action).chain(&self.schema.extra);
        let named =
            parts.map(|spec| FieldDescriptor::new(format!("step.{}", spec.name), &spec.shape, spec.dtype, rows));
        named.chain([FieldDescriptor::new("step.rewards", &[], DType::F32, rows)]).collect()
    }

    /// Returns the fields `kind.*` for `rows` rows of observations with `frames` frames each.
    fn obs_fields(&self, kind: &str, frames: usize, rows: usize) -> Vec<FieldDescriptor> {
        let stacked = self.schema.frame_stack;
        let descriptor = |spec: &FieldSpec| {
            let mut shape = spec.shape.clone();
            if stacked > 1 {
                shape[0] = shape[0] / stacked * frames;
            }
            FieldDescriptor::new(format!("{kind}.{}", spec.name), &shape, spec.dtype, rows)
        };
        self.schema.obs.iter().map(descriptor).collect()
    }

    /// Returns the storage's fields of a state, which [`Replay::load_state`] reads.
    ///
    /// Next observations are included only if no row of the ring holds them.
    ///
    /// # Errors
    /// [`Error::Memory`] if an allocation fails. [`Error::Interrupted`] if the interrupt check of
    /// the process stops the call.
    fn state(&self) -> Result<Vec<Field>> {
        let mut fields = self.counters()?;
        for (descriptors, rows) in self.rows() {
            let first = fields.len();
            for descriptor in &descriptors {
                fields.push(descriptor.field()?);
            }
            let memory = fields[first..].iter_mut().map(|field| field.data_mut().into_bytes());
            copy_rows(&descriptors, rows, memory.collect())?;
        }
        Ok(fields)
    }

    /// Returns the counters and flags of a state: all fields except those of [`Self::rows`].
    fn counters(&self) -> Result<Vec<Field>> {
        let ranges = self.ranges(self.pushed);
        let mut fields = Vec::new();
        for (name, number) in self.settings().into_iter().chain([("pushed", self.pushed)]) {
            fields.push(number_field(name, number)?);
        }
        let codes = self
            .last_next_obs
            .iter()
            .map(|location| NEXT_OBS_CODES.iter().position(|known| known == location).unwrap_or(0) as u8);
        fields.push(bytes_field("tails", DType::U8, codes)?);
        for (name, flag, indices) in self.flagged(&ranges) {
            let flags = indices.map(|index| u8::from(self.flags(self.row_of(index)) & flag != 0));
            fields.push(bytes_field(name, DType::Bool, flags)?);
        }
        let cut = (0..self.num_envs).map(|env| u8::from(self.is_cut(ranges.transitions.start + env)));
        fields.push(bytes_field(CUT, DType::Bool, cut)?);
        Ok(fields)
    }

    /// Returns true if the previous transition of the environment belongs to the same episode.
    ///
    /// The previous transition need not be stored any more.
    pub(super) fn is_cut(&self, index: usize) -> bool {
        index >= self.num_envs && self.flags(self.row_of(index - self.num_envs)) & CONTINUES != 0
    }

    /// Returns the fields with observations, actions, extra fields and rewards, in groups.
    ///
    /// Each group consists of the descriptors of its fields and an iterator over its rows.
    fn rows(&self) -> Vec<(Vec<FieldDescriptor>, RowBytes<'_>)> {
        let (row_layout, frames) = (&self.row_layout, self.schema.frame_stack);
        let Ranges { transitions, frame_rows } = self.ranges(self.pushed);
        let rows = |indices: &Range<usize>| indices.clone().map(move |index| self.row_of(index));
        let flagged = |indices: &Range<usize>, flag| rows(indices).filter(move |row| self.flags(*row) & flag != 0);
        let fixed = move |row: usize| self.bytes(row, row_layout.action, row_layout.stored - row_layout.action);
        let next = self.pushed * self.num_envs;
        let next_row_obs = move |(env, location): (usize, &NextObs)| match location {
            NextObs::InNextRow => self.newest(self.row_of(next + env)),
            _ => &[],
        };
        let (stored, heads) = (flagged(&transitions, STORED).count(), flagged(&frame_rows, HEAD).count());
        let overflow =
            flagged(&transitions, STORED).map(move |row| self.overflow_obs.row(self.slot(row, row_layout.stored)));
        let mut all: Vec<(_, RowBytes<'_>)> = vec![
            (self.row_fields(transitions.len()), Box::new(rows(&transitions).map(fixed))),
            (
                self.obs_fields("step", 1, frame_rows.len()),
                Box::new(rows(&frame_rows).map(move |row| self.newest(row))),
            ),
            (
                self.obs_fields("next_row", 1, self.num_envs),
                Box::new(self.last_next_obs.iter().enumerate().map(next_row_obs)),
            ),
            (self.obs_fields("next", frames, stored), Box::new(overflow)),
        ];
        if frames > 1 {
            let older =
                flagged(&frame_rows, HEAD).map(move |row| self.frame_heads.row(self.slot(row, row_layout.head)));
            all.push((self.obs_fields("older", frames - 1, heads), Box::new(older)));
        }
        all
    }
}

/// Bytes of each row of a group of fields, which are concatenated. Empty for a row of zeros.
type RowBytes<'a> = Box<dyn Iterator<Item = &'a [u8]> + 'a>;

/// Copies the rows of a group of fields into the zeroed memory of these fields.
fn copy_rows(descriptors: &[FieldDescriptor], rows: RowBytes<'_>, mut memory: Vec<&mut [u8]>) -> Result<()> {
    let each: Vec<_> = descriptors.iter().map(FieldDescriptor::bytes_each).collect();
    let mut interrupt = InterruptCheck::default();
    for (i, row) in rows.enumerate().filter(|(_, row)| !row.is_empty()) {
        let mut offset = 0;
        for (memory, len) in memory.iter_mut().zip(&each) {
            memory[i * len..][..*len].copy_from_slice(&row[offset..offset + len]);
            offset += len;
        }
        if i.is_multiple_of(1 << 10) {
            interrupt.check()?;
        }
    }
    Ok(())
}

/// Creates a field with one byte per row.
fn bytes_field(name: &str, dtype: DType, bytes: impl ExactSizeIterator<Item = u8>) -> Result<Field> {
    let mut field = FieldDescriptor::new(name, &[], dtype, bytes.len()).field()?;
    let (memory, mut interrupt) = (field.data_mut().into_bytes(), InterruptCheck::default());
    for (i, (to, byte)) in memory.iter_mut().zip(bytes).enumerate() {
        if i.is_multiple_of(1 << 12) {
            interrupt.check()?;
        }
        *to = byte;
    }
    Ok(field)
}

// Loading a state: all checks come before the first change.

/// Checks for an interruption every [`POLL_EVERY_ROWS`] rows.
fn poll_interrupt(row: usize, interrupt: &mut InterruptCheck) -> Result<()> {
    if row.is_multiple_of(POLL_EVERY_ROWS) { interrupt.check() } else { Ok(()) }
}

/// Checked content of a state, for use by the load that follows the checks.
struct Checked {
    pushed: usize,
    ranges: Ranges,
    last_next_obs: Vec<NextObs>,
    /// Number of next observations outside the ring. `heads` is the number of rows with older
    /// frames outside.
    stored: usize,
    heads: usize,
    names: Vec<String>,
    kinds: Kinds,
}

impl Checked {
    /// Returns the names of all fields of the storage.
    fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the number of transitions that can be sampled.
    fn sampled(&self, num_envs: usize) -> usize {
        let waiting = if self.last_next_obs.first() == Some(&NextObs::Deferred) { num_envs } else { 0 };
        self.ranges.transitions.len() - waiting
    }
}

/// Descriptors of the fields with observations, actions, extra fields and rewards.
///
/// They are created before the storage changes, so that no allocation can fail after the first
/// change.
#[derive(Default)]
struct Kinds {
    row: Vec<FieldDescriptor>,
    step: Vec<FieldDescriptor>,
    in_next_row: Vec<FieldDescriptor>,
    next: Vec<FieldDescriptor>,
    /// Empty if frames are not stacked.
    older: Vec<FieldDescriptor>,
}

/// Returns the flags of the field `name`, one byte each. Every byte except 0 is true.
fn read_flags<'a>(state: &'a [Field], name: &str, rows: usize) -> Result<&'a [u8]> {
    match FieldDescriptor::new(name, &[], DType::Bool, rows).lookup(state)? {
        FieldData::Bool(flags) => Ok(flags),
        _ => Ok(&[]),
    }
}

/// Returns an iterator over the positions of true flags.
fn set_indices(flags: &[u8]) -> impl Iterator<Item = usize> {
    flags.iter().enumerate().filter(|(_, flag)| **flag != 0).map(|(i, _)| i)
}

impl ReplayStorage {
    /// Checks that a state can replace the stored transitions.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Space`], [`Error::Shape`] or [`Error::NotFinite`] if an array is
    /// invalid. The error names the array.
    fn check_state(&self, state: &[Field]) -> Result<Checked> {
        for (name, expected) in self.settings() {
            let got = number(state, name)?;
            if got != expected {
                return Err(invalid_field(name, expected, got));
            }
        }
        let pushed = number(state, "pushed")?;
        if pushed.checked_mul(self.num_envs).is_none_or(|count| count > usize::MAX >> 4) {
            return Err(invalid_field("pushed", "a number of time steps", pushed));
        }
        let ranges = self.ranges(pushed);
        let stored = set_indices(read_flags(state, FLAGS[3].0, ranges.transitions.len())?).count();
        let heads = set_indices(self.older(state, &ranges)?).count();
        let last_next_obs = self.read_next_obs(state)?;
        let (names, kinds) = (Vec::new(), Kinds::default());
        let mut checked = Checked { pushed, ranges, last_next_obs, stored, heads, names, kinds };
        self.check_flags(state, &checked)?;
        self.check_last_next_obs(state, &checked)?;
        self.check_rows(state, &mut checked)?;
        Ok(checked)
    }

    /// Returns the flags that mark rows with older frames outside the ring, or nothing without
    /// stacked frames.
    fn older<'a>(&self, state: &'a [Field], ranges: &Ranges) -> Result<&'a [u8]> {
        if self.schema.frame_stack > 1 { read_flags(state, OLDER, ranges.frame_rows.len()) } else { Ok(&[]) }
    }

    fn read_next_obs(&self, state: &[Field]) -> Result<Vec<NextObs>> {
        let FieldData::U8(codes) = FieldDescriptor::new("tails", &[], DType::U8, self.num_envs).lookup(state)? else {
            return Ok(Vec::new());
        };
        let known = |code: &u8| NEXT_OBS_CODES.get(usize::from(*code)).copied();
        let mut all = alloc::with_capacity("num_envs", codes.len())?;
        for code in codes {
            all.push(known(code).ok_or_else(|| invalid_field("tails", "0 to 3", code))?);
        }
        Ok(all)
    }

    /// Checks that pushes can produce these flags.
    fn check_flags(&self, state: &[Field], checked: &Checked) -> Result<()> {
        let transitions = &checked.ranges.transitions;
        let [terminated, truncated, continues, stored] =
            FLAGS.map(|(name, _)| read_flags(state, name, transitions.len()));
        let (terminated, truncated, continues, stored) = (terminated?, truncated?, continues?, stored?);
        let (last, mut interrupt) = (transitions.len().saturating_sub(self.num_envs), InterruptCheck::default());
        for i in 0..transitions.len() {
            poll_interrupt(i, &mut interrupt)?;
            let done = terminated[i] != 0 || truncated[i] != 0;
            if done && stored[i] == 0 {
                return Err(invalid_field(FLAGS[3].0, "true where an episode ends", "false").at_row(i));
            }
            if continues[i] != 0 && (done || i >= last) {
                return Err(invalid_field(FLAGS[2].0, "false where no row of the episode follows", "true").at_row(i));
            }
        }
        let cut = read_flags(state, CUT, self.num_envs)?;
        if transitions.start == 0 && cut.iter().any(|cut| *cut != 0) {
            return Err(invalid_field(CUT, "false, because every transition is stored", "true"));
        }
        let first =
            if checked.ranges.frame_rows.start == 0 { self.num_envs.min(checked.ranges.frame_rows.len()) } else { 0 };
        let older = self.older(state, &checked.ranges)?;
        if self.schema.frame_stack > 1 && older[..first].contains(&0) {
            return Err(invalid_field(OLDER, "true in the first rows", "false"));
        }
        Ok(())
    }

    /// Checks that the locations of the last next observations agree with the flags.
    fn check_last_next_obs(&self, state: &[Field], checked: &Checked) -> Result<()> {
        let (last_next_obs, n) = (&checked.last_next_obs, self.num_envs);
        let promised = last_next_obs.iter().filter(|location| **location == NextObs::Deferred).count();
        if promised != 0 && promised != n {
            let expected = "deferred next observations in all environments or in none";
            return Err(invalid_field("tails", expected, format!("{promised} of {n}")));
        }
        let stored = read_flags(state, FLAGS[3].0, checked.ranges.transitions.len())?;
        let Some(last) = stored.len().checked_sub(n) else {
            let fits = last_next_obs.iter().all(|location| *location == NextObs::None);
            return if fits { Ok(()) } else { Err(invalid_field("tails", "0 in an empty buffer", "other numbers")) };
        };
        for (env, location) in last_next_obs.iter().enumerate() {
            let in_overflow = matches!(location, NextObs::None | NextObs::Overflow);
            if in_overflow != (stored[last + env] != 0) {
                let expected = "the location that next_is_stored implies";
                return Err(invalid_field("tails", expected, format!("{location:?}").to_lowercase()).at_env(env));
            }
        }
        Ok(())
    }

    /// Checks all fields of observations, actions, extra fields and rewards, and collects all field
    /// names.
    fn check_rows(&self, state: &[Field], checked: &mut Checked) -> Result<()> {
        let frames = self.schema.frame_stack;
        let Checked { ranges: Ranges { transitions, frame_rows }, stored, heads, .. } = &*checked;
        let kinds = Kinds {
            row: self.row_fields(transitions.len()),
            step: self.obs_fields("step", 1, frame_rows.len()),
            in_next_row: self.obs_fields("next_row", 1, self.num_envs),
            next: self.obs_fields("next", frames, *stored),
            older: if frames > 1 { self.obs_fields("older", frames - 1, *heads) } else { Vec::new() },
        };
        let fields = || [&kinds.row, &kinds.step, &kinds.in_next_row, &kinds.next, &kinds.older].into_iter().flatten();
        let mut interrupt = InterruptCheck::default();
        for field in fields() {
            let data = field.lookup(state)?;
            check_finite(&key(&field.name), data, field.shape.iter().product(), &mut interrupt)?;
        }
        let mut names: Vec<_> = fields().map(|field| field.name.clone()).collect();
        names.extend(["pushed", "tails", CUT].map(str::to_owned));
        names.extend(self.settings().map(|(name, _)| name.to_owned()));
        names.extend(FLAGS.map(|(name, _)| name.to_owned()));
        names.extend((frames > 1).then(|| OLDER.to_owned()));
        (checked.names, checked.kinds) = (names, kinds);
        Ok(())
    }

    /// Reserves the memory outside the ring that a checked state needs.
    ///
    /// # Errors
    /// [`Error::Memory`] if the memory does not suffice. The stored transitions are unchanged after
    /// an error.
    fn reserve_state(&mut self, state: &[Field], checked: &Checked) -> Result<()> {
        let (rows, mut ended) = (checked.ranges.transitions.len(), alloc::zeroed("num_envs", self.num_envs)?);
        let [terminated, truncated] = [FLAGS[0], FLAGS[1]].map(|(name, _)| read_flags(state, name, rows));
        let mut interrupt = InterruptCheck::default();
        for (i, (terminated, truncated)) in terminated?.iter().zip(truncated?).enumerate() {
            poll_interrupt(i, &mut interrupt)?;
            ended[i % self.num_envs] += usize::from(terminated | truncated != 0);
        }
        for (env, ended) in ended.into_iter().enumerate() {
            self.episodes.reserve(env, ended)?;
        }
        let promised = self.promised();
        self.overflow_obs.reserve_all(checked.stored, promised)?;
        self.frame_heads.reserve_all(checked.heads, promised)
    }

    /// Rebuilds the index of episodes from the flags. The memory is already reserved.
    fn find_episodes(&mut self, transitions: &Range<usize>, interrupt: &mut InterruptCheck) -> Result<()> {
        let n = self.num_envs;
        self.episodes.clear();
        for index in transitions.clone() {
            let (first, flags) = (!self.is_cut(index), self.flags(self.row_of(index)));
            let last = flags & (TERMINATED | TRUNCATED) != 0;
            self.episodes.record_step(index % n, index / n, transitions.start / n, (first, last));
            poll_interrupt(index, interrupt)?;
        }
        Ok(())
    }

    /// Removes all transitions and keeps the allocated memory.
    fn clear(&mut self) {
        self.pushed = 0;
        self.last_next_obs.fill(NextObs::None);
        self.overflow_obs.release_all();
        self.frame_heads.release_all();
        self.episodes.clear();
    }

    /// Writes the flags of a state to the rows of its transitions.
    fn restore_flags(&mut self, state: &[Field], ranges: &Ranges, interrupt: &mut InterruptCheck) -> Result<()> {
        let n = self.num_envs;
        // All flags are cleared first, because the pool slots to which old flags refer are
        // released.
        for index in ranges.transitions.end.saturating_sub(self.capacity_steps() * n)..ranges.transitions.end {
            let row = self.row_of(index);
            *self.flags_mut(row) = 0;
            poll_interrupt(index, interrupt)?;
        }
        for env in set_indices(read_flags(state, CUT, n)?) {
            let row = self.row_of(ranges.transitions.start + env - n);
            *self.flags_mut(row) |= CONTINUES;
        }
        let of_rows =
            FLAGS.map(|(name, flag)| (flag, &ranges.transitions, read_flags(state, name, ranges.transitions.len())));
        let of_frames = (HEAD, &ranges.frame_rows, self.older(state, ranges));
        for (flag, indices, flags) in of_rows.into_iter().chain([of_frames]) {
            for i in set_indices(flags?) {
                let row = self.row_of(indices.start + i);
                *self.flags_mut(row) |= flag;
                poll_interrupt(i, interrupt)?;
            }
        }
        Ok(())
    }

    /// Loads a checked state, for which memory is reserved, into a cleared storage.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the interrupt check of the process stops the call. The caller must
    /// clear the storage after an error.
    fn restore_state(&mut self, state: &[Field], checked: Checked) -> Result<()> {
        let mut interrupt = InterruptCheck::default();
        self.restore_flags(state, &checked.ranges, &mut interrupt)?;
        let Checked { pushed, ranges, last_next_obs, stored, heads, kinds, .. } = checked;
        let Ranges { transitions, frame_rows } = &ranges;
        (self.pushed, self.last_next_obs) = (pushed, last_next_obs);
        self.find_episodes(transitions, &mut interrupt)?;
        let (action, slot, head) = (self.row_layout.action, self.row_layout.stored, self.row_layout.head);
        copy_fields(&kinds.row, state, transitions.len(), |i, offset, bytes| {
            let row = self.row_of(transitions.start + i);
            self.bytes_mut(row, action + offset, bytes.len()).copy_from_slice(bytes);
        })?;
        copy_fields(&kinds.step, state, frame_rows.len(), |i, offset, bytes| {
            let row = self.row_of(frame_rows.start + i);
            self.bytes_mut(row, offset, bytes.len()).copy_from_slice(bytes);
        })?;
        copy_fields(&kinds.in_next_row, state, self.num_envs, |env, offset, bytes| {
            if self.last_next_obs[env] == NextObs::InNextRow {
                let row = self.row_of(transitions.end + env);
                self.bytes_mut(row, offset, bytes.len()).copy_from_slice(bytes);
            }
        })?;
        for i in set_indices(read_flags(state, FLAGS[3].0, transitions.len())?) {
            let (row, new_slot) = (self.row_of(transitions.start + i), self.overflow_obs.acquire());
            self.bytes_mut(row, slot, 4).copy_from_slice(&new_slot.to_ne_bytes());
            poll_interrupt(i, &mut interrupt)?;
        }
        copy_fields(&kinds.next, state, stored, |i, offset, bytes| {
            self.overflow_obs.nth_row_mut(i)[offset..][..bytes.len()].copy_from_slice(bytes);
        })?;
        for i in set_indices(self.older(state, &ranges)?) {
            let (row, new_slot) = (self.row_of(frame_rows.start + i), self.frame_heads.acquire());
            self.bytes_mut(row, head, 4).copy_from_slice(&new_slot.to_ne_bytes());
        }
        copy_fields(&kinds.older, state, heads, |i, offset, bytes| {
            self.frame_heads.nth_row_mut(i)[offset..][..bytes.len()].copy_from_slice(bytes);
        })
    }
}

/// Calls `to` with row number, byte offset and bytes, for each field and each row of a group.
fn copy_fields(
    descriptors: &[FieldDescriptor],
    state: &[Field],
    rows: usize,
    mut to: impl FnMut(usize, usize, &[u8]),
) -> Result<()> {
    let (mut offset, mut interrupt) = (0, InterruptCheck::default());
    for descriptor in descriptors {
        let bytes = descriptor.lookup(state)?.bytes();
        let len = descriptor.shape.iter().product::<usize>() * descriptor.dtype.size();
        let poll_rows = (POLL_EVERY_BYTES / len.max(1)).clamp(1, POLL_EVERY_ROWS);
        for i in 0..rows {
            to(i, offset, &bytes[i * len..][..len]);
            if i.is_multiple_of(poll_rows) {
                interrupt.check()?;
            }
        }
        offset += len;
    }
    Ok(())
}
