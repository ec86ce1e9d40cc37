"""`OnPolicyLearner`: what learners from rollouts share, whoever collects these."""

from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

from rlox import _types, learners
from rlox._errors import ClosedError
from rlox._rlox import NativePolicy
from rlox._rlox import enter_phase as enter
from rlox.buffers.rollout import make_buffer
from rlox.configs import alone
from rlox.distributed._process_actors import ActorProcesses
from rlox.envs._make import recipe_of
from rlox.envs._rollout_env import RolloutEnv
from rlox.learners import _actors
from rlox.learners._actors import WorkerPlan
from rlox.learners.base import BaseLearner

# Imported where they are asked for.
_RAY_WORKERS = "rlox.distributed.ray:RayWorkers"
_IN_WORKERS = "rlox.distributed.remote:in_workers"


class OnPolicyLearner(BaseLearner):
    """A `BaseLearner` with a rollout to learn from, which it or its actors collect.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.
        config: Settings; `num_envs` must be the environments'.
        seed: Decides everything random: initial weights, environments, actions, minibatches.
        name: The algorithm's, for messages.

    Raises:
        ValueError, TypeError: Environments and config that do not fit together.
    """

    backend: str
    stopping: bool  # set it to have `iterate` return early

    def __init__(self, env: RolloutEnv, config: Any, seed: int, name: str) -> None:
        super().__init__(env, config, seed, name)
        # Whether nobody else collects, how many updates the last rollout was behind, and where
        # actors work.
        self.in_turn, self.lag, self.where = _actors.in_turn(config), 0, "here"
        self.actors: _actors.Actors | None = None

    def _make_storage(self) -> None:
        """Make the buffer for rollouts."""
        config, width = self.config, self._mask_width()
        self.buffer = make_buffer(
            self.env, config.n_steps, normalize_obs=config.normalize_obs, mask_width=width
        )

    def _expect_actors(self, *own: object) -> None:
        """Choose where actors collect; `own` are further arguments of the class."""
        self._made_of = own
        if not self.in_turn:
            given = own if self.backend == "torch" else ()
            self.where = _actors.expect_actors(self.env, self.config, *given)

    def _taken(self) -> bool:
        """The buffer is the next one that an actor has filled; False if `stopping` was set."""
        enter("env_step")
        try:
            if self.actors is None:
                made = self._make_actors()
                if made is None:
                    return False
                self.actors = made
                self.actors.set_stopping(self.stopping)
                self.started = True
            taken = self.actors.next(self.episodes)
        except Exception:
            self.stop_actors()
            raise
        if taken is None:
            return False
        self.buffer, self.lag = self.actors.buffers[taken.buffer], taken.lag
        if self.normalizer is not None and taken.normalizer:
            self.normalizer.load_state(taken.normalizer)
        self._prepare(taken)
        return True

    def _make_actors(self) -> _actors.Actors | None:
        """Start the actors; return None if `stopping` was set meanwhile."""
        env: Any = self.env
        seed, stream = int(self.streams["resets"].integers(2**31)), self.streams["iterations"]
        known = {} if self.normalizer is None else dict(self.normalizer.state())
        if self.where == "threads":
            # Its own statistics: the learner's are those of what was learned from.
            own = learners.make_normalizer(self.config, self.spaces[0], known or None)
            return _actors.in_threads(env, self.config, self._lent(), own, seed, stream)
        if self.where == "grpc":
            there = resolve_name(_IN_WORKERS)
            working: _actors.Actors = there(env, self.config, self._lent(), seed, stream)
            return working
        recipe = recipe_of(env)
        assert recipe is not None  # as `expect_actors` has checked
        config = alone(self.config, self.config.num_envs // self.config.num_actors)
        kind = ActorProcesses if self.where == "processes" else resolve_name(_RAY_WORKERS)
        return _actors.start_remote(
            kind(self.config),
            env=env,
            config=self.config,
            plan=WorkerPlan(type(self), recipe, config, seed, self._sent(), known, self.spaces),
            weights=self._networks(),
            stream=stream,
            stopping=lambda: self.stopping,
        )

    def _sent(self) -> tuple[Any, ...]:
        """What the class takes besides, for another process."""
        return self._made_of

    def _lent(self) -> NativePolicy | _types.Arrays:
        """The weights, as actors take them."""
        return self._networks()

    def _prepare(self, taken: _actors.Taken) -> None:
        """What is to be done before learning from a rollout of an actor."""
        raise NotImplementedError

    def gather(self, seed: int) -> bool:
        """Fills the buffer with what `seed` decides; False if `stopping` was set meanwhile."""
        raise NotImplementedError

    def take(self, weights: _types.Arrays) -> None:
        """Takes weights by name, of the same policy elsewhere.

        Raises:
            ValueError: They are another policy's.
        """
        raise NotImplementedError

    def _counted(self, metrics: dict[str, float]) -> dict[str, float]:
        """What an iteration tells; its steps are counted, and actors have the new weights."""
        made = self.buffer.n_transitions
        if self.actors is None:
            self.episodes.drain(self.env)
        elif metrics:
            self.actors.publish(self._lent())
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

    def _stands(self) -> tuple[_types.Arrays, str | None]:
        """Where the environments stand, or nothing, and why; see `BaseLearner`."""
        if self.actors is None:
            return super()._stands()
        self.streams["iterations"] = self.actors.stream()
        return {}, _actors.INEXACT

    def stop_actors(self) -> None:
        """Ends threads, or processes, that collect; what they have collected is lost."""
        if self.actors is not None:
            self.actors.set_stopping(True)  # who waits for them has what comes next
            with suppress(ClosedError):  # of a parent process, for instance
                self.streams["iterations"] = self.actors.stream()
            self.actors.close()
            self.actors, self.started, self.lost = None, False, _actors.INEXACT
