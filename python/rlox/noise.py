"""Action noise for exploration, as settings that can be stored in JSON."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._validation import Settings, setting, short_repr

__all__ = ["GaussianNoise", "OrnsteinUhlenbeckNoise"]

# One number for all components of an action, or one number per component.
Numbers = float | tuple[float, ...]


@dataclass(frozen=True)
class GaussianNoise(Settings):
    """Gaussian action noise, independent in each step.

    Args:
        sigma: Standard deviation for actions in [-1, 1]: a number, or an array with one number per
            action component.
        mean: Mean, as a number or an array.

    Raises:
        ArgumentError: A number is not finite, or `sigma` is negative.
        ArgumentTypeError: A value is not a number.

    >>> GaussianNoise(0.1)
    GaussianNoise(sigma=0.1, mean=0.0, kind='gaussian')
    >>> GaussianNoise(sigma=np.array([0.1, 0.3])).sigma
    (0.1, 0.3)
    """

    sigma: Numbers = setting(0.1, "standard deviation", low=0)
    # Keyword-only, so that Stable-Baselines3's order (mean, sigma) raises an error.
    _: KW_ONLY
    mean: Numbers = setting(0.0, "mean")
    kind: Literal["gaussian"] = field(default="gaussian", init=False)


@dataclass(frozen=True)
class OrnsteinUhlenbeckNoise(Settings):
    """Ornstein-Uhlenbeck noise: `x += theta (mean - x) dt + sigma sqrt(dt) n`, with normal n.

    The noise is reset in every episode (Uhlenbeck and Ornstein 1930; Lillicrap et al. 2016).

    Args:
        sigma: Standard deviation per unit of time for actions in [-1, 1]: a number, or an array
            with one number per action component.
        theta: Rate of the return to the mean.
        dt: Time between two steps.
        mean: Mean, as a number or an array.
        initial_noise: Noise at the start of an episode, as a number or an array; None: 0.

    Raises:
        ArgumentError: A number is not finite; `sigma`, `theta` or `dt` is negative; or
            `theta * dt >= 2`, for which the noise diverges.
        ArgumentTypeError: A value is not a number.

    >>> OrnsteinUhlenbeckNoise(0.5).theta
    0.15
    """

    sigma: Numbers = setting(0.1, "standard deviation", low=0)
    theta: float = setting(0.15, "rate of return to the mean", low=0)
    dt: float = setting(0.01, "time between two steps", low=0)
    _: KW_ONLY
    mean: Numbers = setting(0.0, "mean")
    initial_noise: Numbers | None = setting(None, "value at the start of an episode")
    kind: Literal["ornstein_uhlenbeck"] = field(default="ornstein_uhlenbeck", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.theta * self.dt >= 2:
            raise ArgumentError(
                "dt", "theta * dt < 2, as the noise diverges otherwise", f"{self.theta} * {self.dt}", "use a smaller dt"
            )


ActionNoise = GaussianNoise | OrnsteinUhlenbeckNoise
# Noise classes by their `kind` in files and on the command line.
KINDS: dict[str, type[ActionNoise]] = {"gaussian": GaussianNoise, "ornstein_uhlenbeck": OrnsteinUhlenbeckNoise}


def as_noise(name: str, value: object) -> ActionNoise:
    """Return noise from an object of this module or from its dict (`dataclasses.asdict`).

    Raises:
        ArgumentError: A number is out of range.
        ArgumentTypeError: `value` is no noise.

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
        short_repr(value),
        "pass an object of a class in rlox.noise",
    )


def as_scalar_noise(noise: ActionNoise) -> ActionNoise | None:
    """Return the noise with a scalar sigma; None if sigmas differ, or mean or initial noise is not 0.

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
    """Return the noise as a dict for files; omit `mean` and `initial_noise` if they are defaults.

    >>> noise_to_dict(GaussianNoise(0.2))
    {'sigma': 0.2, 'kind': 'gaussian'}
    """
    defaults = _default_values(noise)
    return {name: value for name, value in asdict(noise).items() if name not in _PLACES or value != defaults[name]}


# Fields that shift the noise.
_PLACES = ("mean", "initial_noise")


def _default_values(noise: ActionNoise) -> dict[str, Any]:
    return {item.name: item.default for item in fields(noise)}


def check_lengths(noise: ActionNoise, dim: int) -> None:
    """Check that arrays have one number for each of the `dim` action components.

    Raises:
        ArgumentError: An array has another length.

    >>> check_lengths(GaussianNoise([0.1, 0.2]), dim=3)
    Traceback (most recent call last):
    rlox.ArgumentError: action_noise: expected sigma as a number or an array of length 3, got \
length 2; pass one number per action component
    """
    for name in ("sigma", *_PLACES):
        numbers = getattr(noise, name, None)
        if isinstance(numbers, tuple) and len(numbers) != dim:
            raise ArgumentError(
                "action_noise",
                f"{name} as a number or an array of length {dim}",
                f"length {len(numbers)}",
                "pass one number per action component",
            )


class NoiseProcess:
    """Action noise of several environments, with its state.

    Args:
        noise: Parameters of the noise.
        num_envs: Number of environments.
        dim: Number of action components.

    Raises:
        ArgumentError: As `check_lengths`.

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
        """(N, k): current noise of each environment."""
        self.begin()

    def add(self, actions: npt.NDArray[np.float32], stream: np.random.Generator) -> npt.NDArray[np.float32]:
        """Advance the noise by a step; return actions (N, k) plus noise, clipped to [-1, 1]."""
        noise, drawn = self.noise, stream.standard_normal(self.state.shape)
        sigma, mean = np.asarray(noise.sigma), np.asarray(noise.mean)
        if isinstance(noise, OrnsteinUhlenbeckNoise):
            back = noise.theta * noise.dt * (self.state - mean)
            self.state += sigma * noise.dt**0.5 * drawn - back
        else:
            self.state = mean + sigma * drawn
        return np.clip(actions + self.state, -1, 1).astype(np.float32)

    def begin(self) -> None:
        """Reset the noise of all environments."""
        self.end_episodes(np.ones(len(self.state), np.bool_))

    def end_episodes(self, ended: npt.NDArray[np.bool_]) -> None:
        """Reset the noise of the environments where `ended`, bool (N,), is True."""
        noise = self.noise
        initial = noise.initial_noise if isinstance(noise, OrnsteinUhlenbeckNoise) else None
        self.state[ended] = initial or 0.0
