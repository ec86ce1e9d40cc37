//! Learning from rollouts: settings in, metrics out.

use pyo3::exceptions::PyFloatingPointError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{Error, Result};
use rlox_nn::Optimizer;
use rlox_nn::train::{A2cConfig, Learned, PpoConfig};

use super::{Inner, NativePolicy};
use crate::argument::{count, instance, item_of, number, shown, switch, text};
use crate::array::new_dict;
use crate::error::{to_py, value_error};
use crate::rollout::RolloutBuffer;

const FIX: &str = "pass what rlox.native makes";

/// Settings by their names in rlox's configs; schedules have been applied.
struct Settings<'a, 'py>(&'a Bound<'py, PyDict>);

impl<'py> Settings<'_, 'py> {
    fn get(&self, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
        item_of("settings", self.0.as_any(), name, FIX)
    }

    fn number(&self, name: &'static str) -> PyResult<f32> {
        let given = self.get(name)?;
        let number = number(name, &given)? as f32;
        if number.is_finite() {
            return Ok(number);
        }
        Err(value_error(name, "a number that float32 can hold", &shown(&given), "correct it"))
    }

    fn some(&self, name: &'static str) -> PyResult<Option<f32>> {
        if self.get(name)?.is_none() { Ok(None) } else { self.number(name).map(Some) }
    }

    fn count(&self, name: &'static str) -> PyResult<usize> {
        count(name, &self.get(name)?)
    }

    fn switch(&self, name: &'static str) -> PyResult<bool> {
        switch(name, &self.get(name)?)
    }

    fn optimizer(&self) -> PyResult<Optimizer> {
        let (lr, eps) = (self.number("learning_rate")?, self.number("optimizer_eps")?);
        let made = match &*text("optimizer", &self.get("optimizer")?)? {
            "adam" => Optimizer::adam(lr).with_eps(eps),
            "rmsprop" => Optimizer::rms_prop(lr).with_eps(eps),
            other => {
                return Err(value_error("optimizer", "adam or rmsprop", other, "use backend=\"torch\" for others"));
            }
        };
        let named = |error: Error| to_py(error.renamed("lr", "learning_rate").renamed("eps", "optimizer_eps"));
        made.check().map_err(named)?;
        Ok(made)
    }
}

pub(super) fn ppo<'py>(
    policy: &NativePolicy,
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    settings: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyDict>> {
    let settings = Settings(settings);
    let config = PpoConfig {
        batch_size: settings.count("batch_size")?,
        n_epochs: settings.count("n_epochs")?,
        optimizer: settings.optimizer()?,
        clip_coef: settings.number("clip_coef")?,
        clip_coef_vf: settings.some("clip_coef_vf")?,
        normalize_advantage: settings.switch("normalize_advantage")?,
        ent_coef: settings.number("ent_coef")?,
        vf_coef: settings.number("vf_coef")?,
        max_grad_norm: settings.number("max_grad_norm")?,
        target_kl: settings.some("target_kl")?,
        ..PpoConfig::default()
    };
    config.check().map_err(to_py)?;
    learn(policy, py, buffer, |inner, buffer| {
        let Inner { policy: networks, streams, minibatches, .. } = inner;
        policy.stoppable(|stop| config.learn(networks.as_mut(), buffer, minibatches, &mut streams.order, 0.0, stop))
    })
}

pub(super) fn a2c<'py>(
    this: &NativePolicy,
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    settings: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyDict>> {
    let settings = Settings(settings);
    let config = A2cConfig {
        optimizer: settings.optimizer()?,
        normalize_advantage: settings.switch("normalize_advantage")?,
        ent_coef: settings.number("ent_coef")?,
        vf_coef: settings.number("vf_coef")?,
        max_grad_norm: settings.number("max_grad_norm")?,
        ..A2cConfig::default()
    };
    config.check().map_err(to_py)?;
    learn(this, py, buffer, |inner, buffer| {
        let Inner { policy, minibatches, .. } = inner;
        this.stoppable(|stop| config.learn(policy.as_mut(), buffer, minibatches, 0.0, stop))
    })
}

fn learn<'py>(
    policy: &NativePolicy,
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    f: impl FnOnce(&mut Inner, &mut rlox_core::RolloutBuffer) -> Result<Learned> + Send,
) -> PyResult<Bound<'py, PyDict>> {
    let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
    let (learned, std) = buffer.inner.with(py, true, |buffer| {
        policy.check(buffer)?;
        policy.inner.enter(|inner| Ok((f(inner, buffer), inner.policy.mean_std())))
    })?;
    let learned = learned.map_err(|error| match &error {
        Error::Config(wrong) if wrong.argument == "gradients" || wrong.argument.starts_with("parameters") => {
            PyFloatingPointError::new_err(error.to_string())
        }
        _ => to_py(error),
    })?;
    let dict = new_dict(py)?;
    let stats = learned.stats;
    for (name, number) in [
        ("policy_loss", stats.policy_loss),
        ("value_loss", stats.value_loss),
        ("entropy_loss", stats.entropy_loss),
        ("loss", stats.loss),
        ("approx_kl", stats.approx_kl),
        ("clip_fraction", stats.clip_fraction),
        ("explained_variance", learned.explained_variance),
    ] {
        dict.set_item(name, f64::from(number))?;
    }
    if let Some(std) = std {
        dict.set_item("std", f64::from(std))?;
    }
    dict.set_item("updates", learned.updates)?;
    Ok(dict)
}
