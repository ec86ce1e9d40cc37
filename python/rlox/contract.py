"""Environments that are not as Gymnasium's API has them: which one, what was expected and came."""

import copy
import inspect
import re
from traceback import walk_tb
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox.layouts import Layout

RESET = "reset(seed=, options=) to give (observation, info)"
STEP = "step(action) to give (observation, reward, terminated, truncated, info)"
FIX = (
    "update it to Gymnasium's API, or, if it is one of Gym's, make it by "
    "shimmy.GymV21CompatibilityV0(env=...)"
)
# How Python says that an answer has other parts than were asked for, and what was to give them.
_UNPACKED = {
    "not enough values to unpack (expected 5": STEP,
    "too many values to unpack (expected 5": STEP,
    "not enough values to unpack (expected 2": RESET,
    "too many values to unpack (expected 2": RESET,
    "cannot unpack non-iterable": "reset and step to give tuples",
}
_UNKNOWN = "reset() got an unexpected keyword argument"
# How Gymnasium's own check says it.
_UNFIT = ("The environment must", "Gym is incompatible with Gymnasium")


def expect_env(made: object) -> gym.Env[Any, Any]:
    """What a function gave that makes environments, which must be one of Gymnasium's.

    Raises:
        TypeError: It is none.
    """
    if isinstance(made, gym.Env):
        return made
    kind = type(made).__name__
    fix = "pass another"
    if isinstance(made, VectorEnv):
        fix = "pass a vector environment as it is, not what makes it"
    elif looks_like_one(made):
        fix = FIX
    raise ArgumentTypeError(
        "env", "a function that makes a gymnasium.Env", f"a {kind} from it", fix
    )


class OwnLast(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Copies the last observation of each episode, for worker processes.

    They reset in SAME_STEP mode before they tell it: an environment that gives one array again and
    again would have written its next observation there. `Overwriting` sees it without workers.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: Any) -> Any:
        """The wrapped environment's `step`."""
        answer: Any = self.env.step(action)
        # What is no answer of Gymnasium's API goes on as it is, to be refused.
        flags = answer[2:4] if isinstance(answer, tuple) and len(answer) == 5 else ()
        if any(isinstance(flag, bool | np.bool_) and flag for flag in flags):
            return copy.deepcopy(answer[0]), *answer[1:]
        return answer


class Overwriting:
    """Looks for last observations that the next ones were written over, where that can be seen.

    It is where environments in this process, in SAME_STEP mode, give one array again and again with
    other contents.

    Args:
        env: Vector environments.
        layout: Of an environment's observations.
    """

    def __init__(self, env: Any, layout: Layout) -> None:
        self._inner, self._layout = env.unwrapped, layout
        self._seen = isinstance(self._inner, SyncVectorEnv) and hasattr(self._inner, "_env_obs")
        self._before: list[Any] = []

    def note(self) -> None:
        """To be called after each reset; the arrays that environments gave are remembered."""
        self._before = list(self._inner._env_obs) if self._seen else []

    def refuse(
        self,
        before: npt.NDArray[Any],
        now: npt.NDArray[Any],
        infos: dict[str, Any],
        done: npt.NDArray[np.bool_],
    ) -> None:
        """To be called after each step, with observations as rows of a layout.

        Raises:
            ValueError: An environment whose episode has ended has overwritten its last observation.
        """
        told, last = self._layout.told, infos.get("final_obs")
        if self._seen and last is not None:
            for i in np.flatnonzero(done):
                objects = self._before[i], last[i], self._inner._env_obs[i]
                if _written(objects, told(before[i : i + 1]), told(now[i : i + 1])):
                    raise ArgumentError(
                        "env",
                        f"observations of their own from environment {i}",
                        "the array of its last one again, where the next episode's first stands "
                        "now",
                        "have step and reset return copies, as Gymnasium's check_env asks",
                    )
        self.note()


def _written(objects: Any, before: Any, now: Any) -> bool:
    """Whether three observations are one array, or a part of them is, and its contents changed."""
    if all(isinstance(x, dict) for x in objects):
        keys = set.intersection(*map(set, objects)) & {*now}
        return any(_written([x[key] for x in objects], before[key], now[key]) for key in keys)
    if all(isinstance(x, tuple) for x in objects):
        return any(map(_written, zip(*objects, strict=False), before, now))
    if not all(isinstance(x, np.ndarray) for x in objects):
        return False
    places = {(x.__array_interface__["data"][0], x.strides, x.shape) for x in objects}
    return len(places) == 1 and not np.array_equal(before, now)


def looks_like_one(thing: object) -> bool:
    """Whether it has the methods of an environment, of whatever library."""
    return callable(getattr(thing, "reset", None)) and callable(getattr(thing, "step", None))


def expect_contract(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """An environment as it is, with spaces and a `reset` that takes what Gymnasium passes.

    What its methods give is only known once they are called.

    Raises:
        TypeError: It is not so; its class is named.
    """
    kind = type(env.unwrapped).__name__
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gym.Space):
            raise ArgumentTypeError(
                "env",
                f"{kind} to have a gymnasium.Space as {name}",
                str("none" if space is None else type(space)),
                "set it in __init__, with gymnasium.spaces",
            )
    try:
        signature = inspect.signature(env.reset)
    except (TypeError, ValueError):  # some of C have none
        return env
    try:
        signature.bind(seed=None, options=None)
    except TypeError:
        raise ArgumentTypeError("env", f"{kind}.{RESET}", f"reset{signature}", FIX) from None
    return env


def expect_vector(env: Any) -> None:
    """Refuses vector environments without what is asked of all of them.

    Raises:
        TypeError: An attribute is missing; it and the class are named.
    """
    for name in ("num_envs", "single_observation_space", "single_action_space"):
        if isinstance(env, VectorEnv) and getattr(env, name, None) is None:
            raise ArgumentTypeError(
                "env",
                f"{type(env).__name__} to have the attribute {name}, as a "
                "gymnasium.vector.VectorEnv",
                "none",
                "set it in __init__",
            )


def parts(env: Any, answer: Any, wanted: str) -> Any:
    """What vector environments gave, of so many parts as they are wanted to give.

    Args:
        env: The environments.
        answer: What `reset` or `step` gave.
        wanted: `RESET` or `STEP`.

    Raises:
        ValueError: It has others.
    """
    count = 5 if wanted is STEP else 2
    if isinstance(answer, tuple | list) and len(answer) == count:
        return answer
    several = isinstance(answer, tuple | list)
    got = f"{len(answer)} values" if several else f"a {type(answer).__name__}"
    raise ArgumentError(
        "env",
        f"{type(env.unwrapped).__name__}.{wanted}",
        str(got),
        "update it to the API of gymnasium.vector.VectorEnv",
    )


def refuse_other_api(env: VectorEnv[Any, Any, Any], error: Exception) -> None:
    """Where environments failed as one is of another API than Gymnasium's, says which and how.

    Failures in an environment's own code are left as they are; of what fails in a worker process,
    only the error's words are known.

    Args:
        env: The environments that failed.
        error: How.

    Raises:
        TypeError: `reset` does not take what Gymnasium passes.
        ValueError: `reset` or `step` give other parts than Gymnasium takes.
    """
    words, inner = str(error), env.unwrapped
    wanted = next((w for start, w in _UNPACKED.items() if words.startswith(start)), None)
    if _UNKNOWN in words:
        wanted = RESET
    if wanted is None or not isinstance(error, TypeError | ValueError):
        return
    if isinstance(inner, AsyncVectorEnv):
        # What make_vec makes environments with is called as they are.
        maker = inner.env_fns[0] if inner.spec is None else inner.spec.entry_point
        kind, where = maker_name(maker), " in a worker process"
    else:
        kind, where = _culprit(inner, error), ""
    if kind:
        count = re.search(r"got (\d+)\)$", words)
        got = f"{count[1]} values" if count else repr(words)
        raise (TypeError if _UNKNOWN in words else ValueError)(
            f"env: expected {kind}.{wanted}, got {got}{where}; {FIX}"
        ) from error


def maker_name(maker: object) -> str:
    """What an environment is called, by the entry point or function that makes it.

    >>> maker_name("taxi:TaxiEnv"), maker_name(lambda: 0)
    ('TaxiEnv', 'environment')
    """
    name = maker if isinstance(maker, str) else getattr(maker, "__name__", "<lambda>")
    return "environment" if name == "<lambda>" else name.rpartition(":")[2]


def refuse_unfit(spec: EnvSpec | None, error: Exception) -> None:
    """Where Gymnasium's check of what it made says that it is no environment, says the fix, too.

    Raises:
        TypeError: It does.
    """
    if spec is not None and str(error).startswith(_UNFIT):
        raise ArgumentTypeError(
            "env",
            f"{spec.id!r} to make a gymnasium.Env with spaces",
            f"{maker_name(spec.entry_point)}: {error} {FIX}",
            None,
        ) from error


def _culprit(inner: Any, error: Exception) -> str:
    """The class whose `reset` or `step` Gymnasium could not go on with; "": it was not that."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    caller, about = frame.f_locals.get("self"), frame.f_locals
    match str(frame.f_globals.get("__name__")).partition(".")[0]:
        case "rlox":
            return type(inner).__name__
        case "gymnasium" if isinstance(caller, SyncVectorEnv):
            return type(caller.envs[about.get("i", 0)].unwrapped).__name__
        case "gymnasium":
            owner = caller if isinstance(caller, gym.Env | VectorEnv) else about.get("env")
            return type(getattr(owner, "unwrapped", inner)).__name__
    return ""
