"""States of callbacks as JSON values, for checkpoints."""

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Protocol

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._serialize import float_to_json

CallbackStates = list[dict[str, Any]]
CALLBACKS_KEY = "callbacks"


class HasState(Protocol):
    """Protocol of objects with a state, such as callbacks."""

    def state(self) -> dict[str, Any]:
        """Return the state."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""


def get_callback_states(callbacks: Iterable[HasState]) -> CallbackStates:
    """Return the non-empty states of callbacks, each with the name of its class.

    Raises:
        ArgumentTypeError: A state is not a dict of numbers and None by name.
    """
    saved = []
    for callback in callbacks:
        class_name = type(callback).__name__
        state: object = callback.state()
        if not isinstance(state, dict) or not all(
            isinstance(name, str) and isinstance(value, Real | None) for name, value in state.items()
        ):
            raise ArgumentTypeError(
                "callbacks",
                f"a dict of numbers and None from {class_name}.state()",
                repr(state),
                "return only numbers and None",
            )
        if state:
            saved.append({"name": class_name, "state": {name: _to_json(x) for name, x in state.items()}})
    return saved


def _to_json(value: Any) -> bool | int | float | str | None:
    """Return a Python or NumPy number as a JSON value."""
    if value is None or isinstance(value, bool):
        return value
    return int(value) if isinstance(value, Integral) else float_to_json(float(value))


def load_callback_states(callbacks: Iterable[HasState], saved: CallbackStates) -> CallbackStates:
    """Restore the states of callbacks; each gets the first remaining state of its class.

    Returns:
        The states without a callback.

    Raises:
        ArgumentError: A callback rejects its state.
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
                f"a state from {class_name}.state()",
                f"{state} ({error!r})",
                "pass a callback of the class that was saved",
            ) from error
    return remaining


def read_callback_states(manifest: Mapping[str, Any]) -> CallbackStates | None:
    """Return the callback states of a manifest; None if they are malformed."""
    saved = manifest.get(CALLBACKS_KEY, [])
    is_valid = isinstance(saved, list) and all(
        isinstance(entry, dict)
        and {*entry} == {"name", "state"}
        and isinstance(entry["name"], str)
        and isinstance(entry["state"], dict)
        and all(x in ("inf", "-inf", "nan") or isinstance(x, int | float | None) for x in entry["state"].values())
        for entry in saved
    )
    return saved if is_valid else None
