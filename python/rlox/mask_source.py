"""`MaskSource`: what vector environments say of which actions are allowed, and where."""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from rlox._errors import ArgumentError
from rlox.masks import Flags, as_flags, expect_choice, mask_width
from rlox.warning import warn_at_most

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
        self.told = False  # whether infos ever said something
        self._asked = self._warned = False
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
        space = self.env.single_action_space
        if not self.tells(infos):
            raise ArgumentError(
                "action_masks",
                "environments that give infos['action_mask'] or have a method action_masks()",
                f"{self.env} without",
                "add one, or set action_masks=False",
            )
        masks, reported = self._reported(infos, self._ask(), np.ones_like(ended))
        masks[ended | ~reported] = True
        expect_choice(masks, space)
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
        ask = None if same_step else self._ask()
        final = infos.get("final_info") if same_step else infos
        masks, _ = self._reported(final if isinstance(final, dict) else {}, ask, ended)
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

    def _reported(
        self, infos: Infos, ask: Callable[[], Any] | None, wanted: Flags
    ) -> tuple[Flags, Flags]:
        """Return masks (num_envs, k) of `wanted` environments, and which of them report one."""
        said, given = np.zeros_like(wanted), None
        if _says(infos):
            given = infos["action_mask"]
            said = np.asarray(infos.get("_action_mask", np.ones_like(wanted)))
        elif ask is not None:
            given, said = ask(), np.ones_like(wanted)
        return _rows(given, said & wanted, mask_width(self.env.single_action_space))


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


def _rows(given: Any, said: Flags, width: int) -> tuple[Flags, Flags]:
    """Return masks (n, width), False in other rows than those of `said`, and the rows with a mask.

    An environment's own is an array or a list, or one for each component of MultiDiscrete.
    """
    masks, n, reported = np.zeros((len(said), width), np.bool_), len(said), said.copy()
    if said.any() and len(given) != n:
        raise ArgumentError(
            "action_mask",
            f"shape {(n, width)}, a row for each environment",
            f"{len(given)} rows",
            "return such a mask from the environment",
        )
    for i in np.flatnonzero(said):
        if given[i] is None:
            reported[i] = False
            continue
        parts = given[i] if isinstance(given[i], (tuple, list)) else (given[i],)
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
