//! Slices that several threads write concurrently: columns of row-major grids, and chunks.

#![expect(unsafe_code, reason = "columns are not slices, and threads process chunks in any order")]

use std::marker::PhantomData;
use std::ops::Range;
use std::slice::from_raw_parts_mut;

use super::{Work, num_threads, run, run_uninterrupted};
use crate::Result;
use crate::interrupt::PollFn;

/// Number of elements below which one thread is faster than several threads.
const MIN_PARALLEL_ELEMENTS: usize = 1 << 17;

/// Number of elements that a thread processes at a time: about 20 us of simple work.
pub(crate) const CHUNK_ELEMENTS: usize = 1 << 15;

/// Maximum number of columns per part, so that the sums of the columns fit into the L1 cache.
const MAX_COLUMNS: usize = 256;

/// Minimum number of columns per part, so that SIMD vectors are full.
const MIN_COLUMNS: usize = 16;

/// Mutable range of columns of a row-major grid.
pub(crate) struct ColumnsMut<'a, T> {
    start: *mut T,
    rows: usize,
    width: usize,
    columns: Range<usize>,
    grid: PhantomData<&'a mut [T]>,
}

impl<T> ColumnsMut<'_, T> {
    /// Returns the elements of row `t` in the `N` columns from column `first` on.
    ///
    /// # Panics
    /// If an element is outside the grid or outside this range of columns.
    #[inline]
    pub(crate) fn row<const N: usize>(&mut self, t: usize, first: usize) -> &mut [T; N] {
        let (columns, offset) = (&self.columns, t * self.width + first);
        let inside = t < self.rows && columns.start <= first && first + N <= columns.end;
        assert!(inside, "access outside the columns of this part");
        // SAFETY: inside the grid, which is borrowed as long as `self`, and in columns that only `self` accesses.
        unsafe { &mut *self.start.add(offset).cast() }
    }
}

/// Pointer to the start of a slice that is divided among threads.
struct Start<T>(*mut T);

// SAFETY: the functions below give every thread distinct elements, as if `&mut [T]` had been split.
unsafe impl<T: Send> Sync for Start<T> {}

/// Calls `work(columns, parts, poll)` for ranges of columns that together are `0..width`, on all
/// threads.
///
/// The grids are row-major and have `width` columns. `parts` holds the columns `columns` of each
/// grid.
///
/// # Errors
/// The errors of [`run`].
pub(crate) fn run_columns<T: Send, const K: usize>(
    grids: [&mut [T]; K],
    width: usize,
    work: impl Fn(Range<usize>, [ColumnsMut<'_, T>; K], PollFn<'_>) -> Result<()> + Sync,
) -> Result<()> {
    let len = grids.iter().map(|grid| grid.len()).min().unwrap_or(0);
    let share = if len < MIN_PARALLEL_ELEMENTS { width } else { width.div_ceil(num_threads()) };
    let widest = share.next_multiple_of(MIN_COLUMNS).clamp(1, MAX_COLUMNS);
    let starts = grids.map(|grid| Start(grid.as_mut_ptr()));
    run_if_worthwhile(run, len, width.div_ceil(widest), &|part, poll| {
        let columns = part * widest..width.min((part + 1) * widest);
        let parts = starts.each_ref().map(|start| ColumnsMut {
            start: start.0,
            rows: len / width,
            width,
            columns: columns.clone(),
            grid: PhantomData,
        });
        work(columns, parts, poll)
    })
}

/// Calls `work(i, chunks, poll)` for each chunk number `i`, on all threads. `chunks` holds chunk
/// `i` of each slice.
///
/// All slices have the same length. Chunks have `chunk` elements, except the last chunk, which may
/// be shorter. Pass [`CHUNK_ELEMENTS`], or a smaller number if the work per element takes long.
///
/// # Errors
/// The errors of [`run`].
pub(crate) fn run_chunks<T: Send, const K: usize>(
    slices: [&mut [T]; K],
    chunk: usize,
    work: impl Fn(usize, [&mut [T]; K], PollFn<'_>) -> Result<()> + Sync,
) -> Result<()> {
    run_chunked(run, slices, chunk, work)
}

/// Calls `work` as [`run_chunks`] does, without checks for interruptions.
pub(crate) fn run_chunks_uninterrupted<T: Send, const K: usize>(
    slices: [&mut [T]; K],
    chunk: usize,
    work: impl Fn(usize, [&mut [T]; K]) + Sync,
) -> Result<()> {
    run_chunked(run_uninterrupted, slices, chunk, |i, chunks, _| {
        work(i, chunks);
        Ok(())
    })
}

fn run_chunked<T: Send, const K: usize>(
    run: Runner,
    slices: [&mut [T]; K],
    chunk: usize,
    work: impl Fn(usize, [&mut [T]; K], PollFn<'_>) -> Result<()> + Sync,
) -> Result<()> {
    let len = slices.iter().map(|slice| slice.len()).min().unwrap_or(0);
    let chunk = chunk.max(1);
    let starts = slices.map(|slice| Start(slice.as_mut_ptr()));
    run_if_worthwhile(run, len.saturating_mul(CHUNK_ELEMENTS.div_ceil(chunk)), len.div_ceil(chunk), &|i, poll| {
        let (offset, count) = (i * chunk, chunk.min(len - i * chunk));
        // SAFETY: inside the slices, which are borrowed until `run_if_worthwhile` returns; every chunk is passed once.
        let chunks = starts.each_ref().map(|start| unsafe { from_raw_parts_mut(start.0.add(offset), count) });
        work(i, chunks, poll)
    })
}

/// Calls `work(i, element, poll)` for each index `i` of `out` and its element, on all threads.
///
/// For each element, `work` reads a row of `row` other elements. The length of a row determines how
/// many elements a thread processes at a time.
///
/// # Errors
/// The errors of [`run`].
pub(crate) fn run_rows<T: Send>(
    out: &mut [T],
    row: usize,
    work: impl Fn(usize, &mut T, PollFn<'_>) -> Result<()> + Sync,
) -> Result<()> {
    // An empty row also takes some time.
    let row = row.max(1);
    let (len, each) = (out.len(), CHUNK_ELEMENTS.div_ceil(row));
    let start = Start(out.as_mut_ptr());
    let start = &start;
    run_if_worthwhile(run, len.saturating_mul(row), len.div_ceil(each), &|part, poll| {
        for i in part * each..len.min((part + 1) * each) {
            // SAFETY: inside `out`, which is borrowed until `run_if_worthwhile` returns; every element is passed once.
            work(i, unsafe { &mut *start.0.add(i) }, &mut *poll)?;
        }
        Ok(())
    })
}

/// [`run`] or [`run_uninterrupted`].
type Runner = fn(usize, Work<'_>) -> Result<()>;

/// Calls `work` for each part, on all threads, or on this thread if the number of elements `len` is
/// small.
fn run_if_worthwhile(run: Runner, len: usize, parts: usize, work: Work<'_>) -> Result<()> {
    if len < MIN_PARALLEL_ELEMENTS {
        (0..parts).try_for_each(|part| work(part, &mut || Ok(())))
    } else {
        run(parts, work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_chunks_cover_every_element_once() {
        for (rows, width) in [(0, 5), (3, 1), (7, 93), (300, 257), (2, 100_000), (1 << 17, 1)] {
            let mut grid = vec![0_u8; rows * width];
            run_columns([&mut grid], width, |columns, [mut part], _| {
                for (t, first) in (0..rows).flat_map(|t| columns.clone().map(move |first| (t, first))) {
                    part.row::<1>(t, first)[0] += 1;
                }
                Ok(())
            })
            .unwrap();
            assert!(grid.iter().all(|count| *count == 1), "{rows} rows of {width}");
            run_chunks([&mut grid], width, |i, [chunk], _| {
                assert!(i < rows && chunk.len() == width);
                for count in chunk {
                    *count += 1;
                }
                Ok(())
            })
            .unwrap();
            assert!(grid.iter().all(|count| *count == 2), "{rows} chunks of {width}");
        }
    }

    #[test]
    #[should_panic(expected = "access outside the columns of this part")]
    fn access_to_other_columns_panics() {
        let mut grid = vec![0; 4 * 40_000];
        let _ = run_columns([&mut grid], 40_000, |columns, [mut part], _| {
            part.row::<2>(0, columns.end - 1);
            Ok(())
        });
    }
}
