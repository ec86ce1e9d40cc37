"""What a trainer's checkpoint holds, and how a trainer becomes the one that was saved."""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlox import spaces
from rlox._errors import ArgumentError, CorruptFileError, OutOfMemoryError, in_file
from rlox.callbacks.states import KEY, saved_states, states_of
from rlox.checkpoint import MANIFEST, corrupt, expect_keys, write_checkpoint
from rlox.learner import MEMBERS, Arrays, LearnerState
from rlox.logger import RunFolder
from rlox.manifest import describe, expect_saved, saved_spaces
from rlox.metrics import forget_after, forget_lines_after
from rlox.rotation import check_no_newer
from rlox.warning import warn

if TYPE_CHECKING:
    from rlox.results import TrainResult
    from rlox.trainer import Trainer

# What the system says where there is no room on a disk, or none for the process.
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
# Members that each rank of a run of several processes has of its own.
_EACH = ("environment", "replay")


def manifest_of(trainer: "Trainer", state: LearnerState) -> dict[str, Any]:
    """The manifest of a checkpoint, beside which `state` has the arrays.

    `replay` is in it, and False, where the replay buffer is left out, or was before. `environment`
    is "exact" or "approximate", which `environment_reason` explains: environments then start new
    episodes.
    """
    run = {"start": trainer.start_timesteps, "target": trainer.target_timesteps}
    said = {"run": run, "counters": state.counters, "streams": state.streams}
    gone = state.replay is None or _NO_REPLAY in trainer.forgot
    left_out: dict[str, Any] = {"replay": False} if gone else {}
    exact = {"environment": "exact" if state.inexact is None else "approximate"}
    why = {} if state.inexact is None else {"environment_reason": state.inexact}
    known = [*states_of(trainer.callbacks), *trainer.remembered]
    loop = {"iterations": trainer.iterations, KEY: known}
    each = [{"counters": one.counters, "streams": one.streams} for one in state.ranks]
    ranks = {"ranks": each} if each else {}
    return {**describe(trainer), **said, **left_out, **exact, **why, **loop, **ranks}


def _members_of(state: LearnerState) -> dict[str, Arrays]:
    """The arrays of a checkpoint; what ranks but the first have of their own beside the others."""
    members = {name: getattr(state, name) or {} for name in MEMBERS}
    for k, own in enumerate(state.ranks[1:], 1):
        members |= {f"rank{k}_{name}": getattr(own, name) or {} for name in _EACH}
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
        write_checkpoint(path, manifest_of(trainer, state), _members_of(state))
    except MemoryError as error:
        held = getattr(trainer.learner, "replay", None)
        # Without a buffer to speak of, it is something else that does not fit, and says so.
        if not replay or not held:
            raise
        raise OutOfMemoryError(
            "buffer_size",
            "a replay buffer of which a copy fits into memory beside it",
            f"{trainer.config.buffer_size:,}, with {len(held):,} transitions",
            "make it smaller, or save with replay=False",
        ) from error


def go_on_in(trainer: "Trainer", folder: str | os.PathLike[str]) -> None:
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
    with RunFolder(path).held():
        forget_after(path / "metrics.csv", trainer.timesteps)
        forget_lines_after(path / "metrics.jsonl", trainer.timesteps)
        RunFolder(path).write("config.json", describe(trainer))
    trainer.run = RunFolder(path)


def end_run(trainer: "Trainer", result: "TrainResult") -> None:
    """Writes what a run leaves behind: its checkpoint, its summary, its curve.

    Where there is no room for the replay buffer, the checkpoint is all but that.

    Args:
        trainer: At the end of a call of `train`, with a run folder.
        result: What the call gives back; `left_out` says why the buffer is missing.

    Raises:
        OSError, MemoryError: Not even the weights can be written; the summary is, if it can be.

    Warns:
        UserWarning: The replay buffer was left out.
    """
    run: Any = trainer.run
    result["left_out"] = "all: no checkpoint could be written"
    try:
        result["left_out"] = _save_what_fits(trainer, run.path / "checkpoint")
    finally:
        run.write("summary.json", result)
    run.plot(f"{trainer.algorithm} {trainer.env_name}, seed {trainer.seed}")
    if result["left_out"] is not None:
        warn(
            f"{result['left_out']}. The run's checkpoint has all but the replay buffer; while this "
            "trainer is there, save() writes one with it where there is room"
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


def _state_of(saved: Mapping[str, Any], members: Mapping[str, Arrays]) -> LearnerState:
    """The learner's state that a checkpoint holds, by its checked manifest and its arrays."""
    arrays: dict[str, Any] = {name: members.get(name, {}) for name in MEMBERS}
    if not saved.get("replay", True):
        arrays["replay"] = None
    state = LearnerState(**arrays, counters=saved["counters"], streams=saved["streams"])
    for k, told in enumerate(saved.get("ranks", ())):
        own = {n: members.get(f"rank{k}_{n}" if k else n, {}) for n in _EACH}
        replay = None if state.replay is None else own["replay"]
        about = told["counters"], told["streams"]
        state.ranks.append(LearnerState({}, {}, {}, own["environment"], *about, replay))
    return state


def restore(
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
    for kind, was in zip(("observation", "action"), saved_spaces(saved), strict=True):
        space = getattr(trainer.env, f"single_{kind}_space")
        if spaces.to_json(space) != saved["spaces"][kind]:
            raise ArgumentError("env", f"{kind} space {was}", str(space), "pass the same env")
    state = _state_of(saved, members)
    remembered = saved_states(saved)
    if remembered is None:
        raise corrupt(Path(path) / MANIFEST, KEY, repr(saved[KEY]))
    ranks = getattr(trainer.learner, "world_size", 1)
    fix = "load it by rlox.distributed.ddp under torchrun, or predict with rlox.load"
    expect_saved("world size", max(len(state.ranks), 1), ranks, fix)
    counted = {"iterations": 0, **saved}
    expect_keys(Path(path) / MANIFEST, "manifest", counted, {"iterations": (int,)})
    try:
        trainer.learner.load_state(state)
    except ValueError as error:
        raise in_file(error, path, CorruptFileError if same else ArgumentError) from error
    trainer.sources = saved["sources"]
    trainer.start_timesteps, trainer.target_timesteps = (
        saved["run"]["start"],
        saved["run"]["target"],
    )
    trainer.remembered, trainer.iterations = remembered, counted["iterations"]
    trainer.forgot = [_NO_REPLAY] if state.replay is None else []
    if (why := _new_episodes(trainer, saved, state)) is not None:
        trainer.forgot.append(
            f"environment: expected environments that go on where they stood, got others: {why}; "
            "training goes on with new episodes"
        )


_NO_REPLAY = (
    "replay: expected what was remembered, got a checkpoint saved with replay=False; training goes "
    "on with an empty replay buffer, from small minibatches at first; save with it to go on exactly"
)


def _new_episodes(trainer: "Trainer", saved: Mapping[str, Any], state: LearnerState) -> str | None:
    """Why environments do not stand where they stood; None if they do, or never began."""
    learner: Any = trainer.learner
    begun = state.environment or saved.get("environment") == "approximate"
    if getattr(learner, "started", True) or not (begun or learner.timesteps):
        return None
    unsaid = "the checkpoint does not tell where they stood"
    here = getattr(trainer.env, "inexact", None) or "they are of another kind than those saved"
    return str(here if state.environment else saved.get("environment_reason", unsaid))


def warn_forgotten(trainer: "Trainer") -> None:
    """Tells once who trains on without all that was remembered."""
    forgot, trainer.forgot = trainer.forgot, []
    for what in forgot:
        warn(what)
