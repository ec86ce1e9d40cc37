"""Interface between learners and trainers, and functions that all learners share."""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError, ArgumentTypeError, ClosedError, add_section
from rlox._layout import Layout
from rlox._rlox import Normalizer
from rlox._rng import Stream, damaged_state_error
from rlox._types import Arrays, Obs
from rlox._validation import check_float
from rlox.configs import OffPolicyConfig, OnPolicyConfig
from rlox.envs._rollout_env import RolloutEnv, check_rollout_env

__all__ = ["EnvLearner", "EpisodeStatistics", "Learner", "LearnerState"]

# Fields of `LearnerState` that are dicts of arrays; a checkpoint stores each one separately.
MEMBERS = ("networks", "optimizer", "normalizer", "environment", "replay")
# Name of the metric that counts environment steps.
TIMESTEPS = "time/total_timesteps"
# Bounds of normalized observations and rewards, and number that is added to variances.
NORMALIZER_CLIP, NORMALIZER_EPS = 10.0, 1e-8
# Settings of any algorithm.
Config: TypeAlias = OnPolicyConfig | OffPolicyConfig
ConfigT = TypeVar("ConfigT", bound=Config)
OnPolicyT = TypeVar("OnPolicyT", bound=OnPolicyConfig)
OffPolicyT = TypeVar("OffPolicyT", bound=OffPolicyConfig)


@dataclass
class LearnerState:
    """Complete state of a learner, as arrays and JSON values.

    Args:
        networks: Parameters and buffers by torch's names, such as "actor.0.weight".
        optimizer: Moments of each parameter, such as "actor.0.weight.exp_avg", and step counts,
            such as "actor.step".
        normalizer: Result of `rlox.Normalizer.state`; empty without a normalizer.
        environment: Result of the environments' `get_state`; empty if they do not support states,
            and before the first reset.
        counters: Steps, updates, finished episodes and further counts.
        streams: Random streams by name, from `stream_state`.
        replay: Result of the replay buffer's `state`; empty without a buffer, None if it was
            excluded.
        unrestorable_reason: Reason why `environment` is empty although the environments have been
            reset; else None.
        ranks: In a run of several processes (`rlox.distributed.ddp`), the state of each rank:
            environments, replay, counters, streams. Empty for a single process.
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
    """Protocol of an algorithm on a backend; `rlox.trainers.Trainer` calls `iterate` in a loop."""

    algorithm: str
    """Name of the algorithm, such as "ppo"."""
    backend: str
    """Backend: "native", "candle", "burn" or "torch"."""
    config: Any
    """Settings, a frozen dataclass."""
    budget_unit: str = "timesteps"
    """Unit in which a run counts the learner's work: "timesteps", "tokens" or "epochs"."""
    episodes: "EpisodeStatistics"
    """Statistics of the episodes that finished during training; empty without environments."""
    progress_per_step: float
    """Progress of the run per unit of work; if > 0, exploration rates change within iterations."""
    stop_requested: bool
    """Flag that makes `iterate` return early; a signal handler may set it."""

    @property
    def budget_used(self) -> int:
        """Work so far in units of `budget_unit`.

        For timesteps, this is the sum over the environments, without steps of discarded rollouts.
        """

    def iterate(self, progress: float = 0.0) -> dict[str, float]:
        """Collect steps and learn from them.

        Args:
            progress: Fraction of the run that is done, in [0, 1], for schedules.

        Returns:
            Metrics under Stable-Baselines3's names. Empty if an on-policy learner was stopped
            before its first update, which discards the steps of the iteration, or an off-policy
            learner before its first step.

        Raises:
            NonFiniteError: A number is NaN or infinite. The error names the tensor and the step.
        """

    def state(self, replay: bool = True) -> LearnerState:
        """Return a copy of the state between two iterations.

        The state includes the environments if they support it, and all episodes that have ended.

        Args:
            replay: Include the replay buffer. Without it, a restored learner has an empty buffer.
        """

    def load_state(self, state: LearnerState) -> None:
        """Restore a state of a learner with the same config and spaces.

        Raises:
            ArgumentError: The state is damaged or of another learner. The error names the section,
                and the learner is unchanged.
            ArgumentTypeError: `state` is not a `LearnerState`.
        """


class EnvLearner(Learner, Protocol):
    """Protocol of a learner that collects steps from environments."""

    env: RolloutEnv
    """Environments of the training."""
    timesteps: int
    """Environment steps so far; equal to `budget_used` in a single process."""
    spaces: tuple[gym.Space[Any], gym.Space[Any]]
    """Observation space and action space of one environment."""
    env_initialized: bool
    """True if the learner has reset the environments, so that episodes are under way."""
    built_in: bool
    """True if all networks are built in, without a custom policy or features extractor."""

    def stop_actors(self) -> None:
        """Stop the actors, if there are any, and discard their rollouts."""

    def restart_episodes(self) -> None:
        """Reset the environments at the start of the next iteration."""

    def predict(
        self,
        obs: Obs,
        deterministic: bool = True,
        stream: Stream | None = None,
        action_masks: npt.ArrayLike | None = None,
    ) -> npt.NDArray[Any]:
        """Return actions of the environment for one observation or a batch.

        Args:
            obs: (*obs_shape) or (n, *obs_shape), not normalized; dicts and tuples of arrays for
                Dict and Tuple spaces.
            deterministic: Return greedy actions instead of samples.
            stream: Random generator of the samples; None: the learner's stream of predictions.
            action_masks: (n, k) bool, True where an action is allowed; None allows all.

        Returns:
            (*action_shape) or (n, *action_shape), in the dtype of the action space.

        Raises:
            ArgumentTypeError: `obs` is not an array of real numbers, or a custom policy has no
                greedy actions.
            ArgumentError: `obs` has another shape.
            NonFiniteError: `obs` has numbers that are not finite.
            ClosedError: On torch, another thread is in `iterate` and `deterministic` is False.
        """


@dataclass
class EpisodeStatistics:
    """Returns and lengths of the last 100 finished episodes, and the count of all episodes.

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
        """Add newly finished episodes, (k,) returns and lengths."""
        self.count += len(returns)
        self.returns.extend(returns.tolist())
        self.lengths.extend(lengths.tolist())

    def clear(self) -> None:
        """Remove all episodes, and set the count to 0."""
        self.count = 0
        self.returns.clear()
        self.lengths.clear()

    def drain(self, env: RolloutEnv) -> None:
        """Add the episodes of `env` that ended since the last call; none if `env` is closed."""
        with suppress(ClosedError):
            self.add(*env.pop_episodes())
            # Native environments store the newest 16,384 episodes and only count the others.
            self.count += env.dropped_episodes

    @property
    def mean_return(self) -> float:
        """Mean return of the last 100 episodes; NaN before the first episode finishes."""
        returns = [*self.returns]  # another thread may change the deque
        return math.fsum(returns) / len(returns) if returns else math.nan

    @property
    def mean_length(self) -> float:
        """Mean length of the last 100 episodes; NaN before the first episode finishes."""
        lengths = [*self.lengths]
        return sum(lengths) / len(lengths) if lengths else math.nan

    def state(self) -> dict[str, Any]:
        """Return the statistics as JSON values."""
        return {"count": self.count, "returns": [*self.returns], "lengths": [*self.lengths]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`.

        Raises:
            ArgumentError: `state` is something else. The statistics are unchanged.
        """
        try:
            count = int(state["count"])
            returns, lengths = [*map(float, state["returns"])], [*map(int, state["lengths"])]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            expected = "count, returns and lengths of episodes"
            raise damaged_state_error("counters", expected, state) from error
        if not len(returns) == len(lengths) == min(count, 100):
            raise damaged_state_error("counters", "returns and lengths of the last 100 episodes", state)
        self.count = count
        self.returns, self.lengths = deque(returns, maxlen=100), deque(lengths, maxlen=100)


def counts_from_state(counters: Mapping[str, Any], names: Iterable[str]) -> tuple[list[int], EpisodeStatistics]:
    """Return the named counts and the episode statistics of `LearnerState.counters`.

    Raises:
        ArgumentError: A count is missing or is not an int >= 0, or the statistics are damaged.
    """
    counts = [counters.get(name) for name in names]
    plain = [count for count in counts if type(count) is int and count >= 0]
    if len(plain) != len(counts):
        raise damaged_state_error("counters", f"counts of {', '.join(names)}", counters)
    episodes = EpisodeStatistics()
    episodes.load_state(counters.get("episodes", {}))
    return plain, episodes


def check_env_and_config(env: RolloutEnv, config: object, algorithm: str) -> None:
    """Check the types of the environments and the config, and the number of environments.

    Raises:
        ArgumentTypeError: `env` or `config` has another type.
        ArgumentError: `config.num_envs` is not the number of environments.
    """
    check_rollout_env(env)
    if not isinstance(config, OnPolicyConfig | OffPolicyConfig):
        expected = f"a {algorithm}Config"
        raise ArgumentTypeError("config", expected, type(config).__name__, f"pass {expected}")
    if env.num_envs != config.num_envs:
        raise ArgumentError(
            "num_envs",
            f"{env.num_envs}, the number of environments",
            str(config.num_envs),
            "set num_envs to the number of environments",
        )


def check_progress(progress: float) -> float:
    """Check that the progress of a run is in [0, 1], and return it as a float."""
    return check_float("progress", progress, 0, 1, fix="pass the fraction of the run that is done")


def check_state(state: object) -> None:
    """Check that `state` is a `LearnerState`.

    Raises:
        ArgumentTypeError: `state` has another type.
    """
    if not isinstance(state, LearnerState):
        hint = "pass the result of state()"
        raise ArgumentTypeError("state", "a LearnerState", type(state).__name__, hint)


def make_normalizer(
    config: Config, observation_space: gym.Space[Any], arrays: Arrays | None = None
) -> Normalizer | None:
    """Create the normalizer of a config; None if nothing is normalized.

    Args:
        config: Settings `num_envs`, `gamma`, `normalize_obs` and `normalize_reward`.
        observation_space: Observation space of one environment.
        arrays: Initial statistics from `Normalizer.state`; None: no statistics yet.

    Raises:
        ArgumentError: `arrays` do not match the config and the space.
    """
    obs, reward = config.normalize_obs, config.normalize_reward
    if not obs and not reward:
        if arrays:
            expected = "no arrays, because normalization is off"
            raise damaged_state_error("normalizer", expected, [*arrays])
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
    """Return 1 - Var(returns - values) / Var(returns); NaN if all returns are equal.

    >>> explained_variance(np.array([1.0, 2.0]), np.array([1.0, 3.0]))
    0.75
    """
    spread = returns.var()
    return float(1 - (returns - values).var() / spread) if spread > 0 else float("nan")
