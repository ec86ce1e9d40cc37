"""What all processes of a group must have alike: compared before anything is made of it."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlox.distributed.ranks import Ranks

# How much of what differs is told, and how many ranks by their numbers.
_TOLD = 4
# Characters of a value that are told.
_LONG = 200
# What stands for settings that were refused.
_REFUSED = "settings"


def expect_alike(ranks: "Ranks", told: Mapping[str, object], fix: str) -> None:
    """Every rank has the same; called on all of them.

    They exchange a digest and, only where that differs, what they have.

    Args:
        ranks: All of them.
        told: What this one has, by name: strings, and what has a `repr` that says it.
        fix: What to do where others have something else.

    Raises:
        ValueError: They differ: in what, and who has what, in the same words on every rank.
        rlox.distributed.ddp.PeerError: Another one failed.
    """
    own = {name: x if isinstance(x, str) else repr(x) for name, x in told.items()}
    text = json.dumps(own).encode()
    digest = hashlib.sha256(text).digest()
    # Six bytes are an integer that a double holds.
    rows = ranks.gather(float(int.from_bytes(digest[i : i + 6], "big")) for i in (0, 6))
    if (rows == rows[0]).all():
        return
    said = b""
    if ranks.leads:
        each = [own, *(json.loads(ranks.take(k)) for k in range(1, ranks.size))]
        said = differing(dict(enumerate(each)), fix).encode()
    else:
        ranks.give(text)
    raise ValueError(ranks.tell(said).decode())


def expect_alike_or_refused(
    ranks: "Ranks", tell: Callable[[], Mapping[str, object]], fix: str
) -> None:
    """`expect_alike` for what may be refused on some ranks: then all end with what was said there.

    Raises:
        ValueError: They differ.
            What `tell` raises, where it raises the same on every rank.
    """
    try:
        told = tell()
    except (TypeError, ValueError) as error:
        expect_alike(ranks, refused(error), fix)
        raise
    expect_alike(ranks, told, fix)


def refused(error: Exception) -> dict[str, str]:
    """What `expect_alike` takes from a rank whose settings were refused."""
    return {_REFUSED: f'"{type(error).__name__}: {error}"'}


def differing(each: Mapping[int, Mapping[str, str]], fix: str) -> str:
    """In what ranks differ, and who has what; empty where they do not.

    >>> print(differing({0: {"n_steps": "8"}, 1: {"n_steps": "16"}, 2: {"n_steps": "8"}}, "stop"))
    n_steps: expected the same on every rank, got 8 on ranks 0 and 2, 16 on rank 1; stop
    """
    names = [_REFUSED] if any(_REFUSED in one for one in each.values()) else []
    names = names or [*dict.fromkeys(chain.from_iterable(each.values()))]
    names = [name for name in names if len({one.get(name) for one in each.values()}) > 1]
    if not names:
        return ""
    few, holders = names[:_TOLD], dict[tuple[str, ...], list[int]]()
    for rank, one in each.items():
        without = "no error" if few == [_REFUSED] else "none"
        values = tuple(_cut(one.get(name, without)) for name in few)
        holders.setdefault(values, []).append(rank)

    def had(values: tuple[str, ...]) -> str:
        if len(few) == 1:
            return values[0]
        return " ".join(f"{name}={x}" for name, x in zip(few, values, strict=True))

    got = [f"{had(values)} on {_called(ranks)}" for values, ranks in holders.items()]
    more = f" (and {len(names) - _TOLD} more)" if len(names) > _TOLD else ""
    return f"{', '.join(few)}{more}: expected the same on every rank, got {_few(got, ', ')}; {fix}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def _called(ranks: Sequence[int]) -> str:
    """Ranks by their numbers.

    >>> _called([3]), _called([0, 2]), _called(range(9))
    ('rank 3', 'ranks 0 and 2', 'ranks 0, 1, 2, 3 and 5 more')
    """
    numbers = [*map(str, ranks)]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) <= _TOLD:
        return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
    return f"ranks {_few(numbers, ', ')}"


def _few(parts: Sequence[str], between: str) -> str:
    more = f" and {len(parts) - _TOLD} more" if len(parts) > _TOLD else ""
    return between.join(parts[:_TOLD]) + more
