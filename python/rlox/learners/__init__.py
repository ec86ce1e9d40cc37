"""`Learner`: what an algorithm on some backend must do for a trainer. Needs no tensor library."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError, ArgumentTypeError, ClosedError, add_section
from rlox._layout import Layout
from rlox._rlox import Normalizer
from rlox._rng import Stream, _damaged
from rlox._types import Arrays
from rlox.envs._rollout_env import RolloutEnv

# The parts of a state that are arrays: the members of a checkpoint.
MEMBERS = ("networks", "optimizer", "normalizer", "environment", "replay")


@dataclass
class LearnerState:
    """All that a learner needs to go on: arrays for files, and what JSON can hold.

    Args:
        networks: Parameters and buffers by their names in torch's sense, "actor.0.weight".
        optimizer: What it keeps for each parameter, "actor.0.weight.exp_avg" and
            "actor.0.weight.exp_avg_sq" of each optimiser, and the steps, "actor.step".
        normalizer: What `rlox.Normalizer.state` gives; empty without one.
        environment: What the environments' `get_state` gives; empty where they cannot tell, and
            before the first reset.
        counters: Steps, updates, finished episodes.
        streams: Random streams by name, as `stream_state` gives them.
        replay: What the replay buffer's `state` gives; empty without one, None if it is left out.
        unrestorable_reason: The reason why `environment` is empty although the environments have
            been reset; else None.
        ranks: Of a run of several processes (`rlox.distributed.ddp`) what each of them has of its
            own: environments, replay, counters, streams; empty where there is one.
    """

    networks: Arrays
    optimizer: Arrays
    normalizer: Arrays
    environment: Arrays
    counters: dict[str, Any]
    streams: dict[str, dict[str, Any]]
    replay: Arrays | None = field(default_factory=dict)
    unrestorable_reason: str | None = None
    ranks: "list[LearnerState]" = field(default_factory=list)


class Learner(Protocol):
    """An algorithm on a backend. A `rlox.trainers.Trainer` drives it, one iteration at a time."""

    algorithm: str
    """Its name, "ppo"."""
    backend: str
    """"native", "candle", "burn" or "torch"."""
    config: Any
    """A frozen dataclass."""
    timesteps: int
    """Environment steps learned from so far, all environments together."""
    episodes: "EpisodeStatistics"
    """Of the episodes finished while training."""
    progress_per_step: float
    """How much of the run a step is: set it, and schedules go on within an iteration."""
    stop_requested: bool
    """Set it to have `iterate` return early, from a signal handler for instance."""

    def iterate(self, progress: float = 0.0) -> dict[str, float]:
        """Collects steps and learns from them.

        Args:
            progress: How much of the run is done, in [0, 1]: schedules go by it.

        Returns:
            Metrics under Stable-Baselines3's names. Empty if `stop_requested` was set before the
            first update: nothing was learned then, and the steps do not count.

        Raises:
            FloatingPointError: NaN or infinity, with the tensor, the step and the environment.
        """

    def predict(
        self,
        obs: Any,
        deterministic: bool = True,
        stream: Stream | None = None,
        action_masks: npt.ArrayLike | None = None,
    ) -> npt.NDArray[Any]:
        """Actions as the environment takes them, for one observation or a batch.

        Args:
            obs: (*obs_shape) or (n, *obs_shape), raw; of Dict and Tuple spaces, dicts and tuples.
            deterministic: Greedy actions rather than samples.
            stream: Decides the samples; None: a stream of the learner's own, which goes on.
            action_masks: (n, k) flags of the actions that are allowed; None: all.

        Raises:
            TypeError: No array of real numbers; a policy that cannot be greedy.
            ValueError: Another shape, or numbers that are not finite.
        """

    def state(self, replay: bool = True) -> LearnerState:
        """A copy of everything, between two iterations; of environments, where they can tell.

        Episodes that have ended are in it, even those of an iteration that was cut short.

        With `replay=False` a replay buffer is left out: who goes back to it has an empty one.
        """

    def load_state(self, state: LearnerState) -> None:
        """Goes back to a state of a learner with the same config and spaces.

        Raises:
            ValueError: It is of another learner, or damaged; the message begins with the name of
                the part. Nothing has changed then.
        """


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

    def drain(self, env: RolloutEnv) -> None:
        """Takes in those that ended since the last time; closed environments have none left."""
        with suppress(ClosedError):
            self.add(*env.pop_episodes())
            # Native environments keep the newest 16,384 episodes and count the rest.
            self.count += getattr(env, "dropped_episodes", 0)

    @property
    def mean_return(self) -> float:
        """NaN before the first episode has finished."""
        returns = [*self.returns]  # which another thread may change
        return math.fsum(returns) / len(returns) if returns else math.nan

    @property
    def mean_length(self) -> float:
        """NaN before the first episode has finished."""
        lengths = [*self.lengths]
        return sum(lengths) / len(lengths) if lengths else math.nan

    def state(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        return {"count": self.count, "returns": [*self.returns], "lengths": [*self.lengths]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes back to what `state` gave.

        Raises:
            ValueError: It is something else. Nothing has changed then.
        """
        try:
            count = int(state["count"])
            returns, lengths = [*map(float, state["returns"])], [*map(int, state["lengths"])]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _damaged("counters", "the episodes' count, returns and lengths", state) from error
        if not len(returns) == len(lengths) == min(count, 100):
            raise _damaged("counters", "the last 100 episodes' returns and lengths", state)
        self.count = count
        self.returns, self.lengths = deque(returns, maxlen=100), deque(lengths, maxlen=100)


def counts_from_state(
    counters: Mapping[str, Any], names: Iterable[str]
) -> tuple[list[int], EpisodeStatistics]:
    """The counts of these names, and the episodes.

    Raises:
        ValueError: One is missing or not a count.
    """
    counts = [counters.get(name) for name in names]
    plain = [count for count in counts if type(count) is int and count >= 0]
    if len(plain) != len(counts):
        raise _damaged("counters", f"counts of {', '.join(names)}", counters)
    episodes = EpisodeStatistics()
    episodes.load_state(counters.get("episodes", {}))
    return plain, episodes


def check_env_and_config(env: Any, config: Any, algorithm: str) -> None:
    """Environments and settings are what a learner takes, and fit together.

    Raises:
        TypeError: They are something else.
        ValueError: The settings are for another number of environments.
    """
    if not hasattr(env, "step_rollout"):
        raise ArgumentTypeError(
            "env", "environments ready for rollouts", type(env).__name__, "pass rlox.make_vec(env)"
        )
    if not hasattr(config, "num_envs"):
        raise ArgumentTypeError(
            "config", "the algorithm's settings", type(config).__name__, f"pass a {algorithm}Config"
        )
    if env.num_envs != config.num_envs:
        raise ArgumentError(
            "num_envs",
            f"{env.num_envs}, as there are so many environments",
            str(config.num_envs),
            "make them as many as the setting says, or change it",
        )


def check_state(state: object) -> None:
    """It is what a learner's `state` gave.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(state, LearnerState):
        raise ArgumentTypeError("state", "a LearnerState", type(state).__name__, "pass state()")


def make_normalizer(
    config: Any, observation_space: gym.Space[Any], arrays: Arrays | None = None
) -> Normalizer | None:
    """A normaliser of what the config says, None for nothing.

    Args:
        config: Has `num_envs`, `gamma`, `normalize_obs` and `normalize_reward`.
        observation_space: Of one environment.
        arrays: The statistics to start with, as `Normalizer.state` gives them; None for none.

    Raises:
        ValueError: `arrays` do not fit.
    """
    obs, reward = config.normalize_obs, config.normalize_reward
    if not obs and not reward:
        if arrays:
            raise _damaged("normalizer", "nothing, as nothing is normalised", [*arrays])
        return None
    shape = Layout(observation_space).shape
    normalizer = Normalizer(config.num_envs, shape, obs=obs, reward=reward, gamma=config.gamma)
    if arrays is not None:
        try:
            normalizer.load_state(arrays)
        except (TypeError, ValueError) as error:
            raise add_section(error, "normalizer") from error
    return normalizer


def explained_variance(values: npt.NDArray[Any], returns: npt.NDArray[Any]) -> float:
    """1 - Var(returns - values) / Var(returns): 1 for perfect values; NaN where returns are equal.

    >>> explained_variance(np.array([1.0, 2.0]), np.array([1.0, 3.0]))
    0.75
    """
    spread = returns.var()
    return float(1 - (returns - values).var() / spread) if spread > 0 else float("nan")
