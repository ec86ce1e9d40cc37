//! The trait [`Policy`], which rollout collection in Rust calls, and the policy [`RandomPolicy`].

use crate::{ActionsMut, Error, Pcg64, Result, Space, error::check_len};

/// Output slices of a policy for a batch of observations.
#[derive(Debug)]
pub struct PolicyOut<'a> {
    /// The actions, `[N, a]`.
    pub actions: ActionsMut<'a>,
    /// The log-probabilities of the actions, `[N]`.
    pub log_probs: &'a mut [f32],
    /// The values of the observations, `[N]`.
    pub values: &'a mut [f32],
}

/// A policy with a value function, evaluated on batches of observations.
///
/// ```
/// use rlox_core::{ActionsMut, Pcg64, Policy, PolicyOut, Result};
///
/// /// Always chooses action 0.
/// struct Still;
///
/// impl Policy for Still {
///     fn act(
///         &mut self,
///         _obs: &[f32],
///         _masks: Option<&[bool]>,
///         _rngs: &mut [Pcg64],
///         out: PolicyOut<'_>,
///     ) -> Result<()> {
///         if let ActionsMut::Discrete(actions) = out.actions {
///             actions.fill(0);
///         }
///         out.log_probs.fill(0.0);
///         self.value(_obs, out.values)
///     }
///     fn value(&mut self, _obs: &[f32], values: &mut [f32]) -> Result<()> {
///         values.fill(0.0);
///         Ok(())
///     }
/// }
/// ```
pub trait Policy {
    /// Writes actions, log-probabilities of the actions, and values for the observations `obs`,
    /// `[N, d]`.
    ///
    /// The action of row `i` uses only the random generator `rngs[i]`, so results do not depend on
    /// the division into batches. `masks`, `[N, n]` for `n` actions, is `Some` if the environments
    /// mask actions ([`crate::Env::action_mask`]). The policy must not choose an action whose mask
    /// is false.
    ///
    /// # Errors
    /// Any error of the policy. The contents of `out` are unspecified after an error.
    fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()>;

    /// Writes the values of the observations `obs`, `[K, d]`, for any number K of rows.
    ///
    /// # Errors
    /// Any error of the policy. The contents of `values` are unspecified after an error.
    fn value(&mut self, obs: &[f32], values: &mut [f32]) -> Result<()>;
}

/// Policy that draws actions uniformly from an action space, without masked actions. The value of
/// every observation is 0.
///
/// ```
/// use rlox_core::{ActionsMut, Pcg64, Policy, PolicyOut, RandomPolicy, Space};
///
/// let mut policy = RandomPolicy::new(&Space::discrete(2))?;
/// let (mut actions, mut log_probs, mut values) = ([9], [0.0], [0.0]);
/// let out = PolicyOut {
///     actions: ActionsMut::Discrete(&mut actions),
///     log_probs: &mut log_probs,
///     values: &mut values,
/// };
/// policy.act(&[0.0; 4], None, &mut [Pcg64::seed_from(0)], out)?;
/// assert!(actions[0] == 0 || actions[0] == 1);
/// assert_eq!(log_probs[0], 0.5_f32.ln());
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RandomPolicy {
    limits: Limits,
    log_prob: f32,
}

#[derive(Clone, Debug)]
enum Limits {
    Counts(Vec<i64>),
    Bounds(Vec<(f64, f64)>),
}

impl RandomPolicy {
    /// Creates a policy for `space`. A component of a `Box` space with an infinite bound is drawn
    /// from `[-1, 1)`.
    ///
    /// # Errors
    /// [`Error::Space`] if the space is invalid.
    pub fn new(space: &Space) -> Result<Self> {
        space.validate("action space")?;
        let limits = match space {
            Space::Discrete { n, .. } => Limits::Counts(vec![*n]),
            Space::MultiDiscrete { nvec } => Limits::Counts(nvec.clone()),
            Space::MultiBinary { n } => Limits::Counts(vec![2; *n]),
            Space::Box { low, high, .. } => Limits::Bounds(
                low.iter()
                    .zip(high)
                    .map(|(low, high)| {
                        let finite = low.is_finite() && high.is_finite();
                        if finite { (f64::from(*low), f64::from(*high)) } else { (-1.0, 1.0) }
                    })
                    .collect(),
            ),
        };
        let log_prob = match &limits {
            Limits::Counts(counts) => -counts.iter().map(|n| (*n as f32).ln()).sum::<f32>(),
            Limits::Bounds(bounds) => -bounds.iter().map(|(low, high)| (high - low).ln() as f32).sum::<f32>(),
        };
        Ok(Self { limits, log_prob })
    }
}

impl Policy for RandomPolicy {
    fn act(&mut self, obs: &[f32], masks: Option<&[bool]>, rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
        if let (Some(masks), Limits::Counts(counts)) = (masks, &self.limits) {
            return act_masked(masks, counts, rngs, out);
        }
        match (&self.limits, out.actions) {
            (Limits::Counts(counts), ActionsMut::Discrete(actions)) => {
                for (row, rng) in actions.chunks_exact_mut(counts.len()).zip(rngs) {
                    for (action, n) in row.iter_mut().zip(counts) {
                        *action = rng.integers(0, *n);
                    }
                }
            }
            (Limits::Bounds(bounds), ActionsMut::Continuous(actions)) => {
                for (row, rng) in actions.chunks_exact_mut(bounds.len()).zip(rngs) {
                    for (action, (low, high)) in row.iter_mut().zip(bounds) {
                        *action = rng.uniform(*low, *high) as f32;
                    }
                }
            }
            (limits, _) => {
                let expected = if matches!(limits, Limits::Counts(_)) { "integer actions" } else { "f32 actions" };
                return Err(Error::space(
                    "actions",
                    expected,
                    "actions of the other type",
                    "use a policy for the action space of the buffer",
                ));
            }
        }
        out.log_probs.fill(self.log_prob);
        self.value(obs, out.values)
    }

    fn value(&mut self, _obs: &[f32], values: &mut [f32]) -> Result<()> {
        values.fill(0.0);
        Ok(())
    }
}

/// Draws one action per row, uniformly from the actions that the mask of the row allows.
fn act_masked(masks: &[bool], counts: &[i64], rngs: &mut [Pcg64], out: PolicyOut<'_>) -> Result<()> {
    let (ActionsMut::Discrete(actions), [n]) = (out.actions, counts) else {
        let got = format!("{} components", counts.len());
        return Err(Error::space("masks", "one Discrete action per environment", got, "call act without masks"));
    };
    check_len("masks", masks.len(), usize::try_from(*n).unwrap_or(usize::MAX).saturating_mul(actions.len()))?;
    let rows = masks.chunks_exact(masks.len() / actions.len().max(1));
    let allowed = |mask: &[bool]| mask.iter().filter(|allowed| **allowed).count();
    if let Some(env) = rows.clone().position(|mask| allowed(mask) == 0) {
        let hint = "terminate the episode if no action is allowed";
        return Err(Error::action("masks", "at least one allowed action", "none", hint).at_env(env));
    }
    let outputs = actions.iter_mut().zip(out.log_probs.iter_mut());
    for ((mask, rng), (action, log_prob)) in rows.zip(rngs).zip(outputs) {
        let count = allowed(mask);
        let mut remaining = rng.integers(0, count as i64);
        for (i, _) in mask.iter().enumerate().filter(|(_, allowed)| **allowed) {
            if remaining == 0 {
                *action = i as i64;
                break;
            }
            remaining -= 1;
        }
        *log_prob = -(count as f32).ln();
    }
    out.values.fill(0.0);
    Ok(())
}
