"""NaN and infinity end a run, with a message that says where they came from."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def refuse_nan(name: str, array: npt.NDArray[Any], steps_before: int) -> None:
    """Names the step and the environment of the first number that is not finite.

    Args:
        name: What `array` is.
        array: (T, N, ...).
        steps_before: Steps that each environment made before those of `array`.

    Raises:
        FloatingPointError: There is one.

    >>> refuse_nan("rewards", np.array([[0.0, 1.0], [np.inf, 0.0]]), steps_before=40)
    Traceback (most recent call last):
    FloatingPointError: rewards: expected finite numbers, got inf from environment 0 at its step \
41; look at the environment's dynamics, or at the policy where it is values
    """
    finite = np.isfinite(array)
    if not finite.all():
        t, env, *rest = np.argwhere(~finite)[0]
        raise FloatingPointError(
            f"{name}: expected finite numbers, got {array[(t, env, *rest)]} from environment {env} "
            f"at its step {steps_before + t}; look at the environment's dynamics, or at the policy "
            "where it is values"
        )


def refuse_spoiled(losses: Mapping[str, float], timesteps: int) -> None:
    """Names the first loss, or sum of gradients' norms, that is not finite.

    Raises:
        FloatingPointError: There is one.
    """
    for name, loss in losses.items():
        if not np.isfinite(loss):
            raise FloatingPointError(
                f"{name}: expected finite numbers, got {loss} in the update after step "
                f"{timesteps}; go back to a checkpoint, lower learning_rate, or set normalize_obs "
                "and normalize_reward"
            )
