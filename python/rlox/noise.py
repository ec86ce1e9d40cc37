"""Noise that is added to actions to explore with; as settings, which JSON can hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlox import settings


@dataclass(frozen=True)
class GaussianNoise:
    """Normal numbers, each step's apart from the others.

    Args:
        sigma: Standard deviation, of actions that lie between -1 and 1.

    >>> GaussianNoise(0.1)
    GaussianNoise(sigma=0.1, kind='gaussian')
    """

    sigma: float = 0.1
    kind: Literal["gaussian"] = field(default="gaussian", init=False)

    def __post_init__(self) -> None:
        settings.settle(self, settings.number, ("sigma",), 0, 1e30)


@dataclass(frozen=True)
class OrnsteinUhlenbeckNoise:
    """A walk that is drawn back to 0, `x += -theta x dt + sigma sqrt(dt) n` with normal numbers n.

    It begins at 0 in every episode (Uhlenbeck and Ornstein 1930; Lillicrap et al. 2016).

    Args:
        sigma: Standard deviation of a unit of time, of actions that lie between -1 and 1.
        theta: How fast the walk is drawn back.
        dt: Time between two steps.

    >>> OrnsteinUhlenbeckNoise(0.5).theta
    0.15
    """

    sigma: float = 0.1
    theta: float = 0.15
    dt: float = 0.01
    kind: Literal["ornstein_uhlenbeck"] = field(default="ornstein_uhlenbeck", init=False)

    def __post_init__(self) -> None:
        settings.settle(self, settings.number, ("sigma", "theta", "dt"), 0, 1e30)
        if self.theta * self.dt >= 2:
            raise ValueError(
                f"dt: expected theta * dt below 2, or the walk grows, got {self.theta} * "
                f"{self.dt}; shorten dt"
            )


ActionNoise = GaussianNoise | OrnsteinUhlenbeckNoise
_KINDS: dict[str, type[ActionNoise]] = {
    "gaussian": GaussianNoise,
    "ornstein_uhlenbeck": OrnsteinUhlenbeckNoise,
}


def as_noise(name: str, value: Any) -> ActionNoise:
    """Noise, or what `dataclasses.asdict` made of it.

    Raises:
        TypeError: It is something else.
        ValueError: A number is out of range.

    >>> from dataclasses import asdict
    >>> as_noise("action_noise", asdict(GaussianNoise(0.2)))
    GaussianNoise(sigma=0.2, kind='gaussian')
    """
    if isinstance(value, GaussianNoise | OrnsteinUhlenbeckNoise):
        return value
    if isinstance(value, Mapping) and value.get("kind") in _KINDS:
        return _KINDS[value["kind"]](**{key: x for key, x in value.items() if key != "kind"})
    raise TypeError(
        f"{name}: expected a GaussianNoise, an OrnsteinUhlenbeckNoise or None, got "
        f"{settings.shown(value)}; make one of rlox.noise"
    )


class NoiseProcess:
    """The noise of some environments' actions, where it stands.

    Args:
        noise: What kind.
        num_envs: How many environments.
        dim: Numbers in an action.

    >>> process = NoiseProcess(OrnsteinUhlenbeckNoise(0.5), num_envs=2, dim=1)
    >>> actions = process.add(np.array([[0.0], [0.99]], np.float32), np.random.default_rng(0))
    >>> process.end_episodes(np.array([True, False]))
    >>> float(process.state[0, 0])
    0.0
    """

    def __init__(self, noise: ActionNoise, num_envs: int, dim: int) -> None:
        self.noise = noise
        self.state = np.zeros((num_envs, dim))
        """(N, k): where each walk is; of Gaussian noise what was drawn last."""

    def add(
        self, actions: npt.NDArray[np.float32], stream: np.random.Generator
    ) -> npt.NDArray[np.float32]:
        """Goes on by a step: actions (N, k) with noise, cut to [-1, 1]."""
        noise, drawn = self.noise, stream.standard_normal(self.state.shape)
        if isinstance(noise, OrnsteinUhlenbeckNoise):
            self.state += noise.sigma * noise.dt**0.5 * drawn - noise.theta * noise.dt * self.state
        else:
            self.state = noise.sigma * drawn
        return np.clip(actions + self.state, -1, 1).astype(np.float32)

    def end_episodes(self, ended: npt.NDArray[np.bool_]) -> None:
        """Begins anew where episodes, (N,), have ended."""
        self.state[ended] = 0.0
