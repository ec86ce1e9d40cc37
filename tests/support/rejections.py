"""Tables of rejected calls: call, type of the error, argument and a part of the hint."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Rejection(NamedTuple):
    """Call that must raise an error.

    Errors of Python and of other libraries have no attributes: their messages contain `argument`
    and `hint`.
    """

    call: Callable[..., Any]
    error: type[Exception]
    argument: str
    hint: str = ""


def rejections(*rows):
    """Parametrize a test over rows, each of which becomes a `Rejection`."""
    table = [Rejection(*row) for row in rows]
    ids = [f"{index}-{row.argument}" for index, row in enumerate(table)]
    return pytest.mark.parametrize("rejection", table, ids=ids)


def expect_rejection(rejection, *args):
    """Check the type, the argument and the hint of the error that a call raises."""
    with rejects(rejection.error, rejection.argument, rejection.hint):
        rejection.call(*args)


@contextlib.contextmanager
def rejects(error, argument, hint="", **attributes):
    """Expect an error of exactly this type, with this argument and a hint that contains `hint`.

    An error of rlox must have a hint, unless `hint` is None. Yields the `ExceptionInfo` of pytest.

    `attributes` are compared with ``==``: `expected`, `got` and the location (`env`, `row`,
    `column`, `index`, `step`, `timesteps`, `section`, `worker`), or `errno` and `name` of an
    OSError or ImportError.
    """
    with pytest.raises(error) as raised:
        yield raised
    exception = raised.value
    assert type(exception) is error, repr(exception)
    assert {name: getattr(exception, name) for name in attributes} == attributes, exception
    if hasattr(exception, "argument"):
        assert exception.argument == argument, exception
        if hint is None:
            assert exception.hint is None, exception
        else:
            assert exception.hint, exception
            assert hint in exception.hint, exception
    else:
        assert argument in str(exception), exception
        assert hint in str(exception), exception
