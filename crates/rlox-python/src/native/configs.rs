//! Conversion of Python settings to configs of `rlox_nn::train`.
//!
//! The settings have the names of the fields of Python configs such as `rlox.configs.PPOConfig`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::Error;
use rlox_nn::Optimizer;
use rlox_nn::train::{
    A2cConfig, ActionNoise, DqnConfig, EntCoef, ImpalaConfig, PpoConfig, Priorities, SacConfig, Schedule, Td3Config,
};

use crate::convert::args::{count, index, instance, item_of, number, short_repr, switch, text};
use crate::error::{to_py, value_error};

pub(super) const FIX: &str = "pass a dict from a native learner of rlox.learners";

/// Dict of settings. Its numbers are those after schedules were applied.
pub(super) struct ConfigDict<'a, 'py>(pub(super) &'a Bound<'py, PyDict>);

impl<'py> ConfigDict<'_, 'py> {
    pub(super) fn get(&self, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
        item_of("settings", self.0.as_any(), name, FIX)
    }

    pub(super) fn number(&self, name: &'static str) -> PyResult<f32> {
        let value = self.get(name)?;
        let number = number(name, &value)? as f32;
        if number.is_finite() {
            return Ok(number);
        }
        Err(value_error(name, "a number that float32 can hold", &short_repr(&value), "correct it"))
    }

    pub(super) fn number_or_none(&self, name: &'static str) -> PyResult<Option<f32>> {
        if self.get(name)?.is_none() { Ok(None) } else { self.number(name).map(Some) }
    }

    pub(super) fn count(&self, name: &'static str) -> PyResult<usize> {
        count(name, &self.get(name)?)
    }

    pub(super) fn switch(&self, name: &'static str) -> PyResult<bool> {
        switch(name, &self.get(name)?)
    }

    pub(super) fn optimizer(&self) -> PyResult<Optimizer> {
        let (lr, eps) = (self.number("learning_rate")?, self.number("optimizer_eps")?);
        let optimizer = match &*text("optimizer", &self.get("optimizer")?)? {
            "adam" => Optimizer::adam(lr).with_eps(eps),
            "rmsprop" => Optimizer::rms_prop(lr).with_eps(eps),
            other => {
                return Err(value_error(
                    "optimizer",
                    "adam or rmsprop",
                    other,
                    "use backend=\"torch\" for other optimisers",
                ));
            }
        };
        let rename_arguments =
            |error: Error| to_py(error.rename_argument("lr", "learning_rate").rename_argument("eps", "optimizer_eps"));
        optimizer.check().map_err(rename_arguments)?;
        Ok(optimizer)
    }

    /// Returns a number in double precision.
    pub(super) fn double(&self, name: &'static str) -> PyResult<f64> {
        number(name, &self.get(name)?)
    }

    pub(super) fn double_or_none(&self, name: &'static str) -> PyResult<Option<f64>> {
        let value = self.get(name)?;
        if value.is_none() { Ok(None) } else { number(name, &value).map(Some) }
    }

    /// Returns a count that may be 0.
    pub(super) fn index(&self, name: &'static str) -> PyResult<usize> {
        index(name, &self.get(name)?)
    }

    pub(super) fn count_or_none(&self, name: &'static str) -> PyResult<Option<usize>> {
        let value = self.get(name)?;
        if value.is_none() { Ok(None) } else { count(name, &value).map(Some) }
    }
}

pub(super) fn ppo(settings: &ConfigDict<'_, '_>) -> PyResult<PpoConfig> {
    let config = PpoConfig {
        batch_size: settings.count("batch_size")?,
        n_epochs: settings.count("n_epochs")?,
        optimizer: settings.optimizer()?,
        clip_coef: settings.number("clip_coef")?,
        clip_coef_vf: settings.number_or_none("clip_coef_vf")?,
        normalize_advantage: settings.switch("normalize_advantage")?,
        ent_coef: settings.number("ent_coef")?,
        vf_coef: settings.number("vf_coef")?,
        max_grad_norm: settings.number("max_grad_norm")?,
        target_kl: settings.number_or_none("target_kl")?,
        ..PpoConfig::default()
    };
    config.check().map_err(to_py)?;
    Ok(config)
}

pub(super) fn a2c(settings: &ConfigDict<'_, '_>) -> PyResult<A2cConfig> {
    let config = A2cConfig {
        optimizer: settings.optimizer()?,
        normalize_advantage: settings.switch("normalize_advantage")?,
        ent_coef: settings.number("ent_coef")?,
        vf_coef: settings.number("vf_coef")?,
        max_grad_norm: settings.number("max_grad_norm")?,
        ..A2cConfig::default()
    };
    config.check().map_err(to_py)?;
    Ok(config)
}

pub(super) fn impala(settings: &ConfigDict<'_, '_>) -> PyResult<ImpalaConfig> {
    let config = ImpalaConfig {
        optimizer: settings.optimizer()?,
        gamma: settings.double("gamma")?,
        vtrace_lambda: settings.double("vtrace_lambda")?,
        rho_bar: settings.double("rho_bar")?,
        c_bar: settings.double("c_bar")?,
        lr_schedule: Schedule::Constant,
        ent_coef: settings.number("ent_coef")?,
        vf_coef: settings.number("vf_coef")?,
        max_grad_norm: settings.number("max_grad_norm")?,
        ..ImpalaConfig::default()
    };
    config.check().map_err(to_py)?;
    Ok(config)
}

/// Builds a config from the fields that all off-policy algorithms share, and the given fields.
macro_rules! off_policy_config {
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

pub(super) fn dqn(settings: &ConfigDict<'_, '_>) -> PyResult<DqnConfig> {
    let prioritized = if settings.switch("prioritized")? {
        Some(Priorities { alpha: settings.number("priority_alpha")?, beta: settings.number("priority_beta")? })
    } else {
        None
    };
    Ok(off_policy_config!(
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

pub(super) fn sac(settings: &ConfigDict<'_, '_>) -> PyResult<SacConfig> {
    let initial = settings.number("ent_coef")?;
    let ent_coef = if settings.switch("ent_coef_auto")? {
        EntCoef::Auto { initial, target_entropy: settings.number_or_none("target_entropy")? }
    } else {
        EntCoef::Fixed(initial)
    };
    Ok(off_policy_config!(
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

pub(super) fn td3(settings: &ConfigDict<'_, '_>) -> PyResult<Td3Config> {
    Ok(off_policy_config!(
        settings,
        Td3Config {
            policy_delay: settings.count("policy_delay")?,
            target_policy_noise: settings.number("target_policy_noise")?,
            target_noise_clip: settings.number("target_noise_clip")?,
            action_noise: noise(settings)?,
        }
    ))
}

fn schedule(settings: &ConfigDict<'_, '_>) -> PyResult<Schedule> {
    match &*text("lr_schedule", &settings.get("lr_schedule")?)? {
        "constant" => Ok(Schedule::Constant),
        "linear" => Ok(Schedule::Linear),
        other => Err(value_error("lr_schedule", "constant or linear", other, FIX)),
    }
}

fn noise(settings: &ConfigDict<'_, '_>) -> PyResult<Option<ActionNoise>> {
    let value = settings.get("action_noise")?;
    if value.is_none() {
        return Ok(None);
    }
    let noise_settings = ConfigDict(instance("action_noise", &value, "dict, or None")?);
    let sigma = noise_settings.number("sigma")?;
    Ok(Some(match &*text("kind", &noise_settings.get("kind")?)? {
        "gaussian" => ActionNoise::Gaussian { sigma },
        "ornstein_uhlenbeck" => ActionNoise::OrnsteinUhlenbeck {
            sigma,
            theta: noise_settings.number("theta")?,
            dt: noise_settings.number("dt")?,
        },
        other => {
            return Err(value_error("action_noise", "gaussian or ornstein_uhlenbeck", other, FIX));
        }
    }))
}
