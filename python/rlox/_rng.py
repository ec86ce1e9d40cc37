"""Random streams: seeds of several environments, a native PCG64 as NumPy's and back."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError
from rlox._validation import check_seed

Seed = int | Sequence[int | None] | None


def seed_each(seed: Seed, num_envs: int) -> Sequence[int | None] | None:
    """One seed for each environment: an int s stands for s, s + 1, ...; None for none at all.

    Raises:
        ValueError: A seed below 0; in Gymnasium's words, for a sequence of another length.
        TypeError: Neither an integer nor a sequence of integers.

    >>> list(seed_each(5, num_envs=3))
    [5, 6, 7]
    """
    if seed is None:
        return None
    listed = isinstance(seed, Sequence | np.ndarray) and not isinstance(seed, str | bytes)
    if listed and getattr(seed, "shape", None) != ():
        return _check_seeds(seed, num_envs)
    fix = "pass an integer, one for each environment, or None"
    first = check_seed(seed, fix=fix)
    return range(first, first + num_envs)


def _check_seeds(seed: Any, num_envs: int) -> list[int | None]:
    if len(seed) != num_envs:
        fix = "pass an integer, one for each environment, or None"
        raise ArgumentError("seed", f"one for each of {num_envs} environments", str(len(seed)), fix)
    return [None if one is None else check_seed(one) for one in seed]


def state_for_numpy(state: npt.NDArray[np.int64]) -> dict[str, Any]:
    """A native stream, its (6,) words, as the `state` of NumPy's PCG64."""
    high, low, inc_high, inc_low, has_uint32, uinteger = state.view(np.uint64).tolist()
    return {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }


def state_for_native(generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Where a NumPy generator stands, as the words of a native stream, (6,).

    Raises:
        ValueError: The generator is not a PCG64.

    >>> rng = np.random.default_rng(0)
    >>> state_for_numpy(state_for_native(rng)) == rng.bit_generator.state
    True
    """
    state: dict[str, Any] = dict(generator.bit_generator.state)
    if state["bit_generator"] != "PCG64":
        raise ArgumentError(
            "np_random",
            "a generator over PCG64",
            str(state["bit_generator"]),
            "use numpy.random.default_rng",
        )
    halves = [half for key in ("state", "inc") for half in divmod(state["state"][key], 2**64)]
    values = [*halves, state["has_uint32"], state["uinteger"]]
    return np.array(values, np.uint64).view(np.int64)


def to_numpy(state: npt.NDArray[np.int64]) -> np.random.Generator:
    """A NumPy generator that goes on where the native stream of these (6,) words stands."""
    bits = np.random.PCG64(0)
    bits.state = state_for_numpy(state)  # type: ignore[assignment]  # NumPy's TypedDict is private
    return np.random.Generator(bits)


class SeedTracker:
    """The seeds that the streams of some environments were last given.

    Args:
        seed: As for `seed_each`.
        num_envs: How many environments.

    >>> seeds = SeedTracker(0, num_envs=3)
    >>> seeds.record([7, None, 9], np.array([True, True, False]))
    >>> seeds.seeds
    (7, 1, 2)
    """

    def __init__(self, seed: Seed, num_envs: int) -> None:
        self.last: int | list[int | None] | None = None
        self._seeds: Sequence[int | None] = [None] * num_envs
        self._action_stream: np.random.Generator | None = None
        self.record(seed)

    def record(self, seed: Seed, mask: npt.NDArray[np.bool_] | None = None) -> None:
        """Notes a reset of all, or where `mask` is true; None lets the streams go on."""
        seeds = seed_each(seed, len(self._seeds))
        if seeds is None:
            return
        # A list is the caller's own, and may change.
        self.last = seeds.start if isinstance(seeds, range) else list(seeds)
        self._action_stream = None
        if mask is None and isinstance(seeds, range):
            self._seeds = seeds
            return
        selected_envs = [True] * len(seeds) if mask is None else mask.tolist()
        rows = zip(seeds, selected_envs, self._seeds, strict=True)
        self._seeds = [
            old if new is None or not is_selected else new for new, is_selected, old in rows
        ]

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """The seed that each environment was last given, None where it never was given one."""
        return tuple(self._seeds)

    @property
    def action_stream(self) -> np.random.Generator:
        """The stream that uniformly random actions come from; the last seed given decides it."""
        if self._action_stream is None:
            known: int | list[int] | None
            if isinstance(self.last, list):
                known = [s for s in self.last if s is not None] or None
            else:
                known = self.last
            # The spawn key keeps this stream apart from those of the environments, which have none.
            self._action_stream = np.random.default_rng(
                np.random.SeedSequence(known, spawn_key=(0,))
            )
        return self._action_stream


Stream = np.random.Generator


def stream_state(stream: np.random.Generator) -> dict[str, Any]:
    """Where a NumPy stream stands. Its 128-bit numbers become strings, as not every JSON has them.

    >>> stream = np.random.default_rng(0)
    >>> state = stream_state(stream)
    >>> int(stream.integers(100)) == int(stream_from_state(state).integers(100))
    True
    """
    state: dict[str, Any] = dict(stream.bit_generator.state)
    return {**state, "state": {key: str(value) for key, value in state["state"].items()}}


def stream_from_state(state: Mapping[str, Any]) -> np.random.Generator:
    """A NumPy stream that goes on where `stream_state` was called.

    Raises:
        ValueError: `state` is nothing that it gave.
    """
    bits = np.random.PCG64(0)
    try:
        numbers = {key: int(value) for key, value in state["state"].items()}
        bits.state = dict(state, state=numbers)  # type: ignore[assignment]  # NumPy checks it
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise _damaged("streams", "a PCG64's state", state) from error
    return np.random.Generator(bits)


def streams_from_states(states: Mapping[str, Any], names: Iterable[str]) -> dict[str, Stream]:
    """The streams of these names.

    Raises:
        ValueError: Others are there, or one is missing or damaged.
    """
    if {*states} != {*names}:
        raise _damaged("streams", f"those of {', '.join(names)}", [*states])
    return {name: stream_from_state(state) for name, state in states.items()}


def _damaged(part: str, expected: str, got: object) -> ArgumentError:
    text = repr(got)
    text = text if len(text) <= 200 else f"{text[:200]}..."
    return ArgumentError(part, expected, text, "use what `state` gave")
