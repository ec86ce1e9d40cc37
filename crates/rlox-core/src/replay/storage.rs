//! Storage of transitions: a ring buffer, pools for data outside the ring, and an index of
//! episodes.
//!
//! A time step is one transition of each environment. A row is the place of one transition in the
//! ring. A lap is one pass of the pushes through all rows of the ring.

use std::collections::VecDeque;
use std::ops::Range;

use super::schema::{RowLayout, TransitionSchema};
use crate::{Error, Pcg64, Result, alloc};

/// Flag: the step reached a terminal state of the task.
pub(crate) const TERMINATED: u8 = 1;
/// Flag: the episode was truncated after this step.
pub(crate) const TRUNCATED: u8 = 2;
/// Flag: the next observation is in the pool `overflow_obs`, not in the environment's next row.
pub(crate) const STORED: u8 = 4;
/// Flag: the environment's next row belongs to the same episode.
pub(crate) const CONTINUES: u8 = 8;
/// Flag: the older frames are in the pool `frame_heads`, not in the environment's previous rows.
pub(crate) const HEAD: u8 = 16;

/// Size in bytes up to which growth skips the check of the free memory, which takes about 20 us.
const MEMINFO_CHECK_ABOVE: usize = 1 << 20;

/// Ring buffer of transitions of one environment, or of several environments that step together.
///
/// A row holds all fields of a transition except the next observation, so that sampling reads one
/// place. A next observation that equals the observation in the environment's next row is stored
/// only there. Frames that stacked observations share are stored once. Pushes compare bytes to find
/// such duplicates, so that sampled observations always equal the pushed observations. `terminated`
/// and `truncated` are separate flags.
///
/// The index of a transition is its position in the order of pushes, counted from 0. Indices are
/// never reused, so that a late update of priorities cannot change another transition.
///
/// ```
/// use rlox_core::field::{DType, FieldData};
/// use rlox_core::replay::{TransitionSchema, FieldSpec, ReplayStorage, TransitionBatch};
///
/// let field = |name, shape: &[usize], dtype| FieldSpec::new(name, shape, dtype);
/// let schema = TransitionSchema::new(field("obs", &[2], DType::F32), field("actions", &[], DType::I64));
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
    /// Maximum number of stored time steps.
    steps: usize,
    /// Number of time steps in the ring: `steps`, one for next observations, and more for stacked
    /// frames.
    pub(crate) capacity_steps: usize,
    /// Bytes of the rows, `[capacity_steps, num_envs, stride]`.
    pub(crate) data: Vec<u8>,
    /// Next observations that no row of the ring holds.
    pub(crate) overflow_obs: RowPool,
    /// Older frames that no row of the ring holds.
    pub(crate) frame_heads: RowPool,
    /// Number of time steps pushed so far.
    pub(crate) pushed: usize,
    /// Location of the last next observation of each environment.
    pub(crate) last_next_obs: Vec<NextObs>,
    pub(crate) episodes: Episodes,
    /// Per environment: true if the observation being pushed equals the last next observation.
    pub(crate) is_contiguous: Vec<bool>,
    /// Per environment: true if `is_contiguous` is true and the episode continues.
    ///
    /// Only used for rows with one observation field, without stacked frames and extra fields.
    pub(crate) continues: Vec<bool>,
    /// Memory in which the fields of an observation are concatenated, allocated by the first push.
    pub(crate) scratch_row: Vec<u8>,
}

impl ReplayStorage {
    /// Creates a storage for `capacity` transitions of `num_envs` environments.
    ///
    /// The capacity is rounded down to full time steps, at least one. The operating system provides
    /// the memory of the ring when rows are first written.
    ///
    /// Next observations that equal no later observation need memory outside the ring: one for each
    /// end of an episode, and one for each independent row. This function does not reserve that
    /// memory. A push fails if that memory does not fit in addition to the unwritten rows of the
    /// ring.
    ///
    /// # Errors
    /// - [`Error::Config`] if `capacity` or `num_envs` is 0, or the schema is invalid;
    /// - [`Error::Shape`] if a row has no elements or too many axes;
    /// - [`Error::Memory`] with the number of bytes if the ring does not fit into memory.
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
        // A capacity below `num_envs` is raised to `num_envs`, which then determines the size.
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

    /// Returns the schema of the transitions.
    pub fn schema(&self) -> &TransitionSchema {
        &self.schema
    }

    /// Returns the number of environments.
    pub fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// Returns the maximum number of stored transitions.
    pub fn capacity(&self) -> usize {
        self.steps * self.num_envs
    }

    /// Returns the number of stored transitions.
    ///
    /// The number includes transitions whose next observation the next push will provide.
    pub fn len(&self) -> usize {
        self.pushed.min(self.steps) * self.num_envs
    }

    /// Returns true if no transitions are stored.
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// Returns the indices of the transitions that can be sampled.
    pub fn indices(&self) -> Range<usize> {
        let first = self.pushed.saturating_sub(self.steps);
        let waiting = usize::from(self.is_waiting());
        first * self.num_envs..(self.pushed - waiting).max(first) * self.num_envs
    }

    /// Returns the index of the oldest stored transition.
    pub(crate) fn oldest(&self) -> usize {
        self.oldest_step() * self.num_envs
    }

    /// Returns the oldest stored time step.
    pub(crate) fn oldest_step(&self) -> usize {
        self.pushed.saturating_sub(self.steps)
    }

    /// Returns the index of the next transition to be pushed.
    pub(crate) fn next_index(&self) -> usize {
        self.pushed * self.num_envs
    }

    /// Returns the generation of the storage, which a push changes: the number of rows and the next
    /// index.
    pub(crate) fn generation(&self) -> (usize, usize) {
        (self.capacity_steps * self.num_envs, self.next_index())
    }

    /// Returns true if the next observations of the last time step are deferred
    /// ([`NextObs::Deferred`]).
    fn is_waiting(&self) -> bool {
        self.last_next_obs.first() == Some(&NextObs::Deferred)
    }

    /// Returns the rows whose next observations are deferred ([`NextObs::Deferred`]).
    pub(crate) fn waiting(&self) -> Range<usize> {
        if !self.is_waiting() {
            return 0..0;
        }
        let first = self.row_of((self.pushed - 1) * self.num_envs);
        first..first + self.num_envs
    }

    /// Returns the number of allocated bytes: the ring, the pools and the index of episodes.
    ///
    /// The size of the ring is constant, but the system provides its memory only when rows are first written.
    pub fn memory(&self) -> usize {
        self.data.len() + self.overflow_obs.bytes() + self.frame_heads.bytes() + self.episodes.bytes()
    }

    /// Returns the number of bytes in unwritten rows, which the system still counts as free.
    pub(crate) fn promised(&self) -> usize {
        self.capacity_steps.saturating_sub(self.pushed) * self.num_envs * self.row_layout.stride
    }

    /// Returns the number of time steps of the ring.
    pub(crate) fn capacity_steps(&self) -> usize {
        self.capacity_steps
    }

    /// Returns the row of the transition with this index.
    pub(crate) fn row_of(&self, index: usize) -> usize {
        index % (self.capacity_steps * self.num_envs)
    }

    /// Returns the index of the last transition that was stored in this row.
    pub(crate) fn index_of(&self, row: usize) -> usize {
        let rows = self.capacity_steps * self.num_envs;
        let (lap, next_row) = (self.next_index() / rows, self.next_index() % rows);
        // Rows from `next_row` on were last written in the previous lap.
        lap * rows + row - if row < next_row { 0 } else { rows.min(lap * rows) }
    }

    /// Returns the rows of consecutive transitions: a range, and the rest after the end of the
    /// ring.
    pub(crate) fn rows_of(&self, indices: Range<usize>) -> [Range<usize>; 2] {
        let (rows, len) = (self.capacity_steps * self.num_envs, indices.len());
        let first = self.row_of(indices.start);
        let first_len = len.min(rows - first);
        [first..first + first_len, 0..len - first_len]
    }

    /// Returns the row of the same environment `steps` time steps later.
    pub(crate) fn row_after(&self, row: usize, steps: usize) -> usize {
        let (rows, row) = (self.capacity_steps * self.num_envs, row + steps * self.num_envs);
        if row >= rows { row - rows } else { row }
    }

    /// Returns the row of the same environment one time step earlier.
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

    /// Returns the pool slot that a row stores at byte `offset`.
    pub(crate) fn slot(&self, row: usize, offset: usize) -> u32 {
        u32::from_ne_bytes(self.four(row, offset))
    }

    fn four(&self, row: usize, offset: usize) -> [u8; 4] {
        let from = row * self.row_layout.stride + offset;
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.data[from..from + 4]);
        bytes
    }

    /// Returns `len` bytes of a row, starting at byte `from`.
    pub(crate) fn bytes(&self, row: usize, from: usize, len: usize) -> &[u8] {
        &self.data[row * self.row_layout.stride + from..][..len]
    }

    pub(crate) fn bytes_mut(&mut self, row: usize, from: usize, len: usize) -> &mut [u8] {
        &mut self.data[row * self.row_layout.stride + from..][..len]
    }

    /// Returns the part of the observation that a row stores: everything, or the newest of stacked
    /// frames.
    pub(crate) fn newest(&self, row: usize) -> &[u8] {
        self.bytes(row, 0, self.row_layout.frame)
    }

    /// Returns the frame that is `older` steps older than the newest frame of a row's observation.
    pub(crate) fn frame(&self, mut row: usize, older: usize) -> &[u8] {
        let size = self.row_layout.frame;
        for back in 0..older {
            if self.flags(row) & HEAD != 0 {
                let head = self.frame_heads.row(self.slot(row, self.row_layout.head));
                // A head lists its frames from old to new. Its last frame precedes the frame of the
                // row.
                let index = self.schema.frame_stack - 1 - (older - back);
                return &head[index * size..][..size];
            }
            row = self.row_before(row);
        }
        self.newest(row)
    }
}

/// Location of an environment's last next observation, until the environment's next row is pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextObs {
    /// Nowhere in reach of the next row: no row exists, the episode has ended, or the row is
    /// independent.
    None,
    /// In the ring, at the start of the environment's next row.
    InNextRow,
    /// In the overflow pool, because its older frames differ from the newest frames of the last
    /// row.
    Overflow,
    /// Not known: the push omitted the next observation, which the environment's next row will
    /// hold.
    Deferred,
}

/// Pool of rows of one size, outside the ring. A slot is the number of a row in the pool.
///
/// The memory grows with the maximum number of rows in use.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowPool {
    bytes_each: usize,
    /// Number of rows, in use or free.
    rows: usize,
    data: Vec<u8>,
    free: Vec<u32>,
}

impl RowPool {
    pub(crate) fn new(bytes_each: usize) -> Self {
        Self { bytes_each, ..Self::default() }
    }

    /// Ensures that `count` rows are free. If the pool grows, it grows by at least an eighth.
    ///
    /// `promised` is the size in bytes of memory that the ring has allocated but not yet written.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if the memory does not suffice. The pool is unchanged after an
    /// error.
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
            let request = || format!("{more} observations beside a ring with {promised} unwritten bytes, which need");
            alloc::check_available_for("capacity", 1, bytes.saturating_add(promised), request)?;
        }
        self.data.try_reserve_exact(bytes).map_err(|_| alloc::out_of_memory("capacity", more, self.bytes_each))?;
        self.free.try_reserve(total).map_err(|_| alloc::out_of_memory("capacity", total, 4))?;
        self.data.resize(self.data.len() + bytes, 0);
        self.rows = total;
        self.free.extend((there as u32..total as u32).rev());
        Ok(())
    }

    /// Ensures that the pool has at least `count` rows, in use or free.
    ///
    /// # Errors
    /// The errors of [`RowPool::reserve`].
    pub(crate) fn reserve_all(&mut self, count: usize, promised: usize) -> Result<()> {
        self.reserve(count.saturating_sub(self.in_use()), promised)?;
        // All rows may become free, and the list of free rows in a cloned pool lacks capacity for
        // that.
        let more = self.rows - self.free.len();
        self.free.try_reserve(more).map_err(|_| alloc::out_of_memory("capacity", self.rows, 4))
    }

    /// Releases all rows. Later acquisitions return them in ascending order.
    pub(crate) fn release_all(&mut self) {
        let rows = self.rows as u32;
        self.free.clear();
        self.free.extend((0..rows).rev());
    }

    /// Takes a free row, which [`RowPool::reserve`] has ensured, and returns its slot.
    pub(crate) fn acquire(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            // Without a reservation the pool grows, because returning a row twice would corrupt
            // data.
            let there = self.rows;
            self.data.resize(self.data.len() + self.bytes_each, 0);
            self.rows += 1;
            there as u32
        })
    }

    /// Returns the row of the `number`-th acquisition since all rows were released.
    pub(crate) fn nth_row_mut(&mut self, number: usize) -> &mut [u8] {
        &mut self.data[number * self.bytes_each..][..self.bytes_each]
    }

    /// Returns the number of rows in use.
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

    /// Returns the number of allocated bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len() + 4 * self.free.capacity()
    }
}

/// Index of complete episodes: their first time steps, per environment.
///
/// An episode is complete if it has ended and all its steps were pushed. Pushes update the index,
/// so that sampling does not search the ring.
#[derive(Clone, Debug)]
pub(crate) struct Episodes {
    /// First time step of each environment's current episode.
    ///
    /// The value is 0 if that step is unknown. Step 0 is no longer stored then, so that the episode
    /// does not count as complete.
    current_starts: Vec<usize>,
    /// First time steps of complete episodes, ascending. Pushes remove episodes that are no longer
    /// stored.
    complete_starts: Vec<VecDeque<usize>>,
}

impl Episodes {
    pub(super) fn new(num_envs: usize) -> Result<Self> {
        let current_starts = alloc::zeroed("num_envs", num_envs)?;
        let mut complete_starts = alloc::with_capacity("num_envs", num_envs)?;
        complete_starts.resize_with(num_envs, VecDeque::new);
        Ok(Self { current_starts, complete_starts })
    }

    /// Reserves memory for `more` episodes of an environment.
    ///
    /// # Errors
    /// [`Error::Memory`] if the allocation fails. The index is unchanged after an error.
    pub(super) fn reserve(&mut self, env: usize, more: usize) -> Result<()> {
        let starts = &mut self.complete_starts[env];
        starts.try_reserve(more).map_err(|_| alloc::out_of_memory("capacity", starts.len() + more, size_of::<usize>()))
    }

    /// Records a time step of an environment.
    ///
    /// The flags mark the first and the last step of an episode. `oldest` is the oldest stored time
    /// step.
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

    /// Removes all episodes.
    pub(super) fn clear(&mut self) {
        self.current_starts.fill(0);
        self.complete_starts.iter_mut().for_each(VecDeque::clear);
    }

    /// Returns the number of allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        self.complete_starts.iter().map(|starts| starts.capacity() * size_of::<usize>()).sum()
    }

    /// Draws complete episodes uniformly, and writes the index of the first transition of each to
    /// `drawn`.
    ///
    /// Only episodes that start in the range `valid` are drawn. `counts` is memory for the numbers
    /// of episodes.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no complete episode. [`Error::Memory`] if an allocation fails.
    /// The generator is unchanged after an error.
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
            let hint = "push more transitions, or set whole_episodes to false";
            return Err(Error::config("whole_episodes", "an episode that is stored from start to end", "none", hint));
        }
        draw(&(0..total), rng, drawn);
        for drawn in drawn {
            let env = counts.partition_point(|count| *count <= *drawn);
            // The count starts at the newest episode, because the oldest ones may no longer be
            // stored.
            let starts = &self.complete_starts[env];
            *drawn = starts[starts.len() - (counts[env] - *drawn)] * n + env;
        }
        Ok(())
    }
}

/// Draws indices of transitions uniformly.
pub(super) fn draw(valid: &Range<usize>, rng: &mut Pcg64, indices: &mut [usize]) {
    let count = valid.len() as u128;
    for index in indices {
        // The high 64 bits of the product are below `count`. The bias, count / 2^64, is negligible.
        *index = valid.start + ((u128::from(rng.next_u64()) * count) >> 64) as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, alloc::available_memory};

    #[test]
    fn row_pool_respects_promised_memory() {
        let Some(free) = available_memory() else { return };
        let mut slots = RowPool::new(1 << 20);
        let rejected = crate::testing::assert_rejects(slots.reserve(2, free as usize), Error::Memory, "capacity");
        assert!(rejected.got.contains("beside a ring"), "{rejected}");
        assert_eq!((slots.bytes(), slots.in_use()), (0, 0));
        slots.reserve(2, 0).unwrap();
        assert!(slots.bytes() >= 2 << 20);
    }
}
