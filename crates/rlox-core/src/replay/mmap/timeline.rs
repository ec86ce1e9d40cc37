//! History of rollbacks, which distinguishes rows that have the same index in a file.
//!
//! A rollback drops rows, and new rows reuse their indices.

/// Branches of a file: each rollback starts a branch, and the number of a branch identifies its
/// rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Timeline {
    count: usize,
    /// First row and number of each branch, in ascending order of the rows.
    ///
    /// Rows before all branches have the number 0.
    branches: [(u64, u64); Self::MAX_BRANCHES],
}

impl Timeline {
    /// Maximum number of branches: as many as fit into a commit.
    pub(super) const MAX_BRANCHES: usize = 30;
    /// Size of the encoding in bytes.
    pub(super) const LEN: usize = 8 + 16 * Self::MAX_BRANCHES;

    fn branches(&self) -> &[(u64, u64)] {
        &self.branches[..self.count]
    }

    /// Returns the number of the branch to which row `rows - 1` belongs, or 0 without rows.
    pub(super) fn number_at(&self, rows: usize) -> u64 {
        self.branches().iter().rev().find(|(from, _)| *from < rows as u64).map_or(0, |(_, number)| *number)
    }

    /// Returns the timeline after a rollback to `rows` rows. `number` and `other` are unique numbers.
    pub(super) fn with_branch(&self, rows: usize, number: u64, other: u64) -> Self {
        let mut next = *self;
        next.count = self.branches().iter().take_while(|(from, _)| *from < rows as u64).count();
        if next.count == Self::MAX_BRANCHES {
            // The two oldest branches merge under a new number, so that references to their rows are rejected.
            next.branches.copy_within(2.., 1);
            next.branches[0].1 = other;
            next.count -= 1;
        }
        next.branches[next.count] = (rows as u64, number);
        next.count += 1;
        next
    }

    /// Writes the encoding to `out`.
    pub(super) fn write_to(&self, out: &mut [u8]) {
        let numbers = self.branches().iter().flat_map(|(from, number)| [*from, *number]);
        for (out, number) in out.chunks_exact_mut(8).zip([self.count as u64].into_iter().chain(numbers)) {
            out.copy_from_slice(&number.to_le_bytes());
        }
    }

    /// Parses the encoding, or returns `None` if it is invalid.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut numbers = bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut read = Self { count: usize::try_from(numbers.next()?).ok()?, ..Self::default() };
        for branch in read.branches.get_mut(..read.count)? {
            *branch = (numbers.next()?, numbers.next()?);
        }
        read.branches().is_sorted_by(|a, b| a.0 < b.0).then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_distinguish_rows_and_the_oldest_are_merged() {
        let first = Timeline::default();
        let second = first.with_branch(5, 50, 1).with_branch(8, 80, 1);
        assert_eq!([0, 5, 6, 8, 9].map(|rows| second.number_at(rows)), [0, 0, 50, 50, 80]);
        let third = second.with_branch(6, 60, 1);
        assert_eq!([5, 6, 7, 100].map(|rows| third.number_at(rows)), [0, 50, 60, 60]);
        assert_eq!(third.with_branch(5, 51, 1).number_at(6), 51);
        let many = (1..=Timeline::MAX_BRANCHES + 1).fold(first, |all, i| all.with_branch(i * 10, i as u64, 1000));
        assert_eq!([10, 11, 20, 21, 30, 31, 41].map(|rows| many.number_at(rows)), [0, 1000, 1000, 1000, 1000, 3, 4]);
        assert_eq!(many.number_at(1000), Timeline::MAX_BRANCHES as u64 + 1);
        let mut bytes = [0; Timeline::LEN];
        many.write_to(&mut bytes);
        assert_eq!(Timeline::from_bytes(&bytes), Some(many));
        bytes[..8].copy_from_slice(&31_u64.to_le_bytes());
        assert_eq!(Timeline::from_bytes(&bytes), None);
    }
}
