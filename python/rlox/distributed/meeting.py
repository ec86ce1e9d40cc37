"""How the processes that torchrun started find each other, and hear of those that do not come."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import torch.distributed as dist

from rlox.distributed.alike import differing
from rlox.distributed.place import Place

T = TypeVar("T")

# Seconds that processes wait for each other in the beginning, at most.
START = 300.0
# Seconds between two looks; those that one which ends with an error gives the others to read it.
_LOOK, _GRACE = 0.05, 5.0
_GROUPS = count()


def meet(where: Place, timeout: float, told: Mapping[str, str]) -> Any:
    """The store in which all processes have come together, and have the same to say.

    Args:
        where: This process.
        timeout: Seconds that it waits for the others.
        told: What all must have alike before they can talk with each other, by name.

    Returns:
        A `torch.distributed.Store`.

    Raises:
        ValueError: They differ; in the same words on every rank.
        RuntimeError: One does not come, or is not to be found; the message says which.
    """
    limit = timedelta(seconds=timeout)
    # As of a world of one: else rank 0 would wait for the others in there, deaf to Ctrl-C.
    found = within(
        timeout,
        lambda: next(dist.rendezvous("env://", world_size=1, timeout=limit))[0],  # type: ignore[attr-defined]  # it does
        f"MASTER_ADDR, MASTER_PORT: expected an answer at {where.address}:{where.port} within "
        f"{timeout:g} s",
        "look whether rank 0 or the launcher runs there, and whether the port is open",
    )
    store = dist.PrefixStore(f"rlox{next(_GROUPS)}", found)  # type: ignore[attr-defined]  # it does
    own = {"WORLD_SIZE": str(where.size), **told}
    try:
        _gather_all(store, where, timeout, own)
    except dist.DistError as error:
        raise RuntimeError(
            f"store: expected who keeps it to go on, rank 0 or the launcher at {where.address}:"
            f"{where.port}, got none; look at its output ({_line(error)})"
        ) from error
    return store


def _gather_all(store: Any, where: Place, timeout: float, own: Mapping[str, str]) -> None:
    store.set(f"here{where.rank}", json.dumps(own))
    seen = {where.rank: own}
    until = time.monotonic() + timeout
    while len(seen) < where.size:
        for rank in range(where.size):
            if rank not in seen and store.check([f"here{rank}"]):
                seen[rank] = json.loads(store.get(f"here{rank}"))
        if unlike := differing(dict(sorted(seen.items())), "start the same on every machine"):
            # The first one to notice says so for all.
            said = store.compare_set("unlike", "", unlike).decode()
            store.add("heard", 1)
            _wait_until_heard(store, len(seen))
            raise ValueError(said)
        if time.monotonic() > until:
            late = [rank for rank in range(where.size) if rank not in seen]
            raise RuntimeError(
                f"rank {', '.join(map(str, late[:8]))}: expected all {where.size} processes within "
                f"{timeout:g} s, got {len(seen)}; look at the output of the missing, or start "
                "fewer"
            )
        time.sleep(_LOOK)


def _wait_until_heard(store: Any, size: int) -> None:
    """Gives those who have come time to read why it ends, as the store may end with this one."""
    until = time.monotonic() + _GRACE
    while time.monotonic() < until and store.add("heard", 0) < size:
        time.sleep(_LOOK)


def within(seconds: float, call: Callable[[], T], expected: str, fix: str) -> T:
    """What a call gives that is deaf to Ctrl-C, which this is not.

    Raises:
        RuntimeError: It takes longer, or fails.
    """
    came: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            came.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="rlox-ddp-begin", daemon=True)
    thread.start()
    until = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < until:
        thread.join(_LOOK)
    if came:
        return came[0]
    got = f"got {_line(failed[0])}" if failed else "got none"
    raise RuntimeError(f"{expected}, {got}; {fix}") from (failed[0] if failed else None)


def _line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
