"""What torchrun says of a process, in variables of its environment."""

import os
from typing import NamedTuple

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_START = "start it with: torchrun --nproc-per-node 2 train.py"


class Place(NamedTuple):
    """What torchrun says of a process."""

    rank: int
    size: int
    local: int  # which one of its machine
    address: str  # of rank 0, or of the launcher
    port: int


def place() -> Place:
    """What torchrun says of this process.

    Raises:
        RuntimeError: It did not start it, or says something that cannot be.
    """
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    if missing:
        raise RuntimeError(
            f"group: expected to be started by torchrun, which sets {', '.join(VARIABLES)}, "
            f"got no {', '.join(missing)}; {_START}"
        )
    rank, size, local, port = (
        _integer(name, low)
        for name, low in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("MASTER_PORT", 1))
    )
    if rank >= size:
        raise RuntimeError(
            f"RANK: expected below WORLD_SIZE = {size}, got {rank}; leave these variables to "
            f"torchrun: {_START}"
        )
    return Place(rank, size, local, os.environ["MASTER_ADDR"], port)


def _integer(name: str, low: int) -> int:
    said, high = os.environ[name], 65535 if name == "MASTER_PORT" else 2**31
    if not said.isdecimal() or not low <= int(said) <= high:
        most = f" and at most {high}" if name == "MASTER_PORT" else ""
        raise RuntimeError(
            f"{name}: expected an integer of at least {low}{most}, as torchrun sets it, got "
            f"{said!r}; leave it to torchrun: {_START}"
        )
    return int(said)
