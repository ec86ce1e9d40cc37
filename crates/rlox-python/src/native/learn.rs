//! Learning from rollouts: settings in, metrics out.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::Result;
use rlox_nn::train::{A2cConfig, ImpalaConfig, Learned, PpoConfig, Schedule};

use super::settings::Settings;
use super::{Inner, NativePolicy};
use crate::argument::instance;
use crate::array::new_dict;
use crate::error::to_py;
use crate::rollout::RolloutBuffer;

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

pub(super) fn impala<'py>(
    this: &NativePolicy,
    py: Python<'py>,
    buffer: &Bound<'py, PyAny>,
    settings: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyDict>> {
    let settings = Settings(settings);
    let config = ImpalaConfig {
        optimizer: settings.optimizer()?,
        gamma: settings.double("gamma")?,
        vtrace_lambda: settings.double("vtrace_lambda")?,
        rho_bar: settings.double("rho_bar")?,
        c_bar: settings.double("c_bar")?,
        lr_schedule: Schedule::Constant,
        ent_coef: settings.number("ent_coef")?,
        vf_coef: settings.number("vf_coef")?,
        max_grad_norm: settings.number("max_grad_norm")?,
        ..ImpalaConfig::default()
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
    let learned = learned.map_err(to_py)?;
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
