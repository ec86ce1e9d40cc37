//! States of replay buffers: as fields with names, taken back, and in the folders of checkpoints.
//!
//! A copy that takes a state goes on exactly as the original would. Fields say what they hold whatever a row of the ring
//! looks like in memory, so that another version reads them, and leave out what is stored twice or not any more: they take
//! no more than what they hold.

use std::fmt::Display;
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value};

use super::Replay;
use super::n_step::NStep;
use super::sampler::{Sampler, Uniform};
use super::schema::{Layout, Part, check_finite, count};
use super::storage::{CONTINUES, HEAD, ReplayStorage, STORED, TERMINATED, TRUNCATED, Tail};
use crate::{Checkpoint, DType, Error, Field, FieldData, Result, Watch, alloc};

/// The member of a checkpoint that holds a buffer, and the manifest's entry that says how to make it.
const MEMBER: &str = "replay";
/// The field of a random stream, which callers may put beside a buffer's own.
const STREAM: &str = "stream";

const FIX: &str = "pass what a buffer made with the same arguments gave";
/// Rows, and bytes of them, between two looks for an interruption.
const LOOK: usize = 1 << 12;
const TOGETHER: usize = 1 << 20;

/// Flags of stored transitions, and what they are called.
const FLAGS: [(&str, u8); 4] =
    [("step.terminated", TERMINATED), ("step.truncated", TRUNCATED), ("continues", CONTINUES), ("next_aside", STORED)];
/// Whether older frames are in `older.obs`.
const OLDER: &str = "older_aside";
/// Whether the oldest stored transition of an environment goes on from one that is not stored any more.
const CUT: &str = "cut";
/// Where environments' last next observations are, by the place in this list.
const TAILS: [Tail; 4] = [Tail::None, Tail::Ahead, Tail::Aside, Tail::Promised];

/// How to make a buffer, as entries of a manifest.
pub type Description = Map<String, Value>;

/// A sampler that files can tell how to make.
pub trait Saved: Sampler + Sized {
    /// Its name, as `sampler`, and its settings.
    fn describe(&self) -> Description;

    /// The sampler of a description.
    ///
    /// # Errors
    /// [`Error::Config`] if it is another's, or makes no sense.
    fn described(about: &Description, storage: &ReplayStorage) -> Result<Self>;
}

impl Saved for Uniform {
    fn describe(&self) -> Description {
        Description::from_iter([("sampler".to_owned(), "uniform".into())])
    }

    fn described(about: &Description, _: &ReplayStorage) -> Result<Self> {
        expect_sampler(about, "uniform").map(|()| Self)
    }
}

impl<S: Sampler> Replay<S> {
    /// Everything that the buffer holds, as fields: transitions in the order of pushing, what says how the next pushes go
    /// on, and what the sampler knows. Only what is stored is among them, whatever the capacity.
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
    /// [`Error::Memory`] if there is no room for it.
    pub fn state(&self) -> Result<Vec<Field>> {
        let mut fields = self.storage().state()?;
        fields.extend(self.settings()?);
        Ok(fields)
    }

    /// What a state has beside the storage's fields.
    fn settings(&self) -> Result<Vec<Field>> {
        let mut fields = Vec::new();
        let (n, gamma) = self.n_step().map_or((0, 0.0), |steps| (steps.n, steps.gamma));
        fields.push(number_field("n_step", n)?);
        let mut field = Kept::new("gamma", &[], DType::F64, 1).field()?;
        field.put(0, FieldData::F64(&[gamma]));
        fields.push(field);
        fields.extend(self.sampler().state(self.storage())?);
        Ok(fields)
    }

    /// Goes back to a state of a buffer that was made with the same arguments: samples and pushes go on exactly as there.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Space`] or [`Error::Shape`] naming the array that is missing, too many, another
    /// buffer's or makes no sense, [`Error::Memory`] if there is no room for it. Nothing has changed then.
    /// [`Error::Interrupted`] if it was told to stop: nothing has changed while the state was checked, and the buffer is
    /// empty after that.
    pub fn load_state(&mut self, state: &[Field]) -> Result<()> {
        let checked = self.storage().check_state(state)?;
        let (n, gamma) = self.n_step().map_or((0, 0.0), |steps| (steps.n, steps.gamma));
        let got = number(state, "n_step")?;
        if got != n {
            return Err(unfit("n_step", steps_said(n), steps_said(got)));
        }
        if let FieldData::F64(&[got]) = Kept::new("gamma", &[], DType::F64, 1).of(state)?
            && got != gamma
        {
            return Err(unfit("gamma", gamma, got));
        }
        let mut names = self.sampler().check_state(checked.sampled(self.storage().num_envs()), state)?;
        names.extend(["n_step", "gamma"].map(str::to_owned));
        names.extend_from_slice(checked.names());
        if let Some(field) = state.iter().find(|field| !names.iter().any(|name| name == field.name())) {
            let fix = "pass what a buffer made with the same arguments gave";
            return Err(Error::config(key(field.name()), "no such array", "one", fix));
        }
        let (storage, sampler) = self.all_mut();
        storage.reserve_state(state, &checked)?;
        storage.clear();
        sampler.clear()?;
        let put = storage.put_state(state, checked).and_then(|()| sampler.load_state(storage, state));
        if put.is_err() {
            storage.clear();
            sampler.clear()?;
        }
        put
    }
}

impl<S: Saved> Replay<S> {
    /// How to make a buffer that takes this one's state: sizes, layout, the number of steps, the sampler's settings.
    pub fn describe(&self) -> Description {
        let mut about = self.storage().layout().text();
        about.insert("capacity".into(), self.storage().capacity().into());
        about.insert("num_envs".into(), self.storage().num_envs().into());
        if let Some(steps) = self.n_step() {
            about.insert("n_step".into(), steps.n.into());
            about.insert("gamma".into(), steps.gamma.into());
        }
        about.extend(self.sampler().describe());
        about
    }

    /// An empty buffer of a description.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Shape`] for what is none, [`Error::Memory`] if it does not fit into memory.
    pub fn described(about: &Description) -> Result<Self> {
        let wrong = |got: String| Error::config("replay", "the description of a buffer", got, "use another copy");
        let number = |key| count(about, key).map_err(wrong);
        let layout = Layout::of_text(about).map_err(wrong)?;
        let storage = ReplayStorage::new(number("capacity")?, number("num_envs")?, layout)?;
        let sampler = S::described(about, &storage)?;
        let buffer = Self::with(storage, sampler)?;
        if about.contains_key("n_step") {
            return buffer.with_n_step(NStep { n: number("n_step")?, gamma: float(about, "gamma")? });
        }
        Ok(buffer)
    }

    /// Puts the buffer, and further fields of the caller's, into a checkpoint, whose copy of it is the only one.
    ///
    /// # Errors
    /// Those of [`Replay::state`].
    pub fn put_into(&self, checkpoint: &mut Checkpoint, beside: Vec<Field>) -> Result<()> {
        let mut fields = self.storage().counters()?;
        fields.extend(self.settings()?);
        fields.extend(beside);
        let (kept, rows): (Vec<_>, Vec<_>) = self.storage().rows().into_iter().unzip();
        let shape = |rows: usize, row: &[usize]| [&[rows], row].concat();
        let shapes: Vec<_> = fields.iter().map(|field| shape(field.rows(), field.shape())).collect();
        let each = fields.iter().zip(&shapes);
        let mut named: Vec<_> = each.map(|(field, shape)| (field.name(), &shape[..], field.dtype())).collect();
        let kept_shapes: Vec<_> = kept.iter().flatten().map(|kept| shape(kept.rows, &kept.shape)).collect();
        let each = kept.iter().flatten().zip(&kept_shapes);
        named.extend(each.map(|(kept, shape)| (kept.name.as_str(), &shape[..], kept.dtype)));
        checkpoint.put_filled(MEMBER, &named, |mut memory| {
            let mut kept_memory = memory.split_off(fields.len());
            memory.into_iter().zip(&fields).for_each(|(to, field)| to.copy_from_slice(field.data().bytes()));
            for (kept, rows) in kept.iter().zip(rows) {
                let rest = kept_memory.split_off(kept.len());
                copy_rows(kept, rows, std::mem::replace(&mut kept_memory, rest))?;
            }
            Ok(())
        })?;
        checkpoint.manifest.insert(MEMBER.into(), self.describe().into());
        Ok(())
    }

    /// The buffer of a checkpoint, and the fields that are not its own but among `beside`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the file and the section that is none of a buffer, [`Error::Config`] for another
    /// sampler, [`Error::Memory`] if it does not fit into memory.
    pub fn of_checkpoint(checkpoint: &Checkpoint, beside: &[&str]) -> Result<(Self, Vec<Field>)> {
        let wrong = |error: Error| match error {
            Error::Config(wrong) if wrong.argument == "sampler" => Error::Config(wrong),
            other => checkpoint.damaged(MEMBER, other),
        };
        let mut buffer = Self::described(checkpoint.object(MEMBER)?).map_err(wrong)?;
        let fields = checkpoint.fields(MEMBER)?;
        let (others, state): (Vec<_>, Vec<_>) = fields.into_iter().partition(|field| beside.contains(&field.name()));
        buffer.load_state(&state).map_err(wrong)?;
        Ok((buffer, others))
    }

    /// Writes the folder `path` as [`Checkpoint::write`] does: `manifest.json`, and the member `replay` with what is
    /// stored.
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
    /// [`Error::Io`] if something else is at `path` or the system refuses; what was there stays. [`Error::Memory`] if there
    /// is no room for a copy.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut checkpoint = Checkpoint::default();
        self.put_into(&mut checkpoint, Vec::new())?;
        checkpoint.write(path)
    }

    /// The buffer that [`Replay::save`] wrote, or the Python package's.
    ///
    /// # Errors
    /// Those of [`Checkpoint::read`] and [`Replay::of_checkpoint`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::of_checkpoint(&Checkpoint::read(path)?, &[STREAM])?.0)
    }
}

/// Checks that a description is of the sampler of this name.
pub(super) fn expect_sampler(about: &Description, name: &str) -> Result<()> {
    let got = about.get("sampler").and_then(Value::as_str).unwrap_or("none");
    if got == name { Ok(()) } else { Err(Error::config("sampler", name, got, "load it as what it was")) }
}

/// A number of a description.
pub(super) fn float(about: &Description, name: &'static str) -> Result<f64> {
    let entry = about.get(name);
    entry
        .and_then(Value::as_f64)
        .ok_or_else(|| Error::config(name, "a number", format!("{entry:?}"), "use another copy"))
}

/// What the caller said of steps: a single one where nothing was, which is 0 in a state.
fn steps_said(n: usize) -> String {
    match n {
        0 => "1".to_owned(),
        1 => "1 with discounts".to_owned(),
        n => n.to_string(),
    }
}

// A state of a storage, field by field.

/// A field of a state: its name, the shape of a row, the dtype and the number of rows.
pub(crate) struct Kept {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
}

impl Kept {
    pub(crate) fn new(name: impl Into<String>, shape: &[usize], dtype: DType, rows: usize) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), dtype, rows }
    }

    /// A field of zeros.
    pub(crate) fn field(&self) -> Result<Field> {
        Field::new(self.name.clone(), self.rows, &self.shape, self.dtype)
    }

    /// Bytes of a row.
    fn bytes_each(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// The elements of this field of a state.
    ///
    /// # Errors
    /// [`Error::Config`] if there is none, [`Error::Space`] and [`Error::Shape`] for another dtype and shape.
    pub(crate) fn of<'a>(&self, state: &'a [Field]) -> Result<FieldData<'a>> {
        let Some(field) = state.iter().find(|field| field.name() == self.name) else {
            return Err(Error::config(key(&self.name), "an array", "none", FIX));
        };
        if field.dtype() != self.dtype {
            let (expected, got) = (format!("{:?}", self.dtype), format!("{:?}", field.dtype()));
            return Err(Error::space(key(&self.name), expected, got, FIX));
        }
        if (field.rows(), field.shape()) != (self.rows, &self.shape[..]) {
            let shape = |rows, shape: &[usize]| format!("shape {:?}", [&[rows], shape].concat());
            let (expected, got) = (shape(self.rows, &self.shape), shape(field.rows(), field.shape()));
            return Err(Error::shape(key(&self.name), expected, got, FIX));
        }
        Ok(field.data())
    }
}

/// What an array of a state is called in errors.
pub(crate) fn key(name: &str) -> String {
    format!("arrays[{name:?}]")
}

/// The error for an array of a state that says something else than this buffer.
pub(crate) fn unfit(name: &str, expected: impl Display, got: impl Display) -> Error {
    Error::config(key(name), expected.to_string(), got.to_string(), FIX)
}

/// A whole number of a state, of at least 0.
pub(crate) fn number(state: &[Field], name: &str) -> Result<usize> {
    let FieldData::I64(&[number]) = Kept::new(name, &[], DType::I64, 1).of(state)? else { return Ok(0) };
    usize::try_from(number).map_err(|_| unfit(name, "at least 0", number))
}

/// A whole number as a field.
pub(crate) fn number_field(name: &str, number: usize) -> Result<Field> {
    let mut field = Kept::new(name, &[], DType::I64, 1).field()?;
    field.put(0, FieldData::I64(&[number as i64]));
    Ok(field)
}

/// Which transitions a storage keeps something of.
struct Ranges {
    /// Those that are stored, be their next observation still to come.
    held: Range<usize>,
    /// Those whose frames are, too.
    kept: Range<usize>,
}

/// A name, a flag and the transitions it is kept of.
type Flagged = (&'static str, u8, Range<usize>);

impl ReplayStorage {
    /// Which transitions there are after so many time steps.
    fn ranges(&self, pushed: usize) -> Ranges {
        let steps = self.capacity() / self.num_envs;
        let from = |steps: usize| pushed.saturating_sub(steps) * self.num_envs..pushed * self.num_envs;
        Ranges { held: from(steps), kept: from(steps + self.layout.frame_stack - 1) }
    }

    /// What a state must have in common with a storage.
    fn settings(&self) -> [(&'static str, usize); 3] {
        [("capacity", self.capacity()), ("num_envs", self.num_envs), ("frame_stack", self.layout.frame_stack)]
    }

    /// The flags that a state has.
    fn flagged(&self, ranges: &Ranges) -> Vec<Flagged> {
        let mut all: Vec<_> = FLAGS.iter().map(|(name, flag)| (*name, *flag, ranges.held.clone())).collect();
        if self.layout.frame_stack > 1 {
            all.push((OLDER, HEAD, ranges.kept.clone()));
        }
        all
    }

    /// What is stored of each transition but for observations and flags, in the order of a row of the ring.
    fn row_fields(&self, rows: usize) -> Vec<Kept> {
        let parts = std::iter::once(&self.layout.action).chain(&self.layout.extra);
        let named = parts.map(|part| Kept::new(format!("step.{}", part.name), &part.shape, part.dtype, rows));
        named.chain([Kept::new("step.rewards", &[], DType::F32, rows)]).collect()
    }

    /// So many rows of so many frames of observations.
    fn obs_fields(&self, kind: &str, frames: usize, rows: usize) -> Vec<Kept> {
        let stacked = self.layout.frame_stack;
        let kept = |part: &Part| {
            let mut shape = part.shape.clone();
            if stacked > 1 {
                shape[0] = shape[0] / stacked * frames;
            }
            Kept::new(format!("{kind}.{}", part.name), &shape, part.dtype, rows)
        };
        self.layout.obs.iter().map(kept).collect()
    }

    /// Everything that is stored, as fields: transitions in the order of pushing, next observations only where they are
    /// no other row's, and what says how the next pushes go on. [`Replay::load_state`] takes it back.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for it.
    fn state(&self) -> Result<Vec<Field>> {
        let mut fields = self.counters()?;
        for (kept, rows) in self.rows() {
            let first = fields.len();
            for kept in &kept {
                fields.push(kept.field()?);
            }
            let memory = fields[first..].iter_mut().map(|field| field.data_mut().into_bytes());
            copy_rows(&kept, rows, memory.collect())?;
        }
        Ok(fields)
    }

    /// What a state has beside bytes of transitions, as fields.
    fn counters(&self) -> Result<Vec<Field>> {
        let ranges = self.ranges(self.pushed);
        let mut fields = Vec::new();
        for (name, number) in self.settings().into_iter().chain([("pushed", self.pushed)]) {
            fields.push(number_field(name, number)?);
        }
        let tails = self.tails.iter().map(|tail| TAILS.iter().position(|known| known == tail).unwrap_or(0) as u8);
        fields.push(bytes_field("tails", DType::U8, tails)?);
        for (name, flag, indices) in self.flagged(&ranges) {
            let flags = indices.map(|index| u8::from(self.flags(self.row_of(index)) & flag != 0));
            fields.push(bytes_field(name, DType::Bool, flags)?);
        }
        let cut = (0..self.num_envs).map(|env| u8::from(self.is_cut(ranges.held.start + env)));
        fields.push(bytes_field(CUT, DType::Bool, cut)?);
        Ok(fields)
    }

    /// Whether a transition goes on from the environment's one before, be that stored any more or not.
    pub(super) fn is_cut(&self, index: usize) -> bool {
        index >= self.num_envs && self.flags(self.row_of(index - self.num_envs)) & CONTINUES != 0
    }

    /// All that has bytes of its own: fields, and their rows.
    fn rows(&self) -> Vec<(Vec<Kept>, RowBytes<'_>)> {
        let (places, frames) = (&self.places, self.layout.frame_stack);
        let Ranges { held, kept } = self.ranges(self.pushed);
        let rows = |indices: &Range<usize>| indices.clone().map(move |index| self.row_of(index));
        let flagged = |indices: &Range<usize>, flag| rows(indices).filter(move |row| self.flags(*row) & flag != 0);
        let fixed = move |row: usize| self.bytes(row, places.action, places.stored - places.action);
        let next = self.pushed * self.num_envs;
        let ahead = move |(env, tail): (usize, &Tail)| match tail {
            Tail::Ahead => self.newest(self.row_of(next + env)),
            _ => &[],
        };
        let (stored, heads) = (flagged(&held, STORED).count(), flagged(&kept, HEAD).count());
        let aside = flagged(&held, STORED).map(move |row| self.aside.row(self.slot(row, places.stored)));
        let mut all: Vec<(_, RowBytes<'_>)> = vec![
            (self.row_fields(held.len()), Box::new(rows(&held).map(fixed))),
            (self.obs_fields("step", 1, kept.len()), Box::new(rows(&kept).map(move |row| self.newest(row)))),
            (self.obs_fields("ahead", 1, self.num_envs), Box::new(self.tails.iter().enumerate().map(ahead))),
            (self.obs_fields("next", frames, stored), Box::new(aside)),
        ];
        if frames > 1 {
            let older = flagged(&kept, HEAD).map(move |row| self.heads.row(self.slot(row, places.head)));
            all.push((self.obs_fields("older", frames - 1, heads), Box::new(older)));
        }
        all
    }
}

/// The bytes of each row of some fields, one field's after another's; none where they are zeros.
type RowBytes<'a> = Box<dyn Iterator<Item = &'a [u8]> + 'a>;

/// Copies rows of fields into their zeroed memory.
fn copy_rows(kept: &[Kept], rows: RowBytes<'_>, mut memory: Vec<&mut [u8]>) -> Result<()> {
    let each: Vec<_> = kept.iter().map(Kept::bytes_each).collect();
    let mut watch = Watch::default();
    for (i, row) in rows.enumerate().filter(|(_, row)| !row.is_empty()) {
        let mut at = 0;
        for (memory, len) in memory.iter_mut().zip(&each) {
            memory[i * len..][..*len].copy_from_slice(&row[at..at + len]);
            at += len;
        }
        if i.is_multiple_of(1 << 10) {
            watch.check()?;
        }
    }
    Ok(())
}

/// A field of bytes.
fn bytes_field(name: &str, dtype: DType, bytes: impl ExactSizeIterator<Item = u8>) -> Result<Field> {
    let mut field = Kept::new(name, &[], dtype, bytes.len()).field()?;
    let (memory, mut watch) = (field.data_mut().into_bytes(), Watch::default());
    for (i, (to, byte)) in memory.iter_mut().zip(bytes).enumerate() {
        if i.is_multiple_of(1 << 12) {
            watch.check()?;
        }
        *to = byte;
    }
    Ok(field)
}

// A state is taken back: all of it is checked, then put in place.

/// Looks for an interruption every so many rows.
fn look(row: usize, watch: &mut Watch) -> Result<()> {
    if row.is_multiple_of(LOOK) { watch.check() } else { Ok(()) }
}

/// A state that was found to be one of a storage.
struct Checked {
    pushed: usize,
    ranges: Ranges,
    tails: Vec<Tail>,
    /// How many next observations and older frames lie aside.
    stored: usize,
    heads: usize,
    names: Vec<String>,
    kinds: Kinds,
}

impl Checked {
    /// The names of all its fields.
    fn names(&self) -> &[String] {
        &self.names
    }

    /// How many transitions can be sampled.
    fn sampled(&self, num_envs: usize) -> usize {
        let waiting = if self.tails.first() == Some(&Tail::Promised) { num_envs } else { 0 };
        self.ranges.held.len() - waiting
    }
}

/// What has bytes of its own, found before anything changes: once something has, no memory is asked for.
#[derive(Default)]
struct Kinds {
    row: Vec<Kept>,
    step: Vec<Kept>,
    ahead: Vec<Kept>,
    next: Vec<Kept>,
    /// None where frames are not stacked.
    older: Vec<Kept>,
}

/// The flags of a state by name: bytes, of which all but 0 are true.
fn flags<'a>(state: &'a [Field], name: &str, rows: usize) -> Result<&'a [u8]> {
    match Kept::new(name, &[], DType::Bool, rows).of(state)? {
        FieldData::Bool(flags) => Ok(flags),
        _ => Ok(&[]),
    }
}

/// Which of the flags are set.
fn set(flags: &[u8]) -> impl Iterator<Item = usize> {
    flags.iter().enumerate().filter(|(_, flag)| **flag != 0).map(|(i, _)| i)
}

impl ReplayStorage {
    /// Checks that a state can be put in the place of what is stored.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Space`] or [`Error::Shape`] naming the array that is another
    /// buffer's or makes no sense.
    fn check_state(&self, state: &[Field]) -> Result<Checked> {
        for (name, expected) in self.settings() {
            let got = number(state, name)?;
            if got != expected {
                return Err(unfit(name, expected, got));
            }
        }
        let pushed = number(state, "pushed")?;
        if pushed.checked_mul(self.num_envs).is_none_or(|count| count > usize::MAX >> 4) {
            return Err(unfit("pushed", "a number of time steps", pushed));
        }
        let ranges = self.ranges(pushed);
        let stored = set(flags(state, FLAGS[3].0, ranges.held.len())?).count();
        let heads = set(self.older(state, &ranges)?).count();
        let tails = self.tails_of(state)?;
        let (names, kinds) = (Vec::new(), Kinds::default());
        let mut checked = Checked { pushed, ranges, tails, stored, heads, names, kinds };
        self.check_flags(state, &checked)?;
        self.check_tails(state, &checked)?;
        self.check_rows(state, &mut checked)?;
        Ok(checked)
    }

    /// Whether older frames lie aside; of no row where frames are not stacked.
    fn older<'a>(&self, state: &'a [Field], ranges: &Ranges) -> Result<&'a [u8]> {
        if self.layout.frame_stack > 1 { flags(state, OLDER, ranges.kept.len()) } else { Ok(&[]) }
    }

    fn tails_of(&self, state: &[Field]) -> Result<Vec<Tail>> {
        let FieldData::U8(tails) = Kept::new("tails", &[], DType::U8, self.num_envs).of(state)? else {
            return Ok(Vec::new());
        };
        let known = |tail: &u8| TAILS.get(usize::from(*tail)).copied();
        let mut all = alloc::reserved("num_envs", tails.len())?;
        for tail in tails {
            all.push(known(tail).ok_or_else(|| unfit("tails", "0 to 3", tail))?);
        }
        Ok(all)
    }

    /// Checks that flags are such as pushes leave.
    fn check_flags(&self, state: &[Field], checked: &Checked) -> Result<()> {
        let held = &checked.ranges.held;
        let [terminated, truncated, continues, stored] = FLAGS.map(|(name, _)| flags(state, name, held.len()));
        let (terminated, truncated, continues, stored) = (terminated?, truncated?, continues?, stored?);
        let (last, mut watch) = (held.len().saturating_sub(self.num_envs), Watch::default());
        for i in 0..held.len() {
            look(i, &mut watch)?;
            let done = terminated[i] != 0 || truncated[i] != 0;
            if done && stored[i] == 0 {
                return Err(unfit(FLAGS[3].0, "true where an episode ended", "false").at_row(i));
            }
            if continues[i] != 0 && (done || i >= last) {
                return Err(unfit(FLAGS[2].0, "false where no row of the episode follows", "true").at_row(i));
            }
        }
        let cut = flags(state, CUT, self.num_envs)?;
        if held.start == 0 && cut.iter().any(|cut| *cut != 0) {
            return Err(unfit(CUT, "false where every transition is stored", "true"));
        }
        let first = if checked.ranges.kept.start == 0 { self.num_envs.min(checked.ranges.kept.len()) } else { 0 };
        let older = self.older(state, &checked.ranges)?;
        if self.layout.frame_stack > 1 && older[..first].contains(&0) {
            return Err(unfit(OLDER, "true in the first rows", "false"));
        }
        Ok(())
    }

    /// Checks that what comes after the last rows is where it can be.
    fn check_tails(&self, state: &[Field], checked: &Checked) -> Result<()> {
        let (tails, n) = (&checked.tails, self.num_envs);
        let promised = tails.iter().filter(|tail| **tail == Tail::Promised).count();
        if promised != 0 && promised != n {
            return Err(unfit("tails", "a promise of all environments or of none", promised));
        }
        let stored = flags(state, FLAGS[3].0, checked.ranges.held.len())?;
        let Some(last) = stored.len().checked_sub(n) else {
            let fits = tails.iter().all(|tail| *tail == Tail::None);
            return if fits { Ok(()) } else { Err(unfit("tails", "0 in an empty buffer", "others")) };
        };
        for (env, tail) in tails.iter().enumerate() {
            let aside = matches!(tail, Tail::None | Tail::Aside);
            if aside != (stored[last + env] != 0) {
                let expected = "where next_aside says that the last next observation is";
                return Err(unfit("tails", expected, format!("{tail:?}").to_lowercase()).at_env(env));
            }
        }
        Ok(())
    }

    /// Checks all that has bytes of its own, and finds the names of all fields.
    fn check_rows(&self, state: &[Field], checked: &mut Checked) -> Result<()> {
        let frames = self.layout.frame_stack;
        let Checked { ranges: Ranges { held, kept }, stored, heads, .. } = &*checked;
        let kinds = Kinds {
            row: self.row_fields(held.len()),
            step: self.obs_fields("step", 1, kept.len()),
            ahead: self.obs_fields("ahead", 1, self.num_envs),
            next: self.obs_fields("next", frames, *stored),
            older: if frames > 1 { self.obs_fields("older", frames - 1, *heads) } else { Vec::new() },
        };
        let fields = || [&kinds.row, &kinds.step, &kinds.ahead, &kinds.next, &kinds.older].into_iter().flatten();
        let mut watch = Watch::default();
        for field in fields() {
            let data = field.of(state)?;
            check_finite(&key(&field.name), data, field.shape.iter().product(), &mut watch)?;
        }
        let mut names: Vec<_> = fields().map(|field| field.name.clone()).collect();
        names.extend(["pushed", "tails", CUT].map(str::to_owned));
        names.extend(self.settings().map(|(name, _)| name.to_owned()));
        names.extend(FLAGS.map(|(name, _)| name.to_owned()));
        names.extend((frames > 1).then(|| OLDER.to_owned()));
        (checked.names, checked.kinds) = (names, kinds);
        Ok(())
    }

    /// Makes room for what will lie aside.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is none; what is stored has not changed then.
    fn reserve_state(&mut self, state: &[Field], checked: &Checked) -> Result<()> {
        let (rows, mut ended) = (checked.ranges.held.len(), alloc::zeroed("num_envs", self.num_envs)?);
        let [terminated, truncated] = [FLAGS[0], FLAGS[1]].map(|(name, _)| flags(state, name, rows));
        let mut watch = Watch::default();
        for (i, (terminated, truncated)) in terminated?.iter().zip(truncated?).enumerate() {
            look(i, &mut watch)?;
            ended[i % self.num_envs] += usize::from(terminated | truncated != 0);
        }
        for (env, ended) in ended.into_iter().enumerate() {
            self.episodes.reserve(env, ended)?;
        }
        let promised = self.promised();
        self.aside.reserve_all(checked.stored, promised)?;
        self.heads.reserve_all(checked.heads, promised)
    }

    /// Finds the episodes of transitions whose flags are there, and for which there is room.
    fn find_episodes(&mut self, held: &Range<usize>, watch: &mut Watch) -> Result<()> {
        let n = self.num_envs;
        self.episodes.clear();
        for index in held.clone() {
            let (first, flags) = (!self.is_cut(index), self.flags(self.row_of(index)));
            let last = flags & (TERMINATED | TRUNCATED) != 0;
            self.episodes.stepped(index % n, index / n, held.start / n, (first, last));
            look(index, watch)?;
        }
        Ok(())
    }

    /// Forgets all transitions, and keeps the memory.
    fn clear(&mut self) {
        self.pushed = 0;
        self.tails.fill(Tail::None);
        self.aside.give_all_back();
        self.heads.give_all_back();
        self.episodes.clear();
    }

    /// Puts the flags of a state where its transitions will be.
    fn put_flags(&mut self, state: &[Field], ranges: &Ranges, watch: &mut Watch) -> Result<()> {
        let n = self.num_envs;
        // Of all rows that there are then: what former transitions had aside is not theirs any more.
        for index in ranges.held.end.saturating_sub(self.room() * n)..ranges.held.end {
            let row = self.row_of(index);
            *self.flags_mut(row) = 0;
            look(index, watch)?;
        }
        for env in set(flags(state, CUT, n)?) {
            let row = self.row_of(ranges.held.start + env - n);
            *self.flags_mut(row) |= CONTINUES;
        }
        let of_rows = FLAGS.map(|(name, flag)| (flag, &ranges.held, flags(state, name, ranges.held.len())));
        let of_frames = (HEAD, &ranges.kept, self.older(state, ranges));
        for (flag, indices, flags) in of_rows.into_iter().chain([of_frames]) {
            for i in set(flags?) {
                let row = self.row_of(indices.start + i);
                *self.flags_mut(row) |= flag;
                look(i, watch)?;
            }
        }
        Ok(())
    }

    /// Puts a state that was checked, and for which there is room, into a storage that was cleared.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if it was told to stop: it has to be cleared once more then.
    fn put_state(&mut self, state: &[Field], checked: Checked) -> Result<()> {
        let mut watch = Watch::default();
        self.put_flags(state, &checked.ranges, &mut watch)?;
        let Checked { pushed, ranges, tails, stored, heads, kinds, .. } = checked;
        let Ranges { held, kept } = &ranges;
        (self.pushed, self.tails) = (pushed, tails);
        self.find_episodes(held, &mut watch)?;
        let (action, slot, head) = (self.places.action, self.places.stored, self.places.head);
        put(&kinds.row, state, held.len(), |i, at, bytes| {
            let row = self.row_of(held.start + i);
            self.bytes_mut(row, action + at, bytes.len()).copy_from_slice(bytes);
        })?;
        put(&kinds.step, state, kept.len(), |i, at, bytes| {
            let row = self.row_of(kept.start + i);
            self.bytes_mut(row, at, bytes.len()).copy_from_slice(bytes);
        })?;
        put(&kinds.ahead, state, self.num_envs, |env, at, bytes| {
            if self.tails[env] == Tail::Ahead {
                let row = self.row_of(held.end + env);
                self.bytes_mut(row, at, bytes.len()).copy_from_slice(bytes);
            }
        })?;
        for i in set(flags(state, FLAGS[3].0, held.len())?) {
            let (row, taken) = (self.row_of(held.start + i), self.aside.take());
            self.bytes_mut(row, slot, 4).copy_from_slice(&taken.to_ne_bytes());
            look(i, &mut watch)?;
        }
        put(&kinds.next, state, stored, |i, at, bytes| {
            self.aside.given_mut(i)[at..][..bytes.len()].copy_from_slice(bytes);
        })?;
        for i in set(self.older(state, &ranges)?) {
            let (row, taken) = (self.row_of(kept.start + i), self.heads.take());
            self.bytes_mut(row, head, 4).copy_from_slice(&taken.to_ne_bytes());
        }
        put(&kinds.older, state, heads, |i, at, bytes| {
            self.heads.given_mut(i)[at..][..bytes.len()].copy_from_slice(bytes);
        })
    }
}

/// Hands each row of fields to `to`, with the place where its bytes begin.
fn put(kept: &[Kept], state: &[Field], rows: usize, mut to: impl FnMut(usize, usize, &[u8])) -> Result<()> {
    let (mut at, mut watch) = (0, Watch::default());
    for kept in kept {
        let bytes = kept.of(state)?.bytes();
        let len = kept.shape.iter().product::<usize>() * kept.dtype.size();
        let together = (TOGETHER / len.max(1)).clamp(1, LOOK);
        for i in 0..rows {
            to(i, at, &bytes[i * len..][..len]);
            if i.is_multiple_of(together) {
                watch.check()?;
            }
        }
        at += len;
    }
    Ok(())
}
