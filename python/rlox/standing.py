"""State of environments, so that a run resumes in the middle of their episodes.

Native environments save and restore themselves. Of a `ForeignVecEnv`, environments of Gymnasium's
`SyncVectorEnv`, and of an `AsyncVectorEnv` that rlox has made, are saved by `rlox.snapshots`.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rlox._errors import ArgumentError, ClosedError, in_section
from rlox.learner import Arrays
from rlox.plain import TREE, from_arrays, to_arrays
from rlox.rollout import RolloutEnv
from rlox.snapshots import layers, restore, snapshot
from rlox.workers import call_each

if TYPE_CHECKING:
    from rlox.foreign import ForeignVecEnv

_MASKS = ("action_mask", "_action_mask")
_EXPECTED = "the saved state of environments"
_FIX = "pass the result of get_state()"


def environment_state(env: RolloutEnv) -> Arrays:
    """Return the state of environments; empty if they have none or are closed."""
    with suppress(ClosedError):
        return dict(env.get_state()) if getattr(env, "restorable", False) else {}  # type: ignore[attr-defined]  # VecEnv has it
    return {}


def why_inexact(env: RolloutEnv) -> str:
    """Return why `environment_state` is empty."""
    if getattr(env, "closed", False):
        return "the environments are closed"
    reason = getattr(env, "inexact", None)
    return str(reason or f"the state of a {type(env).__name__} cannot be saved")


def restore_environment(env: RolloutEnv, arrays: Arrays) -> bool:
    """Restore the result of `environment_state`; return whether environments support that.

    Raises:
        ValueError: The arrays are damaged; nothing has changed then.
    """
    foreign = hasattr(env, "inexact")
    if not arrays or not hasattr(env, "set_state") or (TREE in arrays) != foreign:
        return False
    try:
        return env.set_state(arrays) is not False
    except (TypeError, ValueError) as error:
        raise in_section(error, "environment") from error


def get_env_state(env: "ForeignVecEnv") -> Arrays:
    """Return the state of environments; if it is empty, `env.inexact` is the reason."""
    inner: Any = env.env
    env.inexact = _unsupported(env)
    if env.inexact:
        return {}
    if type(inner) is SyncVectorEnv:
        snapshots = [snapshot(one) for one in inner.envs]
    else:
        snapshots = [*inner.call("rlox_snapshot")]
    if reason := next((x for x in snapshots if isinstance(x, str)), None):
        env.inexact = reason
        return {}
    own = {
        "layers": _layers(inner),
        "snapshots": snapshots,
        "rows": env._obs,
        "observations": [*inner._env_obs] if type(inner) is SyncVectorEnv else None,
        "masks": {name: [*env._infos[name]] for name in _MASKS if name in env._infos},
        "has_masks": env._masks.told,
        "ended": env._ended,
        "returns": env._returns,
        "lengths": env._lengths,
        "steps": env._steps,
    }
    return to_arrays(own)


def set_env_state(env: "ForeignVecEnv", arrays: Arrays) -> bool:
    """Restore the result of `get_env_state`, or change nothing.

    Returns:
        False, with the reason in `env.inexact`, if these environments are of other classes.

    Raises:
        ValueError: The arrays are damaged.
    """
    inner: Any = env.env
    own = from_arrays(arrays)
    if not isinstance(own, dict) or "layers" not in own:
        raise ArgumentError("state", _EXPECTED, "other data", _FIX)
    env.inexact = _unsupported(env)
    if env.inexact is None and own["layers"] != _layers(inner):
        env.inexact = "these are other environments than those that were saved"
    if env.inexact:
        return False
    if wrong := _mismatch(env, own):
        raise ArgumentError("state", _EXPECTED, "other data", _FIX, section=wrong)
    before = {} if env._obs is None else get_env_state(env)
    if reason := _restore_each(inner, own["snapshots"]):
        if before:
            _restore_each(inner, from_arrays(before)["snapshots"])
        got = f"one that cannot be restored ({reason})"
        raise ArgumentError("state", _EXPECTED, got, "pass the same environments")
    env._obs = own["rows"]
    env._ended = own["ended"]
    env._returns = own["returns"]
    env._lengths = own["lengths"]
    env._steps = own["steps"]
    env._infos = dict(own["masks"])
    env._finished = []
    env._masks.told = own["has_masks"]
    if type(inner) is SyncVectorEnv:
        inner._env_obs = list(own["observations"])
        inner._autoreset_envs = own["ended"].copy()
    return True


def _mismatch(env: "ForeignVecEnv", own: dict[str, Any]) -> str | None:
    """Return the name of the first entry with another type, shape or dtype than expected."""
    n = env.num_envs
    expected: dict[str, tuple[tuple[int, ...], Any]] = {
        "rows": ((n, *env.layout.shape), env.layout.dtype),
        "ended": ((n,), np.bool_),
        "returns": ((n,), np.float64),
        "lengths": ((n,), np.int64),
    }
    for name, form in expected.items():
        array = np.asarray(own.get(name))
        if (array.shape, array.dtype) != form:
            return name
    observations = len(own.get("observations") or ())
    fits = {
        "snapshots": isinstance(own.get("snapshots"), list) and len(own["snapshots"]) == n,
        "observations": observations == n or type(env.env) is not SyncVectorEnv,
        "masks": isinstance(own.get("masks"), dict),
        "has_masks": type(own.get("has_masks")) is bool,
        "steps": type(own.get("steps")) is int,
    }
    return next((name for name, is_fit in fits.items() if not is_fit), None)


def _unsupported(env: "ForeignVecEnv") -> str | None:
    """Return why the state of vector environments can be neither saved nor restored."""
    inner: Any = env.env
    if type(inner) is SyncVectorEnv:
        return None
    if type(inner) is not AsyncVectorEnv:
        return f"the state of a {type(inner).__name__} cannot be saved"
    if env._mode is not AutoresetMode.SAME_STEP:
        return f"in autoreset mode {env._mode.name} only worker processes know the state"
    if not all(inner.call("has_wrapper_attr", "rlox_snapshot")):
        return "the state of asynchronous environments that rlox has not made cannot be saved"
    return None


def _layers(inner: Any) -> list[list[str]]:
    """Return the class names of each environment and its wrappers."""
    if type(inner) is SyncVectorEnv:
        return [layers(env) for env in inner.envs]
    return [*inner.call("rlox_layers")]


def _restore_each(inner: Any, snapshots: list[Arrays]) -> str | None:
    """Restore each single environment; return why one of them failed."""
    if type(inner) is AsyncVectorEnv:
        reasons = call_each(inner, "rlox_restore", snapshots)
    else:
        reasons = [restore(env, own) for env, own in zip(inner.envs, snapshots, strict=True)]
    return next(filter(None, reasons), None)
