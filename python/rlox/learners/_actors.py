"""`Actors`: they collect while a learner learns, in threads of this process or in others."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import finalize

import numpy as np
import numpy.typing as npt
from gymnasium.vector.utils import CloudpickleWrapper

from rlox import _spaces
from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._layout import Layout
from rlox._rlox import NativeActors, NativePolicy, Normalizer, RolloutBuffer, read_rollout
from rlox._rng import state_for_native, to_numpy
from rlox._system import check_memory
from rlox._types import Arrays
from rlox.buffers.rollout import make_buffer
from rlox.envs._make import EnvFactory, get_env_factory
from rlox.envs._masks import mask_width
from rlox.envs._rollout_env import RolloutEnv
from rlox.envs.vec_env import VecEnv
from rlox.learners import EpisodeStatistics, _native
from rlox.learners._backends import torch_reasons

# Seconds between two checks whether to go on waiting for a worker.
_POLL = 0.1
# Returns and lengths of episodes, and the number of further ones.
Episodes = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], int]
UNRESTORABLE_REASON = (
    "actors collect ahead of the learner: rollouts under way are not saved; "
    "deterministic=True with max_staleness=0 and num_actors=1 goes on exactly"
)


def is_synchronous(config: Any) -> bool:
    """Whether one thread collects and learns, by turns: there are no actors then.

    >>> from rlox.configs import A2CConfig, IMPALAConfig
    >>> is_synchronous(A2CConfig()), is_synchronous(A2CConfig(async_collect=True))
    (True, False)
    >>> is_synchronous(IMPALAConfig(deterministic=True, max_staleness=0))
    True
    """
    if not getattr(config, "async_collect", hasattr(config, "num_actors")):
        return True
    return bool(config.deterministic) and config.max_staleness == 0 and config.num_actors == 1


def gae_lambda(config: Any) -> float:
    """Of the advantages that are estimated while collecting; IMPALA estimates its own later."""
    return float(getattr(config, "gae_lambda", 1.0))


# What networks in Rust must be able to do for actors to have copies of a policy's weights.
_COPIED = (
    "policy",
    "features_extractor",
    "observation space",
    "activation",
    "full_std",
    "net_arch",
)


def resolve_actors(
    env: RolloutEnv, config: Any, policy: object = None, features_extractor: object = None
) -> str:
    """Where actors work: "threads", "processes", "ray" or "grpc".

    Threads are for native environments and copies of the built-in policy; whatever else is Python,
    where threads would wait for each other.

    Raises:
        ValueError: They cannot work where `config.actors` says; actor and learner may take turns.
    """
    if (config.normalize_obs or config.normalize_reward) and config.num_actors > 1:
        raise ArgumentError(
            "num_actors",
            "1 beside normalize_obs or normalize_reward, as each actor would have statistics of "
            "its own",
            str(config.num_actors),
            "take one, or normalise in a wrapper",
        )
    reason = _not_in_threads(env, config, policy, features_extractor)
    remote = config.actors.startswith(("grpc://", "grpcs://"))
    if (config.actors == "threads" or remote) and reason is not None:
        raise ArgumentError(
            "actors", f"'processes' or 'ray' where {reason}", repr(config.actors), "set one of them"
        )
    if remote and (config.normalize_obs or config.normalize_reward):
        raise ArgumentError(
            "normalize_obs",
            "False where workers collect, as they have no statistics",
            "True, or normalize_reward=True",
            "normalise elsewhere",
        )
    if reason is None and (remote or config.actors in ("auto", "threads")):
        if isinstance(env, VecEnv) and env.has_action_masks != config.action_masks:
            has = "masks" if env.has_action_masks else "none"
            raise ArgumentError(
                "action_masks",
                f"{env.has_action_masks} where actors collect, as the environments have {has}",
                str(config.action_masks),
                "set it so",
            )
        return "grpc" if remote else "threads"
    if get_env_factory(env) is None:
        raise ArgumentError(
            "env",
            "an id, or a function that makes environments, where actors make their own in "
            "processes",
            f"a {type(env).__name__} already made",
            "pass what makes it, or set deterministic=True, max_staleness=0 and num_actors=1: actor and "
            "learner take turns then",
        )
    return "ray" if config.actors == "ray" else "processes"


def _not_in_threads(
    env: RolloutEnv, config: Any, policy: object, features_extractor: object
) -> str | None:
    """Why threads cannot collect, as a clause; None where they can."""
    if not isinstance(env, VecEnv):
        return "environments are not native"
    if type(env) is not VecEnv and config.num_actors > 1:
        return "several actors would need more such environments"
    space = env.single_observation_space
    needs = torch_reasons(config, space, policy, features_extractor)
    return next((need.why for need in needs if need.name in _COPIED), None)


def blank_policy(env: RolloutEnv, config: Any) -> NativePolicy:
    """A policy of the shape that the config says, whose weights are to be replaced."""
    observation = _native.observation_spec(Layout(env.single_observation_space))
    action = _spaces.to_native(env.single_action_space)
    rng_state = state_for_native(np.random.default_rng(0))
    return NativePolicy(observation, action, rng_state, _native.shape(config), "native")


def as_policy(env: RolloutEnv, config: Any, weights: NativePolicy | Arrays) -> NativePolicy:
    """A policy on native networks with these weights."""
    if isinstance(weights, NativePolicy):
        return weights
    policy = blank_policy(env, config)
    policy.load(weights)
    return policy


class Rollout(NamedTuple):
    """A rollout to learn from."""

    buffer: int  # its number
    lag: int  # how many updates its policy is behind
    seed: int  # that was drawn for its iteration
    num_envs: int  # that were stepped for it
    normalizer: Arrays  # statistics after it, where the actor has its own


class Actors:
    """What collects ahead of a learner, and the ring of rollouts that it fills.

    Args:
        native: The threads.
        buffers: The ring.
        statistics: Of normalisers after each buffer's rollout, where actors have their own.
        end: Called after the threads have ended.
        faults: Tells what went wrong with workers, and was made good.
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
        """The next rollout; None where `set_stop_requested` said so.

        Raises:
            Whatever an actor failed of; all have ended then.
        """
        result = self._native.pop()
        if result is None:
            return None
        index, _, lag, seed, returns, lengths, dropped, statistics = result
        episodes.add(returns, lengths)
        episodes.count += dropped
        normalizer: Arrays = self._statistics[index] if self._statistics else {**(statistics or {})}
        return Rollout(index, lag, seed, self.buffers[index].num_envs, normalizer)

    def set_stop_requested(self, stop: bool) -> None:
        """Whether `pop` shall give None rather than wait."""
        self._native.set_stop_requested(stop)

    def publish(self, weights: NativePolicy | Arrays) -> None:
        """The rollout was learned from: actors act with these weights from here on."""
        if isinstance(weights, NativePolicy):
            self._native.publish(weights)
        elif self._statistics:
            self._native.publish_object(weights)
        else:
            self._native.publish_tensors(weights)

    def stream(self) -> np.random.Generator:
        """Where the next rollout's seed comes from."""
        return to_numpy(self._native.stream())

    def metrics(self) -> dict[str, float]:
        """How long learner and actors have waited so far, in seconds; those of all actors.

        With workers also how many sessions were lost, and went on elsewhere.
        """
        stats, faults = self._native.stats(), self._faults()
        waited = {
            f"time/{name}": stats[name] for name in ("learner_wait_seconds", "actor_wait_seconds")
        }
        return waited | {f"workers/{name}": x for name, x in faults.items()}

    def close(self) -> None:
        """Ends the threads, and processes."""
        self._end()


def _end(native: NativeActors, end: Callable[[], object], process: int) -> None:
    if os.getpid() != process:  # threads and processes are the parent's
        native.close()
        return
    native.set_stop_requested(True)  # who waits in `pop` would have `close` wait
    try:
        native.close()
    finally:
        end()


def lag_bound(config: Any) -> int:
    """How many updates a rollout's policy may be behind."""
    return int(config.num_actors if config.max_staleness is None else config.max_staleness)


def ring(env: RolloutEnv, config: Any) -> list[RolloutBuffer]:
    """As many buffers as are filled or learned from at once, each for an actor's environments.

    Raises:
        MemoryError: They do not fit into memory.
    """
    width = mask_width(env.single_action_space) if config.action_masks else None

    def make() -> RolloutBuffer:
        return make_buffer(
            env,
            config.n_steps,
            normalize_obs=config.normalize_obs,
            mask_width=width,
            num_envs=config.num_envs // config.num_actors,
        )

    lag = lag_bound(config)
    first = make()
    each = sum(x.nbytes for x in (first.obs, first.actions)) + 30 * first.rewards.size
    check_memory("max_staleness", lag, (lag + 1) * each)
    return [first, *(make() for _ in range(lag))]


class Worker(Protocol):
    """Process that runs a `Collector`. Methods raise what the environments or the policy raise."""

    def request(self, version: int, seed: int, weights: Arrays) -> None:
        """Ask for a rollout with the weights of a version."""

    def poll(self, seconds: float) -> bool:
        """Wait for an answer; return whether there is one."""

    def receive(self) -> "RolloutMessage | None":
        """Return the answer: a rollout, or None when the worker is ready or was stopped."""


class Workers(Protocol):
    """Workers of one kind."""

    def start(self, plan: "WorkerPlan") -> Worker:
        """Start a worker."""

    def end(self) -> None:
        """Close the environments, and end all workers."""


class RemoteActor:
    """Actor outside of this process; threads of `NativeActors.start_python_actors` call its methods.

    Args:
        worker: Collects the rollouts.
        buffers: Ring for the rollouts.
        statistics: Normalizer state after the rollout in each buffer, which the actor writes.
    """

    def __init__(
        self, worker: Worker, buffers: Sequence[RolloutBuffer], statistics: list[Arrays]
    ) -> None:
        self._worker = worker
        self._buffers = buffers
        self._statistics = statistics
        self._buffer = 0

    def is_ready(self) -> bool:
        """Wait a moment; return whether the environments and the policy are made."""
        if not self._worker.poll(_POLL):
            return False
        self._worker.receive()
        return True

    def begin(self, buffer: int, version: int, seed: int, weights: Arrays) -> None:
        """Start to fill a buffer with the weights of a version."""
        self._worker.request(version, seed, weights)
        self._buffer = buffer

    def wait(self, seconds: float) -> Episodes | None:
        """Return the episodes that ended in the rollout; None if it is not done after `seconds`."""
        if not self._worker.poll(seconds):
            return None
        rollout: RolloutMessage | None = self._worker.receive()
        if rollout is None:
            raise RuntimeError("an actor was stopped before the end of its rollout")
        read_rollout(self._buffers[self._buffer], rollout.data)
        self._statistics[self._buffer] = rollout.normalizer
        return rollout.returns, rollout.lengths, rollout.dropped


def start_worker_actors(
    workers: Workers,
    *,
    env: RolloutEnv,
    config: Any,
    plan: "WorkerPlan",
    weights: Arrays,
    stream: np.random.Generator,
    stop_requested: Callable[[], bool],
) -> Actors | None:
    """Start actors outside of this process, and wait until they are ready.

    Args:
        workers: Collect the rollouts.
        env: The learner's environments; the actors' environments have the same spaces.
        config: Settings of the learner.
        plan: Plan of the first actor; the others have the seeds after its own.
        weights: Weights of the policy by name.
        stream: Stream of the rollouts' seeds.
        should_stop: Whether to stop waiting; the function returns None then.

    Raises:
        MemoryError: The rollouts do not fit into memory.
            Environments and policy raise errors of their own.
    """
    buffers = ring(env, config)
    statistics: list[Arrays] = [{} for _ in buffers]
    num_envs = plan.config.num_envs
    try:
        plans = [plan._replace(seed=plan.seed + i * num_envs) for i in range(config.num_actors)]
        actors = [RemoteActor(workers.start(one), buffers, statistics) for one in plans]
        for actor in actors:
            while not actor.is_ready():
                if stop_requested():
                    workers.end()
                    return None
        rng_state = state_for_native(stream)
        native = NativeActors.start_python_actors(
            actors, weights, rng_state, lag_bound(config), config.deterministic
        )
    except BaseException:
        workers.end()
        raise
    return Actors(native, buffers, statistics, workers.end)


def start_thread_actors(
    env: VecEnv,
    config: Any,
    weights: NativePolicy | Arrays,
    normalizer: Normalizer | None,
    seed: int,
    stream: np.random.Generator,
) -> Actors:
    """Threads that step native environments with networks in Rust.

    Args:
        env: The learner's environments; a single actor steps these, several have their own.
        config: Has `num_actors`, `max_staleness` and `deterministic` beside the settings of rollouts.
        weights: To begin with, of a policy on native networks.
        normalizer: The actor's own; the learner gets its statistics with each rollout.
        seed: Of the first environment.
        stream: Where each rollout's seed comes from.

    Raises:
        MemoryError: They do not fit into memory.
    """
    count, each = config.num_actors, config.num_envs // config.num_actors
    env_factory = get_env_factory(env)
    envs: list[Any] = [env]
    if count > 1 and env_factory is not None:  # which those of `resolve_actors` have
        envs = [env_factory.make(each, None) for _ in range(count)]
    buffers = ring(env, config)
    for i, one in enumerate(envs):
        one.pop_episodes()
        one.begin_rollout(buffers[0], normalizer, seed + i * each)
    native = NativeActors(
        [one._native for one in envs],
        policies=[blank_policy(env, config) for _ in range(count)],
        buffers=buffers,
        weights=as_policy(env, config, weights),
        stream=state_for_native(stream),
        normalizer=normalizer,
        max_staleness=lag_bound(config),
        deterministic=config.deterministic,
        gamma=config.gamma,
        gae_lambda=gae_lambda(config),
        sde_sample_freq=max(config.sde_sample_freq, 0),
    )
    return Actors(native, buffers)


class WorkerPlan(NamedTuple):
    """Arguments of a `Collector`."""

    learner: type[Any]
    env: EnvFactory
    config: Any  # of a learner that collects itself, with the environments of one actor
    seed: int  # of the first environment
    learner_args: tuple[Any, ...]  # further arguments of the learner class
    normalizer: Arrays
    spaces: tuple[Any, Any]  # of observations and actions, as the learner has them

    def pickled(self) -> CloudpickleWrapper:
        """Return the plan for another process.

        Raises:
            TypeError: Environments or policy cannot be pickled.
        """
        wrapper = CloudpickleWrapper(self)  # type: ignore[arg-type]  # accepts anything
        try:
            wrapper.__getstate__()
        except Exception as error:
            raise ArgumentTypeError(
                "env",
                "environments and a policy that another process can make",
                f"something that cannot be pickled ({error})",
                "make locks, files and connections within the function or class that makes the "
                "environment",
            ) from error
        return wrapper


class RolloutMessage(NamedTuple):
    """One rollout as an actor sends it."""

    data: npt.NDArray[np.uint8]  # from `write_rollout`
    returns: npt.NDArray[np.float64]  # of episodes that ended in the rollout
    lengths: npt.NDArray[np.int64]
    dropped: int  # number of further episodes
    normalizer: Arrays  # statistics after the rollout
