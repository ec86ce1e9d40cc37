"""Pickles read without running anything of them: classes that they name are never imported.

A pickle is a program for a small machine. Here that machine has only the operations that put
together numbers, texts, lists and dicts; where it names a class or a function, an `Inert` stands
for it, which keeps what it is given.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError

# What pickles of plain objects and arrays consist of.
_OPERATIONS = {
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "MEMOIZE", "PUT", "BINPUT"),
    *("LONG_BINPUT", "GET", "BINGET", "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "INT", "LONG"),
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("BYTEARRAY8", "EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1"),
    *("TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS"),
    *("FROZENSET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "BUILD"),
}


class Inert:
    """What stands for an object: the name of its class or function, arguments and state."""

    named = ""
    """ "module.name" of what made it."""

    def __new__(cls, *args: object, **keywords: object) -> "Inert":
        """Keeps the arguments."""
        made = super().__new__(cls)
        made.args, made.state = args, None
        return made

    args: tuple[Any, ...]
    state: Any

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[Inert]:
        """A class that does nothing, by that name."""
        return type("Inert", (Inert,), {"named": f"{module}.{name}"})


def read_pickle(data: bytes) -> Any:
    """What a pickle describes, with an `Inert` for each object of a class.

    Raises:
        ValueError: It is damaged, or has other operations than those of plain objects.

    >>> import fractions
    >>> made = read_pickle(pickle.dumps({"half": fractions.Fraction(1, 2)}))["half"]
    >>> made.named, made.args
    ('fractions.Fraction', (1, 2))
    """
    try:
        operations = {operation.name for operation, _, _ in pickletools.genops(data)}
        if others := sorted(operations - _OPERATIONS):
            raise ValueError(f"the operation {others[0]}")
        return _Reader(io.BytesIO(data)).load()  # names lead to `Inert` alone
    except Exception as error:  # of a machine that is given nonsense
        raise ArgumentError(
            "pickle",
            "one of plain objects and arrays",
            f"{type(error).__name__}: {error}",
            "use another copy",
        ) from error


def array(told: Any) -> npt.NDArray[np.float64]:
    """The numbers of an array, or one number, that a pickle describes.

    Raises:
        ValueError: It is none of float32 or float64.

    >>> array(read_pickle(pickle.dumps(np.array([1.0, 2.5]))))
    array([1. , 2.5])
    """
    if isinstance(told, int | float):
        return np.array(told, np.float64)
    try:
        order: Any = "C"
        match told.named.rpartition(".")[2]:
            case "_reconstruct":
                _, shape, kind, fortran, data = told.state
                order = "F" if fortran else "C"
            case "_frombuffer":
                data, kind, shape, order = told.args
            case "scalar":
                (kind, data), shape = told.args, ()
            case name:
                raise ValueError(name)
        name, byte_order = kind.args[0], kind.state[1]
        if name not in ("f4", "f8") or byte_order not in "<>|=" or order not in ("C", "F"):
            raise ValueError(f"{byte_order}{name}")
        numbers = np.frombuffer(bytes(data), byte_order.replace("|", "<") + name)
        plain: npt.NDArray[np.float64] = numbers.reshape(shape, order=order).astype(np.float64)
    except (AttributeError, TypeError, ValueError, IndexError, KeyError) as error:
        raise ArgumentError(
            "pickle", "an array of float32 or float64", str(error), "use another copy"
        ) from error
    return plain
