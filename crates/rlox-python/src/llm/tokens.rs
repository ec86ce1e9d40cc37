//! Arguments with one number for each token: two arrays of log-probabilities and a mask.

use numpy::{Element, PyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::array::{FlagInput, Input, REAL, Reader, asarray, flags, held, input};
use crate::error::value_error;

/// From how many tokens on a call may take more than 5 us.
const LONG: usize = 8192;

/// The arguments as the caller passed them.
pub(crate) struct Arguments<'a, 'py> {
    pub(crate) names: [&'static str; 2],
    pub(crate) log_probs: &'a Bound<'py, PyAny>,
    pub(crate) others: &'a Bound<'py, PyAny>,
    pub(crate) mask: Option<&'a Bound<'py, PyAny>>,
}

/// The same as arrays of one shape.
pub(crate) struct Tokens<'py, T: Element> {
    log_probs: Input<'py, T>,
    others: Input<'py, T>,
    mask: Option<FlagInput<'py>>,
    /// Too short to let the GIL go.
    pub(crate) short: bool,
}

impl<'py> Arguments<'_, 'py> {
    pub(crate) fn py(&self) -> Python<'py> {
        self.log_probs.py()
    }

    /// Whether the log-probabilities are float32.
    pub(crate) fn single(&self) -> PyResult<bool> {
        Ok(asarray(self.names[0], self.log_probs)?.into_any().cast::<PyArrayDyn<f32>>().is_ok())
    }

    pub(crate) fn read<T: Element>(&self) -> PyResult<Tokens<'py, T>> {
        let array = asarray(self.names[0], self.log_probs)?;
        let short = array.len() <= LONG;
        let read: Reader<'py, T> = if short { held } else { input };
        let log_probs = read(self.names[0], array.as_any(), &REAL)?;
        let others = read(self.names[1], self.others, &REAL)?;
        let mask = self.mask.map(|mask| flags("mask", mask, short)).transpose()?;
        let tokens = Tokens { log_probs, others, mask, short };
        tokens.expect_shape(self.names[1], tokens.others.shape(), self.names[0])?;
        if let Some(mask) = &tokens.mask {
            tokens.expect_shape("mask", mask.shape(), self.names[0])?;
        }
        Ok(tokens)
    }
}

impl<T: Element> Tokens<'_, T> {
    fn expect_shape(&self, name: &str, got: &[usize], like: &str) -> PyResult<()> {
        let shape = self.shape();
        if got == shape {
            return Ok(());
        }
        let expected = format!("the shape of {like}, {shape:?}");
        Err(value_error(name, &expected, &format!("{got:?}"), "pass arrays of one shape"))
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
        (self.log_probs.slice(), self.others.slice(), self.mask.as_ref().map(FlagInput::slice))
    }
}
