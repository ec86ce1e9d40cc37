"""What Stable-Baselines3's keywords ask for, as settings of rlox's trainers."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox.keywords import refuse_unknown
from rlox.sb3.keywords import DEFAULTS, ELSEWHERE, REFUSED, RENAMED
from rlox.sb3.noise import as_action_noise
from rlox.sb3.policy_kwargs import policy_settings
from rlox.sb3.schedules import schedule
from rlox.settings import flag, number, shown, text, whole

# Of the model rather than of the algorithm.
_MODEL = ("policy_kwargs", "verbose", "tensorboard_log", "seed", "device", *REFUSED)


def given_keywords(
    what: str, algorithm: str, args: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """All keywords of an algorithm: those passed, by place or by name, and defaults for the rest.

    Args:
        what: The class, for messages.
        algorithm: "ppo".
        args: Behind policy and environment.
        keywords: By name.

    Raises:
        TypeError: One is unknown (near ones are named), or passed twice; too many.

    >>> given_keywords("PPO", "ppo", (1e-3,), {"n_steps": 8})["learning_rate"]
    0.001
    """
    defaults = DEFAULTS[algorithm]
    refuse_unknown(keywords, defaults, what, {**_of_others(algorithm), **ELSEWHERE})
    if len(args) > len(defaults):
        raise ArgumentTypeError(
            what,
            f"at most {len(defaults)} arguments behind policy and env",
            str(len(args)),
            "pass them by name",
        )
    by_place = dict(zip(defaults, args, strict=False))
    if double := [name for name in by_place if name in keywords]:
        raise ArgumentTypeError(
            str(double[0]),
            "one value",
            "one by its place and one by its name",
            "leave one of them out",
        )
    return {**defaults, **by_place, **keywords}


def _of_others(algorithm: str) -> dict[str, str]:
    """What to say to those who pass a keyword of another algorithm."""
    whose: dict[str, list[str]] = {}
    for other, names in DEFAULTS.items():
        if other != algorithm:
            for name in names:
                whose.setdefault(name, []).append(other.upper())
    return {name: f"{name} belongs to {', '.join(others)}" for name, others in whose.items()}


def trainer_settings(
    algorithm: str, config_type: type[Any], given: Mapping[str, Any], num_envs: int
) -> dict[str, Any]:
    """All settings of the trainer: Stable-Baselines3's defaults, and none of rl-zoo3's.

    Args:
        algorithm: "ppo".
        config_type: The settings' class.
        given: What `given_keywords` gave.
        num_envs: How many environments there are.

    Raises:
        TypeError, ValueError: A keyword asks for what trainers do not have; it is named, with what
            to do instead.

    >>> from rlox.configs import PPOConfig
    >>> given = given_keywords("PPO", "ppo", (), {"clip_range": 0.1})
    >>> trainer_settings("ppo", PPOConfig, given, num_envs=1)["clip_coef"]
    0.1
    """
    for name, (allowed, why) in REFUSED.items():
        if name in given and given[name] not in allowed:
            raise ArgumentError(name, str(allowed[0]), shown(given[name]), why)
    settings = {field.name: field.default for field in fields(config_type)}
    settings |= {RENAMED.get(n, n): x for n, x in given.items() if n not in _MODEL}
    settings["num_envs"] = num_envs
    settings["device"] = device_name(given["device"])
    rate, settings["lr_schedule"] = schedule("learning_rate", given["learning_rate"])
    settings["learning_rate"] = rate
    if algorithm == "ppo":
        settings |= _ppo(given, num_envs)
    if algorithm == "a2c":
        adam = not flag("use_rms_prop", settings.pop("use_rms_prop"))
        if adam:  # which has an eps of its own there
            settings |= {"optimizer": "adam", "optimizer_eps": 1e-5}
    if "train_freq" in given:
        settings["train_freq"] = _train_freq(given["train_freq"])
    if "action_noise" in given:
        settings["action_noise"] = as_action_noise(given["action_noise"])
    return settings | policy_settings(algorithm, given["policy_kwargs"])


def _ppo(given: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """The settings that only PPO has in another form."""
    clip, how = schedule("clip_range", given["clip_range"])
    clip_vf, how_vf = schedule("clip_range_vf", given["clip_range_vf"])
    if how_vf != "constant":
        raise ArgumentError(
            "clip_range_vf", "a number or None", "a function that is not constant", "pass a number"
        )
    rows = whole("n_steps", given["n_steps"], 1) * num_envs
    batch_size = whole("batch_size", given["batch_size"], 1)
    # A larger one there is all rows, too.
    about = {"batch_size": min(batch_size, rows), "clip_coef": clip, "clip_schedule": how}
    return {**about, "clip_coef_vf": clip_vf}


def _train_freq(value: Any) -> Any:
    """Steps as a number of them; episodes as they are."""
    if isinstance(value, tuple | list) and len(value) == 2 and value[1] == "step":
        return value[0]
    return value


def device_name(device: Any) -> str:
    """The name of a device, be it torch's own object; "auto" is the CPU.

    >>> device_name("auto")
    'cpu'
    """
    name = text("device", device if isinstance(device, str) else str(device))
    return "cpu" if name == "auto" else name


def verbosity(value: Any) -> int:
    """0, 1 or 2.

    Raises:
        TypeError, ValueError: It is none of them.
    """
    return int(number("verbose", whole("verbose", value, 0, fix="pass 0, 1 or 2"), 0, 2))
