"""Choice of the backend, which depends on the arguments only, not on the installed packages."""

from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlox._errors import ArgumentError
from rlox._layout import is_image
from rlox._optional import load_extra
from rlox._registry import AlgorithmSpec, has_encoder
from rlox._rlox import network_backends
from rlox._validation import check_str
from rlox.envs._rollout_env import RolloutEnv
from rlox.learners import Config, EnvLearner
from rlox.noise import as_scalar_noise

Backend = Literal["auto", "native", "candle", "burn", "torch"]
BACKENDS: tuple[str, ...] = get_args(Backend)
_ACTIVATIONS = ("tanh", "relu", "gelu", "silu")
_OPTIMIZERS = ("rmsprop", "adam")
# By setting: description of the values that networks in Rust support, and a check of a value.
_NATIVE: dict[str, tuple[str, Callable[[Any, Config], bool]]] = {
    "device": ("'cpu'", lambda device, _: device == "cpu"),
    "compile": ("False", lambda compiled, _: not compiled),
    "activation": (f"one of {', '.join(_ACTIVATIONS)}", lambda name, _: name in _ACTIVATIONS),
    "optimizer": (" or ".join(map(repr, _OPTIMIZERS)), lambda name, _: name in _OPTIMIZERS),
    "optimizer_eps": ("a number > 0 in float32", lambda eps, _: bool(np.float32(eps) > 0)),
    "full_std": ("True", lambda full, _: full),
    "net_arch": ("at least one hidden layer with use_sde=True", lambda arch, config: arch != () or not config.use_sde),
    "her": ("None", lambda her, _: her is None),
    "action_noise": (
        "noise with one sigma, mean 0 and initial noise 0",
        lambda noise, _: noise is None or as_scalar_noise(noise) is not None,
    ),
    "frame_stack": ("None", lambda frames, _: frames in (None, 1)),
}


class TorchReason(NamedTuple):
    """Argument that only the torch backend supports."""

    name: str  # name of the argument
    expected: str  # values that the other backends support
    got: str  # description of the argument's value
    why: str  # clause that says why torch is needed


def torch_reasons(
    config: Config, observation_space: gym.Space[Any], policy: object, features_extractor: object
) -> Iterator[TorchReason]:
    """Iterate over the arguments that only the torch backend supports.

    Args:
        config: Settings of the algorithm.
        observation_space: Observation space of one environment.
        policy: Custom policy, or None.
        features_extractor: Custom features extractor, or None.
    """
    if policy is not None:
        got, why = _short_name(policy), "policy= is a torch module"
        yield TorchReason("policy", "None (the built-in MLP)", got, why)
    if features_extractor is not None:
        got, why = _short_name(features_extractor), "features_extractor= creates a torch module"
        yield TorchReason("features_extractor", "None", got, why)
    space = observation_space
    if has_encoder(space):
        why = f"the encoder of {type(space).__name__} is a torch module"
        yield TorchReason("observation space", "a space without a custom encoder", str(space), why)
    composed = isinstance(space, spaces.Dict | spaces.Tuple)
    if composed or is_image(space):
        inputs = "Dict and Tuple observations" if composed else "images"
        why = f"only torch networks support {inputs}"
        expected = "neither images nor a Dict or Tuple space"
        yield TorchReason("observation space", expected, str(space), why)
    for name, (expected, fits) in _NATIVE.items():
        if hasattr(config, name) and not fits(getattr(config, name), config):
            got = repr(getattr(config, name))
            yield TorchReason(name, expected, got, f"{name} is {got}")


def _short_name(value: object) -> str:
    """Return the name of a class or function; of other objects, the name of their class."""
    return str(getattr(value, "__name__", type(value).__name__))


def resolve_backend(backend: str, reason: TorchReason | None) -> str:
    """Return the requested backend; for "auto", the native one, or torch if there is a reason.

    Args:
        backend: One of `BACKENDS`.
        reason: First of `torch_reasons`, or None.

    Returns:
        "native", "candle", "burn" or "torch".

    Raises:
        ArgumentTypeError: `backend` is not a str.
        ArgumentError: `backend` is unknown, or is not torch although there is a reason.

    >>> resolve_backend("auto", None)
    'native'
    >>> resolve_backend("native", TorchReason("device", "'cpu'", "'cuda'", "device is 'cuda'"))
    Traceback (most recent call last):
    rlox.ArgumentError: device: expected 'cpu' on the native backend, got 'cuda'; pass \
backend="torch"
    """
    chosen = check_str("backend", backend, BACKENDS)
    if chosen == "auto":
        return "native" if reason is None else "torch"
    if chosen != "torch" and reason is not None:
        raise ArgumentError(
            reason.name, f"{reason.expected} on the {chosen} backend", str(reason.got), 'pass backend="torch"'
        )
    return chosen


def choose_backend(
    spec: AlgorithmSpec,
    backend: str,
    config: Config,
    observation_space: gym.Space[Any],
    policy: object,
    features_extractor: object,
) -> str:
    """Return the result of `resolve_backend` for these arguments, after `check_backend`."""
    reason = next(torch_reasons(config, observation_space, policy, features_extractor), None)
    if spec.native_learner is None:
        why = f"{spec.name} has no native learner"
        reason = TorchReason("backend", "'torch' or 'auto'", repr(backend), why)
    chosen = resolve_backend(backend, reason)
    check_backend(chosen, reason)
    return chosen


def make_learner(
    spec: AlgorithmSpec, backend: str, args: tuple[RolloutEnv, Config, int], *torch_args: object
) -> EnvLearner:
    """Return an algorithm's learner on a backend.

    Args:
        spec: Specification of the algorithm.
        backend: Result of `choose_backend`.
        args: Environments, settings and seed.
        torch_args: Custom policy and features extractor, or None; used by the torch learner only.
    """
    if backend == "torch":
        learner: EnvLearner = resolve_name(spec.torch_learner)(*args, *torch_args)
    else:
        assert spec.native_learner is not None  # checked by `choose_backend`
        learner = resolve_name(spec.native_learner)(*args, backend)
    return learner


def check_backend(backend: str, reason: TorchReason | None) -> None:
    """Check that a backend is available; the error has the command that installs it.

    Args:
        backend: Result of `resolve_backend`.
        reason: Reason for torch other than `backend` itself, or None.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
        ArgumentError: rlox was built without the backend.
    """
    if backend == "torch":
        check_torch("backend is 'torch'" if reason is None else reason.why)
    elif backend not in (available := network_backends()):
        features = ",".join((*(name for name in available if name != "native"), backend))
        raise ArgumentError(
            "backend",
            f"a backend of this build ({', '.join(available)}) or 'torch'",
            repr(backend),
            "build rlox from source, in a clone of the repository: pip install . "
            f"--config-settings=build-args='--features pyo3/abi3-py310,{features}'",
        )


def loading_backend(backend: str | None, saved: str) -> str:
    """Return the backend of a run that is loaded from a checkpoint.

    Args:
        backend: One of `BACKENDS` except "auto"; None: `saved`.
        saved: Backend that wrote the checkpoint.

    Raises:
        ArgumentTypeError: `backend` is not a str.
        ArgumentError: `backend` is unknown, or is None and this build lacks `saved`.

    >>> loading_backend("native", "candle")
    'native'
    """
    if backend is None:
        if saved != "torch" and saved not in (available := network_backends()):
            raise ArgumentError(
                "backend",
                f"a backend of this build ({', '.join(available)})",
                f"a checkpoint of {saved}",
                'pass backend="native", which loads the same networks',
            )
        return saved
    return check_str("backend", backend, BACKENDS[1:])


def check_torch(reason: str) -> None:
    """Check that PyTorch can be imported.

    Args:
        reason: Function, argument or clause that needs PyTorch, such as "backend is 'torch'".

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
    """
    load_extra("torch", "torch", reason)
