//! What a policy of networks says without learning: actions, log-probabilities and values.

use rlox_core::{Actions, Pcg64, Policy, PolicyOut, Result, check_len};

use super::PolicyNetworks;
use super::memory::{policies_of, values_of};
use crate::room::resize;
use crate::{Given, Network, Scratch, rows};

/// Memory for what is said; that of [`super::ActorCritic::evaluate`] stays as it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Acting {
    scratch: Scratch,
    /// `[policy | value]` rows of a shared trunk.
    joint: Vec<f32>,
    outputs: Vec<f32>,
    hidden: Vec<f32>,
    entropies: Vec<f32>,
}

impl Acting {
    /// What a distribution makes actions of.
    pub(super) fn given<'a>(&'a self, masks: Option<&'a [bool]>) -> Given<'a> {
        Given { outputs: &self.outputs, hidden: &self.hidden, masks }
    }
}

impl<N: Network> PolicyNetworks<N> {
    /// Outputs and hidden layer, kept nowhere else than in memory for acting.
    pub(super) fn infer(&mut self, obs: &[f32]) -> Result<()> {
        let (rows, width) = (self.rows(obs)?, self.distribution.outputs());
        let Acting { scratch, joint, outputs, hidden, .. } = &mut self.acting;
        resize("obs", outputs, rows * width, 0.0)?;
        resize("obs", hidden, rows * self.distribution.reads_hidden(), 0.0)?;
        let shared = self.critic.is_none();
        resize("obs", joint, if shared { rows * (width + 1) } else { 0 }, 0.0)?;
        let said = if shared { &mut *joint } else { &mut *outputs };
        if hidden.is_empty() {
            self.actor.infer(obs, rows, said, scratch)?;
        } else {
            self.actor.infer_hidden(obs, rows, said, hidden, scratch)?;
        }
        if shared {
            policies_of(joint, width, outputs);
        }
        Ok(())
    }

    /// The values of the observations that were inferred last.
    fn infer_values(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        let Acting { scratch, joint, .. } = &mut self.acting;
        if let Some(critic) = &self.critic {
            return critic.infer(obs, values.len(), values, scratch);
        }
        values_of(joint, self.distribution.outputs(), values);
        Ok(())
    }

    /// See [`super::ActorCritic::evaluate_actions`].
    pub(super) fn say(
        &mut self,
        (obs, masks): (&[f32], Option<&[bool]>),
        actions: Actions<'_>,
        log_probs: &mut [f32],
        values: &mut [f32],
    ) -> Result<()> {
        let rows = self.rows(obs)?;
        check_len("log_probs", log_probs.len(), rows)?;
        check_len("values", values.len(), rows)?;
        self.infer(obs)?;
        let Self { distribution, acting: Acting { outputs, hidden, entropies, .. }, .. } = self;
        resize("obs", entropies, rows, 0.0)?;
        let done = distribution.evaluate(Given { outputs, hidden, masks }, actions, log_probs, entropies);
        done.map_err(|error| rows::blame_input(error, obs, self.actor.in_dim()))?;
        self.infer_values(obs, values)
    }
}

impl<N: Network> Policy for PolicyNetworks<N> {
    fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        let rows = self.rows(obs)?;
        check_len("values", out.values.len(), rows)?;
        check_len("rngs", rngs.len(), rows)?;
        self.infer(obs)?;
        let Self { distribution, acting, .. } = self;
        let done = distribution.sample(acting.given(masks), rngs, out.actions, out.log_probs);
        done.map_err(|error| rows::blame_input(error, obs, self.actor.in_dim()))?;
        self.infer_values(obs, out.values)
    }

    fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()> {
        if obs.is_empty() && values.is_empty() {
            return Ok(());
        }
        check_len("values", values.len(), self.rows(obs)?)?;
        if self.critic.is_none() {
            self.infer(obs)?;
        }
        self.infer_values(obs, values)
    }
}
