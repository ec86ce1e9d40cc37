//! Settings in checkpoints, under the names of the Python package.

use rlox_core::{Error, Result, checkpoint::Checkpoint, normalize::NormalizerOptions, pipeline::StalenessPolicy};
use serde_json::{Map, Value, json};

use crate::optimizer::{ALPHA, BETAS, EPS, ON_POLICY_EPS};
use crate::train::{ActionNoise, ReplayConfig, Schedule};
use crate::{ActorCritic, NetworkArch, Optimizer, PolicyArch};

/// Value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigValue {
    /// An f32, stored as the shortest decimal number that rounds to this f32.
    Single(f32),
    /// An f64.
    Double(f64),
    /// An unsigned integer.
    Count(usize),
    /// A boolean.
    Flag(bool),
    /// One of several strings.
    Word(&'static str),
    /// Widths of layers.
    Widths(Vec<usize>),
    /// Initial value of a learned number: stored as `"auto_0.1"` for 0.1, and as `"auto"` for 1.
    Auto(f32),
    /// Settings of one object, such as an action noise.
    Several(ConfigMap),
    /// The value -1 in Python: once per iteration, or one minibatch per new transition.
    Once,
    /// Absence of an optional value.
    None,
}

impl From<Option<f32>> for ConfigValue {
    fn from(value: Option<f32>) -> Self {
        value.map_or(Self::None, Self::Single)
    }
}

impl From<Option<f64>> for ConfigValue {
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::None, Self::Double)
    }
}

impl From<Option<ActionNoise>> for ConfigValue {
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

impl From<Schedule> for ConfigValue {
    fn from(schedule: Schedule) -> Self {
        Self::Word(match schedule {
            Schedule::Constant => "constant",
            Schedule::Linear => "linear",
        })
    }
}

impl ConfigValue {
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

    fn matches(&self, value: &Value) -> bool {
        match (self, value.as_f64()) {
            (Self::Single(x), Some(stored)) => stored as f32 == *x,
            (Self::Double(x), Some(stored)) => stored == *x,
            (Self::Auto(x), None) => value.as_str().and_then(parse_auto) == Some(*x),
            (Self::Several(config_map), None) => value.as_object().is_some_and(|entries| {
                let entry_matches =
                    |(name, expected): &(&str, Self)| entries.get(*name).is_some_and(|saved| expected.matches(saved));
                entries.len() == config_map.len() && config_map.iter().all(entry_matches)
            }),
            _ => self.to_json() == *value,
        }
    }
}

/// Returns a JSON number, or a string for a number that is not finite, which JSON cannot represent.
pub(super) fn number(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { json!(x.to_string()) }
}

/// Parses the initial value of a learned number, such as `"auto_0.1"` or `"auto"`.
fn parse_auto(word: &str) -> Option<f32> {
    match word.strip_prefix("auto")? {
        "" => Some(1.0),
        rest => rest.strip_prefix('_')?.parse::<f64>().ok().map(|x| x as f32),
    }
}

/// Settings by name.
pub type ConfigMap = Vec<(&'static str, ConfigValue)>;

pub(super) fn to_json(config_map: &ConfigMap) -> Map<String, Value> {
    config_map.iter().map(|(name, value)| ((*name).to_owned(), value.to_json())).collect()
}

/// Default settings of an algorithm in the Python package.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    /// Widths of the hidden layers.
    pub(super) net_arch: &'static [usize],
    /// Epsilon of the optimiser.
    pub(super) optimizer_eps: f32,
}

pub(super) const ON_POLICY: Defaults = Defaults { net_arch: &[64, 64], optimizer_eps: ON_POLICY_EPS };

/// Returns the defaults of an off-policy algorithm.
pub(super) fn off_policy_defaults(net_arch: &'static [usize]) -> Defaults {
    Defaults { net_arch, optimizer_eps: EPS }
}

/// Returns the value that the Python package uses for a setting that it does not store.
///
/// The result is `None` for other settings.
fn default_value(name: &str, defaults: Defaults) -> Option<ConfigValue> {
    let [beta1, beta2] = BETAS;
    let NormalizerOptions { clip_obs, clip_reward, epsilon, .. } = NormalizerOptions::default();
    Some(match name {
        "optimizer" => ConfigValue::Word("adam"),
        "optimizer_eps" => ConfigValue::Single(defaults.optimizer_eps),
        "loss" => ConfigValue::Word("huber"),
        "n_critics" => ConfigValue::Count(2),
        "beta1" => ConfigValue::Single(beta1),
        "beta2" => ConfigValue::Single(beta2),
        "alpha" => ConfigValue::Single(ALPHA),
        "clip_obs" => ConfigValue::Double(clip_obs),
        "clip_reward" => ConfigValue::Double(clip_reward),
        "normalize_epsilon" => ConfigValue::Double(epsilon),
        "num_actors" => ConfigValue::Count(1),
        "max_staleness" => ConfigValue::Count(0),
        "deterministic" => ConfigValue::Flag(true),
        _ => return None,
    })
}

/// Returns the known parts of a policy's architecture, under the names of the Python package.
///
/// The result contains `net_arch` only if policy and value function have equal hidden layers.
pub(super) fn policy_arch(policy: &dyn ActorCritic) -> ConfigMap {
    let Some(PolicyArch { policy, value, activation, shared_trunk, use_sde }) = policy.arch() else { return vec![] };
    let mut config_map =
        vec![("shared_trunk", ConfigValue::Flag(shared_trunk)), ("use_sde", ConfigValue::Flag(use_sde))];
    config_map.extend(activation.map(|activation| ("activation", ConfigValue::Word(activation.name()))));
    config_map.extend((policy == value).then_some(("net_arch", ConfigValue::Widths(policy))));
    config_map
}

/// Returns the known parts of the architecture that all networks of an algorithm share.
pub(in crate::train) fn network_arch(networks: &[Option<NetworkArch>]) -> ConfigMap {
    let Some(Some(first)) = networks.first() else { return vec![] };
    let all_match = |same: &dyn Fn(&NetworkArch) -> bool| networks.iter().all(|it| it.as_ref().is_some_and(same));
    let mut config_map = ConfigMap::new();
    if let Some(activation) = first.activation.filter(|_| all_match(&|it| it.activation == first.activation)) {
        config_map.push(("activation", ConfigValue::Word(activation.name())));
    }
    if all_match(&|it| it.hidden == first.hidden) {
        config_map.push(("net_arch", ConfigValue::Widths(first.hidden.clone())));
    }
    config_map
}

/// Returns the known parts of the architecture of an actor and `n_critics` critics.
pub(in crate::train) fn actor_critic_arch(
    actor: Option<NetworkArch>,
    critics: Option<NetworkArch>,
    n_critics: usize,
) -> ConfigMap {
    let mut config_map = network_arch(&[actor, critics]);
    config_map.push(("n_critics", ConfigValue::Count(n_critics)));
    config_map
}

/// Names of the settings of [`policy_arch`] and [`network_arch`]. Checkpoints of custom policies do
/// not contain them. Then only the tensors are compared.
const ARCH_KEYS: [&str; 5] = ["shared_trunk", "use_sde", "activation", "net_arch", "dueling"];

/// Names of the settings of [`actors`].
const ACTOR_KEYS: [&str; 3] = ["num_actors", "max_staleness", "deterministic"];

/// Returns the settings of the actors.
pub(super) fn actors(num_actors: usize, staleness_policy: StalenessPolicy) -> ConfigMap {
    let values = [
        ConfigValue::Count(num_actors),
        ConfigValue::Count(staleness_policy.max_staleness),
        ConfigValue::Flag(staleness_policy.deterministic),
    ];
    ACTOR_KEYS.into_iter().zip(values).collect()
}

/// Rejects a checkpoint with other settings.
pub(super) fn check(config_map: &ConfigMap, checkpoint: &Checkpoint, defaults: Defaults) -> Result<()> {
    let stored = checkpoint.object("settings")?;
    // Python stores settings of actors even if there are no actors. They are ignored then.
    let is_synchronous = stored.get("async_collect") == Some(&json!(false));
    for (name, ours) in config_map {
        let theirs = match stored.get(*name).filter(|_| !(is_synchronous && ACTOR_KEYS.contains(name))) {
            Some(Value::Null) if *name == "net_arch" => json!(defaults.net_arch),
            Some(Value::Null) if *name == "max_staleness" => stored.get("num_actors").cloned().unwrap_or(json!(1)),
            Some(theirs) => theirs.clone(),
            None => match default_value(name, defaults) {
                Some(theirs) => theirs.to_json(),
                None if ARCH_KEYS.contains(name) => continue,
                None => return Err(checkpoint.corrupt("settings", format!("no key {name:?}"))),
            },
        };
        if !ours.matches(&theirs) {
            let (expected, got) = (format!("{name} = {}", ours.to_json()), theirs.to_string());
            let fix = if *name == "train_freq" && theirs.is_array() {
                "load it with the Python package; in Rust train_freq counts steps, not episodes"
            } else {
                "create the trainer with the settings of the checkpoint"
            };
            return Err(Error::config(checkpoint.file_of("settings"), expected, got, fix).in_section("settings"));
        }
    }
    Ok(())
}

pub(in crate::train) fn optimizer(optimizer: Optimizer) -> ConfigMap {
    use ConfigValue::{Single, Word};
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
    // The kind is compared first, because optimisers of different kinds have different settings.
    let mut config_map = vec![("optimizer", Word(word)), ("optimizer_eps", Single(eps)), lr];
    config_map.extend(rest);
    config_map
}

pub(super) fn normalization(options: Option<NormalizerOptions>) -> ConfigMap {
    let (obs, reward) = options.map_or((false, false), |options| (options.obs, options.reward));
    let mut config_map =
        vec![("normalize_obs", ConfigValue::Flag(obs)), ("normalize_reward", ConfigValue::Flag(reward))];
    if let Some(options) = options.filter(|_| obs || reward) {
        config_map.extend([
            ("clip_obs", ConfigValue::Double(options.clip_obs)),
            ("clip_reward", ConfigValue::Double(options.clip_reward)),
            ("normalize_epsilon", ConfigValue::Double(options.epsilon)),
        ]);
    }
    config_map
}

/// Returns the settings of the environments and the collection.
pub(super) fn collect_config(num_envs: usize, action_masks: bool, sde_sample_freq: usize) -> ConfigMap {
    vec![
        ("num_envs", ConfigValue::Count(num_envs)),
        ("action_masks", ConfigValue::Flag(action_masks)),
        ("sde_sample_freq", if sde_sample_freq == 0 { ConfigValue::Once } else { ConfigValue::Count(sde_sample_freq) }),
    ]
}

/// Returns the settings of collection and sampling, except for priorities, which only DQN has.
pub(super) fn replay_config(config: &ReplayConfig) -> ConfigMap {
    let mut config_map = vec![
        ("buffer_size", ConfigValue::Count(config.buffer_size)),
        ("learning_starts", count(config.learning_starts)),
        ("batch_size", ConfigValue::Count(config.batch_size)),
        ("train_freq", ConfigValue::Count(config.train_freq)),
        ("n_steps", ConfigValue::Count(config.n_steps)),
        ("gamma", ConfigValue::Double(config.gamma)),
        ("utd_ratio", config.utd_ratio.into()),
    ];
    if config.utd_ratio.is_none() {
        config_map.push(("gradient_steps", config.gradient_steps.map_or(ConfigValue::Once, ConfigValue::Count)));
    }
    config_map.extend(normalization(config.normalize));
    config_map
}

/// Returns a number of steps as a setting.
pub(in crate::train) fn count(steps: u64) -> ConfigValue {
    ConfigValue::Count(usize::try_from(steps).unwrap_or(usize::MAX))
}
