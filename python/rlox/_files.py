"""Atomic writes, file locks, size limits and YAML."""

import importlib
import logging
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlox._errors import ArgumentError, one_line
from rlox._optional import load_extra

_log = logging.getLogger("rlox")
_fcntl: Any = None
with suppress(ModuleNotFoundError):  # Windows has no `flock`, and cannot lock folders
    _fcntl = importlib.import_module("fcntl")
_MAX_VALUES = 100_000  # limit for YAML, where nested aliases can expand to very many values
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$")


def write_file(file: Path, data: bytes) -> None:
    """Write a file atomically, and flush the file and its folder to disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder) / "a", b"whole")
    ...     (Path(folder) / "a").read_bytes(), os.listdir(folder)
    (b'whole', ['a'])
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    flush_folder(file.parent)


def read_small(file: Path, largest: int) -> bytes:
    """Return the contents of a file or pipe; raise ArgumentError if it exceeds `largest` bytes."""
    with open(file, "rb") as opened:
        data = opened.read(largest + 1)
    if len(data) > largest:
        raise ArgumentError("path", f"at most {largest:,} bytes", f"more bytes in {file}", "pass a smaller file")
    return data


def parse_yaml(argument: str, data: str | bytes) -> Any:
    """Parse YAML as `yaml.safe_load` does, with three differences.

    A number such as 1e-3 is a float, as in YAML 1.2. Duplicate keys are errors. Aliases that expand
    to more than 100,000 values are errors.

    Raises:
        ModuleNotFoundError: PyYAML is not installed.
        ArgumentError: The data are not valid YAML; the error names `argument` and the line.
    """
    yaml = load_extra("yaml", "cli", argument)

    class Loader(yaml.SafeLoader):  # type: ignore[misc,name-defined]  # PyYAML has no types
        def get_single_node(self) -> object:
            node = super().get_single_node()
            if node is not None and _count_values(node, {}) > _MAX_VALUES:
                problem = f"aliases of more than {_MAX_VALUES:,} values"
                raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> object:
            names = set()
            for key, _ in node.value:
                if (name := (key.tag, str(key.value))) in names:
                    problem = f"duplicate key {key.value!r}"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                names.add(name)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    try:
        return yaml.load(data, Loader)  # a SafeLoader
    # PyYAML raises the last three types for "!!bool x", "!!int" and "!!timestamp x".
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:
        got = f"invalid data ({one_line(error)})"
        raise ArgumentError(argument, "YAML", got, "correct the YAML") from error


def _count_values(node: Any, counts: dict[int, float]) -> float:
    """Count the values of a YAML node; an alias counts as the values that it expands to."""
    if id(node) not in counts:
        counts[id(node)] = math.inf  # found only by an alias within its own value
        items = node.value if isinstance(node.value, list) else []
        nodes = (x for item in items for x in (item if isinstance(item, tuple) else (item,)))
        counts[id(node)] = 1 + sum(_count_values(x, counts) for x in nodes)
    return counts[id(node)]


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, and flush the new entries to disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk."""
    if os.name == "nt":  # Windows cannot open folders; NTFS journals renames
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, wait: bool = True, busy: str = "the lock is held", owner: object = None) -> Iterator[None]:
    """Hold an exclusive advisory lock on an existing file or folder within the context.

    If the system or the file system has no locks, nothing is locked.

    Raises:
        BlockingIOError: Another process or thread holds the lock, and `wait` is False. The error has the text `busy`
            and the file name `owner`, or `path` if `owner` is None.
    """
    if _fcntl is None:
        yield
        return
    while True:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            try:
                _fcntl.flock(descriptor, _fcntl.LOCK_EX | (0 if wait else _fcntl.LOCK_NB))
            except BlockingIOError as error:
                raise BlockingIOError(error.errno, busy, str(path if owner is None else owner)) from error
            except OSError as error:
                _log.debug("%s is not locked: %s", path, error)
            if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
                continue  # the previous holder replaced the file
            yield
            return
        finally:
            # Closing is not sufficient: a process that was forked meanwhile would hold the lock.
            with suppress(OSError):
                _fcntl.flock(descriptor, _fcntl.LOCK_UN)
            os.close(descriptor)
