"""Noise that is added to actions to explore with; as settings, which JSON can hold."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlox import _validation
from rlox._errors import ArgumentError, ArgumentTypeError

# One for all components of an action, or one for each.
Numbers = float | tuple[float, ...]


@dataclass(frozen=True)
class GaussianNoise:
    """Normal numbers, each step's apart from the others.

    Args:
        sigma: Standard deviation, of actions that lie between -1 and 1: a number, or an array with
            one for each component of an action.
        mean: What they are around, likewise; 0 explores both ways.

    Raises:
        TypeError, ValueError: What is no number, not finite, or a deviation below 0.

    >>> GaussianNoise(0.1)
    GaussianNoise(sigma=0.1, mean=0.0, kind='gaussian')
    >>> GaussianNoise(sigma=np.array([0.1, 0.3])).sigma
    (0.1, 0.3)
    """

    sigma: Numbers = 0.1
    # By name alone: who writes (mean, sigma) as Stable-Baselines3 has them is told.
    mean: Numbers = field(default=0.0, kw_only=True)
    kind: Literal["gaussian"] = field(default="gaussian", init=False)

    def __post_init__(self) -> None:
        _validation.check_fields(self, _validation.check_float_or_tuple, ("sigma",), 0, 1e30)
        _validation.check_fields(self, _validation.check_float_or_tuple, ("mean",), -1e30, 1e30)


@dataclass(frozen=True)
class OrnsteinUhlenbeckNoise:
    """A walk drawn to its mean: `x += theta (mean - x) dt + sigma sqrt(dt) n`, with normal n.

    It begins anew in every episode (Uhlenbeck and Ornstein 1930; Lillicrap et al. 2016).

    Args:
        sigma: Standard deviation of a unit of time, of actions that lie between -1 and 1: a number,
            or an array with one for each component of an action.
        theta: How fast the walk is drawn back.
        dt: Time between two steps.
        mean: Where to, likewise a number or an array.
        initial_noise: Where it begins, likewise; None: at 0.

    Raises:
        TypeError, ValueError: What is no number, not finite, or below 0 where it is no place; a
            walk that would grow.

    >>> OrnsteinUhlenbeckNoise(0.5).theta
    0.15
    """

    sigma: Numbers = 0.1
    theta: float = 0.15
    dt: float = 0.01
    mean: Numbers = field(default=0.0, kw_only=True)
    initial_noise: Numbers | None = field(default=None, kw_only=True)
    kind: Literal["ornstein_uhlenbeck"] = field(default="ornstein_uhlenbeck", init=False)

    def __post_init__(self) -> None:
        _validation.check_fields(self, _validation.check_float_or_tuple, ("sigma",), 0, 1e30)
        _validation.check_fields(self, _validation.check_float, ("theta", "dt"), 0, 1e30)
        places = ("mean", "initial_noise")
        _validation.check_fields(self, _validation.check_float_or_tuple, places, -1e30, 1e30)
        if self.theta * self.dt >= 2:
            raise ArgumentError(
                "dt",
                "theta * dt below 2, or the walk grows",
                f"{self.theta} * {self.dt}",
                "shorten dt",
            )


ActionNoise = GaussianNoise | OrnsteinUhlenbeckNoise
# Noise classes, by the kind that files and the command line name.
KINDS: dict[str, type[ActionNoise]] = {
    "gaussian": GaussianNoise,
    "ornstein_uhlenbeck": OrnsteinUhlenbeckNoise,
}


def as_noise(name: str, value: Any) -> ActionNoise:
    """Noise, or what `dataclasses.asdict` made of it.

    Raises:
        TypeError: It is something else.
        ValueError: A number is out of range.

    >>> as_noise("action_noise", asdict(GaussianNoise(0.2)))
    GaussianNoise(sigma=0.2, mean=0.0, kind='gaussian')
    """
    if isinstance(value, GaussianNoise | OrnsteinUhlenbeckNoise):
        return value
    if isinstance(value, Mapping) and value.get("kind") in KINDS:
        return KINDS[value["kind"]](**{key: x for key, x in value.items() if key != "kind"})
    raise ArgumentTypeError(
        name,
        "a GaussianNoise, an OrnsteinUhlenbeckNoise or None",
        _validation.short_repr(value),
        "make one of rlox.noise",
    )


def as_scalar_noise(noise: ActionNoise) -> ActionNoise | None:
    """The same noise with one sigma, if that is all it has: no mean, and no other beginning.

    >>> as_scalar_noise(GaussianNoise([0.2, 0.2]))
    GaussianNoise(sigma=0.2, mean=0.0, kind='gaussian')
    >>> as_scalar_noise(GaussianNoise([0.2, 0.3])) is None
    True
    """
    sigma = np.unique(noise.sigma)
    if sigma.size > 1 or any(np.any(getattr(noise, name, None) or 0.0) for name in _PLACES):
        return None
    defaults = {name: _default_values(noise)[name] for name in _PLACES if hasattr(noise, name)}
    return replace(noise, sigma=float(sigma[0]), **defaults)


def noise_to_dict(noise: ActionNoise) -> dict[str, Any]:
    """The noise as files have it: without a mean and a beginning that are 0.

    >>> noise_to_dict(GaussianNoise(0.2))
    {'sigma': 0.2, 'kind': 'gaussian'}
    """
    defaults = _default_values(noise)
    return {
        name: value
        for name, value in asdict(noise).items()
        if name not in _PLACES or value != defaults[name]
    }


# Numbers that say where noise is.
_PLACES = ("mean", "initial_noise")


def _default_values(noise: ActionNoise) -> dict[str, Any]:
    return {item.name: item.default for item in fields(noise)}


def check_lengths(noise: ActionNoise, dim: int) -> None:
    """Refuses arrays of other lengths than actions have components, `dim`.

    Raises:
        ValueError: There is one.

    >>> check_lengths(GaussianNoise([0.1, 0.2]), dim=3)
    Traceback (most recent call last):
    rlox.ArgumentError: action_noise: expected sigma as one number or 3, as actions have, got 2; \
pass 3
    """
    for name in ("sigma", *_PLACES):
        numbers = getattr(noise, name, None)
        if isinstance(numbers, tuple) and len(numbers) != dim:
            raise ArgumentError(
                "action_noise",
                f"{name} as one number or {dim}, as actions have",
                str(len(numbers)),
                f"pass {dim}",
            )


class NoiseProcess:
    """The noise of some environments' actions, where it stands.

    Args:
        noise: What kind.
        num_envs: How many environments.
        dim: Numbers in an action.

    Raises:
        ValueError: The noise has numbers for other actions.

    >>> process = NoiseProcess(OrnsteinUhlenbeckNoise(0.5), num_envs=2, dim=1)
    >>> actions = process.add(np.array([[0.0], [0.99]], np.float32), np.random.default_rng(0))
    >>> process.end_episodes(np.array([True, False]))
    >>> float(process.state[0, 0])
    0.0
    """

    def __init__(self, noise: ActionNoise, num_envs: int, dim: int) -> None:
        check_lengths(noise, dim)
        self.noise = noise
        self.state = np.zeros((num_envs, dim))
        """(N, k): where each walk is; of Gaussian noise what was drawn last."""
        self.begin()

    def add(
        self, actions: npt.NDArray[np.float32], stream: np.random.Generator
    ) -> npt.NDArray[np.float32]:
        """Goes on by a step: actions (N, k) with noise, cut to [-1, 1]."""
        noise, drawn = self.noise, stream.standard_normal(self.state.shape)
        sigma, mean = np.asarray(noise.sigma), np.asarray(noise.mean)
        if isinstance(noise, OrnsteinUhlenbeckNoise):
            back = noise.theta * noise.dt * (self.state - mean)
            self.state += sigma * noise.dt**0.5 * drawn - back
        else:
            self.state = mean + sigma * drawn
        return np.clip(actions + self.state, -1, 1).astype(np.float32)

    def begin(self) -> None:
        """Begins anew everywhere."""
        self.end_episodes(np.ones(len(self.state), np.bool_))

    def end_episodes(self, ended: npt.NDArray[np.bool_]) -> None:
        """Begins anew where episodes, (N,), have ended."""
        self.state[ended] = getattr(self.noise, "initial_noise", None) or 0.0
