"""Checks that data and networks contain no NaN or infinity; errors name the source."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import NonFiniteError
from rlox._rlox import RolloutBuffer

_ENVIRONMENT = "check the environment's dynamics"
_POLICY = "resume from a checkpoint with a lower learning_rate or with normalized observations and rewards"
_FIXES = {"obs": _ENVIRONMENT, "rewards": _ENVIRONMENT}


def check_finite_env_array(name: str, array: npt.NDArray[Any], step: int, *, wide: bool = False) -> None:
    """Check that floats of one step, (N, ...), are finite and, unless `wide`, in the range of float32.

    >>> check_finite_env_array("obs", np.array([[0.0], [1e300]]), step=7)
    Traceback (most recent call last):
    rlox.NonFiniteError: obs: expected finite numbers in the range of float32, got 1e+300 in \
environment 1 at step 7; check the environment's dynamics
    """
    if array.dtype.kind != "f":
        return
    any_finite = array.dtype.itemsize <= 4 or wide
    # Comparisons with NaN are False.
    good = np.isfinite(array) if any_finite else np.abs(array) <= np.finfo(np.float32).max
    if not good.all():
        index = tuple(np.argwhere(~good)[0])
        raise NonFiniteError(
            name,
            "finite numbers" if any_finite else "finite numbers in the range of float32",
            str(array[index]),
            _ENVIRONMENT,
            step=step,
            env=int(index[0]),
        )


def check_finite_array(name: str, array: npt.NDArray[Any], steps_before: int) -> None:
    """Check that data of several steps, (T, N, ...), are finite; errors name the step and the environment.

    >>> check_finite_array("rewards", np.array([[0.0, 1.0], [np.inf, 0.0]]), steps_before=40)
    Traceback (most recent call last):
    rlox.NonFiniteError: rewards: expected finite numbers, got inf in environment 0 at step \
41; check the environment's dynamics
    """
    finite = np.isfinite(array)
    if not finite.all():
        t, env, *rest = np.argwhere(~finite)[0]
        raise NonFiniteError(
            name,
            "finite numbers",
            str(array[(t, env, *rest)]),
            _FIXES.get(name, _POLICY),
            step=steps_before + int(t),
            env=int(env),
        )


def check_finite_rollout(
    buffer: RolloutBuffer,
    last_values: npt.NDArray[np.float32],
    final_values: npt.NDArray[np.float32] | None,
    steps_before: int,
) -> None:
    """Check that all inputs of the advantage computation are finite.

    Args:
        buffer: A full buffer.
        last_values: Values of `buffer.last_obs`, (N,).
        final_values: Values of `buffer.final_obs`, (k,), or None if no episode was truncated.
        steps_before: Number of steps that each environment took before those in the buffer.
    """
    for name in ("obs", "rewards", "log_probs", "values"):
        check_finite_array(name, getattr(buffer, name), steps_before)
    if final_values is not None:
        rows = np.zeros((buffer.n_steps, buffer.num_envs), final_values.dtype)
        rows.flat[buffer.final_index] = final_values
        check_finite_array("final_values", rows, steps_before)
    check_finite_array("last_values", last_values[None], steps_before + buffer.n_steps)


def check_finite_policy(
    outputs: Iterable[npt.NDArray[Any]], parameters: Mapping[str, npt.NDArray[Any]], step: int
) -> None:
    """Check after a failed step that the policy's outputs and parameters are finite.

    Args:
        outputs: Actions, log_probs and values, (N, ...) each, as far as they were computed.
        parameters: Parameters of the policy by name.
        step: Number of steps that each environment took before the failure.
    """
    for name, array in zip(("actions", "log_probs", "values"), outputs, strict=False):
        if array.ndim:
            check_finite_array(name, array[None], step)
    for name, array in parameters.items():
        if not np.isfinite(array).all():
            raise NonFiniteError(
                name, "finite numbers", "NaN or infinity in this parameter of the policy", _POLICY, step=step
            )


def check_finite(losses: Mapping[str, float], timesteps: int) -> None:
    """Check that losses and gradient norms are finite; the error names the first one that is not."""
    for name, loss in losses.items():
        if not np.isfinite(loss):
            raise NonFiniteError(
                name,
                "finite numbers",
                str(loss),
                "resume from a checkpoint with a lower learning_rate, or set normalize_obs and normalize_reward",
                timesteps=timesteps,
            )
