"""What starts and ends episodes in a batch: autoreset modes, masks, final observations."""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._layout import Layout

Flags = npt.NDArray[np.bool_]


def as_autoreset_mode(value: object) -> AutoresetMode:
    """The member that is given, or whose value or name is.

    Raises:
        ValueError: There is none.

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
    """What an environment's metadata say; without any, what Gymnasium takes it to be.

    Raises:
        ValueError: They say something else.
    """
    mode = env.metadata.get("autoreset_mode")
    if mode is None:
        gym.logger.warn(
            f"{env} has no metadata['autoreset_mode']: rlox takes it to be NEXT_STEP, as Gymnasium "
            "does. Set it to the member of gymnasium.vector.AutoresetMode that is true."
        )
        return AutoresetMode.NEXT_STEP
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise ArgumentError(
            "env",
            "a member of gymnasium.vector.AutoresetMode in metadata['autoreset_mode']",
            repr(mode),
            "set it to what the environment does",
        ) from error


def check_autoreset_mode(env: VectorEnv[Any, Any, Any], mode: AutoresetMode | None) -> None:
    """Refuses environments whose autoreset mode is not the one that was asked for, if one was.

    Raises:
        ValueError: It is another.
    """
    if mode is not None and (env_mode := get_autoreset_mode(env)) is not mode:
        raise ArgumentError(
            "autoreset_mode",
            f"{env_mode.value!r}, as {env} has it",
            repr(mode.value),
            "leave it out, or make the environments with that mode",
        )


def check_resets(
    env: VectorEnv[Any, Any, Any],
    ended: Flags,
    rewards: npt.NDArray[np.float64],
    done: Flags,
    step: int,
) -> None:
    """Refuses a step after an end that was no reset, in NEXT_STEP mode.

    Its transition would be left out.

    Args:
        env: The environments.
        ended: (num_envs,): whose episode was over before the step.
        rewards: (num_envs,), of the step.
        done: (num_envs,): whose episode ended in the step.
        step: Which one it was.

    Raises:
        ValueError: An environment has an end or, unless wrappers may have made it, a reward there.
    """
    # Wrappers may make other rewards of the 0 that comes with a reset.
    has_reward = (rewards != 0) if env is env.unwrapped else False
    wrong = ended & (done | has_reward)
    if wrong.any():
        i = int(wrong.argmax())
        end = "an end" if done[i] else "no end"
        raise ArgumentError(
            "env",
            "a reset with reward 0 and no end after an episode (autoreset mode NEXT_STEP)",
            f"reward {rewards[i]} and {end}",
            "set metadata['autoreset_mode'] to the mode of the environments",
            env=i,
            step=step,
        )


def to_step_dict(
    answer: tuple[Any, Any, Any, Any, Any], same_step: bool, num_envs: int
) -> dict[str, Any]:
    """What a native step gave, for `VecEnv.step_all`."""
    obs, rewards, terminated, truncated, final_obs = answer
    if final_obs is None and same_step:
        last: list[Any] = [None] * num_envs
    else:
        final_rows = obs if final_obs is None else final_obs
        last = select_rows(terminated | truncated, final_rows)
    return {
        "obs": obs,
        "rewards": rewards,
        "terminated": terminated,
        "truncated": truncated,
        "terminal_obs": last,
    }


def split_options(options: object, num_envs: int) -> tuple[Flags | None, dict[str, Any] | None]:
    """The "reset_mask" of reset options, checked, and the other options.

    Raises:
        TypeError, ValueError: As in Gymnasium, for a mask of another kind, or without True.
        TypeError: The options are not a dict with names as keys.

    >>> split_options({"low": 0.0, "reset_mask": np.array([True, False])}, num_envs=2)
    (array([ True, False]), {'low': 0.0})
    """
    if options is None:
        return None, None
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise ArgumentTypeError(
            "options",
            "a dict of names and values",
            repr(options),
            "pass for example {'reset_mask': mask}",
        )
    others = dict(options)
    if "reset_mask" not in others:
        return None, others
    mask = others.pop("reset_mask")
    kind: type[ArgumentError | ArgumentTypeError] = ArgumentError
    if not isinstance(mask, np.ndarray):
        got, kind = type(mask).__name__, ArgumentTypeError
    elif mask.shape != (num_envs,):
        got = f"shape {mask.shape}"
    elif mask.dtype != np.bool_:
        got, kind = f"dtype {mask.dtype}", ArgumentTypeError
    elif not mask.any():
        got = "no True"
    else:
        return mask, others
    expected = f"a NumPy array of bool of shape ({num_envs},), with at least one True"
    raise kind("options['reset_mask']", expected, got, "pass True for each one to reset")


def infos_to_dict(env: VectorEnv[Any, Any, Any], infos: Any) -> dict[str, Any]:
    """Infos as vector environments give them, whether or not `DictInfoToList` has changed them.

    Raises:
        TypeError: They are neither a dict nor one for each environment.
    """
    if isinstance(infos, dict):
        return infos
    listed = isinstance(infos, list | tuple) and len(infos) == env.num_envs
    if not listed or not all(isinstance(info, dict) for info in infos):
        raise ArgumentTypeError(
            "infos",
            f"a dict of arrays, or a list of {env.num_envs} dicts",
            repr(infos),
            "return such infos from the environment or its wrapper",
        )
    together: dict[str, Any] = {}
    for i, info in enumerate(infos):
        together = env._add_info(together, info, i)
    return together


def select_rows(chosen: Flags, rows: npt.NDArray[Any]) -> list[npt.NDArray[Any] | None]:
    """A list with views of the chosen rows, None elsewhere.

    >>> select_rows(np.array([False, True]), np.array([[1.0], [2.0]]))
    [None, array([2.])]
    """
    listed: list[npt.NDArray[Any] | None] = [None] * len(chosen)
    for i in chosen.nonzero()[0].tolist():
        listed[i] = rows[i]
    return listed


def write_final_obs(
    rows: npt.NDArray[Any], layout: Layout, infos: dict[str, Any], ended: Flags, step: int
) -> None:
    """Writes last observations, from `infos`, into the rows of environments whose episodes ended.

    Raises:
        ValueError: One of them is missing after so many steps.
    """
    final = infos.get("final_obs", [None] * len(ended))
    for i in np.flatnonzero(ended):
        if final[i] is None:
            raise ArgumentError(
                "final_obs",
                "the last observation of the episode that ended",
                "None",
                "report it in infos, as SAME_STEP environments must",
                env=int(i),
                step=step,
            )
        rows[i] = layout.row(final[i])


def final_infos(
    done: Flags, final_obs: npt.NDArray[Any], final_info: dict[str, Any]
) -> dict[str, Any]:
    """What `infos` say of episodes that ended in a step of SAME_STEP environments."""
    objects = np.empty(len(done), dtype=object)
    for i in done.nonzero()[0].tolist():
        objects[i] = final_obs[i]
    return {
        "final_obs": objects,
        "_final_obs": done,
        "final_info": final_info,
        "_final_info": done.copy(),
    }
