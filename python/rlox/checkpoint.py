"""Checkpoints: a folder with a manifest and safetensors files, written atomically.

    manifest.json             config, counters and random streams; name, size and SHA-256 of each
                              other file, called member; SHA-256 of the manifest itself
    networks.safetensors      parameters and buffers by name
    optimizer.safetensors     optimizer state of each parameter
    normalizer.safetensors    statistics; absent if nothing is normalized
    environment.safetensors   state of the environments; if it cannot be saved, this file is absent
                              and the manifest contains "env_state": "missing"
    replay.safetensors        contents of the replay buffer; absent if there is no buffer, or if
                              the manifest contains "replay": false

Members are ordinary safetensors files. The manifest is canonical JSON (sorted keys, an indent of 2,
a final newline). Other programs can read and write both. Reading runs no code from the files.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from rlox._errors import ArgumentError, ArgumentTypeError, CorruptFileError, OutOfMemoryError
from rlox._files import flush_folder, locked, make_folder, write_file
from rlox._rlox import __version__
from rlox._types import Arrays

__all__ = ["Checkpoint", "read_checkpoint", "write_checkpoint"]

FORMAT = 2
MANIFEST = "manifest.json"
# Names in a run folder.
FOLDER, LATEST, BEST, SCORES = "checkpoints", "latest", "best", "scores.json"
FINAL = "checkpoint"
_CONFIG = "config.json"
_STEP = re.compile(r"step-(\d{9,})")
# Errors that reading damaged JSON can raise.
_DAMAGED = (*(OSError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError), RecursionError)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LONGEST = 2**28  # largest size of a manifest in bytes
_SAFETENSORS_OVERHEAD = 2**20  # bytes that safetensors needs in addition to file and arrays


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint, as `read_checkpoint` returns them.

    Attributes:
        manifest: Contents of `manifest.json`, without its checksum.
        members: Arrays by member and name.
    """

    manifest: dict[str, Any]
    members: dict[str, Arrays]


def write_checkpoint(path: str | os.PathLike[str], manifest: Mapping[str, Any], members: Mapping[str, Arrays]) -> None:
    """Write a checkpoint atomically into the folder `path`.

    A process that is killed at any time leaves the old or the new checkpoint, never a mixture. The
    files are written to a sibling folder and flushed to disk, then the folder is renamed. C-ordered
    little-endian arrays are written without a copy.

    Args:
        path: Folder, which is created with its parents. An existing checkpoint or empty folder is replaced.
        manifest: JSON-compatible dict.
        members: Arrays by member and name. Names of members consist of a-z, 0-9 and _, and start
            with a letter. Members without arrays are not written.

    Raises:
        FileExistsError: `path` is a file, or a folder that is neither empty nor a checkpoint.
        ArgumentTypeError: An argument has a wrong type, the manifest is not JSON-compatible, or an
            array does not contain numbers of at most 64 bits.
        ArgumentError: The path is empty, the name of a member is invalid, or the manifest contains NaN or infinity.
        MemoryError: The copy of a non-contiguous or big-endian array does not fit into memory.
        OSError: The files cannot be written; incomplete files are removed.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_checkpoint(f"{folder}/a", {"steps": 7}, {"networks": {"w": np.ones(2)}})
    ...     checkpoint = read_checkpoint(f"{folder}/a")
    >>> checkpoint.manifest["steps"], checkpoint.members["networks"]["w"]
    (7, array([1., 1.]))
    """
    path = _check_folder_path(path).resolve()
    if path.parent.is_dir():
        with locked(path.parent):
            _check_replaceable(path)
    if not isinstance(manifest, Mapping):
        raise ArgumentTypeError("manifest", "a dict", type(manifest).__name__, "pass {}")
    _check_names("members", members)
    checked = {name: check_member(name, arrays) for name, arrays in members.items()}
    for name in checked:
        if not _NAME.fullmatch(name):
            raise ArgumentError("members", "names of a-z, 0-9 and _", repr(name), "rename it")
    content = {**manifest, "format": FORMAT, "rlox": __version__}
    _sign({**content, "members": {}})  # raises if the manifest is not JSON-compatible

    _make_parent(path)
    with locked(path.parent):  # concurrent writers wait for each other
        _check_replaceable(path)
        _replace(path, content, checked)


def _check_replaceable(path: Path) -> None:
    """Raise FileExistsError if `path` is not a checkpoint, an empty folder or absent."""
    is_empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty and not _is_checkpoint(path):
        raise FileExistsError(
            f"path: expected a checkpoint, an empty folder or a new path, got {str(path)!r}, which "
            "has other contents; choose another path"
        )


def _replace(path: Path, content: Mapping[str, Any], members: Mapping[str, Arrays]) -> None:
    """Write a checkpoint to a sibling folder, and move it to `path`."""
    partial, previous = _sibling_path(path, "partial"), _sibling_path(path, "previous")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        entries = {
            name: write_member(partial / f"{name}.safetensors", arrays) for name, arrays in members.items() if arrays
        }
        write_file(partial / MANIFEST, _sign({**content, "members": entries}))
    except BaseException:
        # Remove the partial folder, which would waste space, for example on a full disk.
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if path.exists():
        # A folder cannot be renamed onto a non-empty one. Between the two renames, `read_checkpoint` reads `previous`.
        shutil.rmtree(previous, ignore_errors=True)
        path.rename(previous)
    partial.rename(path)
    flush_folder(path.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _sign(content: Mapping[str, Any]) -> bytes:
    """Return the JSON of a manifest with its checksum."""
    try:
        digest = hashlib.sha256(_to_canonical_json(content)).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        cls = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        got = f"an incompatible value ({error})"
        raise cls("manifest", "JSON-compatible values", got, "convert or remove it") from error
    return _to_canonical_json({**content, "sha256": digest})


def _check_names(name: str, value: object) -> None:
    """Check that a value is a dict with printable names as keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key.isprintable() for key in value):
        raise ArgumentTypeError(
            name, "a dict with printable str keys", type(value).__name__, "pass arrays by member and name"
        )


def _is_checkpoint(path: Path) -> bool:
    """Return whether a folder contains only the files of a checkpoint, which may be damaged."""
    manifest = path / MANIFEST
    if not manifest.is_file() or b'"rlox":' not in manifest.read_bytes():
        return False
    return all(file.name == MANIFEST or file.suffix == ".safetensors" for file in path.iterdir())


def _check_folder_path(path: object) -> Path:
    wrong = ("path", "the path of a folder", repr(path), "pass a str or a pathlib.Path")
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise ArgumentTypeError(*wrong)
    if not os.fspath(path):  # pathlib would use the current folder
        raise ArgumentError(*wrong)
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ArgumentError(*wrong) from error
    return Path(path)


def _make_parent(path: Path) -> None:
    try:
        make_folder(path.parent)
    except OSError as error:
        raise type(error)(
            error.errno,
            f"path: expected a path where a folder can be created, got {str(path)!r}: cannot "
            f"create {error.filename} ({error.strerror}); pass another path",
        ) from error


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint and verify its checksums.

    If a checkpoint is replaced while this function reads it, the result is the old or the new one.

    Args:
        path: Folder of a checkpoint, or a run folder, of which the newest checkpoint is read.

    Returns:
        Manifest and arrays of the checkpoint.

    Raises:
        FileNotFoundError: There is no checkpoint at `path`.
        CorruptFileError: A file is damaged, missing or not part of a checkpoint. The error names
            the file and the section.
        ArgumentError: The checkpoint has another format version, or `path` is not a valid path.
        ArgumentTypeError: `path` is not a path.
        OutOfMemoryError: The arrays do not fit into memory.
    """
    path = _check_folder_path(path)
    while True:
        found = _find_checkpoint(path)
        before = _get_identity(found)
        try:
            return _read_folder(found)
        except (CorruptFileError, OSError):
            if _get_identity(found) != before:
                continue  # the checkpoint was replaced or removed while it was read
            if not found.parent.is_dir():
                raise
            # Read again without concurrent writers, in case one interfered.
            with locked(found.parent):
                return _read_folder(_find_checkpoint(path))


def _find_checkpoint(path: Path) -> Path:
    """Return the folder of the checkpoint for a path; it may not exist."""
    path = path.resolve()
    if not (path / MANIFEST).exists():
        path = newest(path) or (path / "checkpoint" if (path / "checkpoint").exists() else path)
    if not path.exists() and _sibling_path(path, "previous").exists():
        path = _sibling_path(path, "previous")
    return path


def _get_identity(folder: Path) -> tuple[int, ...] | None:
    """Return values that change if the folder is replaced; None if there is no folder."""
    try:
        info = folder.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_mtime_ns


def _read_folder(path: Path) -> Checkpoint:
    if (problem := explain_missing_checkpoint(path)) is not None:
        raise FileNotFoundError(f"path: expected a checkpoint, but {path} {problem}")
    manifest = _read_manifest(path / MANIFEST)
    members = {}
    check_keys(path / MANIFEST, "manifest", manifest, {"members": (dict,)})
    for name, entry in manifest["members"].items():
        if not _NAME.fullmatch(name):
            raise corrupt(path / MANIFEST, "members", f"the name {name!r}")
        check_keys(path / MANIFEST, "members", entry, {"bytes": (int,), "sha256": (str,)})
        file = path / f"{name}.safetensors"
        data = _read_file(file, name, entry["bytes"])
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise corrupt(file, name, "a SHA-256 that differs from the manifest")
        try:
            # Check the memory first, because safetensors panics if it runs out.
            np.empty(2 * len(data) + _SAFETENSORS_OVERHEAD, np.uint8)
        except MemoryError:
            hint = "free memory, or load the checkpoint on a larger machine"
            got = f"a member {name!r} of {len(data):,} bytes"
            raise OutOfMemoryError("path", "a checkpoint that fits into memory", got, hint) from None
        try:
            members[name] = safetensors.numpy.load(data)
        except safetensors.SafetensorError as error:
            raise corrupt(file, name, f"invalid safetensors ({error})") from error
    return Checkpoint(manifest, members)


def check_keys(file: Path, section: str, content: object, kinds: Mapping[str, tuple[type, ...]]) -> None:
    """Raise CorruptFileError if a section is not a dict with certain keys and with values of exact types."""
    if not isinstance(content, dict):
        raise corrupt(file, section, type(content).__name__)
    for key, types in kinds.items():
        if key not in content:
            raise corrupt(file, section, f"no key {key!r}")
        if type(content[key]) not in types:
            raise corrupt(file, section, f"{content[key]!r} for the key {key!r}")


def _read_manifest(file: Path) -> dict[str, Any]:
    data = _read_file(file, "manifest")
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise corrupt(file, "manifest", f"invalid JSON ({error})") from error
    if not isinstance(manifest, dict) or "sha256" not in manifest:
        raise corrupt(file, "manifest", "no key 'sha256'")
    # The digest covers all other bytes as written, because writers format numbers differently.
    digest = manifest.pop("sha256")
    before, _, after = data.partition(f'\n  "sha256": {json.dumps(digest)}'.encode())
    rest = before + after[1:] if after[:1] == b"," else before.removesuffix(b",") + after
    if hashlib.sha256(rest).hexdigest() != digest:
        raise corrupt(file, "manifest", "contents that do not match the SHA-256")
    if manifest.get("format") != FORMAT:
        raise ArgumentError(
            str(file),
            f"format {FORMAT}",
            f"{manifest.get('format')!r}, written by rlox {manifest.get('rlox')}",
            "read the checkpoint with that version",
        )
    return manifest


def _to_canonical_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def _read_file(file: Path, section: str, size: int | None = None) -> bytes:
    """Return the bytes of a file, which must have `size` bytes; None: at most `_LONGEST` bytes."""
    if not file.is_file():
        raise corrupt(file, section, "no regular file" if file.exists() else "no such file")
    with open(file, "rb") as opened:
        actual_size = os.fstat(opened.fileno()).st_size
        if size is None and actual_size > _LONGEST:
            raise corrupt(file, section, f"{actual_size:,} bytes")
        if size is not None and actual_size != size:
            raise corrupt(file, section, f"{actual_size} bytes instead of {size}")
        return opened.read()


def corrupt(file: Path, section: str, got: str) -> CorruptFileError:
    """Return the error for a file with a section that is damaged or that rlox did not write."""
    hint = "the file is damaged or not part of a checkpoint; use another copy"
    return CorruptFileError(str(file), "contents that rlox wrote", got, hint, section=section)


def _sibling_path(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{suffix}")


# Bytes per write call; Ctrl-C takes effect between two calls.
_PIECE = 1 << 24
# Names of dtypes in safetensors, in the order in which its own writer writes them.
_DTYPES = ("U64", "I64", "F64", "F32", "U32", "I32", "F16", "U16", "I16", "I8", "U8", "BOOL")


def check_member(member: str, values: Mapping[str, Any]) -> Arrays:
    """Convert the values of a member to arrays of numbers of at most 64 bits, which `write_member` can write.

    >>> check_member("networks", {"w": [1, 2]})
    {'w': array([1, 2])}
    """
    _check_names(f"members[{member!r}]", values)
    arrays: Arrays = {name: np.asanyarray(x) for name, x in values.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise ArgumentTypeError(
                f"members[{member!r}][{name!r}]",
                "an array of numbers of at most 64 bits",
                f"dtype {array.dtype}",
                "convert the array first",
            )
    return arrays


def write_member(path: Path, arrays: Arrays) -> dict[str, Any]:
    """Write arrays as `safetensors.numpy.save_file` does, flush the file to disk, and return its manifest entry."""
    names = sorted(arrays, key=lambda name: (_DTYPES.index(_dtype_name(arrays[name])), name))
    header = dict[str, Any]()
    end = 0
    for name in names:
        array = arrays[name]
        offsets = [end, end + array.nbytes]
        end += array.nbytes
        header[name] = {"dtype": _dtype_name(array), "shape": list(array.shape), "data_offsets": offsets}
    header_bytes = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    header_bytes += b" " * (-len(header_bytes) % 8)
    header_bytes = len(header_bytes).to_bytes(8, "little") + header_bytes
    digest = hashlib.sha256(header_bytes)
    with open(path, "xb") as file:
        file.write(header_bytes)
        for name in names:
            for piece in _pieces(arrays[name]):
                digest.update(piece)
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(header_bytes) + end, "sha256": digest.hexdigest()}


def _dtype_name(array: npt.NDArray[Any]) -> str:
    return "BOOL" if array.dtype.kind == "b" else f"{array.dtype.kind.upper()}{8 * array.itemsize}"


def _pieces(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    """Yield the bytes of an array in C order and little-endian."""
    dtype = array.dtype.newbyteorder("<")
    ordered = np.array(array, dtype, order="C", copy=None, subok=False)
    data = ordered.reshape(-1).view(np.uint8).data
    for begin in range(0, len(data), _PIECE):
        yield data[begin : begin + _PIECE]


def step_name(timesteps: int) -> str:
    """Return the name of a checkpoint after `timesteps` environment steps.

    >>> step_name(100_000)
    'step-000100000'
    """
    return f"step-{timesteps:09d}"


def list_step_checkpoints(folder: Path) -> list[Path]:
    """Return the folders named by `step_name`, in order of their steps."""
    found = [path for path in folder.glob("step-*") if _STEP.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def check_no_newer(run: Path, timesteps: int) -> None:
    """Check that a run folder has no newer checkpoint, which training would overwrite.

    Raises:
        FileExistsError: The folder has a checkpoint of more than `timesteps` environment steps.
    """
    newer = newest(run)
    if newer is not None and read_timesteps(newer) > timesteps:
        raise FileExistsError(
            f"{newer}: this checkpoint is newer than the one to resume from ({read_timesteps(newer)} against "
            f"{timesteps} environment steps); resume from it, move it elsewhere, or train in another run folder"
        )


def newest(run: Path) -> Path | None:
    """Return the checkpoint of a run folder with the most environment steps, or None.

    >>> newest(Path("no such run")) is None
    True
    """
    final = run / FINAL
    if not final.exists():  # the process was killed while it replaced the checkpoint
        final = run / f".{FINAL}.previous"
    paths = [*list_step_checkpoints(run / FOLDER), final]
    existing = [(read_timesteps(path), path) for path in paths if (path / MANIFEST).is_file()]
    return max(existing, key=lambda pair: (pair[0], pair[1] == final), default=(0, None))[1]


def read_timesteps(checkpoint: Path) -> int:
    """Return the used budget from a checkpoint's name or its manifest; 0 if unknown."""
    named = _STEP.fullmatch(checkpoint.name)
    if named is not None:
        return int(named[1])
    with suppress(*_DAMAGED):
        manifest = json.loads((checkpoint / MANIFEST).read_bytes())
        return int(manifest["counters"][manifest["run"].get("unit", "timesteps")])
    return 0


def explain_missing_checkpoint(path: Path) -> str | None:
    """Return the reason why a path has no checkpoint, with a hint; None if it may have one."""
    if not path.exists():
        return "does not exist; pass the folder of a checkpoint"
    if path.is_file():
        return "is a file; pass the folder of a checkpoint"
    names = {file.name for file in path.iterdir()}
    if MANIFEST in names:
        return None
    if _CONFIG in names:
        return (
            f"is a run that stopped before its first checkpoint; start it again with rlox train "
            f"--config {path / _CONFIG} and --checkpoint-every N"
        )
    if not any(name.endswith(".safetensors") for name in names):
        problem = f"has no {MANIFEST}" if names else "is empty"
        return f"{problem}; pass the folder of a checkpoint"
    return None
