//! Settings as checkpoints tell of them: by the names that the Python package has for them.

use rlox_core::{Checkpoint, Error, NormalizerOptions, Result, VectorEnv};
use serde_json::{Map, Value, json};

use super::Schedule;
use crate::adam::{ALPHA, BETAS, ON_POLICY_EPS};
use crate::{ActorCritic, Optimizer, PolicyShape};

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// A number, written with the few digits that make it, as a user writes it.
    Single(f32),
    /// A number.
    Double(f64),
    /// How many.
    Count(usize),
    /// Whether.
    Flag(bool),
    /// One of several words.
    Word(&'static str),
    /// Widths of layers.
    Widths(Vec<usize>),
    /// Once an iteration: Python's -1.
    Once,
    /// Nothing, where there may be a number.
    None,
}

impl From<Option<f32>> for Setting {
    fn from(setting: Option<f32>) -> Self {
        setting.map_or(Self::None, Self::Single)
    }
}

impl From<Schedule> for Setting {
    fn from(schedule: Schedule) -> Self {
        Self::Word(match schedule {
            Schedule::Constant => "constant",
            Schedule::Linear => "linear",
        })
    }
}

impl Setting {
    fn to_json(&self) -> Value {
        // JSON has no infinities: they are words.
        let number = |x: f64| if x.is_finite() { json!(x) } else { json!(x.to_string()) };
        match self {
            Self::Single(x) => number(x.to_string().parse().unwrap_or(f64::from(*x))),
            Self::Double(x) => number(*x),
            Self::Count(n) => json!(n),
            Self::Flag(flag) => json!(flag),
            Self::Word(word) => json!(word),
            Self::Widths(widths) => json!(widths),
            Self::Once => json!(-1),
            Self::None => Value::Null,
        }
    }

    fn is(&self, saved: &Value) -> bool {
        match (self, saved.as_f64()) {
            (Self::Single(x), Some(saved)) => saved as f32 == *x,
            (Self::Double(x), Some(saved)) => saved == *x,
            // The Python package's default.
            (Self::Widths(widths), None) if saved.is_null() => *widths == [64, 64],
            _ => self.to_json() == *saved,
        }
    }
}

/// All settings by name.
pub type Settings = Vec<(&'static str, Setting)>;

pub(super) fn to_json(settings: &Settings) -> Map<String, Value> {
    settings.iter().map(|(name, setting)| ((*name).to_owned(), setting.to_json())).collect()
}

/// What goes without saying where the Python package has no such setting.
fn unsaid(name: &str) -> Option<Setting> {
    let [beta1, beta2] = BETAS;
    let NormalizerOptions { clip_obs, clip_reward, epsilon, .. } = NormalizerOptions::default();
    Some(match name {
        "optimizer" => Setting::Word("adam"),
        "optimizer_eps" => Setting::Single(ON_POLICY_EPS),
        "beta1" => Setting::Single(beta1),
        "beta2" => Setting::Single(beta2),
        "alpha" => Setting::Single(ALPHA),
        "clip_obs" => Setting::Double(clip_obs),
        "clip_reward" => Setting::Double(clip_reward),
        "normalize_epsilon" => Setting::Double(epsilon),
        _ => return None,
    })
}

/// What makes a policy, as far as it is known, by the names that the Python package has for it. Its one `net_arch` is
/// told where policy and values have the same.
pub(super) fn shape(policy: &dyn ActorCritic) -> Settings {
    let Some(PolicyShape { policy, value, activation, shared_trunk, use_sde }) = policy.shape() else { return vec![] };
    let mut settings = vec![("shared_trunk", Setting::Flag(shared_trunk)), ("use_sde", Setting::Flag(use_sde))];
    settings.extend(activation.map(|activation| ("activation", Setting::Word(activation.name()))));
    settings.extend((policy == value).then_some(("net_arch", Setting::Widths(policy))));
    settings
}

/// The names in [`shape`]: checkpoints of policies that do not tell leave them out, and there the tensors must do.
const SHAPE: [&str; 4] = ["shared_trunk", "use_sde", "activation", "net_arch"];

/// Refuses a checkpoint of other settings.
pub(super) fn check(settings: &Settings, saved: &Checkpoint) -> Result<()> {
    let there = saved.object("settings")?;
    for (name, ours) in settings {
        let Some(theirs) = there.get(*name).cloned().or_else(|| unsaid(name).map(|it| it.to_json())) else {
            if SHAPE.contains(name) {
                continue;
            }
            return Err(saved.corrupt("settings", format!("no key {name:?}")));
        };
        if !ours.is(&theirs) {
            let (expected, got) = (format!("{name} = {}", ours.to_json()), theirs.to_string());
            let fix = "make the trainer with the settings of the checkpoint";
            return Err(Error::config(saved.section("settings"), expected, got, fix));
        }
    }
    Ok(())
}

pub(super) fn optimizer(optimizer: Optimizer) -> Settings {
    use Setting::{Single, Word};
    let (word, eps, mut rest) = match optimizer {
        Optimizer::Adam { beta1, beta2, eps, .. } => {
            ("adam", eps, vec![("beta1", Single(beta1)), ("beta2", Single(beta2))])
        }
        Optimizer::AdamW { beta1, beta2, eps, weight_decay, .. } => {
            let decay = ("weight_decay", Single(weight_decay));
            ("adamw", eps, vec![("beta1", Single(beta1)), ("beta2", Single(beta2)), decay])
        }
        Optimizer::RmsProp { alpha, eps, .. } => ("rmsprop", eps, vec![("alpha", Single(alpha))]),
    };
    let lr = ("learning_rate", Single(optimizer.lr()));
    rest.extend([("optimizer", Word(word)), ("optimizer_eps", Single(eps)), lr]);
    rest
}

pub(super) fn normalization(options: Option<NormalizerOptions>) -> Settings {
    let (obs, reward) = options.map_or((false, false), |options| (options.obs, options.reward));
    let mut settings = vec![("normalize_obs", Setting::Flag(obs)), ("normalize_reward", Setting::Flag(reward))];
    if let Some(options) = options.filter(|_| obs || reward) {
        settings.extend([
            ("clip_obs", Setting::Double(options.clip_obs)),
            ("clip_reward", Setting::Double(options.clip_reward)),
            ("normalize_epsilon", Setting::Double(options.epsilon)),
        ]);
    }
    settings
}

/// What the environments and the collection from them are like.
pub(super) fn collection(env: &dyn VectorEnv, sde_sample_freq: usize) -> Settings {
    vec![
        ("num_envs", Setting::Count(env.num_envs())),
        ("action_masks", Setting::Flag(env.has_action_masks())),
        ("sde_sample_freq", if sde_sample_freq == 0 { Setting::Once } else { Setting::Count(sde_sample_freq) }),
    ]
}
