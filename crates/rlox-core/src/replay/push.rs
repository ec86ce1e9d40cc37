//! Pushes of transitions into the ring buffer of a [`ReplayStorage`].
//!
//! Rows are written one by one, or column by column for environments whose episodes continue. The
//! overflow pool holds next observations that no row of the ring holds. The pool of frame heads
//! holds older frames of stacked observations that no row of the ring holds.

use super::schema::{TransitionBatch, next_obs_matches, observation, row_bytes};
use super::storage::{CONTINUES, HEAD, NextObs, ReplayStorage, STORED, TERMINATED, TRUNCATED};
use crate::{Error, Result, alloc, error::check_len, interrupt::InterruptCheck};

/// Number of rows between two interrupt checks.
const ROWS: usize = 1 << 6;

/// Relation between the rows of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// One row per environment.
    Environments,
    /// Independent rows of one environment.
    Independent,
    /// Consecutive steps of one environment.
    Sequential,
}

impl ReplayStorage {
    /// Appends a time step: one row per environment, in the order of the environments.
    ///
    /// A storage of one environment accepts any number of rows. Several rows are treated as
    /// independent transitions. The push compares observations to detect that a row continues the
    /// episode of the environment's last row. If the last row was pushed without a next
    /// observation, the storage cannot compare. It assumes that the new row is the next step of the
    /// last row.
    ///
    /// # Errors
    /// - [`Error::Shape`] if a number of rows or elements is wrong;
    /// - [`Error::Space`] if a dtype is wrong;
    /// - [`Error::NotFinite`] if a number is not finite;
    /// - [`Error::Config`] if a required next observation is missing, or if independent rows follow
    ///   a row without a next observation;
    /// - [`Error::Memory`] if the memory outside the ring does not suffice;
    /// - [`Error::Interrupted`] if the interrupt check of the process stops the call.
    ///
    /// The storage is unchanged after an error. Only an interrupted push of many rows may have
    /// stored the first rows, which [`ReplayStorage::indices`] then includes.
    pub fn push(&mut self, batch: &TransitionBatch<'_>) -> Result<()> {
        let order = if self.num_envs == 1 && batch.rows() != 1 { Order::Independent } else { Order::Environments };
        self.push_as(batch, order)
    }

    /// Appends consecutive time steps of the only environment, in the order of the steps.
    ///
    /// # Errors
    /// The errors of [`ReplayStorage::push`]. [`Error::Config`] if the storage has several
    /// environments.
    pub fn push_in_order(&mut self, batch: &TransitionBatch<'_>) -> Result<()> {
        if self.num_envs != 1 {
            let hint = "push one row per environment at a time";
            return Err(Error::config("num_envs", "1", self.num_envs.to_string(), hint));
        }
        self.push_as(batch, Order::Sequential)
    }

    fn push_as(&mut self, batch: &TransitionBatch<'_>, order: Order) -> Result<()> {
        let mut interrupt = InterruptCheck::default();
        self.check(batch, order, &mut interrupt)?;
        let mut scratch_row = self.take_scratch_row()?;
        let links = self.find_links(batch, order, &mut scratch_row, &mut interrupt);
        let reservation = links.and_then(|()| self.reserve(batch, order, &mut interrupt));
        let written = reservation.and_then(|()| self.write_all(batch, order, &mut scratch_row, &mut interrupt));
        self.scratch_row = scratch_row;
        written
    }

    /// Returns the memory in which the fields of an observation are concatenated.
    ///
    /// The memory is allocated by the first push, and again after a push that panicked.
    fn take_scratch_row(&mut self) -> Result<Vec<u8>> {
        let len = if self.schema.obs.len() > 1 { 2 * self.row_layout.obs } else { 0 };
        if self.scratch_row.len() == len {
            return Ok(std::mem::take(&mut self.scratch_row));
        }
        alloc::zeroed("obs_shape", len)
    }

    /// Writes checked rows: one per environment, or consecutive rows until an interruption.
    fn write_all(
        &mut self,
        batch: &TransitionBatch<'_>,
        order: Order,
        scratch_row: &mut [u8],
        interrupt: &mut InterruptCheck,
    ) -> Result<()> {
        let mut next = self.row_of(self.next_index());
        if order == Order::Environments {
            self.write_continuing(batch, next);
            for env in 0..batch.rows() {
                if !self.continues[env] {
                    self.write(batch, env, (next + env, env), order, scratch_row);
                }
            }
            self.pushed += 1;
            return Ok(());
        }
        for index in 0..batch.rows() {
            if index % ROWS == ROWS - 1 {
                interrupt.check()?;
            }
            self.write(batch, index, (next, 0), order, scratch_row);
            self.pushed += 1;
            next = self.row_after(next, 1);
        }
        Ok(())
    }

    fn check(&self, batch: &TransitionBatch<'_>, order: Order, interrupt: &mut InterruptCheck) -> Result<()> {
        if order == Order::Environments {
            check_len("rewards", batch.rows(), self.num_envs)?;
        }
        batch.check(&self.schema, interrupt)?;
        if batch.next_obs.is_none() {
            check_deferred(batch, order)?;
        }
        if order == Order::Independent && batch.rows() > 0 && self.last_next_obs[0] == NextObs::Deferred {
            // The first row would be taken for the next step of the last stored row.
            let expected = "the next step first, because the last row was pushed without next_obs";
            let got = format!("{} independent rows", batch.rows());
            let hint = "push that step alone, push these rows in order if they continue it, or always pass next_obs";
            return Err(Error::config("obs", expected, got, hint));
        }
        Ok(())
    }

    /// Marks the environments whose observation equals the stored next observation.
    ///
    /// Stored observations are known to be finite. If any observation differs, all observations are
    /// checked.
    fn find_links(
        &mut self,
        batch: &TransitionBatch<'_>,
        order: Order,
        scratch_row: &mut [u8],
        interrupt: &mut InterruptCheck,
    ) -> Result<()> {
        let mut known = order == Order::Environments;
        if known && self.is_plain() {
            known = self.find_plain_links(batch);
        } else if known {
            let first = self.row_of(self.next_index());
            for env in 0..self.num_envs {
                let obs = observation(batch.obs, env, batch.rows(), self.row_layout.obs, scratch_row);
                let is_contiguous = self.last_next_obs[env] == NextObs::InNextRow && self.follows(first + env, obs);
                self.is_contiguous[env] = is_contiguous;
                known &= is_contiguous;
            }
        }
        if known { Ok(()) } else { batch.check_obs(&self.schema, interrupt) }
    }

    /// Returns true if `obs` equals the stored next observation that has its newest frame in `row`.
    fn follows(&self, row: usize, obs: &[u8]) -> bool {
        let (older, newest) = obs.split_at(obs.len() - self.row_layout.frame);
        newest == self.newest(row) && self.shifts(self.row_before(row), older)
    }

    /// Returns true if `older` equals the observation of a row without its oldest frame.
    fn shifts(&self, row: usize, older: &[u8]) -> bool {
        if older.is_empty() {
            return true;
        }
        let frames = older.chunks_exact(self.row_layout.frame);
        let count = frames.len();
        frames.enumerate().all(|(i, frame)| frame == self.frame(row, count - 1 - i))
    }

    /// Reserves the memory in the pools that the rows may need, at most the memory for a full ring.
    fn reserve(&mut self, batch: &TransitionBatch<'_>, order: Order, interrupt: &mut InterruptCheck) -> Result<()> {
        let (num_overflow, num_heads) = match order {
            Order::Sequential => self.max_overflow(batch, interrupt)?,
            Order::Independent => (2 * batch.rows(), batch.rows()),
            Order::Environments => (2 * self.continues.iter().filter(|goes_on| !**goes_on).count(), batch.rows()),
        };
        let (most, promised) = (self.capacity_steps() * self.num_envs, self.promised());
        self.reserve_episodes(batch, order)?;
        self.overflow_obs.reserve(num_overflow.min((most + 1).saturating_sub(self.overflow_obs.in_use())), promised)?;
        if self.schema.frame_stack == 1 {
            return Ok(());
        }
        self.frame_heads.reserve(num_heads.min((most + 1).saturating_sub(self.frame_heads.in_use())), promised)
    }

    /// Returns the maximum numbers of next observations and of older frames that go to the pools.
    fn max_overflow(&self, batch: &TransitionBatch<'_>, interrupt: &mut InterruptCheck) -> Result<(usize, usize)> {
        let (mut num_overflow, mut num_heads) = (0_usize, 0_usize);
        for index in 0..batch.rows() {
            if index % ROWS == ROWS - 1 {
                interrupt.check()?;
            }
            let shifted = index > 0 && self.is_shifted(batch, index);
            let is_stored =
                if batch.next_obs.is_some() { index > 0 && next_obs_matches(batch, index - 1) } else { shifted };
            num_overflow += usize::from(!self.continues(batch, index)) + usize::from(!is_stored);
            num_heads += usize::from(!shifted);
        }
        Ok((num_overflow, num_heads))
    }

    /// Reserves memory in the index of episodes for the episodes that end in the batch.
    fn reserve_episodes(&mut self, batch: &TransitionBatch<'_>, order: Order) -> Result<()> {
        let mut ended = (0..batch.rows()).filter(|row| batch.is_done(*row));
        if order == Order::Environments {
            return ended.try_for_each(|env| self.episodes.reserve(env, 1));
        }
        let ended = ended.count();
        self.episodes.reserve(0, ended.min(self.capacity_steps()))
    }

    /// Returns true if the older frames of a row are the newest frames of the previous row.
    fn is_shifted(&self, batch: &TransitionBatch<'_>, row: usize) -> bool {
        let older = self.row_layout.obs - self.row_layout.frame;
        older == 0 || {
            let [before, obs] = [row - 1, row].map(|row| row_bytes(batch.obs[0], row, batch.rows()));
            obs[..older] == before[self.row_layout.frame..]
        }
    }

    /// Returns true if the next row of the ring can hold the next observation of `row`.
    fn continues(&self, batch: &TransitionBatch<'_>, row: usize) -> bool {
        let Some(next_obs) = batch.next_obs else { return true };
        let older = self.row_layout.obs - self.row_layout.frame;
        let shifted = older == 0 || {
            let [obs, next] = [batch.obs, next_obs].map(|parts| row_bytes(parts[0], row, batch.rows()));
            next[..older] == obs[self.row_layout.frame..]
        };
        shifted && !batch.is_done(row)
    }

    /// Writes row `index` of a checked batch to `row` of the ring.
    fn write(
        &mut self,
        batch: &TransitionBatch<'_>,
        index: usize,
        (row, env): (usize, usize),
        order: Order,
        scratch_row: &mut [u8],
    ) {
        let rows = batch.rows();
        self.evict(row);
        let (obs_memory, next_memory) = scratch_row.split_at_mut(scratch_row.len() / 2);
        let obs = observation(batch.obs, index, rows, self.row_layout.obs, obs_memory);
        let mut flags = self.begin_row(row, env, obs, order);
        flags |= (u8::from(batch.terminated[index]) * TERMINATED) | (u8::from(batch.truncated[index]) * TRUNCATED);
        self.write_fields(row, batch, index);
        let next = batch.next_obs.map(|next| observation(next, index, rows, self.row_layout.obs, next_memory));
        self.end_row(row, env, (obs, next), flags, order == Order::Independent);
        let first = self.pushed == 0 || self.flags(self.row_before(row)) & CONTINUES == 0;
        self.episodes.record_step(env, self.pushed, self.oldest_step(), (first, batch.is_done(index)));
    }

    /// Releases the pool slots of the transition that `row` holds, before the row is overwritten.
    fn evict(&mut self, row: usize) {
        if self.pushed < self.capacity_steps() {
            return;
        }
        let flags = self.flags(row);
        if flags & STORED != 0 {
            self.overflow_obs.release(self.slot(row, self.row_layout.stored));
        }
        if flags & HEAD != 0 {
            self.frame_heads.release(self.slot(row, self.row_layout.head));
        }
    }

    /// Writes the observation of a row. Returns `HEAD` if the older frames are in the pool, else 0.
    fn begin_row(&mut self, row: usize, env: usize, obs: &[u8], order: Order) -> u8 {
        let before = self.row_before(row);
        let (older, newest) = obs.split_at(obs.len() - self.row_layout.frame);
        let is_contiguous = match order {
            Order::Environments => self.is_contiguous[env],
            Order::Sequential => self.last_next_obs[env] == NextObs::InNextRow && self.follows(row, obs),
            Order::Independent => false,
        };
        let continues = match self.last_next_obs[env] {
            NextObs::None => false,
            NextObs::InNextRow if is_contiguous => true,
            NextObs::InNextRow => {
                // The new observation overwrites the stored next observation, which moves to the
                // pool first.
                let slot = self.overflow_obs.acquire();
                self.move_next_to_overflow(before, slot);
                false
            }
            NextObs::Overflow => {
                order != Order::Independent && self.overflow_obs.row(self.slot(before, self.row_layout.stored)) == obs
            }
            NextObs::Deferred => {
                if !self.shifts(before, older) {
                    let slot = self.overflow_obs.acquire();
                    self.overflow_obs.row_mut(slot).copy_from_slice(obs);
                    self.set_overflow_slot(before, slot);
                }
                true
            }
        };
        if continues {
            *self.flags_mut(before) |= CONTINUES;
        }
        if !is_contiguous {
            self.bytes_mut(row, 0, newest.len()).copy_from_slice(newest);
        }
        if older.is_empty() || is_contiguous || (self.pushed > 0 && self.shifts(before, older)) {
            return 0;
        }
        let head = self.frame_heads.acquire();
        self.frame_heads.row_mut(head).copy_from_slice(older);
        let offset = self.row_layout.head;
        self.bytes_mut(row, offset, 4).copy_from_slice(&head.to_ne_bytes());
        HEAD
    }

    /// Copies the next observation of `row`, with its newest frame in the next row, to the overflow
    /// pool.
    fn move_next_to_overflow(&mut self, row: usize, slot: u32) {
        let (frames, size) = (self.schema.frame_stack, self.row_layout.frame);
        let mut overflow_obs = std::mem::take(&mut self.overflow_obs);
        let to = overflow_obs.row_mut(slot);
        for i in 0..frames - 1 {
            to[i * size..][..size].copy_from_slice(self.frame(row, frames - 2 - i));
        }
        to[(frames - 1) * size..].copy_from_slice(self.newest(self.row_after(row, 1)));
        self.overflow_obs = overflow_obs;
        self.set_overflow_slot(row, slot);
    }

    fn set_overflow_slot(&mut self, row: usize, slot: u32) {
        let offset = self.row_layout.stored;
        self.bytes_mut(row, offset, 4).copy_from_slice(&slot.to_ne_bytes());
        *self.flags_mut(row) |= STORED;
    }

    /// Writes the action, the extra fields and the reward of a row.
    fn write_fields(&mut self, row: usize, batch: &TransitionBatch<'_>, index: usize) {
        let (mut from, end, rows) = (self.row_layout.action, self.row_layout.reward, batch.rows());
        for data in std::iter::once(&batch.actions).chain(batch.extra) {
            let remaining = end - from;
            // Without extra fields, the action takes all remaining bytes.
            let field_bytes = if batch.extra.is_empty() {
                &data.bytes()[index * remaining..][..remaining]
            } else {
                row_bytes(*data, index, rows)
            };
            self.bytes_mut(row, from, field_bytes.len()).copy_from_slice(field_bytes);
            from += field_bytes.len();
        }
        self.bytes_mut(row, end, 4).copy_from_slice(&batch.rewards[index].to_ne_bytes());
    }

    /// Writes the flags of a row, and its next observation to the next row or to the overflow pool.
    fn end_row(&mut self, row: usize, env: usize, (obs, next): (&[u8], Option<&[u8]>), flags: u8, independent: bool) {
        *self.flags_mut(row) = flags;
        let Some(next) = next else {
            self.last_next_obs[env] = NextObs::Deferred;
            return;
        };
        let (size, done) = (self.row_layout.frame, flags & (TERMINATED | TRUNCATED) != 0);
        let (older, newest) = next.split_at(next.len() - size);
        let shifted = older.is_empty() || older == &obs[obs.len() - older.len()..];
        if done || independent || !shifted {
            let slot = self.overflow_obs.acquire();
            self.overflow_obs.row_mut(slot).copy_from_slice(next);
            self.set_overflow_slot(row, slot);
            self.last_next_obs[env] = if done || independent { NextObs::None } else { NextObs::Overflow };
            return;
        }
        let next_row = self.row_after(row, 1);
        self.bytes_mut(next_row, 0, size).copy_from_slice(newest);
        self.last_next_obs[env] = NextObs::InNextRow;
    }
}

// Column-wise writes of environments whose episodes continue, the most frequent case.

impl ReplayStorage {
    /// Returns true if rows have one unstacked observation field, an action and a reward.
    fn is_plain(&self) -> bool {
        self.schema.obs.len() == 1 && self.schema.frame_stack == 1 && self.schema.extra.is_empty()
    }

    /// Marks environments whose observation equals the stored next observation, and continuing
    /// episodes.
    ///
    /// Returns true if all observations equal the stored next observations.
    fn find_plain_links(&mut self, batch: &TransitionBatch<'_>) -> bool {
        let Self { data, is_contiguous, continues, last_next_obs, row_layout, num_envs, .. } = self;
        let bytes = row_layout.stride * *num_envs;
        let first = self.pushed % self.capacity_steps * bytes;
        let next_rows = data[first..first + bytes].chunks_exact(row_layout.stride);
        let obs_rows = batch.obs[0].bytes().chunks_exact(row_layout.obs);
        let mut all = true;
        for ((is_contiguous, location), (next_row, obs)) in
            is_contiguous.iter_mut().zip(last_next_obs).zip(next_rows.zip(obs_rows))
        {
            *is_contiguous = *location == NextObs::InNextRow && is_same(&next_row[..row_layout.obs], obs);
            all &= *is_contiguous;
        }
        let known = batch.next_obs.is_some();
        let flags = batch.terminated.iter().zip(batch.truncated);
        for ((continues, is_contiguous), (terminated, truncated)) in continues.iter_mut().zip(is_contiguous).zip(flags)
        {
            *continues = known && *is_contiguous && !terminated && !truncated;
        }
        all
    }

    /// Writes the rows of environments that [`ReplayStorage::find_plain_links`] marked as continuing.
    fn write_continuing(&mut self, batch: &TransitionBatch<'_>, first: usize) {
        let Some([next_obs]) = batch.next_obs else { return };
        let (before, after) = (self.row_before(first), self.row_after(first, 1));
        let Self { data, continues, row_layout, num_envs, overflow_obs, .. } = self;
        let (stride, bytes) = (row_layout.stride, row_layout.stride * *num_envs);
        // Only a full ring overwrites rows that may have a pool slot.
        let evicted = if self.pushed >= self.capacity_steps { STORED } else { 0 };
        let rows = data[first * stride..][..bytes].chunks_exact_mut(stride);
        let actions = batch.actions.bytes().chunks_exact(row_layout.reward - row_layout.action);
        let action_rewards = actions.zip(batch.rewards);
        for ((row, (action, reward)), _) in rows.zip(action_rewards).zip(&*continues).filter(|(_, goes_on)| **goes_on) {
            if row[row_layout.flags] & evicted != 0 {
                let mut slot = [0; 4];
                slot.copy_from_slice(&row[row_layout.stored..][..4]);
                overflow_obs.release(u32::from_ne_bytes(slot));
            }
            copy(&mut row[row_layout.action..row_layout.reward], action);
            copy(&mut row[row_layout.reward..][..4], &reward.to_ne_bytes());
            row[row_layout.flags] = 0;
        }
        let rows = data[before * stride..][..bytes].chunks_exact_mut(stride);
        for (row, _) in rows.zip(&*continues).filter(|(_, goes_on)| **goes_on) {
            row[row_layout.flags] |= CONTINUES;
        }
        let rows = data[after * stride..][..bytes].chunks_exact_mut(stride);
        let next_obs_rows = next_obs.bytes().chunks_exact(row_layout.obs);
        for ((row, next), _) in rows.zip(next_obs_rows).zip(&*continues).filter(|(_, goes_on)| **goes_on) {
            copy(&mut row[..row_layout.obs], next);
        }
    }
}

/// Checks that next observations may be omitted, because the next row of each environment holds
/// them.
fn check_deferred(batch: &TransitionBatch<'_>, order: Order) -> Result<()> {
    let hint = "pass next_obs; it may be omitted only if the next row of the same environment follows";
    if order == Order::Independent && batch.rows() > 0 {
        let got = format!("none for {} rows of one environment", batch.rows());
        return Err(Error::config("next_obs", "the observation after each row", got, hint));
    }
    match (0..batch.rows()).find(|row| batch.is_done(*row)) {
        None => Ok(()),
        Some(row) => {
            let expected = "the final observation of each episode that ends";
            Err(Error::config("next_obs", expected, "none", hint).at_row(row))
        }
    }
}

/// Returns true if the bytes are equal. 16 bytes are compared without a function call.
#[inline]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    match (<&[u8; 16]>::try_from(one), <&[u8; 16]>::try_from(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// Copies bytes. Frequent small sizes are copied without a function call.
#[inline]
fn copy(to: &mut [u8], from: &[u8]) {
    match from.len() {
        4 => to[..4].copy_from_slice(&from[..4]),
        8 => to[..8].copy_from_slice(&from[..8]),
        16 => to[..16].copy_from_slice(&from[..16]),
        _ => to.copy_from_slice(from),
    }
}
