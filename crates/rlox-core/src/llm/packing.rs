//! Packing of sequences into rows of a maximum length by best-fit decreasing. Names in the code
//! call a row a bin.
//!
//! The sequences are assigned in descending order of length. Each sequence goes to the row with the
//! least free space that is sufficient for the sequence. A table with a bitmap finds a row by its
//! free space in a few steps. Counting sort orders the lengths.

use crate::alloc::{push, with_capacity, zeroed};
use crate::interrupt::InterruptCheck;
use crate::{Error, Result};

/// Treatment of sequences that are longer than a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Rejects the sequences with an error.
    #[default]
    Error,
    /// Truncates the sequences at the end.
    Truncate,
}

/// Assignment of sequences to rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    sources: Vec<usize>,
    starts: Vec<usize>,
}

impl Packing {
    /// Returns the number of rows.
    ///
    /// ```
    /// assert_eq!(rlox_core::llm::Packing::default().num_bins(), 0);
    /// ```
    pub fn num_bins(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Returns the sequences of all rows, row by row, as indices into the argument `lengths` of
    /// [`pack`].
    ///
    /// ```
    /// use rlox_core::llm::{Overflow, pack};
    ///
    /// assert_eq!(pack(&[1, 4, 3], 4, Overflow::Error)?.sources(), [1, 2, 0]);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// Returns an iterator over the rows.
    ///
    /// An item holds the sequences of a row, the longest first, as indices into the argument
    /// `lengths` of [`pack`].
    ///
    /// ```
    /// use rlox_core::llm::{Overflow, pack};
    ///
    /// let bins = pack(&[1, 4, 3], 4, Overflow::Error)?;
    /// assert_eq!(bins.bins().collect::<Vec<_>>(), [&[1][..], &[2, 0]]);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn bins(&self) -> impl ExactSizeIterator<Item = &[usize]> {
        self.starts.windows(2).map(|pair| &self.sources[pair[0]..pair[1]])
    }
}

/// Packs sequences of the given lengths into rows of at most `max_length` tokens. Each sequence
/// goes to the fullest row with sufficient space.
///
/// Empty sequences are omitted. Sequences of equal length are assigned in their order.
///
/// # Errors
/// - [`Error::Config`] if `max_length` is 0;
/// - [`Error::Shape`] if a sequence is longer than `max_length` and `overflow` is
///   [`Overflow::Error`], or if there are 2^32 or more sequences;
/// - [`Error::Memory`] if the tables of the algorithm do not fit into memory. Tables have an entry
///   per sequence or per possible length of a sequence;
/// - [`Error::Interrupted`] if the function of [`crate::interrupt::set_interrupt_check`] returns
///   true.
///
/// ```
/// use rlox_core::llm::{Overflow, pack};
///
/// // Lengths 5 and 4 start two rows. Length 3 fills the first row, 2 goes to the second.
/// let packing = pack(&[3, 5, 0, 2, 4], 8, Overflow::Error)?;
/// assert_eq!(packing.bins().collect::<Vec<_>>(), [&[1, 0][..], &[4, 3]]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub fn pack(lengths: &[usize], max_length: usize, overflow: Overflow) -> Result<Packing> {
    if max_length == 0 {
        return Err(Error::config("max_length", "at least 1", "0", "pass the length of a row"));
    }
    // A row longer than all sequences together is not needed, so the tables stay small.
    let (mut interrupt, mut total) = (InterruptCheck::default(), 0_usize);
    for (i, lengths) in lengths.chunks(InterruptCheck::POLL_ELEMENTS).enumerate() {
        if i > 0 {
            interrupt.check()?;
        }
        if overflow == Overflow::Error
            && let Some(index) = lengths.iter().position(|&length| length > max_length)
        {
            let (expected, got) = (format!("at most max_length = {max_length} tokens each"), lengths[index]);
            let hint = "raise max_length, split the sequence or truncate it";
            return Err(Error::shape("lengths", expected, got.to_string(), hint)
                .at_index(i * InterruptCheck::POLL_ELEMENTS + index));
        }
        total = lengths.iter().fold(total, |sum, length| sum.saturating_add(*length.min(&max_length)));
    }
    if u32::try_from(lengths.len()).is_err() {
        let got = lengths.len().to_string();
        return Err(Error::shape("lengths", "less than 2^32 sequences", got, "split them into several calls"));
    }
    let bin_len = max_length.min(total);
    if bin_len == 0 {
        return Ok(Packing::default());
    }
    let clipped = |index: u32| lengths[index as usize].min(bin_len);
    assign_bins(&longest_first(lengths.len() as u32, clipped, bin_len)?, clipped, bin_len)
}

/// Number of sequences between two interruption checks.
const POLL_EVERY_ITEMS: u32 = 1 << 14;

/// Returns the indices of the non-empty sequences, the longest first, ordered by counting sort.
fn longest_first(len: u32, clipped: impl Fn(u32) -> usize, bin_len: usize) -> Result<Vec<u32>> {
    let mut positions: Vec<u32> = zeroed("max_length", bin_len.saturating_add(1))?;
    let mut interrupt = InterruptCheck::default();
    for index in 0..len {
        if index.is_multiple_of(POLL_EVERY_ITEMS) {
            interrupt.check()?;
        }
        positions[clipped(index)] += 1;
    }
    let mut sum = 0;
    for chunk in positions[1..].rchunks_mut(InterruptCheck::POLL_ELEMENTS) {
        interrupt.check()?;
        for count in chunk.iter_mut().rev() {
            sum += std::mem::replace(count, sum);
        }
    }
    let mut order = zeroed("lengths", sum as usize)?;
    for index in 0..len {
        if index.is_multiple_of(POLL_EVERY_ITEMS) {
            interrupt.check()?;
        }
        let length = clipped(index);
        if length > 0 {
            order[positions[length] as usize] = index;
            positions[length] += 1;
        }
    }
    Ok(order)
}

fn assign_bins(order: &[u32], clipped: impl Fn(u32) -> usize, bin_len: usize) -> Result<Packing> {
    let mut spaces = Spaces::new(bin_len)?;
    // `bins` holds the row of each sequence, `counts` the number of sequences of each row.
    let (mut bins, mut counts) = (with_capacity::<u32>("lengths", order.len())?, Vec::new());
    let mut interrupt = InterruptCheck::default();
    for (i, &index) in (0_u32..).zip(order) {
        if i.is_multiple_of(POLL_EVERY_ITEMS) {
            interrupt.check()?;
        }
        let length = clipped(index);
        let (bin, space) = spaces.take(length).unwrap_or((counts.len() as u32, bin_len));
        if bin as usize == counts.len() {
            push("lengths", &mut counts, 0)?;
            push("lengths", &mut spaces.next, 0)?;
        }
        counts[bin as usize] += 1;
        bins.push(bin);
        if space > length {
            spaces.insert(bin, space - length);
        }
    }
    let mut sum = 0;
    let mut starts = with_capacity("lengths", counts.len() + 1)?;
    for counts in counts.chunks_mut(InterruptCheck::POLL_ELEMENTS) {
        interrupt.check()?;
        for count in counts {
            starts.push(sum);
            sum += std::mem::replace(count, sum);
        }
    }
    starts.push(sum);
    let mut sources = zeroed("lengths", order.len())?;
    for (i, (bin, index)) in (0_u32..).zip(bins.iter().zip(order)) {
        if i.is_multiple_of(POLL_EVERY_ITEMS) {
            interrupt.check()?;
        }
        let free = &mut counts[*bin as usize];
        sources[*free] = *index as usize;
        *free += 1;
    }
    Ok(Packing { sources, starts })
}

/// Rows, indexed by their free space.
struct Spaces {
    /// For each size of free space, 1 plus the index of the row that got that free space last, or 0
    /// if there is no such row.
    heads: Vec<u32>,
    /// For each row, 1 plus the index of the row that got the same free space before it, or 0 if
    /// there is no such row.
    next: Vec<u32>,
    /// Bitmap of the sizes of free space that some row has. Level 0 has a bit per size. Level k + 1
    /// has a bit per 64-bit word of level k, which is set if the word is not 0.
    levels: Vec<Vec<u64>>,
}

impl Spaces {
    fn new(bin_len: usize) -> Result<Self> {
        let heads = zeroed("max_length", bin_len.saturating_add(1))?;
        let mut levels = Vec::new();
        let mut len = bin_len + 1;
        while len > 1 || levels.is_empty() {
            len = len.div_ceil(64);
            levels.push(zeroed("max_length", len)?);
        }
        Ok(Self { heads, next: Vec::new(), levels })
    }

    /// Removes the row with the least free space that is at least `length`, and returns that row and space.
    fn take(&mut self, length: usize) -> Option<(u32, usize)> {
        let space = self.first_from(length)?;
        let head = &mut self.heads[space];
        let bin = *head - 1;
        *head = self.next[bin as usize];
        if *head == 0 {
            let mut index = space;
            for level in &mut self.levels {
                level[index / 64] &= !(1 << (index % 64));
                if level[index / 64] != 0 {
                    break;
                }
                index /= 64;
            }
        }
        Some((bin, space))
    }

    fn insert(&mut self, bin: u32, space: usize) {
        self.next[bin as usize] = std::mem::replace(&mut self.heads[space], bin + 1);
        let mut index = space;
        for level in &mut self.levels {
            level[index / 64] |= 1 << (index % 64);
            index /= 64;
        }
    }

    /// Returns the smallest size of free space of at least `from` that some row has.
    ///
    /// Searches up the levels until a word has a set bit, and then down to the bit of the size.
    fn first_from(&self, from: usize) -> Option<usize> {
        let mut index = from;
        for (height, level) in self.levels.iter().enumerate() {
            let rest = level.get(index / 64)? & (u64::MAX << (index % 64));
            if rest != 0 {
                let mut found = index / 64 * 64 + rest.trailing_zeros() as usize;
                for level in self.levels[..height].iter().rev() {
                    found = found * 64 + level[found].trailing_zeros() as usize;
                }
                return Some(found);
            }
            index = index / 64 + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use proptest::prelude::*;

    use super::*;

    /// Returns the sorted free space of the rows after best fit decreasing, as a reference.
    fn slow(lengths: &[usize], max_length: usize) -> Vec<usize> {
        let mut lengths: Vec<usize> = lengths.iter().copied().filter(|length| *length > 0).collect();
        lengths.sort_unstable_by_key(|length| Reverse(*length));
        let mut spaces: Vec<usize> = vec![];
        for length in lengths {
            match spaces.iter_mut().filter(|space| **space >= length).min() {
                Some(space) => *space -= length,
                None => spaces.push(max_length - length),
            }
        }
        spaces.sort_unstable();
        spaces
    }

    proptest! {
        #[test]
        fn rows_are_as_full_as_in_the_reference(
            lengths in prop::collection::vec(0..300_usize, 0..200),
            extra in prop::sample::select(vec![0_usize, 1, 37, 5000, 1 << 40]),
        ) {
            let max_length = lengths.iter().copied().max().unwrap_or(0).max(1) + extra;
            let packing = pack(&lengths, max_length, Overflow::Error).unwrap();
            let mut spaces: Vec<usize> = packing
                .bins()
                .map(|bin| max_length - bin.iter().map(|&at| lengths[at]).sum::<usize>())
                .collect();
            spaces.sort_unstable();
            prop_assert_eq!(spaces, slow(&lengths, max_length));
            let mut sources = packing.sources().to_vec();
            sources.sort_unstable();
            let expected: Vec<usize> = (0..lengths.len()).filter(|&at| lengths[at] > 0).collect();
            prop_assert_eq!(sources, expected);
            for bin in packing.bins() {
                prop_assert!(bin.is_sorted_by_key(|&at| Reverse(lengths[at])));
            }
        }
    }

    #[test]
    fn long_sequences_are_rejected_or_truncated() {
        let error = pack(&[3, 9, 10], 8, Overflow::Error).unwrap_err();
        let wrong = error.mismatch().unwrap();
        assert_eq!((&*wrong.argument, &*wrong.got, wrong.at.index), ("lengths", "9", Some(1)));
        assert_eq!(wrong.expected, "at most max_length = 8 tokens each");
        let packing = pack(&[3, 9, 5], 8, Overflow::Truncate).unwrap();
        assert_eq!(packing.bins().collect::<Vec<_>>(), [&[1][..], &[2, 0]]);
        assert_eq!(pack(&[usize::MAX, 1], 4, Overflow::Truncate).unwrap().num_bins(), 2);
    }

    #[test]
    fn empty_inputs_and_extreme_lengths_are_handled() {
        assert_eq!(pack(&[], 8, Overflow::Error).unwrap(), pack(&[0, 0], 8, Overflow::Error).unwrap());
        assert_eq!(pack(&[], 8, Overflow::Error).unwrap().num_bins(), 0);
        assert!(matches!(pack(&[1], 0, Overflow::Error), Err(Error::Config(_))));
        let huge = usize::MAX / 2;
        assert!(matches!(pack(&[huge, huge], huge, Overflow::Error), Err(Error::Memory(_))));
        assert!(matches!(pack(&[usize::MAX], usize::MAX, Overflow::Error), Err(Error::Memory(_))));
        assert_eq!(pack(&[1, 1], usize::MAX, Overflow::Error).unwrap().num_bins(), 1);
    }
}
