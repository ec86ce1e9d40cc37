"""Restoring of runs: checks of manifests, and loading of states into new runs."""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium as gym

from rlox import _spaces
from rlox._errors import ArgumentError, CorruptFileError, add_file, add_section
from rlox._registry import ALGORITHMS, AlgorithmSpec
from rlox._training.callback_states import CALLBACKS_KEY, read_callback_states
from rlox._training.metrics_files import remove_lines_after, remove_rows_after
from rlox._training.run import RANK_MEMBERS, Run
from rlox._training.run_folder import RunFolder
from rlox._types import Arrays
from rlox._validation import check_str
from rlox.checkpoint import MANIFEST, check_keys, check_no_newer, corrupt
from rlox.configs import ALPHA, BETAS, EPS, SHAPE_SETTINGS
from rlox.learners import MEMBERS, LearnerState
from rlox.learners._backends import BACKENDS


def resume_in(run: Run, folder: str | os.PathLike[str]) -> None:
    """Continue a loaded run in its run folder.

    Rows of `metrics.csv` and `metrics.jsonl` after the checkpoint are removed, because the run
    writes them again. `config.json` is rewritten, as environment or backend may have changed.

    Raises:
        ArgumentError: `metrics.csv` is not a table of metrics.
        OSError: A file cannot be written.
        BlockingIOError: Another process trains in the folder.
        FileExistsError: The folder has a newer checkpoint.
    """
    path = Path(folder)
    check_no_newer(path, run.budget_used)
    column = f"time/total_{run.learner.budget_unit}"
    with RunFolder(path).lock():
        remove_rows_after(path / "metrics.csv", run.budget_used, column)
        remove_lines_after(path / "metrics.jsonl", run.budget_used, column)
        RunFolder(path).write("config.json", run.describe())
    run.folder = RunFolder(path)


def restore_run(
    run: Run, path: str | os.PathLike[str], saved: Mapping[str, Any], members: Mapping[str, Arrays], *, same: bool
) -> None:
    """Restore the state of a checkpoint into a new run.

    Args:
        run: Run with the settings of the checkpoint.
        path: Path of the checkpoint, for messages.
        saved: Result of `check_manifest`.
        members: Arrays of the checkpoint.
        same: True if backend and policy are those of the checkpoint. In this case, a rejected state means
            a damaged checkpoint; otherwise, a checkpoint that does not fit.

    Raises:
        CorruptFileError: The checkpoint is damaged. The error names the file and the section.
        ArgumentError: The checkpoint does not fit the environment, the policy or the backend.
    """
    if run.env_source is not None:
        pairs = zip(run.env_learner.spaces, saved_spaces(saved), strict=True)
        for kind, (space, saved_space) in zip(("observation", "action"), pairs, strict=True):
            if _spaces.to_json(space) != saved["spaces"][kind]:
                raise ArgumentError("env", f"{kind} space {saved_space}", str(space), "pass the same env")
    state = _make_learner_state(saved, members)
    callback_states = read_callback_states(saved)
    if callback_states is None:
        raise corrupt(Path(path) / MANIFEST, CALLBACKS_KEY, repr(saved[CALLBACKS_KEY]))
    ranks = getattr(run.learner, "world_size", 1)
    fix = "load it by rlox.distributed.ddp under torchrun, or predict with rlox.load"
    check_saved_value("world size", max(len(state.ranks), 1), ranks, fix)
    try:
        run.learner.load_state(state)
    except ValueError as error:
        raise add_file(error, path, CorruptFileError if same else ArgumentError) from error
    run.config_sources = saved["sources"]
    run.budget_start = saved["run"]["start"]
    run.budget_end = saved["run"]["target"]
    run.iterations = saved.get("iterations", 0)
    run.callback_states = callback_states
    run.lacks_replay = state.replay is None
    run.new_episodes_reason = _explain_new_episodes(run, saved, state)


def _make_learner_state(saved: Mapping[str, Any], members: Mapping[str, Arrays]) -> LearnerState:
    """Return the learner's state of a checkpoint."""
    excluded = {} if saved.get("replay", True) else {"replay": None}
    arrays: dict[str, Any] = {name: members.get(name, {}) for name in MEMBERS} | excluded
    state = LearnerState(**arrays, counters=saved["counters"], streams=saved["streams"])
    for k, manifest in enumerate(saved.get("ranks", ())):
        arrays = {name: members.get(f"rank{k}_{name}" if k else name, {}) for name in RANK_MEMBERS} | excluded
        arrays |= {name: {} for name in MEMBERS if name not in RANK_MEMBERS}
        state.ranks.append(LearnerState(**arrays, counters=manifest["counters"], streams=manifest["streams"]))
    return state


def _explain_new_episodes(run: Run, saved: Mapping[str, Any], state: LearnerState) -> str | None:
    """Return the reason why episodes of the checkpoint do not continue; None if they do."""
    if run.env_source is None or run.env_learner.env_initialized:
        return None
    had_episodes = state.environment or saved.get("env_state") == "missing"
    if not had_episodes and not run.budget_used:
        return None
    if not state.environment:
        return str(saved.get("env_state_reason", "the checkpoint does not contain their state"))
    return run.env_learner.env.unrestorable_reason or "they differ from the environments of the checkpoint"


_MANIFEST_TYPES: dict[str, tuple[type, ...]] = {
    "algorithm": (str,),
    "backend": (str,),
    "seed": (int,),
    "settings": (dict,),
    "sources": (dict,),
    "run": (dict,),
    "counters": (dict,),
    "streams": (dict,),
}
# `ranks` has the states of a run of several processes.
_OPTIONAL_TYPES = {"iterations": (int,), "replay": (bool,), "ranks": (list,)}
_ENV_TYPES: dict[str, tuple[type, ...]] = {
    "env": (str, type(None)),
    "env_kwargs": (dict,),
    "custom_policy": (bool,),
    "custom_features": (bool,),
    "spaces": (dict,),
}
_OTHER_TRAINER = "load the checkpoint with the trainer of its algorithm"
# Settings by which trainers in Rust describe the built-in policy.
_POLICY_SETTINGS = ("activation", "dueling", "net_arch", "shared_trunk", "use_sde")
# Settings that manifests of trainers in Rust may lack: they affect only initial weights, exist only
# in Python, or have no effect because of another setting.
_OMITTED_SETTINGS = (
    *("ortho_init", "log_std_init", "full_std", "compile", "device", "her", "n_sampled_goal"),
    "frame_stack",
    *("gradient_steps", "priority_alpha", "priority_beta", "target_entropy"),
    *("async_collect", "num_actors", "actors", "max_staleness", "deterministic"),
)
# Settings that only trainers in Rust have, with the values that Python uses.
_FIXED_SETTINGS: dict[str, Any] = {
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


def find_algorithm(path: str | os.PathLike[str], manifest: Mapping[str, Any]) -> AlgorithmSpec:
    """Return the specification of the algorithm of a checkpoint.

    Raises:
        ArgumentError: The algorithm is unknown.
    """
    name = manifest.get("algorithm")
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise ArgumentError(
            str(path),
            f"a checkpoint of {', '.join(sorted(ALGORITHMS))}",
            f"a checkpoint of {name!r}",
            "read the checkpoint with rlox.checkpoint.read_checkpoint",
        )
    return ALGORITHMS[name]


def check_manifest(path: Path, manifest: dict[str, Any], spec: AlgorithmSpec) -> dict[str, Any]:
    """Return a checked manifest; a manifest of a trainer in Rust gets the missing fields.

    Raises:
        CorruptFileError: The manifest is damaged. The error names the file and the section.
        ArgumentError: The manifest is of another algorithm, or of a trainer in Rust with settings
            that Python does not have.
    """
    file = path / MANIFEST
    if not {"sources", "custom_policy", "custom_features"} & {*manifest}:
        check_saved_value("algorithm", manifest.get("algorithm"), spec.name, _OTHER_TRAINER)
        manifest = _complete_rust_manifest(file, manifest, spec.config)
    check_keys(file, "manifest", manifest, _MANIFEST_TYPES)
    check_saved_value("algorithm", manifest["algorithm"], spec.name, _OTHER_TRAINER)
    if manifest["backend"] not in BACKENDS[1:]:
        raise corrupt(file, "manifest", f"{manifest['backend']!r} as 'backend'")
    if manifest["seed"] < 0:
        raise corrupt(file, "manifest", f"{manifest['seed']} as 'seed'")
    check_keys(file, "manifest", manifest, {n: kinds for n, kinds in _OPTIONAL_TYPES.items() if n in manifest})
    for rank_manifest in manifest.get("ranks", ()):
        check_keys(file, "ranks", rank_manifest, {"counters": (dict,), "streams": (dict,)})
    if spec.has_env:
        _check_env_fields(file, manifest)
    run = manifest["run"]
    check_keys(file, "run", run, {"start": (int,), "target": (int,)})
    if not 0 <= run["start"] <= run["target"]:
        raise corrupt(file, "run", f"a run from {run['start']} to {run['target']}")
    _check_settings(file, manifest, spec.config)
    return manifest


def _check_env_fields(file: Path, manifest: Mapping[str, Any]) -> None:
    check_keys(file, "manifest", manifest, _ENV_TYPES)
    if manifest["env"] is not None and ":" in manifest["env"]:
        raise corrupt(file, "manifest", f"{manifest['env']!r} as 'env': an id names no module")
    if manifest.get("env_state", "saved") not in ("saved", "missing"):
        raise corrupt(file, "manifest", f"{manifest['env_state']!r} as 'env_state'")
    check_keys(file, "spaces", manifest["spaces"], {"observation": (dict,), "action": (dict,)})
    try:
        saved_spaces(manifest)
    except ArgumentError as error:
        raise corrupt(file, "spaces", error.got) from error


def _check_settings(file: Path, manifest: Mapping[str, Any], config_type: type[Any]) -> None:
    names = {field.name for field in fields(config_type)}
    for section in ("settings", "sources"):
        if wrong := names ^ {*manifest[section]}:
            got = "the unknown" if wrong & {*manifest[section]} else "no"
            raise corrupt(file, section, f"{got} key {min(wrong)!r}")
    try:
        config_type(**manifest["settings"])
    except (TypeError, ValueError) as error:
        raise add_file(add_section(error, "settings"), file, CorruptFileError) from error


def _complete_rust_manifest(file: Path, manifest: dict[str, Any], config_type: type[Any]) -> dict[str, Any]:
    """Return the manifest of a trainer in Rust with the fields that only Python writes."""
    check_keys(file, "manifest", manifest, {"settings": (dict,)})
    saved = manifest["settings"]
    defaults = {field.name: field.default for field in fields(config_type)}
    policy_settings = {*_POLICY_SETTINGS} & {*defaults}
    if missing := sorted(policy_settings - {*saved}):
        hint = (
            "create a trainer with the same networks, and pass the state from "
            "rlox.checkpoint.read_checkpoint to trainer.learner.load_state; or continue in Rust"
        )
        # Rust omits net_arch if policy and value networks have different hidden layers.
        if "net_arch" in missing and (policy_settings - {"use_sde"}) & {*saved}:
            hint = "continue in Rust; Python has the same hidden layers for policy and values"
        raise ArgumentError(
            str(file),
            "a checkpoint with the settings of its policy",
            f"a checkpoint of a trainer in Rust without {', '.join(missing)}",
            hint,
        )
    # The default of optimizer_eps is 1e-5 for on-policy algorithms, and PyTorch's 1e-8 for others.
    is_on_policy = "gae_lambda" in defaults
    fixed = _FIXED_SETTINGS if is_on_policy else _FIXED_SETTINGS | {"optimizer_eps": 1e-8}
    for name in sorted({*saved} - {*defaults}):
        if name not in fixed:
            raise corrupt(file, "settings", f"the unknown key {name!r}")
        if saved[name] != fixed[name]:
            raise ArgumentError(
                str(file), f"{name} = {fixed[name]}, the only value in Python", str(saved[name]), "continue in Rust"
            )
    known = {name: x for name, x in saved.items() if name in defaults}
    settings = {name: defaults[name] for name in _OMITTED_SETTINGS if name in defaults} | known
    sources = {name: "checkpoint" if name in known else "default" for name in settings}
    python_fields = {"custom_policy": False, "custom_features": False, "env_kwargs": {}}
    return {**python_fields, **manifest, "settings": settings, "sources": sources}


def saved_spaces(manifest: Mapping[str, Any]) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return the observation space and the action space of a manifest."""
    saved = manifest["spaces"]
    return _spaces.from_json(saved["observation"]), _spaces.from_json(saved["action"])


def check_saved_value(what: str, saved: object, wanted: object, fix: str) -> None:
    """Raise ArgumentError if a value of a checkpoint differs from the wanted value."""
    if saved != wanted:
        raise ArgumentError("path", f"{what} {wanted}", f"a checkpoint of {saved}", fix)


class NoEnvironmentError(ArgumentError):
    """Raised if neither the checkpoint nor the caller names an environment."""


def check_required_objects(saved: Mapping[str, Any], **available: bool) -> None:
    """Check that the objects are available that a checkpoint needs and does not contain.

    Args:
        saved: Result of `check_manifest`.
        available: By the names `env`, `policy` and `features_extractor`: True if there is such an
            object. Names that are left out are not checked.

    Raises:
        ArgumentError: An object is missing.
    """
    needed = {
        "env": saved["env"] is None,
        "policy": saved["custom_policy"],
        "features_extractor": saved["custom_features"],
    }
    for name, is_available in available.items():
        if needed[name] and not is_available:
            error = NoEnvironmentError if name == "env" else ArgumentError
            expected = "the object that the trainer was created with, which checkpoints lack"
            raise error(name, expected, "None", f"pass {name}=")


def resolve_settings(
    backend: str, saved: Mapping[str, Any], *, device: str | None = None, actors: str | None = None, shape: bool = True
) -> dict[str, Any]:
    """Return the settings of a checkpoint, adapted to a backend and to the caller's choices.

    Args:
        backend: Backend that continues the run.
        saved: Result of `check_manifest`.
        device: Device of the networks; None: the device of the checkpoint.
        actors: Value of the setting `actors`; None: the value of the checkpoint.
        shape: If True, include the settings of the built-in policy's networks.

    Raises:
        ArgumentTypeError: `device` or `actors` is not a str.
        ArgumentError: The backend supports only the CPU, or the run has no actors.
    """
    if device is not None and check_str("device", device) != "cpu" and backend != "torch":
        raise ArgumentError(
            "device", f"'cpu' on the {backend} backend", repr(device), 'leave it out, or pass backend="torch"'
        )
    settings: dict[str, Any] = {**saved["settings"]}
    if actors is not None:
        _check_actors(check_str("actors", actors), saved)
        settings["actors"] = actors
    wanted = "cpu" if device is None and backend != "torch" else device
    if wanted is not None:
        settings["device"] = wanted
    return {n: x for n, x in settings.items() if shape or n not in SHAPE_SETTINGS}


def _check_actors(actors: str, saved: Mapping[str, Any]) -> None:
    """Check that the run of a checkpoint has actors."""
    settings = saved["settings"]
    if "actors" not in settings:
        reason = f"{saved['algorithm']} has no such setting"
    elif not settings.get("async_collect", True):
        reason = "async_collect is False"
    elif settings["deterministic"] and settings["max_staleness"] == 0 and settings["num_actors"] == 1:
        reason = "actor and learner take turns (deterministic=True, max_staleness=0, num_actors=1)"
    else:
        return
    raise ArgumentError(
        "actors",
        "None, because the run of the checkpoint has no actors",
        f"{actors!r}, although {reason}",
        "leave it out",
    )
