"""Other forms of right values: of arrays, of numbers, and texts."""

from collections.abc import Callable
from typing import Any

import numpy as np

Form = Callable[[Any], Any]


def always(value: Any) -> Form:
    return lambda _: value


class Sub(np.ndarray):
    """A subclass of arrays."""


class Told:
    """Tells its numbers when asked, as tensors of other libraries do."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numbers


class Broken:
    """Raises whatever is asked of it."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise ValueError("broken")

    __len__ = __getitem__ = __index__ = __float__ = __bool__ = __repr__ = __iter__ = __array__


def frozen(x: Any) -> Any:
    x = x.copy(order="K")
    x.flags.writeable = False
    return x


def spread(x: Any) -> Any:
    """Every other element of a larger array."""
    large = np.zeros(tuple(2 * n for n in x.shape), x.dtype)
    view = large[tuple(slice(None, None, 2) for _ in x.shape)]
    view[...] = x
    return view


def turned(x: Any) -> Any:
    """Negative strides."""
    back = tuple(slice(None, None, -1) for _ in x.shape)
    return x[back].copy()[back]


def misaligned(x: Any) -> Any:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    copy = raw[1:].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def swapped(x: Any) -> Any:
    return x.astype(x.dtype.newbyteorder())


def cast(dtype: str) -> Form:
    return lambda x: x.astype(dtype)


LAYOUTS: dict[str, Form] = {
    "read-only": frozen,
    "Fortran": np.asfortranarray,
    "strided": spread,
    "reversed": turned,
    "byte-swapped": swapped,
    "misaligned": misaligned,
    "subclass": lambda x: x.view(Sub),
    "list": lambda x: x.tolist(),
    "teller": Told,
    "everything": lambda x: frozen(spread(swapped(x))),
}
NO_ARRAY: dict[str, Form] = {
    "None": always(None),
    "text": always("abc"),
    "bytes": always(b"abc"),
    "a dict": always({0: 1}),
    "an object": lambda _: object(),
    "a class": always(int),
    "broken": lambda _: Broken(),
    "ragged": always([[1.0], [1.0, 2.0], 3.0]),
    "complex": lambda x: x.astype("c16") + 1j,
    "texts": cast("U4"),
    "times": lambda x: x.astype("i8").astype("M8[s]"),
    "structured": lambda x: np.zeros(x.shape, "i4,f4"),
    "void": lambda x: np.zeros(x.shape, "V8"),
    "objects": lambda x: np.full(x.shape, object()),
    "Nones": lambda x: np.full(x.shape, None),
}
SHAPES: dict[str, Form] = {
    "longer": lambda x: np.concatenate([x, x[:1]]),
    "shorter": lambda x: x[:-1],
    "empty": lambda x: x[:0],
    "without rows": lambda x: np.zeros((*x.shape, 0), x.dtype),
    "one axis more": lambda x: x[..., None],
    "one axis less": lambda x: x[0],
    "in front": lambda x: x[None],
    "many axes": lambda x: x.reshape(*x.shape, *[1] * (64 - x.ndim)),
    "more axes at length": lambda x: np.resize(x, (10_000, *[1] * 39)),
    "33 axes": lambda x: x.reshape(*x.shape, *[1] * (33 - x.ndim)),
    "scalar": lambda x: x.ravel()[0],
    "broadcast": lambda x: np.broadcast_to(x.ravel()[:1], (*x.shape, 3)),
    "a terabyte": lambda x: np.broadcast_to(x.ravel()[0], (2**20, 2**20)),
    "2**58 numbers": lambda x: np.broadcast_to(x.ravel()[0], (2**30, 2**28)),
}


def filled(value: Any, dtype: str = "f8") -> Form:
    return lambda x: np.full(x.shape, value, dtype)


def one(value: Any, dtype: str = "f8") -> Form:
    """A strange number in the last place only."""

    def form(x: Any) -> Any:
        copy = x.astype(dtype)
        copy.flat[-1] = value
        return copy

    return form


NUMBERS: dict[str, Form] = {
    "zeros": filled(0),
    "NaN": one(np.nan),
    "all NaN": filled(np.nan),
    "inf": one(np.inf),
    "-inf": one(-np.inf),
    "1e300": filled(1e300),
    "-1e300": filled(-1e300),
    "denormal": filled(5e-324),
    "2**62": filled(2**62, "i8"),
    "-(2**63)": filled(-(2**63), "i8"),
    "2**64 - 1": filled(2**64 - 1, "u8"),
    "2**70": filled(2**70, "O"),
}


NO_SCALAR: dict[str, Form] = {
    "None": always(None),
    "text": always("abc"),
    "digits": lambda x: str(x),
    "bytes": always(b"1"),
    "a dict": always({}),
    "a list": lambda x: [x, x],
    "an object": lambda _: object(),
    "a class": always(float),
    "broken": lambda _: Broken(),
    "complex": lambda x: x + 1j,
    "no numbers": lambda _: np.zeros(0),
    "two numbers": lambda x: np.full(2, x),
}
HUGE = {f"2**{n}": 2**n for n in (31, 32, 40, 53, 62, 63, 64, 100)} | {"10**400": 10**400}


class Text(str):
    """A subclass of texts."""

    __slots__ = ()


TEXTS = {
    "empty": "",
    "unknown": "nonsense",
    "long": "x" * 100_000,
    "null": "\0",
    "surrogate": "\ud800",
    "braces": "{} %s",
}
