"""Search spaces of sweeps: a range or a list of choices per setting."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pkgutil import resolve_name
from typing import Any

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._registry import ALGORITHMS
from rlox._validation import check_bool, check_float, check_keywords, check_str, short_repr

_RANGE = "{low: 1e-5, high: 1e-2, log: true}"


@dataclass(frozen=True)
class Range:
    """Range of numbers from `low` to `high`, both included; integers if both bounds are.

    Attributes:
        low: Lower bound.
        high: Upper bound.
        log: True if logarithms of the values are sampled uniformly.

    Raises:
        ArgumentTypeError: A bound is not a number.
        ArgumentError: `low` is not below `high`, or not above 0 with `log`.

    >>> Range(1e-5, 1e-2, log=True).is_integer
    False
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_bounds("range", self.low, self.high, self.log)

    @property
    def is_integer(self) -> bool:
        """True if the range contains only integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def suggest(self, name: str, trial: Any) -> object:
        """Return the value that an Optuna trial suggests."""
        suggest = trial.suggest_int if self.is_integer else trial.suggest_float
        return suggest(name, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Choices:
    """Unordered values to choose from."""

    values: tuple[Any, ...]

    def suggest(self, name: str, trial: Any) -> object:
        """Return the value that an Optuna trial suggests; Optuna stores lists and dicts as JSON."""
        labels = {json.dumps(x) if isinstance(x, list | tuple | dict) else x: x for x in self.values}
        return labels[trial.suggest_categorical(name, list(labels))]


Space = dict[str, Range | Choices]


def as_space(content: object, algorithm: str, config_type: type[Any]) -> Space:
    """Return a search space from the content of a YAML file.

    Entries have the form `name: {low, high, log}`, `name: [value, ...]` or `name: {choices: [value, ...]}`.

    Args:
        content: Content of the file.
        algorithm: Name of the algorithm, for error texts.
        config_type: Config class whose fields can be searched.

    Raises:
        ArgumentError: A range has wrong bounds, or a list is empty or repeats a value.
        ArgumentTypeError: A setting is unknown, or an entry is neither a range nor a list.

    >>> from rlox.configs import PPOConfig
    >>> as_space({"gamma": {"low": 0.9, "high": 1}, "n_steps": [8, 16]}, "ppo", PPOConfig)
    {'gamma': Range(low=0.9, high=1.0, log=False), 'n_steps': Choices(values=(8, 16))}
    """
    if not isinstance(content, Mapping) or not content:
        raise ArgumentTypeError(
            "space",
            "settings with ranges or choices",
            short_repr(content),
            f"write for example learning_rate: {_RANGE}",
        )
    content = {str(name).replace("-", "_"): entry for name, entry in content.items()}
    check_keywords(content, [field.name for field in fields(config_type)], f"{algorithm}'s space")
    return {name: _read_setting(f"space, {name}", entry) for name, entry in content.items()}


def _read_setting(name: str, entry: object) -> Range | Choices:
    if not isinstance(entry, Mapping):
        return _read_choices(name, entry)
    check_keywords(entry, ("low", "high", "log", "choices"), name)
    if {*entry} == {"choices"}:
        return _read_choices(name, entry["choices"])
    return _read_range(name, entry)


def _read_choices(name: str, values: object) -> Choices:
    if not isinstance(values, list):
        raise ArgumentTypeError(
            name, f"a range such as {_RANGE}, or a list of choices", short_repr(values), "write a range or a list"
        )
    if not values or len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
        raise ArgumentError(name, "choices, each once", str(values), "list different values")
    return Choices(tuple(values))


def _read_range(name: str, entry: Mapping[str, Any]) -> Range:
    if not {"low", "high"} <= {*entry} or "choices" in entry:
        raise ArgumentError(name, "low and high", str(", ".join(entry) or "neither"), f"write {_RANGE}")
    low, high, log = _check_bounds(name, entry["low"], entry["high"], entry.get("log", False))
    if isinstance(entry["low"], int) and isinstance(entry["high"], int):
        return Range(entry["low"], entry["high"], log)
    return Range(low, high, log)


def _check_bounds(name: str, low: object, high: object, log: object) -> tuple[float, float, bool]:
    """Return the bounds of a range as floats, and whether the range is logarithmic."""
    low, high = (check_float(f"{name}, {side}", x, fix="pass a number") for side, x in (("low", low), ("high", high)))
    log = check_bool(f"{name}, log", log)
    if not low < high:
        raise ArgumentError(name, "low below high", f"{low} and {high}", "swap the bounds")
    if log and low <= 0:
        raise ArgumentError(name, "low above 0 with log", str(low), "raise low")
    return low, high, log


_COMMON: Space = {
    "learning_rate": Range(1e-5, 3e-3, log=True),
    "gamma": Choices((0.95, 0.98, 0.99, 0.995, 0.999)),
    "net_arch": Choices(([64, 64], [128, 128], [256, 256])),
}
_ON_POLICY: Space = {
    **_COMMON,
    "gae_lambda": Choices((0.8, 0.9, 0.95, 0.98, 1.0)),
    "ent_coef": Range(1e-6, 0.05, log=True),
    "vf_coef": Range(0.2, 0.9),
    "max_grad_norm": Choices((0.3, 0.5, 1.0, 2.0)),
    "activation": Choices(("tanh", "relu")),
}
_OFF_POLICY: Space = {
    **_COMMON,
    "batch_size": Choices((64, 128, 256)),
    "learning_starts": Choices((100, 1_000)),
    "train_freq": Choices((1, 4, 16)),
    "gradient_steps": Choices((-1, 1, 4)),
}
A2C: Space = {**_ON_POLICY, "n_steps": Choices((5, 8, 16, 32, 64))}
IMPALA: Space = {
    **{name: value for name, value in _ON_POLICY.items() if name != "gae_lambda"},
    "n_steps": Choices((5, 10, 20, 40)),
}
PPO: Space = {
    **_ON_POLICY,
    "n_steps": Choices((32, 64, 128, 256, 512, 1024)),
    "batch_size": Choices((32, 64, 128, 256)),
    "n_epochs": Choices((4, 10, 20)),
    "clip_coef": Choices((0.1, 0.2, 0.3)),
}
DQN: Space = {
    **_OFF_POLICY,
    "target_update_interval": Choices((10, 250, 1_000)),
    "exploration_fraction": Range(0.05, 0.5),
    "exploration_final_eps": Range(0.01, 0.2),
    "double": Choices((False, True)),
}
SAC: Space = {**_OFF_POLICY, "tau": Choices((0.005, 0.01, 0.02, 0.05))}
TD3 = SAC


def default_space(algorithm: str, num_envs: int = 1, eval_every: int | None = None) -> Space:
    """Return the default search space of an algorithm.

    Args:
        algorithm: Name of the algorithm.
        num_envs: Number of environments of a trial.
        eval_every: Steps between evaluations. Choices of `n_steps` whose rollouts are longer are
            dropped; None: no limit.

    Raises:
        ArgumentError: The algorithm is unknown.

    >>> default_space("ppo")["learning_rate"]
    Range(low=1e-05, high=0.003, log=True)
    """
    spaces = {name: spec.search_space for name, spec in ALGORITHMS.items() if spec.search_space}
    space = dict(resolve_name(spaces[check_str("algorithm", algorithm, tuple(spaces))]))
    steps = space.get("n_steps")
    if isinstance(steps, Choices) and eval_every is not None:
        short = tuple(n for n in steps.values if n * num_envs <= eval_every)
        space["n_steps"] = Choices(short or steps.values[:1])
    return space
