"""Base class of all learners: environments, normalizer, random streams, counters and state."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, ClassVar, Generic

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox import _rng, _spaces, _types, _validation, learners
from rlox._errors import ArgumentTypeError, ClosedError
from rlox._layout import Layout, as_batch
from rlox._rlox import NativeAgent, NativePolicy
from rlox._rlox import enter_phase as enter
from rlox.envs import _state
from rlox.envs._masks import as_masks, mask_width, missing_masks_error
from rlox.envs._rollout_env import RolloutEnv
from rlox.envs.vec_env import VecEnv
from rlox.learners import ConfigT, _actors, _native


class BaseLearner(Generic[ConfigT]):
    """Base class of learners on any backend; see `Learner`.

    Args:
        env: Environments from `rlox.make_vec`.
        config: Settings; `num_envs` must be the number of environments.
        seed: Seed of initial weights, environments, actions and minibatches, an int >= 0.
        name: Name of the algorithm in messages, such as "PPO".

    Raises:
        ArgumentError: Environments and config do not match, or `seed` is negative.
        ArgumentTypeError: `env`, `config` or `seed` has another type.
    """

    algorithm: str
    backend: str
    budget_unit = "timesteps"
    stop_requested: bool  # makes `iterate` return early
    built_in = True  # without a custom policy, features extractor or encoder
    actor_plan: _actors.ActorPlan | None = None  # set if rollouts come from actors

    # Seeds of environment resets, of iterations, and of sampled predictions.
    stream_names: ClassVar[tuple[str, ...]] = ("resets", "iterations", "predictions")

    def __init__(self, env: RolloutEnv, config: ConfigT, seed: int, name: str) -> None:
        learners.check_env_and_config(env, config, name)
        self.env = env
        self.config = config
        names = self.stream_names
        seeds = np.random.SeedSequence(_validation.check_int("seed", seed, 0))
        # The first child of the seed sequence seeds the initial weights.
        self.init, *stream_seeds = seeds.spawn(1 + len(names))
        self.streams = {n: np.random.default_rng(s) for n, s in zip(names, stream_seeds, strict=True)}
        self.spaces = env.single_observation_space, env.single_action_space
        _spaces.check_action_space(self.spaces[1], config.use_sde)
        self.layout = Layout(self.spaces[0])
        self.normalizer = learners.make_normalizer(config, self.spaces[0])
        self.episodes = learners.EpisodeStatistics()
        self.timesteps = self.updates = 0
        self.progress_per_step = 0.0
        self.env_initialized = False
        self.actors: _actors.Actors | None = None
        # Reason why a state has no environments although they have been reset, or None.
        self.unrestorable_reason: str | None = None
        self._idle = threading.Lock()
        self._drawing = threading.Lock()
        self._learning: int | None = None  # id of the thread in `iterate`

    def _mask_width(self) -> int | None:
        """Return the number of flags per action mask; None if `config.action_masks` is False."""
        env = self.env
        if not self.config.action_masks:
            return None
        width = mask_width(self.spaces[1])
        # Other environments may know only after a reset whether they report masks.
        if isinstance(env, VecEnv) and not env.has_action_masks:
            raise missing_masks_error(env)
        return width

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Raise ClosedError if another thread of this process is in such a block."""
        if not self._idle.acquire(blocking=False):
            raise ClosedError(
                "learner", None, "is in use: another thread is in iterate()", "create one trainer per thread"
            )
        try:
            with self._drawing:  # wait for the end of a prediction
                self._learning = threading.get_ident()
            yield
        finally:
            enter("other")
            self._learning = None
            self._idle.release()

    @contextmanager
    def _not_learning(self) -> Iterator[None]:
        """Raise ClosedError if another thread is in `iterate`, which uses the random generator."""
        if self._learning == threading.get_ident():
            yield
            return
        with self._drawing:
            if self._learning is not None:
                raise ClosedError(
                    "learner",
                    None,
                    "is in use: another thread is in iterate() and uses the random generator",
                    "pass deterministic=True, or predict in a callback",
                )
            yield

    @property
    def budget_used(self) -> int:
        """Number of environment steps so far; see `Learner.budget_used`."""
        return self.timesteps

    def restart_episodes(self) -> None:
        """Reset the environments at the start of the next iteration."""
        self.env_initialized = False

    def next_rollout(self) -> _actors.Rollout | None:
        """Wait for the next rollout of an actor; return None if `stop_requested` was set.

        The first call starts the actors. `normalizer` gets the statistics after the rollout.
        """
        assert self.actor_plan is not None
        enter("env_step")
        try:
            if self.actors is None:
                self.actors = self.actor_plan.start(
                    seed=int(self.streams["resets"].integers(2**31)),
                    stream=self.streams["iterations"],
                    normalizer=self.normalizer,
                    weights=self._actor_weights(),
                    worker_args=self._worker_args,
                    stop_requested=lambda: self.stop_requested,
                )
                if self.actors is None:
                    return None
                self.actors.set_stop_requested(self.stop_requested)
                self.env_initialized = True
            rollout = self.actors.pop(self.episodes)
        except Exception:
            self.stop_actors()
            raise
        if rollout is not None and self.normalizer is not None and rollout.normalizer:
            self.normalizer.load_state(rollout.normalizer)
        return rollout

    def stop_actors(self) -> None:
        """Stop the actors, if there are any, and discard their rollouts."""
        if self.actors is not None:
            self.actors.set_stop_requested(True)  # ends a `pop` in another thread
            with suppress(ClosedError):  # the actors may belong to a parent process
                self.streams["iterations"] = self.actors.stream()
            self.actors.close()
            self.actors = None
            self.env_initialized = False
            self.unrestorable_reason = _actors.UNRESTORABLE_REASON

    def _actor_weights(self) -> NativePolicy | _types.Arrays:
        """Return the weights in the form that actors accept."""
        return self._networks()

    def _worker_args(self) -> tuple[object, ...]:
        """Return the arguments that workers pass to the learner class after env, config and seed."""
        return ()

    def episode_metrics(self) -> dict[str, float]:
        """Return the metrics of the episodes and the steps so far."""
        return {
            "rollout/ep_rew_mean": self.episodes.mean_return,
            "rollout/ep_len_mean": self.episodes.mean_length,
            learners.TIMESTEPS: self.timesteps,
        }

    def first_seed(self) -> int | None:
        """Return a seed for the first reset; None if this learner has reset the environments."""
        if self.env_initialized:
            return None
        self.env.pop_episodes()  # discard episodes of earlier users
        return int(self.streams["resets"].integers(2**31))

    def _sample_stream(self, deterministic: object, stream: _rng.Stream | None) -> _rng.Stream | None:
        """Return the random stream of a prediction; None for greedy actions."""
        deterministic = _validation.check_bool("deterministic", deterministic)
        if stream is not None and not isinstance(stream, np.random.Generator):
            raise ArgumentTypeError(
                "stream",
                "a numpy.random.Generator or None",
                type(stream).__name__,
                "pass numpy.random.default_rng(seed)",
            )
        return None if deterministic else stream or self.streams["predictions"]

    def _networks(self) -> _types.Arrays:
        """Return copies of the parameters, by name."""
        raise NotImplementedError

    def _optimizer_state(self) -> _types.Arrays:
        """Return copies of the optimizer's state, by name."""
        raise NotImplementedError

    def _restore(self, state: learners.LearnerState) -> bool:
        """Restore networks and environments, or raise an error and change nothing.

        Returns:
            True if the episodes of the state continue.
        """
        raise NotImplementedError

    def _set_env_state(self, arrays: _types.Arrays, then: Callable[[], object]) -> bool:
        """Restore the environments and call `then`; if one fails, change nothing. See `_restore`."""
        previous = _state.get_state_if_supported(self.env) if self.env_initialized else {}
        is_restored = None
        try:
            is_restored = _state.set_state_if_supported(self.env, arrays)
            then()
        except BaseException as error:  # including Ctrl-C
            if is_restored or (is_restored is None and not isinstance(error, ValueError)):
                self.env_initialized = False
                self.env_initialized = _state.set_state_if_supported(self.env, previous)
            raise
        return is_restored

    def _env_state(self) -> tuple[_types.Arrays, str | None]:
        """Return the state of the environments; if it is empty, also the reason."""
        if self.actors is not None:
            self.streams["iterations"] = self.actors.stream()
            return {}, _actors.UNRESTORABLE_REASON
        self.episodes.drain(self.env)
        env_state = _state.get_state_if_supported(self.env)
        return env_state, None if env_state else _state.get_unrestorable_reason(self.env)

    def state(self, replay: bool = True) -> learners.LearnerState:
        """Return a copy of the state, without a replay buffer; see `Learner.state`."""
        _validation.check_bool("replay", replay)
        counts = {"timesteps": self.timesteps, "updates": self.updates}
        env_state, reason = self._env_state() if self.env_initialized else ({}, self.unrestorable_reason)
        return learners.LearnerState(
            networks=self._networks(),
            optimizer=self._optimizer_state(),
            normalizer={} if self.normalizer is None else dict(self.normalizer.state()),
            environment=env_state,
            counters={**counts, "episodes": self.episodes.state()},
            streams={name: _rng.stream_state(s) for name, s in self.streams.items()},
            unrestorable_reason=reason,
        )

    def load_state(self, state: learners.LearnerState) -> None:
        """Restore a state; an error leaves the learner unchanged. See `Learner.load_state`.

        Environments start new episodes if the state does not include the environments.
        """
        learners.check_state(state)
        streams = _rng.streams_from_states(state.streams, self.streams)
        counts, episodes = learners.counts_from_state(state.counters, ("timesteps", "updates"))
        normalizer = learners.make_normalizer(self.config, self.spaces[0], state.normalizer)
        self.env_initialized = self._restore(state)
        self.stop_actors()
        self.normalizer, self.streams, self.episodes = normalizer, streams, episodes
        self.timesteps, self.updates = counts
        self.unrestorable_reason = None


class NativeBaseLearner(BaseLearner[ConfigT]):
    """Base class of learners with networks in Rust; subclasses create `policy`."""

    policy: NativeAgent | NativePolicy

    @property
    def stop_requested(self) -> bool:
        """Flag that makes `iterate` return early, between two steps or two minibatches."""
        return self.policy.stop_requested

    @stop_requested.setter
    def stop_requested(self, stop: bool) -> None:
        self.policy.set_stop_requested(stop)
        if self.actors is not None:
            self.actors.set_stop_requested(stop)

    @cached_property
    def _is_plain(self) -> bool:
        """True if observations and actions of the spaces need no conversion for `policy`."""
        return isinstance(self.spaces[0], gym.spaces.Box) and _native.has_native_actions(self.spaces[1])

    def predict(
        self,
        obs: _types.Obs,
        deterministic: bool = True,
        stream: _rng.Stream | None = None,
        action_masks: npt.ArrayLike | None = None,
    ) -> npt.NDArray[Any]:
        """Return greedy or sampled actions for raw observations; see `Learner.predict`.

        Samples of DQN are epsilon-greedy with the exploration rate of the last iteration. Samples
        of TD3 are the greedy actions, because action noise is not added. A rejected call leaves the
        stream unchanged.
        """
        sample_stream, space = self._sample_stream(deterministic, stream), self.spaces[1]
        before = None if sample_stream is None else sample_stream.bit_generator.state
        seed = None if sample_stream is None else int(sample_stream.integers(2**63))
        try:
            if self._is_plain and action_masks is None and not isinstance(obs, tuple):
                actions = self.policy.predict(obs, seed, None, self.normalizer)  # type: ignore[arg-type]  # Rust rejects dicts
                return actions if actions.ndim else actions[()]  # a NumPy scalar
            rows, single = as_batch(obs, self.layout, self.normalizer)
            flags = None if action_masks is None else as_masks(action_masks, space, len(rows))
            actions = self.policy.predict(rows, seed, flags)
        except Exception:
            if sample_stream is not None and before is not None:
                sample_stream.bit_generator.state = before
            raise
        env_actions = _spaces.to_env_actions(space, actions.reshape(len(rows), *(space.shape or ())), len(rows))
        return env_actions[0] if single else env_actions

    def _networks(self) -> _types.Arrays:
        """Return copies of all parameters by name, with target networks and temperature."""
        return self.policy.tensors()

    def _optimizer_state(self) -> _types.Arrays:
        """Return copies of the optimizers' states, by name."""
        return self.policy.optimizer_state()
