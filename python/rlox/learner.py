"""`Learner`: what an algorithm on some backend must do for a trainer. Needs no tensor library."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

# The parts of a state that are arrays: the members of a checkpoint.
MEMBERS = ("networks", "optimizer", "normalizer")
Arrays = dict[str, npt.NDArray[Any]]


@dataclass
class LearnerState:
    """All that a learner needs to go on: arrays for files, and what JSON can hold.

    Args:
        networks: Parameters and buffers by their names in torch's sense, "actor.0.weight".
        optimizer: What it keeps for each parameter: "exp_avg.actor.0.weight" and so on.
        normalizer: What `rlox.Normalizer.state` gives; empty without one.
        counters: Steps, updates, finished episodes.
        streams: Random streams by name, as `stream_state` gives them.
    """

    networks: Arrays
    optimizer: Arrays
    normalizer: Arrays
    counters: dict[str, Any]
    streams: dict[str, dict[str, Any]]


class Learner(Protocol):
    """An algorithm on a backend. A `rlox.trainers.Trainer` drives it, one iteration at a time."""

    algorithm: str
    """Its name, "ppo"."""
    backend: str
    """"torch"."""
    config: Any
    """A frozen dataclass."""
    timesteps: int
    """Environment steps learned from so far, all environments together."""
    episodes: "EpisodeStatistics"
    """Of the episodes finished while training."""
    stopping: bool
    """Set it to have `iterate` return early, from a signal handler for instance."""

    def iterate(self, progress: float = 0.0) -> dict[str, float]:
        """Collects steps and learns from them.

        Args:
            progress: How much of the run is done, in [0, 1): schedules go by it.

        Returns:
            Metrics under Stable-Baselines3's names. Empty when `stopping` cut the collection short:
            nothing was learned then, and the steps do not count.

        Raises:
            FloatingPointError: NaN or infinity, with the tensor, the step and the environment.
        """

    def predict(self, obs: npt.ArrayLike, deterministic: bool = True) -> npt.NDArray[Any]:
        """Actions as the environment takes them, for one observation or a batch."""

    def state(self) -> LearnerState:
        """A copy of everything, between two iterations."""

    def load_state(self, state: LearnerState) -> None:
        """Goes back to a state of a learner with the same config and spaces."""


@dataclass
class EpisodeStatistics:
    """Returns and lengths of the last 100 finished episodes, and how many there were.

    >>> episodes = EpisodeStatistics()
    >>> episodes.mean_return
    nan
    >>> episodes.add(np.array([1.0, 3.0]), np.array([10, 20]))
    >>> episodes.mean_return, episodes.mean_length, episodes.count
    (2.0, 15.0, 2)
    """

    count: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=100))

    def add(self, returns: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64]) -> None:
        """Takes in newly finished episodes, (k,) each."""
        self.count += len(returns)
        self.returns.extend(returns.tolist())
        self.lengths.extend(lengths.tolist())

    @property
    def mean_return(self) -> float:
        """NaN before the first episode has finished."""
        return float(np.mean(self.returns)) if self.returns else float("nan")

    @property
    def mean_length(self) -> float:
        """NaN before the first episode has finished."""
        return float(np.mean(self.lengths)) if self.lengths else float("nan")

    def state(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        return {"count": self.count, "returns": [*self.returns], "lengths": [*self.lengths]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes back to what `state` gave."""
        self.count = int(state["count"])
        self.returns = deque(map(float, state["returns"]), maxlen=100)
        self.lengths = deque(map(int, state["lengths"]), maxlen=100)


def stream_state(stream: np.random.Generator) -> dict[str, Any]:
    """Where a NumPy stream stands. Its 128-bit numbers become strings, as not every JSON has them.

    >>> stream = np.random.default_rng(0)
    >>> state = stream_state(stream)
    >>> int(stream.integers(100)) == int(stream_from_state(state).integers(100))
    True
    """
    state: dict[str, Any] = dict(stream.bit_generator.state)
    return {**state, "state": {key: str(value) for key, value in state["state"].items()}}


def stream_from_state(state: dict[str, Any]) -> np.random.Generator:
    """A NumPy stream that goes on where `stream_state` was called."""
    bits = np.random.PCG64(0)
    numbers = {key: int(value) for key, value in state["state"].items()}
    bits.state = dict(state, state=numbers)  # type: ignore[assignment]  # NumPy checks it
    return np.random.Generator(bits)
