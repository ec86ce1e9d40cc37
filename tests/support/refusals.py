"""Tables of rejected calls: id, call, error type, argument and a part of the hint."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Refusal(NamedTuple):
    """A call that raises an error. `hint` is a part of the hint, or of the text of other errors."""

    id: str
    call: Callable[..., Any]
    error: type[Exception]
    argument: str
    hint: str = ""


def refusals(*rows):
    """Parametrize a test over rows, each of which becomes a `Refusal`."""
    table = [Refusal(*row) for row in rows]
    return pytest.mark.parametrize("refusal", table, ids=[row.id for row in table])


def expect_refusal(refusal, *args):
    """Check the type, the argument and the hint of the error that a call raises."""
    with pytest.raises(refusal.error) as raised:
        refusal.call(*args)
    error = raised.value
    assert type(error) is refusal.error, repr(error)
    if hasattr(error, "argument"):  # the name of a file, or of an argument
        argument = error.argument.rpartition("/")[2]
        assert argument == refusal.argument, error
    else:
        assert refusal.argument in str(error), error
    assert refusal.hint in (getattr(error, "hint", None) or str(error)), error
