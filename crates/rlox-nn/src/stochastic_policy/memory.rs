//! What is kept of a batch of observations and the actions drawn for them.

use rlox_core::{Error, Result};

use super::SquashedGaussian;
use super::state_dependent::{Exploration, Explored};
use crate::{Scratch, rows};

/// Memory of a batch.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    pub(super) scratch: Scratch,
    pub(super) outputs: Vec<f32>,
    pub(super) hidden: Vec<f32>,
    pub(super) noise: Vec<f32>,
    pub(super) matrix: Vec<f32>,
    pub(super) gaussian: SquashedGaussian,
    pub(super) explored: Explored,
    pub(super) actions: Vec<f32>,
    pub(super) log_probs: Vec<f32>,
    pub(super) d_outputs: Vec<f32>,
    pub(super) d_hidden: Vec<f32>,
}

impl Memory {
    pub(super) fn new(action_dim: usize) -> Result<Self> {
        let [outputs, hidden, noise, matrix, actions, log_probs, d_outputs, d_hidden] = Default::default();
        let (gaussian, explored) = (SquashedGaussian::new(action_dim)?, Explored::default());
        let scratch = Scratch::default();
        Ok(Self {
            scratch,
            outputs,
            hidden,
            noise,
            matrix,
            gaussian,
            explored,
            actions,
            log_probs,
            d_outputs,
            d_hidden,
        })
    }

    pub(super) fn check_sampled(&self) -> Result<()> {
        if self.log_probs.is_empty() {
            return Err(Error::shape("rsample", "a sample to learn from", "none", "call rsample first, once a step"));
        }
        Ok(())
    }

    /// Checks that all that the network said is finite: means alone, or standard deviations with them.
    pub(super) fn check_finite(&self, means_alone: bool) -> Result<()> {
        if means_alone {
            return rows::check_said("mean", &self.outputs, self.gaussian.outputs() / 2);
        }
        self.gaussian.check_finite(&self.outputs)
    }

    /// Actions of the outputs and the noise in memory.
    pub(super) fn sample(
        &mut self,
        exploration: Option<&Exploration>,
        actions: &mut [f32],
        log_probs: &mut [f32],
    ) -> Result<()> {
        let Self { outputs, hidden, noise, matrix, gaussian, explored, .. } = self;
        let Some(exploration) = exploration else { return gaussian.sample(outputs, noise, actions, log_probs) };
        exploration.matrix(noise, matrix)?;
        explored.sample(exploration, matrix, (outputs, hidden), actions, log_probs)
    }
}
