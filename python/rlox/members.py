"""A checkpoint's members: arrays become a safetensors file without copies of them.

`safetensors.numpy.save` makes the same bytes in memory first, with further copies on the way, and
replay buffers take as much as there is.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentTypeError
from rlox.learner import Arrays

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
_ORDER = list(_DTYPES)


def checked_member(member: str, given: dict[str, Any]) -> Arrays:
    """The arrays of a member, which `write_member` can write.

    Args:
        member: Its name, for messages.
        given: By name, what NumPy makes arrays of.

    Raises:
        TypeError: One holds other things than numbers of at most 64 bits.

    >>> checked_member("networks", {"w": [1, 2]})
    {'w': array([1, 2])}
    """
    arrays: Arrays = {name: np.asanyarray(x) for name, x in given.items()}
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
    order = sorted(arrays, key=lambda name: (-_ORDER.index(arrays[name].dtype.name), name))
    about, end = dict[str, Any](), 0
    for name in order:
        array, begin = arrays[name], end
        end += array.nbytes
        kind, shape = _DTYPES[array.dtype.name], list(array.shape)
        about[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    head = len(head).to_bytes(8, "little") + head
    digest = hashlib.sha256(head)
    with open(path, "xb") as file:
        file.write(head)
        for name in order:
            for piece in _pieces(arrays[name]):
                digest.update(piece)
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(head) + end, "sha256": digest.hexdigest()}


def _pieces(array: npt.NDArray[Any]) -> Iterator[memoryview]:
    """The bytes of an array as files have them: row by row, the least of a number first."""
    kind = array.dtype.newbyteorder("<")
    plain = np.array(array, kind, order="C", copy=None, subok=False)
    data = plain.reshape(-1).view(np.uint8).data
    for begin in range(0, len(data), _PIECE):
        yield data[begin : begin + _PIECE]
