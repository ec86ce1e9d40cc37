"""`Collector`: a learner that only collects, in another process than the one that learns."""

from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.vector.utils import CloudpickleWrapper

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._rlox import write_rollout
from rlox.interrupt import stop_on_interrupt
from rlox.learner import Arrays
from rlox.processes import sendable, serving
from rlox.recipes import Recipe

# How long a step may take when all ends, in seconds.
_PATIENCE = 10.0


class Plan(NamedTuple):
    """What a collector is made of."""

    learner: type[Any]
    env: Recipe
    config: Any  # of one that collects and learns by turns, with as many environments as it has
    seed: int  # of its first environment
    own: tuple[Any, ...]  # what the class takes besides
    normalizer: Arrays
    spaces: tuple[Any, Any]  # of observations and actions, as the learner has them


class Collected(NamedTuple):
    """What it sends."""

    data: npt.NDArray[np.uint8]  # of `write_rollout`
    returns: npt.NDArray[np.float64]  # of episodes that ended meanwhile
    lengths: npt.NDArray[np.int64]
    dropped: int  # how many more there were
    normalizer: Arrays  # the statistics after it


def alone(config: Any, num_envs: int) -> Any:
    """The settings of a learner that collects as one of these actors does, by turns.

    >>> from rlox.configs import IMPALAConfig, PPOConfig
    >>> from rlox.actors import in_turn
    >>> one = alone(PPOConfig(num_envs=8, num_actors=2, async_collect=True), 4)
    >>> one.num_envs, in_turn(one), in_turn(alone(IMPALAConfig(), 8))
    (4, True, True)
    """
    changes: dict[str, Any] = {
        "num_envs": num_envs,
        "num_actors": 1,
        "actors": "auto",
        "max_lag": 0,
        "lockstep": True,
    }
    if hasattr(config, "async_collect"):
        changes |= {"async_collect": False, "max_lag": None, "lockstep": False}
    # Of what does not matter, the cheapest.
    for name, cheap in {"compile": False, "device": "cpu", "batch_size": None}.items():
        if hasattr(config, name):
            changes[name] = cheap
    return replace(config, **changes)


class Collector:
    """Environments and a policy; `collect` fills rollouts with them.

    Args:
        plan: What it is made of.

    Raises:
        Whatever environments, or a policy, fail of.
    """

    def __init__(self, plan: Plan) -> None:
        env, config = plan.env.make(plan.config.num_envs, plan.seed), plan.config
        self._env: Any = env
        try:
            _expect_spaces(env, plan.spaces)
            self._learner: Any = plan.learner(env, config, 0, *plan.own)
            if self._learner.normalizer is not None and plan.normalizer:
                self._learner.normalizer.load_state(plan.normalizer)
        except BaseException:
            self.close()
            raise
        self._learner.started = True  # with the seed of the plan

    def stop(self) -> None:
        """Ends a `collect` in another thread after its step."""
        self._learner.stopping = True

    def collect(self, seed: int, weights: Arrays | None) -> Collected | None:
        """A rollout whose random numbers come from `seed`; None where it was stopped.

        Args:
            seed: Below 2**64.
            weights: Of the policy, by name; None: those of the call before.

        Raises:
            Whatever environments, or a policy, fail of.
        """
        learner, env = self._learner, self._env
        if weights is not None:
            learner.take(weights)
        if not learner.gather(seed):
            return None
        learner.timesteps += learner.buffer.n_transitions  # which errors tell
        returns, lengths = env.drain_episodes()
        normalizer = {} if learner.normalizer is None else dict(learner.normalizer.state())
        dropped = getattr(env, "episodes_dropped", 0)
        return Collected(write_rollout(learner.buffer), returns, lengths, dropped, normalizer)

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()


def _expect_spaces(env: Any, expected: tuple[Any, Any]) -> None:
    """Environments are as the learner's.

    Raises:
        ValueError: They have other spaces.
    """
    there = env.single_observation_space, env.single_action_space
    for kind, one, other in zip(("observation", "action"), expected, there, strict=True):
        if one != other:
            raise ArgumentError(
                "env",
                f"the {kind} space of the learner's environments, {one}, where an actor makes its "
                "own",
                str(other),
                "have env make the same everywhere",
            )


def sent(plan: Plan) -> CloudpickleWrapper:
    """A plan on its way to another process.

    Raises:
        TypeError: It holds what cannot be sent.
    """
    wrapped = CloudpickleWrapper(plan)  # type: ignore[arg-type]  # it takes anything
    try:
        wrapped.__getstate__()
    except Exception as error:
        raise ArgumentTypeError(
            "env",
            "environments and policy that another process can make",
            f"something in what makes them that cannot be sent there ({error})",
            "make locks, files and connections within the function or class that makes the "
            "environment",
        ) from error
    return wrapped


def serve(connection: Connection, ended: Connection) -> None:
    """What a process of `rlox.processes` does that collects, until nobody asks any more."""
    with serving(ended, _PATIENCE):
        try:
            sent: Any = connection.recv()  # a CloudpickleWrapper
            collector = Collector(sent.fn)
        except Exception as error:
            connection.send(sendable(error))
            return
        try:
            with stop_on_interrupt(collector.stop):
                _serve(connection, collector)
        finally:
            collector.close()


def _serve(connection: Connection, collector: Collector) -> None:
    connection.send(None)
    while True:
        seed, weights = connection.recv()
        try:
            said: object = collector.collect(seed, weights)
        except Exception as error:
            said = sendable(error)
        connection.send(said)
