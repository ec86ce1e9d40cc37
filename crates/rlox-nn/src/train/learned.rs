//! What minibatches of off-policy methods say.

use serde_json::{Value, json};

use super::settings::number;

/// What a minibatch of an off-policy method said, or the means of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OffPolicyLearned {
    /// The loss of the critics, or of the Q-function.
    pub critic_loss: f32,
    /// The mean value of the actions that were taken.
    pub mean_value: f32,
    /// The norm of the critics' gradients, or the Q-function's, before they were clipped.
    pub grad_norm: f32,
    /// The loss of the actor, where there is one that has learned.
    pub actor_loss: Option<f32>,
    /// What entropy is worth, to SAC.
    pub ent_coef: Option<f32>,
    /// The loss of that, where it is learned.
    pub ent_coef_loss: Option<f32>,
    /// The learning rate there was.
    pub learning_rate: f32,
}

impl OffPolicyLearned {
    pub(super) fn to_json(self) -> Value {
        let told = |x: Option<f32>| x.map_or(Value::Null, |x| number(x.into()));
        let Self { critic_loss, mean_value, grad_norm, actor_loss, ent_coef, ent_coef_loss, learning_rate } = self;
        json!({
            "critic_loss": told(Some(critic_loss)),
            "mean_value": told(Some(mean_value)),
            "grad_norm": told(Some(grad_norm)),
            "actor_loss": told(actor_loss),
            "ent_coef": told(ent_coef),
            "ent_coef_loss": told(ent_coef_loss),
            "learning_rate": told(Some(learning_rate)),
        })
    }

    /// What [`OffPolicyLearned::to_json`] made; `None` of anything else.
    pub(super) fn from_json(saved: &Value) -> Option<Self> {
        let some = |name: &str| match saved.get(name)? {
            Value::Null => Some(None),
            Value::String(word) => Some(Some(word.parse().ok()?)),
            number => Some(Some(number.as_f64()? as f32)),
        };
        Some(Self {
            critic_loss: some("critic_loss")??,
            mean_value: some("mean_value")??,
            grad_norm: some("grad_norm")??,
            actor_loss: some("actor_loss")?,
            ent_coef: some("ent_coef")?,
            ent_coef_loss: some("ent_coef_loss")?,
            learning_rate: some("learning_rate")??,
        })
    }
}

/// Means of what minibatches say.
#[derive(Debug, Default)]
pub(super) struct Means {
    /// How many said something, and the sum.
    sums: [(f64, f64); 6],
    learning_rate: f32,
}

impl Means {
    pub(super) fn add(&mut self, said: &OffPolicyLearned) {
        let OffPolicyLearned { critic_loss, mean_value, grad_norm, actor_loss, ent_coef, ent_coef_loss, learning_rate } =
            *said;
        let all = [Some(critic_loss), Some(mean_value), Some(grad_norm), actor_loss, ent_coef, ent_coef_loss];
        for ((count, sum), x) in self.sums.iter_mut().zip(all) {
            if let Some(x) = x {
                *count += 1.0;
                *sum += f64::from(x);
            }
        }
        self.learning_rate = learning_rate;
    }

    /// The means, if there are any; what no minibatch told is as it was before.
    pub(super) fn mean(&self, before: Option<&OffPolicyLearned>) -> Option<OffPolicyLearned> {
        let [critic_loss, mean_value, grad_norm, actor_loss, ent_coef, ent_coef_loss] =
            self.sums.map(|(count, sum)| (count > 0.0).then_some((sum / count) as f32));
        let or = |mean: Option<f32>, of: fn(&OffPolicyLearned) -> Option<f32>| mean.or(before.and_then(of));
        Some(OffPolicyLearned {
            critic_loss: critic_loss?,
            mean_value: mean_value?,
            grad_norm: grad_norm?,
            actor_loss: or(actor_loss, |before| before.actor_loss),
            ent_coef: or(ent_coef, |before| before.ent_coef),
            ent_coef_loss: or(ent_coef_loss, |before| before.ent_coef_loss),
            learning_rate: self.learning_rate,
        })
    }
}
