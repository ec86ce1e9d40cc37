//! All critics at once.

use rlox_core::Result;

use super::critic::Critic;
use crate::at_once::{STEP_WORK, at_once};
use crate::{Learnable, NamedTensors, Network, Optimizer};

/// `work` with each critic: two halves of them at once if there is enough to do.
pub(super) fn each<N: Network>(
    critics: &mut [Critic<N>],
    multiplications: usize,
    work: impl Fn(&mut Critic<N>) -> Result<()> + Sync,
) -> Result<()> {
    let (left, right) = critics.split_at_mut(critics.len().div_ceil(2));
    if right.is_empty() {
        return left.iter_mut().try_for_each(work);
    }
    let work = &work;
    at_once(
        multiplications * left.len(),
        || left.iter_mut().try_for_each(work),
        || right.iter_mut().try_for_each(work),
    )?;
    Ok(())
}

/// All critics as one part of a joint step.
pub(super) struct Together<'a, N>(pub(super) &'a mut [Critic<N>]);

impl<N: Network> Learnable for Together<'_, N> {
    fn sum_of_squares(&mut self) -> Result<f64> {
        self.0.iter_mut().try_fold(0.0, |sum, critic| Ok(sum + critic.online.grad_sq()?))
    }

    fn step(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        let work = STEP_WORK * self.0[0].online.num_parameters();
        each(self.0, work, |critic| critic.online.apply_gradients(optimizer, scale))
    }

    fn named_gradients(&self) -> NamedTensors {
        let mut all = NamedTensors::default();
        for (i, critic) in self.0.iter().enumerate() {
            let _ = all.extend(&format!("qf{i}"), &critic.online.gradients());
        }
        all
    }

    fn forget(&mut self) {
        self.0.iter_mut().for_each(|critic| critic.online.zero_gradients());
    }
}
