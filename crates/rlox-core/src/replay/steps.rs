//! Rows that are pushed.

use super::checks::{check_finite, check_finite_as, check_parts, next_name};
use super::layout::Layout;
use crate::{FieldData, Result, Watch, check_len};

/// What happened in each of B environments, or in B steps: rows of what the [`super::Layout`] says.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    /// Each part of the observations, `[B, ...]`.
    pub obs: &'a [FieldData<'a>],
    /// The actions, `[B, ...]`.
    pub actions: FieldData<'a>,
    /// The rewards, `[B]`.
    pub rewards: &'a [f32],
    /// The task itself ended, `[B]`.
    pub terminated: &'a [bool],
    /// The episode was cut, `[B]`.
    pub truncated: &'a [bool],
    /// Each part of the next observations, `[B, ...]`: of an episode that ended its last, never one after a reset. `None`
    /// is a promise that each environment's next observation is the one that its next row will have. Nothing tells rows of
    /// several environments apart that are pushed in turns to a storage of one: pass it there.
    pub next_obs: Option<&'a [FieldData<'a>]>,
    /// Each further part, `[B, ...]`.
    pub extra: &'a [FieldData<'a>],
}

impl Steps<'_> {
    pub(super) fn rows(&self) -> usize {
        self.rewards.len()
    }

    /// Checks all but whether observations are finite, which may be known, and whether next ones are needed.
    pub(super) fn check(&self, layout: &Layout, watch: &mut Watch) -> Result<()> {
        let rows = self.rows();
        check_len("terminated", self.terminated.len(), rows)?;
        check_len("truncated", self.truncated.len(), rows)?;
        check_parts("obs", &layout.obs, self.obs, rows)?;
        check_parts("actions", std::slice::from_ref(&layout.action), &[self.actions], rows)?;
        check_parts("extra", &layout.extra, self.extra, rows)?;
        check_finite("rewards", FieldData::F32(self.rewards), 1, watch)?;
        check_finite("actions", self.actions, layout.action.width(), watch)?;
        for (part, data) in layout.extra.iter().zip(self.extra) {
            check_finite(&part.name, *data, part.width(), watch)?;
        }
        let Some(next_obs) = self.next_obs else { return Ok(()) };
        check_parts("next_obs", &layout.obs, next_obs, rows)?;
        for (part, data) in layout.obs.iter().zip(next_obs) {
            check_finite_as(|| next_name(part), *data, part.width(), watch)?;
        }
        Ok(())
    }

    /// Checks that observations are finite.
    pub(super) fn check_obs(&self, layout: &Layout, watch: &mut Watch) -> Result<()> {
        let mut parts = layout.obs.iter().zip(self.obs);
        parts.try_for_each(|(part, data)| check_finite(&part.name, *data, part.width(), watch))
    }

    pub(super) fn is_done(&self, row: usize) -> bool {
        self.terminated[row] || self.truncated[row]
    }
}

/// Whether the row after one holds its next observation.
pub(super) fn holds(steps: &Steps<'_>, row: usize) -> bool {
    let rows = steps.rows();
    let pairs = steps.next_obs.map(|next_obs| next_obs.iter().zip(steps.obs));
    pairs.is_none_or(|mut pairs| pairs.all(|(next, obs)| of_row(*next, row, rows) == of_row(*obs, row + 1, rows)))
}

/// The bytes of a row of one part.
pub(super) fn of_row(data: FieldData<'_>, row: usize, rows: usize) -> &[u8] {
    let bytes = data.bytes();
    let each = bytes.len() / rows;
    &bytes[row * each..][..each]
}

/// The bytes of a row's observation: those of its parts one after another.
pub(super) fn observation<'a>(
    parts: &[FieldData<'a>],
    row: usize,
    rows: usize,
    len: usize,
    joined: &'a mut [u8],
) -> &'a [u8] {
    if let [part] = parts {
        // Without a division, which takes longer than copying a few numbers.
        return &part.bytes()[row * len..][..len];
    }
    let joined = &mut joined[..len];
    let mut at = 0;
    for part in parts {
        let part = of_row(*part, row, rows);
        joined[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    joined
}
