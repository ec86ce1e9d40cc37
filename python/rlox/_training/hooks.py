"""What callbacks remember, in a checkpoint's manifest and back."""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rlox._errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from rlox.trainers import Trainer


class Callback:
    """Derive from it and write the methods you need. `trainer.stop(reason)` ends the run.

    >>> class Best(Callback):
    ...     score = float("-inf")
    ...
    ...     def on_iteration(self, trainer, metrics):
    ...         self.score = max(self.score, metrics["rollout/ep_rew_mean"])
    """

    def on_train_start(self, trainer: "Trainer") -> None:
        """Before the first iteration, when loggers have started; `trainer.run` is there."""

    def on_iteration(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """After each iteration, with the row that goes to the loggers next.

        Numbers may be added to it, under names of their own; those that come now and then are a
        column like the others.
        """

    def on_row_logged(self, trainer: "Trainer", metrics: dict[str, float]) -> None:
        """After loggers have the row, which is complete: here what goes with it is saved."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """After the last iteration and what it leaves behind, also when an error ended the run.

        Callbacks that started are ended in the opposite order, each of them, whatever the others
        raise.
        """

    def state(self) -> dict[str, Any]:
        """What it remembers, numbers and None by name; checkpoints of the trainer have it.

        A run that is resumed with a callback of the same class then is the one that was not
        stopped.
        """
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on with what `state` gave, after `on_train_start`."""


CallbackStates = list[dict[str, Any]]
CALLBACKS_KEY = "callbacks"


def get_callback_states(callbacks: Iterable[Callback]) -> CallbackStates:
    """The states of callbacks that have any, with their classes' names, as JSON can hold them.

    Raises:
        TypeError: A state is no dict of numbers and None by name.
    """
    saved = []
    for callback in callbacks:
        class_name = type(callback).__name__
        state: Any = callback.state()
        if not isinstance(state, dict) or not all(map(_is_entry, state.items())):
            raise ArgumentTypeError(
                "callbacks",
                f"a dict of numbers and None from {class_name}.state()",
                repr(state),
                "keep the rest elsewhere",
            )
        if state:
            values = {name: _encode_value(value) for name, value in state.items()}
            saved.append({"name": class_name, "state": values})
    return saved


def load_callback_states(callbacks: Iterable[Callback], saved: CallbackStates) -> CallbackStates:
    """Gives callbacks what those of their class, in their order, remembered.

    Returns:
        What nobody took.

    Raises:
        ValueError: A callback cannot go on with it.
    """
    remaining = list(saved)
    for callback in callbacks:
        class_name = type(callback).__name__
        entry = next((item for item in remaining if item["name"] == class_name), None)
        if entry is None:
            continue
        remaining.remove(entry)
        state = {name: float(x) if isinstance(x, str) else x for name, x in entry["state"].items()}
        try:
            callback.load_state(state)
        except (LookupError, TypeError, ValueError) as error:
            raise ArgumentError(
                "callbacks",
                f"what {class_name}.state() gives",
                f"{state} ({error!r})",
                "pass a callback of the class that was saved",
            ) from error
    return remaining


def read_callback_states(manifest: Mapping[str, Any]) -> CallbackStates | None:
    """What `get_callback_states` gave, from a manifest; None where it is something else."""
    saved = manifest.get(CALLBACKS_KEY, [])
    is_valid = isinstance(saved, list) and all(
        isinstance(entry, dict)
        and {*entry} == {"name", "state"}
        and isinstance(entry["name"], str)
        and isinstance(entry["state"], dict)
        and all(_is_encoded_value(x) for x in entry["state"].values())
        for entry in saved
    )
    return saved if is_valid else None


def _is_entry(entry: tuple[Any, Any]) -> bool:
    name, value = entry
    return isinstance(name, str) and (value is None or isinstance(value, bool | int | float))


def _encode_value(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _is_encoded_value(value: Any) -> bool:
    return value in ("inf", "-inf", "nan") or value is None or isinstance(value, bool | int | float)
