"""What a trainer's checkpoint holds, and how a trainer becomes the one that was saved."""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from rlox import _spaces
from rlox._errors import (
    ArgumentError,
    CorruptFileError,
    OutOfMemoryError,
    add_file,
    add_section,
    warn,
)
from rlox._training.hooks import CALLBACKS_KEY, get_callback_states, read_callback_states
from rlox._training.metrics import remove_lines_after, remove_rows_after
from rlox._training.run_folder import RunFolder, versions
from rlox._types import Arrays
from rlox._validation import check_str
from rlox.checkpoint import MANIFEST, check_keys, check_no_newer, corrupt, write_checkpoint
from rlox.configs import ALPHA, BETAS, EPS, SHAPE_SETTINGS
from rlox.learners import MEMBERS, LearnerState
from rlox.learners._backends import BACKENDS
from rlox.noise import noise_to_dict

if TYPE_CHECKING:
    from rlox._training.results import TrainResult
    from rlox.trainers import Trainer

# What the system says where there is no room on a disk, or none for the process.
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
# Members that each rank of a run of several processes has of its own.
_EACH = ("environment", "replay")


def make_manifest(trainer: "Trainer", state: LearnerState) -> dict[str, Any]:
    """The manifest of a checkpoint, beside which `state` has the arrays.

    `replay` is in it, and False, where the replay buffer is left out, or was before. `environment`
    is "exact" or "approximate", which `environment_reason` explains: environments then start new
    episodes.
    """
    run = {"start": trainer.start_timesteps, "target": trainer.target_timesteps}
    progress = {"run": run, "counters": state.counters, "streams": state.streams}
    gone = state.replay is None or _NO_REPLAY in trainer.restore_warnings
    replay: dict[str, Any] = {"replay": False} if gone else {}
    env_state = {"environment": "exact" if state.unrestorable_reason is None else "approximate"}
    env_state_reason = (
        {}
        if state.unrestorable_reason is None
        else {"environment_reason": state.unrestorable_reason}
    )
    callback_states = [*get_callback_states(trainer.callbacks), *trainer.callback_states]
    loop = {"iterations": trainer.iterations, CALLBACKS_KEY: callback_states}
    each = [
        {"counters": rank_state.counters, "streams": rank_state.streams}
        for rank_state in state.ranks
    ]
    ranks = {"ranks": each} if each else {}
    return {
        **describe(trainer),
        **progress,
        **replay,
        **env_state,
        **env_state_reason,
        **loop,
        **ranks,
    }


def _make_members(state: LearnerState) -> dict[str, Arrays]:
    """The arrays of a checkpoint; what ranks but the first have of their own beside the others."""
    members = {name: getattr(state, name) or {} for name in MEMBERS}
    for k, rank_state in enumerate(state.ranks[1:], 1):
        members |= {f"rank{k}_{name}": getattr(rank_state, name) or {} for name in _EACH}
    return members


def save_checkpoint(trainer: "Trainer", path: str | os.PathLike[str], replay: bool) -> None:
    """Writes the checkpoint of a trainer; see `Trainer.save`.

    Metrics until there are written before, so that who goes on from it misses none.
    """
    try:
        if trainer.run is not None:
            with suppress(OSError):  # they go on waiting
                trainer.run.flush()
        state = trainer.learner.state(replay)
        write_checkpoint(path, make_manifest(trainer, state), _make_members(state))
    except MemoryError as error:
        buffer = getattr(trainer.learner, "replay", None)
        # Without a buffer to speak of, it is something else that does not fit, and says so.
        if not replay or not buffer:
            raise
        raise OutOfMemoryError(
            "buffer_size",
            "a replay buffer of which a copy fits into memory beside it",
            f"{trainer.config.buffer_size:,}, with {len(buffer):,} transitions",
            "make it smaller, or save with replay=False",
        ) from error


def resume_in(trainer: "Trainer", folder: str | os.PathLike[str]) -> None:
    """Has a loaded trainer go on in the run folder that it comes from.

    Rows of `metrics.csv` and `metrics.jsonl` beyond its steps, which it makes again, are left out,
    and `config.json` is written anew, as the environment or the backend may have changed.

    Args:
        trainer: What `Trainer.load` gave.
        folder: The run folder.

    Raises:
        OSError, ValueError: `metrics.csv` is no table of metrics, or one of them cannot be written.
        BlockingIOError: Another process trains in the folder now.
        FileExistsError: The folder has a newer checkpoint.
    """
    path = Path(folder)
    check_no_newer(path, trainer.timesteps)
    with RunFolder(path).lock():
        remove_rows_after(path / "metrics.csv", trainer.timesteps)
        remove_lines_after(path / "metrics.jsonl", trainer.timesteps)
        RunFolder(path).write("config.json", describe(trainer))
    trainer.run = RunFolder(path)


def end_run(trainer: "Trainer", result: "TrainResult") -> None:
    """Writes what a run leaves behind: its checkpoint, its summary, its curve.

    Where there is no room for the replay buffer, the checkpoint is all but that.

    Args:
        trainer: At the end of a call of `train`, with a run folder.
        result: What the call gives back; `checkpoint_warning` says why the buffer is missing.

    Raises:
        OSError, MemoryError: Not even the weights can be written; the summary is, if it can be.

    Warns:
        UserWarning: The replay buffer was left out.
    """
    run: Any = trainer.run
    result["checkpoint_warning"] = "all: no checkpoint could be written"
    try:
        result["checkpoint_warning"] = _save_what_fits(trainer, run.path / "checkpoint")
    finally:
        run.write("summary.json", result)
    run.plot(f"{trainer.spec.name} {trainer.env_name}, seed {trainer.seed}")
    if result["checkpoint_warning"] is not None:
        warn(
            f"{result['checkpoint_warning']}. The run's checkpoint has all but the replay buffer; "
            "while this trainer exists, save(path) can write a checkpoint with the buffer elsewhere"
        )


def _save_what_fits(trainer: "Trainer", path: os.PathLike[str]) -> str | None:
    """Writes a checkpoint, without the replay buffer if that does not fit; why it is left out."""
    try:
        trainer.save(path)
        return None
    except (MemoryError, OSError) as error:
        full = isinstance(error, MemoryError) or error.errno in _FULL
        if not full or not hasattr(trainer.learner, "replay"):
            raise
        why = f"replay: {error}"
    # By now the error is forgotten, and with it the copy that did not fit.
    trainer.save(path, replay=False)
    return why


def _make_learner_state(saved: Mapping[str, Any], members: Mapping[str, Arrays]) -> LearnerState:
    """The learner's state that a checkpoint holds, by its checked manifest and its arrays."""
    arrays: dict[str, Any] = {name: members.get(name, {}) for name in MEMBERS}
    if not saved.get("replay", True):
        arrays["replay"] = None
    state = LearnerState(**arrays, counters=saved["counters"], streams=saved["streams"])
    for k, rank_manifest in enumerate(saved.get("ranks", ())):
        rank_arrays = {n: members.get(f"rank{k}_{n}" if k else n, {}) for n in _EACH}
        replay = None if state.replay is None else rank_arrays["replay"]
        counters_and_streams = rank_manifest["counters"], rank_manifest["streams"]
        state.ranks.append(
            LearnerState({}, {}, {}, rank_arrays["environment"], *counters_and_streams, replay)
        )
    return state


def restore_trainer(
    trainer: "Trainer",
    path: str | os.PathLike[str],
    saved: Mapping[str, Any],
    members: Mapping[str, Arrays],
    *,
    same: bool,
) -> None:
    """Makes of a new trainer the one that was saved.

    Args:
        trainer: With the saved settings.
        path: Of the checkpoint, for messages.
        saved: Its checked manifest.
        members: Its arrays.
        same: Whether backend and policy are those of the saved one: then all that is in order fits.

    Raises:
        rlox.CorruptFileError: It is damaged; the file and the section are named.
        ValueError: It does not fit environment, policy or backend.
    """
    for kind, saved_space in zip(("observation", "action"), saved_spaces(saved), strict=True):
        space = getattr(trainer.env, f"single_{kind}_space")
        if _spaces.to_json(space) != saved["spaces"][kind]:
            raise ArgumentError(
                "env", f"{kind} space {saved_space}", str(space), "pass the same env"
            )
    state = _make_learner_state(saved, members)
    callback_states = read_callback_states(saved)
    if callback_states is None:
        raise corrupt(Path(path) / MANIFEST, CALLBACKS_KEY, repr(saved[CALLBACKS_KEY]))
    ranks = getattr(trainer.learner, "world_size", 1)
    fix = "load it by rlox.distributed.ddp under torchrun, or predict with rlox.load"
    check_saved_value("world size", max(len(state.ranks), 1), ranks, fix)
    manifest = {"iterations": 0, **saved}
    check_keys(Path(path) / MANIFEST, "manifest", manifest, {"iterations": (int,)})
    try:
        trainer.learner.load_state(state)
    except ValueError as error:
        raise add_file(error, path, CorruptFileError if same else ArgumentError) from error
    trainer.config_sources = saved["sources"]
    trainer.start_timesteps, trainer.target_timesteps = (
        saved["run"]["start"],
        saved["run"]["target"],
    )
    trainer.callback_states, trainer.iterations = callback_states, manifest["iterations"]
    trainer.restore_warnings = [_NO_REPLAY] if state.replay is None else []
    if (why := _explain_new_episodes(trainer, saved, state)) is not None:
        trainer.restore_warnings.append(
            f"environment: expected environments that go on where they stood, got others: {why}; "
            "training goes on with new episodes"
        )


_NO_REPLAY = (
    "replay: expected what was remembered, got a checkpoint saved with replay=False; training goes "
    "on with an empty replay buffer, from small minibatches at first; save with it to go on exactly"
)


def _explain_new_episodes(
    trainer: "Trainer", saved: Mapping[str, Any], state: LearnerState
) -> str | None:
    """Why environments do not stand where they stood; None if they do, or never began."""
    learner: Any = trainer.learner
    had_episodes = state.environment or saved.get("environment") == "approximate"
    if getattr(learner, "env_initialized", True) or not (had_episodes or learner.timesteps):
        return None
    unknown_reason = "the checkpoint does not tell where they stood"
    reason = (
        getattr(trainer.env, "unrestorable_reason", None)
        or "they are of another kind than those saved"
    )
    return str(reason if state.environment else saved.get("environment_reason", unknown_reason))


def emit_restore_warnings(trainer: "Trainer") -> None:
    """Tells once who trains on without all that was remembered."""
    messages, trainer.restore_warnings = trainer.restore_warnings, []
    for message in messages:
        warn(message)


_MANIFEST_TYPES: dict[str, tuple[type, ...]] = {
    "algorithm": (str,),
    "backend": (str,),
    "env": (str, type(None)),
    "env_kwargs": (dict,),
    "custom_policy": (bool,),
    "custom_features": (bool,),
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
_OMITTED_SETTINGS = (
    *("ortho_init", "log_std_init", "full_std", "compile", "device", "her", "n_sampled_goal"),
    "frame_stack",
    *("gradient_steps", "priority_alpha", "priority_beta", "target_entropy"),
    *("async_collect", "num_actors", "actors", "max_staleness", "deterministic"),
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
        "algorithm": trainer.spec.name,
        "backend": trainer.learner.backend,
        "env": trainer.env_id,
        "env_kwargs": trainer.env_kwargs,
        "custom_policy": trainer.has_custom_policy,
        "custom_features": trainer.has_custom_features,
        "seed": trainer.seed,
        "settings": config_to_dict(trainer.config),
        "sources": trainer.config_sources,
        "spaces": {
            "observation": _spaces.to_json(trainer.env.single_observation_space),
            "action": _spaces.to_json(trainer.env.single_action_space),
        },
        "versions": versions(),
    }


def config_to_dict(config: Any) -> dict[str, Any]:
    """Settings as files have them, and trainers in Rust know them."""
    noise = config.action_noise
    return asdict(config) | ({} if noise is None else {"action_noise": noise_to_dict(noise)})


def trainer_manifest(
    path: Path, manifest: dict[str, Any], algorithm: str, config_type: type[Any]
) -> dict[str, Any]:
    """A manifest with all that a trainer of this algorithm needs, be it of a trainer in Rust.

    Raises:
        rlox.CorruptFileError: It lacks something; the file and the section are named.
        ValueError: It is another algorithm's, or of a trainer in Rust that cannot be made here.
    """
    file = path / MANIFEST
    if not {"sources", "custom_policy", "custom_features"} & {*manifest}:
        check_saved_value(
            "algorithm", manifest.get("algorithm"), algorithm, "load it with that trainer"
        )
        manifest = _complete_rust_manifest(file, manifest, config_type)
    _check_manifest(file, manifest, algorithm, config_type)
    return manifest


def _complete_rust_manifest(
    file: Path, manifest: dict[str, Any], config_type: type[Any]
) -> dict[str, Any]:
    """The manifest of a trainer in Rust, with what only trainers in Python have."""
    check_keys(file, "manifest", manifest, {"settings": (dict,)})
    saved, defaults = manifest["settings"], {f.name: f.default for f in fields(config_type)}
    policy_settings = {*_POLICY} & {*defaults}
    # Only on-policy methods add more to roots than torch does.
    fixed = _FIXED if "gae_lambda" in defaults else _FIXED | {"optimizer_eps": 1e-8}
    if missing := sorted(policy_settings - {*saved}):
        fix = (
            "make a trainer with the same networks, and give trainer.learner.load_state what "
            "rlox.checkpoint.read_checkpoint reads; where trainers here cannot have them, go on "
            "with it in Rust"
        )
        # What tells the rest leaves this out only where policy and values differ in it.
        if "net_arch" in missing and (policy_settings - {"use_sde"}) & {*saved}:
            fix = "go on with it in Rust, as policy and values have the same hidden layers here"
        raise ArgumentError(
            str(file),
            "a checkpoint that says how to make its policy",
            f"one of a trainer in Rust without {', '.join(missing)}",
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
    known_settings = {name: x for name, x in saved.items() if name in defaults}
    settings = {
        name: defaults[name] for name in _OMITTED_SETTINGS if name in defaults
    } | known_settings
    python_fields = {"custom_policy": False, "custom_features": False, "env_kwargs": {}}
    config_sources = {
        name: "checkpoint" if name in known_settings else "default" for name in settings
    }
    return {**python_fields, **manifest, "settings": settings, "sources": config_sources}


def _check_manifest(
    file: Path, manifest: Mapping[str, Any], algorithm: str, config_type: type[Any]
) -> None:
    check_keys(file, "manifest", manifest, _MANIFEST_TYPES)
    check_saved_value("algorithm", manifest["algorithm"], algorithm, "load it with that trainer")
    if manifest["backend"] not in BACKENDS[1:]:
        raise corrupt(file, "manifest", f"{manifest['backend']!r} as 'backend'")
    if manifest["env"] is not None and ":" in manifest["env"]:
        raise corrupt(file, "manifest", f"{manifest['env']!r} as 'env': an id names no module")
    if "replay" in manifest:
        check_keys(file, "manifest", manifest, {"replay": (bool,)})
    if manifest.get("environment", "exact") not in ("exact", "approximate"):
        raise corrupt(file, "manifest", f"{manifest['environment']!r} as 'environment'")
    if "ranks" in manifest:  # of a run of several processes
        check_keys(file, "manifest", manifest, {"ranks": (list,)})
        for rank_manifest in manifest["ranks"]:
            check_keys(file, "ranks", rank_manifest, {"counters": (dict,), "streams": (dict,)})
    if manifest["seed"] < 0:
        raise corrupt(file, "manifest", f"{manifest['seed']} as 'seed'")
    check_keys(file, "spaces", manifest["spaces"], {"observation": (dict,), "action": (dict,)})
    try:
        saved_spaces(manifest)
    except ArgumentError as error:
        raise corrupt(file, "spaces", error.got) from error
    run = manifest["run"]
    check_keys(file, "run", run, {"start": (int,), "target": (int,)})
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
        raise add_file(add_section(error, "settings"), file, CorruptFileError) from error


def saved_spaces(manifest: Mapping[str, Any]) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return the observation space and the action space of a manifest."""
    saved = manifest["spaces"]
    return _spaces.from_json(saved["observation"]), _spaces.from_json(saved["action"])


def check_saved_value(what: str, saved: object, wanted: object, fix: str) -> None:
    """A checkpoint is of what it is loaded into.

    Raises:
        ValueError: It is of something else.
    """
    if saved != wanted:
        raise ArgumentError("path", f"{what} {wanted}", f"a checkpoint of {saved}", fix)


class NoEnvironmentError(ArgumentError):
    """A checkpoint says no id, and no environment was passed."""


def check_required_objects(saved: Mapping[str, Any], **objects: object) -> None:
    """What a checkpoint cannot hold is given: `env`, `policy` and `features_extractor`, by name.

    Raises:
        ValueError: One is needed and it is not given.
    """
    needed = {
        "env": saved["env"] is None,
        "policy": saved["custom_policy"],
        "features_extractor": saved["custom_features"],
    }
    for what, thing in objects.items():
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
    if device is not None and check_str("device", device) != "cpu" and backend != "torch":
        raise ArgumentError(
            "device",
            f"'cpu' on the {backend} backend",
            repr(device),
            'leave it out, or pass backend="torch"',
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
    settings, algorithm = saved["settings"], saved["algorithm"]
    if "actors" not in settings:
        none = f"{algorithm} has no such setting"
    elif not settings.get("async_collect", True):
        none = "async_collect is False"
    elif (
        settings["deterministic"] and settings["max_staleness"] == 0 and settings["num_actors"] == 1
    ):
        none = "actor and learner take turns (deterministic=True, max_staleness=0, num_actors=1)"
    else:
        return
    raise ArgumentError(
        "actors",
        "a checkpoint of a run with actors",
        f"one in which {none}, and {actors!r}",
        "leave it out",
    )
