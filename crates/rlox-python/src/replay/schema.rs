//! The schema of a replay buffer's transitions, and rows of them as arguments.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rlox_core::replay::{Layout, Part};

use crate::alloc::collected;
use crate::convert::args::{item_of, shown, sizes};
use crate::convert::observation::{ObsArgument, ObsInput, dtype_of, says_dtype};
use crate::convert::options::{extra_of, from_items, text_in};
use crate::error::{type_error, value_error};
use crate::sync::gil::call;

/// What is put before the names of a Dict observation's parts.
const OBS: &str = "obs";
/// The argument of further parts.
const EXTRA: &str = "extra";

/// The part of a name, a shape and a dtype.
fn part(
    name: &'static str,
    dim: &Bound<'_, PyAny>,
    argument: &'static str,
    dtype: &Bound<'_, PyAny>,
) -> PyResult<Part> {
    let dtype = dtype_of(argument, dtype)?;
    Ok(Part::new(name, &sizes(if name == OBS { "obs_dim" } else { "act_dim" }, dim)?, dtype))
}

/// What a buffer is made with.
pub(crate) fn layout_of(
    [obs_dim, act_dim]: [&Bound<'_, PyAny>; 2],
    dtypes: [Option<&Bound<'_, PyAny>>; 2],
    extra: Option<&Bound<'_, PyAny>>,
    frame_stack: usize,
) -> PyResult<Layout> {
    let single = PyString::new(obs_dim.py(), "float32").into_any();
    let [obs_dtype, act_dtype] = dtypes.map(|dtype| dtype.unwrap_or(&single));
    let obs = if let Ok(dict) = obs_dim.cast::<PyDict>() {
        from_items(Some(dict), 12, |(name, spec)| {
            let wrong = |given: &Bound<'_, PyAny>| {
                type_error(
                    "obs_dim",
                    "{name: shape} or {name: (shape, dtype)}",
                    &shown(given),
                    "pass one for every key",
                )
            };
            let name = text_in(&name)?.ok_or_else(|| wrong(&name))?;
            let (row, dtype) = match spec.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() {
                Ok((row, dtype)) if says_dtype(&dtype) => (row, dtype),
                _ => (spec, obs_dtype.clone()),
            };
            let dtype = dtype_of("obs_dtype", &dtype)?;
            Ok(Part::new(format!("{OBS}.{name}"), &sizes("obs_dim", &row)?, dtype))
        })?
    } else {
        vec![part(OBS, obs_dim, "obs_dtype", obs_dtype)?]
    };
    let action = part("actions", act_dim, "act_dtype", act_dtype)?;
    let extra = extra_of(extra)?.into_iter().map(|(name, shape, dtype)| Part::new(name, &shape, dtype)).collect();
    Ok(Layout { obs, action, extra, frame_stack })
}

/// The key of a Dict observation's part.
pub(crate) fn key_of(part: &Part) -> Option<&str> {
    part.name.strip_prefix("obs.")
}

/// Rows of several parts whose Python code has run.
pub(crate) struct PartsArgument<'a, 'py> {
    name: &'static str,
    parts: &'a [Part],
    arguments: Few<ObsArgument<'py>>,
}

impl<'a, 'py> PartsArgument<'a, 'py> {
    /// Takes an array where there is one part, else a mapping of arrays. May run Python code.
    pub(crate) fn new(name: &'static str, object: &Bound<'py, PyAny>, parts: &'a [Part]) -> PyResult<Self> {
        let of_key = |part: &Part, key: &str| {
            ObsArgument::new(name, &item_of(name, object, key, "pass an array for every key")?, part.dtype)
        };
        let arguments = match parts {
            [part] if name != EXTRA && key_of(part).is_none() => Few::one(ObsArgument::new(name, object, part.dtype)?),
            parts => {
                refuse_others(name, object, parts)?;
                let each = parts.iter().map(|part| of_key(part, key_of(part).unwrap_or(&part.name)));
                Few::Many(collected(parts.len(), each)?)
            }
        };
        Ok(Self { name, parts, arguments })
    }

    /// None of no parts.
    pub(crate) fn none() -> Self {
        Self { name: EXTRA, parts: &[], arguments: Few::Many(Vec::new()) }
    }

    /// How many elements there are.
    pub(crate) fn len(&self) -> usize {
        self.arguments.as_slice().iter().map(ObsArgument::len).sum()
    }

    /// The elements: of a single row, or of `rows`.
    pub(crate) fn read(self, rows: Option<usize>, hold: bool) -> PyResult<Few<ObsInput<'py>>> {
        let Self { name, parts, arguments } = self;
        arguments.map(|i, argument| {
            let input = argument.read(hold)?;
            expect_rows(name, &parts[i], input.shape(), rows)?;
            Ok(input)
        })
    }
}

/// Refuses a dict with other keys than the parts'.
fn refuse_others(name: &str, object: &Bound<'_, PyAny>, parts: &[Part]) -> PyResult<()> {
    let named = |part: &Part| key_of(part).unwrap_or(&part.name).to_owned();
    let Ok(dict) = object.cast::<PyDict>() else { return Ok(()) };
    if dict.len() <= parts.len() {
        return Ok(());
    }
    let known: Vec<_> = parts.iter().map(named).collect();
    let unknown = dict.keys().iter().find(|key| !text_in(key).ok().flatten().is_some_and(|key| known.contains(&key)));
    let got = unknown.map_or_else(|| "others".to_owned(), |key| shown(&key));
    Err(value_error(name, &format!("the keys {}", known.join(", ")), &got, "leave it out"))
}

/// Checks the shape of a row, or of so many.
fn expect_rows(name: &str, part: &Part, got: &[usize], rows: Option<usize>) -> PyResult<()> {
    let lead = rows.as_slice();
    // Compared in place: a call for a few numbers takes longer than they do.
    if got.len() == lead.len() + part.shape.len() && got.iter().eq(lead.iter().chain(&part.shape)) {
        return Ok(());
    }
    let row = got.strip_prefix(lead);
    if row == Some(&part.shape) || (part.width() == 1 && row.is_some_and(|row| row.iter().all(|n| *n == 1))) {
        return Ok(());
    }
    let named = key_of(part).map_or_else(|| name.to_owned(), |key| format!("{name}[{key:?}]"));
    let expected = format!("shape {:?}", [lead, &part.shape].concat());
    Err(value_error(&named, &expected, &format!("{got:?}"), "pass whole rows, as the buffer was made for"))
}

/// Two 64-bit words that a NumPy generator draws.
pub(crate) fn words_from(generator: &Bound<'_, PyAny>) -> PyResult<[u64; 2]> {
    let py = generator.py();
    let draw = crate::convert::args::attribute(generator, "integers")?;
    let how = crate::convert::array::new_dict(py)?;
    how.set_item("dtype", "uint64")?;
    let draw = || call(&draw, &(0, u128::from(u64::MAX) + 1).into_pyobject(py)?, Some(&how))?.extract::<u64>();
    let drawn: PyResult<_> = (|| Ok([draw()?, draw()?]))();
    drawn.map_err(|error| {
        crate::error::blamed(py, error, || {
            type_error("seed", "an integer or a numpy.random.Generator", &shown(generator), "pass one of them")
        })
    })
}

/// One thing or several, of which one takes no memory of its own.
pub(crate) enum Few<T> {
    One([T; 1]),
    Many(Vec<T>),
}

impl<T> Few<T> {
    pub(crate) fn one(thing: T) -> Self {
        Self::One([thing])
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }

    /// What is made of each.
    pub(crate) fn map<R>(self, mut make: impl FnMut(usize, T) -> PyResult<R>) -> PyResult<Few<R>> {
        Ok(match self {
            Self::One([one]) => Few::one(make(0, one)?),
            Self::Many(many) => {
                Few::Many(collected(many.len(), many.into_iter().enumerate().map(|(i, thing)| make(i, thing)))?)
            }
        })
    }

    /// What is made of each, which cannot fail.
    pub(crate) fn each<'a, R>(&'a self, make: impl Fn(&'a T) -> R) -> Few<R> {
        match self {
            Self::One([one]) => Few::one(make(one)),
            Self::Many(many) => Few::Many(many.iter().map(make).collect()),
        }
    }
}
