"""Arguments of calls: right values, other forms that mean the same, and hostile ones.

What a form promises:
  same       the call is accepted, and the answer is that of the right value
  maybe      if the call is accepted, so is the answer
  odd        an answer of some kind, or a refusal
  senseless  a refusal
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
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


KINDS = ("same", "maybe", "odd", "senseless")


@dataclass(frozen=True)
class Argument:
    """How to make a right value, anew each time, and what to make of it."""

    make: Callable[[], Any]
    same: Mapping[str, Form] = field(default_factory=dict)
    maybe: Mapping[str, Form] = field(default_factory=dict)
    odd: Mapping[str, Form] = field(default_factory=dict)
    senseless: Mapping[str, Form] = field(default_factory=dict)
    written: bool = False  # the call writes into it
    drawn: bool = True  # any value may come in its place: none makes the call endless
    called: tuple[str, ...] = ()  # what errors may call it besides its name

    def forms(self) -> Iterator[tuple[str, str, Form]]:
        """(kind, name, form) of every form."""
        for kind in KINDS:
            for name, form in getattr(self, kind).items():
                yield kind, name, form


def optional(argument: Argument) -> Argument:
    """None is right, too, though the answer is another."""
    none = ("None", "not None")
    senseless = {name: form for name, form in argument.senseless.items() if name not in none}
    return replace(argument, senseless=senseless, odd={**argument.odd, "None": always(None)})


def but(argument: Argument, *names: str, **moved: tuple[str, ...]) -> Argument:
    """Without the named forms, or with forms moved: `but(x, "huge", odd=("0.5",))`."""
    every = {name: form for _, name, form in argument.forms()}
    kinds = {kind: dict(getattr(argument, kind)) for kind in KINDS}
    for name in (*names, *(name for some in moved.values() for name in some)):
        assert name in every, name
        for forms in kinds.values():
            forms.pop(name, None)
    for kind, some in moved.items():
        kinds[kind] |= {name: every[name] for name in some}
    return replace(argument, **kinds)


def floats(*values: Any, shape: tuple[int, ...] | None = None, dtype: str = "f8") -> Argument:
    """Real numbers that all real dtypes can hold."""

    def make() -> Any:
        array = np.array(values, dtype)
        return array if shape is None else np.resize(array, shape)

    whole = np.all(np.mod(make(), 1) == 0)
    exact = ("f2", ">f2", "f4", ">f4", "f8", ">f8", "g", "O")
    dtypes = {name: cast(name) for name in (*exact, *(("i1", ">i4", "i8") if whole else ()))}
    # What objects hold is for NumPy to say, and need not be looked at.
    return Argument(
        make,
        same=LAYOUTS | {name: form for name, form in dtypes.items() if name != "O"},
        maybe={"O": dtypes["O"]},
        odd=SHAPES | NUMBERS | {"bool": cast("?")},
        senseless=NO_ARRAY,
    )


def wholes(*values: Any, shape: tuple[int, ...] | None = None) -> Argument:
    """Small integers."""
    plain = floats(*values, shape=shape, dtype="i8")
    dtypes = ("i1", "i2", ">i2", "i4", ">i4", "u1", "u2", "u4", "u8", ">u8")
    more = {"fractions": one(0.5), "bool": cast("?")}
    return replace(
        plain,
        same=LAYOUTS | {name: cast(name) for name in dtypes},
        maybe={"O": cast("O"), "f8": cast("f8"), "f4": cast("f4")},
        odd=SHAPES | NUMBERS | more,
    )


def flags(*values: Any, shape: tuple[int, ...] | None = None) -> Argument:
    """Booleans; whoever takes numbers for them takes 0 and 1."""
    plain = floats(*values, shape=shape, dtype="?")
    dtypes = ("u1", "i8", ">i4", "f4", "f8", "O")
    strange = {"bytes of 255": lambda x: (x.astype("u1") * 255).view("?")}
    return replace(
        plain,
        same=LAYOUTS | strange,
        maybe={name: cast(name) for name in dtypes},
        odd=SHAPES | NUMBERS | {"twos": filled(2, "i8"), "halves": filled(0.5)},
    )


def out(make: Callable[[], Any]) -> Argument:
    """An array that is written into: it is what it is, or refused."""
    copies = ("list", "teller", "read-only", "everything")
    other = {
        "f4": lambda x: x.astype("f4" if x.dtype != "f4" else "f8"),
        "i8": cast("i8"),
        "u1": cast("u1"),
        "O": cast("O"),
        "memoryview": memoryview,
    }
    shapes = {name: form for name, form in SHAPES.items() if name != "broadcast"}
    return Argument(
        make,
        maybe={name: form for name, form in LAYOUTS.items() if name not in copies},
        odd={"broadcast": SHAPES["broadcast"]},
        senseless=NO_ARRAY | other | shapes | {name: LAYOUTS[name] for name in copies},
        written=True,
    )


def whole(value: int) -> Argument:
    """An integer."""
    small = {str(n): n for n in (0, -1, -2, -(2**31), -(2**63), -(10**400))} | HUGE
    strange = {"0.5": 0.5, "NaN": np.nan, "inf": np.inf, "1e300": 1e300, "True": True}
    return Argument(
        always_new(value),
        same={"np.int64": np.int64, "np.int32": np.int32, "np.uint8": np.uint8},
        maybe={"float": float, "np.float64": np.float64, "0-d": np.asarray, "fraction": Fraction},
        odd={name: always(x) for name, x in (small | strange).items()},
        senseless=NO_SCALAR,
    )


def nothing() -> Argument:
    """None, and nothing else."""
    return Argument(lambda: None, senseless={"text": always("abc"), "an object": always(object())})


def always_new(value: Any) -> Callable[[], Any]:
    return lambda: value


def number(value: float) -> Argument:
    """A real number; one that float32 has."""
    bounds = {str(x): x for x in (0, 1, -1.0, 2.0, 1e-300, 5e-324, 1e308, -1e308)} | HUGE
    strange = {"NaN": np.nan, "inf": np.inf, "-inf": -np.inf, "True": True}
    return Argument(
        always_new(value),
        same={"np.float64": np.float64, "np.float32": np.float32},
        maybe={"0-d": np.asarray, "np.float16": np.float16, "fraction": Fraction},
        odd={name: always(x) for name, x in (bounds | strange).items()},
        senseless=NO_SCALAR,
    )


def flag(value: bool) -> Argument:
    """True or False."""
    numbers = {"1": always(1), "0": always(0), "0-d": np.asarray, "np.int8": np.int8}
    senseless = {**NO_SCALAR, "0.5": always(0.5), "NaN": always(np.nan), "2": always(2)}
    return Argument(always_new(value), {"np.bool": np.bool_}, {}, numbers, senseless)


def text(value: str) -> Argument:
    """One of a few texts."""
    senseless = {name: form for name, form in NO_SCALAR.items() if name not in ("digits", "text")}
    senseless |= {name: always(x) for name, x in TEXTS.items()} | {"3": always(3)}
    senseless["complex"] = always(1j)
    senseless["two numbers"] = always(np.zeros(2))
    return Argument(always_new(value), {"np.str": np.str_, "subclass": Text}, senseless=senseless)


def dtype(value: str) -> Argument:
    """A dtype as NumPy has it: its name, a class or a numpy.dtype."""
    said = text(value)
    same = {**said.same, "numpy.dtype": np.dtype, "a scalar's class": lambda x: np.dtype(x).type}
    senseless = {name: form for name, form in said.senseless.items() if name != "a class"}
    return replace(said, same=same, senseless={**senseless, "another class": always(dict)})


def thing(make: Callable[[], Any]) -> Argument:
    """An object of one of our classes, or a function."""
    senseless = {
        **{name: NO_ARRAY[name] for name in ("None", "text", "a dict", "an object", "broken")},
        "a number": always(3),
        "numbers": always(np.zeros(3)),
        "a list": lambda x: [x],
    }
    return Argument(make, senseless=senseless, written=True)


def within(
    parts: Mapping[Any, Argument], build: Callable[[Mapping[Any, Any]], Any]
) -> dict[str, dict[str, Form]]:
    """The forms in which one part has another form."""
    kinds: dict[str, dict[str, Form]] = {kind: {} for kind in KINDS}
    for key, part in parts.items():
        for kind, name, form in part.forms():

            def changed(_: Any, key: Any = key, form: Form = form) -> Any:
                made = {k: p.make() for k, p in parts.items()}
                return build(made | {key: form(made[key])})

            kinds[kind][f"{key}: {name}"] = changed
    return kinds


def endless(argument: Argument) -> Argument:
    """A count of which the call takes as long as it is large: no large ones."""
    return replace(but(argument, *HUGE, "1e300"), drawn=False)


def some(make: Callable[[], Any], like: Argument) -> Argument:
    """A right value beside which others are as wrong as they are for another argument."""
    return Argument(make, senseless=like.senseless)


def path(make: Callable[[], str]) -> Argument:
    """Where a file or folder is; any text may be one."""
    plain = text("")
    wrong = {name: form for name, form in plain.senseless.items() if name not in TEXTS}
    odd = {name: always(x) for name, x in TEXTS.items()}
    same = {"Path": lambda x: Path(x), **plain.same}
    return Argument(make, same=same, odd=odd, senseless=wrong, drawn=False)


def saying(argument: Argument, *called: str) -> Argument:
    """A function of observations that says it."""

    def says(form: Form) -> Form:
        return lambda _: lambda *_: form(argument.make())

    kinds = {
        kind: {name: says(form) for name, form in getattr(argument, kind).items()} for kind in KINDS
    }
    kinds["senseless"] |= {f"not {name}": form for name, form in thing(list).senseless.items()}
    return Argument(lambda: lambda *_: argument.make(), **kinds, drawn=False, called=called)


def record(make: Callable[[], Mapping[str, Any]], **parts: Argument) -> Argument:
    """A dict; each key is left out and given in all forms, strange keys are added."""
    parts = {key: replace(part, make=lambda key=key: make()[key]) for key, part in parts.items()}
    kinds = within(parts, dict)
    for key in parts:
        kinds["odd"][f"without {key}"] = lambda x, key=key: {k: v for k, v in x.items() if k != key}
    kinds["odd"] |= {
        "empty": always({}),
        "one key more": lambda x: {**x, "more": 1.0},
        "a number as key": lambda x: {**x, 3: 1.0},
        "surrogates as key": lambda x: {**x, "\ud800": 1.0},
    }
    for name in ("None", "text", "an object", "a class", "broken"):
        kinds["senseless"][name] = NO_ARRAY[name]
    kinds["senseless"]["numbers"] = always(np.ones(3))
    return Argument(make, **kinds)


def row(*items: Argument, kind: type = list, written: bool = False) -> Argument:
    """A sequence; each item is given in all forms, others are of other lengths."""
    parts = dict(enumerate(items))

    def build(made: Mapping[Any, Any]) -> Sequence[Any]:
        return kind(made[i] for i in range(len(made)))

    def make() -> Any:
        return build({i: item.make() for i, item in parts.items()})

    kinds = within(parts, build)
    kinds["odd"] |= {
        "longer": lambda x: kind([*x, *x]),
        "shorter": lambda x: x[:-1],
        "empty": always(kind()),
        "a dict": lambda x: dict(enumerate(x)),
        "text": always("abc"),
    }
    for name in ("None", "an object", "a class", "broken"):
        kinds["senseless"][name] = NO_ARRAY[name]
    return Argument(make, **kinds, written=written)
