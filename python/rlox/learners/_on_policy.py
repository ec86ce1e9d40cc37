"""Base class of on-policy learners, which learn from rollouts of their own or of actors."""

from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

from rlox import _types, learners
from rlox._errors import ClosedError
from rlox._rlox import NativePolicy
from rlox._rlox import enter_phase as enter
from rlox.buffers.rollout import make_buffer
from rlox.configs import local_config
from rlox.distributed._process_actors import ActorProcesses
from rlox.envs._make import get_env_factory
from rlox.envs._rollout_env import RolloutEnv
from rlox.learners import _actors
from rlox.learners._actors import WorkerPlan
from rlox.learners.base import BaseLearner

# Imported on first use.
_RAY_WORKERS = "rlox.distributed.ray:RayWorkers"
_START_GRPC = "rlox.distributed.remote:start_remote_actors"


class OnPolicyLearner(BaseLearner):
    """Base class of learners from rollouts, which the learner or its actors collect.

    Args:
        env: Environments from `rlox.make_vec`.
        config: Settings; `num_envs` must be the number of environments.
        seed: Seed of initial weights, environments, actions and minibatches, an int >= 0.
        name: Name of the algorithm in messages, such as "PPO".

    Raises:
        ArgumentError: Environments and config do not match, or `seed` is negative.
        ArgumentTypeError: `env`, `config` or `seed` has another type.
    """

    backend: str
    stop_requested: bool  # makes `iterate` return early

    def __init__(self, env: RolloutEnv, config: Any, seed: int, name: str) -> None:
        super().__init__(env, config, seed, name)
        self.is_synchronous = _actors.is_synchronous(config)
        self.lag = 0  # staleness of the last rollout, in updates
        self.actor_mode = "here"  # or a result of `resolve_actors`
        self.actors: _actors.Actors | None = None

    def _make_storage(self) -> None:
        """Create the rollout buffer."""
        config, width = self.config, self._mask_width()
        self.buffer = make_buffer(
            self.env, config.n_steps, normalize_obs=config.normalize_obs, mask_width=width
        )

    def _resolve_actors(self, *args: object) -> None:
        """Choose where actors collect; `args` are further arguments of the learner class."""
        self._learner_args = args
        if not self.is_synchronous:
            torch_args = args if self.backend == "torch" else ()
            self.actor_mode = _actors.resolve_actors(self.env, self.config, *torch_args)

    def _next_rollout(self) -> bool:
        """Wait for the next rollout of an actor; return False if `stop_requested` was set."""
        enter("env_step")
        try:
            if self.actors is None:
                actors = self._make_actors()
                if actors is None:
                    return False
                self.actors = actors
                self.actors.set_stop_requested(self.stop_requested)
                self.env_initialized = True
            rollout = self.actors.pop(self.episodes)
        except Exception:
            self.stop_actors()
            raise
        if rollout is None:
            return False
        self.buffer, self.lag = self.actors.buffers[rollout.buffer], rollout.lag
        if self.normalizer is not None and rollout.normalizer:
            self.normalizer.load_state(rollout.normalizer)
        self._prepare(rollout)
        return True

    def _make_actors(self) -> _actors.Actors | None:
        """Start the actors; return None if `stop_requested` was set meanwhile."""
        env: Any = self.env
        seed, stream = int(self.streams["resets"].integers(2**31)), self.streams["iterations"]
        normalizer_state = {} if self.normalizer is None else dict(self.normalizer.state())
        if self.actor_mode == "threads":
            # The learner's normalizer follows the learned rollouts, so the actor needs a copy.
            normalizer = learners.make_normalizer(
                self.config, self.spaces[0], normalizer_state or None
            )
            return _actors.start_thread_actors(
                env, self.config, self._weights_for_actors(), normalizer, seed, stream
            )
        if self.actor_mode == "grpc":
            start_grpc = resolve_name(_START_GRPC)
            actors: _actors.Actors = start_grpc(
                env, self.config, self._weights_for_actors(), seed, stream
            )
            return actors
        env_factory = get_env_factory(env)
        assert env_factory is not None  # checked by `resolve_actors`
        config = local_config(self.config, self.config.num_envs // self.config.num_actors)
        workers_type = (
            ActorProcesses if self.actor_mode == "processes" else resolve_name(_RAY_WORKERS)
        )
        return _actors.start_worker_actors(
            workers_type(self.config),
            env=env,
            config=self.config,
            plan=WorkerPlan(
                type(self),
                env_factory,
                config,
                seed,
                self._worker_args(),
                normalizer_state,
                self.spaces,
            ),
            weights=self._networks(),
            stream=stream,
            stop_requested=lambda: self.stop_requested,
        )

    def _worker_args(self) -> tuple[Any, ...]:
        """Return further arguments of the learner class, for another process."""
        return self._learner_args

    def _weights_for_actors(self) -> NativePolicy | _types.Arrays:
        """Return the weights in the form that actors accept."""
        return self._networks()

    def _prepare(self, rollout: _actors.Rollout) -> None:
        """Prepare the update from a rollout of an actor."""
        raise NotImplementedError

    def collect_for_remote(self, seed: int) -> bool:
        """Fill the buffer with a rollout for a learner in another process.

        Args:
            seed: Seed of the rollout's random numbers.

        Returns:
            False if `stop_requested` stopped the rollout.
        """
        raise NotImplementedError

    def load_weights(self, weights: _types.Arrays) -> None:
        """Load the weights of the same policy in another process, by name.

        Raises:
            ArgumentError: Names, shapes or dtypes differ from those of the policy.
        """
        raise NotImplementedError

    def _finish_iteration(self, metrics: dict[str, float]) -> dict[str, float]:
        """Count the steps, send the new weights to actors, and return all metrics."""
        n_transitions = self.buffer.n_transitions
        if self.actors is None:
            self.episodes.drain(self.env)
        elif metrics:
            self.actors.publish(self._weights_for_actors())
            metrics = metrics | {"train/policy_staleness": self.lag, **self.actors.metrics()}
        if not metrics:
            return {}
        self.timesteps += n_transitions
        return {
            "rollout/ep_rew_mean": self.episodes.mean_return,
            "rollout/ep_len_mean": self.episodes.mean_length,
            "time/total_timesteps": self.timesteps,
            **metrics,
        }

    def _env_state(self) -> tuple[_types.Arrays, str | None]:
        """Return the state of the environments, or the reason; see `BaseLearner._env_state`."""
        if self.actors is None:
            return super()._env_state()
        self.streams["iterations"] = self.actors.stream()
        return {}, _actors.UNRESTORABLE_REASON

    def stop_actors(self) -> None:
        """Stop the actors, and discard their rollouts."""
        if self.actors is not None:
            self.actors.set_stop_requested(True)  # ends a `pop` in another thread
            with suppress(ClosedError):  # the actors may belong to a parent process
                self.streams["iterations"] = self.actors.stream()
            self.actors.close()
            self.actors = None
            self.env_initialized = False
            self.unrestorable_reason = _actors.UNRESTORABLE_REASON
