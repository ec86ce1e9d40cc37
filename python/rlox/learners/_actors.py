"""Actors, which collect rollouts in threads, processes or remote workers while a learner learns."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any, NamedTuple, Protocol, cast
from weakref import finalize

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector.utils import CloudpickleWrapper

from rlox import _spaces
from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._layout import Layout
from rlox._registry import ENCODERS
from rlox._rlox import NativeActors, NativePolicy, Normalizer, RolloutBuffer, read_rollout
from rlox._rng import state_for_native, to_numpy
from rlox._system import check_memory
from rlox._types import Arrays
from rlox.buffers.rollout import make_buffer
from rlox.configs import OnPolicyConfig, local_config
from rlox.envs._make import EnvFactory, get_env_factory
from rlox.envs._masks import mask_width
from rlox.envs._rollout_env import RolloutEnv
from rlox.envs.vec_env import VecEnv
from rlox.learners import EpisodeStatistics, _native, make_normalizer
from rlox.learners._backends import torch_reasons

# Seconds between two checks for a stop request while a worker starts.
_POLL = 0.1
# Returns and lengths of episodes, and the number of dropped episodes.
Episodes = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], int]
UNRESTORABLE_REASON = (
    "actors collect ahead of the learner, and rollouts under way are not saved; "
    "runs with deterministic=True, max_staleness=0 and num_actors=1 resume exactly"
)


def is_synchronous(config: OnPolicyConfig) -> bool:
    """Return whether one thread alternates between collecting and learning, without actors.

    >>> from rlox.configs import A2CConfig, IMPALAConfig
    >>> is_synchronous(A2CConfig()), is_synchronous(A2CConfig(async_collect=True))
    (True, False)
    >>> is_synchronous(IMPALAConfig(deterministic=True, max_staleness=0))
    True
    """
    takes_turns = config.deterministic and config.max_staleness == 0 and config.num_actors == 1
    return takes_turns or not config.async_collect


# Values of `TorchReason.name` for policies whose weights native actors cannot copy.
_COPIED = ("policy", "features_extractor", "observation space", "activation", "full_std", "net_arch")


def resolve_actors(
    env: RolloutEnv, config: OnPolicyConfig, policy: object = None, features_extractor: object = None
) -> str:
    """Return where actors run: "threads", "processes", "ray" or "grpc".

    Threads run native environments and copies of the built-in policy. Other environments and
    policies run Python code, for which threads would wait for Python's global interpreter lock.

    Args:
        env: Environments of the learner.
        config: Settings of the learner.
        policy: Custom policy, or None.
        features_extractor: Custom features extractor, or None.

    Raises:
        ArgumentError: Actors cannot run as `config.actors` asks.
    """
    if (config.normalize_obs or config.normalize_reward) and config.num_actors > 1:
        raise ArgumentError(
            "num_actors",
            "1 with normalize_obs or normalize_reward, because each actor would have its own statistics",
            str(config.num_actors),
            "set num_actors=1, or normalize in a wrapper",
        )
    reason = _not_in_threads(env, config, policy, features_extractor)
    remote = config.actors.startswith(("grpc://", "grpcs://"))
    if (config.actors == "threads" or remote) and reason is not None:
        raise ArgumentError(
            "actors", f"'processes' or 'ray', because {reason}", repr(config.actors), "set actors='processes'"
        )
    if remote and (config.normalize_obs or config.normalize_reward):
        raise ArgumentError(
            "normalize_obs",
            "False, and normalize_reward=False, because gRPC workers do not normalize",
            f"{config.normalize_obs}, and normalize_reward={config.normalize_reward}",
            "normalize in the environment",
        )
    if reason is None and (remote or config.actors in ("auto", "threads")):
        if isinstance(env, VecEnv) and env.has_action_masks != config.action_masks:
            masks = "action masks" if env.has_action_masks else "no action masks"
            raise ArgumentError(
                "action_masks",
                f"{env.has_action_masks} with actors, because the environments have {masks}",
                str(config.action_masks),
                f"set action_masks={env.has_action_masks}",
            )
        return "grpc" if remote else "threads"
    if get_env_factory(env) is None:
        raise ArgumentError(
            "env",
            "an id or a function, because actors in processes create their own environments",
            f"an existing {type(env).__name__}",
            "pass the id or function, or set deterministic=True, max_staleness=0 and num_actors=1 "
            "to collect without actors",
        )
    return "ray" if config.actors == "ray" else "processes"


def _not_in_threads(env: RolloutEnv, config: OnPolicyConfig, policy: object, features_extractor: object) -> str | None:
    """Return the reason why threads cannot collect, as a clause; None if they can."""
    if not isinstance(env, VecEnv):
        return "the environments are not native"
    if type(env) is not VecEnv and config.num_actors > 1:
        return f"threads cannot create a {type(env).__name__} for each actor"
    space = env.single_observation_space
    reasons = torch_reasons(config, space, policy, features_extractor)
    return next((reason.why for reason in reasons if reason.name in _COPIED), None)


def blank_policy(env: RolloutEnv, config: OnPolicyConfig) -> NativePolicy:
    """Create a native policy for an environment and a config; the caller replaces its weights."""
    observation = _native.observation_spec(Layout(env.single_observation_space))
    action = _spaces.to_native(env.single_action_space)
    rng_state = state_for_native(np.random.default_rng(0))
    return NativePolicy(observation, action, rng_state, _native.shape(config), "native")


def as_policy(env: RolloutEnv, config: OnPolicyConfig, weights: NativePolicy | Arrays) -> NativePolicy:
    """Return a native policy with these weights."""
    if isinstance(weights, NativePolicy):
        return weights
    policy = blank_policy(env, config)
    policy.load(weights)
    return policy


class Rollout(NamedTuple):
    """Finished rollout of an actor."""

    buffer: RolloutBuffer  # one of the buffers of `Actors`
    staleness: int  # staleness of its policy, in updates
    seed: int  # seed of its random numbers, and of the update
    normalizer: Arrays  # statistics after the rollout; empty without a normalizer of the actor


class Actors:
    """Running actors, and the ring of rollout buffers that they fill.

    Args:
        native: Threads of the actors.
        buffers: Ring of rollout buffers.
        statistics: Normalizer state after the rollout in each buffer, for actors outside of this
            process; empty for native actors.
        end: Function that is called after the threads have ended.
        faults: Function that returns counts of lost and recovered worker sessions.
    """

    def __init__(
        self,
        native: NativeActors,
        buffers: Sequence[RolloutBuffer],
        statistics: Sequence[Arrays] = (),
        end: Callable[[], object] = lambda: None,
        faults: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self.buffers, self._native, self._statistics = buffers, native, statistics
        self._faults = faults
        self._end = finalize(self, _end, native, end, os.getpid())

    def pop(self, episodes: EpisodeStatistics) -> Rollout | None:
        """Wait for the next rollout; return None if a stop was requested.

        Args:
            episodes: Statistics, to which the episodes of the rollout are added.

        Raises:
            Exception: The first error of an actor. All actors have ended.
        """
        result = self._native.pop()
        if result is None:
            return None
        index, _, staleness, seed, returns, lengths, dropped, statistics = result
        episodes.add(returns, lengths)
        episodes.count += dropped
        normalizer: Arrays = self._statistics[index] if self._statistics else {**(statistics or {})}
        return Rollout(self.buffers[index], staleness, seed, normalizer)

    def set_stop_requested(self, stop: bool) -> None:
        """Set whether `pop` returns None instead of waiting."""
        self._native.set_stop_requested(stop)

    def publish(self, weights: NativePolicy | Arrays) -> None:
        """Give the buffer of the last `pop` back to the actors, and send them the updated weights."""
        if isinstance(weights, NativePolicy):
            self._native.publish(weights)
        elif self._statistics:
            self._native.publish_object(weights)
        else:
            self._native.publish_tensors(weights)

    def stream(self) -> np.random.Generator:
        """Return the random stream from which the seed of the next rollout will be drawn."""
        return to_numpy(self._native.stream())

    def metrics(self) -> dict[str, float]:
        """Return the wait times so far, in seconds, and statistics of lost worker sessions.

        `time/actor_wait_seconds` is the sum over all actors.
        """
        stats, faults = self._native.stats(), self._faults()
        names = ("learner_wait_seconds", "actor_wait_seconds")
        wait_times = {f"time/{name}": stats[name] for name in names}
        return wait_times | {f"workers/{name}": x for name, x in faults.items()}

    def close(self) -> None:
        """End the threads and the worker processes."""
        self._end()


def _end(native: NativeActors, end: Callable[[], object], process: int) -> None:
    if os.getpid() != process:  # in a forked child, the workers belong to the parent
        native.close()
        return
    native.set_stop_requested(True)  # else `close` would wait for a thread in `pop`
    try:
        native.close()
    finally:
        end()


def max_staleness_of(config: OnPolicyConfig) -> int:
    """Return the maximum staleness of a rollout's policy, in updates."""
    return int(config.num_actors if config.max_staleness is None else config.max_staleness)


def ring(env: RolloutEnv, config: OnPolicyConfig) -> list[RolloutBuffer]:
    """Create as many rollout buffers as are in use at once, each for the environments of one actor.

    Raises:
        OutOfMemoryError: The buffers do not fit into memory.
    """
    make = partial(
        make_buffer,
        env,
        config.n_steps,
        normalize_obs=config.normalize_obs,
        mask_width=mask_width(env.single_action_space) if config.action_masks else None,
        num_envs=config.num_envs // config.num_actors,
    )
    staleness, first = max_staleness_of(config), make()
    # All other arrays of a rollout take about 30 bytes per step.
    num_bytes = first.obs.nbytes + first.actions.nbytes + 30 * first.rewards.size
    check_memory("max_staleness", staleness, (staleness + 1) * num_bytes)
    return [first, *(make() for _ in range(staleness))]


class Worker(Protocol):
    """Process with a `RolloutWorker`. Methods raise the errors of environments and policy."""

    def request(self, version: int, seed: int, weights: Arrays) -> None:
        """Request a rollout with `weights`, whose version number is `version`."""

    def poll(self, seconds: float) -> bool:
        """Wait up to `seconds` for an answer; return whether there is one."""

    def receive(self) -> "RolloutMessage | None":
        """Return the answer: a rollout, or None if the worker is ready or was stopped."""


class Workers(Protocol):
    """Workers of one type, such as processes or Ray actors."""

    def start(self, plan: "WorkerPlan") -> Worker:
        """Start a worker."""

    def end(self) -> None:
        """Close the environments and end all workers."""


class RemoteActor:
    """Actor outside of this process, called by a thread of `NativeActors.start_python_actors`.

    Args:
        worker: Worker that collects the rollouts.
        buffers: Ring of rollout buffers.
        statistics: Normalizer state after the rollout in each buffer, which the actor writes.
    """

    def __init__(self, worker: Worker, buffers: Sequence[RolloutBuffer], statistics: list[Arrays]) -> None:
        self._worker = worker
        self._buffers = buffers
        self._statistics = statistics
        self._buffer = 0

    def is_ready(self) -> bool:
        """Wait up to 0.1 seconds; return whether the worker has created environments and policy."""
        if not self._worker.poll(_POLL):
            return False
        self._worker.receive()
        return True

    def begin(self, buffer: int, version: int, seed: int, weights: Arrays) -> None:
        """Request a rollout for the buffer with the index `buffer`; see `Worker.request`."""
        self._worker.request(version, seed, weights)
        self._buffer = buffer

    def wait(self, seconds: float) -> Episodes | None:
        """Store the rollout and return its episodes; None if it is not done after `seconds`."""
        if not self._worker.poll(seconds):
            return None
        rollout: RolloutMessage | None = self._worker.receive()
        if rollout is None:
            raise RuntimeError("an actor was stopped before the end of its rollout")
        read_rollout(self._buffers[self._buffer], rollout.data)
        self._statistics[self._buffer] = rollout.normalizer
        return rollout.returns, rollout.lengths, rollout.dropped


def start_thread_actors(
    env: VecEnv,
    config: OnPolicyConfig,
    weights: NativePolicy | Arrays,
    normalizer: Normalizer | None,
    seed: int,
    stream: np.random.Generator,
) -> Actors:
    """Start threads that step native environments with native networks.

    Args:
        env: Environments of the learner. A single actor uses them; several actors create their own.
        config: Settings of the learner.
        weights: Initial weights of the native policies.
        normalizer: Normalizer of a single actor. Each rollout includes its statistics.
        seed: Seed of the first environment.
        stream: Random stream of the rollouts' seeds.

    Raises:
        OutOfMemoryError: The rollouts or the environments do not fit into memory.
    """
    count = config.num_actors
    envs_per_actor = config.num_envs // count
    env_factory = get_env_factory(env)
    envs = [env]
    if count > 1 and env_factory is not None:  # a VecEnv has a factory, see `resolve_actors`
        envs = [cast("VecEnv", env_factory.make(envs_per_actor, None)) for _ in range(count)]
    buffers = ring(env, config)
    for i, actor_env in enumerate(envs):
        actor_env.pop_episodes()
        actor_env.begin_rollout(buffers[0], normalizer, seed + i * envs_per_actor)
    native = NativeActors(
        [actor_env._native for actor_env in envs],
        policies=[blank_policy(env, config) for _ in range(count)],
        buffers=buffers,
        weights=as_policy(env, config, weights),
        stream=state_for_native(stream),
        normalizer=normalizer,
        max_staleness=max_staleness_of(config),
        deterministic=config.deterministic,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        sde_sample_freq=max(config.sde_sample_freq, 0),
    )
    return Actors(native, buffers)


class RemoteLearner(Protocol):
    """Members of an on-policy learner that collects rollouts for a learner elsewhere."""

    buffer: RolloutBuffer
    env_initialized: bool
    normalizer: Normalizer | None
    stop_requested: bool
    timesteps: int

    def load_weights(self, weights: Arrays) -> None:
        """Load the weights of the policy, by name."""

    def collect_for_remote(self, seed: int) -> bool:
        """Fill the buffer with a rollout; return False if `stop_requested` stopped the rollout."""


class WorkerPlan(NamedTuple):
    """Arguments of a `rlox.distributed._worker.RolloutWorker`."""

    learner: Callable[..., RemoteLearner]  # class of the learner
    env: EnvFactory
    config: OnPolicyConfig  # settings of the worker's learner, which has no actors
    seed: int  # seed of the first environment
    learner_args: tuple[object, ...]  # further arguments of the learner class
    normalizer: Arrays  # initial statistics
    spaces: tuple[gym.Space[Any], gym.Space[Any]]  # observation and action space of the learner
    encoders: dict[Any, Any]  # registered encoders of observations, which another process lacks

    def pickled(self) -> CloudpickleWrapper:
        """Return the plan for another process.

        Raises:
            ArgumentTypeError: The environments or the policy cannot be pickled.
        """
        wrapper = CloudpickleWrapper(self)  # type: ignore[arg-type]  # accepts anything
        try:
            wrapper.__getstate__()
        except Exception as error:
            raise ArgumentTypeError(
                "env",
                "environments and a policy that can be pickled for another process",
                f"an error ({error})",
                "create locks, files and connections inside the function or class of the environment",
            ) from error
        return wrapper


class RolloutMessage(NamedTuple):
    """Message of an actor with one rollout."""

    data: npt.NDArray[np.uint8]  # from `write_rollout`
    returns: npt.NDArray[np.float64]  # returns of the episodes that ended in the rollout
    lengths: npt.NDArray[np.int64]  # lengths of these episodes
    dropped: int  # number of further episodes, without return and length
    normalizer: Arrays  # statistics after the rollout


# Workers outside of this process, by mode; imported on first use.
_WORKERS = {"processes": "rlox.distributed._process_actors:ActorProcesses", "ray": "rlox.distributed.ray:RayWorkers"}


@dataclass(frozen=True)
class ActorPlan:
    """Arguments for the start of a learner's actors, which happens before the first rollout."""

    mode: str  # result of `resolve_actors`
    learner_class: Callable[..., RemoteLearner]  # created again in worker processes
    env: RolloutEnv
    config: OnPolicyConfig
    spaces: tuple[gym.Space[Any], gym.Space[Any]]

    @property
    def uses_native_policy(self) -> bool:
        """True if actors copy the weights into native networks."""
        return self.mode in ("threads", "grpc")

    def start(
        self,
        seed: int,
        stream: np.random.Generator,
        normalizer: Normalizer | None,
        weights: NativePolicy | Arrays,
        worker_args: Callable[[], tuple[object, ...]],
        stop_requested: Callable[[], bool],
    ) -> Actors | None:
        """Start the actors; return None if `stop_requested` returned True meanwhile.

        The seeds of the rollouts are drawn from `stream`. `worker_args` returns further arguments
        of the learner class. A single actor continues the statistics of `normalizer`.
        """
        env, config = self.env, self.config
        statistics: Arrays = {} if normalizer is None else dict(normalizer.state())
        if self.uses_native_policy:
            assert isinstance(env, VecEnv)  # checked by `resolve_actors`
            if self.mode == "grpc":
                start_grpc: Callable[..., Actors] = resolve_name("rlox.distributed.remote:start_remote_actors")
                return start_grpc(env, config, weights, seed, stream)
            # A copy, because the actor's statistics include rollouts that the learner has not used.
            copied = make_normalizer(config, self.spaces[0], statistics or None)
            return start_thread_actors(env, config, weights, copied, seed, stream)
        env_factory = get_env_factory(env)
        assert env_factory is not None  # checked by `resolve_actors`
        assert not isinstance(weights, NativePolicy)
        num_envs = config.num_envs // config.num_actors
        settings = local_config(config, num_envs)
        args = self.learner_class, env_factory, settings, seed, worker_args(), statistics
        plan = WorkerPlan(*args, self.spaces, ENCODERS)
        workers: Workers = resolve_name(_WORKERS[self.mode])(config)
        try:
            buffers = ring(env, config)
            worker_statistics: list[Arrays] = [{} for _ in buffers]
            plans = [plan._replace(seed=seed + i * num_envs) for i in range(config.num_actors)]
            actors = [RemoteActor(workers.start(p), buffers, worker_statistics) for p in plans]
            for actor in actors:
                while not actor.is_ready():
                    if stop_requested():
                        workers.end()
                        return None
            native = NativeActors.start_python_actors(
                actors, weights, state_for_native(stream), max_staleness_of(config), config.deterministic
            )
        except BaseException:
            workers.end()
            raise
        return Actors(native, buffers, worker_statistics, workers.end)
