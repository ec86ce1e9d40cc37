//! Settings of methods, by their names in rlox's configs.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::Error;
use rlox_nn::Optimizer;

use crate::argument::{count, index, item_of, number, shown, switch, text};
use crate::error::{to_py, value_error};

const FIX: &str = "pass what rlox.learners.native_on_policy makes";

/// Settings by their names in rlox's configs; schedules have been applied.
pub(super) struct Settings<'a, 'py>(pub(super) &'a Bound<'py, PyDict>);

impl<'py> Settings<'_, 'py> {
    pub(super) fn get(&self, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
        item_of("settings", self.0.as_any(), name, FIX)
    }

    pub(super) fn number(&self, name: &'static str) -> PyResult<f32> {
        let given = self.get(name)?;
        let number = number(name, &given)? as f32;
        if number.is_finite() {
            return Ok(number);
        }
        Err(value_error(name, "a number that float32 can hold", &shown(&given), "correct it"))
    }

    pub(super) fn some(&self, name: &'static str) -> PyResult<Option<f32>> {
        if self.get(name)?.is_none() { Ok(None) } else { self.number(name).map(Some) }
    }

    pub(super) fn count(&self, name: &'static str) -> PyResult<usize> {
        count(name, &self.get(name)?)
    }

    pub(super) fn switch(&self, name: &'static str) -> PyResult<bool> {
        switch(name, &self.get(name)?)
    }

    pub(super) fn optimizer(&self) -> PyResult<Optimizer> {
        let (lr, eps) = (self.number("learning_rate")?, self.number("optimizer_eps")?);
        let made = match &*text("optimizer", &self.get("optimizer")?)? {
            "adam" => Optimizer::adam(lr).with_eps(eps),
            "rmsprop" => Optimizer::rms_prop(lr).with_eps(eps),
            other => {
                return Err(value_error("optimizer", "adam or rmsprop", other, "use backend=\"torch\" for others"));
            }
        };
        let named =
            |error: Error| to_py(error.rename_argument("lr", "learning_rate").rename_argument("eps", "optimizer_eps"));
        made.check().map_err(named)?;
        Ok(made)
    }

    /// A number in double precision.
    pub(super) fn double(&self, name: &'static str) -> PyResult<f64> {
        number(name, &self.get(name)?)
    }

    pub(super) fn double_or_none(&self, name: &'static str) -> PyResult<Option<f64>> {
        let given = self.get(name)?;
        if given.is_none() { Ok(None) } else { number(name, &given).map(Some) }
    }

    /// A count that may be 0.
    pub(super) fn index(&self, name: &'static str) -> PyResult<usize> {
        index(name, &self.get(name)?)
    }

    pub(super) fn count_or_none(&self, name: &'static str) -> PyResult<Option<usize>> {
        let given = self.get(name)?;
        if given.is_none() { Ok(None) } else { count(name, &given).map(Some) }
    }
}
