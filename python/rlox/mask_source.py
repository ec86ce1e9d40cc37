"""`MaskSource`: what vector environments say of which actions are allowed, and where."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from rlox._errors import ArgumentError
from rlox.masks import Flags, as_flags, expect_choice, mask_width

Infos = dict[str, Any]


class MaskSource:
    """Where environments say what they allow, and whether they ever did.

    In `infos["action_mask"]`, as Gymnasium's Taxi has it, else by a method `action_masks`: of the
    vector environments, (num_envs, k), or of each single one, (k,). Those that gave infos before
    and give none now allow everything.

    Args:
        env: The environments.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.told = False  # whether infos ever said something
        self._asked = False
        self._method: Callable[[], Any] | None = None

    def note(self, infos: Infos) -> Infos:
        """Remembers whether what `reset` or `step` gave says something of masks."""
        self.told = self.told or _says(infos)
        return infos

    def tells(self, infos: Infos) -> bool:
        """Whether the environments say, or ever said, what is allowed."""
        self.note(infos)
        return self.told or self._ask() is not None

    def _ask(self) -> Callable[[], Any] | None:
        """The method, looked for once."""
        if not self._asked:
            self._method, self._asked = _method(self.env), True
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
        space, n = self.env.single_action_space, self.env.num_envs
        if not self.tells(infos):
            raise ArgumentError(
                "action_masks",
                "environments that give infos['action_mask'] or have a method action_masks()",
                f"{self.env} without",
                "add one, or set action_masks=False",
            )
        said, given = np.zeros(n, np.bool_), None
        if _says(infos):
            given = infos["action_mask"]
            said = np.asarray(infos.get("_action_mask", np.ones(n, np.bool_)))
        elif (ask := self._ask()) is not None:
            given, said = ask(), np.ones(n, np.bool_)
        masks = _rows(given, said, mask_width(space))
        masks[ended] = True
        expect_choice(masks, space)
        return masks


def keep_masks(before: Infos, infos: Infos, reset: Flags) -> Infos:
    """Infos of a reset of some, with what was said before of the masks of the others."""
    if not _says(before):
        return infos
    masks = [*before["action_mask"]]  # arrays, lists, or tuples of them
    said = np.array(before.get("_action_mask", np.ones_like(reset)))
    says = _says(infos)
    if says:
        for i in np.flatnonzero(reset):
            masks[i] = infos["action_mask"][i]
    now = np.asarray(infos.get("_action_mask", np.full_like(reset, True))) & says
    said[reset] = now[reset]
    return {**infos, "action_mask": masks, "_action_mask": said}


def _says(infos: Infos) -> bool:
    """Whether there is a mask in infos; None is none."""
    given = infos.get("action_mask")
    return given is not None and any(mask is not None for mask in given)


def _method(env: Any) -> Callable[[], Any] | None:
    """The method `action_masks` of vector environments, or a call of those of the single ones."""
    inner = env.unwrapped
    while True:
        # Those of rlox have it also where they have no masks; natives say so in infos.
        if not hasattr(env, "tells_masks") and getattr(env, "has_action_masks", True):
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


def _rows(given: Any, said: Flags, width: int) -> Flags:
    """Masks (n, width); everything is allowed where nothing is said.

    An environment's own is an array or a list, or one for each component of MultiDiscrete.
    """
    masks, n = np.ones((len(said), width), np.bool_), len(said)
    if said.any() and len(given) != n:
        raise ArgumentError(
            "action_mask",
            f"shape {(n, width)}, a row for each environment",
            f"{len(given)} rows",
            "mend the environment",
        )
    for i in np.flatnonzero(said):
        if given[i] is None:
            continue
        parts = given[i] if isinstance(given[i], (tuple, list)) else (given[i],)
        flags = np.concatenate([np.ravel(part) for part in parts])
        if flags.shape != (width,):
            raise ArgumentError(
                "action_mask",
                f"shape {(n, width)}, a flag for each action",
                str((n, *flags.shape)),
                "mend the environment",
            )
        # Other numbers, logarithms for one, would pass for flags, and forbid what they allow.
        masks[i] = as_flags(flags, f"action_mask: expected flags of environment {i}, each 0 or 1")
    return masks
