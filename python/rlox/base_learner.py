"""`BaseLearner`: what learners share on whatever backend, around networks and updates."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from rlox import actors, learner, settings, standing
from rlox._rlox import ClosedError, NativePolicy
from rlox.layouts import Layout
from rlox.masks import mask_width, no_masks
from rlox.phases import enter
from rlox.rollout import RolloutEnv, make_buffer
from rlox.vec_env import VecEnv


def expect_action_space(space: gym.Space[Any], config: Any) -> None:
    """Refuses action spaces in which there is nothing to do, or not what the settings ask for.

    Raises:
        ValueError: It has no components; gSDE is asked for, and it is no Box.
    """
    if 0 in (space.shape or ()):
        raise ValueError(
            f"action space: expected one component or more, got {space}; leave out the axis that "
            "is empty"
        )
    if getattr(config, "use_sde", False) and not isinstance(space, gym.spaces.Box):
        raise ValueError(f"use_sde: expected a Box action space, got {space}; set use_sde=False")


def expect_actions_for(algorithm: str, space: gym.Space[Any]) -> None:
    """Refuses actions that an off-policy algorithm does not do.

    Args:
        algorithm: "dqn", which is for Discrete actions, or another one, for a Box of real numbers
            with bounds, which may be equal.
        space: Of one action.

    Raises:
        ValueError: It does not do them; those that do are named.

    >>> expect_actions_for("dqn", gym.spaces.MultiBinary(2))
    Traceback (most recent call last):
    ValueError: action space: expected Discrete for DQN, got MultiBinary(2); use PPO or A2C
    """
    name = algorithm.upper()
    real = isinstance(space, gym.spaces.Box) and space.dtype.kind == "f"
    if name == "DQN" and not isinstance(space, gym.spaces.Discrete):
        fix = "SAC, TD3, PPO or A2C" if real else "PPO or A2C"
        raise ValueError(f"action space: expected Discrete for {name}, got {space}; use {fix}")
    if name == "DQN":
        return
    if not isinstance(space, gym.spaces.Box):
        fix = "DQN, PPO or A2C" if isinstance(space, gym.spaces.Discrete) else "PPO or A2C"
        raise ValueError(f"action space: expected a Box for {name}, got {space}; use {fix}")
    if not real:
        # Squashed into the bounds, actions hardly ever are what is rounded to the outermost.
        raise ValueError(
            f"action space: expected a Box of real numbers for {name}, got {space}; use PPO or A2C"
        )
    most = np.finfo(np.float32).max
    if not all((np.abs(side.astype(np.float64)) <= most).all() for side in (space.low, space.high)):
        raise ValueError(
            f"action space: expected finite bounds for {name}, which float32 holds, got {space}; "
            "rescale actions in a wrapper, or use PPO or A2C"
        )
    # Equal ones are allowed: a component of which there is nothing to decide.
    if (above := space.low > space.high).any():
        raise ValueError(
            f"action space: expected low <= high for {name}, got {space.low[above][0]} > "
            f"{space.high[above][0]} in component {int(np.flatnonzero(above)[0])}; swap them"
        )


class BaseLearner:
    """Environments, normaliser, random streams, counts, and a state to save; see `Learner`.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.
        config: Settings; `num_envs` must be the environments'.
        seed: Decides everything random: initial weights, environments, actions, minibatches.
        name: The algorithm's, for messages.

    Raises:
        ValueError, TypeError: Environments and config that do not fit together.
    """

    # A base seed for each reset of all, seeds for each iteration, for each sample.
    stream_names: ClassVar[tuple[str, ...]] = ("resets", "iterations", "predictions")

    def __init__(self, env: RolloutEnv, config: Any, seed: int, name: str) -> None:
        learner.expect_fitting(env, config, name)
        self.env, self.config = env, config
        names, seeds = self.stream_names, np.random.SeedSequence(settings.whole("seed", seed, 0))
        # The first is for the initial weights.
        self.init, *own = seeds.spawn(1 + len(names))
        self.streams = {n: np.random.default_rng(s) for n, s in zip(names, own, strict=True)}
        self.spaces = env.single_observation_space, env.single_action_space
        expect_action_space(self.spaces[1], config)
        self.layout = Layout(self.spaces[0])
        self.normalizer = learner.make_normalizer(config, self.spaces[0])
        self.episodes = learner.EpisodeStatistics()
        self.timesteps = self.updates = 0
        self.growth = 0.0
        self.started = False
        # Where actors collect: what they act with, and how old that of the last rollout was.
        self.in_turn, self.lag = actors.in_turn(config), 0
        self.actors: actors.Actors | None = None
        self.acting: NativePolicy | None = None
        self._idle, self._drawing = threading.Lock(), threading.Lock()
        self._learning: int | None = None  # the thread that iterates

    def _make_storage(self) -> None:
        """The buffer for rollouts.

        Raises:
            ValueError: Masks are asked for that the environments do not have.
            MemoryError: It does not fit into memory.
        """
        config, width = self.config, self._mask_width()
        self.buffer = make_buffer(
            self.env, config.n_steps, normalize_obs=config.normalize_obs, mask_width=width
        )

    def _mask_width(self) -> int | None:
        """How many flags masks have, if they are asked for.

        Raises:
            ValueError: The environments do not have them.
        """
        env = self.env
        if not getattr(self.config, "action_masks", False):
            return None
        width = mask_width(self.spaces[1])
        # What wraps other environments learns whether they have masks when they are reset.
        if not getattr(env, "has_action_masks", hasattr(env, "action_masks")):
            raise no_masks(env)
        return width

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuses a second thread.

        Raises:
            RuntimeError: Another one is within.
        """
        if not self._idle.acquire(blocking=False):
            raise RuntimeError(
                "iterate: expected a learner that no other thread uses, got one that is learning; "
                "make a trainer for each thread"
            )
        try:
            with self._drawing:  # a prediction that has begun ends first
                self._learning = threading.get_ident()
            yield
        finally:
            enter("other")
            self._learning = None
            self._idle.release()

    @contextmanager
    def _not_learning(self) -> Iterator[None]:
        """Within it nothing is learned, unless by an iteration that this is called from.

        Raises:
            RuntimeError: Another thread iterates.
        """
        if self._learning == threading.get_ident():
            yield
            return
        with self._drawing:
            if self._learning is not None:
                raise RuntimeError(
                    "predict: expected a learner that no other thread trains, as samples draw from "
                    "what training draws from, got one that is learning; pass deterministic=True, "
                    "or predict between iterations, in a callback"
                )
            yield

    def _taken(self) -> bool:
        """The buffer is the next one that an actor has filled; False if `stopping` was set."""
        enter("env_step")
        env, policy = self.env, self.acting
        assert isinstance(env, VecEnv)  # as `expect_actors` has seen
        assert policy is not None
        try:
            if self.actors is None:
                self._lend(None)
                seed, stream = self.streams["resets"].integers(2**31), self.streams["iterations"]
                about = self.normalizer, int(seed), stream
                self.actors = actors.Actors(env, self.config, policy, *about)
                self.started = True
            taken = self.actors.next(policy, self.episodes)
        except Exception:
            self.stop_actors()
            raise
        if taken is None:
            return False
        self.buffer, self.lag = self.actors.buffers[taken.buffer], taken.lag
        self._prepare(taken)
        return True

    def _lend(self, to: actors.Actors | None) -> None:
        """Gives actors the weights as they are; None: those that are made of `acting` next."""
        raise NotImplementedError

    def _prepare(self, taken: actors.Taken) -> None:
        """What is to be done before learning from a rollout of an actor."""
        raise NotImplementedError

    def _counted(self, metrics: dict[str, float]) -> dict[str, float]:
        """What an iteration tells; its steps are counted, and actors have the new weights."""
        made = self.buffer.n_transitions
        if self.actors is None:
            self.episodes.drain(self.env)
        elif metrics:
            self._lend(self.actors)
            metrics = metrics | {"train/policy_lag": self.lag, **self.actors.metrics()}
        if not metrics:
            return {}
        self.timesteps += made
        return {
            "rollout/ep_rew_mean": self.episodes.mean_return,
            "rollout/ep_len_mean": self.episodes.mean_length,
            "time/total_timesteps": self.timesteps,
            **metrics,
        }

    def stop_actors(self) -> None:
        """Ends threads that collect, if there are any; what they have collected is lost."""
        if self.actors is not None:
            with suppress(ClosedError):  # of a parent process, for instance
                self.streams["iterations"] = self.actors.stream()
            self.actors.close()
            self.actors, self.started = None, False

    def first_seed(self) -> int | None:
        """For the environments, where they have not been reset by us yet."""
        if self.started:
            return None
        self.env.drain_episodes()  # those are not ours
        return int(self.streams["resets"].integers(2**31))

    def _sampling(
        self, deterministic: object, stream: learner.Stream | None
    ) -> learner.Stream | None:
        """Where a prediction's samples come from; None for greedy actions.

        Raises:
            TypeError: No flag, or no stream.
        """
        deterministic = settings.flag("deterministic", deterministic, fix="pass one of them")
        if stream is not None and not isinstance(stream, np.random.Generator):
            raise TypeError(
                f"stream: expected a numpy.random.Generator or None, got {type(stream).__name__}; "
                "pass numpy.random.default_rng(seed)"
            )
        return None if deterministic else stream or self.streams["predictions"]

    def _networks(self) -> learner.Arrays:
        """Copies of the parameters, by name."""
        raise NotImplementedError

    def _optimizer_state(self) -> learner.Arrays:
        """Copies of what the optimiser keeps, by name."""
        raise NotImplementedError

    def _restore(self, state: learner.LearnerState) -> bool:
        """Takes networks, optimiser and environments of a state, whole or not at all.

        Returns:
            Whether the environments stand where they stood.

        Raises:
            ValueError: They do not fit.
        """
        raise NotImplementedError

    def state(self, replay: bool = True) -> learner.LearnerState:
        """A copy of all that is needed to go on; see `Learner`. There is no replay buffer here."""
        settings.flag("replay", replay, fix="pass one of them")
        counts, stands, inexact = {"timesteps": self.timesteps, "updates": self.updates}, {}, None
        if self.actors is not None:
            self.streams["iterations"], inexact = self.actors.stream(), actors.INEXACT
        elif self.started:  # else the episodes that ended are not ours
            self.episodes.drain(self.env)
            stands = standing.environment_state(self.env)
            inexact = None if stands else standing.why_inexact(self.env)
        return learner.LearnerState(
            networks=self._networks(),
            optimizer=self._optimizer_state(),
            normalizer={} if self.normalizer is None else dict(self.normalizer.state()),
            environment=stands,
            counters={**counts, "episodes": self.episodes.state()},
            streams={name: learner.stream_state(s) for name, s in self.streams.items()},
            inexact=inexact,
        )

    def load_state(self, state: learner.LearnerState) -> None:
        """Goes back to a state, whole or not at all.

        Environments begin new episodes where the state does not tell in which they stood.
        """
        learner.expect_state(state)
        streams = learner.streams_from_states(state.streams, self.streams)
        counts, episodes = learner.counts_from_state(state.counters, ("timesteps", "updates"))
        normalizer = learner.make_normalizer(self.config, self.spaces[0], state.normalizer)
        self.started = self._restore(state)
        self.stop_actors()
        self.normalizer, self.streams, self.episodes = normalizer, streams, episodes
        self.timesteps, self.updates = counts
