//! Python functions for the post-training of language models.

pub(crate) mod advantage;
pub(crate) mod kl;
pub(crate) mod packing;
pub(crate) mod ratio;
pub(crate) mod sequence_kl;
mod tokens;

/// Parsers of settings with defaults, for `from_py_with`. Each has the name of its argument.
mod options {
    use pyo3::prelude::*;
    use pyo3::types::PyString;

    use crate::convert::args::{number, short_repr, switch};
    use crate::error::type_error;

    macro_rules! texts {
        ($($name:ident)*) => {
            $(
                pub(crate) fn $name<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
                    text(stringify!($name), object)
                }
            )*
        };
    }
    texts!(estimator reduction level scale overflow);

    fn text<'a>(argument: &str, object: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
        let text = object.cast::<PyString>().ok().and_then(|text| text.to_str().ok());
        text.ok_or_else(|| type_error(argument, "a string", &short_repr(object), "pass a str"))
    }

    macro_rules! numbers {
        ($($name:ident)*) => {
            $(
                pub(crate) fn $name(object: &Bound<'_, PyAny>) -> PyResult<f64> {
                    number(stringify!($name), object)
                }
            )*
        };
    }
    numbers!(eps clip_low);

    pub(crate) fn leave_one_out(object: &Bound<'_, PyAny>) -> PyResult<bool> {
        switch("leave_one_out", object)
    }
}
