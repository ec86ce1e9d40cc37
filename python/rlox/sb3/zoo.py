"""rl-zoo3's files of hyperparameters as settings of rlox: `python -m rlox.sb3.zoo FILE ENV`.

YAML's tags make nothing but texts and numbers, and Python expressions in texts are read, never run:
`dict(net_arch=[64, 64], activation_fn=nn.ReLU)` by its syntax tree, in which calls of `dict` and
names of classes are all that there may be besides plain values.
"""

import argparse
import ast
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlox._errors import ArgumentError
from rlox.extras import load_extra
from rlox.files import read_small
from rlox.sb3.arguments import given_keywords, trainer_settings
from rlox.sb3.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from rlox.settings import shown, text, whole
from rlox.trainers import TRAINERS

# Theirs that are no keywords of algorithms, and of which nothing has to be done.
_BESIDES = ("policy", "n_timesteps", "n_envs", "normalize", "noise_type", "noise_std")
_LARGEST = 100_000  # values of an environment; aliases make many of few
_LONGEST = 1 << 20  # bytes of a file
_MISSING = {
    "env_wrapper": "wrap the environment in a function, and pass that to a trainer",
    "vec_env_wrapper": "wrap the environment in a function, and pass that to a trainer",
    "frame_stack": "pass frame_stack wrappers of Gymnasium in a function to a trainer",
    "callback": "pass callbacks to the trainer's train()",
    "env_kwargs": "pass env_kwargs to the trainer",
    "replay_buffer_class": "her= and prioritized= are settings of rlox.trainers",
    "replay_buffer_kwargs": "her= and n_sampled_goal= are settings of rlox.trainers",
    "monitor_kwargs": "leave it out",
}
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_NOISES = {"normal": NormalActionNoise, "ornstein-uhlenbeck": OrnsteinUhlenbeckActionNoise}


def zoo_settings(
    path: str | os.PathLike[str], env_id: str, algorithm: str | None = None
) -> dict[str, Any]:
    """What a file of rl-zoo3's says of an environment, as keywords of the trainer for it.

    Args:
        path: Of the file, "ppo.yml".
        env_id: One of its keys. The files' "default" serves others where there is one.
        algorithm: "ppo", "a2c", "dqn", "sac" or "td3"; None: by the file's name.

    Returns:
        All settings, so that nothing else is filled in, as lists, numbers and texts, which
        `PPOTrainer(env=..., **settings)` takes, but for "total_timesteps", which `train` does.

    Raises:
        FileNotFoundError: Nothing is there.
        ModuleNotFoundError: PyYAML is not installed.
        ValueError: No such environment or algorithm, no YAML, a tag that would make something else,
            or something that trainers do not have; its name is in the message.
        TypeError: A key that neither rl-zoo3 nor the algorithm has.
    """
    file = Path(path)
    name = text("algorithm", file.stem if algorithm is None else algorithm, tuple(TRAINERS))
    content = _read(file)
    found = content.get(env_id, content.get("default"))
    if not isinstance(found, Mapping):
        known = ", ".join(sorted(map(str, content))[:40])
        raise ArgumentError("env_id", f"one of {known}", repr(env_id), "pass one of them")
    _expect_small(found)
    return _converted(name, {str(key): _plain(value) for key, value in found.items()})


def _read(file: Path) -> dict[str, Any]:
    yaml = load_extra("yaml", "cli", "zoo_settings")
    try:
        data = read_small(file, _LONGEST)
    except ValueError as error:
        raise ValueError(f"path: {error}") from error
    try:
        content = yaml.safe_load(data.decode())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        said = " ".join(str(error).split())
        raise ArgumentError(
            str(file), "YAML of plain values", str(said[:300]), "correct it"
        ) from error
    if not isinstance(content, dict):
        raise ArgumentError(
            str(file),
            "settings by environment",
            type(content).__name__,
            "pass a file of rl-zoo3's hyperparams",
        )
    return content


def _expect_small(value: Any) -> None:
    """Refuses values that aliases make endless.

    Raises:
        ValueError: They do.
    """
    left, count = [value], 0
    while left:
        one, count = left.pop(), count + 1
        if count > _LARGEST:
            raise ArgumentError(
                "env_id", f"at most {_LARGEST:,} values", "more", "write aliases out"
            )
        if isinstance(one, Mapping):
            left += [*one, *one.values()]
        elif isinstance(one, list | tuple | set):
            left += one


def _plain(value: Any) -> Any:
    """A value; texts that are numbers for everyone but YAML 1.1, "1e-3", as such.

    >>> _plain("1e-3"), _plain("lin_0.1")
    (0.001, 'lin_0.1')
    """
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    return value


def _converted(algorithm: str, said: dict[str, Any]) -> dict[str, Any]:
    """Keywords of the trainer."""
    for name, why in _MISSING.items():
        if said.pop(name, None):
            raise ArgumentError(name, "none, as no setting is like it", "one", why)
    besides = {name: said.pop(name) for name in _BESIDES if name in said}
    if besides.get("policy", "MlpPolicy") != "MlpPolicy":
        raise ArgumentError(
            "policy",
            "'MlpPolicy'",
            repr(besides["policy"]),
            "for pictures the trainers take a NatureCNN by themselves, pass the other settings "
            "as keywords",
        )
    num_envs = whole("n_envs", _whole(besides.get("n_envs", 1)), 1)
    for name in ("policy_kwargs", "train_freq"):
        if isinstance(said.get(name), str):
            said[name] = read_expression(name, said[name])
    for name in ("learning_rate", "clip_range", "clip_range_vf"):
        if name in said:
            said[name] = _schedule(name, said[name])
    if "noise_type" in besides:
        kind = text("noise_type", besides["noise_type"], tuple(_NOISES))
        said["action_noise"] = _NOISES[kind](0.0, _plain(besides.get("noise_std", 0.0)))
    said = {name: _whole(value) for name, value in said.items()}
    given = given_keywords("rl-zoo3", algorithm, (), said)
    config_type = TRAINERS[algorithm].config_type
    settings = trainer_settings(algorithm, config_type, given, num_envs)
    settings |= _normalizing(besides.get("normalize", False))
    config = asdict(config_type(**settings))
    told = {name: _listed(x) for name, x in config.items() if name not in ("device", "compile")}
    if "n_timesteps" in besides:
        told["total_timesteps"] = whole("n_timesteps", _whole(_plain(besides["n_timesteps"])), 1)
    return told


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _whole(value: Any) -> Any:
    """Floats that are whole, as "1e6" is for YAML, as integers where a count may be meant."""
    return int(value) if isinstance(value, float) and value.is_integer() and value >= 2 else value


def _schedule(name: str, value: Any) -> Any:
    """A number, or a function for "lin_0.001"."""
    if not isinstance(value, str):
        return value
    kind, _, first = value.partition("_")
    if kind != "lin" or not _NUMBER.fullmatch(first):
        raise ArgumentError(name, "a number or one behind 'lin_'", repr(value), "correct it")
    return lambda left: float(first) * left


def _normalizing(value: Any) -> dict[str, bool]:
    """The settings for `normalize`, True or the arguments of a VecNormalize.

    Raises:
        ValueError: They ask for what trainers do not do.
    """
    if isinstance(value, str):
        value = read_expression("normalize", value)
    if isinstance(value, bool):
        return {"normalize_obs": value, "normalize_reward": value}
    known = {"norm_obs": True, "norm_reward": True}
    if not isinstance(value, Mapping) or not {*value} <= {*known, "gamma"}:
        raise ArgumentError(
            "normalize",
            "True, False, or norm_obs and norm_reward",
            shown(value),
            "normalise in a wrapper of the environment",
        )
    told = {name: bool(value.get(name, usual)) for name, usual in known.items()}
    return {"normalize_obs": told["norm_obs"], "normalize_reward": told["norm_reward"]}


def read_expression(name: str, source: str) -> Any:
    """A Python expression of plain values, `dict` with keywords, and names of classes as texts.

    Nothing of it is run.

    Raises:
        ValueError: It is anything else.

    >>> read_expression("policy_kwargs", "dict(net_arch=[64, 64], activation_fn=nn.ReLU)")
    {'net_arch': [64, 64], 'activation_fn': 'ReLU'}
    """
    try:
        return _value(ast.parse(source.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArgumentError(
            name,
            "dict(...), lists, numbers, texts and names of classes",
            f"{shown(source)} ({error})",
            "write it in these",
        ) from error


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str()):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List() | ast.Tuple():
            values = [_value(item) for item in node.elts]
            return values if isinstance(node, ast.List) else tuple(values)
        case ast.Dict(keys=keys) if all(isinstance(key, ast.Constant) for key in keys):
            pairs = zip(keys, node.values, strict=True)
            return {key.value: _value(x) for key, x in pairs if isinstance(key, ast.Constant)}
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=words) if all(
            word.arg for word in words
        ):
            return {word.arg: _value(word.value) for word in words}
        case ast.Name(id=word) | ast.Attribute(attr=word):
            return word
    raise ValueError(f"a {type(node).__name__}")


def main(args: Sequence[str] | None = None) -> int:
    """The command writes YAML; returns the exit status: 0, or 1 after a line that says why not."""
    about = "Write rl-zoo3's settings for an environment as rlox's, as YAML."
    parser = argparse.ArgumentParser("python -m rlox.sb3.zoo", description=about)
    parser.add_argument("path", metavar="FILE", help="a file of rl-zoo3's hyperparams")
    parser.add_argument("env_id", metavar="ENV", help="the id of an environment in it")
    parser.add_argument("--algorithm", help="by default what the file is called")
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
