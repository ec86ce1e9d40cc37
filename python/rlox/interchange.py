"""Replay buffers from and to other programs: Arrow tables, and Minari's data sets.

Needs pyarrow (``pip install 'rlox[arrow]'``) or minari (``pip install 'rlox[minari]'``).
"""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._optional import load_extra
from rlox._rlox import ReplayBuffer
from rlox._system import check_memory

_DTYPES = ("float32", "float64", "int64", "uint8", "bool")
_FLAGS = ("terminated", "truncated")
_BESIDE = ("env", "continues")
_KEY = b"rlox"
Columns = dict[str, npt.NDArray[Any]]


def to_arrow(buffer: ReplayBuffer) -> Any:
    """All stored transitions as a `pyarrow.Table`, in the order of pushing.

    Args:
        buffer: Any `rlox.ReplayBuffer`; priorities are left out. Where it stacks frames, which it
            stores once, the table has whole stacks: of four frames eight times the memory, all at
            once.

    Returns:
        A row each, with the columns that `sample` has, "obs.key" and "next_obs.key" for Dict
        observations, and `env`, the environment's number, and `continues`, whether its next row is
        of the same episode. Vectors are fixed-size lists, as are arrays of more axes, whose shape
        is in the column's metadata; dtypes are kept.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
        TypeError: Something else than a buffer in memory, such as a `rlox.MmapReplayBuffer`.
        MemoryError: Whole stacks do not fit; the bytes they would take are named.
        ValueError: Something else is stored as "env" or "continues".
    """
    pa = load_extra("pyarrow", "arrow", "to_arrow")
    if not isinstance(buffer, ReplayBuffer):
        raise ArgumentTypeError(
            "buffer",
            "a rlox.ReplayBuffer",
            type(buffer).__name__,
            "pass one, and keep the file of a rlox.MmapReplayBuffer, which opens it again",
        )
    columns, buffer_options = _read_transitions(buffer)
    fields, arrays = [], []
    for name, column in columns.items():
        values = pa.array(np.ascontiguousarray(column).reshape(-1))
        metadata = None
        if column.ndim > 1:
            width = int(np.prod(column.shape[1:]))
            values = pa.FixedSizeListArray.from_arrays(values, width)
            metadata = {"shape": json.dumps(column.shape[1:])}
        fields.append(pa.field(name, values.type, nullable=False, metadata=metadata))
        arrays.append(values)
    schema = pa.schema(fields, metadata={_KEY: json.dumps(buffer_options).encode()})
    return pa.Table.from_arrays(arrays, schema=schema)


def _read_transitions(buffer: ReplayBuffer) -> tuple[Columns, dict[str, Any]]:
    """Every column of what can be sampled, and what the buffer was made with."""
    state = buffer.state()
    frames = int(state["frame_stack"][0])
    n, separate_rows = int(state["num_envs"][0]), state["next_aside"]
    rows = len(separate_rows)
    num_pending = n if rows and state["tails"][0] == 3 else 0  # the next observations are to come
    parts = [name[5:] for name in state if name == "step.obs" or name.startswith("step.obs.")]
    flags = {name: state[f"step.{name}"] for name in _FLAGS}
    columns: Columns = {part: state[f"step.{part}"] for part in parts}
    if frames > 1:
        columns["obs"], columns["next_obs"] = _stack_frames(state, n, frames)
    for part in parts if frames == 1 else ():
        following = np.concatenate([state[f"step.{part}"], state[f"ahead.{part}"]])[n:]
        following[separate_rows] = state[f"next.{part}"]
        columns[f"next_{part}"] = following[:rows]
    common_columns = {"actions": state["step.actions"], "rewards": state["step.rewards"], **flags}
    known_names = {f"step.{name}" for name in (*parts, *common_columns)}
    extra = [name[5:] for name in state if name.startswith("step.") and name not in known_names]
    columns |= common_columns | {name: state[f"step.{name}"] for name in extra}
    if wrong := sorted({*_BESIDE} & {*columns}):
        raise ArgumentError("buffer", f"no part {wrong[0]!r}", "one", "rename it")
    columns["env"] = np.arange(rows, dtype=np.int32) % np.int32(n)
    columns["continues"] = state["continues"]
    buffer_options = {"capacity": int(state["capacity"][0]), "num_envs": n, "extra": extra}
    if frames > 1:
        buffer_options["frame_stack"] = frames
    return {name: column[: rows - num_pending] for name, column in columns.items()}, buffer_options


def _stack_frames(state: Columns, n: int, frames: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Whole observations and next ones of a buffer that stores frames once."""
    newest, head = state["step.obs"], state["older_aside"]
    rows, num_frames, frame = len(state["next_aside"]), len(newest), newest.shape[1:]
    check_memory(
        "buffer", f"stacks of {frames} frames", (num_frames + rows) * frames * newest[:1].nbytes
    )
    obs = np.zeros((num_frames, frames, *frame), newest.dtype)
    obs[:, -1] = newest
    older = state["older.obs"].reshape(-1, frames - 1, *frame)
    for at in reversed(range(frames - 1)):  # a frame is the next newer one of the step before
        obs[n:, at] = obs[:-n, at + 1]
        obs[head, at] = older[:, at]
    obs = obs[num_frames - rows :]
    following = np.empty_like(obs)
    following[:, :-1] = obs[:, 1:]
    following[:, -1] = np.concatenate([newest[num_frames - rows :], state["ahead.obs"]])[n:]
    following[state["next_aside"]] = state["next.obs"].reshape(-1, frames, *frame)
    stacked_shape = (rows, frames * frame[0], *frame[1:])
    return obs.reshape(stacked_shape), following.reshape(stacked_shape)


def from_arrow(
    table: Any,
    *,
    capacity: int | None = None,
    num_envs: int | None = None,
    frame_stack: int | None = None,
    n_step: int = 1,
    gamma: float = 0.99,
    seed: int | np.random.Generator | None = None,
) -> ReplayBuffer:
    """A buffer with the transitions of a `pyarrow.Table`.

    Args:
        table: As `to_arrow` gives it. Of others, the columns obs, next_obs, actions, rewards,
            terminated and truncated are needed, and all further ones are stored beside them. Rows
            follow each other where observations fit and no episode ends, but not where a column
            `continues` says False.
        capacity: How many transitions it holds; None for as many as the buffer that the table is
            of, or else as there are rows.
        num_envs: How many environments' rows take turns; None for as many as that buffer had, or
            one, whose rows are steps in their order.
        frame_stack: How many frames observations stack; None for as many as in that buffer, or one.
        n_step, gamma, seed: As for `rlox.ReplayBuffer`.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
        TypeError: Something else than a table.
        ValueError: A column is missing, has nulls or another type, or rows are in another order.
    """
    pa = load_extra("pyarrow", "arrow", "from_arrow")
    if not isinstance(table, pa.Table):
        raise ArgumentTypeError(
            "table", "a pyarrow.Table", type(table).__name__, "pass pyarrow.table(...)"
        )
    columns = {name: _read_column(pa, table, name) for name in table.column_names}
    buffer_options = json.loads((table.schema.metadata or {}).get(_KEY, b"{}"))
    n = buffer_options.get("num_envs", 1) if num_envs is None else num_envs
    if not isinstance(n, int) or n < 1:
        raise ArgumentError("num_envs", "at least 1", repr(n), "pass how many there are")
    rows = table.num_rows
    env_index = columns.pop("env", np.arange(rows) % n)
    if rows % n or not np.array_equal(env_index, np.arange(rows) % n):
        raise ArgumentError(
            "table",
            f"rows of the environments 0 to {n - 1} in turns",
            "another order",
            "sort them by time step and env, or pass num_envs",
        )
    continues = columns.pop("continues", None)
    if capacity is None:
        capacity = max(buffer_options.get("capacity", rows), 1)
    stacked = buffer_options.get("frame_stack", 1) if frame_stack is None else frame_stack
    options = {"n_step": n_step, "gamma": gamma, "seed": seed, "frame_stack": stacked}
    buffer = _fill_buffer(columns, capacity, n, options)
    if continues is not None:
        _split_rows(buffer, columns, continues != 0, n)
    return buffer


def _split_rows(
    buffer: ReplayBuffer, columns: Columns, continues: npt.NDArray[np.bool_], num_envs: int
) -> None:
    """Parts rows that were taken to follow each other where they do not."""
    apart = ~(continues | columns["terminated"] | columns["truncated"])
    if not apart[:-num_envs].any():  # after the last ones nothing has followed yet
        return
    state = buffer.state()
    first = len(continues) - len(state["continues"])
    state["continues"] &= continues[first:]
    if first:  # of the oldest rows, whether they go on from some that are not kept
        state["cut"] &= continues[first - num_envs : first]
    buffer.load_state(state)


def _read_column(pa: Any, table: Any, name: str) -> npt.NDArray[Any]:
    """A column as an array (N, ...)."""
    column, field = table.column(name).combine_chunks(), table.schema.field(name)
    if column.null_count:
        raise ArgumentError(
            f"table[{name!r}]", "no nulls", str(column.null_count), "fill or drop them"
        )
    shape: tuple[int, ...] = ()
    if pa.types.is_fixed_size_list(field.type):
        metadata = field.metadata or {}
        shape = tuple(json.loads(metadata.get(b"shape", json.dumps([field.type.list_size]))))
        column = column.flatten()
    array: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    wanted = (*_DTYPES, "int32") if name == "env" else _DTYPES
    if array.dtype.name not in wanted:
        raise ArgumentError(
            f"table[{name!r}]",
            f"{', '.join(_DTYPES)} or fixed-size lists of them",
            str(field.type),
            "cast it",
        )
    return array.reshape(table.num_rows, *shape)


def _fill_buffer(
    columns: Columns, capacity: int, num_envs: int, options: dict[str, Any]
) -> ReplayBuffer:
    """A buffer with these transitions."""
    keys = [name[4:] for name in columns if name.startswith("obs.")]
    obs = [f"obs.{key}" for key in keys] or ["obs"]
    required_names = [*obs, *(f"next_{name}" for name in obs), "actions", "rewards", *_FLAGS]
    for name in required_names:
        if name not in columns:
            raise ArgumentError("table", f"a column {name!r}", ", ".join(columns), "rename one")
    extra = [name for name in columns if name not in required_names]

    def spec(name: str) -> tuple[tuple[int, ...], str]:
        return columns[name].shape[1:], columns[name].dtype.name

    single, act = spec(obs[0]), spec("actions")
    buffer = ReplayBuffer(
        capacity,
        {key: spec(f"obs.{key}") for key in keys} if keys else single[0],
        act[0],
        num_envs=num_envs,
        obs_dtype="float32" if keys else single[1],
        act_dtype=act[1],
        extra={name: spec(name) for name in extra} or None,
        **options,
    )
    rows = len(columns["rewards"])
    for first in range(0, rows, num_envs if num_envs > 1 else max(rows, 1)):
        at = slice(first, first + num_envs if num_envs > 1 else None)

        def observation(kind: str, at: slice = at) -> Any:
            if keys:
                return {key: columns[f"{kind}.{key}"][at] for key in keys}
            return columns[kind][at]

        buffer.push_batch(
            observation("obs"),
            observation("next_obs"),
            columns["actions"][at],
            columns["rewards"][at],
            columns["terminated"][at],
            columns["truncated"][at],
            extra={name: columns[name][at] for name in extra} if extra else None,
            in_order=num_envs == 1,
        )
    return buffer


def from_minari(
    dataset: Any,
    *,
    capacity: int | None = None,
    n_step: int = 1,
    gamma: float = 0.99,
    seed: int | np.random.Generator | None = None,
) -> ReplayBuffer:
    """A buffer with the transitions of a Minari data set, episode after episode.

    `terminated` and `truncated` are as they were recorded, and the next observation of an episode's
    last step is the one it ended with.

    Args:
        dataset: A `minari.MinariDataset`, or the id of one that is installed.
        capacity: How many transitions it holds; None for as many as there are.
        n_step, gamma, seed: As for `rlox.ReplayBuffer`.

    Raises:
        ModuleNotFoundError: minari is not installed.
        TypeError: Something else than a data set, or observations that are nested.
        ValueError: It has no steps.
    """
    minari = load_extra("minari", "minari", "from_minari")
    if isinstance(dataset, str):
        dataset = minari.load_dataset(dataset)
    if not isinstance(dataset, minari.MinariDataset):
        raise ArgumentTypeError(
            "dataset",
            "a minari.MinariDataset or an id",
            type(dataset).__name__,
            "pass what minari.load_dataset gives",
        )
    if not dataset.total_steps:
        raise ArgumentError("dataset", "steps", "none", "record some first")
    buffer: ReplayBuffer | None = None
    for episode in dataset.iterate_episodes():
        columns: Columns = {}
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
            options = {"n_step": n_step, "gamma": gamma, "seed": seed}
            empty = {name: column[:0] for name, column in columns.items()}
            size = int(dataset.total_steps) if capacity is None else capacity
            buffer = _fill_buffer(empty, size, 1, options)
        keys = [key for key in parts if key]
        obs, following = (
            {key: columns[f"{kind}.{key}"] for key in keys} if keys else columns[kind]
            for kind in ("obs", "next_obs")
        )
        rest = (columns[name] for name in ("actions", "rewards", *_FLAGS))
        buffer.push_batch(obs, following, *rest, in_order=True)
    if buffer is None:
        raise ArgumentError("dataset", "episodes", "none", "record some first")
    return buffer


def _to_supported_dtype(name: str, value: Any) -> npt.NDArray[Any]:
    """Numbers in a dtype that buffers have."""
    if isinstance(value, dict | tuple | list):
        raise ArgumentTypeError(
            "dataset",
            f"{name} of one array",
            f"a {type(value).__name__}",
            "flatten the space with Gymnasium's wrappers when recording",
        )
    array = np.asarray(value)
    if array.dtype.name in _DTYPES:
        return array
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
