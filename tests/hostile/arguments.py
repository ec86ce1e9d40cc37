"""Kinds of arguments: a valid value and its other forms, labelled by the outcome of the call.

SAME     the call returns the result of the valid value
MAYBE    the call returns the result of the valid value, or raises an error
ANY      the call returns any result, or raises an error
INVALID  the call raises an error
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

SAME, MAYBE, ANY, INVALID = "same", "maybe", "any", "invalid"
Form = Callable[[Any], Any]


@dataclass(frozen=True)
class Argument:
    """Argument of a call: a function that creates a valid value, and other forms by name."""

    make: Callable[[], Any]
    forms: Mapping[str, tuple[str, Form]]
    written: bool = False  # the call writes to the value
    drawn: bool = True  # Hypothesis may replace the value with anything
    names: tuple[str, ...] = ()  # other names of the argument in errors


def label_forms(outcome: str, forms: Mapping[str, Form]) -> dict[str, tuple[str, Form]]:
    return {name: (outcome, form) for name, form in forms.items()}


def constant(value: Any) -> Form:
    return lambda _: value


def constants(values: Mapping[str, Any]) -> dict[str, Form]:
    return {name: constant(value) for name, value in values.items()}


def without(argument: Argument, *names: str) -> Argument:
    """Return an argument without some forms."""
    forms = dict(argument.forms)
    for name in names:
        del forms[name]
    return replace(argument, forms=forms)


def with_outcome(argument: Argument, outcome: str, *names: str) -> Argument:
    """Return an argument with another outcome for some forms."""
    forms = {name: (outcome, argument.forms[name][1]) for name in names}
    return replace(argument, forms={**argument.forms, **forms})


def optional(value: Any) -> Argument:
    """Return an argument that accepts None."""
    argument = to_argument(value)
    forms = {name: form for name, form in argument.forms.items() if name != "not None"}
    return replace(argument, forms=forms | label_forms(ANY, {"None": constant(None)}))


class ArraySubclass(np.ndarray):
    pass


class StrSubclass(str):
    __slots__ = ()


class ArrayLike:
    """Object with `__array__`, like tensors of other libraries."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numbers


class BrokenObject:
    """Object whose special methods raise errors."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise ValueError("broken")

    __len__ = __getitem__ = __index__ = __float__ = __bool__ = __repr__ = __iter__ = __array__


def as_read_only(x: Any) -> Any:
    x = x.copy(order="K")
    x.flags.writeable = False
    return x


def as_strided(x: Any) -> Any:
    """Return every other element of a larger array."""
    large = np.zeros(tuple(2 * n for n in x.shape), x.dtype)
    view = large[tuple(slice(None, None, 2) for _ in x.shape)]
    view[...] = x
    return view


def reversed_strides(x: Any) -> Any:
    back = tuple(slice(None, None, -1) for _ in x.shape)
    return x[back].copy()[back]


def as_misaligned(x: Any) -> Any:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    copy = raw[1:].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def byte_swapped(x: Any) -> Any:
    return x.astype(x.dtype.newbyteorder())


def cast(dtype: str) -> Form:
    def form(x: Any) -> Any:
        with np.errstate(all="ignore"):
            return x.astype(dtype)

    return form


def fill(value: Any, dtype: str = "f8") -> Form:
    return lambda x: np.full(x.shape, value, dtype)


def replace_last(value: Any) -> Form:
    """Replace the last number."""

    def form(x: Any) -> Any:
        copy = x.astype(float)
        copy.flat[-1] = value
        return copy

    return form


LAYOUTS: dict[str, Form] = {
    "Fortran": np.asfortranarray,
    "strided": as_strided,
    "reversed": reversed_strides,
    "byte-swapped": byte_swapped,
    "misaligned": as_misaligned,
    "subclass": lambda x: x.view(ArraySubclass),
}
COPIES: dict[str, Form] = {
    "read-only": as_read_only,
    "list": lambda x: x.tolist(),
    "array-like": ArrayLike,
    "read-only, strided, swapped": lambda x: as_read_only(as_strided(byte_swapped(x))),
}
OBJECTS = constants({"text": "abc", "a class": int}) | {
    "None": constant(None),
    "an object": lambda _: object(),
    "broken": lambda _: BrokenObject(),
}
NO_ARRAY: dict[str, Form] = OBJECTS | {
    "a dict": constant({0: 1}),
    "bytes": constant(b"abc"),
    "ragged": constant([[1.0], [1.0, 2.0], 3.0]),
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
    "one axis more in front": lambda x: x[None],
    "one axis less": lambda x: x[0],
    "33 axes": lambda x: x.reshape(*x.shape, *[1] * (33 - x.ndim)),
    "40 axes of 10,000 rows": lambda x: np.resize(x, (10_000, *[1] * 39)),
    "scalar": lambda x: x.ravel()[0],
    "broadcast": lambda x: np.broadcast_to(x.ravel()[:1], (*x.shape, 3)),
    "a terabyte": lambda x: np.broadcast_to(x.ravel()[0], (2**20, 2**20)),
    "2**58 numbers": lambda x: np.broadcast_to(x.ravel()[0], (2**30, 2**28)),
}
NUMBERS: dict[str, Form] = {
    "zeros": fill(0),
    "NaN": replace_last(np.nan),
    "inf": replace_last(np.inf),
    "-inf": replace_last(-np.inf),
    "1e300": fill(1e300),
    "denormal": fill(5e-324),
    "-(2**63)": fill(-(2**63), "i8"),
    "2**64 - 1": fill(2**64 - 1, "u8"),
    "2**70": fill(2**70, "O"),
}
NO_SCALAR: dict[str, Form] = OBJECTS | {
    "digits": lambda x: str(x),
    "bytes": constant(b"1"),
    "a dict": constant({}),
    "a list": lambda x: [x, x],
    "complex": lambda x: x + 1j,
    "no numbers": lambda _: np.zeros(0),
    "two numbers": lambda x: np.full(2, x),
}
HUGE = {f"2**{n}": 2**n for n in (31, 32, 40, 53, 62, 63, 64)} | {"10**400": 10**400}
TEXTS = {
    "empty": "",
    "unknown": "nonsense",
    "long": "x" * 100_000,
    "null": "\0",
    "surrogate": "\ud800",
    "braces": "{} %s",
}
FLOATS = ("f2", ">f2", "f4", ">f4", "f8", ">f8", "g")
INTEGERS = ("i1", "i2", ">i4", "i8", "u1", "u4", "u8", ">u8")


def array(value: np.ndarray) -> Argument:
    """Return an array. Calls accept every dtype that represents the values exactly."""
    dtype_kind = value.dtype.kind
    accepted = {"f": FLOATS + INTEGERS, "i": INTEGERS, "u": INTEGERS, "b": ()}[dtype_kind]
    forms = label_forms(SAME, LAYOUTS | COPIES) | label_forms(ANY, SHAPES | NUMBERS)
    forms |= label_forms(INVALID, NO_ARRAY) | {"O": (MAYBE, cast("O")), "?": (ANY, cast("?"))}
    with np.errstate(all="ignore"):
        for name in FLOATS + INTEGERS:
            exact = np.array_equal(value.astype(name), value)
            forms[name] = (ANY if not exact else SAME if name in accepted else MAYBE, cast(name))
    if dtype_kind == "b":
        forms["bytes of 255"] = (SAME, lambda x: (x.astype("u1") * 255).view("?"))
        forms["twos"] = (ANY, fill(2, "i8"))
    if dtype_kind != "f":
        forms["fractions"] = (ANY, replace_last(0.5))
    return Argument(value.copy, forms)


def floats(*values: Any, shape: tuple[int, ...] | None = None, dtype: str = "f8") -> Argument:
    return array(np.array(values, dtype) if shape is None else np.resize(values, shape).astype(dtype))


def integers(*values: Any, shape: tuple[int, ...] | None = None) -> Argument:
    return floats(*values, shape=shape, dtype="i8")


def booleans(*values: Any, shape: tuple[int, ...] | None = None) -> Argument:
    return floats(*values, shape=shape, dtype="?")


def output_array(shape: tuple[int, ...], dtype: str = "f8") -> Argument:
    """Return an array that the call writes to. Calls do not accept copies."""
    other = {name: cast(name) for name in ("f4", "f8", "i8", "u1", "?", "O") if name != dtype}
    invalid = NO_ARRAY | SHAPES | COPIES | other | {"memoryview": memoryview}
    forms = label_forms(MAYBE, LAYOUTS) | label_forms(INVALID, invalid)
    forms["broadcast"] = (ANY, SHAPES["broadcast"])
    return Argument(lambda: np.zeros(shape, dtype), forms, written=True)


def integer(value: int) -> Argument:
    types = {"np.int64": np.int64, "np.int32": np.int32, "np.uint8": np.uint8}
    reals = {"float": float, "np.float64": np.float64, "0-d": np.asarray, "fraction": Fraction}
    numbers: dict[str, Any] = {str(n): n for n in (0, -1, -(2**63), -(10**400))} | HUGE
    numbers |= {"0.5": 0.5, "NaN": np.nan, "inf": np.inf, "1e300": 1e300, "True": True}
    forms = label_forms(SAME, types) | label_forms(MAYBE, reals) | label_forms(ANY, constants(numbers))
    return Argument(lambda: value, forms | label_forms(INVALID, NO_SCALAR))


def real(value: float) -> Argument:
    """Return a real number that float32 represents exactly."""
    types = {"np.float64": np.float64, "np.float32": np.float32}
    reals = {"0-d": np.asarray, "np.float16": np.float16, "fraction": Fraction}
    numbers: dict[str, Any] = {str(x): x for x in (0, -1.0, 2.0, 5e-324, 1e308)} | HUGE
    numbers |= {"NaN": np.nan, "inf": np.inf, "-inf": -np.inf, "True": True}
    forms = label_forms(SAME, types) | label_forms(MAYBE, reals) | label_forms(ANY, constants(numbers))
    return Argument(lambda: value, forms | label_forms(INVALID, NO_SCALAR))


def boolean(value: bool) -> Argument:
    numbers = {"1": constant(1), "0": constant(0), "0-d": np.asarray, "np.int8": np.int8}
    invalid = NO_SCALAR | constants({"0.5": 0.5, "NaN": np.nan, "2": 2})
    forms = label_forms(SAME, {"np.bool": np.bool_}) | label_forms(ANY, numbers)
    return Argument(lambda: value, forms | label_forms(INVALID, invalid))


def choice(value: str) -> Argument:
    """Return one of a few strings."""
    invalid = NO_SCALAR | constants(TEXTS | {"3": 3, "complex": 1j, "two numbers": np.zeros(2)})
    forms = label_forms(SAME, {"np.str": np.str_, "subclass": StrSubclass}) | label_forms(INVALID, invalid)
    return without(Argument(lambda: value, forms), "digits", "text")


def dtype(value: str) -> Argument:
    """Return a dtype: its name, a scalar type or a numpy.dtype."""
    argument = without(choice(value), "a class")
    same = {"numpy.dtype": np.dtype, "scalar type": lambda x: np.dtype(x).type}
    forms = label_forms(SAME, same) | label_forms(INVALID, {"another class": constant(dict)})
    return replace(argument, forms={**argument.forms, **forms})


def path(make: Callable[[], str]) -> Argument:
    """Return the path of a file or folder. Any string can be a path."""
    forms = {**choice("").forms, **label_forms(ANY, constants(TEXTS)), "Path": (SAME, Path)}
    return Argument(make, forms, drawn=False)


def string(value: str) -> Argument:
    """Return a string that any other string can replace."""
    return without(path(lambda: value), "Path")


def none() -> Argument:
    """Return None. Calls accept no other value."""
    forms = {"text": constant("abc"), "not None": lambda _: object()}
    return Argument(lambda: None, label_forms(INVALID, forms))


def instance(make: Callable[[], Any]) -> Argument:
    """Return an object of a class of rlox, or a function."""
    invalid = {name: NO_ARRAY[name] for name in ("None", "text", "a dict", "an object", "broken")}
    invalid |= constants({"a number": 3, "numbers": np.zeros(3)}) | {"a list": lambda x: [x]}
    return Argument(make, label_forms(INVALID, invalid), written=True)


def duration(value: float) -> Argument:
    """Return a number that determines the time of a call."""
    argument = to_argument(value)
    huge = [name for name in (*HUGE, "1e300", "1e+308") if name in argument.forms]
    return replace(without(argument, *huge), drawn=False)


def forms_of_parts(
    parts: Mapping[Any, Argument], build: Callable[[dict[Any, Any]], Any]
) -> dict[str, tuple[str, Form]]:
    """Return the forms of a value with one part in another form."""
    found = {}
    for key, part in parts.items():
        for name, (outcome, form) in part.forms.items():

            def change_one(_: Any, key: Any = key, form: Form = form) -> Any:
                values = {k: p.make() for k, p in parts.items()}
                return build(values | {key: form(values[key])})

            found[f"{key}: {name}"] = (outcome, change_one)
    return found


def mapping(values: Mapping[str, Any] | Callable[[], Mapping[str, Any]], written: bool = False) -> Argument:
    """Return a dict or a function that creates a dict. Only dicts have forms of their values."""
    parts = {} if callable(values) else {key: to_argument(x) for key, x in values.items()}
    make = values if callable(values) else lambda: {key: x.make() for key, x in parts.items()}
    keys: dict[str, Form] = {
        "empty": constant({}),
        "one key more": lambda x: {**x, "more": 1.0},
        "a number as key": lambda x: {**x, 3: 1.0},
        "surrogates as key": lambda x: {**x, "\ud800": 1.0},
    }
    for key in parts:
        keys[f"without {key}"] = lambda x, key=key: {k: v for k, v in x.items() if k != key}
    forms = forms_of_parts(parts, dict) | label_forms(ANY, keys) | label_forms(INVALID, OBJECTS)
    forms["numbers"] = (INVALID, constant(np.ones(3)))
    return Argument(make, forms, written=written)


def sequence(*values: Any, cls: type = list, written: bool = False) -> Argument:
    """Return a sequence."""
    parts = {i: to_argument(x) for i, x in enumerate(values)}

    def build(items: Mapping[int, Any]) -> Any:
        return cls(items[i] for i in range(len(items)))

    lengths: dict[str, Form] = {
        "longer": lambda x: cls([*x, *x]),
        "shorter": lambda x: x[:-1],
        "empty": constant(cls()),
        "a dict": lambda x: dict(enumerate(x)),
        "text": constant("abc"),
    }
    forms = forms_of_parts(parts, build) | label_forms(INVALID, OBJECTS) | label_forms(ANY, lengths)
    return Argument(lambda: build({i: x.make() for i, x in parts.items()}), forms, written=written)


def function_returning(value: Any, *names: str) -> Argument:
    """Return a function of observations that returns the value."""
    argument = to_argument(value)

    def function(form: Form) -> Form:
        return lambda _: lambda *_: form(argument.make())

    forms = {name: (outcome, function(form)) for name, (outcome, form) in argument.forms.items()}
    others = {f"not {name}": form for name, (_, form) in instance(list).forms.items()}
    forms |= label_forms(INVALID, others)
    return Argument(lambda: lambda *_: argument.make(), forms, drawn=False, names=names)


def to_argument(value: Any) -> Argument:
    """Return the argument of a valid value. Functions create objects of rlox."""
    match value:
        case Argument():
            return value
        case None:
            return none()
        case bool():
            return boolean(value)
        case int():
            return integer(value)
        case float():
            return real(value)
        case str():
            return choice(value)
        case np.ndarray():
            return array(value)
        case list() | tuple():
            return sequence(*value, cls=type(value))
        case dict():
            return mapping(value)
    return instance(value)
