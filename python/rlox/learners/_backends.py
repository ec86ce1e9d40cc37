"""Backends: which one trains, chosen by what is asked for and never by what is installed."""

from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rlox._errors import ArgumentError
from rlox._layout import is_image
from rlox._registry import AlgorithmSpec
from rlox._rlox import network_backends
from rlox._validation import check_str
from rlox.noise import as_scalar_noise

if TYPE_CHECKING:
    from rlox.learners import Learner

Backend = Literal["auto", "native", "candle", "burn", "torch"]
BACKENDS: tuple[str, ...] = get_args(Backend)
# What the networks in Rust can do.
_ACTIVATIONS = ("tanh", "relu", "gelu", "silu")
_OPTIMIZERS = ("rmsprop", "adam")
# Of settings, where an algorithm has them: what networks in Rust do, and whether that is asked.
_NATIVE: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "device": ("'cpu'", lambda device, _: device == "cpu"),
    "compile": ("False", lambda compiled, _: not compiled),
    "activation": (f"one of {', '.join(_ACTIVATIONS)}", lambda name, _: name in _ACTIVATIONS),
    "optimizer": (" or ".join(map(repr, _OPTIMIZERS)), lambda name, _: name in _OPTIMIZERS),
    "optimizer_eps": ("a number above 0 in float32", lambda eps, _: bool(np.float32(eps) > 0)),
    "full_std": ("True", lambda full, _: full),
    "net_arch": (
        "a hidden layer beside use_sde=True",
        lambda arch, config: arch != () or not getattr(config, "use_sde", False),
    ),
    "her": ("None", lambda her, _: her is None),
    "action_noise": (
        "noise with one sigma, and a mean and a beginning of 0,",
        lambda noise, _: noise is None or as_scalar_noise(noise) is not None,
    ),
    "frame_stack": ("None", lambda frames, _: frames in (None, 1)),
}


class TorchReason(NamedTuple):
    """Something asked for that only torch does."""

    name: str  # of the argument
    expected: str  # what the other backends do
    got: str
    why: str  # the same, as the reason for which torch is needed


def torch_reasons(
    config: Any, observation_space: gym.Space[Any], policy: object, features_extractor: object
) -> Iterator[TorchReason]:
    """What only torch does, of that which is asked for.

    Args:
        config: The algorithm's settings.
        observation_space: Of one environment.
        policy: The caller's, or None.
        features_extractor: The caller's, or None.
    """
    if policy is not None:
        got, why = _short_name(policy), "policy= is a torch module"
        yield TorchReason("policy", "None, the built-in MLP,", got, why)
    if features_extractor is not None:
        got, why = _short_name(features_extractor), "features_extractor= makes a torch module"
        yield TorchReason("features_extractor", "None", got, why)
    space = observation_space
    composed = isinstance(space, spaces.Dict | spaces.Tuple)
    if composed or is_image(space):
        why = "only its networks take " + ("composed observations" if composed else "pictures")
        expected = "neither pictures nor Dict nor Tuple spaces"
        yield TorchReason("observation space", expected, str(space), why)
    known = {
        name: (fits(getattr(config, name), config), expected)
        for name, (expected, fits) in _NATIVE.items()
        if hasattr(config, name)
    }
    for name, (fits, expected) in known.items():
        if not fits:
            got = repr(getattr(config, name))
            yield TorchReason(name, expected, got, f"{name} is {got}")


def _short_name(thing: object) -> str:
    """The name of a class or function, of other things that of their class."""
    return str(getattr(thing, "__name__", type(thing).__name__))


def resolve_backend(backend: str, reason: TorchReason | None) -> str:
    """The backend that is asked for; for "auto", the one that does all that is asked for.

    Args:
        backend: One of `BACKENDS`.
        need: The first of `torch_reasons`; None: there is none.

    Returns:
        "native", "candle", "burn" or "torch".

    Raises:
        TypeError: No str.
        ValueError: There is no such backend, or it does not do what is asked for.

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
            reason.name,
            f"{reason.expected} on the {chosen} backend",
            str(reason.got),
            'pass backend="torch"',
        )
    return chosen


def choose_backend(
    backend: str,
    config: Any,
    observation_space: gym.Space[Any],
    policy: object,
    features_extractor: object,
) -> str:
    """`resolve_backend` for what is asked for, and `check_backend`."""
    reason = next(torch_reasons(config, observation_space, policy, features_extractor), None)
    chosen = resolve_backend(backend, reason)
    check_backend(chosen, reason)
    return chosen


def make_learner(
    spec: AlgorithmSpec, backend: str, args: tuple[Any, Any, int], *torch_args: object
) -> "Learner":
    """Return an algorithm's learner on a backend.

    Args:
        spec: Specification of the algorithm.
        backend: Result of `choose_backend`.
        args: Environments, settings and seed.
        torch_args: Custom policy and features extractor, or None; for the torch learner only.
    """
    if backend == "torch":
        learner: Learner = resolve_name(spec.torch_learner)(*args, *torch_args)
    else:
        learner = resolve_name(spec.native_learner)(*args, backend)
    return learner


def check_backend(backend: str, reason: TorchReason | None) -> None:
    """Refuses a backend that is not here, with the command that gets it.

    Args:
        backend: What `resolve_backend` gave.
        need: Why it is torch, if not because that was asked for.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
        ValueError: The extension was built without the backend.
    """
    if backend == "torch":
        check_torch("backend is 'torch'" if reason is None else reason.why)
    elif backend not in (available := network_backends()):
        features = ",".join((*(name for name in available if name != "native"), backend))
        raise ArgumentError(
            "backend",
            f"one that rlox was built with ({', '.join(available)}) or 'torch'",
            repr(backend),
            "build it from source, in a clone of the repository: pip install . "
            f"--config-settings=build-args='--features pyo3/abi3-py310,{features}'",
        )


def loading_backend(backend: str | None, saved: str) -> str:
    """The backend that a checkpoint is loaded into.

    Args:
        backend: One of `BACKENDS` but "auto"; None: the checkpoint's own.
        saved: The checkpoint's own.

    Raises:
        TypeError: No str.
        ValueError: There is no such backend; the checkpoint's own is not in this build.

    >>> loading_backend("native", "candle")
    'native'
    """
    if backend is None:
        if saved != "torch" and saved not in (available := network_backends()):
            raise ArgumentError(
                "backend",
                f"one that rlox was built with ({', '.join(available)})",
                f"a checkpoint of {saved}",
                'pass backend="native", which has the same networks',
            )
        return saved
    return check_str("backend", backend, BACKENDS[1:])


def check_torch(reason: str) -> None:
    """Imports PyTorch, or says how to install it.

    Args:
        why: What it is needed for, as a clause.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    try:
        import torch as _  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"torch: expected PyTorch, as {reason}, got none; pip install 'rlox[torch]'",
            name="torch",
        ) from error
