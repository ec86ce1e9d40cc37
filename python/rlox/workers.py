"""Worker processes of Gymnasium's asynchronous environments."""

from typing import Any

from gymnasium.vector import AsyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState


def terminate(env: VectorEnv[Any, Any, Any]) -> None:
    """Terminate the worker processes of environments, if there are any."""
    if isinstance(env, AsyncVectorEnv) and not env.closed:
        for process in env.processes:
            process.terminate()


def ended(env: VectorEnv[Any, Any, Any], forced: bool) -> dict[str, bool]:
    """Return the arguments for `close`; terminate workers if `forced`, or if one has died."""
    if not isinstance(env, AsyncVectorEnv) or env.closed:
        return {}
    if not forced and all(process.is_alive() for process in env.processes):
        return {}
    terminate(env)
    # `close` would wait for the answers to a call under way.
    env._state = AsyncState.DEFAULT
    return {"terminate": True}


def call_each(env: AsyncVectorEnv, name: str, given: list[Any]) -> list[Any]:
    """Call a method of all environments, each with its own argument; return the results."""
    for pipe, own in zip(env.parent_pipes, given, strict=True):
        pipe.send(("_call", (name, (own,), {})))
    env._state = AsyncState.WAITING_CALL
    return [*env.call_wait()]
