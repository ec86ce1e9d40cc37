//! How a storage takes a state back: checked whole, then put in place.

use std::ops::Range;

use super::checks::check_finite;
use super::state::{CUT, FLAGS, Kept, OLDER, Ranges, TAILS, key, number, unfit};
use super::storage::{CONTINUES, HEAD, ReplayStorage, TERMINATED, TRUNCATED, Tail};
use crate::{DType, Field, FieldData, Result, Watch, memory};

/// Rows, and bytes of them, between two looks for an interruption.
const LOOK: usize = 1 << 12;
const TOGETHER: usize = 1 << 20;

/// Looks for an interruption every so many rows.
fn look(row: usize, watch: &mut Watch) -> Result<()> {
    if row.is_multiple_of(LOOK) { watch.check() } else { Ok(()) }
}

/// A state that was found to be one of a storage.
pub(super) struct Checked {
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
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// How many transitions can be sampled.
    pub(super) fn sampled(&self, num_envs: usize) -> usize {
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
    /// [`crate::Error::Config`], [`crate::Error::Space`] or [`crate::Error::Shape`] naming the array that is another
    /// buffer's or makes no sense.
    pub(super) fn check_state(&self, state: &[Field]) -> Result<Checked> {
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
        let mut all = memory::reserved("num_envs", tails.len())?;
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
    /// [`crate::Error::Memory`] if there is none; what is stored has not changed then.
    pub(super) fn reserve_state(&mut self, state: &[Field], checked: &Checked) -> Result<()> {
        let (rows, mut ended) = (checked.ranges.held.len(), memory::zeroed("num_envs", self.num_envs)?);
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
    pub(super) fn clear(&mut self) {
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
    /// [`crate::Error::Interrupted`] if it was told to stop: it has to be cleared once more then.
    pub(super) fn put_state(&mut self, state: &[Field], checked: Checked) -> Result<()> {
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
