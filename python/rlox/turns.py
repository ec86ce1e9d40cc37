"""What environments elsewhere ask of a rollout's buffer and normaliser before they move."""

from typing import Any

from rlox import spaces
from rlox._rlox import Normalizer, RolloutBuffer
from rlox.layouts import Layout
from rlox.rollout import RolloutEnv
from rlox.settings import whole


def expect_storage(env: RolloutEnv, layout: Layout, buffer: Any, normalizer: Any) -> None:
    """Refuses what was made for other environments.

    Raises:
        TypeError: No buffer or normaliser.
        ValueError: One for other environments.
    """
    if not isinstance(buffer, RolloutBuffer):
        raise TypeError(
            f"buffer: expected a rlox.RolloutBuffer, got {type(buffer).__name__}; pass one"
        )
    if normalizer is not None and not isinstance(normalizer, Normalizer):
        raise TypeError(
            "normalizer: expected a rlox.Normalizer or None, got "
            f"{type(normalizer).__name__}; pass one of them"
        )
    acts, n = env.single_action_space, buffer.num_envs
    there = [(n, *field.shape[2:]) for field in (buffer.obs, buffer.actions)]
    wanted = [(env.num_envs, *shape) for shape in (layout.shape, acts.shape or ())]
    kinds = str(buffer.actions.dtype), spaces.action_dtype(acts)
    if there != wanted or kinds[0] != kinds[1]:
        raise ValueError(
            f"buffer: expected rows of observations and {kinds[1]} actions of shapes {wanted}, "
            f"got {there} and {kinds[0]}; make one for this environment"
        )
    shape = (env.num_envs, layout.shape)
    if normalizer is not None and (normalizer.num_envs, normalizer.obs_shape) != shape:
        raise ValueError(
            f"normalizer: expected one for {shape[0]} environments with observations of shape "
            f"{shape[1]}, got one for {normalizer.num_envs} with {normalizer.obs_shape}; make "
            "another"
        )


def expect_turn(buffer: RolloutBuffer, t: Any) -> int:
    """The step that is due, as a plain int.

    Raises:
        TypeError: It is no number.
        ValueError: It is another one than that which is due.
    """
    fix = "call begin_rollout before a rollout and step with t = 0, 1, ..."
    plain = whole("t", t, 0, fix=fix)
    if plain != buffer.next_step or plain == buffer.n_steps:
        raise ValueError(
            f"t: expected the next of {buffer.n_steps} steps, {buffer.next_step}, got {t}; {fix}"
        )
    return plain
