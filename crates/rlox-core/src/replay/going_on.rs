//! Steps of environments that go on where their last ones ended, which is what most steps do: written column by column.

use super::steps::Steps;
use super::storage::{CONTINUES, ReplayStorage, STORED, Tail};

impl ReplayStorage {
    /// Whether rows are nothing but an observation of one part, whole, an action and a reward.
    pub(super) fn is_plain(&self) -> bool {
        self.layout.obs.len() == 1 && self.layout.frame_stack == 1 && self.layout.extra.is_empty()
    }

    /// Finds out which observations lie ahead of their environments' last rows, and of which episodes go on besides;
    /// whether all observations do.
    pub(super) fn find_plain_links(&mut self, steps: &Steps<'_>) -> bool {
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
    pub(super) fn write_going_on(&mut self, steps: &Steps<'_>, first: usize) {
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
