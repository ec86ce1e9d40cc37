"""Action masks: which actions environments allow where they stand."""

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from rlox._rlox import NativeVectorEnv
from rlox.settings import shown

if TYPE_CHECKING:
    from rlox.vec_env import VecEnv

Flags = npt.NDArray[np.bool_]


def mask_width(space: gym.Space[Any]) -> int:
    """How many flags a mask has: one for each action, of all components of MultiDiscrete.

    Raises:
        ValueError: The space is neither Discrete nor MultiDiscrete.

    >>> mask_width(spaces.Discrete(4)), mask_width(spaces.MultiDiscrete([2, 3]))
    (4, 5)
    """
    match space:
        case spaces.Discrete():
            return int(space.n)
        case spaces.MultiDiscrete():
            return int(space.nvec.sum())
    raise ValueError(
        f"action_masks: expected a Discrete or MultiDiscrete action space, got {space}; set "
        "action_masks=False"
    )


def read_masks(env: VectorEnv[Any, Any, Any], infos: dict[str, Any], ended: Flags) -> Flags:
    """What the environments allow, (num_envs, n) bool, after a reset or step.

    From `infos["action_mask"]`, as Gymnasium's Taxi has it, else from a method `action_masks` of
    each environment. Environments in `ended` are about to be reset and allow everything.

    Args:
        env: The environments.
        infos: What `reset` or `step` gave.
        ended: (num_envs,): whose episode is over.

    Raises:
        ValueError: They say nothing, or something of another shape, or allow no action.
    """
    space, n = env.single_action_space, env.num_envs
    width = mask_width(space)
    given: Any = infos.get("action_mask")
    said = infos.get("_action_mask", np.ones(n, np.bool_))
    if given is None:
        try:
            given = np.stack([np.asarray(mask).ravel() for mask in env.call("action_masks")])  # type: ignore[attr-defined]  # of those that have single environments
        except (AttributeError, NotImplementedError, TypeError) as error:
            raise ValueError(
                "action_masks: expected environments that give infos['action_mask'] or have a "
                f"method action_masks(), got {env} without; add one, or set action_masks=False"
            ) from error
    masks = _rows(given, np.asarray(said), width)
    masks[ended] = True
    expect_choice(masks, space)
    return masks


def _rows(given: Any, said: Flags, width: int) -> Flags:
    """Masks (n, width); everything is allowed where nothing is said.

    An environment's own is an array or a list, or one for each component of MultiDiscrete.
    """
    masks = np.ones((len(said), width), np.bool_)
    for i in np.flatnonzero(said):
        parts = given[i] if isinstance(given[i], (tuple, list)) else (given[i],)
        flags = np.concatenate([np.ravel(part) for part in parts])
        if flags.shape != (width,):
            raise ValueError(
                f"action_mask: expected shape {(len(said), width)}, a flag for each action, got "
                f"{(len(said), *flags.shape)}; mend the environment"
            )
        masks[i] = flags
    return masks


def expect_choice(masks: Flags, space: gym.Space[Any]) -> None:
    """Refuses masks (num_envs, n) by which an environment allows nothing.

    Raises:
        ValueError: The environment is named.
    """
    multi = isinstance(space, spaces.MultiDiscrete)
    counts = np.asarray(space.nvec).ravel() if multi else [masks.shape[1]]  # type: ignore[attr-defined]  # then it has
    for part in np.split(masks, np.cumsum(counts)[:-1], axis=1):
        nothing = ~part.any(axis=1)
        if nothing.any():
            raise ValueError(
                f"action_mask: expected an action that is allowed, got none for environment "
                f"{int(nothing.argmax())}; end the episode where nothing is left to do"
            )


def no_masks(env: object) -> ValueError:
    """Says that environments do not tell what is allowed."""
    return ValueError(
        "action_masks: expected environments that say which actions are allowed, got "
        f"{env}; set action_masks=False"
    )


def native_masks(env: "VecEnv", native: NativeVectorEnv, out: Flags | None) -> Flags:
    """What `VecEnv.action_masks` gives."""
    if not env.has_action_masks:
        raise no_masks(env)
    masks = native.action_masks(out)
    expect_choice(masks, env.single_action_space)
    return masks


def mask_infos(native: NativeVectorEnv) -> dict[str, Any]:
    """What native environments with masks say in their infos: int8 flags, as Gymnasium's Taxi."""
    masks = native.action_masks().view(np.int8)
    return {"action_mask": masks, "_action_mask": np.ones(len(masks), np.bool_)}


def as_masks(given: npt.ArrayLike, space: gym.Space[Any], n: int) -> Flags:
    """Masks for `n` observations, (n, width), from what a user passes.

    Raises:
        TypeError: No flags.
        ValueError: Another shape, or nothing is allowed.
    """
    shape = (n, mask_width(space))
    expected = f"action_masks: expected flags of shape {shape}"
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{expected}, got what NumPy makes no array of ({error}); pass a flag for each action"
        ) from error
    if array.dtype.kind not in "biuf":
        came = f"dtype {array.dtype}" if isinstance(given, np.ndarray) else shown(given)
        raise TypeError(f"{expected}, got {came}; pass True or False for each action")
    masks: Flags = array.astype(np.bool_)
    masks = masks[None] if masks.ndim == 1 else masks
    if masks.shape != shape:
        raise ValueError(f"{expected}, got shape {array.shape}; pass a flag for each action")
    if not masks.any(axis=1).all():
        i = int(masks.any(axis=1).argmin())
        raise ValueError(
            f"action_masks: expected an action that is allowed in each row, got none in row {i}; "
            "allow one"
        )
    return masks
