//! What a storage remembers, as fields with names: a copy goes on exactly as the original would.
//!
//! Fields say what they hold whatever a row of the ring looks like in memory, so that another version reads them, and
//! leave out what is stored twice or not any more: they take no more than what they hold.

use std::fmt::Display;
use std::ops::Range;

use super::layout::Part;
use super::storage::{CONTINUES, HEAD, ReplayStorage, STORED, TERMINATED, TRUNCATED, Tail};
use crate::{DType, Error, Field, FieldData, Result};

const FIX: &str = "pass what a buffer made with the same arguments gave";

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
    pub(super) fn bytes_each(&self) -> usize {
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

/// Flags of stored transitions, and what they are called.
pub(super) const FLAGS: [(&str, u8); 4] =
    [("step.terminated", TERMINATED), ("step.truncated", TRUNCATED), ("continues", CONTINUES), ("next_aside", STORED)];
/// Whether older frames are in `older.obs`.
pub(super) const OLDER: &str = "older_aside";
/// Whether the oldest stored transition of an environment goes on from one that is not stored any more.
pub(super) const CUT: &str = "cut";
/// Where environments' last next observations are, by the place in this list.
pub(super) const TAILS: [Tail; 4] = [Tail::None, Tail::Ahead, Tail::Aside, Tail::Promised];

/// Which transitions a storage keeps something of.
pub(super) struct Ranges {
    /// Those that are stored, be their next observation still to come.
    pub(super) held: Range<usize>,
    /// Those whose frames are, too.
    pub(super) kept: Range<usize>,
}

/// A name, a flag and the transitions it is kept of.
pub(super) type Flagged = (&'static str, u8, Range<usize>);

impl ReplayStorage {
    /// Which transitions there are after so many time steps.
    pub(super) fn ranges(&self, pushed: usize) -> Ranges {
        let steps = self.capacity() / self.num_envs;
        let from = |steps: usize| pushed.saturating_sub(steps) * self.num_envs..pushed * self.num_envs;
        Ranges { held: from(steps), kept: from(steps + self.layout.frame_stack - 1) }
    }

    /// What a state must have in common with a storage.
    pub(super) fn settings(&self) -> [(&'static str, usize); 3] {
        [("capacity", self.capacity()), ("num_envs", self.num_envs), ("frame_stack", self.layout.frame_stack)]
    }

    /// The flags that a state has.
    pub(super) fn flagged(&self, ranges: &Ranges) -> Vec<Flagged> {
        let mut all: Vec<_> = FLAGS.iter().map(|(name, flag)| (*name, *flag, ranges.held.clone())).collect();
        if self.layout.frame_stack > 1 {
            all.push((OLDER, HEAD, ranges.kept.clone()));
        }
        all
    }

    /// What is stored of each transition but for observations and flags, in the order of a row of the ring.
    pub(super) fn row_fields(&self, rows: usize) -> Vec<Kept> {
        let parts = std::iter::once(&self.layout.action).chain(&self.layout.extra);
        let named = parts.map(|part| Kept::new(format!("step.{}", part.name), &part.shape, part.dtype, rows));
        named.chain([Kept::new("step.rewards", &[], DType::F32, rows)]).collect()
    }

    /// So many rows of so many frames of observations.
    pub(super) fn obs_fields(&self, kind: &str, frames: usize, rows: usize) -> Vec<Kept> {
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
    /// no other row's, and what says how the next pushes go on. [`super::Replay::load_state`] takes it back.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for it.
    pub(super) fn state(&self) -> Result<Vec<Field>> {
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
    pub(super) fn counters(&self) -> Result<Vec<Field>> {
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
    pub(super) fn rows(&self) -> Vec<(Vec<Kept>, RowBytes<'_>)> {
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
pub(super) type RowBytes<'a> = Box<dyn Iterator<Item = &'a [u8]> + 'a>;

/// Copies rows of fields into their zeroed memory.
pub(super) fn copy_rows(kept: &[Kept], rows: RowBytes<'_>, mut memory: Vec<&mut [u8]>) -> Result<()> {
    let each: Vec<_> = kept.iter().map(Kept::bytes_each).collect();
    let mut watch = crate::Watch::default();
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
    let (memory, mut watch) = (field.data_mut().into_bytes(), crate::Watch::default());
    for (i, (to, byte)) in memory.iter_mut().zip(bytes).enumerate() {
        if i.is_multiple_of(1 << 12) {
            watch.check()?;
        }
        *to = byte;
    }
    Ok(field)
}
