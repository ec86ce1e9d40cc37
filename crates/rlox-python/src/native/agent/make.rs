//! Agents from what Python says of environments and settings.

use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{EnvSpec, Pcg64, Result, Space};
use rlox_nn::train::{
    ActionNoise, DqnConfig, DqnLearner, EntCoef, OffPolicyAgent, OffPolicyAlgorithm, OffPolicyMethod, Priorities,
    SacConfig, SacLearner, Schedule, Surroundings, Td3Config, Td3Learner,
};
use rlox_nn::{Activation, DeterministicActor, Init, Mlp, Network, Optimizer, QNetworks, SquashedPolicy, TwinCritics};

use super::super::make::{backend_of, encoding_of, space_of, spec_of};
use super::super::settings::Settings;
use super::{Inner, NativeAgent};
use crate::argument::{INTEGER, argument, count, expect_shape, text};
use crate::detach::detached;
use crate::error::{to_py, value_error};
use crate::shared::Shared;
use crate::state::WORDS;

/// What Python says of the environments.
pub(super) struct Told<'a, 'py> {
    pub(super) observation: &'a Bound<'py, PyDict>,
    pub(super) action: &'a Bound<'py, PyDict>,
    pub(super) num_envs: &'a Bound<'py, PyAny>,
    pub(super) masked: bool,
    pub(super) idling: bool,
}

/// The settings of a method, and what its networks are made of.
enum Method {
    Dqn { config: DqnConfig, dueling: bool },
    Sac(SacConfig),
    Td3(Td3Config),
}

struct Shape {
    net_arch: Vec<usize>,
    activation: Activation,
}

type Learner = Box<dyn OffPolicyAlgorithm>;
/// A learner, and how it gathers.
type Made = (Learner, rlox_nn::train::Gathering);

impl Method {
    fn of(algorithm: &str, settings: &Settings<'_, '_>) -> PyResult<Self> {
        match algorithm {
            "dqn" => Ok(Self::Dqn { config: dqn(settings)?, dueling: settings.switch("dueling")? }),
            "sac" => Ok(Self::Sac(sac(settings)?)),
            "td3" => Ok(Self::Td3(td3(settings)?)),
            other => Err(value_error("algorithm", "dqn, sac or td3", other, super::super::make::FIX)),
        }
    }

    /// The learner with networks that `make` makes.
    fn learner<N: Network + 'static>(
        self,
        shape: &Shape,
        (spec, num_envs): (&EnvSpec, usize),
        rng: &mut Pcg64,
        mut make: impl FnMut(&[usize], &mut Pcg64) -> Result<N>,
    ) -> Result<Made> {
        fn done<M: OffPolicyMethod + 'static>(
            config: M::Config,
            networks: impl FnOnce(&M::Config) -> Result<M::Networks>,
            spec: &EnvSpec,
            num_envs: usize,
        ) -> Result<Made> {
            let how = M::gathering(&config, spec)?;
            let networks = networks(&config)?;
            Ok((Box::new(M::new(config, networks, spec, num_envs)?), how))
        }
        let hidden = &shape.net_arch[..];
        match self {
            Self::Dqn { config, dueling: false } => {
                done::<DqnLearner<_>>(config, |_| QNetworks::with(spec, hidden, rng, make), spec, num_envs)
            }
            Self::Dqn { config, dueling: true } => {
                done::<DqnLearner<_>>(config, |_| QNetworks::dueling_with(spec, hidden, rng, make), spec, num_envs)
            }
            Self::Sac(config) => {
                let networks = |config: &SacConfig| {
                    let log_std = config.use_sde.then_some(config.log_std_init);
                    let policy = SquashedPolicy::with(spec, hidden, log_std, rng, &mut make)?;
                    Ok((policy, TwinCritics::with(spec, hidden, 2, rng, make)?))
                };
                done::<SacLearner<_, _>>(config, networks, spec, num_envs)
            }
            Self::Td3(config) => {
                let networks = |_: &Td3Config| {
                    let policy = DeterministicActor::with(spec, hidden, rng, &mut make)?;
                    Ok((policy, TwinCritics::with(spec, hidden, 2, rng, make)?))
                };
                done::<Td3Learner<_, _>>(config, networks, spec, num_envs)
            }
        }
    }

    /// The learner on a backend.
    fn on(self, backend: &str, shape: &Shape, envs: (&EnvSpec, usize), rng: &mut Pcg64) -> Result<Made> {
        let activation = shape.activation;
        match backend {
            #[cfg(feature = "candle")]
            "candle" => self.learner(shape, envs, rng, |sizes, rng| {
                rlox_candle::CandleMlp::new(sizes, activation, Init::Kaiming, rng)
            }),
            #[cfg(feature = "burn")]
            "burn" => self
                .learner(shape, envs, rng, |sizes, rng| rlox_burn::BurnMlp::new(sizes, activation, Init::Kaiming, rng)),
            _ => self.learner(shape, envs, rng, |sizes, rng| Mlp::new(sizes, activation, Init::Kaiming, rng)),
        }
    }
}

fn schedule(settings: &Settings<'_, '_>) -> PyResult<Schedule> {
    match &*text("lr_schedule", &settings.get("lr_schedule")?)? {
        "constant" => Ok(Schedule::Constant),
        "linear" => Ok(Schedule::Linear),
        other => Err(value_error("lr_schedule", "constant or linear", other, super::super::make::FIX)),
    }
}

fn noise(settings: &Settings<'_, '_>) -> PyResult<Option<ActionNoise>> {
    let given = settings.get("action_noise")?;
    if given.is_none() {
        return Ok(None);
    }
    let parts = Settings(crate::argument::instance("action_noise", &given, "dict, or None")?);
    let sigma = parts.number("sigma")?;
    Ok(Some(match &*text("kind", &parts.get("kind")?)? {
        "gaussian" => ActionNoise::Gaussian { sigma },
        "ornstein_uhlenbeck" => {
            ActionNoise::OrnsteinUhlenbeck { sigma, theta: parts.number("theta")?, dt: parts.number("dt")? }
        }
        other => {
            return Err(value_error("action_noise", "gaussian or ornstein_uhlenbeck", other, super::super::make::FIX));
        }
    }))
}

/// What all three have in common, over a method's own settings.
macro_rules! replaying {
    ($settings:expr, $config:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        let settings = $settings;
        $config {
            buffer_size: settings.count("buffer_size")?,
            learning_starts: settings.index("learning_starts")? as u64,
            batch_size: settings.count("batch_size")?,
            train_freq: settings.count("train_freq")?,
            gradient_steps: settings.count_or_none("gradient_steps")?,
            utd_ratio: settings.double_or_none("utd_ratio")?,
            n_steps: settings.count("n_steps")?,
            gamma: settings.double("gamma")?,
            tau: settings.number("tau")?,
            optimizer: Optimizer::adam(settings.number("learning_rate")?),
            lr_schedule: schedule(settings)?,
            $($field: $value,)*
            ..$config::default()
        }
    }};
}

fn dqn(settings: &Settings<'_, '_>) -> PyResult<DqnConfig> {
    let prioritized = if settings.switch("prioritized")? {
        Some(Priorities { alpha: settings.number("priority_alpha")?, beta: settings.number("priority_beta")? })
    } else {
        None
    };
    Ok(replaying!(
        settings,
        DqnConfig {
            target_update_interval: settings.count("target_update_interval")? as u64,
            double: settings.switch("double")?,
            max_grad_norm: settings.number("max_grad_norm")?,
            exploration_fraction: settings.double("exploration_fraction")?,
            exploration_initial_eps: settings.number("exploration_initial_eps")?,
            exploration_final_eps: settings.number("exploration_final_eps")?,
            prioritized: prioritized,
        }
    ))
}

fn sac(settings: &Settings<'_, '_>) -> PyResult<SacConfig> {
    let initial = settings.number("ent_coef")?;
    let ent_coef = if settings.switch("ent_coef_auto")? {
        EntCoef::Auto { initial, target_entropy: settings.some("target_entropy")? }
    } else {
        EntCoef::Fixed(initial)
    };
    Ok(replaying!(
        settings,
        SacConfig {
            target_update_interval: settings.count("target_update_interval")?,
            ent_coef: ent_coef,
            action_noise: noise(settings)?,
            use_sde: settings.switch("use_sde")?,
            sde_sample_freq: settings.index("sde_sample_freq")?,
            use_sde_at_warmup: settings.switch("use_sde_at_warmup")?,
            log_std_init: settings.number("log_std_init")?,
        }
    ))
}

fn td3(settings: &Settings<'_, '_>) -> PyResult<Td3Config> {
    Ok(replaying!(
        settings,
        Td3Config {
            policy_delay: settings.count("policy_delay")?,
            target_policy_noise: settings.number("target_policy_noise")?,
            target_noise_clip: settings.number("target_noise_clip")?,
            action_noise: noise(settings)?,
        }
    ))
}

pub(super) fn agent(
    py: Python<'_>,
    algorithm: &Bound<'_, PyAny>,
    envs: &Told<'_, '_>,
    (stream, seeds): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
    settings: &Bound<'_, PyDict>,
    backend: &Bound<'_, PyAny>,
) -> PyResult<NativeAgent> {
    let (encoding, obs_shape) = encoding_of(envs.observation)?;
    let space = space_of(envs.action)?;
    let num_envs = count("num_envs", envs.num_envs)?;
    let settings = Settings(settings);
    let method = Method::of(&text("algorithm", algorithm)?, &settings)?;
    let net_arch = crate::argument::shape("net_arch", &settings.get("net_arch")?)?;
    let activation = text("activation", &settings.get("activation")?)?.parse().map_err(to_py)?;
    let backend = backend_of(backend)?;
    let words = argument::<i64>("stream", stream, &INTEGER)?.read(false)?;
    let seeds = argument::<i64>("seeds", seeds, &INTEGER)?.read(false)?;
    expect_shape("stream", words.shape(), WORDS, &[])?;
    expect_shape("seeds", seeds.shape(), 2, &[])?;
    let (words, seeds) = (words.slice(), [seeds.slice()[0], seeds.slice()[1]].map(i64::cast_unsigned));
    let spec = spec_of(&encoding, &space);
    let (masked, idling, shape) = (envs.masked, envs.idling, Shape { net_arch, activation });
    let made = detached(py, || -> Result<_> {
        let mut rng = Pcg64::from_words(words)?;
        let (learner, how) = method.on(&backend, &shape, (&spec, num_envs), &mut rng)?;
        OffPolicyAgent::new(learner, how, &Surroundings { spec: &spec, num_envs, masked, idling }, seeds)
    });
    let agent = made.map_err(|error| {
        to_py(
            error
                .rename_argument("sizes", "net_arch")
                .rename_argument("hidden", "net_arch")
                .rename_argument("lr", "learning_rate"),
        )
    })?;
    let action = match space {
        Space::Discrete { n, .. } => Space::discrete(n),
        space => space,
    };
    let inner = Shared::new("NativeAgent", Inner { agent, inputs: Default::default() });
    Ok(NativeAgent { inner, stop: AtomicBool::new(false), encoding, obs_shape, action, num_envs })
}
