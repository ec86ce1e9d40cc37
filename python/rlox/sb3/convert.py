"""Stable-Baselines3's zips as checkpoints of rlox: `python -m rlox.sb3.convert IN OUT --trust`.

Of a zip, `data` is read as JSON, and the pickles in it are left alone; `policy.pth` is read by
torch's reader that makes tensors and nothing else (`torch.load(weights_only=True)`). So no code of
the file is run. What is trusted all the same is that reader: before torch 2.6, which is refused, it
had a hole, and a flaw in it, in zlib or in JSON would meet bytes that somebody else chose. Hence
`trust`.
"""

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlox._errors import ArgumentError
from rlox.backends import Backend
from rlox.sb3.archive import Archive, read_archive, read_statistics, said_schedule
from rlox.sb3.arguments import given_keywords, trainer_settings
from rlox.sb3.environments import expect_environment
from rlox.sb3.keywords import DEFAULTS, REFUSED
from rlox.sb3.weights import hidden_layers, renamed
from rlox.settings import flag
from rlox.trainer import EnvLike, Trainer
from rlox.trainers import TRAINERS

# What only one algorithm's `data` has.
_MARKS = {
    "clip_range": "ppo",
    "policy_delay": "td3",
    "target_entropy": "sac",
    "exploration_fraction": "dqn",
    "gae_lambda": "a2c",
}
# Whose hidden layers are those of the network.
_NETS = {"ppo": "actor", "a2c": "actor", "dqn": "q_net", "sac": "actor", "td3": "actor"}
_CLASS = re.compile(r"<class '[\w.]*?(\w+)'>")
# Not of the algorithm's settings, or read otherwise.
_UNREAD = {"policy_kwargs", "verbose", "device", "learning_rate", "clip_range", "seed", *REFUSED}


@dataclass(frozen=True)
class Converted:
    """What `convert` did."""

    algorithm: str
    backend: str
    path: str
    unread: tuple[str, ...]
    """Settings that only pickles of the file say: these have Stable-Baselines3's defaults now."""


def convert(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    env: EnvLike,
    trust: bool,
    vecnormalize: str | os.PathLike[str] | None = None,
    backend: Backend = "auto",
    **keywords: Any,
) -> Converted:
    """Writes a checkpoint whose `predict` is that of a model saved by Stable-Baselines3.

    PPO, A2C, DQN, SAC and TD3 with their MlpPolicy. Networks, target networks, SAC's temperature
    and settings come along; moments of the optimiser, counts of steps and replay do not: it goes on
    learning as one that has just begun with these weights.

    Args:
        source: The zip.
        path: Of the checkpoint, a folder, for `rlox.trainers`, `rlox.sb3` and all else of rlox's.
        env: What it was trained in, as for the trainers: spaces come from there, as they are
            pickles in the zip. What the zip says of them in words must agree.
        trust: Must be True; see this module for what is trusted.
        vecnormalize: What `VecNormalize.save` wrote. It is a pickle, of which nothing is run.
        backend: Who computes, as for the trainers.
        **keywords: By Stable-Baselines3's names, in place of what the zip says or does not say.

    Raises:
        ValueError: Without trust; what `read_archive` refuses; another policy, other spaces.
        FileNotFoundError, FileExistsError, OSError: Of the files.
        ModuleNotFoundError, RuntimeError: PyTorch is not installed, or older than 2.6.
        TypeError: An unknown keyword.
    """
    if not flag("trust", trust, fix="pass True for files whose origin you trust"):
        raise ArgumentError(
            "trust",
            "True, as a zip of Stable-Baselines3's can hold code",
            "False",
            "nothing of it is run, but torch reads it: pass trust=True, or --trust, for files "
            "whose origin you trust",
        )
    expect_environment(env)
    archive = read_archive(source)
    algorithm = _algorithm(archive)
    given, unread = _keywords(algorithm, archive, keywords)
    ours = renamed(algorithm, archive.weights, archive.variables)
    kind = TRAINERS[algorithm]
    count = archive.data.get("n_envs")
    num_envs = count if type(count) is int and count > 0 else 1
    settings = trainer_settings(algorithm, kind.config_type, given, num_envs)
    settings["net_arch"] = hidden_layers(ours, _NETS[algorithm])
    statistics = None if vecnormalize is None else read_statistics(vecnormalize)
    if statistics is not None:
        settings |= _normalizing(statistics, settings["gamma"])
    with kind(env, given["seed"], backend=backend, runs_dir=None, **settings) as trainer:
        _expect_spaces(archive, trainer.env)
        _load(trainer, ours, statistics)
        trainer.save(path)
        done = trainer.learner.backend
    return Converted(algorithm, done, os.fspath(path), unread)


def _algorithm(archive: Archive) -> str:
    """Whose zip it is.

    Raises:
        ValueError: Another one's, or of another policy class than their own.
    """
    found = next((name for mark, name in _MARKS.items() if mark in archive.data), None)
    module = str(archive.about("policy_class").get("__module__", ""))
    if found is None or not module.startswith("stable_baselines3."):
        got = module or ", ".join(sorted(archive.data)[:5])
        raise ArgumentError(
            "data",
            "PPO, A2C, DQN, SAC or TD3 with Stable-Baselines3's own policy",
            f"one of {got}",
            "only these are converted",
        )
    return found


def _keywords(
    algorithm: str, archive: Archive, own: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Keywords as the zip says them, and the names of those that it does not say plainly."""
    said: dict[str, Any] = {}
    unread = []
    for name in DEFAULTS[algorithm]:
        if name in _UNREAD or name in own or name not in archive.data:
            continue
        if archive.plain(name):
            said[name] = archive.data[name]
        else:
            unread.append(name)
    for name, where in (("learning_rate", "lr_schedule"), ("clip_range", "clip_range")):
        if name in DEFAULTS[algorithm] and name not in own:
            rate = said_schedule(archive, name) or said_schedule(archive, where)
            if rate is None:
                unread.append(name)
            else:
                said[name] = _falling(*rate)
    seed = archive.data.get("seed")
    if type(seed) is int and seed >= 0:
        said["seed"] = seed
    said["policy_kwargs"] = _policy_kwargs(archive)
    if algorithm == "a2c":
        said["use_rms_prop"] = "optimizer_class" in said["policy_kwargs"]
    given = given_keywords("convert", algorithm, (), {**said, **own})
    return given, tuple(unread)


def _falling(first: float, linear: bool) -> Any:
    return (lambda left: first * left) if linear else first


def _policy_kwargs(archive: Archive) -> dict[str, Any]:
    """What shapes the networks, but for their widths; classes by their names."""
    told: dict[str, Any] = {}
    for name, value in archive.about("policy_kwargs").items():
        if name.startswith(":") or name == "net_arch":
            continue
        found = _CLASS.fullmatch(value) if isinstance(value, str) else None
        if name.startswith("optimizer_"):  # of which only A2C has a choice here
            if "gae_lambda" in archive.data and "clip_range" not in archive.data:
                told[name] = _optimizer(value) if found is None else found[1]
            continue
        if name == "features_extractor_class" and found and found[1] == "FlattenExtractor":
            continue
        told[name] = value if found is None else found[1].lower()
    return told


def _optimizer(keywords: Any) -> Any:
    """Keywords of the optimiser, but for those that are as they always are."""
    usual = {"alpha": 0.99, "weight_decay": 0}
    if not isinstance(keywords, dict):
        return keywords
    return {k: x for k, x in keywords.items() if k not in usual or x != usual[k]}


def _normalizing(statistics: Mapping[str, Any], gamma: float) -> dict[str, Any]:
    """The settings of a trainer that normalises as they did.

    Raises:
        ValueError: It cannot.
    """
    fixed = {"clip_obs": 10.0, "clip_reward": 10.0, "epsilon": 1e-8, "gamma": gamma}
    used = {"clip_obs": "norm_obs", "clip_reward": "norm_reward", "gamma": "norm_reward"}
    for name, value in fixed.items():
        asked = statistics[used[name]] if name in used else True
        if asked and statistics[name] != value:
            raise ArgumentError(
                "vecnormalize",
                f"{name} = {value:g}, as trainers have no other",
                f"{statistics[name]:g}",
                "normalise in a wrapper of the environment",
            )
    names = {"normalize_obs": "norm_obs", "normalize_reward": "norm_reward"}
    return {ours: statistics[theirs] for ours, theirs in names.items()}


def _load(trainer: Trainer, ours: Mapping[str, Any], statistics: Any) -> None:
    """Gives the trainer these weights and statistics.

    Raises:
        ValueError: They do not fit; the name is in the message.
    """
    state = trainer.learner.state()
    wanted, given = state.networks, dict(ours)
    if "log_alpha" not in wanted:
        given.pop("log_alpha", None)
    given = {**{name: wanted[name] for name in ("log_alpha",) if name in wanted}, **given}
    for name in sorted({*wanted} | {*given}):
        shapes = [None if name not in x else tuple(x[name].shape) for x in (wanted, given)]
        if shapes[0] != shapes[1]:
            raise ArgumentError(
                "policy.pth",
                f"{name} of shape {shapes[0]}",
                str(shapes[1]),
                "networks of actor and critic have the same hidden layers here, and there are "
                "two critics",
            )
    normalizer = state.normalizer
    if statistics is not None:
        told = {
            f"{part}_{name}": np.atleast_1d(numbers)
            for part in ("obs", "return")
            for name, numbers in statistics.get(part, {}).items()
        }
        normalizer = {name: told.get(name, x) for name, x in normalizer.items()}
        for name, x in state.normalizer.items():
            if normalizer[name].size != x.size:
                raise ArgumentError(
                    "vecnormalize",
                    f"{name} of shape {x.shape}",
                    str(normalizer[name].shape),
                    "pass the statistics of this environment",
                )
            normalizer[name] = normalizer[name].reshape(x.shape)
    networks = {name: given[name].astype(x.dtype) for name, x in wanted.items()}
    trainer.learner.load_state(dataclasses.replace(state, networks=networks, normalizer=normalizer))


def _expect_spaces(archive: Archive, env: Any) -> None:
    """The environment's spaces are what the zip says of those that it was trained with.

    Raises:
        ValueError: One is not.
    """
    for kind in ("observation", "action"):
        space, about = getattr(env, f"single_{kind}_space"), archive.about(f"{kind}_space")
        said = _CLASS.fullmatch(str(about.get(":type:", "")))
        differs = said is not None and said[1] != type(space).__name__
        shape = about.get("_shape")
        differs |= isinstance(shape, list) and tuple(shape) != tuple(space.shape or ())
        if isinstance(space, gym.spaces.Discrete):
            differs |= str(about.get("n", space.n)) != str(space.n)
        if isinstance(space, gym.spaces.Box):
            for side in ("low", "high"):
                differs |= not _agree(about.get(side), getattr(space, side))
        if differs:
            words = {k: about[k] for k in (":type:", "_shape", "n", "low", "high") if k in about}
            raise ArgumentError(
                "env",
                f"the {kind} space that the model was trained with, {words}",
                str(space),
                "pass that environment",
            )


def _agree(text: Any, numbers: Any) -> bool:
    """Whether an array printed by NumPy is this one, as far as that can be told."""
    if not isinstance(text, str) or "..." in text:
        return True
    try:
        told = [float(word) for word in text.replace("[", " ").replace("]", " ").split()]
    except ValueError:
        return True
    flat = np.asarray(numbers, np.float64).ravel()
    return len(told) == len(flat) and bool(np.allclose(told, flat, rtol=1e-5, equal_nan=True))


def main(args: Sequence[str] | None = None) -> int:
    """The command; returns the exit status: 0, or 1 after a line that says what went wrong."""
    about = "Write a checkpoint of rlox from a zip of Stable-Baselines3's."
    parser = argparse.ArgumentParser("python -m rlox.sb3.convert", description=about)
    parser.add_argument("source", metavar="IN", help="the zip")
    parser.add_argument("path", metavar="OUT", help="the checkpoint, a folder")
    parser.add_argument("--env", required=True, help="the id of the environment it is for")
    parser.add_argument("--trust", action="store_true", help="you trust the origin of the zip")
    parser.add_argument("--vecnormalize", help="what VecNormalize.save wrote")
    parser.add_argument("--backend", default="auto", help="native, torch, ...; default: auto")
    chosen = parser.parse_args(args)
    try:
        done = convert(**vars(chosen))
    except (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    said = f"{done.algorithm} for the {done.backend} backend in {done.path}\n"
    if done.unread:
        said += f"by default, as only pickles say it: {', '.join(done.unread)}\n"
    sys.stdout.write(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
