"""Conversion of replay buffers to and from Arrow tables, and from Minari datasets.

Arrow tables need pyarrow (``pip install 'rlox[arrow]'``), Minari datasets need minari (``pip
install 'rlox[minari]'``).
"""

import json
import math
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._optional import load_extra
from rlox._rlox import ReplayBuffer
from rlox._system import check_memory
from rlox._types import BUFFER_DTYPES, Arrays
from rlox._validation import check_int

__all__ = ["from_arrow", "from_minari", "to_arrow"]

_DTYPES = tuple(BUFFER_DTYPES.values())
_COMMON = ("actions", "rewards", "terminated", "truncated")
_KEY = b"rlox"


def to_arrow(buffer: ReplayBuffer) -> Any:
    """Convert the stored transitions to a `pyarrow.Table`, in the order of pushing.

    Args:
        buffer: Replay buffer in memory. Priorities are not converted. A buffer with `frame_stack`
            stores each frame once, but the table has complete stacks of observations and next
            observations: with four frames, they need about eight times the memory.

    Returns:
        Table with one row per transition. The columns are those of `sample`, with "obs.key" and
        "next_obs.key" for Dict observations, and two more:

        - `env`: index of the environment
        - `continues`: True if the next row of the environment is the next step of the episode

        Arrays with one or more axes per row are fixed-size lists; the metadata of the column has
        their shape. Dtypes do not change.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
        ArgumentTypeError: `buffer` is not a buffer in memory; `rlox.MmapReplayBuffer` is not.
        OutOfMemoryError: Complete stacks do not fit into memory; the error has their size.
        ArgumentError: The buffer has an `extra` array named "env" or "continues".
    """
    pa = load_extra("pyarrow", "arrow", "to_arrow")
    if not isinstance(buffer, ReplayBuffer):
        raise ArgumentTypeError(
            "buffer",
            "a rlox.ReplayBuffer",
            type(buffer).__name__,
            "pass a rlox.ReplayBuffer; store a rlox.MmapReplayBuffer as its file",
        )
    columns, buffer_options = _read_transitions(buffer)
    fields, arrays = [], []
    for name, column in columns.items():
        values = pa.array(np.ravel(column))
        metadata = None
        if column.ndim > 1:
            values = pa.FixedSizeListArray.from_arrays(values, math.prod(column.shape[1:]))
            metadata = {"shape": json.dumps(column.shape[1:])}
        fields.append(pa.field(name, values.type, nullable=False, metadata=metadata))
        arrays.append(values)
    schema = pa.schema(fields, metadata={_KEY: json.dumps(buffer_options).encode()})
    return pa.Table.from_arrays(arrays, schema=schema)


def _read_transitions(buffer: ReplayBuffer) -> tuple[Arrays, dict[str, Any]]:
    """Return the columns of all complete transitions, and the options of the buffer."""
    state = buffer.state()
    frames = int(state["frame_stack"][0])
    n = int(state["num_envs"][0])
    separate_rows = state["next_is_stored"]
    rows = len(separate_rows)
    num_pending = n if rows and state["tails"][0] == 3 else 0  # rows without next observations
    parts = [name[5:] for name in state if name == "step.obs" or name.startswith("step.obs.")]
    columns: Arrays = {part: state[f"step.{part}"] for part in parts}
    if frames > 1:
        columns["obs"], columns["next_obs"] = _stack_frames(state, n, frames)
    else:
        for part in parts:
            following = np.concatenate([state[f"step.{part}"], state[f"next_row.{part}"]])[n:]
            following[separate_rows] = state[f"next.{part}"]
            columns[f"next_{part}"] = following[:rows]
    known_names = {f"step.{name}" for name in (*parts, *_COMMON)}
    extra = [name[5:] for name in state if name.startswith("step.") and name not in known_names]
    columns |= {name: state[f"step.{name}"] for name in (*_COMMON, *extra)}
    for name in ("env", "continues"):
        if name in columns:
            raise ArgumentError("buffer", f"no array named {name!r}", "such an array", "rename the array in `extra`")
    columns["env"] = np.arange(rows, dtype=np.int32) % np.int32(n)
    columns["continues"] = state["continues"]
    buffer_options = {"capacity": int(state["capacity"][0]), "num_envs": n, "extra": extra, "frame_stack": frames}
    return {name: column[: rows - num_pending] for name, column in columns.items()}, buffer_options


def _stack_frames(state: Arrays, n: int, frames: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return complete stacks of observations and next observations from stored frames."""
    newest, head = state["step.obs"], state["older_is_stored"]
    rows, num_frames, frame = len(state["next_is_stored"]), len(newest), newest.shape[1:]
    check_memory("buffer", f"stacks of {frames} frames", (num_frames + rows) * frames * newest[:1].nbytes)
    obs = np.zeros((num_frames, frames, *frame), newest.dtype)
    obs[:, -1] = newest
    older = state["older.obs"].reshape(-1, frames - 1, *frame)
    for i in reversed(range(frames - 1)):  # frame i of a step is frame i + 1 of the step before
        obs[n:, i] = obs[:-n, i + 1]
        obs[head, i] = older[:, i]
    obs = obs[num_frames - rows :]
    following = np.empty_like(obs)
    following[:, :-1] = obs[:, 1:]
    following[:, -1] = np.concatenate([newest[num_frames - rows :], state["next_row.obs"]])[n:]
    following[state["next_is_stored"]] = state["next.obs"].reshape(-1, frames, *frame)
    stacked_shape = (rows, frames * frame[0], *frame[1:])
    return obs.reshape(stacked_shape), following.reshape(stacked_shape)


def from_arrow(
    table: object,
    *,
    capacity: int | None = None,
    num_envs: int | None = None,
    frame_stack: int | None = None,
    n_step: int = 1,
    gamma: float = 0.99,
    seed: int | np.random.Generator | None = None,
) -> ReplayBuffer:
    """Create a replay buffer with the transitions of a `pyarrow.Table`.

    Two consecutive rows of an environment are steps of one episode under three conditions. The next
    observation of the first row equals the observation of the second. The first row does not end an
    episode. Its `continues` is not False.

    Args:
        table: Table from `to_arrow`, or another table with the columns obs, next_obs, actions,
            rewards, terminated and truncated. Further columns are stored as `extra`, except `env`
            and `continues`. Rows of several environments alternate: environment 0, 1, ... for each
            step.
        capacity: Capacity of the buffer in transitions; None is the capacity of the buffer that was
            converted to the table, or the number of rows for other tables.
        num_envs: Number of environments; None: that of the converted buffer, or 1 for other tables.
        frame_stack: Number of stacked frames per observation; None: that of the converted buffer,
            or 1 for other tables.
        n_step: As for `rlox.ReplayBuffer`.
        gamma: As for `rlox.ReplayBuffer`.
        seed: As for `rlox.ReplayBuffer`.

    Returns:
        The filled buffer.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
        ArgumentTypeError: `table` is not a `pyarrow.Table`.
        ArgumentError: A column is missing, has nulls or an unsupported type, or the rows are not in
            the order of steps and environments.
    """
    pa = load_extra("pyarrow", "arrow", "from_arrow")
    if not isinstance(table, pa.Table):
        raise ArgumentTypeError("table", "a pyarrow.Table", type(table).__name__, "pass pyarrow.table(...)")
    columns = {name: _read_column(pa, table, name) for name in table.column_names}
    buffer_options = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    n = buffer_options.get("num_envs", 1) if num_envs is None else num_envs
    n = check_int("num_envs", n, 1, fix="pass the number of environments")
    rows = table.num_rows
    env_index = columns.pop("env", np.arange(rows) % n)
    if rows % n or not np.array_equal(env_index, np.arange(rows) % n):
        raise ArgumentError(
            "table",
            f"alternating rows of the environments 0 to {n - 1}",
            "rows in another order",
            "sort the rows by time step and env, or pass num_envs",
        )
    continues = columns.pop("continues", None)
    if capacity is None:
        capacity = max(buffer_options.get("capacity", rows), 1)
    stacked = buffer_options.get("frame_stack", 1) if frame_stack is None else frame_stack
    options = {"n_step": n_step, "gamma": gamma, "seed": seed, "frame_stack": stacked}
    buffer = _make_buffer(columns, capacity, n, options)
    step = n if n > 1 else max(rows, 1)
    for first in range(0, rows, step):
        _push(buffer, columns, slice(first, first + step))
    if continues is not None:
        _split_rows(buffer, columns, continues != 0, n)
    return buffer


def _split_rows(buffer: ReplayBuffer, columns: Arrays, continues: npt.NDArray[np.bool_], num_envs: int) -> None:
    """Mark the rows whose `continues` is False as not followed by the next row."""
    is_separate = ~(continues | columns["terminated"] | columns["truncated"])
    if not is_separate[:-num_envs].any():  # the last step has no next rows
        return
    state = buffer.state()
    first = len(continues) - len(state["continues"])
    state["continues"] &= continues[first:]
    if first:  # `cut`: True where the oldest stored rows continue rows that were overwritten
        state["cut"] &= continues[first - num_envs : first]
    buffer.load_state(state)


def _read_column(pa: ModuleType, table: Any, name: str) -> npt.NDArray[Any]:
    """Return a column as an array (N, ...)."""
    column, field = table.column(name).combine_chunks(), table.schema.field(name)
    if column.null_count:
        got = f"{column.null_count} nulls"
        raise ArgumentError(f"table[{name!r}]", "no nulls", got, "fill or drop the nulls")
    shape: tuple[int, ...] = ()
    if pa.types.is_fixed_size_list(field.type):
        metadata = field.metadata or {}
        shape = tuple(json.loads(metadata.get(b"shape", json.dumps([field.type.list_size]))))
        column = column.flatten()
    array: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    wanted = (*_DTYPES, "int32") if name == "env" else _DTYPES
    if array.dtype.name not in wanted:
        raise ArgumentError(
            f"table[{name!r}]", f"{', '.join(_DTYPES)} or fixed-size lists of these", str(field.type), "cast the column"
        )
    return array.reshape(table.num_rows, *shape)


def _obs_keys(columns: Arrays) -> list[str]:
    """Return the keys of Dict observations; empty for other observations."""
    return [name[4:] for name in columns if name.startswith("obs.")]


def _make_buffer(columns: Arrays, capacity: int, num_envs: int, options: dict[str, Any]) -> ReplayBuffer:
    """Create an empty buffer for transitions in columns."""
    keys = _obs_keys(columns)
    obs = [f"obs.{key}" for key in keys] or ["obs"]
    required_names = [*obs, *(f"next_{name}" for name in obs), *_COMMON]
    for name in required_names:
        if name not in columns:
            hint = f"add or rename a column to {name!r}"
            raise ArgumentError("table", f"a column {name!r}", ", ".join(columns), hint)
    specs = {name: (column.shape[1:], column.dtype.name) for name, column in columns.items()}
    obs_shape, obs_dtype = specs[obs[0]]
    act_shape, act_dtype = specs["actions"]
    return ReplayBuffer(
        capacity,
        {key: specs[f"obs.{key}"] for key in keys} if keys else obs_shape,
        act_shape,
        num_envs=num_envs,
        obs_dtype="float32" if keys else obs_dtype,
        act_dtype=act_dtype,
        extra={name: spec for name, spec in specs.items() if name not in required_names} or None,
        **options,
    )


def _push(buffer: ReplayBuffer, columns: Arrays, rows: slice) -> None:
    """Push rows of the columns; rows of one environment are consecutive steps."""
    batch = {name: column[rows] for name, column in columns.items()}
    keys = _obs_keys(batch)
    obs, next_obs = (
        {key: batch.pop(f"{name}.{key}") for key in keys} if keys else batch.pop(name) for name in ("obs", "next_obs")
    )
    rest = [batch.pop(name) for name in _COMMON]
    buffer.push_batch(obs, next_obs, *rest, extra=batch or None, in_order=buffer.num_envs == 1)


def from_minari(
    dataset: object,
    *,
    capacity: int | None = None,
    n_step: int = 1,
    gamma: float = 0.99,
    seed: int | np.random.Generator | None = None,
) -> ReplayBuffer:
    """Create a replay buffer with the transitions of a Minari dataset, episode by episode.

    `terminated` and `truncated` are those of the dataset. The next observation of the last step of
    an episode is the final observation of the episode.

    Args:
        dataset: `minari.MinariDataset`, or the id of an installed dataset.
        capacity: Capacity of the buffer in transitions; None is the number of steps of the dataset.
        n_step: As for `rlox.ReplayBuffer`.
        gamma: As for `rlox.ReplayBuffer`.
        seed: As for `rlox.ReplayBuffer`.

    Returns:
        The filled buffer.

    Raises:
        ModuleNotFoundError: minari is not installed.
        ArgumentTypeError: `dataset` is neither a dataset nor an id, its observations are not arrays
            or dicts of arrays, or its actions are not arrays.
        ArgumentError: The dataset has no steps.
    """
    minari = load_extra("minari", "minari", "from_minari")
    if isinstance(dataset, str):
        dataset = minari.load_dataset(dataset)
    if not isinstance(dataset, minari.MinariDataset):
        fix = "pass the result of minari.load_dataset"
        raise ArgumentTypeError("dataset", "a minari.MinariDataset or an id", type(dataset).__name__, fix)
    buffer: ReplayBuffer | None = None
    for episode in dataset.iterate_episodes():
        columns: Arrays = {}
        observations = episode.observations
        parts = observations if isinstance(observations, dict) else {"": observations}
        for key, part in parts.items():
            array = _to_supported_dtype(f"observations {key}".strip(), part)
            name = f"obs.{key}" if key else "obs"
            columns[name], columns[f"next_{name}"] = array[:-1], array[1:]
        columns["actions"] = _to_supported_dtype("actions", episode.actions)
        columns["rewards"] = np.asarray(episode.rewards, np.float32)
        columns["terminated"] = np.asarray(episode.terminations, bool)
        columns["truncated"] = np.asarray(episode.truncations, bool)
        if buffer is None:
            size = int(dataset.total_steps) if capacity is None else capacity
            buffer = _make_buffer(columns, size, 1, {"n_step": n_step, "gamma": gamma, "seed": seed})
        _push(buffer, columns, slice(None))
    if buffer is None:
        raise ArgumentError("dataset", "steps", "none", "record steps first")
    return buffer


def _to_supported_dtype(name: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
    """Convert numbers to a dtype that buffers support."""
    if isinstance(value, dict | tuple | list):
        fix = "flatten the space with a Gymnasium wrapper before recording"
        raise ArgumentTypeError("dataset", f"one array of {name}", f"a {type(value).__name__}", fix)
    array = np.asarray(value)
    if array.dtype.name in _DTYPES:
        return array
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
