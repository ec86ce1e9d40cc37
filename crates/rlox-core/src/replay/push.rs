//! Pushes of transitions into the ring: row by row, or column by column where environments go on after their last steps.

use super::schema::{Steps, holds, observation, of_row};
use super::storage::{CONTINUES, HEAD, ReplayStorage, STORED, TERMINATED, TRUNCATED, Tail};
use crate::{Error, Result, Watch, alloc, check_len};

/// Rows between two looks for an interruption.
const ROWS: usize = 1 << 6;

/// How rows follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// One for each environment.
    Environments,
    /// They do not.
    Apart,
    /// Each is the next step of the one before.
    Steps,
}

impl ReplayStorage {
    /// Adds a time step, one row for each environment in their order. To a storage of one environment any number of rows
    /// can be added at once; they are taken for transitions that do not follow each other then.
    ///
    /// Whether a row goes on where the environment's former one ended is seen by its observation. After a row without a
    /// next observation it is taken at its word: that it is of the same environment cannot be seen.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of rows or elements, [`Error::Space`] for other dtypes or numbers that are not
    /// finite, [`Error::Config`] for a next observation that is missing where nothing can hold it later, or for rows that
    /// do not follow each other where the last one is still without its own, [`Error::Memory`] if there is no room for
    /// what lies aside. Nothing has changed then. [`Error::Interrupted`] if it was told to stop in the middle of many rows:
    /// those before are stored then, which [`ReplayStorage::indices`] tells.
    pub fn push(&mut self, steps: &Steps<'_>) -> Result<()> {
        let order = if self.num_envs == 1 && steps.rows() != 1 { Order::Apart } else { Order::Environments };
        self.push_as(steps, order)
    }

    /// Adds time steps of the only environment that follow each other, as they were recorded.
    ///
    /// # Errors
    /// Those of [`ReplayStorage::push`], and [`Error::Config`] if there are several environments.
    pub fn push_in_order(&mut self, steps: &Steps<'_>) -> Result<()> {
        if self.num_envs != 1 {
            let fix = "push a row for each environment at a time";
            return Err(Error::config("num_envs", "1", self.num_envs.to_string(), fix));
        }
        self.push_as(steps, Order::Steps)
    }

    fn push_as(&mut self, steps: &Steps<'_>, order: Order) -> Result<()> {
        let mut watch = Watch::default();
        self.check(steps, order, &mut watch)?;
        let mut joined = self.take_joined()?;
        let linked = self.find_links(steps, order, &mut joined, &mut watch);
        let reserved = linked.and_then(|()| self.reserve(steps, order, &mut watch));
        let written = reserved.and_then(|()| self.write_all(steps, order, &mut joined, &mut watch));
        self.joined = joined;
        written
    }

    /// The memory for a row of observations of several parts. A push that panicked may have taken it along.
    fn take_joined(&mut self) -> Result<Vec<u8>> {
        let len = if self.layout.obs.len() > 1 { 2 * self.places.obs } else { 0 };
        if self.joined.len() == len {
            return Ok(std::mem::take(&mut self.joined));
        }
        alloc::zeroed("obs_shape", len)
    }

    /// Writes rows that were checked: of several environments all, or else whole ones until it is told to stop.
    fn write_all(&mut self, steps: &Steps<'_>, order: Order, joined: &mut [u8], watch: &mut Watch) -> Result<()> {
        let mut next = self.row_of(self.next_index());
        if order == Order::Environments {
            self.write_going_on(steps, next);
            for env in 0..steps.rows() {
                if !self.goes_on[env] {
                    self.write(steps, env, (next + env, env), order, joined);
                }
            }
            self.pushed += 1;
            return Ok(());
        }
        for at in 0..steps.rows() {
            if at % ROWS == ROWS - 1 {
                watch.check()?;
            }
            self.write(steps, at, (next, 0), order, joined);
            self.pushed += 1;
            next = self.later(next, 1);
        }
        Ok(())
    }

    fn check(&self, steps: &Steps<'_>, order: Order, watch: &mut Watch) -> Result<()> {
        if order == Order::Environments {
            check_len("rewards", steps.rows(), self.num_envs)?;
        }
        steps.check(&self.layout, watch)?;
        if steps.next_obs.is_none() {
            check_promise(steps, order)?;
        }
        if order == Order::Apart && steps.rows() > 0 && self.tails[0] == Tail::Promised {
            // The first of them would be taken for what the last row has promised.
            let expected = "the next step first, which holds the next observation that the last row was pushed without";
            let got = format!("{} rows that stand for themselves", steps.rows());
            let fix =
                "push that step alone, or these rows in order if it is the first of them, or pass next_obs before";
            return Err(Error::config("obs", expected, got, fix));
        }
        Ok(())
    }

    /// Finds out which observations are already there, ahead of the environment's last row, and checks the others.
    fn find_links(&mut self, steps: &Steps<'_>, order: Order, joined: &mut [u8], watch: &mut Watch) -> Result<()> {
        let mut known = order == Order::Environments;
        if known && self.is_plain() {
            known = self.find_plain_links(steps);
        } else if known {
            let first = self.row_of(self.next_index());
            for env in 0..self.num_envs {
                let obs = observation(steps.obs, env, steps.rows(), self.places.obs, joined);
                let linked = self.tails[env] == Tail::Ahead && self.follows(first + env, obs);
                self.linked[env] = linked;
                known &= linked;
            }
        }
        if known { Ok(()) } else { steps.check_obs(&self.layout, watch) }
    }

    /// Whether an observation is what lies in an environment's next row, ahead of its last one.
    fn follows(&self, row: usize, obs: &[u8]) -> bool {
        let (older, newest) = obs.split_at(obs.len() - self.places.frame);
        newest == self.newest(row) && self.shifts(self.before(row), older)
    }

    /// Whether frames are all but the oldest of a row's observation.
    fn shifts(&self, row: usize, older: &[u8]) -> bool {
        if older.is_empty() {
            return true;
        }
        let frames = older.chunks_exact(self.places.frame);
        let count = frames.len();
        frames.enumerate().all(|(i, frame)| frame == self.frame(row, count - 1 - i))
    }

    /// Makes room for what will lie aside: as much as the rows take, or as the ring can hold if that is less.
    fn reserve(&mut self, steps: &Steps<'_>, order: Order, watch: &mut Watch) -> Result<()> {
        let (aside, heads) = match order {
            Order::Steps => self.most_aside(steps, watch)?,
            Order::Apart => (2 * steps.rows(), steps.rows()),
            Order::Environments => (2 * self.goes_on.iter().filter(|goes_on| !**goes_on).count(), steps.rows()),
        };
        let (most, promised) = (self.room() * self.num_envs, self.promised());
        self.reserve_episodes(steps, order)?;
        self.aside.reserve(aside.min((most + 1).saturating_sub(self.aside.taken())), promised)?;
        if self.layout.frame_stack == 1 {
            return Ok(());
        }
        self.heads.reserve(heads.min((most + 1).saturating_sub(self.heads.taken())), promised)
    }

    /// How many next observations, and how many older frames, consecutive steps may have aside.
    fn most_aside(&self, steps: &Steps<'_>, watch: &mut Watch) -> Result<(usize, usize)> {
        let (mut aside, mut heads) = (0_usize, 0_usize);
        for at in 0..steps.rows() {
            if at % ROWS == ROWS - 1 {
                watch.check()?;
            }
            let shifted = at > 0 && self.is_shifted(steps, at);
            let held = if steps.next_obs.is_some() { at > 0 && holds(steps, at - 1) } else { shifted };
            aside += usize::from(!self.goes_on(steps, at)) + usize::from(!held);
            heads += usize::from(!shifted);
        }
        Ok((aside, heads))
    }

    /// Makes room for episodes that end.
    fn reserve_episodes(&mut self, steps: &Steps<'_>, order: Order) -> Result<()> {
        let mut ended = (0..steps.rows()).filter(|row| steps.is_done(*row));
        if order == Order::Environments {
            return ended.try_for_each(|env| self.episodes.reserve(env, 1));
        }
        let ended = ended.count();
        self.episodes.reserve(0, ended.min(self.room()))
    }

    /// Whether the older frames of a row are those of the row before.
    fn is_shifted(&self, steps: &Steps<'_>, row: usize) -> bool {
        let older = self.places.obs - self.places.frame;
        older == 0 || {
            let [before, obs] = [row - 1, row].map(|row| of_row(steps.obs[0], row, steps.rows()));
            obs[..older] == before[self.places.frame..]
        }
    }

    /// Whether the next observation of a row can lie ahead of it.
    fn goes_on(&self, steps: &Steps<'_>, row: usize) -> bool {
        let Some(next_obs) = steps.next_obs else { return true };
        let older = self.places.obs - self.places.frame;
        let shifted = older == 0 || {
            let [obs, next] = [steps.obs, next_obs].map(|parts| of_row(parts[0], row, steps.rows()));
            next[..older] == obs[self.places.frame..]
        };
        shifted && !steps.is_done(row)
    }

    /// Writes a row of an environment, which was checked.
    fn write(&mut self, steps: &Steps<'_>, at: usize, (row, env): (usize, usize), order: Order, joined: &mut [u8]) {
        let rows = steps.rows();
        self.evict(row);
        let (obs_memory, next_memory) = joined.split_at_mut(joined.len() / 2);
        let obs = observation(steps.obs, at, rows, self.places.obs, obs_memory);
        let mut flags = self.enter(row, env, obs, order);
        flags |= (u8::from(steps.terminated[at]) * TERMINATED) | (u8::from(steps.truncated[at]) * TRUNCATED);
        self.write_rest(row, steps, at);
        let next = steps.next_obs.map(|next| observation(next, at, rows, self.places.obs, next_memory));
        self.leave(row, env, (obs, next), flags, order == Order::Apart);
        let first = self.pushed == 0 || self.flags(self.before(row)) & CONTINUES == 0;
        self.episodes.stepped(env, self.pushed, self.oldest_step(), (first, steps.is_done(at)));
    }

    /// Gives back what the row that was there had aside.
    fn evict(&mut self, row: usize) {
        if self.pushed < self.room() {
            return;
        }
        let flags = self.flags(row);
        if flags & STORED != 0 {
            self.aside.give_back(self.slot(row, self.places.stored));
        }
        if flags & HEAD != 0 {
            self.heads.give_back(self.slot(row, self.places.head));
        }
    }

    /// Takes in the observation, and says whether its older frames are aside.
    fn enter(&mut self, row: usize, env: usize, obs: &[u8], order: Order) -> u8 {
        let before = self.before(row);
        let (older, newest) = obs.split_at(obs.len() - self.places.frame);
        let linked = match order {
            Order::Environments => self.linked[env],
            Order::Steps => self.tails[env] == Tail::Ahead && self.follows(row, obs),
            Order::Apart => false,
        };
        let continues = match self.tails[env] {
            Tail::None => false,
            Tail::Ahead if linked => true,
            Tail::Ahead => {
                // What lay ahead moves aside, as something else comes here.
                let slot = self.aside.take();
                self.put_next_aside(before, slot);
                false
            }
            Tail::Aside => order != Order::Apart && self.aside.row(self.slot(before, self.places.stored)) == obs,
            Tail::Promised => {
                if !self.shifts(before, older) {
                    let slot = self.aside.take();
                    self.aside.row_mut(slot).copy_from_slice(obs);
                    self.set_aside(before, slot);
                }
                true
            }
        };
        if continues {
            *self.flags_mut(before) |= CONTINUES;
        }
        if !linked {
            self.bytes_mut(row, 0, newest.len()).copy_from_slice(newest);
        }
        if older.is_empty() || linked || (self.pushed > 0 && self.shifts(before, older)) {
            return 0;
        }
        let head = self.heads.take();
        self.heads.row_mut(head).copy_from_slice(older);
        let at = self.places.head;
        self.bytes_mut(row, at, 4).copy_from_slice(&head.to_ne_bytes());
        HEAD
    }

    /// Copies what comes after a row, whose newest frame lies ahead, aside.
    fn put_next_aside(&mut self, row: usize, slot: u32) {
        let (frames, size) = (self.layout.frame_stack, self.places.frame);
        let mut aside = std::mem::take(&mut self.aside);
        let to = aside.row_mut(slot);
        for i in 0..frames - 1 {
            to[i * size..][..size].copy_from_slice(self.frame(row, frames - 2 - i));
        }
        to[(frames - 1) * size..].copy_from_slice(self.newest(self.later(row, 1)));
        self.aside = aside;
        self.set_aside(row, slot);
    }

    fn set_aside(&mut self, row: usize, slot: u32) {
        let at = self.places.stored;
        self.bytes_mut(row, at, 4).copy_from_slice(&slot.to_ne_bytes());
        *self.flags_mut(row) |= STORED;
    }

    /// Writes all but the observations and flags.
    fn write_rest(&mut self, row: usize, steps: &Steps<'_>, at: usize) {
        let (mut from, end, rows) = (self.places.action, self.places.reward, steps.rows());
        for data in std::iter::once(&steps.actions).chain(steps.extra) {
            let left = end - from;
            // The action alone takes all of it.
            let part =
                if steps.extra.is_empty() { &data.bytes()[at * left..][..left] } else { of_row(*data, at, rows) };
            self.bytes_mut(row, from, part.len()).copy_from_slice(part);
            from += part.len();
        }
        self.bytes_mut(row, end, 4).copy_from_slice(&steps.rewards[at].to_ne_bytes());
    }

    /// Writes the flags, and the next observation to where it belongs.
    fn leave(&mut self, row: usize, env: usize, (obs, next): (&[u8], Option<&[u8]>), flags: u8, apart: bool) {
        *self.flags_mut(row) = flags;
        let Some(next) = next else {
            self.tails[env] = Tail::Promised;
            return;
        };
        let (size, done) = (self.places.frame, flags & (TERMINATED | TRUNCATED) != 0);
        let (older, newest) = next.split_at(next.len() - size);
        let shifted = older.is_empty() || older == &obs[obs.len() - older.len()..];
        if done || apart || !shifted {
            let slot = self.aside.take();
            self.aside.row_mut(slot).copy_from_slice(next);
            self.set_aside(row, slot);
            self.tails[env] = if done || apart { Tail::None } else { Tail::Aside };
            return;
        }
        let ahead = self.later(row, 1);
        self.bytes_mut(ahead, 0, size).copy_from_slice(newest);
        self.tails[env] = Tail::Ahead;
    }
}

// Steps of environments that go on where their last ones ended, which is what most steps do: written column by column.

impl ReplayStorage {
    /// Whether rows are nothing but an observation of one part, whole, an action and a reward.
    fn is_plain(&self) -> bool {
        self.layout.obs.len() == 1 && self.layout.frame_stack == 1 && self.layout.extra.is_empty()
    }

    /// Finds out which observations lie ahead of their environments' last rows, and of which episodes go on besides;
    /// whether all observations do.
    fn find_plain_links(&mut self, steps: &Steps<'_>) -> bool {
        let Self { data, linked, goes_on, tails, places, num_envs, .. } = self;
        let bytes = places.stride * *num_envs;
        let first = self.pushed % self.room * bytes;
        let ahead = data[first..first + bytes].chunks_exact(places.stride);
        let given = steps.obs[0].bytes().chunks_exact(places.obs);
        let mut all = true;
        for ((linked, tail), (ahead, given)) in linked.iter_mut().zip(tails).zip(ahead.zip(given)) {
            *linked = *tail == Tail::Ahead && is_same(&ahead[..places.obs], given);
            all &= *linked;
        }
        let known = steps.next_obs.is_some();
        let flags = steps.terminated.iter().zip(steps.truncated);
        for ((goes_on, linked), (terminated, truncated)) in goes_on.iter_mut().zip(linked).zip(flags) {
            *goes_on = known && *linked && !terminated && !truncated;
        }
        all
    }

    /// Writes the rows of the environments that [`ReplayStorage::find_plain_links`] has found to go on.
    fn write_going_on(&mut self, steps: &Steps<'_>, first: usize) {
        let Some([next_obs]) = steps.next_obs else { return };
        let (before, after) = (self.before(first), self.later(first, 1));
        let Self { data, goes_on, places, num_envs, aside, .. } = self;
        let (stride, bytes) = (places.stride, places.stride * *num_envs);
        // Only of a full ring there is a row to give back from.
        let evicted = if self.pushed >= self.room { STORED } else { 0 };
        let rows = data[first * stride..][..bytes].chunks_exact_mut(stride);
        let actions = steps.actions.bytes().chunks_exact(places.reward - places.action);
        let given = actions.zip(steps.rewards);
        for ((row, (action, reward)), _) in rows.zip(given).zip(&*goes_on).filter(|(_, goes_on)| **goes_on) {
            if row[places.flags] & evicted != 0 {
                let mut slot = [0; 4];
                slot.copy_from_slice(&row[places.stored..][..4]);
                aside.give_back(u32::from_ne_bytes(slot));
            }
            copy(&mut row[places.action..places.reward], action);
            copy(&mut row[places.reward..][..4], &reward.to_ne_bytes());
            row[places.flags] = 0;
        }
        let rows = data[before * stride..][..bytes].chunks_exact_mut(stride);
        for (row, _) in rows.zip(&*goes_on).filter(|(_, goes_on)| **goes_on) {
            row[places.flags] |= CONTINUES;
        }
        let rows = data[after * stride..][..bytes].chunks_exact_mut(stride);
        let given = next_obs.bytes().chunks_exact(places.obs);
        for ((row, next), _) in rows.zip(given).zip(&*goes_on).filter(|(_, goes_on)| **goes_on) {
            copy(&mut row[..places.obs], next);
        }
    }
}

/// Whether the next row of each will hold its next observation.
fn check_promise(steps: &Steps<'_>, order: Order) -> Result<()> {
    let fix = "pass next_obs; it may only be left out where the same environment's next row follows";
    if order == Order::Apart && steps.rows() > 0 {
        let got = format!("none for {} rows of one environment", steps.rows());
        return Err(Error::config("next_obs", "the observation after each row", got, fix));
    }
    match (0..steps.rows()).find(|row| steps.is_done(*row)) {
        None => Ok(()),
        Some(row) => {
            let expected = "the episode's last observation where an episode ends";
            Err(Error::config("next_obs", expected, "none", fix).at_row(row))
        }
    }
}

/// Compares a few bytes without a call.
#[inline]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    match (<&[u8; 16]>::try_from(one), <&[u8; 16]>::try_from(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// Copies a few bytes without a call.
#[inline]
fn copy(to: &mut [u8], from: &[u8]) {
    match from.len() {
        4 => to[..4].copy_from_slice(&from[..4]),
        8 => to[..8].copy_from_slice(&from[..8]),
        16 => to[..16].copy_from_slice(&from[..16]),
        _ => to.copy_from_slice(from),
    }
}
