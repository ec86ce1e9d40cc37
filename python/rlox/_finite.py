"""NaN and infinity end a run, with a message that says where they came from."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import NonFiniteError
from rlox._rlox import RolloutBuffer

_ENVIRONMENT = "look at the environment's dynamics"
_POLICY = "go back to a checkpoint, and lower learning_rate or normalise observations and rewards"
_FIXES = {"obs": _ENVIRONMENT, "rewards": _ENVIRONMENT}


def check_finite_env_array(
    name: str, array: npt.NDArray[Any], step: int, *, wide: bool = False
) -> None:
    """Refuses what cannot be learned from, of environments that made `step` steps.

    Args:
        name: What `array` is.
        array: (N, ...), one row of each environment.
        step: Told in the message.
        wide: Not going to be float32 as it is.

    Raises:
        ValueError: NaN, infinity, or a number beyond float32.

    >>> check_finite_env_array("obs", np.array([[0.0], [1e300]]), step=7)
    Traceback (most recent call last):
    rlox.NonFiniteError: obs: expected finite numbers that float32 holds, got 1e+300 in \
environment 1 at step 7; look at that environment's dynamics
    """
    if array.dtype.kind != "f":
        return
    fits_float32 = array.dtype.itemsize <= 4 or wide
    # False for NaN.
    good = np.isfinite(array) if fits_float32 else np.abs(array) <= np.finfo(np.float32).max
    if not good.all():
        at = tuple(np.argwhere(~good)[0])
        raise NonFiniteError(
            name,
            "finite numbers" if fits_float32 else "finite numbers that float32 holds",
            str(array[at]),
            "look at that environment's dynamics",
            step=step,
            env=int(at[0]),
        )


def check_finite_array(name: str, array: npt.NDArray[Any], steps_before: int) -> None:
    """Names the step and the environment of the first number that is not finite.

    Args:
        name: What `array` is: "obs", "rewards", or something that the policy said.
        array: (T, N, ...).
        steps_before: Steps that each environment made before those of `array`.

    Raises:
        FloatingPointError: There is one.

    >>> check_finite_array("rewards", np.array([[0.0, 1.0], [np.inf, 0.0]]), steps_before=40)
    Traceback (most recent call last):
    rlox.NonFiniteError: rewards: expected finite numbers, got inf in environment 0 at step \
41; look at the environment's dynamics
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
    """As `check_finite_array`, for all that advantages are computed from.

    Args:
        buffer: Filled.
        last_values: (N,), of `buffer.last_obs`.
        final_values: (k,), of `buffer.final_obs`; None where no episode was truncated.
        steps_before: Steps that each environment made before those in the buffer.

    Raises:
        FloatingPointError: Something is not finite.
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
    """Says whether NaN or infinity from the policy is why a step was refused.

    Args:
        said: Actions, log_probs and values, (N, ...) each, as far as the policy said them.
        parameters: The policy's, by name.
        step: Steps that each environment had made.

    Raises:
        FloatingPointError: It is.
    """
    for name, array in zip(("actions", "log_probs", "values"), outputs, strict=False):
        if array.ndim:
            check_finite_array(name, array[None], step)
    for name, array in parameters.items():
        if not np.isfinite(array).all():
            raise NonFiniteError(
                name,
                "finite numbers",
                "NaN or infinity in this parameter of the policy, which then failed for all "
                "environments",
                _POLICY,
                step=step,
            )


def check_finite(losses: Mapping[str, float], timesteps: int) -> None:
    """Names the first loss, or sum of gradients' norms, that is not finite.

    Raises:
        FloatingPointError: There is one.
    """
    for name, loss in losses.items():
        if not np.isfinite(loss):
            raise NonFiniteError(
                name,
                "finite numbers",
                str(loss),
                "go back to a checkpoint, lower learning_rate, or set normalize_obs and "
                "normalize_reward",
                timesteps=timesteps,
            )
