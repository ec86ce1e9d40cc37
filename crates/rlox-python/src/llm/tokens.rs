//! Arguments with one number for each token: two arrays of log-probabilities and a mask.

use numpy::Element;
use pyo3::prelude::*;

use crate::argument::{Argument, Input, REAL, argument};
use crate::array::FromArray;
use crate::detach::alone;
use crate::error::value_error;
use crate::flags::{FlagArgument, Flags, flag_argument};

/// From how many tokens on a call may take more than 5 us.
const LONG: usize = 8192;

/// The arguments, whose Python code has run.
pub(crate) struct Arguments<'py, T> {
    log_probs: Argument<'py, T>,
    others: Argument<'py, T>,
    mask: Option<FlagArgument<'py>>,
}

impl<'py, T: FromArray> Arguments<'py, T> {
    pub(crate) fn new(
        names: [&'static str; 2],
        log_probs: &Bound<'py, PyAny>,
        others: &Bound<'py, PyAny>,
        mask: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self {
            log_probs: argument(names[0], log_probs, &REAL)?,
            others: argument(names[1], others, &REAL)?,
            mask: mask.map(|mask| flag_argument("mask", mask)).transpose()?,
        })
    }

    /// Arrays of one shape. Runs no Python code.
    pub(crate) fn read(self, py: Python<'py>) -> PyResult<Tokens<'py, T>> {
        let hold = self.log_probs.len() <= LONG && alone(py);
        let (like, name) = (self.log_probs.name(), self.others.name());
        let (log_probs, others) = (self.log_probs.read(hold)?, self.others.read(hold)?);
        let mask = self.mask.map(|mask| mask.read(py, hold)).transpose()?;
        let tokens = Tokens { log_probs, others, mask, hold };
        tokens.expect_shape(name, tokens.others.shape(), like)?;
        if let Some(mask) = &tokens.mask {
            tokens.expect_shape("mask", mask.shape(), like)?;
        }
        Ok(tokens)
    }
}

/// The same as arrays of one shape.
pub(crate) struct Tokens<'py, T: Element> {
    log_probs: Input<'py, T>,
    others: Input<'py, T>,
    mask: Option<Flags<'py>>,
    /// As [`Argument::read`] takes it.
    pub(crate) hold: bool,
}

impl<T: FromArray> Tokens<'_, T> {
    fn expect_shape(&self, name: &str, got: &[usize], like: &str) -> PyResult<()> {
        let shape = self.shape();
        if got == shape {
            return Ok(());
        }
        let expected = format!("the shape of {like}, {shape:?}");
        Err(value_error(name, &expected, &format!("{got:?}"), "pass arrays of one shape"))
    }

    /// Whether the GIL is let go.
    pub(crate) fn long(&self) -> bool {
        self.log_probs.slice().len() > LONG
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.log_probs.shape()
    }

    /// The shape as one of sequences: (B,) of (B, T), and () of (T,).
    pub(crate) fn sequences(&self, name: &str) -> PyResult<&[usize]> {
        match self.shape() {
            [] | [_, _, _, ..] => {
                let got = format!("shape {:?}", self.shape());
                Err(value_error(name, "shape (T,) or (B, T)", &got, "reshape it to one row for each sequence"))
            }
            [rows @ .., _] => Ok(rows),
        }
    }

    pub(crate) fn slices(&self) -> (&[T], &[T], Option<&[bool]>) {
        (self.log_probs.slice(), self.others.slice(), self.mask.as_ref().map(Flags::slice))
    }
}
