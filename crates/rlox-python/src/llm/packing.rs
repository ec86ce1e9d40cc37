//! The Python functions `pack_sequences` and `pack_lengths`.

use std::time::{Duration, Instant};

use bytemuck::Pod;
use numpy::PyUntypedArray;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use rlox_core::llm::{Overflow, Packing, pack};
use rlox_core::{Result, interrupt::InterruptCheck};

use crate::alloc::{try_collect, try_map, with_capacity, zeroed};
use crate::convert::args::{Argument, INTEGER, argument, asarray, count, sequence, short_repr};
use crate::convert::array::{FromArray, empty, new_dict, slice};
use crate::error::{to_py, type_error, value_error, value_error_at};
use crate::llm::options;
use crate::sync::borrow::{Kind, typed};
use crate::sync::gil::{check_signals, detach, is_alone};
use crate::sync::interrupt::poll_interrupt;

/// Time between two releases of the GIL, which let other threads run.
const GIL_YIELD_INTERVAL: Duration = Duration::from_millis(5);

/// Timer that releases the GIL at intervals; contains the time of the last release.
struct GilYielder(Instant);

impl GilYielder {
    fn new() -> Self {
        Self(Instant::now())
    }

    /// If the interval is over, releases the GIL, checks for Ctrl-C and returns true.
    fn maybe_yield(&mut self, py: Python<'_>) -> PyResult<bool> {
        if self.0.elapsed() < GIL_YIELD_INTERVAL {
            return Ok(false);
        }
        detach(py, || ());
        check_signals(py)?;
        self.0 = Instant::now();
        Ok(true)
    }
}

/// Pack sequences of tokens into rows of at most `max_length` tokens.
///
/// The algorithm is best-fit decreasing: it packs the longest sequences first, each into the
/// fullest row that it fits into.
///
/// Args:
///     sequences: Arrays or lists of integers, one per sequence. Empty sequences are skipped.
///     max_length: Maximum number of tokens in a row.
///     overflow: "error" raises ValueError for longer sequences; "truncate" removes their last
///         tokens.
///
/// Returns:
///     A list with one dict per row. The arrays of the dicts share no memory with the arguments:
///     - `input_ids`: The tokens of the row's sequences, the longest sequence first. The dtype is
///       uint32 or int32 if all sequences have it, otherwise int64.
///     - `position_ids`: The position of each token in its sequence, from 0.
///     - `attention_mask`: Ones. Such a mask does not separate the sequences of a row, so that
///       attention needs `position_ids` or `cu_seqlens`.
///     - `sequence_starts`: The offset of each sequence in the row.
///     - `cu_seqlens` (int32): The starts followed by the row's length, for variable-length
///       attention.
///     - `source_indices`: The index of each sequence in `sequences`.
///     Rows are not padded.
///
/// Raises:
///     TypeError: Tokens are not integers.
///     ValueError: A sequence is not one-dimensional or too long, or `max_length` is 0.
///     MemoryError: The result does not fit into memory.
///
/// >>> import rlox
/// >>> (row,) = rlox.pack_sequences([[7, 8], [1, 2, 3]], 5)
/// >>> [row[key].tolist() for key in ("input_ids", "position_ids", "cu_seqlens", "source_indices")]
/// [[1, 2, 3, 7, 8], [0, 1, 2, 0, 1], [0, 3, 5], [1, 0]]
#[pyfunction]
#[pyo3(signature = (sequences, max_length, *, overflow="error"))]
pub(crate) fn pack_sequences<'py>(
    sequences: &Bound<'py, PyAny>,
    max_length: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = options::overflow)] overflow: &str,
) -> PyResult<Bound<'py, PyList>> {
    let max_length = count("max_length", max_length)?;
    let overflow = parse_overflow(overflow)?;
    let py = sequences.py();
    let items = sequence(sequences).map_err(|error| {
        if error.is_instance_of::<PyTypeError>(py) {
            return type_error(
                "sequences",
                "a list of sequences",
                &short_repr(sequences.get_type().as_any()),
                "pass a list of arrays",
            );
        }
        error
    })?;
    let arrays = map_sequences(py, items.iter(), |item| asarray("sequences", &item))?;
    if have_dtype::<u32>(&arrays) {
        pack_rows::<u32>(py, arrays, max_length, overflow)
    } else if have_dtype::<i32>(&arrays) {
        pack_rows::<i32>(py, arrays, max_length, overflow)
    } else {
        pack_rows::<i64>(py, arrays, max_length, overflow)
    }
}

/// Converts sequences one after the other, and releases the GIL at intervals.
fn map_sequences<S, R>(
    py: Python<'_>,
    sequences: impl ExactSizeIterator<Item = S>,
    convert: impl Fn(S) -> PyResult<R>,
) -> PyResult<Vec<R>> {
    let mut yielder = GilYielder::new();
    try_collect(
        sequences.len(),
        sequences.map(|sequence| {
            yielder.maybe_yield(py)?;
            convert(sequence)
        }),
    )
}

fn have_dtype<T: Kind>(arrays: &[Bound<'_, PyUntypedArray>]) -> bool {
    !arrays.is_empty() && arrays.iter().all(|array| typed::<T>(array.as_any()).is_some())
}

fn parse_overflow(overflow: &str) -> PyResult<Overflow> {
    match overflow {
        "error" => Ok(Overflow::Error),
        "truncate" => Ok(Overflow::Truncate),
        _ => Err(value_error("overflow", "\"error\" or \"truncate\"", &format!("{overflow:?}"), "correct it")),
    }
}

fn pack_rows<'py, T: FromArray + Pod + Sync>(
    py: Python<'py>,
    arrays: Vec<Bound<'py, PyUntypedArray>>,
    max_length: usize,
    overflow: Overflow,
) -> PyResult<Bound<'py, PyList>> {
    let sequences =
        map_sequences(py, arrays.into_iter(), |array| argument::<T>("sequences", array.as_any(), &INTEGER))?;

    let full_lengths = lengths_of(&sequences)?;
    let packing = detach(py, || pack(&full_lengths, max_length, overflow));
    let packing = packing.map_err(|error| to_py(error.rename_argument("lengths", "sequences")))?;
    let lengths = try_map(&full_lengths, |length| length.min(max_length)).map_err(to_py)?;
    let total = lengths.iter().fold(0_usize, |sum, length| sum.saturating_add(*length));
    if i32::try_from(total.min(max_length)).is_err() {
        let got = max_length.to_string();
        return Err(value_error("max_length", "less than 2**31 tokens in a row", &got, "pass a smaller length"));
    }
    let (count, bins) = (packing.sources().len(), packing.num_bins());
    let (mut tokens, mut positions) = (empty::<T>(py, &[total])?, empty::<i64>(py, &[total])?);
    let (mut mask, mut starts) = (empty::<i64>(py, &[total])?, empty::<i64>(py, &[count])?);
    let (mut cumulated, mut sources) = (empty::<i32>(py, &[count + bins])?, empty::<i64>(py, &[count])?);
    copy(py, sequences, &full_lengths, &start_offsets(&lengths, &packing)?, max_length, tokens.slice())?;
    let mut flat = Flat {
        positions: positions.slice(),
        mask: mask.slice(),
        starts: starts.slice(),
        cumulated: cumulated.slice(),
        sources: sources.slice(),
    };
    detach(py, || flat.fill(&lengths, &packing)).map_err(to_py)?;
    let flat = [
        tokens.into_array().into_any(),
        positions.into_array().into_any(),
        mask.into_array().into_any(),
        starts.into_array().into_any(),
        sources.into_array().into_any(),
        cumulated.into_array().into_any(),
    ];
    dicts(py, &packing, &lengths, &flat)
}

fn lengths_of<T: FromArray>(sequences: &[Argument<'_, T>]) -> PyResult<Vec<usize>> {
    let length = |(index, sequence): (usize, &Argument<'_, T>)| match sequence.shape() {
        [length] => Ok(*length),
        shape => {
            let (expected, got) = ("one-dimensional sequences", format!("shape {shape:?}"));
            Err(value_error_at(index, "sequences", expected, &got, "pass one array per sequence"))
        }
    };
    try_collect(sequences.len(), sequences.iter().enumerate().map(length))
}

/// Returns the offset of each sequence in the concatenated rows; 0 for empty sequences.
fn start_offsets(lengths: &[usize], packing: &Packing) -> PyResult<Vec<usize>> {
    let (mut offsets, mut offset) = (zeroed(lengths.len()).map_err(to_py)?, 0);
    for &source in packing.sources() {
        offsets[source] = offset;
        offset += lengths[source];
    }
    Ok(offsets)
}

/// Copies the tokens of each sequence to its offset.
///
/// Sequences are read one at a time, so that the call has only one registered borrow. With many
/// borrows of parts of the same array, each new borrow would be compared with all others.
fn copy<'py, T: FromArray>(
    py: Python<'py>,
    sequences: Vec<Argument<'py, T>>,
    full_lengths: &[usize],
    offsets: &[usize],
    max_length: usize,
    tokens: &mut [T],
) -> PyResult<()> {
    let (mut hold, mut yielder) = (is_alone(py), GilYielder::new());
    for (source, sequence) in sequences.into_iter().enumerate() {
        if yielder.maybe_yield(py)? {
            hold = is_alone(py);
        }
        // Reads of long sequences register their borrow, because other threads may run meanwhile.
        let sequence = sequence.read(hold && full_lengths[source] <= InterruptCheck::POLL_ELEMENTS)?;
        if sequence.shape() != [full_lengths[source]] {
            let (expected, got) = ("arrays that no other thread writes to", "an array that another thread changed");
            return Err(value_error_at(source, "sequences", expected, got, "pass copies"));
        }
        let sequence = &sequence.slice()[..max_length.min(full_lengths[source])];
        let target = &mut tokens[offsets[source]..][..sequence.len()];
        for (i, (to, from)) in target
            .chunks_mut(InterruptCheck::POLL_ELEMENTS)
            .zip(sequence.chunks(InterruptCheck::POLL_ELEMENTS))
            .enumerate()
        {
            if i > 0 && yielder.maybe_yield(py)? {
                hold = is_alone(py);
            }
            to.copy_from_slice(from);
        }
    }
    Ok(())
}

/// Arrays of all rows, concatenated, except for the tokens.
struct Flat<'a> {
    positions: &'a mut [i64],
    mask: &'a mut [i64],
    starts: &'a mut [i64],
    cumulated: &'a mut [i32],
    sources: &'a mut [i64],
}

impl Flat<'_> {
    fn fill(&mut self, lengths: &[usize], packing: &Packing) -> Result<()> {
        let (mut offset, mut sequence, mut interrupt) = (0, 0, InterruptCheck::default());
        for (row, bin) in packing.bins().enumerate() {
            let start = offset;
            for &source in bin {
                let end = offset + lengths[source];
                let position_chunks = self.positions[offset..end].chunks_mut(InterruptCheck::POLL_ELEMENTS);
                for ((positions, mask), t) in
                    position_chunks.zip(self.mask[offset..end].chunks_mut(InterruptCheck::POLL_ELEMENTS)).zip(0..)
                {
                    interrupt.check()?;
                    for (position, t) in positions.iter_mut().zip(t * InterruptCheck::POLL_ELEMENTS as i64..) {
                        *position = t;
                    }
                    mask.fill(1);
                }
                self.starts[sequence] = (offset - start) as i64;
                self.cumulated[sequence + row] = (offset - start) as i32;
                self.sources[sequence] = source as i64;
                (offset, sequence) = (end, sequence + 1);
            }
            self.cumulated[sequence + row] = (offset - start) as i32;
        }
        Ok(())
    }
}

/// Returns one dict per row, with slices of the concatenated arrays.
fn dicts<'py>(
    py: Python<'py>,
    packing: &Packing,
    lengths: &[usize],
    flat: &[Bound<'py, PyAny>; 6],
) -> PyResult<Bound<'py, PyList>> {
    let names = ["input_ids", "position_ids", "attention_mask", "sequence_starts", "source_indices", "cu_seqlens"]
        .map(|name| PyString::intern(py, name));
    let rows = PyList::empty(py);
    let (mut offset, mut sequence, mut yielder) = (0, 0, GilYielder::new());
    for (row, bin) in packing.bins().enumerate() {
        yielder.maybe_yield(py)?;
        let dict = new_dict(py)?;
        let length: usize = bin.iter().map(|&source| lengths[source]).sum();
        let (tokens, sequences) = (offset..offset + length, sequence..sequence + bin.len());
        let cu_seqlens_range = sequence + row..sequence + row + bin.len() + 1;
        let ranges = [&tokens, &tokens, &tokens, &sequences, &sequences, &cu_seqlens_range];
        for ((name, array), range) in names.iter().zip(flat).zip(ranges) {
            dict.set_item(name, slice(array, range)?)?;
        }
        rows.append(dict)?;
        (offset, sequence) = (offset + length, sequence + bin.len());
    }
    Ok(rows)
}

/// Plan the rows of `pack_sequences` from the lengths of the sequences.
///
/// Args:
///     lengths: Numbers of tokens, (N,). Sequences of length 0 are skipped.
///     max_length: Maximum number of tokens in a row.
///     overflow: "error" raises ValueError for longer sequences; "truncate" counts `max_length` of
///         their tokens.
///
/// Returns:
///     (source_indices, row_starts): the sequences of row i are
///     `source_indices[row_starts[i]:row_starts[i + 1]]`, the longest first.
///
/// Raises:
///     TypeError: Lengths are not integers.
///     ValueError: Lengths are negative, not one-dimensional or too long, or `max_length` is 0.
///     MemoryError: The result does not fit into memory.
///
/// >>> import rlox
/// >>> rlox.pack_lengths([3, 5, 2, 4], 8)
/// (array([1, 0, 3, 2]), array([0, 2, 4]))
#[pyfunction]
#[pyo3(signature = (lengths, max_length, *, overflow="error"))]
pub(crate) fn pack_lengths<'py>(
    lengths: &Bound<'py, PyAny>,
    max_length: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = options::overflow)] overflow: &str,
) -> PyResult<Bound<'py, PyTuple>> {
    let py = lengths.py();
    let max_length = count("max_length", max_length)?;
    let overflow = parse_overflow(overflow)?;
    let lengths = argument::<i64>("lengths", lengths, &INTEGER)?.read(false)?;
    if lengths.shape().len() != 1 {
        return Err(value_error("lengths", "shape (N,)", &format!("shape {:?}", lengths.shape()), "flatten it"));
    }
    if let Some(index) = lengths.slice().iter().position(|length| *length < 0) {
        let got = lengths.slice()[index].to_string();
        return Err(value_error_at(index, "lengths", "non-negative numbers of tokens", &got, "correct it"));
    }
    let slice = lengths.slice();
    let plan = || {
        let (mut counts, mut interrupt) = (with_capacity(slice.len())?, InterruptCheck::default());
        for (index, length) in slice.iter().enumerate() {
            poll_interrupt(&mut interrupt, index)?;
            counts.push(*length as usize);
        }
        pack(&counts, max_length, overflow)
    };
    let packing = detach(py, plan).map_err(to_py)?;
    let mut sources = empty::<i64>(py, &[packing.sources().len()])?;
    let mut starts = empty::<i64>(py, &[packing.num_bins() + 1])?;
    let (order, bin_offsets) = (sources.slice(), starts.slice());
    let write = || {
        let (mut offset, mut interrupt) = (0, InterruptCheck::default());
        bin_offsets[0] = 0;
        for (row, (end, bin)) in bin_offsets[1..].iter_mut().zip(packing.bins()).enumerate() {
            poll_interrupt(&mut interrupt, row)?;
            for (to, from) in order[offset..].iter_mut().zip(bin) {
                *to = *from as i64;
            }
            offset += bin.len();
            *end = offset as i64;
        }
        Ok(())
    };
    detach(py, write).map_err(to_py)?;
    PyTuple::new(py, [sources.into_array().into_any(), starts.into_array().into_any()])
}
