"""What a trainer's checkpoint holds, and how a trainer becomes the one that was saved."""

import os
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlox._rlox import CorruptFileError
from rlox.learner import MEMBERS, Arrays, LearnerState
from rlox.manifest import describe, expect_saved

if TYPE_CHECKING:
    from rlox.trainer import Trainer


def manifest_of(trainer: "Trainer", state: LearnerState) -> dict[str, Any]:
    """The manifest of a checkpoint, beside which `state` has the arrays.

    `replay` is in it, and False, where the replay buffer is left out.
    """
    run = {"start": trainer.start_timesteps, "target": trainer.target_timesteps}
    said = {"run": run, "counters": state.counters, "streams": state.streams}
    left_out = {"replay": False} if state.replay is None else {}
    return {**describe(trainer), **said, **left_out}


def _state_of(saved: Mapping[str, Any], members: Mapping[str, Arrays]) -> LearnerState:
    """The learner's state that a checkpoint holds, by its checked manifest and its arrays."""
    arrays: dict[str, Any] = {name: members.get(name, {}) for name in MEMBERS}
    if not saved.get("replay", True):
        arrays["replay"] = None
    return LearnerState(**arrays, counters=saved["counters"], streams=saved["streams"])


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
    about = describe(trainer)
    for kind, space in about["spaces"].items():
        expect_saved(f"{kind} space", saved["spaces"][kind], space, "pass the same env")
    state = _state_of(saved, members)
    try:
        trainer.learner.load_state(state)
    except ValueError as error:
        kind_of = CorruptFileError if same else ValueError
        raise kind_of(f"{path}, section {error}") from error
    trainer.sources = saved["sources"]
    trainer.start_timesteps, trainer.target_timesteps = (
        saved["run"]["start"],
        saved["run"]["target"],
    )
    trainer.forgot = state.replay is None


def warn_forgotten() -> None:
    """Tells who trains on without what was remembered."""
    warnings.warn(
        "replay: expected what was remembered, got a checkpoint saved with replay=False; training "
        "goes on with an empty replay buffer, from small minibatches at first; save with it to go "
        "on exactly",
        stacklevel=4,
    )
