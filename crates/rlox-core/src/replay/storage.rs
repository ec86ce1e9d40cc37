//! The ring that holds transitions, the rows that lie beside it, and the episodes that are stored from start to end.

use std::collections::VecDeque;
use std::ops::Range;

use super::schema::{RowLayout, TransitionSchema};
use crate::{Error, Pcg64, Result, alloc};

/// The task itself ended after this step.
pub(crate) const TERMINATED: u8 = 1;
/// The episode was cut after this step.
pub(crate) const TRUNCATED: u8 = 2;
/// The next observation lies aside, as the environment's next row does not hold it.
pub(crate) const STORED: u8 = 4;
/// The environment's next row belongs to the same episode.
pub(crate) const CONTINUES: u8 = 8;
/// The older frames lie aside, as the environment's former rows do not hold them.
pub(crate) const HEAD: u8 = 16;

/// So many bytes more are asked for without a look at what is free, which takes some 20 us.
const MEMINFO_CHECK_ABOVE: usize = 1 << 20;

/// A ring of transitions of one environment, or of several that step together.
///
/// One row holds a whole transition, so that sampling it touches one place. The next observation is stored once where the
/// environment's next row holds it, and frames that observations stack are stored once; both are found by comparing
/// bytes, so that what is sampled is always what was pushed. `terminated` and `truncated` are never merged.
///
/// Transitions are told by the number they have in the order of pushing, counted from 0: it stays theirs for good, so that
/// a priority that comes late never meets another transition.
///
/// ```
/// use rlox_core::{DType, FieldData};
/// use rlox_core::replay::{TransitionSchema, FieldSpec, ReplayStorage, TransitionBatch};
///
/// let schema = TransitionSchema::new(FieldSpec::new("obs", &[2], DType::F32), FieldSpec::new("actions", &[], DType::I64));
/// let mut storage = ReplayStorage::new(1000, 1, schema)?;
/// let (obs, next_obs) = ([FieldData::F32(&[0.0, 0.1])], [FieldData::F32(&[0.2, 0.3])]);
/// storage.push(&TransitionBatch {
///     obs: &obs,
///     actions: FieldData::I64(&[1]),
///     rewards: &[1.0],
///     terminated: &[false],
///     truncated: &[true],
///     next_obs: Some(&next_obs),
///     extra: &[],
/// })?;
/// assert_eq!((storage.len(), storage.indices()), (1, 0..1));
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReplayStorage {
    pub(crate) schema: TransitionSchema,
    pub(crate) row_layout: RowLayout,
    pub(crate) num_envs: usize,
    /// Time steps that can be sampled.
    steps: usize,
    /// Time steps there is room for: one more for what lies ahead, and those whose frames the oldest ones need.
    pub(crate) capacity_steps: usize,
    /// `[capacity_steps, num_envs, stride]`.
    pub(crate) data: Vec<u8>,
    /// Next observations that lie aside.
    pub(crate) overflow_obs: RowPool,
    /// Older frames that lie aside.
    pub(crate) frame_heads: RowPool,
    /// Time steps pushed so far.
    pub(crate) pushed: usize,
    pub(crate) last_next_obs: Vec<NextObs>,
    pub(crate) episodes: Episodes,
    /// Which observations are what lay ahead, of the step that is being pushed.
    pub(crate) is_contiguous: Vec<bool>,
    /// Which of those episodes go on besides, of plain rows.
    pub(crate) continues: Vec<bool>,
    /// A row of observations of several parts, made by the first push.
    pub(crate) scratch_row: Vec<u8>,
}

impl ReplayStorage {
    /// Room for `capacity` transitions of `num_envs` environments: rounded down to whole time steps, at least one.
    ///
    /// Memory is taken when rows are first written. What will lie aside depends on what is pushed: nothing where rows
    /// follow each other but at the ends of episodes, a next observation for each row that stands for itself. It is not
    /// asked for here; a push for which there is not enough beside the rest of the ring is refused.
    ///
    /// # Errors
    /// [`Error::Config`] if one of them is 0 or the layout makes no sense, [`Error::Shape`] for a row without elements,
    /// [`Error::Memory`] with the number of bytes if the ring does not fit into memory.
    pub fn new(capacity: usize, num_envs: usize, schema: TransitionSchema) -> Result<Self> {
        for (name, count) in [("capacity", capacity), ("num_envs", num_envs)] {
            if count == 0 {
                return Err(Error::config(name, "at least 1", "0", "pass a positive number"));
            }
        }
        let row_layout = RowLayout::new(&schema)?;
        schema.check_sequences()?;
        let steps = (capacity / num_envs).max(1);
        let capacity_steps = steps.saturating_add(schema.frame_stack);
        let rows = capacity_steps.saturating_mul(num_envs);
        // Fewer than one of each environment become that, whatever the capacity is.
        let argument = if capacity < num_envs { "num_envs" } else { "capacity" };
        let request = || {
            let envs = if num_envs > 1 { format!(" of {num_envs} environments") } else { String::new() };
            format!("{} transitions{envs} of {} bytes each, which needs", capacity.max(num_envs), row_layout.stride)
        };
        Ok(Self {
            data: alloc::zeroed_named(argument, rows, row_layout.stride, request)?,
            overflow_obs: RowPool::new(row_layout.obs),
            frame_heads: RowPool::new(row_layout.obs - row_layout.frame),
            pushed: 0,
            last_next_obs: vec![NextObs::None; num_envs],
            episodes: Episodes::new(num_envs)?,
            is_contiguous: alloc::zeroed("num_envs", num_envs)?,
            continues: alloc::zeroed("num_envs", num_envs)?,
            scratch_row: Vec::new(),
            schema,
            row_layout,
            num_envs,
            steps,
            capacity_steps,
        })
    }

    /// What transitions are made of.
    pub fn schema(&self) -> &TransitionSchema {
        &self.schema
    }

    /// How many environments step together.
    pub fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// How many transitions can be held.
    pub fn capacity(&self) -> usize {
        self.steps * self.num_envs
    }

    /// How many transitions are held. One whose next observation is still to come is one of them.
    pub fn len(&self) -> usize {
        self.pushed.min(self.steps) * self.num_envs
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// The numbers of the transitions that can be sampled.
    pub fn indices(&self) -> Range<usize> {
        let first = self.pushed.saturating_sub(self.steps);
        let waiting = usize::from(self.is_waiting());
        first * self.num_envs..(self.pushed - waiting).max(first) * self.num_envs
    }

    /// The number of the oldest transition that is stored.
    pub(crate) fn oldest(&self) -> usize {
        self.oldest_step() * self.num_envs
    }

    /// The oldest time step that is stored.
    pub(crate) fn oldest_step(&self) -> usize {
        self.pushed.saturating_sub(self.steps)
    }

    /// The number that the next transition will have.
    pub(crate) fn next_index(&self) -> usize {
        self.pushed * self.num_envs
    }

    /// How many rows there are, and how many transitions were taken so far.
    pub(crate) fn generation(&self) -> (usize, usize) {
        (self.capacity_steps * self.num_envs, self.next_index())
    }

    /// Whether next observations of the last time step are still to come.
    fn is_waiting(&self) -> bool {
        self.last_next_obs.first() == Some(&NextObs::Deferred)
    }

    /// The rows whose next observations are still to come.
    pub(crate) fn waiting(&self) -> Range<usize> {
        if !self.is_waiting() {
            return 0..0;
        }
        let first = self.row_of((self.pushed - 1) * self.num_envs);
        first..first + self.num_envs
    }

    /// Bytes of memory so far: all of the ring's, whose rows are taken from the system as they are first written, and more
    /// where next observations and first frames lie aside, and as episodes end.
    pub fn memory(&self) -> usize {
        self.data.len() + self.overflow_obs.bytes() + self.frame_heads.bytes() + self.episodes.bytes()
    }

    /// Bytes of rows that were never written: the system still counts them as free.
    pub(crate) fn promised(&self) -> usize {
        self.capacity_steps.saturating_sub(self.pushed) * self.num_envs * self.row_layout.stride
    }

    /// Time steps there are rows for.
    pub(crate) fn capacity_steps(&self) -> usize {
        self.capacity_steps
    }

    /// The row of a transition.
    pub(crate) fn row_of(&self, index: usize) -> usize {
        index % (self.capacity_steps * self.num_envs)
    }

    /// The number of the transition that is stored in a row, or was last.
    pub(crate) fn index_of(&self, row: usize) -> usize {
        let rows = self.capacity_steps * self.num_envs;
        let (lap, next_row) = (self.next_index() / rows, self.next_index() % rows);
        // Rows from the next one on are of the lap before.
        lap * rows + row - if row < next_row { 0 } else { rows.min(lap * rows) }
    }

    /// The rows of consecutive transitions: one stretch, and another where the ring begins anew.
    pub(crate) fn rows_of(&self, indices: Range<usize>) -> [Range<usize>; 2] {
        let (rows, len) = (self.capacity_steps * self.num_envs, indices.len());
        let first = self.row_of(indices.start);
        let first_len = len.min(rows - first);
        [first..first + first_len, 0..len - first_len]
    }

    /// The same environment's row so many time steps later.
    pub(crate) fn row_after(&self, row: usize, steps: usize) -> usize {
        let (rows, row) = (self.capacity_steps * self.num_envs, row + steps * self.num_envs);
        if row >= rows { row - rows } else { row }
    }

    /// The same environment's row before.
    pub(crate) fn row_before(&self, row: usize) -> usize {
        if row >= self.num_envs { row - self.num_envs } else { row + (self.capacity_steps - 1) * self.num_envs }
    }

    pub(crate) fn flags(&self, row: usize) -> u8 {
        self.data[row * self.row_layout.stride + self.row_layout.flags]
    }

    pub(crate) fn flags_mut(&mut self, row: usize) -> &mut u8 {
        &mut self.data[row * self.row_layout.stride + self.row_layout.flags]
    }

    pub(crate) fn reward(&self, row: usize) -> f32 {
        f32::from_ne_bytes(self.four(row, self.row_layout.reward))
    }

    /// Where what lies aside of a row is, of its place `at`.
    pub(crate) fn slot(&self, row: usize, offset: usize) -> u32 {
        u32::from_ne_bytes(self.four(row, offset))
    }

    fn four(&self, row: usize, offset: usize) -> [u8; 4] {
        let from = row * self.row_layout.stride + offset;
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.data[from..from + 4]);
        bytes
    }

    /// Bytes of a row.
    pub(crate) fn bytes(&self, row: usize, from: usize, len: usize) -> &[u8] {
        &self.data[row * self.row_layout.stride + from..][..len]
    }

    pub(crate) fn bytes_mut(&mut self, row: usize, from: usize, len: usize) -> &mut [u8] {
        &mut self.data[row * self.row_layout.stride + from..][..len]
    }

    /// What a row holds of its observation: all of it, or the newest frame.
    pub(crate) fn newest(&self, row: usize) -> &[u8] {
        self.bytes(row, 0, self.row_layout.frame)
    }

    /// The frame that is so many older than the newest of a row's observation.
    pub(crate) fn frame(&self, mut row: usize, older: usize) -> &[u8] {
        let size = self.row_layout.frame;
        for back in 0..older {
            if self.flags(row) & HEAD != 0 {
                let head = self.frame_heads.row(self.slot(row, self.row_layout.head));
                // Oldest first: its last is one older than the row's.
                let index = self.schema.frame_stack - 1 - (older - back);
                return &head[index * size..][..size];
            }
            row = self.row_before(row);
        }
        self.newest(row)
    }
}

/// Where an environment's last next observation is, until its next row comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextObs {
    /// There is none: no row yet, or the episode has ended.
    None,
    /// Where the next row will be.
    InNextRow,
    /// Aside: its older frames are not those of the row before.
    Overflow,
    /// Nowhere: the caller has promised that the next row holds it.
    Deferred,
}

/// Rows of one size. Memory grows with the most that were taken at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowPool {
    bytes_each: usize,
    /// How many there are, taken or not.
    rows: usize,
    data: Vec<u8>,
    free: Vec<u32>,
}

impl RowPool {
    pub(crate) fn new(bytes_each: usize) -> Self {
        Self { bytes_each, ..Self::default() }
    }

    /// Makes room for so many more, of which an eighth of those there are come at once. `promised` bytes are somebody
    /// else's, who has not taken them from the system yet.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if the system grants none; nothing has changed then.
    pub(crate) fn reserve(&mut self, count: usize, promised: usize) -> Result<()> {
        if self.free.len() >= count {
            return Ok(());
        }
        let there = self.rows;
        let missing = count - self.free.len();
        let more = missing.max(there / 8);
        let total = there.saturating_add(more);
        if total > u32::MAX as usize {
            return Err(alloc::out_of_memory("capacity", total, self.bytes_each));
        }
        let bytes = more.saturating_mul(self.bytes_each);
        if bytes > MEMINFO_CHECK_ABOVE {
            let request =
                || format!("{more} observations beside a ring of which {promised} bytes are to come, which need");
            alloc::check_available_for("capacity", 1, bytes.saturating_add(promised), request)?;
        }
        self.data.try_reserve_exact(bytes).map_err(|_| alloc::out_of_memory("capacity", more, self.bytes_each))?;
        self.free.try_reserve(total).map_err(|_| alloc::out_of_memory("capacity", total, 4))?;
        self.data.resize(self.data.len() + bytes, 0);
        self.rows = total;
        self.free.extend((there as u32..total as u32).rev());
        Ok(())
    }

    /// Makes room for so many rows in all.
    ///
    /// # Errors
    /// Those of [`RowPool::reserve`].
    pub(crate) fn reserve_all(&mut self, count: usize, promised: usize) -> Result<()> {
        self.reserve(count.saturating_sub(self.in_use()), promised)?;
        // A copy has room only for what was free.
        let more = self.rows - self.free.len();
        self.free.try_reserve(more).map_err(|_| alloc::out_of_memory("capacity", self.rows, 4))
    }

    /// Takes all rows back, and then gives them in their order.
    pub(crate) fn release_all(&mut self) {
        let rows = self.rows as u32;
        self.free.clear();
        self.free.extend((0..rows).rev());
    }

    /// A row of one's own, of those that [`RowPool::reserve`] made room for.
    pub(crate) fn acquire(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            // More than was reserved: another row must not be given away twice.
            let there = self.rows;
            self.data.resize(self.data.len() + self.bytes_each, 0);
            self.rows += 1;
            there as u32
        })
    }

    /// The row that was taken as the one of this number since all were given back.
    pub(crate) fn nth_row_mut(&mut self, number: usize) -> &mut [u8] {
        &mut self.data[number * self.bytes_each..][..self.bytes_each]
    }

    /// How many rows are taken.
    pub(crate) fn in_use(&self) -> usize {
        self.rows - self.free.len()
    }

    pub(crate) fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(crate) fn row(&self, slot: u32) -> &[u8] {
        &self.data[slot as usize * self.bytes_each..][..self.bytes_each]
    }

    pub(crate) fn row_mut(&mut self, slot: u32) -> &mut [u8] {
        &mut self.data[slot as usize * self.bytes_each..][..self.bytes_each]
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len() + 4 * self.free.capacity()
    }
}

/// The first time steps of episodes that have ended and of which every step was pushed, by environment: found as steps
/// are pushed, so that nobody has to search the ring for them.
#[derive(Clone, Debug)]
pub(crate) struct Episodes {
    /// The time step with which each environment's last episode began; 0 if that is not known, when 0 is not stored.
    current_starts: Vec<usize>,
    /// In rising order. Those that are not stored any more leave as new ones come.
    complete_starts: Vec<VecDeque<usize>>,
}

impl Episodes {
    pub(super) fn new(num_envs: usize) -> Result<Self> {
        let current_starts = alloc::zeroed("num_envs", num_envs)?;
        let mut complete_starts = alloc::with_capacity("num_envs", num_envs)?;
        complete_starts.resize_with(num_envs, VecDeque::new);
        Ok(Self { current_starts, complete_starts })
    }

    /// Makes room for so many more of an environment.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is none; nothing has changed then.
    pub(super) fn reserve(&mut self, env: usize, more: usize) -> Result<()> {
        let starts = &mut self.complete_starts[env];
        starts.try_reserve(more).map_err(|_| alloc::out_of_memory("capacity", starts.len() + more, size_of::<usize>()))
    }

    /// Takes notice of an environment's time step, where `oldest` is the first that is stored: whether it is the first of
    /// an episode, and the last.
    pub(super) fn record_step(&mut self, env: usize, step: usize, oldest: usize, (first, last): (bool, bool)) {
        if first {
            self.current_starts[env] = step;
        }
        if !last {
            return;
        }
        let starts = &mut self.complete_starts[env];
        while starts.front().is_some_and(|start| *start < oldest) {
            starts.pop_front();
        }
        if self.current_starts[env] >= oldest {
            starts.push_back(self.current_starts[env]);
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.current_starts.fill(0);
        self.complete_starts.iter_mut().for_each(VecDeque::clear);
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.complete_starts.iter().map(|starts| starts.capacity() * size_of::<usize>()).sum()
    }

    /// Draws first transitions of whole episodes, each as likely as another, of those that `valid` transitions are.
    /// `counts` is memory.
    ///
    /// # Errors
    /// [`Error::Config`] if there is none, [`Error::Memory`] if there is no room. Nothing is drawn then.
    pub(super) fn draw(
        &self,
        valid: &Range<usize>,
        rng: &mut Pcg64,
        counts: &mut Vec<usize>,
        drawn: &mut [usize],
    ) -> Result<()> {
        let n = self.complete_starts.len();
        let oldest = valid.start / n;
        counts.clear();
        alloc::try_reserve("num_envs", counts, n)?;
        let mut total = 0;
        for starts in &self.complete_starts {
            total += starts.len() - starts.partition_point(|start| *start < oldest);
            counts.push(total);
        }
        if total == 0 {
            let hint = "push more, or sample parts of episodes";
            return Err(Error::config("whole_episodes", "an episode that is stored from start to end", "none", hint));
        }
        draw(&(0..total), rng, drawn);
        for drawn in drawn {
            let env = counts.partition_point(|count| *count <= *drawn);
            // Counted from the newest one back: the first ones may not be stored any more.
            let starts = &self.complete_starts[env];
            *drawn = starts[starts.len() - (counts[env] - *drawn)] * n + env;
        }
        Ok(())
    }
}

/// Draws numbers of transitions, each as likely as another.
pub(super) fn draw(valid: &Range<usize>, rng: &mut Pcg64, indices: &mut [usize]) {
    let count = valid.len() as u128;
    for index in indices {
        // The high half of the product; the bias, of count / 2^64, cannot be noticed.
        *index = valid.start + ((u128::from(rng.next_u64()) * count) >> 64) as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, available_memory};

    #[test]
    fn promised_memory_is_not_handed_out() {
        let Some(free) = available_memory() else { return };
        let mut slots = RowPool::new(1 << 20);
        let rejected = crate::testing::assert_rejects(slots.reserve(2, free as usize), Error::Memory, "capacity");
        assert!(rejected.got.contains("beside a ring"), "{rejected}");
        assert_eq!((slots.bytes(), slots.in_use()), (0, 0));
        slots.reserve(2, 0).unwrap();
        assert!(slots.bytes() >= 2 << 20);
    }
}
