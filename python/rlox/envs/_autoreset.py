"""Autoreset modes, reset masks and final observations of vector environments.

In Gymnasium's autoreset mode SAME_STEP, the step that ends an episode also resets the environment.
In NEXT_STEP, the next step ignores its action and only resets. In DISABLED, the caller resets.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._layout import Layout
from rlox._types import Flags
from rlox._validation import short_repr


def as_autoreset_mode(value: object) -> AutoresetMode:
    """Return the member of `AutoresetMode` for a member, a value or a name.

    >>> as_autoreset_mode("SameStep") is as_autoreset_mode("SAME_STEP")
    True
    """
    for mode in AutoresetMode:
        if value is mode or (isinstance(value, str) and value in (mode.value, mode.name)):
            return mode
    raise ArgumentError(
        "autoreset_mode",
        f"{', '.join(repr(mode.value) for mode in AutoresetMode)} or a member of AutoresetMode",
        repr(value),
        "pass 'SameStep'",
    )


def get_autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return the autoreset mode in the metadata of a vector environment.

    The default is NEXT_STEP, as in Gymnasium.

    Raises:
        ArgumentError: `metadata["autoreset_mode"]` is not an autoreset mode.

    Warns:
        `gymnasium.logger` warns if the metadata has no autoreset mode.
    """
    mode = env.metadata.get("autoreset_mode")
    if mode is None:
        gym.logger.warn(
            f"{env} has no metadata['autoreset_mode']: rlox assumes NEXT_STEP, as Gymnasium does. "
            "Set it to the member of gymnasium.vector.AutoresetMode that the environment follows."
        )
        return AutoresetMode.NEXT_STEP
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise ArgumentError(
            "env",
            "a member of gymnasium.vector.AutoresetMode in metadata['autoreset_mode']",
            repr(mode),
            "set it to the mode of the environment",
        ) from error


def check_autoreset_mode(env: VectorEnv[Any, Any, Any], mode: AutoresetMode | None) -> None:
    """Check that environments have the requested autoreset mode; None accepts every mode."""
    if mode is not None and (env_mode := get_autoreset_mode(env)) is not mode:
        raise ArgumentError(
            "autoreset_mode",
            f"{env_mode.value!r}, the mode of {env}",
            repr(mode.value),
            f"leave it out, or create the environments with {mode.value!r}",
        )


def check_resets(
    env: VectorEnv[Any, Any, Any], ended: Flags, rewards: npt.NDArray[np.float64], done: Flags, step: int
) -> None:
    """Check that a step in NEXT_STEP mode only reset the environments whose episode was over.

    Rollouts leave out these steps. Without this check, a real transition could be lost.

    Args:
        env: The vector environment.
        ended: bool (num_envs,), True where the episode was over before the step.
        rewards: float64 (num_envs,), rewards of the step.
        done: bool (num_envs,), True where an episode ended in the step.
        step: Index of the step, for the error.

    Raises:
        ArgumentError: In such an environment, the step ended another episode, or, if no wrapper
            may have changed the rewards, returned a reward other than 0.
    """
    wrong = ended & done
    if env is env.unwrapped:  # wrappers may change the reward 0 of a reset
        wrong |= ended & (rewards != 0)
    if wrong.any():
        i = int(wrong.argmax())
        raise ArgumentError(
            "env",
            "a reset with reward 0 and no end after an episode (autoreset mode NEXT_STEP)",
            f"reward {rewards[i]} and {'an' if done[i] else 'no'} end",
            "set metadata['autoreset_mode'] to the mode of the environments",
            env=i,
            step=step,
        )


def split_options(options: object, num_envs: int) -> tuple[Flags | None, dict[str, Any] | None]:
    """Check reset options, and return their "reset_mask" and the other options.

    >>> split_options({"low": 0.0, "reset_mask": np.array([True, False])}, num_envs=2)
    (array([ True, False]), {'low': 0.0})
    """
    if options is None:
        return None, None
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise ArgumentTypeError(
            "options", "a dict with str keys", repr(options), "pass for example {'reset_mask': mask}"
        )
    others = dict(options)
    if "reset_mask" not in others:
        return None, others
    mask = others.pop("reset_mask")
    name = "options['reset_mask']"
    expected = f"a NumPy array of bool of shape ({num_envs},), with at least one True"
    fix = "pass True for each environment to reset"
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise ArgumentTypeError(name, expected, short_repr(mask), fix)
    if mask.shape != (num_envs,) or not mask.any():
        raise ArgumentError(name, expected, short_repr(mask), fix)
    return mask, others


def infos_to_dict(env: VectorEnv[Any, Any, Any], infos: object) -> dict[str, Any]:
    """Return infos as a dict of arrays; convert the list of Gymnasium's wrapper `DictInfoToList`."""
    if isinstance(infos, dict):
        return infos
    items: list[Any] = [*infos] if isinstance(infos, list | tuple) else []
    if len(items) != env.num_envs or not all(isinstance(info, dict) for info in items):
        raise ArgumentTypeError(
            "infos",
            f"a dict of arrays, or a list of {env.num_envs} dicts",
            repr(infos),
            "correct the infos of the environment or its wrapper",
        )
    merged: dict[str, Any] = {}
    for i, info in enumerate(items):
        merged = env._add_info(merged, info, i)
    return merged


def fill_rows(out: Any, chosen: Flags, rows: npt.NDArray[Any]) -> Any:
    """Write a view of each chosen row into `out`, a list or an object array, and return `out`.

    >>> fill_rows([None, None], np.array([False, True]), np.array([[1.0], [2.0]]))
    [None, array([2.])]
    """
    for i in chosen.nonzero()[0].tolist():
        out[i] = rows[i]
    return out


def write_final_obs(rows: npt.NDArray[Any], layout: Layout, infos: dict[str, Any], ended: Flags, step: int) -> None:
    """Write the final observations from `infos` into the rows where an episode has ended."""
    final = infos.get("final_obs", [None] * len(ended))
    for i in np.flatnonzero(ended):
        if final[i] is None:
            raise ArgumentError(
                "final_obs",
                "the last observation of the episode that ended",
                "None",
                "return infos['final_obs'], which SAME_STEP mode requires",
                env=int(i),
                step=step,
            )
        rows[i] = layout.row(final[i])
