"""Action noise under Stable-Baselines3's names."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError
from rlox.noise import ActionNoise, GaussianNoise, OrnsteinUhlenbeckNoise
from rlox.settings import number, shown


def NormalActionNoise(mean: npt.ArrayLike, sigma: npt.ArrayLike) -> ActionNoise:  # noqa: N802  # their name
    """`rlox.noise.GaussianNoise` by Stable-Baselines3's arguments.

    Args:
        mean: (k,) or a number.
        sigma: (k,) or a number: standard deviations of actions that lie between -1 and 1.

    Raises:
        ValueError: Numbers that `rlox.noise` does not have.

    >>> NormalActionNoise(mean=np.zeros(2), sigma=0.1 * np.ones(2)).sigma
    0.1
    """
    return _made(GaussianNoise, sigma=sigma, mean=mean)


def OrnsteinUhlenbeckActionNoise(  # noqa: N802  # their name
    mean: npt.ArrayLike,
    sigma: npt.ArrayLike,
    theta: float = 0.15,
    dt: float = 1e-2,
    initial_noise: npt.ArrayLike | None = None,
) -> ActionNoise:
    """`rlox.noise.OrnsteinUhlenbeckNoise` by Stable-Baselines3's arguments.

    Args:
        mean: (k,) or a number: where walks are drawn to.
        sigma: (k,) or a number: standard deviations of a unit of time.
        theta: How fast walks are drawn back.
        dt: Time between two steps.
        initial_noise: (k,) or a number: where walks begin; None: at 0.

    Raises:
        ValueError: Numbers that `rlox.noise` does not have.

    >>> OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.5 * np.ones(1)).sigma
    0.5
    """
    begin = {} if initial_noise is None else {"initial_noise": initial_noise}
    about = {"theta": number("theta", theta), "dt": number("dt", dt)}
    return _made(OrnsteinUhlenbeckNoise, sigma=sigma, mean=mean, **about, **begin)


def as_action_noise(value: Any) -> Any:
    """An object of Stable-Baselines3's own noise classes as one of ours; others as they are."""
    kind = type(value)
    if not kind.__module__.startswith("stable_baselines3."):
        return value
    about = vars(value)
    if kind.__name__ == "NormalActionNoise":
        return NormalActionNoise(about["_mu"], about["_sigma"])
    if kind.__name__ == "OrnsteinUhlenbeckActionNoise":
        names = ("_mu", "_sigma", "_theta", "_dt", "initial_noise")
        return OrnsteinUhlenbeckActionNoise(*(about[name] for name in names))
    raise ArgumentError(
        "action_noise",
        "NormalActionNoise or OrnsteinUhlenbeckActionNoise",
        shown(value),
        "make one of rlox.noise, every environment has its own",
    )


def _made(kind: Callable[..., ActionNoise], **given: npt.ArrayLike) -> ActionNoise:
    """The noise, with one number where all components of actions have the same."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    about: dict[str, Any] = {}
    for name, numbers in given.items():
        array = np.asarray(numbers, np.float64).ravel()
        alike = bool(array.size) and bool((array == array[0]).all())
        one = float(array[0]) if alike else None
        if one == 0.0 and name in ("mean", "initial_noise"):
            continue  # as it is without
        if name not in known or (one is None and "mean" not in known):
            raise ArgumentError(
                name,
                f"{('0' if name not in known else 'the same for all components')}, as rlox.noise "
                "has no other",
                shown(numbers),
                "add other noise in a wrapper of the environment",
            )
        about[name] = tuple(array.tolist()) if one is None else one
    return kind(**about)
