//! Steps of environments elsewhere than in Rust.

use pyo3::prelude::*;
use rlox_core::{Actions, Normalizer as CoreNormalizer, Result};
use rlox_nn::train::Outcome;

use super::super::predict::{Observed, Rows};
use super::super::{Chosen, NativePolicy, of_masks};
use super::{Inner, NativeAgent};
use crate::argument::{REAL, argument, expect_shape};
use crate::error::to_py;
use crate::flags::{Flags, flag_argument};
use crate::normalize::normalizer_of;
use crate::recycling::mapped;

/// What a step of all environments led to.
pub(super) struct Stepped<'a, 'py> {
    pub(super) next_obs: &'a Bound<'py, PyAny>,
    pub(super) obs: &'a Bound<'py, PyAny>,
    pub(super) rewards: &'a Bound<'py, PyAny>,
    pub(super) terminated: &'a Bound<'py, PyAny>,
    pub(super) truncated: &'a Bound<'py, PyAny>,
    pub(super) valid: Option<&'a Bound<'py, PyAny>>,
    /// `action_masks` and `final_action_masks`.
    pub(super) masks: [Option<&'a Bound<'py, PyAny>>; 2],
}

impl NativeAgent {
    /// Calls `f` on the agent, and on the normaliser if there is one.
    fn enter<R: Send>(
        &self,
        py: Python<'_>,
        normalizer: Option<&Bound<'_, PyAny>>,
        f: impl FnOnce(&mut Inner, Option<&mut CoreNormalizer>) -> Result<R> + Send,
    ) -> PyResult<R> {
        match normalizer_of(normalizer)? {
            Some(it) => it.inner.with(py, true, |it| self.inner.enter(|inner| f(inner, Some(it)))),
            None => self.inner.with(py, true, |inner| f(inner, None)),
        }
    }

    fn expect_rows(&self, name: &'static str, rows: &Rows<'_>) -> PyResult<()> {
        expect_shape(name, rows.shape(), self.num_envs, &self.obs_shape)
    }
}

pub(super) fn start_at<'py>(
    this: &NativeAgent,
    py: Python<'py>,
    obs: &Bound<'py, PyAny>,
    fresh: bool,
    action_masks: Option<&Bound<'py, PyAny>>,
    normalizer: Option<&Bound<'py, PyAny>>,
) -> PyResult<()> {
    let obs = Observed::new("obs", &this.encoding, obs)?;
    let masks = NativePolicy::masks(py, action_masks)?;
    let obs = obs.read()?;
    this.expect_rows("obs", &obs)?;
    let (obs, masks) = (obs.data(), masks.as_ref().map(Flags::slice));
    this.enter(py, normalizer, |inner, normalizer| {
        let Inner { agent, inputs: [inputs, _] } = inner;
        this.encoding.encode(obs, 0..this.num_envs, inputs)?;
        if fresh { agent.start_at(inputs, masks, normalizer) } else { agent.go_on_at(inputs, masks) }
    })
}

pub(super) fn act<'py>(
    this: &NativeAgent,
    py: Python<'py>,
    normalizer: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let chosen = this.enter(py, normalizer, |inner, normalizer| {
        Ok(match inner.agent.act(normalizer).map_err(of_masks)? {
            Actions::Discrete(actions) => Chosen::Discrete(mapped(actions, |x| x)?),
            Actions::Continuous(actions) => Chosen::Continuous(mapped(actions, |x| x)?),
        })
    })?;
    chosen.into_array(py, &[&[this.num_envs][..], &this.action.shape()].concat())
}

pub(super) fn observe<'py>(
    this: &NativeAgent,
    py: Python<'py>,
    stepped: &Stepped<'_, 'py>,
    normalizer: Option<&Bound<'py, PyAny>>,
) -> PyResult<()> {
    let next_obs = Observed::new("next_obs", &this.encoding, stepped.next_obs)?;
    let obs = Observed::new("obs", &this.encoding, stepped.obs)?;
    let rewards = argument::<f64>("rewards", stepped.rewards, &REAL)?;
    let terminated = flag_argument("terminated", stepped.terminated)?;
    let truncated = flag_argument("truncated", stepped.truncated)?;
    let valid = stepped.valid.map(|valid| flag_argument("valid", valid)).transpose()?;
    let [masks, final_masks] = stepped.masks;
    let masks = masks.map(|masks| flag_argument("action_masks", masks)).transpose()?;
    let final_masks = final_masks.map(|masks| flag_argument("final_action_masks", masks)).transpose()?;
    let (next_obs, obs, rewards) = (next_obs.read()?, obs.read()?, rewards.read(false)?);
    let (terminated, truncated) = (terminated.read(py, false)?, truncated.read(py, false)?);
    let valid = valid.map(|valid| valid.read(py, false)).transpose()?;
    let masks = masks.map(|masks| masks.read(py, false)).transpose()?;
    let final_masks = final_masks.map(|masks| masks.read(py, false)).transpose()?;
    this.expect_rows("next_obs", &next_obs)?;
    this.expect_rows("obs", &obs)?;
    expect_shape("rewards", rewards.shape(), this.num_envs, &[])?;
    let (next_obs, obs, rewards) = (next_obs.data(), obs.data(), rewards.slice());
    let (terminated, truncated) = (terminated.slice(), truncated.slice());
    let [valid, masks, final_masks] = [&valid, &masks, &final_masks].map(|flags| flags.as_ref().map(Flags::slice));
    this.enter(py, normalizer, |inner, normalizer| {
        let Inner { agent, inputs: [inputs, next_inputs] } = inner;
        this.encoding.encode(obs, 0..this.num_envs, inputs)?;
        this.encoding.encode(next_obs, 0..this.num_envs, next_inputs)?;
        let (next_obs, obs) = (&*next_inputs, &*inputs);
        let outcome = Outcome { next_obs, obs, rewards, terminated, truncated, valid, masks, final_masks };
        agent.observe(&outcome, normalizer)
    })
}

pub(super) fn learn(this: &NativeAgent, py: Python<'_>, normalizer: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
    let done = this
        .enter(py, normalizer, |inner, normalizer| Ok(inner.agent.learn(normalizer.as_deref(), &mut this.pause())))?;
    done.map_err(to_py)
}
