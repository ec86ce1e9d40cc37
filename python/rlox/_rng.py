"""Random streams: seeds of several environments, and states of PCG64 generators."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError
from rlox._validation import check_seed, short_repr

Seed = int | Sequence[int | None] | None


def seed_each(seed: Seed, num_envs: int) -> Sequence[int | None] | None:
    """Return one seed per environment: s, s + 1, ... for an int s; None for None.

    Raises:
        ArgumentError: A seed is negative, or a sequence has another length than `num_envs`.
        ArgumentTypeError: `seed` is neither an integer, a sequence of integers and None, nor None.

    >>> list(seed_each(5, num_envs=3))
    [5, 6, 7]
    """
    if seed is None:
        return None
    fix = "pass an integer, one for each environment, or None"
    is_scalar = isinstance(seed, str | bytes) or getattr(seed, "shape", None) == ()
    if isinstance(seed, Sequence | np.ndarray) and not is_scalar:
        if len(seed) != num_envs:
            raise ArgumentError("seed", f"one seed for each of {num_envs} environments", f"{len(seed)} seeds", fix)
        return [None if item is None else check_seed(item) for item in seed]
    first = check_seed(seed, fix=fix)
    return range(first, first + num_envs)


def state_for_numpy(state: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Convert the state (6,) of a native stream to the `state` of NumPy's PCG64."""
    high, low, inc_high, inc_low, has_uint32, uinteger = state.view(np.uint64).tolist()
    return {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }


def state_for_native(generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Convert the state of a NumPy generator to the state (6,) of a native stream.

    Raises:
        ArgumentError: The bit generator is not a PCG64.

    >>> rng = np.random.default_rng(0)
    >>> state_for_numpy(state_for_native(rng)) == rng.bit_generator.state
    True
    """
    state: dict[str, Any] = dict(generator.bit_generator.state)
    if state["bit_generator"] != "PCG64":
        raise ArgumentError(
            "np_random", "a generator over PCG64", str(state["bit_generator"]), "use numpy.random.default_rng"
        )
    halves = [half for key in ("state", "inc") for half in divmod(state["state"][key], 2**64)]
    values = [*halves, state["has_uint32"], state["uinteger"]]
    return np.array(values, np.uint64).view(np.int64)


def to_numpy(state: npt.NDArray[np.int64]) -> np.random.Generator:
    """Return a NumPy generator that continues a native stream with this state (6,)."""
    bits = np.random.PCG64(0)
    bits.state = state_for_numpy(state)  # type: ignore[assignment]  # NumPy's TypedDict is private
    return np.random.Generator(bits)


class SeedTracker:
    """Record of the seeds that environments were last reset with.

    Args:
        seed: As for `seed_each`.
        num_envs: Number of environments.

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
        """Record the seeds of a reset of all environments, or of those in `mask`; None: no new seed."""
        seeds = seed_each(seed, len(self._seeds))
        if seeds is None:
            return
        # The caller may change the list later.
        self.last = seeds.start if isinstance(seeds, range) else list(seeds)
        self._action_stream = None
        if mask is None and isinstance(seeds, range):
            self._seeds = seeds
            return
        selected_envs = [True] * len(seeds) if mask is None else mask.tolist()
        rows = zip(seeds, selected_envs, self._seeds, strict=True)
        self._seeds = [old if new is None or not is_selected else new for new, is_selected, old in rows]

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """Last seed of each environment, or None for an environment without a seed."""
        return tuple(self._seeds)

    @property
    def action_stream(self) -> np.random.Generator:
        """Generator of uniformly random actions, seeded with the last seed."""
        if self._action_stream is None:
            known: int | list[int] | None
            known = [s for s in self.last if s is not None] or None if isinstance(self.last, list) else self.last
            # Environments use the seed without a spawn key, so this stream differs from theirs.
            self._action_stream = np.random.default_rng(np.random.SeedSequence(known, spawn_key=(0,)))
        return self._action_stream


Stream = np.random.Generator


def stream_state(stream: np.random.Generator) -> dict[str, Any]:
    """Return the state of a NumPy generator as JSON data, with 128-bit numbers as strings.

    >>> stream = np.random.default_rng(0)
    >>> state = stream_state(stream)
    >>> int(stream.integers(100)) == int(stream_from_state(state).integers(100))
    True
    """
    state: dict[str, Any] = dict(stream.bit_generator.state)
    return {**state, "state": {key: str(value) for key, value in state["state"].items()}}


def stream_from_state(state: Mapping[str, Any]) -> np.random.Generator:
    """Return a NumPy generator that continues from a result of `stream_state`.

    Raises:
        ArgumentError: `state` is not the state of a PCG64.
    """
    bits = np.random.PCG64(0)
    try:
        numbers = {key: int(value) for key, value in state["state"].items()}
        bits.state = dict(state, state=numbers)  # type: ignore[assignment]  # NumPy checks it
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise damaged_state_error("streams", "a PCG64 state", state) from error
    return np.random.Generator(bits)


def streams_from_states(states: Mapping[str, Any], names: Iterable[str]) -> dict[str, Stream]:
    """Return the generators with these names from their states.

    Raises:
        ArgumentError: The names differ from those in `states`, or a state is damaged.
    """
    if {*states} != {*names}:
        raise damaged_state_error("streams", f"the streams {', '.join(names)}", [*states])
    return {name: stream_from_state(state) for name, state in states.items()}


def damaged_state_error(part: str, expected: str, got: object) -> ArgumentError:
    return ArgumentError(part, expected, short_repr(got), "pass the value that `state` returned")
