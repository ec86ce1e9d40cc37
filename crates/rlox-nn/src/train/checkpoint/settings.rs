//! Settings as checkpoints tell of them: by the names that the Python package has for them.

use rlox_core::{Ahead, Checkpoint, Error, NormalizerOptions, Result};
use serde_json::{Map, Value, json};

use crate::optimizer::{ALPHA, BETAS, EPS, ON_POLICY_EPS};
use crate::train::{ActionNoise, Gathering, Schedule};
use crate::{ActorCritic, NetworkShape, Optimizer, PolicyShape};

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
    /// A number that is learned, by what it begins with: `"auto_0.1"`, or `"auto"` for 1.
    Auto(f32),
    /// Several that belong together.
    Several(Settings),
    /// Once an iteration, or as often as there is something new: Python's -1.
    Once,
    /// Nothing, where there may be a number.
    None,
}

impl From<Option<f32>> for Setting {
    fn from(setting: Option<f32>) -> Self {
        setting.map_or(Self::None, Self::Single)
    }
}

impl From<Option<f64>> for Setting {
    fn from(setting: Option<f64>) -> Self {
        setting.map_or(Self::None, Self::Double)
    }
}

impl From<Option<ActionNoise>> for Setting {
    fn from(noise: Option<ActionNoise>) -> Self {
        let (kind, numbers) = match noise {
            None => return Self::None,
            Some(ActionNoise::Gaussian { sigma }) => ("gaussian", vec![("sigma", sigma)]),
            Some(ActionNoise::OrnsteinUhlenbeck { sigma, theta, dt }) => {
                ("ornstein_uhlenbeck", vec![("sigma", sigma), ("theta", theta), ("dt", dt)])
            }
        };
        let numbers = numbers.into_iter().map(|(name, x)| (name, Self::Single(x)));
        Self::Several(numbers.chain([("kind", Self::Word(kind))]).collect())
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
        match self {
            Self::Single(x) => number(x.to_string().parse().unwrap_or(f64::from(*x))),
            Self::Double(x) => number(*x),
            Self::Count(n) => json!(n),
            Self::Flag(flag) => json!(flag),
            Self::Word(word) => json!(word),
            Self::Widths(widths) => json!(widths),
            Self::Auto(1.0) => json!("auto"),
            Self::Auto(x) => json!(format!("auto_{x}")),
            Self::Several(settings) => to_json(settings).into(),
            Self::Once => json!(-1),
            Self::None => Value::Null,
        }
    }

    fn is(&self, saved: &Value) -> bool {
        match (self, saved.as_f64()) {
            (Self::Single(x), Some(saved)) => saved as f32 == *x,
            (Self::Double(x), Some(saved)) => saved == *x,
            (Self::Auto(x), None) => saved.as_str().and_then(beginning) == Some(*x),
            (Self::Several(settings), None) => saved.as_object().is_some_and(|saved| {
                let is = |(name, setting): &(&str, Self)| saved.get(*name).is_some_and(|saved| setting.is(saved));
                saved.len() == settings.len() && settings.iter().all(is)
            }),
            _ => self.to_json() == *saved,
        }
    }
}

/// A number, or a word where that is not finite: JSON has only the others.
pub(super) fn number(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { json!(x.to_string()) }
}

/// What a number begins with that is learned: of `"auto_0.1"`, or of `"auto"`.
fn beginning(word: &str) -> Option<f32> {
    match word.strip_prefix("auto")? {
        "" => Some(1.0),
        rest => rest.strip_prefix('_')?.parse::<f64>().ok().map(|x| x as f32),
    }
}

/// All settings by name.
pub type Settings = Vec<(&'static str, Setting)>;

pub(super) fn to_json(settings: &Settings) -> Map<String, Value> {
    settings.iter().map(|(name, setting)| ((*name).to_owned(), setting.to_json())).collect()
}

/// What an algorithm of the Python package has unless it is told otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usual {
    /// Its hidden layers.
    pub(super) net_arch: &'static [usize],
    /// What it adds to roots.
    pub(super) optimizer_eps: f32,
}

pub(super) const ON_POLICY: Usual = Usual { net_arch: &[64, 64], optimizer_eps: ON_POLICY_EPS };

/// That of off-policy methods.
pub(super) fn off_policy(net_arch: &'static [usize]) -> Usual {
    Usual { net_arch, optimizer_eps: EPS }
}

/// What goes without saying where the Python package has no such setting.
fn unsaid(name: &str, usual: Usual) -> Option<Setting> {
    let [beta1, beta2] = BETAS;
    let NormalizerOptions { clip_obs, clip_reward, epsilon, .. } = NormalizerOptions::default();
    Some(match name {
        "optimizer" => Setting::Word("adam"),
        "optimizer_eps" => Setting::Single(usual.optimizer_eps),
        "loss" => Setting::Word("huber"),
        "n_critics" => Setting::Count(2),
        "beta1" => Setting::Single(beta1),
        "beta2" => Setting::Single(beta2),
        "alpha" => Setting::Single(ALPHA),
        "clip_obs" => Setting::Double(clip_obs),
        "clip_reward" => Setting::Double(clip_reward),
        "normalize_epsilon" => Setting::Double(epsilon),
        "num_actors" => Setting::Count(1),
        "max_lag" => Setting::Count(0),
        "lockstep" => Setting::Flag(true),
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

/// The same of the networks of off-policy methods.
pub(in crate::train) fn shape_of(networks: &[Option<NetworkShape>]) -> Settings {
    let Some(Some(first)) = networks.first() else { return vec![] };
    let alike = |same: &dyn Fn(&NetworkShape) -> bool| networks.iter().all(|it| it.as_ref().is_some_and(same));
    let mut settings = Settings::new();
    if let Some(activation) = first.activation.filter(|_| alike(&|it| it.activation == first.activation)) {
        settings.push(("activation", Setting::Word(activation.name())));
    }
    if alike(&|it| it.hidden == first.hidden) {
        settings.push(("net_arch", Setting::Widths(first.hidden.clone())));
    }
    settings
}

/// The same of an actor and so many critics.
pub(in crate::train) fn shape_of_actor_critic(
    actor: Option<NetworkShape>,
    critics: Option<NetworkShape>,
    n_critics: usize,
) -> Settings {
    let mut settings = shape_of(&[actor, critics]);
    settings.push(("n_critics", Setting::Count(n_critics)));
    settings
}

/// The names in [`shape`] and [`shape_of`]: checkpoints of policies that do not tell leave them out, and there the tensors
/// must do.
const SHAPE: [&str; 5] = ["shared_trunk", "use_sde", "activation", "net_arch", "dueling"];

/// The names in [`actors`].
const ACTORS: [&str; 3] = ["num_actors", "max_lag", "lockstep"];

/// Who collects, and how far ahead of the learner.
pub(super) fn actors(num_actors: usize, ahead: Ahead) -> Settings {
    let values = [Setting::Count(num_actors), Setting::Count(ahead.max_lag), Setting::Flag(ahead.lockstep)];
    ACTORS.into_iter().zip(values).collect()
}

/// Refuses a checkpoint of other settings.
pub(super) fn check(settings: &Settings, saved: &Checkpoint, usual: Usual) -> Result<()> {
    let there = saved.object("settings")?;
    // What Python says of actors where there are none: one thread collects and learns by turns.
    let by_turns = there.get("async_collect") == Some(&json!(false));
    for (name, ours) in settings {
        let theirs = match there.get(*name).filter(|_| !(by_turns && ACTORS.contains(name))) {
            Some(Value::Null) if *name == "net_arch" => json!(usual.net_arch),
            Some(Value::Null) if *name == "max_lag" => there.get("num_actors").cloned().unwrap_or(json!(1)),
            Some(theirs) => theirs.clone(),
            None => match unsaid(name, usual) {
                Some(theirs) => theirs.to_json(),
                None if SHAPE.contains(name) => continue,
                None => return Err(saved.corrupt("settings", format!("no key {name:?}"))),
            },
        };
        if !ours.is(&theirs) {
            let (expected, got) = (format!("{name} = {}", ours.to_json()), theirs.to_string());
            let fix = if *name == "train_freq" && theirs.is_array() {
                "load it with the Python package: in Rust steps are counted between updates, not episodes"
            } else {
                "make the trainer with the settings of the checkpoint"
            };
            return Err(Error::config(saved.file_of("settings"), expected, got, fix).in_section("settings"));
        }
    }
    Ok(())
}

pub(in crate::train) fn optimizer(optimizer: Optimizer) -> Settings {
    use Setting::{Single, Word};
    let (word, eps, rest) = match optimizer {
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
    // The kind first: others have other settings.
    let mut settings = vec![("optimizer", Word(word)), ("optimizer_eps", Single(eps)), lr];
    settings.extend(rest);
    settings
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
pub(super) fn collection(num_envs: usize, action_masks: bool, sde_sample_freq: usize) -> Settings {
    vec![
        ("num_envs", Setting::Count(num_envs)),
        ("action_masks", Setting::Flag(action_masks)),
        ("sde_sample_freq", if sde_sample_freq == 0 { Setting::Once } else { Setting::Count(sde_sample_freq) }),
    ]
}

/// How transitions are collected and sampled, but for priorities, which not every method has.
pub(super) fn gathering(how: &Gathering) -> Settings {
    let mut settings = vec![
        ("buffer_size", Setting::Count(how.buffer_size)),
        ("learning_starts", count(how.learning_starts)),
        ("batch_size", Setting::Count(how.batch_size)),
        ("train_freq", Setting::Count(how.train_freq)),
        ("n_steps", Setting::Count(how.n_steps)),
        ("gamma", Setting::Double(how.gamma)),
        ("utd_ratio", how.utd_ratio.into()),
    ];
    if how.utd_ratio.is_none() {
        settings.push(("gradient_steps", how.gradient_steps.map_or(Setting::Once, Setting::Count)));
    }
    settings.extend(normalization(how.normalize));
    settings
}

/// A count of steps.
pub(in crate::train) fn count(steps: u64) -> Setting {
    Setting::Count(usize::try_from(steps).unwrap_or(usize::MAX))
}
