//! Policies from what Python says of spaces and networks.

use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rlox_core::{EnvSpec, Pcg64, Result, Space};
use rlox_nn::train::{Encoding, IterationStreams, Minibatches};
use rlox_nn::{Activation, ActorCritic, Distribution, Init, Mlp, Network, PolicyNetworks};

use super::{Inner, NativePolicy};
use crate::argument::{INTEGER, REAL, argument, expect_shape, index, integer, item_of, number, shown, switch, text};
use crate::detach::detached;
use crate::error::{to_py, value_error};
use crate::recycling::mapped;
use crate::shared::Shared;
use crate::state::WORDS;

/// The backends of networks that this library was built with.
#[pyfunction]
pub(crate) fn network_backends() -> Vec<&'static str> {
    [("native", true), ("candle", cfg!(feature = "candle")), ("burn", cfg!(feature = "burn"))]
        .into_iter()
        .filter_map(|(name, built)| built.then_some(name))
        .collect()
}

pub(super) const FIX: &str = "pass what rlox.learners.native_on_policy makes";

/// What shapes the networks.
struct Shape {
    net_arch: Vec<usize>,
    activation: Activation,
    orthogonal: bool,
    shared_trunk: bool,
    use_sde: bool,
    log_std_init: f32,
}

impl Shape {
    fn of(dict: &Bound<'_, PyDict>) -> PyResult<Self> {
        let get = |name: &str| item_of("shape", dict.as_any(), name, FIX);
        Ok(Self {
            net_arch: crate::argument::shape("net_arch", &get("net_arch")?)?,
            activation: text("activation", &get("activation")?)?.parse().map_err(to_py)?,
            orthogonal: switch("ortho_init", &get("ortho_init")?)?,
            shared_trunk: switch("shared_trunk", &get("shared_trunk")?)?,
            use_sde: switch("use_sde", &get("use_sde")?)?,
            log_std_init: number("log_std_init", &get("log_std_init")?)? as f32,
        })
    }

    fn init(&self, gain: f32) -> Init {
        if self.orthogonal { Init::orthogonal(gain) } else { Init::Kaiming }
    }

    fn make(&self, spec: &EnvSpec, backend: &str, rng: &mut Pcg64) -> Result<Box<dyn ActorCritic>> {
        match backend {
            #[cfg(feature = "candle")]
            "candle" => self
                .around(spec, |sizes, gain| rlox_candle::CandleMlp::new(sizes, self.activation, self.init(gain), rng)),
            #[cfg(feature = "burn")]
            "burn" => {
                self.around(spec, |sizes, gain| rlox_burn::BurnMlp::new(sizes, self.activation, self.init(gain), rng))
            }
            _ => self.around(spec, |sizes, gain| Mlp::new(sizes, self.activation, self.init(gain), rng)),
        }
    }

    /// A policy of networks of one backend.
    fn around<N: Network + 'static>(
        &self,
        spec: &EnvSpec,
        make: impl FnMut(&[usize], f32) -> Result<N>,
    ) -> Result<Box<dyn ActorCritic>> {
        let distribution = if self.use_sde {
            let hidden = self.net_arch.last().copied().unwrap_or(0);
            Distribution::state_dependent(&spec.action, hidden, self.log_std_init)?
        } else {
            Distribution::new(&spec.action, self.log_std_init)?
        };
        let with = if self.shared_trunk { PolicyNetworks::shared_with } else { PolicyNetworks::with };
        Ok(Box::new(with(spec, &self.net_arch, distribution, make)?))
    }
}

/// An integer of 64 bits.
pub(super) fn whole(argument: &'static str, object: &Bound<'_, PyAny>) -> PyResult<i64> {
    let whole = integer(argument, "an integer", object)?;
    let wrong = |_| value_error(argument, "an integer of 64 bits", &shown(&whole), "correct it");
    whole.extract().map_err(wrong)
}

/// A space of its description, see [`crate::settings::space_dict`].
pub(super) fn space_of(dict: &Bound<'_, PyDict>) -> PyResult<Space> {
    let get = |name: &str| item_of("action", dict.as_any(), name, FIX);
    let bounds = |name: &'static str| -> PyResult<Vec<f32>> {
        let numbers = argument::<f32>(name, &get(name)?, &REAL)?.read(false)?;
        mapped(numbers.slice(), |x| x).map_err(to_py)
    };
    let space = match &*text("kind", &get("kind")?)? {
        "discrete" => Space::Discrete { n: whole("n", &get("n")?)?, start: whole("start", &get("start")?)? },
        "multi_discrete" => {
            let nvec = argument::<i64>("nvec", &get("nvec")?, &INTEGER)?.read(false)?;
            Space::MultiDiscrete { nvec: mapped(nvec.slice(), |n| n).map_err(to_py)? }
        }
        "multi_binary" => Space::MultiBinary { n: index("n", &get("n")?)? },
        "box" => {
            let shape = crate::argument::shape("shape", &get("shape")?)?;
            Space::Box { shape, low: bounds("low")?, high: bounds("high")? }
        }
        other => return Err(value_error("kind", "discrete, multi_discrete, multi_binary or box", other, FIX)),
    };
    space.validate("action space").map_err(to_py)?;
    Ok(space)
}

/// How observations become inputs, and the shape of one.
pub(super) fn encoding_of(observation: &Bound<'_, PyDict>) -> PyResult<(Encoding, Vec<usize>)> {
    let get = |name: &str| item_of("observation", observation.as_any(), name, FIX);
    let obs_shape = crate::argument::shape("shape", &get("shape")?)?;
    let encoding = match &*text("kind", &get("kind")?)? {
        "numbers" => Encoding::Numbers(obs_shape.iter().fold(1, |all: usize, n| all.saturating_mul(*n))),
        "one_hot" => {
            let counts = crate::argument::shape("counts", &get("counts")?)?;
            if counts.contains(&0) || counts.len() != obs_shape.iter().fold(1, |all: usize, n| all.saturating_mul(*n)) {
                let got = format!("{counts:?} for shape {obs_shape:?}");
                return Err(value_error("counts", "a positive count for each integer", &got, FIX));
            }
            Encoding::OneHot(counts)
        }
        other => return Err(value_error("kind", "numbers or one_hot", other, FIX)),
    };
    if encoding.inputs() == 0 {
        let got = format!("shape {obs_shape:?}");
        return Err(value_error("observation", "one number or more", &got, "leave no axis empty"));
    }
    Ok((encoding, obs_shape))
}

/// A backend that this library was built with.
pub(super) fn backend_of(backend: &Bound<'_, PyAny>) -> PyResult<String> {
    let backend = text("backend", backend)?;
    if network_backends().contains(&&*backend) {
        return Ok(backend);
    }
    let known = network_backends().join(", ");
    Err(value_error("backend", &format!("one of {known}"), &backend, "build rlox with that feature"))
}

/// What networks are made for: environments of so many inputs and these actions.
pub(super) fn spec_of(encoding: &Encoding, action: &Space) -> EnvSpec {
    EnvSpec {
        id: String::new(),
        observation: Space::uniform_box(f32::NEG_INFINITY, f32::INFINITY, &[encoding.inputs()]),
        action: action.clone(),
        max_episode_steps: None,
    }
}

pub(super) fn policy(
    py: Python<'_>,
    observation: &Bound<'_, PyDict>,
    action: &Bound<'_, PyDict>,
    stream: &Bound<'_, PyAny>,
    shape: &Bound<'_, PyDict>,
    backend: &Bound<'_, PyAny>,
) -> PyResult<NativePolicy> {
    let (encoding, obs_shape) = encoding_of(observation)?;
    let action = space_of(action)?;
    let words = argument::<i64>("stream", stream, &INTEGER)?.read(false)?;
    expect_shape("stream", words.shape(), WORDS, &[])?;
    let shape = Shape::of(shape)?;
    let backend = backend_of(backend)?;
    let spec = spec_of(&encoding, &action);
    let words = words.slice();
    let made = detached(py, || -> Result<_> { shape.make(&spec, &backend, &mut Pcg64::from_words(words)?) });
    let inner = Inner {
        policy: made
            .map_err(|error| to_py(error.rename_argument("sizes", "net_arch").rename_argument("hidden", "net_arch")))?,
        streams: IterationStreams::new(0, 0).map_err(to_py)?,
        minibatches: Minibatches::new(encoding.clone()),
        inputs: Vec::new(),
    };
    let stop = AtomicBool::new(false);
    Ok(NativePolicy { inner: Shared::new("NativePolicy", inner), stop, encoding, obs_shape, action })
}
