"""Checkpoints: a folder with a manifest and safetensors members, written whole or not at all.

    manifest.json             what it is, the config, counters, random streams; and of each member
                              its name, size and SHA-256; and the SHA-256 of all that
    networks.safetensors      parameters and buffers by name
    optimizer.safetensors     what it keeps for each parameter
    normalizer.safetensors    left out where nothing is normalised
    environment.safetensors   where environments stand; left out where they cannot tell, and the
                              manifest says "environment": "approximate"
    replay.safetensors        what the replay buffer holds; left out without one, and where the
                              manifest says "replay": false

A member is any safetensors file, and the manifest is canonical JSON (sorted keys, an indent of 2, a
newline at the end), so other programs can read and write both. Reading runs no code of the file's.
"""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
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
# Names within a run folder.
FOLDER, LATEST, BEST, SCORES = "checkpoints", "latest", "best", "scores.json"
FINAL = "checkpoint"
_CONFIG = "config.json"
_STEP = re.compile(r"step-(\d{9,})")
# Errors of reading JSON that another program wrote.
_DAMAGED = (
    *(OSError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError),
    RecursionError,
)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LONGEST = 2**28  # bytes of a manifest
_SAFETENSORS_OVERHEAD = 2**20  # bytes that safetensors needs besides the file and the arrays
_BINARY = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class Checkpoint:
    """What `read_checkpoint` gives: the manifest, and arrays by member and name."""

    manifest: dict[str, Any]
    members: dict[str, Arrays]


def write_checkpoint(
    path: str | os.PathLike[str], manifest: Mapping[str, Any], members: Mapping[str, Arrays]
) -> None:
    """Writes a checkpoint into the folder `path`, or leaves what was there.

    A process killed at any time leaves the old or the new checkpoint, never a mixture: files are
    written into a folder next to it, flushed to disk, and the folder is renamed. Arrays are written
    from where they lie.

    Args:
        path: Made with its parents. A checkpoint or an empty folder there is replaced.
        manifest: What JSON can hold.
        members: Arrays by member ([a-z0-9_]) and name; empty members are left out.

    Raises:
        FileExistsError: Something else is at `path`.
        TypeError, ValueError: The manifest holds what JSON cannot; a member holds other things than
            arrays of numbers.
        MemoryError: An array that has to be put into order does not fit into memory again.
        OSError: They cannot be written; what was written of them is removed.

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
    checked = {
        name: check_member(name, arrays) for name, arrays in _to_member_dicts(members).items()
    }
    for name in checked:
        if not _NAME.fullmatch(name):
            raise ArgumentError("members", "names of a-z, 0-9 and _", repr(name), "rename it")
    content = {**manifest, "format": FORMAT, "rlox": __version__}
    _sign({**content, "members": {}})  # which refuses what JSON cannot hold

    _make_parent(path)
    with locked(path.parent):  # who writes at the same time comes after
        _check_replaceable(path)
        _replace(path, content, checked)


def _check_replaceable(path: Path) -> None:
    """Refuses to replace what is no checkpoint; nobody writes there meanwhile."""
    if path.exists() and not _is_checkpoint(path) and not _is_empty(path):
        raise FileExistsError(
            f"path: expected a checkpoint, an empty folder or nothing, got {str(path)!r}, which is "
            "something else; choose another path"
        )


def _replace(path: Path, content: Mapping[str, Any], members: Mapping[str, Arrays]) -> None:
    """Puts a checkpoint in the place of what is at `path`."""
    partial, previous = _sibling_path(path, "partial"), _sibling_path(path, "previous")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        entries = {
            name: write_member(partial / f"{name}.safetensors", arrays)
            for name, arrays in members.items()
            if arrays
        }
        write_file(partial / MANIFEST, _sign({**content, "members": entries}))
    except BaseException:
        # On a full disk it would be in the way of something smaller.
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if path.exists():
        # A folder cannot be renamed onto another. Between the two renames only `previous` is
        # there, and `read_checkpoint` knows it.
        shutil.rmtree(previous, ignore_errors=True)
        path.rename(previous)
    partial.rename(path)
    flush_folder(path.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _sign(content: Mapping[str, Any]) -> bytes:
    """Return a manifest with its checksum."""
    try:
        digest = hashlib.sha256(_to_canonical_json(content)).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        raise kind("manifest", "what JSON can hold", f"other ({error})", "leave it out") from error
    return _to_canonical_json({**content, "sha256": digest})


def _to_member_dicts(members: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The members, each a dict of what is given by name."""
    return {
        member: dict(_items(f"members[{member!r}]", arrays))
        for member, arrays in _items("members", members)
    }


def _items(name: str, value: Any) -> list[tuple[str, Any]]:
    known = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if not known or not all(key.isprintable() for key in value):
        raise ArgumentTypeError(
            name,
            "a dict with printable str keys",
            type(value).__name__,
            "pass arrays by member and name",
        )
    return list(value.items())


def _is_checkpoint(path: Path) -> bool:
    """Whether a folder holds a checkpoint, whole or damaged, and nothing else."""
    manifest = path / MANIFEST
    if not manifest.is_file() or b'"rlox":' not in manifest.read_bytes():
        return False
    return all(file.name == MANIFEST or file.suffix == ".safetensors" for file in path.iterdir())


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _check_folder_path(path: object) -> Path:
    wrong = ("path", "the path of a folder", repr(path), "pass one as str or Path")
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise ArgumentTypeError(*wrong)
    if not os.fspath(path):  # which pathlib takes for the folder that the process is in
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
            f"path: expected where a folder can be made, got {str(path)!r}, where the system does "
            f"not make {error.filename} ({error.strerror}); pass another path",
        ) from error


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Reads and checks a checkpoint.

    Args:
        path: Of the checkpoint, or of a run folder, of whose checkpoints the newest is read.

    Raises:
        FileNotFoundError: Nothing is there.
        rlox.CorruptFileError: Anything in it is damaged, missing or not a checkpoint's; the file
            and the section are named.
        ValueError: A newer rlox wrote it.
        MemoryError: It does not fit into memory.
    """
    path = _check_folder_path(path)
    while True:
        found = _find_checkpoint(path)
        before = _get_identity(found)
        try:
            return _read_folder(found)
        except (CorruptFileError, OSError):
            if _get_identity(found) != before:
                continue  # it was replaced, or removed for a newer one, while it was read
            if not found.parent.is_dir():
                raise
            # It is so, or somebody was replacing it whenever we looked: not while we are alone.
            with locked(found.parent):
                return _read_folder(_find_checkpoint(path))


def _find_checkpoint(path: Path) -> Path:
    """Where the checkpoint lies that a path names, if there is one."""
    path = path.resolve()
    if not (path / MANIFEST).exists():
        path = newest(path) or (path / "checkpoint" if (path / "checkpoint").exists() else path)
    if not path.exists() and _sibling_path(path, "previous").exists():
        path = _sibling_path(path, "previous")
    return path


def _get_identity(folder: Path) -> tuple[int, ...] | None:
    """What changes when another folder comes to this place; None where there is none."""
    try:
        info = folder.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_mtime_ns


def _read_folder(path: Path) -> Checkpoint:
    if (what := explain_missing_checkpoint(path)) is not None:
        raise FileNotFoundError(f"path: expected a checkpoint, {path} {what}")
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
            raise corrupt(file, name, "another SHA-256 than the manifest says")
        try:
            np.empty(
                2 * len(data) + _SAFETENSORS_OVERHEAD, np.uint8
            )  # safetensors panics without memory
        except MemoryError:
            hint = "free memory, or load it on a larger machine"
            got = f"{len(data):,} bytes as {name!r}"
            raise OutOfMemoryError("path", "what fits into memory", got, hint) from None
        try:
            members[name] = safetensors.numpy.load(data)
        except safetensors.SafetensorError as error:
            raise corrupt(file, name, f"no safetensors ({error})") from error
    return Checkpoint(manifest, members)


def check_keys(
    file: Path, section: str, content: Any, kinds: Mapping[str, tuple[type, ...]]
) -> None:
    """A section is a dict with these keys, and values of exactly these types.

    Raises:
        rlox.CorruptFileError: It is not; file and section are named.
    """
    if not isinstance(content, dict):
        raise corrupt(file, section, type(content).__name__)
    for key, types in kinds.items():
        if key not in content:
            raise corrupt(file, section, f"no key {key!r}")
        if type(content[key]) not in types:
            raise corrupt(file, section, f"{content[key]!r} as {key!r}")


def _read_manifest(file: Path) -> dict[str, Any]:
    data = _read_file(file, "manifest")
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise corrupt(file, "manifest", f"no JSON ({error})") from error
    if not isinstance(manifest, dict) or "sha256" not in manifest:
        raise corrupt(file, "manifest", "no SHA-256 of it")
    # All other lines, byte for byte: white space is covered, and other writers' digits are as good.
    digest = manifest.pop("sha256")
    before, _, after = data.partition(f'\n  "sha256": {json.dumps(digest)}'.encode())
    rest = before + after[1:] if after[:1] == b"," else before.removesuffix(b",") + after
    if hashlib.sha256(rest).hexdigest() != digest:
        raise corrupt(file, "manifest", "another SHA-256 than it says")
    if manifest.get("format") != FORMAT:
        raise ArgumentError(
            str(file),
            f"format {FORMAT}",
            f"{manifest.get('format')!r}, written by rlox {manifest.get('rlox')}",
            "read it with that version",
        )
    return manifest


def _to_canonical_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def _read_file(file: Path, section: str, size: int | None = None) -> bytes:
    """A file's bytes, of which there must be `size`, or few enough for a manifest."""
    try:
        # What never ends, or waits for a writer, is no file.
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise corrupt(file, section, "no such file") from error
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise corrupt(file, section, "no file")
        if size is None and info.st_size > _LONGEST:
            raise corrupt(file, section, f"{info.st_size:,} bytes")
        if size is not None and info.st_size != size:
            raise corrupt(file, section, f"{info.st_size} bytes instead of {size}")
        with open(descriptor, "rb", closefd=False) as opened:
            return opened.read()


def corrupt(file: Path, section: str, got: str) -> CorruptFileError:
    """The error that names a file and the section of it that is not as rlox writes it."""
    hint = "the file is damaged or not a checkpoint's, use another copy"
    return CorruptFileError(str(file), "what rlox wrote", got, hint, section=section)


def _sibling_path(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{what}")


# Bytes that are written together: Ctrl-C comes between two such pieces.
_PIECE = 1 << 24
# Of NumPy's dtypes, in the order of the format's own writer: what comes last is written first.
_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}
_DTYPE_ORDER = list(_DTYPES)


def check_member(member: str, values: dict[str, Any]) -> Arrays:
    """The arrays of a member, which `write_member` can write.

    Args:
        member: Its name, for messages.
        given: By name, what NumPy makes arrays of.

    Raises:
        TypeError: One holds other things than numbers of at most 64 bits.

    >>> check_member("networks", {"w": [1, 2]})
    {'w': array([1, 2])}
    """
    arrays: Arrays = {name: np.asanyarray(x) for name, x in values.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise ArgumentTypeError(
                f"members[{member!r}][{name!r}]",
                "an array of numbers of at most 64 bits",
                f"dtype {array.dtype}",
                "convert it first",
            )
    return arrays


def write_member(path: Path, arrays: Arrays) -> dict[str, Any]:
    """Writes arrays into a new file, as `safetensors.numpy.save_file` does, down to the disk.

    Returns:
        Its size in "bytes" and its "sha256", as manifests have them.

    Raises:
        OSError: It cannot be written.
    """
    names = sorted(arrays, key=lambda name: (-_DTYPE_ORDER.index(arrays[name].dtype.name), name))
    header, end = dict[str, Any](), 0
    for name in names:
        array, begin = arrays[name], end
        end += array.nbytes
        kind, shape = _DTYPES[array.dtype.name], list(array.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
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


def _pieces(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    """The bytes of an array as files have them: row by row, the least of a number first."""
    kind = array.dtype.newbyteorder("<")
    plain = np.array(array, kind, order="C", copy=None, subok=False)
    data = plain.reshape(-1).view(np.uint8).data
    for begin in range(0, len(data), _PIECE):
        yield data[begin : begin + _PIECE]


def step_name(timesteps: int) -> str:
    """The name of a checkpoint after so many environment steps; names sort as steps do.

    >>> step_name(100_000)
    'step-000100000'
    """
    return f"step-{timesteps:09d}"


def list_step_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of steps in a folder, the oldest first."""
    found = [path for path in folder.glob("step-*") if _STEP.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def check_no_newer(run: Path, timesteps: int) -> None:
    """Check that a run folder has no checkpoint of more environment steps.

    Args:
        run: The run folder.
        timesteps: Environment steps of the checkpoint that training resumes from.

    Raises:
        FileExistsError: It has one; training would overwrite it.
    """
    newer = newest(run)
    if newer is not None and read_timesteps(newer) > timesteps:
        raise FileExistsError(
            f"{newer}: this checkpoint is newer than the one to resume from "
            f"({read_timesteps(newer)} against {timesteps} environment steps); resume from it, "
            "move it elsewhere, or train in another run folder"
        )


def newest(run: Path) -> Path | None:
    """The checkpoint of a run folder that has the most steps; None where there is none.

    >>> newest(Path("no such run")) is None
    True
    """
    final = run / FINAL
    if not final.exists():  # killed while it was replaced
        final = run / f".{FINAL}.previous"
    found = [*list_step_checkpoints(run / FOLDER), final]
    there = [(read_timesteps(path), path) for path in found if (path / MANIFEST).is_file()]
    return max(there, key=lambda one: (one[0], one[1] == final), default=(0, None))[1]


def read_timesteps(checkpoint: Path) -> int:
    """The environment steps of a checkpoint, by its name or its manifest; 0 where none tells."""
    named = _STEP.fullmatch(checkpoint.name)
    if named is not None:
        return int(named[1])
    with suppress(*_DAMAGED):
        manifest = json.loads((checkpoint / MANIFEST).read_bytes())
        return int(manifest["counters"]["timesteps"])
    return 0


def explain_missing_checkpoint(path: Path) -> str | None:
    """What there is in the place of a checkpoint, and what to do; None where there may be one."""
    if not path.exists():
        return "does not exist; pass where one is"
    if path.is_file():
        return "is a file; pass the folder of a checkpoint"
    names = {file.name for file in path.iterdir()}
    if MANIFEST in names:
        return None
    if _CONFIG in names:
        return (
            f"is a run that ended before its first one; begin it again with rlox train --config "
            f"{path / _CONFIG}, and --checkpoint-every N where it may be killed"
        )
    if not any(name.endswith(".safetensors") for name in names):
        return f"{'has no' if names else 'is empty, without'} {MANIFEST}; pass where one is"
    return None
