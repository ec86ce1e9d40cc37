//! Arguments with one number per token: two arrays of log-probabilities and a mask.

use numpy::Element;
use pyo3::prelude::*;

use crate::convert::args::{Argument, Input, Like, REAL, argument, argument_like, asarray, expect_like};
use crate::convert::array::FromArray;
use crate::convert::flags::{FlagArgument, Flags, flag_argument_like};
use crate::error::value_error;
use crate::sync::gil::is_alone;

/// Token count above which a call releases the GIL, because it may take more than 5 us.
const DETACH_ABOVE_ELEMENTS: usize = 8192;

/// Token arguments that are converted but not yet read; see [`crate::convert::args`].
pub(crate) struct Arguments<'py, T> {
    log_probs: Argument<'py, T>,
    reference: Argument<'py, T>,
    mask: Option<FlagArgument<'py>>,
}

impl<'py, T: FromArray> Arguments<'py, T> {
    pub(crate) fn new(
        names: [&'static str; 2],
        log_probs: &Bound<'py, PyAny>,
        reference: &Bound<'py, PyAny>,
        mask: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let array = &asarray(names[0], log_probs)?;
        let like = Some(Like { name: names[0], array, skipped: 0 });
        Ok(Self {
            reference: argument_like(names[1], reference, &REAL, like)?,
            mask: mask.map(|mask| flag_argument_like("mask", mask, like)).transpose()?,
            log_probs: argument(names[0], array.as_any(), &REAL)?,
        })
    }

    /// Reads the arrays, which must have the same shape. Runs no Python code.
    pub(crate) fn read(self, py: Python<'py>) -> PyResult<Tokens<'py, T>> {
        let (name_of_first, name) = (self.log_probs.name(), self.reference.name());
        self.expect(name, self.reference.shape())?;
        self.mask.as_ref().map_or(Ok(()), |mask| self.expect("mask", mask.shape()))?;
        let long = size(self.log_probs.shape()) > DETACH_ABOVE_ELEMENTS;
        let hold = !long && is_alone(py);
        let (log_probs, reference) = (self.log_probs.read(hold)?, self.reference.read(hold)?);
        let mask = self.mask.map(|mask| mask.read(py, hold)).transpose()?;
        let tokens = Tokens { log_probs, reference, mask, hold, long };
        // Other threads may have changed the shapes while an array was copied.
        expect_like(name, tokens.reference.shape(), name_of_first, tokens.shape())?;
        if let Some(mask) = &tokens.mask {
            expect_like("mask", mask.shape(), name_of_first, tokens.shape())?;
        }
        Ok(tokens)
    }

    fn expect(&self, name: &str, got: &[usize]) -> PyResult<()> {
        expect_like(name, got, self.log_probs.name(), self.log_probs.shape())
    }
}

/// Returns the number of tokens or of sequences, whichever is larger; empty sequences take time.
fn size(shape: &[usize]) -> usize {
    shape.iter().product::<usize>().max(shape.first().copied().unwrap_or(0))
}

/// Token arrays of one shape.
pub(crate) struct Tokens<'py, T: Element> {
    log_probs: Input<'py, T>,
    reference: Input<'py, T>,
    mask: Option<Flags<'py>>,
    /// The flag `hold` that the arrays were read with; see [`Argument::read`].
    pub(crate) hold: bool,
    long: bool,
}

impl<T: FromArray> Tokens<'_, T> {
    /// Returns true if the call releases the GIL.
    pub(crate) fn long(&self) -> bool {
        self.long
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.log_probs.shape()
    }

    /// Returns the shape of the sequences: (B,) for (B, T), and () for (T,).
    pub(crate) fn sequences(&self, name: &str) -> PyResult<&[usize]> {
        match self.shape() {
            [] | [_, _, _, ..] => {
                let got = format!("shape {:?}", self.shape());
                Err(value_error(name, "shape (T,) or (B, T)", &got, "reshape it to one row per sequence"))
            }
            [rows @ .., _] => Ok(rows),
        }
    }

    pub(crate) fn slices(&self) -> (&[T], &[T], Option<&[bool]>) {
        (self.log_probs.slice(), self.reference.slice(), self.mask.as_ref().map(Flags::slice))
    }
}
