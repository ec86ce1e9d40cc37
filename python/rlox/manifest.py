"""What a trainer's checkpoint and run folder say about it, and whether that can be believed."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from rlox import spaces
from rlox._errors import ArgumentError, CorruptFileError, in_file, in_section
from rlox.backends import BACKENDS
from rlox.checkpoint import MANIFEST, corrupt, expect_keys
from rlox.configs import ALPHA, BETAS, EPS, SHAPE_SETTINGS
from rlox.logger import versions
from rlox.noise import told
from rlox.settings import text

if TYPE_CHECKING:
    from rlox.trainer import Trainer

_KINDS: dict[str, tuple[type, ...]] = {
    "algorithm": (str,),
    "backend": (str,),
    "env": (str, type(None)),
    "env_kwargs": (dict,),
    "own_policy": (bool,),
    "own_features": (bool,),
    "seed": (int,),
    "settings": (dict,),
    "sources": (dict,),
    "spaces": (dict,),
    "run": (dict,),
    "counters": (dict,),
    "streams": (dict,),
}

# What trainers in Rust tell of their policy where it can be made from settings.
_POLICY = ("activation", "dueling", "net_arch", "shared_trunk", "use_sde")
# Settings that matter only to first weights, that trainers in Rust do not have, or that they leave
# out where another one says that they do not matter.
_UNTOLD = (
    *("ortho_init", "log_std_init", "full_std", "compile", "device", "her", "n_sampled_goal"),
    "frame_stack",
    *("gradient_steps", "priority_alpha", "priority_beta", "target_entropy"),
    *("async_collect", "num_actors", "actors", "max_lag", "lockstep"),
)
# Settings of theirs that trainers in Python do not have, and what these do.
_FIXED: dict[str, Any] = {
    "optimizer": "adam",
    "optimizer_eps": EPS,
    "beta1": BETAS[0],
    "beta2": BETAS[1],
    "alpha": ALPHA,
    "clip_obs": 10.0,
    "clip_reward": 10.0,
    "normalize_epsilon": 1e-8,
    "weight_decay": 0.0,
    "loss": "huber",
    "n_critics": 2,
}


def describe(trainer: "Trainer") -> dict[str, Any]:
    """What JSON can hold of how a trainer was made: `config.json`, and part of the manifest."""
    return {
        "algorithm": trainer.algorithm,
        "backend": trainer.learner.backend,
        "env": trainer.env_id,
        "env_kwargs": trainer.env_kwargs,
        "own_policy": trainer.own_policy,
        "own_features": trainer.own_features,
        "seed": trainer.seed,
        "settings": settings_told(trainer.config),
        "sources": trainer.sources,
        "spaces": {
            "observation": spaces.to_json(trainer.env.single_observation_space),
            "action": spaces.to_json(trainer.env.single_action_space),
        },
        "versions": versions(),
    }


def settings_told(config: Any) -> dict[str, Any]:
    """Settings as files have them, and trainers in Rust know them."""
    noise = getattr(config, "action_noise", None)
    return asdict(config) | ({} if noise is None else {"action_noise": told(noise)})


def trainer_manifest(
    path: Path, manifest: dict[str, Any], algorithm: str, config_type: type[Any]
) -> dict[str, Any]:
    """A manifest with all that a trainer of this algorithm needs, be it of a trainer in Rust.

    Raises:
        rlox.CorruptFileError: It lacks something; the file and the section are named.
        ValueError: It is another algorithm's, or of a trainer in Rust that cannot be made here.
    """
    file = path / MANIFEST
    if not {"sources", "own_policy", "own_features"} & {*manifest}:
        expect_saved("algorithm", manifest.get("algorithm"), algorithm, "load it with that trainer")
        manifest = _from_rust(file, manifest, config_type)
    _expect_trainer(file, manifest, algorithm, config_type)
    return manifest


def _from_rust(file: Path, manifest: dict[str, Any], config_type: type[Any]) -> dict[str, Any]:
    """The manifest of a trainer in Rust, with what only trainers in Python have."""
    expect_keys(file, "manifest", manifest, {"settings": (dict,)})
    saved, defaults = manifest["settings"], {f.name: f.default for f in fields(config_type)}
    told = {*_POLICY} & {*defaults}
    # Only on-policy methods add more to roots than torch does.
    fixed = _FIXED if "gae_lambda" in defaults else _FIXED | {"optimizer_eps": 1e-8}
    if unsaid := sorted(told - {*saved}):
        fix = (
            "make a trainer with the same networks, and give trainer.learner.load_state what "
            "rlox.checkpoint.read_checkpoint reads; where trainers here cannot have them, go on "
            "with it in Rust"
        )
        # What tells the rest leaves this out only where policy and values differ in it.
        if "net_arch" in unsaid and (told - {"use_sde"}) & {*saved}:
            fix = "go on with it in Rust, as policy and values have the same hidden layers here"
        raise ArgumentError(
            str(file),
            "a checkpoint that says how to make its policy",
            f"one of a trainer in Rust without {', '.join(unsaid)}",
            fix,
        )
    for name in sorted({*saved} - {*defaults}):
        if name not in fixed:
            raise corrupt(file, "settings", f"the unknown key {name!r}")
        if saved[name] != fixed[name]:
            raise ArgumentError(
                str(file),
                f"{name} = {fixed[name]}, as trainers in Python have no other",
                str(saved[name]),
                "go on with it in Rust",
            )
    made = {name: x for name, x in saved.items() if name in defaults}
    settings = {name: defaults[name] for name in _UNTOLD if name in defaults} | made
    own = {"own_policy": False, "own_features": False, "env_kwargs": {}}
    sources = {name: "checkpoint" if name in made else "default" for name in settings}
    return {**own, **manifest, "settings": settings, "sources": sources}


def _expect_trainer(
    file: Path, manifest: Mapping[str, Any], algorithm: str, config_type: type[Any]
) -> None:
    expect_keys(file, "manifest", manifest, _KINDS)
    expect_saved("algorithm", manifest["algorithm"], algorithm, "load it with that trainer")
    if manifest["backend"] not in BACKENDS[1:]:
        raise corrupt(file, "manifest", f"{manifest['backend']!r} as 'backend'")
    if manifest["env"] is not None and ":" in manifest["env"]:
        raise corrupt(file, "manifest", f"{manifest['env']!r} as 'env': an id names no module")
    if "replay" in manifest:
        expect_keys(file, "manifest", manifest, {"replay": (bool,)})
    if manifest.get("environment", "exact") not in ("exact", "approximate"):
        raise corrupt(file, "manifest", f"{manifest['environment']!r} as 'environment'")
    if "ranks" in manifest:  # of a run of several processes
        expect_keys(file, "manifest", manifest, {"ranks": (list,)})
        for own in manifest["ranks"]:
            expect_keys(file, "ranks", own, {"counters": (dict,), "streams": (dict,)})
    if manifest["seed"] < 0:
        raise corrupt(file, "manifest", f"{manifest['seed']} as 'seed'")
    expect_keys(file, "spaces", manifest["spaces"], {"observation": (dict,), "action": (dict,)})
    try:
        saved_spaces(manifest)
    except ArgumentError as error:
        raise corrupt(file, "spaces", error.got) from error
    run = manifest["run"]
    expect_keys(file, "run", run, {"start": (int,), "target": (int,)})
    if not 0 <= run["start"] <= run["target"]:
        raise corrupt(file, "run", f"a run from {run['start']} to {run['target']}")
    names = {field.name for field in fields(config_type)}
    for section in ("settings", "sources"):
        if wrong := names ^ {*manifest[section]}:
            there = "the unknown" if wrong & {*manifest[section]} else "no"
            raise corrupt(file, section, f"{there} key {min(wrong)!r}")
    try:
        config_type(**manifest["settings"])
    except (TypeError, ValueError) as error:
        raise in_file(in_section(error, "settings"), file, CorruptFileError) from error


def saved_spaces(manifest: Mapping[str, Any]) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return the observation space and the action space of a manifest."""
    saved = manifest["spaces"]
    return spaces.from_json(saved["observation"]), spaces.from_json(saved["action"])


def expect_saved(what: str, saved: object, wanted: object, fix: str) -> None:
    """A checkpoint is of what it is loaded into.

    Raises:
        ValueError: It is of something else.
    """
    if saved != wanted:
        raise ArgumentError("path", f"{what} {wanted}", f"a checkpoint of {saved}", fix)


class NoEnvironmentError(ArgumentError):
    """A checkpoint says no id, and no environment was passed."""


def expect_code(saved: Mapping[str, Any], **given: object) -> None:
    """What a checkpoint cannot hold is given: `env`, `policy` and `features_extractor`, by name.

    Raises:
        ValueError: One is needed and it is not given.
    """
    needed = {
        "env": saved["env"] is None,
        "policy": saved["own_policy"],
        "features_extractor": saved["own_features"],
    }
    for what, thing in given.items():
        if thing is None and needed[what]:
            kind = NoEnvironmentError if what == "env" else ArgumentError
            expected = "what the trainer was made with, as a checkpoint holds no code"
            raise kind(what, expected, "None", f"pass {what}=")


def settings_on(
    backend: str,
    saved: Mapping[str, Any],
    *,
    device: str | None = None,
    actors: str | None = None,
    shape: bool = True,
) -> dict[str, Any]:
    """The settings of a checkpoint for a backend.

    Args:
        backend: Which one.
        saved: Its checked manifest.
        device: Of the networks; None for where they were.
        actors: Where they work; None for where they did.
        shape: Whether those that choose and shape a built-in policy are among them.

    Raises:
        TypeError: Something is no str.
        ValueError: Only torch uses other devices than the CPU; the run has no actors.
    """
    if device is not None and text("device", device) != "cpu" and backend != "torch":
        raise ArgumentError(
            "device",
            f"'cpu' on the {backend} backend",
            repr(device),
            'leave it out, or pass backend="torch"',
        )
    settings: dict[str, Any] = {**saved["settings"]}
    if actors is not None:
        _expect_actors(text("actors", actors), saved)
        settings["actors"] = actors
    wanted = "cpu" if device is None and backend != "torch" else device
    if wanted is not None:
        settings["device"] = wanted
    return {n: x for n, x in settings.items() if shape or n not in SHAPE_SETTINGS}


def _expect_actors(actors: str, saved: Mapping[str, Any]) -> None:
    """Check that the run of a checkpoint has actors."""
    settings, algorithm = saved["settings"], saved["algorithm"]
    if "actors" not in settings:
        none = f"{algorithm} has no such setting"
    elif not settings.get("async_collect", True):
        none = "async_collect is False"
    elif settings["lockstep"] and settings["max_lag"] == 0 and settings["num_actors"] == 1:
        none = "actor and learner take turns (lockstep=True, max_lag=0, num_actors=1)"
    else:
        return
    raise ArgumentError(
        "actors",
        "a checkpoint of a run with actors",
        f"one in which {none}, and {actors!r}",
        "leave it out",
    )
