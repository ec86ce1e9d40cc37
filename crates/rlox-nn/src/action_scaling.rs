//! Scaling between policy actions in [-1, 1] and environment actions.

use rlox_core::{Error, Result, Space, error::check_len};

use crate::builders::suggest_algorithms;

/// Scales actions between [-1, 1] and the bounds of a Box space.
///
/// Replay buffers hold the unscaled actions, in [-1, 1]. An element with equal bounds always has
/// this value in the environment, whatever the action of the policy is.
///
/// ```
/// use rlox_core::Space;
/// use rlox_nn::ActionScaling;
///
/// let scaling = ActionScaling::new(&Space::uniform_box(-2.0, 4.0, &[1]))?;
/// let mut actions = [-1.0, 0.0, 1.0];
/// scaling.scale(&mut actions)?;
/// assert_eq!(actions, [-2.0, 1.0, 4.0]);
/// scaling.unscale(&mut actions)?;
/// assert_eq!(actions, [-1.0, 0.0, 1.0]);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ActionScaling {
    low: Vec<f32>,
    high: Vec<f32>,
}

impl ActionScaling {
    /// Returns the scaling for the bounds of `space`.
    ///
    /// # Errors
    /// The errors of [`Space::validate`], and [`Error::Space`] if the space is not a Box or has
    /// infinite bounds.
    pub fn new(space: &Space) -> Result<Self> {
        const FIX: &str = "wrap the environment so that its actions have finite bounds, or use PPO or A2C";
        space.validate("action space")?;
        let Space::Box { low, high, .. } = space else {
            return Err(Error::space("action space", "a Box", space.to_json().to_string(), suggest_algorithms(space)));
        };
        let is_unbounded = |(low, high): (&f32, &f32)| !(low.is_finite() && high.is_finite());
        if let Some(i) = low.iter().zip(high).position(is_unbounded) {
            let got = format!("[{}, {}]", low[i], high[i]);
            return Err(Error::space("action space", "finite bounds", got, FIX).at_index(i));
        }
        Ok(Self { low: low.clone(), high: high.clone() })
    }

    /// Returns the number of elements of an action.
    pub fn dim(&self) -> usize {
        self.low.len()
    }

    fn check(&self, actions: &[f32]) -> Result<()> {
        check_len("actions", actions.len(), actions.len() / self.dim() * self.dim())
    }

    /// Scales actions, `[N, a]`, from [-1, 1] to the bounds, in place.
    ///
    /// # Errors
    /// [`Error::Shape`] if the last row is incomplete.
    pub fn scale(&self, actions: &mut [f32]) -> Result<()> {
        self.check(actions)?;
        for row in actions.chunks_exact_mut(self.dim()) {
            for (action, (low, high)) in row.iter_mut().zip(self.low.iter().zip(&self.high)) {
                // The sum cannot overflow. The clamp makes elements with equal bounds exact.
                *action = ((0.5 - 0.5 * *action) * low + (0.5 + 0.5 * *action) * high).clamp(*low, *high);
            }
        }
        Ok(())
    }

    /// Scales actions, `[N, a]`, from the bounds to [-1, 1], in place.
    ///
    /// An element with equal bounds becomes 0.
    ///
    /// # Errors
    /// [`Error::Shape`] if the last row is incomplete.
    pub fn unscale(&self, actions: &mut [f32]) -> Result<()> {
        self.check(actions)?;
        for row in actions.chunks_exact_mut(self.dim()) {
            for (action, (low, high)) in row.iter_mut().zip(self.low.iter().zip(&self.high)) {
                if low == high {
                    *action = 0.0;
                    continue;
                }
                // The difference of two f32 bounds can exceed the range of f32.
                let [action_f64, low, high] = [*action, *low, *high].map(f64::from);
                *action = (2.0 * ((action_f64 - low) / (high - low)) - 1.0) as f32;
            }
        }
        Ok(())
    }
}
