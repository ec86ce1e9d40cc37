"""Settings from rl-zoo3's hyperparameter files: `python -m rlox.sb3.zoo FILE ENV`.

No code of a file is executed. YAML tags produce only strings and numbers. Python expressions in
strings are parsed as syntax trees of literals, `dict` calls and class names.
"""

import argparse
import ast
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlox._errors import ArgumentError, rename_arguments
from rlox._files import parse_yaml, read_small
from rlox._optional import load_extra
from rlox._registry import ALGORITHMS
from rlox._validation import check_int, check_str, short_repr
from rlox.sb3.kwargs import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from rlox.sb3.models import DEFAULTS, KEYWORDS, all_keywords, trainer_settings

_MAX_BYTES = 1 << 20
_WRAPPER = "pass the trainer a function that returns the wrapped environment"
_UNSUPPORTED = {
    "env_wrapper": _WRAPPER,
    "vec_env_wrapper": _WRAPPER,
    "frame_stack": _WRAPPER,
    "callback": "pass callbacks to the trainer's train()",
    "env_kwargs": "pass env_kwargs to the trainer",
    "replay_buffer_class": "use the settings her and prioritized of rlox.trainers",
    "replay_buffer_kwargs": "use the settings her and n_sampled_goal of rlox.trainers",
    "monitor_kwargs": "remove it",
}
_NOISES = {"normal": NormalActionNoise, "ornstein-uhlenbeck": OrnsteinUhlenbeckActionNoise}


def zoo_settings(path: str | os.PathLike[str], env_id: str, algorithm: str | None = None) -> dict[str, Any]:
    """Return rl-zoo3's settings for an environment as keywords of the trainer.

    Args:
        path: Path of the file, for example "ppo.yml".
        env_id: Id of the environment, a key of the file. Without this key, "default" is used.
        algorithm: "ppo", "a2c", "dqn", "sac" or "td3"; None: the name of the file.

    Returns:
        All settings of the trainer as lists, numbers and strings, so that no preset applies.
        "total_timesteps" is an argument of `train`; the other keys are keywords of the trainer.

    Raises:
        FileNotFoundError: The file does not exist.
        ModuleNotFoundError: PyYAML is not installed.
        ArgumentError: The environment or the algorithm is unknown, the file is not valid YAML or
            has unsupported tags, or a value is not supported. The message contains the key.
        ArgumentTypeError: A key is unknown, or a value has an invalid type.
    """
    file = Path(path)
    name = check_str("algorithm", file.stem if algorithm is None else algorithm, tuple(DEFAULTS))
    content = parse_yaml("path", read_small(file, _MAX_BYTES))
    if not isinstance(content, dict):
        got = f"a {type(content).__name__}"
        expected = "a YAML mapping from environment ids to settings"
        raise ArgumentError("path", expected, got, f"correct {file}")
    found = content.get(env_id, content.get("default"))
    if not isinstance(found, Mapping):
        known = ", ".join(sorted(map(str, content))[:40])
        raise ArgumentError("env_id", f"one of {known}", repr(env_id), "pass an id that the file contains")
    return _convert(name, {str(key): value for key, value in found.items()})


@rename_arguments(KEYWORDS)
def _convert(algorithm: str, values: dict[str, Any]) -> dict[str, Any]:
    for name, fix in _UNSUPPORTED.items():
        if values.pop(name, None):
            raise ArgumentError(name, "no value, because rlox has no such setting", "a value", fix)
    if (policy := values.pop("policy", "MlpPolicy")) != "MlpPolicy":
        raise ArgumentError(
            "policy",
            "'MlpPolicy'",
            repr(policy),
            "pass the other settings as keywords, trainers use a NatureCNN for images",
        )
    for name in ("policy_kwargs", "train_freq", "normalize"):
        if isinstance(values.get(name), str):
            values[name] = read_expression(name, values[name])
    for name in ("learning_rate", "clip_range", "clip_range_vf"):
        if isinstance(values.get(name), str):
            values[name] = _linear(name, values[name])
    sigma = values.pop("noise_std", 0.0)
    if "noise_type" in values:
        noise_type = check_str("noise_type", values.pop("noise_type"), tuple(_NOISES))
        values["action_noise"] = _NOISES[noise_type](0.0, sigma)
    values = {name: _integer(value) for name, value in values.items()}
    num_envs = check_int("n_envs", values.pop("n_envs", 1), 1)
    normalization = _normalization(values.pop("normalize", False))
    result: dict[str, Any] = {}
    if "n_timesteps" in values:
        result["total_timesteps"] = check_int("n_timesteps", values.pop("n_timesteps"), 1)
    settings = trainer_settings(algorithm, all_keywords("rl-zoo3", algorithm, (), values), num_envs)
    config = ALGORITHMS[algorithm].config(**settings | normalization)
    for name, value in asdict(config).items():
        if name not in ("device", "compile"):
            result[name] = list(value) if isinstance(value, tuple) else value
    return result


def _integer(value: object) -> object:
    """Return an int for an integral float such as 1e6, and other values unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() and value >= 2 else value


def _linear(name: str, value: str) -> Callable[[float], float]:
    """Return the schedule of a string such as "lin_0.001"."""
    prefix, _, number = value.partition("_")
    try:
        first = float(number if prefix == "lin" else "")
    except ValueError as error:
        expected = "a number, or 'lin_' and a number"
        raise ArgumentError(name, expected, repr(value), "write a number or, for example, lin_0.001") from error
    return lambda remaining: first * remaining


def _normalization(value: object) -> dict[str, bool]:
    """Return the settings for `normalize`, a bool or the arguments of a VecNormalize."""
    if isinstance(value, bool):
        return {"normalize_obs": value, "normalize_reward": value}
    if not isinstance(value, Mapping) or not {*value} <= {"norm_obs", "norm_reward", "gamma"}:
        raise ArgumentError(
            "normalize",
            "True, False, or norm_obs and norm_reward",
            short_repr(value),
            "normalize in an environment wrapper",
        )
    obs, reward = value.get("norm_obs", True), value.get("norm_reward", True)
    return {"normalize_obs": bool(obs), "normalize_reward": bool(reward)}


def read_expression(name: str, source: str) -> object:
    """Return the value of a Python expression without executing code.

    Args:
        name: Name of the key, for errors.
        source: Expression of literals, `dict(...)` and class names, which become strings.

    Raises:
        ArgumentError: The expression contains other syntax.

    >>> read_expression("policy_kwargs", "dict(net_arch=[64, 64], activation_fn=nn.ReLU)")
    {'net_arch': [64, 64], 'activation_fn': 'ReLU'}
    """
    try:
        return _evaluate(ast.parse(source.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArgumentError(
            name,
            "an expression of dict(...), lists, numbers, strings and class names",
            f"{short_repr(source)} ({error})",
            "remove other syntax",
        ) from error


def _evaluate(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str()):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List() | ast.Tuple():
            values = [_evaluate(item) for item in node.elts]
            return values if isinstance(node, ast.List) else tuple(values)
        case ast.Dict(keys=keys) if all(isinstance(key, ast.Constant) for key in keys):
            pairs = zip(keys, node.values, strict=True)
            return {key.value: _evaluate(x) for key, x in pairs if isinstance(key, ast.Constant)}
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(keyword.arg for keyword in keywords):
            return {keyword.arg: _evaluate(keyword.value) for keyword in keywords}
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    raise ValueError(f"a {type(node).__name__}")


def main(args: Sequence[str] | None = None) -> int:
    """Write YAML to stdout, and return the exit code: 0, or 1 after an error message."""
    description = "Convert rl-zoo3's settings for an environment to rlox's settings, as YAML."
    parser = argparse.ArgumentParser("python -m rlox.sb3.zoo", description=description)
    parser.add_argument("path", metavar="FILE", help="hyperparameter file of rl-zoo3")
    parser.add_argument("env_id", metavar="ENV", help="environment id in the file")
    parser.add_argument("--algorithm", help="name of the algorithm (default: name of the file)")
    try:
        settings = zoo_settings(**vars(parser.parse_args(args)))
        yaml = load_extra("yaml", "cli", "zoo_settings")
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(yaml.safe_dump(settings, sort_keys=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
