"""`BaseLearner`: what learners share on whatever backend, around networks and updates."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from rlox import _rng, _types, _validation, learners
from rlox._errors import ArgumentTypeError, ClosedError
from rlox._layout import Layout
from rlox._rlox import enter_phase as enter
from rlox._spaces import check_action_space
from rlox.envs import _state
from rlox.envs._masks import mask_width, missing_masks_error
from rlox.envs._rollout_env import RolloutEnv


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

    backend: str
    stop_requested: bool  # set it to have `iterate` return early

    # A base seed for each reset of all, seeds for each iteration, for each sample.
    stream_names: ClassVar[tuple[str, ...]] = ("resets", "iterations", "predictions")

    def __init__(self, env: RolloutEnv, config: Any, seed: int, name: str) -> None:
        learners.check_env_and_config(env, config, name)
        self.env, self.config = env, config
        names, seeds = (
            self.stream_names,
            np.random.SeedSequence(_validation.check_int("seed", seed, 0)),
        )
        # The first is for the initial weights.
        self.init, *stream_seeds = seeds.spawn(1 + len(names))
        self.streams = {
            n: np.random.default_rng(s) for n, s in zip(names, stream_seeds, strict=True)
        }
        self.spaces = env.single_observation_space, env.single_action_space
        check_action_space(self.spaces[1], config)
        self.layout = Layout(self.spaces[0])
        self.normalizer = learners.make_normalizer(config, self.spaces[0])
        self.episodes = learners.EpisodeStatistics()
        self.timesteps = self.updates = 0
        self.progress_per_step = 0.0
        self.env_initialized = False
        self.unrestorable_reason: str | None = (
            None  # why environments that have begun do not go on, if so
        )
        self._idle, self._drawing = threading.Lock(), threading.Lock()
        self._learning: int | None = None  # the thread that iterates

    def _mask_width(self) -> int | None:
        """Return the number of flags of a mask; None if no masks are asked for."""
        env = self.env
        if not getattr(self.config, "action_masks", False):
            return None
        width = mask_width(self.spaces[1])
        # What wraps other environments learns whether they have masks when they are reset.
        if not getattr(env, "has_action_masks", hasattr(env, "action_masks")):
            raise missing_masks_error(env)
        return width

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Refuse a second thread within the context."""
        if not self._idle.acquire(blocking=False):
            raise ClosedError(
                "learner",
                "no other thread in iterate()",
                "one that is learning",
                "make a trainer for each thread",
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
        """Refuse predictions that draw samples while another thread learns."""
        if self._learning == threading.get_ident():
            yield
            return
        with self._drawing:
            if self._learning is not None:
                raise ClosedError(
                    "learner",
                    "no other thread in iterate(), whose random stream samples draw from",
                    "one that is learning",
                    "pass deterministic=True, or predict in a callback",
                )
            yield

    def stop_actors(self) -> None:
        """Ends what collects beside the learner, if anything does."""

    def first_seed(self) -> int | None:
        """For the environments, where they have not been reset by us yet."""
        if self.env_initialized:
            return None
        self.env.pop_episodes()  # those are not ours
        return int(self.streams["resets"].integers(2**31))

    def _sample_stream(
        self, deterministic: object, stream: _rng.Stream | None
    ) -> _rng.Stream | None:
        """Return the stream of a prediction's samples; None for greedy actions."""
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
        """Copies of the parameters, by name."""
        raise NotImplementedError

    def _optimizer_state(self) -> _types.Arrays:
        """Copies of what the optimiser keeps, by name."""
        raise NotImplementedError

    def _restore(self, state: learners.LearnerState) -> bool:
        """Restore a state or change nothing; return whether environments continue episodes."""
        raise NotImplementedError

    def _set_env_state(self, arrays: _types.Arrays, then: Callable[[], object]) -> bool:
        """Restore environments and call `then`, or change nothing; see `_restore`."""
        previous = _state.get_state_if_supported(self.env) if self.env_initialized else {}
        is_restored = None
        try:
            is_restored = _state.set_state_if_supported(self.env, arrays)
            then()
        except BaseException as error:  # Ctrl-C, too
            if is_restored or (is_restored is None and not isinstance(error, ValueError)):
                self.env_initialized = False
                self.env_initialized = _state.set_state_if_supported(self.env, previous)
            raise
        return is_restored

    def _env_state(self) -> tuple[_types.Arrays, str | None]:
        """Where the environments stand; or nothing, and why."""
        self.episodes.drain(self.env)
        env_state = _state.get_state_if_supported(self.env)
        return env_state, None if env_state else _state.get_unrestorable_reason(self.env)

    def state(self, replay: bool = True) -> learners.LearnerState:
        """A copy of all that is needed to go on; see `Learner`. There is no replay buffer here."""
        _validation.check_bool("replay", replay)
        counts = {"timesteps": self.timesteps, "updates": self.updates}
        env_state, reason = (
            self._env_state() if self.env_initialized else ({}, self.unrestorable_reason)
        )
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
        """Goes back to a state, whole or not at all.

        Environments begin new episodes where the state does not tell in which they stood.
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
