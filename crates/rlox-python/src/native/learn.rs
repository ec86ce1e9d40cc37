//! Learning from rollouts: settings in, metrics out.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::Result;
use rlox_nn::Optimizer;
use rlox_nn::train::{A2cConfig, Learned, PpoConfig};

use super::{Inner, NativePolicy};
use crate::argument::{count, instance, item, number, switch, text};
use crate::array::new_dict;
use crate::error::value_error;
use crate::rollout::RolloutBuffer;

const FIX: &str = "pass what rlox.native makes";

/// Settings by their names in rlox's configs; schedules have been applied.
struct Settings<'a, 'py>(&'a Bound<'py, PyDict>);

impl Settings<'_, '_> {
    fn number(&self, name: &'static str) -> PyResult<f32> {
        Ok(number(name, &item(self.0.as_any(), name, FIX)?)? as f32)
    }

    fn some(&self, name: &'static str) -> PyResult<Option<f32>> {
        let given = item(self.0.as_any(), name, FIX)?;
        if given.is_none() { Ok(None) } else { self.number(name).map(Some) }
    }

    fn count(&self, name: &'static str) -> PyResult<usize> {
        count(name, &item(self.0.as_any(), name, FIX)?)
    }

    fn switch(&self, name: &'static str) -> PyResult<bool> {
        switch(name, &item(self.0.as_any(), name, FIX)?)
    }

    fn optimizer(&self) -> PyResult<Optimizer> {
        let (lr, eps) = (self.number("learning_rate")?, self.number("optimizer_eps")?);
        match &*text("optimizer", &item(self.0.as_any(), "optimizer", FIX)?)? {
            "adam" => Ok(Optimizer::Adam { lr, beta1: 0.9, beta2: 0.999, eps }),
            "rmsprop" => Ok(Optimizer::RmsProp { lr, alpha: 0.99, eps }),
            other => Err(value_error("optimizer", "adam or rmsprop", other, "use backend=\"torch\" for others")),
        }
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
    learn(policy, py, buffer, |inner, buffer| {
        let Inner { policy: networks, streams, minibatches, .. } = inner;
        policy.stoppable(|stop| config.learn(networks.as_mut(), buffer, minibatches, &mut streams.order, 0.0, stop))
    })
}

pub(super) fn a2c<'py>(
    policy: &NativePolicy,
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
    learn(policy, py, buffer, |inner, buffer| {
        let Inner { policy, minibatches, .. } = inner;
        config.learn(policy.as_mut(), buffer, minibatches, 0.0)
    })
}

fn learn<'py>(
    policy: &NativePolicy,
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    f: impl FnOnce(&mut Inner, &mut rlox_core::RolloutBuffer) -> Result<Learned> + Send,
) -> PyResult<Bound<'py, PyDict>> {
    let buffer = instance::<RolloutBuffer>("buffer", buffer, "RolloutBuffer")?.get();
    let learned = buffer.inner.with(py, true, |buffer| {
        if !buffer.is_finished() {
            let fix = "collect one, or call finish";
            return Err(rlox_core::Error::config("buffer", "a finished rollout", "one that is not", fix));
        }
        policy.check(buffer)?;
        policy.inner.enter(|inner| f(inner, buffer))
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
    dict.set_item("updates", learned.updates)?;
    Ok(dict)
}
