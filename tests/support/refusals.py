"""Tables of rejected calls: call, type of the error, argument and a part of the hint."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Refusal(NamedTuple):
    """A call that raises an error.

    The error of another library or of Python has no attributes: its text contains `argument` and
    `hint`.
    """

    call: Callable[..., Any]
    error: type[Exception]
    argument: str
    hint: str = ""


def refusals(*rows):
    """Parametrize a test over rows, each of which becomes a `Refusal`."""
    table = [Refusal(*row) for row in rows]
    ids = [f"{index}-{row.argument}" for index, row in enumerate(table)]
    return pytest.mark.parametrize("refusal", table, ids=ids)


def expect_refusal(refusal, *args):
    """Check the type, the argument and the hint of the error that a call raises."""
    with pytest.raises(refusal.error) as raised:
        refusal.call(*args)
    error = raised.value
    assert type(error) is refusal.error, repr(error)
    if hasattr(error, "argument"):
        assert error.argument == refusal.argument, error
        assert refusal.hint in (error.hint or ""), error
    else:
        assert refusal.argument in str(error), error
        assert refusal.hint in str(error), error
