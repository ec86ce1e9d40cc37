"""The worker processes of Gymnasium's asynchronous environments, and how they end."""

from typing import Any

from gymnasium.vector import AsyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState


def terminate(env: VectorEnv[Any, Any, Any]) -> None:
    """Ends the worker processes, if environments have any, without waiting for their answers."""
    if isinstance(env, AsyncVectorEnv) and not env.closed:
        for process in env.processes:
            process.terminate()


def ended(env: VectorEnv[Any, Any, Any], forced: bool) -> dict[str, bool]:
    """Makes ready to close environments; what `close` must be told besides.

    Args:
        env: The innermost ones.
        forced: Whether workers may be in the middle of something. They are not waited for then, nor
            where one of them has died.
    """
    if not isinstance(env, AsyncVectorEnv) or env.closed:
        return {}
    if not forced and all(process.is_alive() for process in env.processes):
        return {}
    terminate(env)
    # `close` would wait for the answers to a call under way.
    env._state = AsyncState.DEFAULT
    return {"terminate": True}


def call_each(env: AsyncVectorEnv, name: str, given: list[Any]) -> list[Any]:
    """What the environments' method of this name answers, each to an argument of its own.

    Args:
        env: In no call.
        name: Of what all of them have.
        given: One for each.
    """
    for pipe, own in zip(env.parent_pipes, given, strict=True):
        pipe.send(("_call", (name, (own,), {})))
    env._state = AsyncState.WAITING_CALL
    return [*env.call_wait()]
