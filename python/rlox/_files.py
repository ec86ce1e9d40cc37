"""Files: atomic writes, locks, and YAML."""

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
_flock: Any = None
with suppress(ModuleNotFoundError):  # Windows has other locks, which folders do not take
    _flock = importlib.import_module("fcntl").flock
# Of `fcntl`, the same on all systems that have it.
_ALONE, _AT_ONCE, _FREE = 2, 4, 8
_MAX_VALUES = 100_000  # of YAML, as a few aliases can stand for many values
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$")


def write_file(file: Path, data: bytes) -> None:
    """Write a file completely or not at all, and flush it to the disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder) / "a", b"whole")
    ...     (Path(folder) / "a").read_bytes(), os.listdir(folder)
    (b'whole', ['a'])
    """
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
    flush_folder(file.parent)


def read_small(file: Path, largest: int) -> bytes:
    """Read a file, or a pipe, of at most `largest` bytes."""
    with open(file, "rb") as opened:
        data = opened.read(largest + 1)
    if len(data) > largest:
        raise ArgumentError(
            "path", f"at most {largest:,} bytes", f"more in {file}", "pass a smaller file"
        )
    return data


def parse_yaml(argument: str, data: str | bytes) -> Any:
    """Return the content of YAML, as `yaml.safe_load` does, with three differences.

    1e-3 is a number, as in YAML 1.2. A key that comes twice is an error, and so are aliases that
    stand for many values, which no memory holds.

    Raises:
        ModuleNotFoundError: PyYAML is not installed.
        ValueError: The data are not such YAML; `argument` and the line are named.
    """
    yaml = load_extra("yaml", "cli", argument)

    class Loader(yaml.SafeLoader):  # type: ignore[misc,name-defined]  # PyYAML has no types
        def get_single_node(self) -> Any:
            node = super().get_single_node()
            if node is not None and _count_values(node, {}) > _MAX_VALUES:
                problem = f"aliases of more than {_MAX_VALUES:,} values"
                raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = set()
            for key, _ in node.value:
                if (name := (key.tag, str(key.value))) in names:
                    problem = f"{key.value!r} twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                names.add(name)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    try:
        return yaml.load(data, Loader)  # a SafeLoader
    # PyYAML's constructors raise the last three for "!!bool x", "!!int" and "!!timestamp x".
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError) as error:
        got = f"other ({one_line(error)})"
        raise ArgumentError(argument, "YAML", got, "write keys and values as YAML does") from error


def _count_values(node: Any, counts: dict[int, float]) -> float:
    """Count the values of a YAML node. An alias counts as the values that it stands for."""
    if id(node) not in counts:
        counts[id(node)] = math.inf  # of an alias within its own value
        items = node.value if isinstance(node.value, list) else []
        nodes = (x for item in items for x in (item if isinstance(item, tuple) else (item,)))
        counts[id(node)] = 1 + sum(_count_values(x, counts) for x in nodes)
    return counts[id(node)]


def make_folder(folder: Path) -> None:
    """Make a folder with its parents, and flush each of them to the disk."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in reversed(missing):
        flush_folder(one.parent)


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    if os.name == "nt":  # folders cannot be opened there, and renames are flushed with the journal
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Lock an existing file or folder against other processes and threads that call this.

    Without locks in the file system, nothing is locked.

    Raises:
        BlockingIOError: The lock is taken, and `wait` is False.
    """
    if _flock is None:
        yield
        return
    while True:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            try:
                _flock(descriptor, _ALONE | (0 if wait else _AT_ONCE))
            except BlockingIOError:
                raise
            except OSError as error:
                _log.debug("%s is not locked: %s", path, error)
            if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
                continue  # who had it put another one into its place
            yield
            return
        finally:
            # Closing alone would leave it to a process that was forked meanwhile.
            with suppress(OSError):
                _flock(descriptor, _FREE)
            os.close(descriptor)
