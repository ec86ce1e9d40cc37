//! `pack_sequences` and `pack_lengths`.

use std::time::{Duration, Instant};

use bytemuck::Pod;
use numpy::PyUntypedArray;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use rlox_core::llm::{Overflow, Packing, pack};
use rlox_core::{Result, Watch};

use crate::alloc::{collected, mapped, reserved, zeroed};
use crate::convert::args::{Argument, INTEGER, argument, asarray, count, sequence, shown};
use crate::convert::array::{FromArray, new_dict, result, slice};
use crate::error::{to_py, type_error, value_error, value_error_at};
use crate::llm::options;
use crate::sync::borrow::{Kind, typed};
use crate::sync::gil::{alone, check_signals, detached};
use crate::sync::interrupt::look;

/// How long a call works before other threads have a turn.
const TURN: Duration = Duration::from_millis(5);

/// When they last had one.
struct Turns(Instant);

impl Turns {
    fn new() -> Self {
        Self(Instant::now())
    }

    /// If it is time to, lets other threads run, and Ctrl-C end the call; says whether it did.
    fn give(&mut self, py: Python<'_>) -> PyResult<bool> {
        if self.0.elapsed() < TURN {
            return Ok(false);
        }
        detached(py, || ());
        check_signals(py)?;
        self.0 = Instant::now();
        Ok(true)
    }
}

/// Packs sequences of tokens into rows of at most `max_length`: best fit, longest first.
///
/// Args:
///     sequences: Arrays or lists of integers, one for each sequence. Empty ones are left out.
///     max_length: Tokens of a row at most.
///     overflow: "error" refuses sequences that are longer; "truncate" cuts them off at the end.
///
/// Returns:
///     One dict for each row, of arrays that share memory with nothing of the caller's:
///     `input_ids`, the tokens of its sequences, longest first (uint32 or int32 if all sequences are, else
///     int64); `position_ids`, which start at 0 in each sequence; `attention_mask`, ones; `sequence_starts`;
///     `cu_seqlens` (int32), the starts and the row's length, as variable-length attention takes them; and
///     `source_indices`, which of `sequences` they are. Rows are not padded. A mask of ones does not keep
///     sequences apart: attention needs `position_ids` or `cu_seqlens` for that.
///
/// Raises:
///     TypeError: Tokens that are no integers.
///     ValueError: A sequence that is not one-dimensional or too long, `max_length` 0.
///     MemoryError: Tables that do not fit.
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
    let overflow = named(overflow)?;
    let py = sequences.py();
    let items = sequence(sequences).map_err(|error| {
        if error.is_instance_of::<PyTypeError>(py) {
            return type_error(
                "sequences",
                "a list of sequences",
                &shown(sequences.get_type().as_any()),
                "pass a list",
            );
        }
        error
    })?;
    let arrays = taken(py, items.iter(), |item| asarray("sequences", &item))?;
    if all::<u32>(&arrays) {
        rows::<u32>(py, arrays, max_length, overflow)
    } else if all::<i32>(&arrays) {
        rows::<i32>(py, arrays, max_length, overflow)
    } else {
        rows::<i64>(py, arrays, max_length, overflow)
    }
}

/// What is made of many sequences, one after the other.
fn taken<S, R>(
    py: Python<'_>,
    sequences: impl ExactSizeIterator<Item = S>,
    take: impl Fn(S) -> PyResult<R>,
) -> PyResult<Vec<R>> {
    let mut turns = Turns::new();
    collected(
        sequences.len(),
        sequences.map(|sequence| {
            turns.give(py)?;
            take(sequence)
        }),
    )
}

fn all<T: Kind>(arrays: &[Bound<'_, PyUntypedArray>]) -> bool {
    !arrays.is_empty() && arrays.iter().all(|array| typed::<T>(array.as_any()).is_some())
}

fn named(overflow: &str) -> PyResult<Overflow> {
    match overflow {
        "error" => Ok(Overflow::Error),
        "truncate" => Ok(Overflow::Truncate),
        _ => Err(value_error("overflow", "\"error\" or \"truncate\"", &format!("{overflow:?}"), "correct it")),
    }
}

fn rows<'py, T: FromArray + Pod + Sync>(
    py: Python<'py>,
    arrays: Vec<Bound<'py, PyUntypedArray>>,
    max_length: usize,
    overflow: Overflow,
) -> PyResult<Bound<'py, PyList>> {
    let sequences = taken(py, arrays.into_iter(), |array| argument::<T>("sequences", array.as_any(), &INTEGER))?;

    let whole = lengths_of(&sequences)?;
    let packing = detached(py, || pack(&whole, max_length, overflow));
    let packing = packing.map_err(|error| to_py(error.rename_argument("lengths", "sequences")))?;
    let lengths = mapped(&whole, |length| length.min(max_length)).map_err(to_py)?;
    let total = lengths.iter().fold(0_usize, |sum, length| sum.saturating_add(*length));
    if i32::try_from(total.min(max_length)).is_err() {
        let got = max_length.to_string();
        return Err(value_error("max_length", "less than 2**31 tokens in a row", &got, "pass the length of a row"));
    }
    let (count, bins) = (packing.sources().len(), packing.num_bins());
    let (mut tokens, mut positions) = (result::<T>(py, &[total])?, result::<i64>(py, &[total])?);
    let (mut mask, mut starts) = (result::<i64>(py, &[total])?, result::<i64>(py, &[count])?);
    let (mut cumulated, mut sources) = (result::<i32>(py, &[count + bins])?, result::<i64>(py, &[count])?);
    copy(py, sequences, &whole, &places(&lengths, &packing)?, max_length, tokens.slice())?;
    let mut flat = Flat {
        positions: positions.slice(),
        mask: mask.slice(),
        starts: starts.slice(),
        cumulated: cumulated.slice(),
        sources: sources.slice(),
    };
    detached(py, || flat.fill(&lengths, &packing)).map_err(to_py)?;
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
    let length = |(at, sequence): (usize, &Argument<'_, T>)| match sequence.shape() {
        [length] => Ok(*length),
        shape => {
            let (expected, got) = ("one-dimensional sequences", format!("shape {shape:?}"));
            Err(value_error_at(at, "sequences", expected, &got, "pass one array for each"))
        }
    };
    collected(sequences.len(), sequences.iter().enumerate().map(length))
}

/// Where the tokens of each sequence begin; 0 for empty ones.
fn places(lengths: &[usize], packing: &Packing) -> PyResult<Vec<usize>> {
    let (mut places, mut at) = (zeroed(lengths.len()).map_err(to_py)?, 0);
    for &source in packing.sources() {
        places[source] = at;
        at += lengths[source];
    }
    Ok(places)
}

/// Copies the tokens of each sequence to its place.
///
/// One after the other is read, so that a guard meets no other of this call: they would be compared, each with all
/// others that are parts of the same array.
fn copy<'py, T: FromArray>(
    py: Python<'py>,
    sequences: Vec<Argument<'py, T>>,
    whole: &[usize],
    places: &[usize],
    max_length: usize,
    tokens: &mut [T],
) -> PyResult<()> {
    let (mut hold, mut turns) = (alone(py), Turns::new());
    for (source, sequence) in sequences.into_iter().enumerate() {
        if turns.give(py)? {
            hold = alone(py);
        }
        // What takes long is guarded, as others may run meanwhile.
        let sequence = sequence.read(hold && whole[source] <= Watch::STRETCH)?;
        if sequence.shape() != [whole[source]] {
            let (expected, got) = ("arrays that nobody writes to", "one that another thread changed");
            return Err(value_error_at(source, "sequences", expected, got, "pass copies"));
        }
        let sequence = &sequence.slice()[..max_length.min(whole[source])];
        let place = &mut tokens[places[source]..][..sequence.len()];
        for (i, (to, from)) in place.chunks_mut(Watch::STRETCH).zip(sequence.chunks(Watch::STRETCH)).enumerate() {
            if i > 0 && turns.give(py)? {
                hold = alone(py);
            }
            to.copy_from_slice(from);
        }
    }
    Ok(())
}

/// The other arrays of all rows, one row after the other.
struct Flat<'a> {
    positions: &'a mut [i64],
    mask: &'a mut [i64],
    starts: &'a mut [i64],
    cumulated: &'a mut [i32],
    sources: &'a mut [i64],
}

impl Flat<'_> {
    fn fill(&mut self, lengths: &[usize], packing: &Packing) -> Result<()> {
        let (mut at, mut sequence, mut watch) = (0, 0, Watch::default());
        for (row, bin) in packing.bins().enumerate() {
            let start = at;
            for &source in bin {
                let end = at + lengths[source];
                let stretches = self.positions[at..end].chunks_mut(Watch::STRETCH);
                for ((positions, mask), t) in stretches.zip(self.mask[at..end].chunks_mut(Watch::STRETCH)).zip(0..) {
                    watch.check()?;
                    for (position, t) in positions.iter_mut().zip(t * Watch::STRETCH as i64..) {
                        *position = t;
                    }
                    mask.fill(1);
                }
                self.starts[sequence] = (at - start) as i64;
                self.cumulated[sequence + row] = (at - start) as i32;
                self.sources[sequence] = source as i64;
                (at, sequence) = (end, sequence + 1);
            }
            self.cumulated[sequence + row] = (at - start) as i32;
        }
        Ok(())
    }
}

/// A dict of views for each row.
fn dicts<'py>(
    py: Python<'py>,
    packing: &Packing,
    lengths: &[usize],
    flat: &[Bound<'py, PyAny>; 6],
) -> PyResult<Bound<'py, PyList>> {
    let names = ["input_ids", "position_ids", "attention_mask", "sequence_starts", "source_indices", "cu_seqlens"]
        .map(|name| PyString::intern(py, name));
    let rows = PyList::empty(py);
    let (mut at, mut sequence, mut turns) = (0, 0, Turns::new());
    for (row, bin) in packing.bins().enumerate() {
        turns.give(py)?;
        let dict = new_dict(py)?;
        let length: usize = bin.iter().map(|&source| lengths[source]).sum();
        let (tokens, sequences) = (at..at + length, sequence..sequence + bin.len());
        let ends = sequence + row..sequence + row + bin.len() + 1;
        let ranges = [&tokens, &tokens, &tokens, &sequences, &sequences, &ends];
        for ((name, array), range) in names.iter().zip(flat).zip(ranges) {
            dict.set_item(name, slice(array, range)?)?;
        }
        rows.append(dict)?;
        (at, sequence) = (at + length, sequence + bin.len());
    }
    Ok(rows)
}

/// Plans rows for sequences of which only the lengths are known: best fit, longest first.
///
/// Args:
///     lengths: (N,) integers. Sequences of length 0 are left out.
///     max_length: Tokens of a row at most.
///     overflow: "error" refuses sequences that are longer; "truncate" takes them for cut off.
///
/// Returns:
///     (source_indices, row_starts): the sequences of row i are
///     `source_indices[row_starts[i]:row_starts[i + 1]]`, the longest first.
///
/// Raises:
///     TypeError: Lengths that are no integers.
///     ValueError: Lengths that are negative, not one-dimensional or too long, `max_length` 0.
///     MemoryError: Tables that do not fit.
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
    let overflow = named(overflow)?;
    let lengths = argument::<i64>("lengths", lengths, &INTEGER)?.read(false)?;
    if lengths.shape().len() != 1 {
        return Err(value_error("lengths", "shape (N,)", &format!("shape {:?}", lengths.shape()), "ravel it"));
    }
    if let Some(at) = lengths.slice().iter().position(|length| *length < 0) {
        let got = lengths.slice()[at].to_string();
        return Err(value_error_at(at, "lengths", "numbers of tokens", &got, "correct it"));
    }
    let slice = lengths.slice();
    let plan = || {
        let (mut counts, mut watch) = (reserved(slice.len())?, Watch::default());
        for (at, length) in slice.iter().enumerate() {
            look(&mut watch, at)?;
            counts.push(*length as usize);
        }
        pack(&counts, max_length, overflow)
    };
    let packing = detached(py, plan).map_err(to_py)?;
    let mut sources = result::<i64>(py, &[packing.sources().len()])?;
    let mut starts = result::<i64>(py, &[packing.num_bins() + 1])?;
    let (order, ends) = (sources.slice(), starts.slice());
    let write = || {
        let (mut at, mut watch) = (0, Watch::default());
        ends[0] = 0;
        for (row, (end, bin)) in ends[1..].iter_mut().zip(packing.bins()).enumerate() {
            look(&mut watch, row)?;
            for (to, from) in order[at..].iter_mut().zip(bin) {
                *to = *from as i64;
            }
            at += bin.len();
            *end = at as i64;
        }
        Ok(())
    };
    detached(py, write).map_err(to_py)?;
    PyTuple::new(py, [sources.into_array().into_any(), starts.into_array().into_any()])
}
