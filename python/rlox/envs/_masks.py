"""Action masks: which actions environments allow where they stand."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError, warn_at_most
from rlox._rlox import NativeVectorEnv
from rlox._validation import short_repr

if TYPE_CHECKING:
    from rlox.envs.vec_env import VecEnv

Flags = npt.NDArray[np.bool_]


def mask_width(space: gym.Space[Any]) -> int:
    """How many flags a mask has: one for each value of each component of the action.

    Raises:
        ValueError: As `mask_counts`.

    >>> mask_width(spaces.Discrete(4)), mask_width(spaces.MultiDiscrete([2, 3]))
    (4, 5)
    """
    return sum(mask_counts(space))


def mask_counts(space: gym.Space[Any]) -> list[int]:
    """How the flags of a mask are split: so many for each component of the action.

    Components of MultiBinary have two, for 0 and for 1, as in sb3-contrib's MaskablePPO.

    Raises:
        ValueError: The space is none of Discrete, MultiDiscrete and MultiBinary.

    >>> mask_counts(spaces.Discrete(4)), mask_counts(spaces.MultiDiscrete([[2], [3]]))
    ([4], [2, 3])
    >>> mask_counts(spaces.MultiBinary(3))
    [2, 2, 2]
    """
    match space:
        case spaces.Discrete():
            return [int(space.n)]
        case spaces.MultiDiscrete():
            return [int(n) for n in space.nvec.ravel()]
        case spaces.MultiBinary():
            return [2] * math.prod(space.shape)
    raise ArgumentError(
        "action_masks",
        "a Discrete, MultiDiscrete or MultiBinary action space",
        str(space),
        "set action_masks=False, or give no masks",
    )


def check_any_allowed(masks: Flags, space: gym.Space[Any]) -> None:
    """Refuses masks (num_envs, n) by which an environment allows nothing.

    Raises:
        ValueError: The environment is named.
    """
    for part in _parts(masks, space):
        nothing = ~part.any(axis=1)
        if nothing.any():
            raise ArgumentError(
                "action_mask",
                "an action that is allowed",
                "none",
                "end the episode where nothing is left to do",
                env=int(nothing.argmax()),
            )


def _parts(masks: Flags, space: gym.Space[Any]) -> list[Flags]:
    """The flags (n, k) of each component of the action."""
    return np.split(masks, np.cumsum(mask_counts(space))[:-1], axis=1)


def read_action_masks(env: Any) -> Flags | None:
    """What environments ready for rollouts allow where they stand; None if they do not say.

    Raises:
        ValueError: As `rlox.envs._masks.MaskSource.read`.
    """
    if getattr(env, "has_action_masks", None) or getattr(env, "action_mask_support", False):
        masks: Flags = env.action_masks()
        return masks
    return None


def random_allowed(
    space: gym.Space[Any], rng: np.random.Generator, masks: Flags
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Uniform ones of the allowed actions, (n, ...) counted from 0, and their log-probabilities.

    >>> said, log_probs = random_allowed(
    ...     spaces.Discrete(3), np.random.default_rng(0), np.eye(3, dtype=bool)
    ... )
    >>> said.tolist(), log_probs.tolist()
    ([0, 1, 2], [0.0, 0.0, 0.0])
    """
    chosen, log_probs = [], np.zeros(len(masks))
    for part in _parts(masks, space):
        allowed = part.sum(1)
        # The first place at which more are allowed than the number drawn.
        chosen.append((part.cumsum(1) > rng.integers(allowed)[:, None]).argmax(1))
        log_probs -= np.log(allowed)
    rows = np.stack(chosen, 1).reshape(len(masks), *(space.shape or ()))
    return rows.astype(np.int64), log_probs.astype(np.float32)


def mask_parameter(function: Any) -> inspect.Parameter | None:
    """Where a function takes masks: as `mask`, `action_mask` or `action_masks`.

    >>> mask_parameter(lambda obs, mask=None: 0).name, mask_parameter(lambda obs: 0)
    ('mask', None)
    """
    try:
        known: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some of C have none
        return None
    names = ("mask", "action_mask", "action_masks")
    return next((known[name] for name in names if name in known), None)


def adapt_to_masks(function: Any) -> Callable[[Any, Flags | None], Any]:
    """A function of observations, called with masks where it takes them.

    Where there are none, its own default stays; None stands for one that it lacks.
    """
    parameter = mask_parameter(function)

    def called(obs: Any, masks: Flags | None) -> Any:
        if parameter is None or (masks is None and parameter.default is not parameter.empty):
            return function(obs)
        return function(obs, **{parameter.name: masks})

    return called


def missing_masks_error(env: object) -> ValueError:
    """Says that environments do not tell what is allowed."""
    return ArgumentError(
        "action_masks",
        "environments that say which actions are allowed",
        str(env),
        "set action_masks=False",
    )


def check_has_action_masks(env: "VecEnv") -> None:
    """Refuse native environments without action masks.

    Raises:
        ValueError: They have none.
    """
    if not env.has_action_masks:
        raise ArgumentError(
            "action_masks",
            "environments that say which actions are allowed",
            f"{env}, in which all are (has_action_masks is False)",
            "ask for none, or have a wrapper say it in infos['action_mask'] and make them by "
            "rlox.make_vec(..., wrappers=[...])",
        )


def mask_infos(native: NativeVectorEnv, cut: Flags | None = None) -> dict[str, Any]:
    """Return the infos of native environments with action masks, int8 flags as Gymnasium's Taxi.

    Rows of `cut`, whose episodes were truncated and not reset, have the masks of the last states.
    """
    masks = native.action_masks()
    if cut is not None and cut.any():
        masks[cut] = native.final_action_masks()[cut]
    return {"action_mask": masks.view(np.int8), "_action_mask": np.ones(len(masks), np.bool_)}


def final_mask_infos(native: NativeVectorEnv, cut: Flags) -> dict[str, Any]:
    """Return the `final_info` of native environments: masks of truncated episodes' last states."""
    if not cut.any():
        return {}
    masks = native.final_action_masks() & cut[:, None]
    return {"action_mask": masks.view(np.int8), "_action_mask": cut}


def as_flags(argument: str, expected: str, values: npt.ArrayLike, env: int | None = None) -> Flags:
    """What is given, as an array of bools.

    Raises:
        TypeError: No flags.
        ValueError: Rows of different lengths, or numbers other than 0 and 1.

    >>> as_flags("mask", "flags of shape (1, 2)", [[1, 0]])
    array([[ True, False]])
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"what NumPy makes no array of ({error})"
        hint = "pass a flag for each action"
        raise ArgumentError(argument, expected, got, hint, env=env) from error
    hint = "pass True or False for each action"
    if array.dtype.kind not in "biuf":
        got = f"dtype {array.dtype}" if isinstance(values, np.ndarray) else short_repr(values)
        raise ArgumentTypeError(argument, expected, got, hint, env=env)
    flags = array.astype(np.bool_)
    if (array != flags).any():
        other = array[array != flags].flat[0]
        raise ArgumentError(argument, expected, str(other), hint, env=env)
    return flags


def as_masks(values: npt.ArrayLike, space: gym.Space[Any], n: int) -> Flags:
    """Masks for `n` observations, (n, width), from what a user passes.

    Raises:
        TypeError: No flags.
        ValueError: Another shape, or nothing is allowed.
    """
    shape = (n, mask_width(space))
    expected = f"flags of shape {shape}"
    masks = as_flags("action_masks", expected, values)
    masks = masks[None] if masks.ndim == 1 else masks
    if masks.shape != shape:
        got = f"shape {np.shape(values)}"
        raise ArgumentError("action_masks", expected, got, "pass a flag for each action")
    allowed = np.all([part.any(axis=1) for part in _parts(masks, space)], axis=0)
    if not allowed.all():
        raise ArgumentError(
            "action_masks",
            "an action (of each component) that is allowed in each row",
            "none",
            "allow one",
            row=int(allowed.argmin()),
        )
    return masks


Infos = dict[str, Any]


class MaskSource:
    """Where environments say what they allow, and whether they ever did.

    In `infos["action_mask"]`, as Gymnasium's Taxi has it, else by a method `action_masks`: of the
    vector environments, (num_envs, k), or of each single one, (k,). Those that gave infos before
    and give none now allow everything, except in the last state of an episode (`read_final`).

    Args:
        env: The environments.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.has_reported = False  # whether infos ever said something
        self._method_resolved = self._warned = False
        self._method: Callable[[], Any] | None = None

    def note(self, infos: Infos) -> Infos:
        """Remembers whether what `reset` or `step` gave says something of masks."""
        self.has_reported = self.has_reported or _has_mask(infos)
        return infos

    def has_masks(self, infos: Infos) -> bool:
        """Whether the environments say, or ever said, what is allowed."""
        self.note(infos)
        return self.has_reported or self._resolve_method() is not None

    def _resolve_method(self) -> Callable[[], Any] | None:
        """The method, looked for once."""
        if not self._method_resolved:
            self._method, self._method_resolved = _find_masks_method(self.env), True
        return self._method

    def read(self, infos: Infos, ended: Flags) -> Flags:
        """What is allowed after a reset or step, (num_envs, k) bool.

        Args:
            infos: What `reset` or `step` gave.
            ended: (num_envs,): whose episode is over; about to be reset, they allow everything.

        Raises:
            ValueError: They never said anything, or say something of another shape, or allow no
                action.
        """
        space = self.env.single_action_space
        if not self.has_masks(infos):
            raise ArgumentError(
                "action_masks",
                "environments that give infos['action_mask'] or have a method action_masks()",
                f"{self.env} without",
                "add one, or set action_masks=False",
            )
        masks, reported = self._read_masks(infos, self._resolve_method(), np.ones_like(ended))
        masks[ended | ~reported] = True
        check_any_allowed(masks, space)
        return masks

    def read_final(self, infos: Infos, ended: Flags, same_step: bool) -> Flags:
        """Return the action masks of the last states of episodes that a step ended.

        Args:
            infos: The infos that `step` returned.
            ended: (num_envs,) bool: the environments to read.
            same_step: The environments have been reset already (SAME_STEP mode): the masks are in
                `infos["final_info"]`. Otherwise `infos` and the method describe the last states.

        Returns:
            (num_envs, k) bool. Rows without an allowed action: not in `ended`, or not reported.
            The first such report that is missing is warned of.

        Raises:
            ValueError: A mask has another shape or holds no flags.
        """
        method = None if same_step else self._resolve_method()
        final = infos.get("final_info") if same_step else infos
        masks, _ = self._read_masks(final if isinstance(final, dict) else {}, method, ended)
        unknown = ended & ~masks.any(axis=1)
        if unknown.any() and not self._warned:
            self._warned = True
            i = int(unknown.argmax())
            envs = getattr(self.env.unwrapped, "envs", None)  # AsyncVectorEnv has none here
            name = self.env if envs is None else envs[i].unwrapped
            warn_at_most(
                "action_mask: expected a mask with an allowed action for the last state of a "
                f"truncated episode, got none from environment {i} ({name}); return "
                "infos['action_mask'] also from the step that ends an episode, or terminate the "
                "episode if no action is left. Minibatches leave out transitions without this mask"
            )
        return masks

    def _read_masks(
        self, infos: Infos, method: Callable[[], Any] | None, wanted: Flags
    ) -> tuple[Flags, Flags]:
        """Return masks (num_envs, k) of `wanted` environments, and which of them report one."""
        reported, masks = np.zeros_like(wanted), None
        if _has_mask(infos):
            masks = infos["action_mask"]
            reported = np.asarray(infos.get("_action_mask", np.ones_like(wanted)))
        elif method is not None:
            masks, reported = method(), np.ones_like(wanted)
        return _stack_masks(masks, reported & wanted, mask_width(self.env.single_action_space))


def merge_mask_infos(before: Infos, infos: Infos, reset: Flags) -> Infos:
    """Infos of a reset of some, with what was said before of the masks of the others."""
    if not _has_mask(before):
        return infos
    masks = [*before["action_mask"]]  # arrays, lists, or tuples of them
    reported = np.array(before.get("_action_mask", np.ones_like(reset)))
    has_new_masks = _has_mask(infos)
    if has_new_masks:
        for i in np.flatnonzero(reset):
            masks[i] = infos["action_mask"][i]
    now = np.asarray(infos.get("_action_mask", np.full_like(reset, True))) & has_new_masks
    reported[reset] = now[reset]
    return {**infos, "action_mask": masks, "_action_mask": reported}


def _has_mask(infos: Infos) -> bool:
    """Whether there is a mask in infos; None is none."""
    masks = infos.get("action_mask")
    return masks is not None and any(mask is not None for mask in masks)


def _find_masks_method(env: Any) -> Callable[[], Any] | None:
    """The method `action_masks` of vector environments, or a call of those of the single ones."""
    inner = env.unwrapped
    while True:
        # Those of rlox have it also where they have no masks; natives say so in infos.
        if not hasattr(env, "action_mask_support") and getattr(env, "has_action_masks", True):
            method: Callable[[], Any] | None = getattr(env, "action_masks", None)
            if callable(method):
                return method
        if env is inner:
            break
        env = env.env
    return (lambda: inner.call("action_masks")) if all_have(inner, "action_masks") else None


def all_have(env: Any, name: str) -> bool:
    """Whether each single one of vector environments, unwrapped, has something of this name."""
    try:
        # Asking a worker process for what it has not would end it.
        return all(env.call("has_wrapper_attr", name))
    except (AttributeError, NotImplementedError, TypeError):
        return False


def _stack_masks(values: Any, selected: Flags, width: int) -> tuple[Flags, Flags]:
    """Return masks (n, width), False in other rows than those of `said`, and the rows with a mask.

    An environment's own is an array or a list, or one for each component of MultiDiscrete.
    """
    masks, n, reported = np.zeros((len(selected), width), np.bool_), len(selected), selected.copy()
    if selected.any() and len(values) != n:
        raise ArgumentError(
            "action_mask",
            f"shape {(n, width)}, a row for each environment",
            f"{len(values)} rows",
            "return such a mask from the environment",
        )
    for i in np.flatnonzero(selected):
        if values[i] is None:
            reported[i] = False
            continue
        parts = values[i] if isinstance(values[i], (tuple, list)) else (values[i],)
        flags = np.concatenate([np.ravel(part) for part in parts])
        if flags.shape != (width,):
            raise ArgumentError(
                "action_mask",
                f"shape {(n, width)}, a flag for each action",
                str((n, *flags.shape)),
                "return such a mask from the environment",
            )
        # Other numbers, logarithms for one, would pass for flags, and forbid what they allow.
        masks[i] = as_flags("action_mask", "flags, each 0 or 1", flags, env=int(i))
    return masks, reported
