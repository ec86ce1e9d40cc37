//! What an agent learned last, for checkpoints.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_nn::train::OffPolicyLearned;

use super::super::settings::Settings;
use crate::argument::{instance, item_of};
use crate::array::new_dict;

/// What all algorithms tell, and what some do.
const NAMES: [&str; 7] =
    ["critic_loss", "mean_value", "grad_norm", "learning_rate", "actor_loss", "ent_coef", "ent_coef_loss"];

/// As a dict by name, with None for what nobody told.
pub(super) fn told(py: Python<'_>, learned: Option<OffPolicyLearned>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(learned) = learned else { return Ok(None) };
    let dict = new_dict(py)?;
    let OffPolicyLearned { critic_loss, mean_value, grad_norm, actor_loss, ent_coef, ent_coef_loss, learning_rate } =
        learned;
    let always = [critic_loss, mean_value, grad_norm, learning_rate].map(Some);
    for (name, mean) in NAMES.into_iter().zip(always.into_iter().chain([actor_loss, ent_coef, ent_coef_loss])) {
        dict.set_item(name, mean.map(f64::from))?;
    }
    Ok(Some(dict))
}

/// What `told` gave.
pub(super) fn taken(given: &Bound<'_, PyAny>) -> PyResult<Option<OffPolicyLearned>> {
    if given.is_none() {
        return Ok(None);
    }
    let said = Settings(instance("learned", given, "dict, or None")?);
    for name in NAMES {
        item_of("learned", given, name, "pass what learned gave")?;
    }
    let mean = |name| said.double(name).map(|mean| mean as f32);
    let some = |name| said.double_or_none(name).map(|mean| mean.map(|mean| mean as f32));
    Ok(Some(OffPolicyLearned {
        critic_loss: mean("critic_loss")?,
        mean_value: mean("mean_value")?,
        grad_norm: mean("grad_norm")?,
        actor_loss: some("actor_loss")?,
        ent_coef: some("ent_coef")?,
        ent_coef_loss: some("ent_coef_loss")?,
        learning_rate: mean("learning_rate")?,
    }))
}
