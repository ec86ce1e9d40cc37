"""Where environments stand, so that a run can go on in the middle of their episodes.

Native ones tell it by themselves; this is how those of a `ForeignVecEnv` do.

`rlox.snapshots` says what single environments can tell. Gymnasium's `SyncVectorEnv` asks each of
its own; `AsyncVectorEnv` does if rlox has made it, in autoreset mode SAME_STEP, as only its
workers know the rest. Other vector environments may have `get_state()` and `set_state(state)`
themselves, with the same kinds of data.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rlox._errors import ClosedError
from rlox.learner import Arrays
from rlox.plain import TREE, from_arrays, to_arrays
from rlox.rollout import RolloutEnv
from rlox.snapshots import kinds, restore, snapshot, unknown
from rlox.workers import call_each

if TYPE_CHECKING:
    from rlox.foreign import ForeignVecEnv

# What a single environment says: its kinds, what it remembers, and else why it cannot tell.
_Said = tuple[list[str], Arrays, str | None]
_MASKS = ("action_mask", "_action_mask")
_ABOUT, _TAKE, _PUT = "rlox_kinds", "rlox_snapshot", "rlox_restore"


def environment_state(env: RolloutEnv) -> Arrays:
    """What the environments remember; empty if they cannot tell, or are closed."""
    with suppress(ClosedError):
        return dict(env.get_state()) if getattr(env, "restorable", False) else {}  # type: ignore[attr-defined]  # VecEnv has it
    return {}


def why_inexact(env: RolloutEnv) -> str:
    """Why environments that have begun did not tell where they stand."""
    said = getattr(env, "inexact", None) or f"{type(env).__name__} cannot tell where it stands"
    return "the environments are closed" if getattr(env, "closed", False) else str(said)


def restore_environment(env: RolloutEnv, arrays: Arrays) -> bool:
    """Puts environments back where `environment_state` found them, if they can and it could.

    Raises:
        ValueError: The arrays are others'; nothing has changed then.
    """
    foreign = hasattr(env, "inexact")
    if not arrays or not hasattr(env, "set_state") or (TREE in arrays) != foreign:
        return False
    try:
        return env.set_state(arrays) is not False
    except (TypeError, ValueError) as error:
        raise ValueError(f"environment: {error}") from error


def attach(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Has an environment in a worker process answer to `taken` and `put`; it stays the same."""
    with suppress(AttributeError):
        for name, answer in _ANSWERS.items():
            setattr(env, name, partial(answer, env))
    return env


def taken(env: "ForeignVecEnv") -> Arrays:
    """What environments remember; empty if they cannot tell, and `env.inexact` says why."""
    inner: Any = env.env
    env.inexact = None
    said = _ask(env, _TAKE)
    if isinstance(said, str):
        env.inexact = said
        return {}
    for _, _, why in said:
        if why is not None:
            env.inexact = why
            return {}
    masks = {name: env._infos[name] for name in _MASKS if name in env._infos}
    own: dict[str, Any] = {
        "kinds": [kind for kind, _, _ in said],
        "rows": env._obs,
        "seen": [*inner._env_obs] if type(inner) is SyncVectorEnv else None,
        "masks": {name: [*each] for name, each in masks.items()},
        "told_masks": env._masks.told,
        "ended": env._ended,
        "returns": env._returns,
        "lengths": env._lengths,
        "steps": env._steps,
    }
    each = {f"{i}.{name}": x for i, (_, held, _) in enumerate(said) for name, x in held.items()}
    return {**to_arrays(own), **each}


def put(env: "ForeignVecEnv", arrays: Arrays) -> bool:
    """Goes back to what `taken` gave, whole or not at all.

    Returns:
        False, with nothing changed, if these environments are of other kinds.

    Raises:
        ValueError: It is damaged.
    """
    now, own = _ask(env, _ABOUT), from_arrays({n: x for n, x in arrays.items() if "." not in n})
    if isinstance(now, str):
        env.inexact = now
        return False
    wrong = ValueError("expected where environments stood, got other; use what `state` gave")
    if not isinstance(own, dict) or not isinstance(own.get("kinds"), list):
        raise wrong
    if own["kinds"] != [kind for kind, _, _ in now] or any(why for *_, why in now):
        env.inexact = "these are other environments than those that were saved"
        return False
    if not _fits(env, own):
        raise wrong
    before = {} if env._obs is None else taken(env)
    if failed := _put_each(env, _shared_out(arrays, len(now))):
        if before:
            _put_each(env, _shared_out(before, len(now)))
        raise ValueError(f"expected where environments stood, got other ({failed})")
    _put_own(env, own)
    return True


def _shared_out(arrays: Arrays, n: int) -> list[Arrays]:
    """What each of n environments remembers."""
    held: list[Arrays] = [{} for _ in range(n)]
    for name, x in arrays.items():
        i, _, rest = name.partition(".")
        if rest and i.isdecimal() and int(i) < n:
            held[int(i)][rest] = x
    return held


def _ask(env: "ForeignVecEnv", what: str) -> list[_Said] | str:
    """What each environment says of itself, or why nobody can."""
    inner: Any = env.env
    if type(inner) is SyncVectorEnv:
        return [_ANSWERS[what](one) for one in inner.envs]
    if type(inner) is AsyncVectorEnv:
        if env._mode is not AutoresetMode.SAME_STEP:
            return f"in autoreset mode {env._mode.name} only worker processes know all"
        if not all(inner.call("has_wrapper_attr", _TAKE)):
            return "asynchronous environments that rlox has not made cannot tell where they stand"
        return [*inner.call(what)]
    if all(callable(getattr(type(inner), name, None)) for name in ("get_state", "set_state")):
        take = (lambda: to_arrays(inner.get_state())) if what == _TAKE else dict
        return [_said([type(inner).__name__], take)]
    return f"{type(inner).__name__} has no get_state() and set_state(state)"


def _put_each(env: "ForeignVecEnv", held: list[Arrays]) -> str | None:
    """Puts single environments back; what failed, if something did."""
    inner: Any = env.env
    if type(inner) is SyncVectorEnv:
        failed = [_put(one, own) for one, own in zip(inner.envs, held, strict=True)]
    elif type(inner) is AsyncVectorEnv:
        failed = call_each(inner, _PUT, held)
    else:
        failed = [_tried(lambda: inner.set_state(from_arrays(held[0])))]
    return next((why for why in failed if why is not None), None)


def _put_own(env: "ForeignVecEnv", own: dict[str, Any]) -> None:
    """Puts back what is remembered around the environments."""
    inner: Any = env.env
    env._obs, env._ended = own["rows"], own["ended"]
    env._returns, env._lengths, env._steps = own["returns"], own["lengths"], own["steps"]
    env._infos, env._finished = dict(own["masks"]), []
    env._masks.told = own["told_masks"]
    if type(inner) is SyncVectorEnv:
        inner._env_obs = list(own["seen"])
        inner._autoreset_envs = own["ended"].copy()
    env._overwriting.note()


def _fits(env: "ForeignVecEnv", own: dict[str, Any]) -> bool:
    """Whether what is remembered around environments is of so many, and of this kind."""
    n = env.num_envs
    wanted: dict[str, Any] = {
        "rows": ((n, *env.layout.shape), env.layout.dtype),
        "ended": ((n,), np.bool_),
        "returns": ((n,), np.float64),
        "lengths": ((n,), np.int64),
    }
    there = {name: np.asarray(own.get(name)) for name in wanted}
    return (
        all((x.shape, x.dtype) == wanted[name] for name, x in there.items())
        and isinstance(own.get("masks"), dict)
        and type(own.get("steps")) is int
        and type(own.get("told_masks")) is bool
        and (type(env.env) is not SyncVectorEnv or len(own.get("seen") or ()) == n)
    )


def _about(env: gym.Env[Any, Any]) -> _Said:
    """What a single environment is, in its own process."""
    return kinds(env), {}, unknown(env)


def _take(env: gym.Env[Any, Any]) -> _Said:
    """What a single environment remembers, in its own process."""
    kind, _, why = _about(env)
    return (kind, {}, why) if why else _said(kind, lambda: snapshot(env))


def _put(env: gym.Env[Any, Any], held: Arrays) -> str | None:
    """Puts a single environment back, in its own process; what failed, if something did."""
    return _tried(lambda: restore(env, held))


def _said(kind: list[str], take: Callable[[], Arrays]) -> _Said:
    try:
        return kind, take(), None
    except (ValueError, AttributeError) as error:
        return kind, {}, f"{kind[-1]}: {error}, and no plain data"


def _tried(put: Callable[[], object]) -> str | None:
    try:
        put()
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return None


_ANSWERS: dict[str, Callable[..., Any]] = {_ABOUT: _about, _TAKE: _take, _PUT: _put}
