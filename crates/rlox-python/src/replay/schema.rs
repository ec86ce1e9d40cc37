//! The schema of a replay buffer's transitions, and conversion of rows to this schema.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rlox_core::replay::{FieldSpec, TransitionSchema};

use crate::alloc::try_collect;
use crate::convert::args::{item_of, short_repr, sizes};
use crate::convert::observation::{ObsArgument, ObsInput, dtype_of, is_dtype};
use crate::convert::options::{extra_of, from_items, text_in};
use crate::error::{type_error, value_error};
use crate::sync::gil::call;

/// Prefix of field names of a Dict observation, as in `obs.camera`.
const OBS: &str = "obs";
/// Name of the argument with the extra fields.
const EXTRA: &str = "extra";

/// Makes a field from a name, a shape and a dtype.
fn make_field(
    name: &'static str,
    dim: &Bound<'_, PyAny>,
    argument: &'static str,
    dtype: &Bound<'_, PyAny>,
) -> PyResult<FieldSpec> {
    let dtype = dtype_of(argument, dtype)?;
    Ok(FieldSpec::new(name, &sizes(if name == OBS { "obs_dim" } else { "act_dim" }, dim)?, dtype))
}

/// Makes the schema of a buffer.
pub(crate) fn make_schema(
    [obs_dim, act_dim]: [&Bound<'_, PyAny>; 2],
    dtypes: [Option<&Bound<'_, PyAny>>; 2],
    extra: Option<&Bound<'_, PyAny>>,
    frame_stack: usize,
) -> PyResult<TransitionSchema> {
    let single = PyString::new(obs_dim.py(), "float32").into_any();
    let [obs_dtype, act_dtype] = dtypes.map(|dtype| dtype.unwrap_or(&single));
    let obs = if let Ok(dict) = obs_dim.cast::<PyDict>() {
        from_items(Some(dict), 12, |(name, spec)| {
            let mismatch = |object: &Bound<'_, PyAny>| {
                type_error(
                    "obs_dim",
                    "a dict {name: shape} or {name: (shape, dtype)}",
                    &short_repr(object),
                    "pass one for every key",
                )
            };
            let name = text_in(&name)?.ok_or_else(|| mismatch(&name))?;
            let (row, dtype) = match spec.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() {
                Ok((row, dtype)) if is_dtype(&dtype) => (row, dtype),
                _ => (spec, obs_dtype.clone()),
            };
            let dtype = dtype_of("obs_dtype", &dtype)?;
            Ok(FieldSpec::new(format!("{OBS}.{name}"), &sizes("obs_dim", &row)?, dtype))
        })?
    } else {
        vec![make_field(OBS, obs_dim, "obs_dtype", obs_dtype)?]
    };
    let action = make_field("actions", act_dim, "act_dtype", act_dtype)?;
    let extra = extra_of(extra)?.into_iter().map(|(name, shape, dtype)| FieldSpec::new(name, &shape, dtype)).collect();
    Ok(TransitionSchema { obs, action, extra, frame_stack })
}

/// Returns the key of a field of a Dict observation, or `None` for another field.
pub(crate) fn key_of(spec: &FieldSpec) -> Option<&str> {
    spec.name.strip_prefix("obs.")
}

/// Rows of several fields that are converted but not yet read; see [`crate::convert::args`].
pub(crate) struct FieldsArgument<'a, 'py> {
    name: &'static str,
    specs: &'a [FieldSpec],
    arguments: OneOrMany<ObsArgument<'py>>,
}

impl<'a, 'py> FieldsArgument<'a, 'py> {
    /// Converts an array for a single field, or a mapping of arrays. May run Python code.
    pub(crate) fn new(name: &'static str, object: &Bound<'py, PyAny>, specs: &'a [FieldSpec]) -> PyResult<Self> {
        let argument_for_key = |spec: &FieldSpec, key: &str| {
            ObsArgument::new(name, &item_of(name, object, key, "pass one array per key")?, spec.dtype)
        };
        let arguments = match specs {
            [spec] if name != EXTRA && key_of(spec).is_none() => {
                OneOrMany::one(ObsArgument::new(name, object, spec.dtype)?)
            }
            specs => {
                check_unknown_keys(name, object, specs)?;
                let each = specs.iter().map(|spec| argument_for_key(spec, key_of(spec).unwrap_or(&spec.name)));
                OneOrMany::Many(try_collect(specs.len(), each)?)
            }
        };
        Ok(Self { name, specs, arguments })
    }

    /// Returns an argument without fields.
    pub(crate) fn none() -> Self {
        Self { name: EXTRA, specs: &[], arguments: OneOrMany::Many(Vec::new()) }
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.arguments.as_slice().iter().map(ObsArgument::len).sum()
    }

    /// Reads the elements of `rows` rows, or of a single row if `rows` is `None`.
    pub(crate) fn read(self, rows: Option<usize>, hold: bool) -> PyResult<OneOrMany<ObsInput<'py>>> {
        let Self { name, specs, arguments } = self;
        arguments.map(|i, argument| {
            let input = argument.read(hold)?;
            expect_rows(name, &specs[i], input.shape(), rows)?;
            Ok(input)
        })
    }
}

/// Returns an error for a dict with a key that is not a field.
fn check_unknown_keys(name: &str, object: &Bound<'_, PyAny>, specs: &[FieldSpec]) -> PyResult<()> {
    let named = |spec: &FieldSpec| key_of(spec).unwrap_or(&spec.name).to_owned();
    let Ok(dict) = object.cast::<PyDict>() else { return Ok(()) };
    if dict.len() <= specs.len() {
        return Ok(());
    }
    let known: Vec<_> = specs.iter().map(named).collect();
    let unknown = dict.keys().iter().find(|key| !text_in(key).ok().flatten().is_some_and(|key| known.contains(&key)));
    let got = unknown.map_or_else(|| "other keys".to_owned(), |key| short_repr(&key));
    Err(value_error(name, &format!("the keys {}", known.join(", ")), &got, "remove the unknown key"))
}

/// Checks the shape of `rows` rows, or of a single row if `rows` is `None`.
fn expect_rows(name: &str, spec: &FieldSpec, got: &[usize], rows: Option<usize>) -> PyResult<()> {
    let lead = rows.as_slice();
    // Compared in place, because a function call takes longer than comparing a few numbers.
    if got.len() == lead.len() + spec.shape.len() && got.iter().eq(lead.iter().chain(&spec.shape)) {
        return Ok(());
    }
    let row = got.strip_prefix(lead);
    if row == Some(&spec.shape) || (spec.width() == 1 && row.is_some_and(|row| row.iter().all(|n| *n == 1))) {
        return Ok(());
    }
    let named = key_of(spec).map_or_else(|| name.to_owned(), |key| format!("{name}[{key:?}]"));
    let expected = format!("shape {:?}", [lead, &spec.shape].concat());
    Err(value_error(&named, &expected, &format!("{got:?}"), "pass the shape with which the buffer was created"))
}

/// Draws two 64-bit words from a NumPy generator.
pub(crate) fn draw_entropy(generator: &Bound<'_, PyAny>) -> PyResult<[u64; 2]> {
    let py = generator.py();
    let draw = crate::convert::args::attribute(generator, "integers")?;
    let kwargs = crate::convert::array::new_dict(py)?;
    kwargs.set_item("dtype", "uint64")?;
    let draw_u64 = || call(&draw, &(0, u128::from(u64::MAX) + 1).into_pyobject(py)?, Some(&kwargs))?.extract::<u64>();
    let drawn: PyResult<_> = (|| Ok([draw_u64()?, draw_u64()?]))();
    drawn.map_err(|error| {
        crate::error::replace_ordinary_error(py, error, || {
            type_error(
                "seed",
                "an integer or a numpy.random.Generator",
                &short_repr(generator),
                "pass an int or a Generator",
            )
        })
    })
}

/// One value, stored without an allocation, or several values.
pub(crate) enum OneOrMany<T> {
    One([T; 1]),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub(crate) fn one(thing: T) -> Self {
        Self::One([thing])
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }

    /// Maps each value with a function that may fail.
    pub(crate) fn map<R>(self, mut make: impl FnMut(usize, T) -> PyResult<R>) -> PyResult<OneOrMany<R>> {
        Ok(match self {
            Self::One([one]) => OneOrMany::one(make(0, one)?),
            Self::Many(many) => {
                OneOrMany::Many(try_collect(many.len(), many.into_iter().enumerate().map(|(i, thing)| make(i, thing)))?)
            }
        })
    }

    /// Maps each value with a function that cannot fail.
    pub(crate) fn each<'a, R>(&'a self, make: impl Fn(&'a T) -> R) -> OneOrMany<R> {
        match self {
            Self::One([one]) => OneOrMany::one(make(one)),
            Self::Many(many) => OneOrMany::Many(many.iter().map(make).collect()),
        }
    }
}
