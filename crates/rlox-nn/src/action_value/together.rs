//! All critics at once.

use rlox_core::Result;

use super::critic::Critic;
use crate::at_once::at_once_if;
use crate::{Learnable, NamedTensors, Network, Optimizer};

/// `work` with each critic: two halves of them at once, or one after the other.
pub(super) fn each<N: Network>(
    critics: &mut [Critic<N>],
    apart: bool,
    work: impl Fn(&mut Critic<N>) -> Result<()> + Sync,
) -> Result<()> {
    let (left, right) = critics.split_at_mut(critics.len().div_ceil(2));
    if right.is_empty() {
        return left.iter_mut().try_for_each(work);
    }
    let work = &work;
    at_once_if(apart, || left.iter_mut().try_for_each(work), || right.iter_mut().try_for_each(work))?;
    Ok(())
}

/// All critics as one part of a joint step.
pub(super) struct Together<'a, N> {
    pub(super) critics: &'a mut [Critic<N>],
    /// Whether two threads have computed their gradients.
    pub(super) apart: bool,
}

impl<N: Network> Learnable for Together<'_, N> {
    fn sum_of_squares(&mut self) -> Result<f64> {
        self.critics.iter_mut().try_fold(0.0, |sum, critic| Ok(sum + critic.online.grad_sq()?))
    }

    fn step(&mut self, optimizer: &Optimizer, scale: f32) -> Result<()> {
        each(self.critics, self.apart, |critic| critic.online.apply_gradients(optimizer, scale))
    }

    fn named_gradients(&self) -> NamedTensors {
        let mut all = NamedTensors::default();
        for (i, critic) in self.critics.iter().enumerate() {
            let _ = all.extend(&format!("qf{i}"), &critic.online.gradients());
        }
        all
    }

    fn forget(&mut self) {
        self.critics.iter_mut().for_each(|critic| critic.online.zero_gradients());
    }
}
