"""What the machine lends to this process: threads, as control groups have it, and vector units."""

import os
from pathlib import Path

from rlox._errors import OutOfMemoryError
from rlox._rlox import available_memory
from rlox._validation import short_repr

# What the kernels of rlox ask a CPU for.
_UNITS = ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "asimd")


def allowed_cpus() -> int:
    """How many CPUs the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota(root: Path = Path("/sys/fs/cgroup"), group: Path = Path("/proc/self/cgroup")) -> float:
    """How many CPUs' time control groups grant it, infinity without a limit.

    Args:
        root: Where control groups are seen, of version 2 or 1.
        group: Which of them this process is in.
    """
    limits = [float("inf")]
    try:
        lines = group.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for top in [root, *([root / "cpu", root / controllers] if controllers else [])]:
            inner = top / path.lstrip("/")
            above = [one for one in (inner, *inner.parents) if one.is_relative_to(top)]
            limits += [limit for one in above if (limit := _limit(one)) is not None]
    return min(limits)


def _limit(folder: Path) -> float | None:
    """The limit that one group has, if it says any."""
    try:
        if (folder / "cpu.max").exists():
            granted, period = (folder / "cpu.max").read_text().split()
        else:
            granted = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return None if granted == "max" or int(granted) < 0 else int(granted) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def threads() -> int:
    """How many threads can run at once: what the affinity and control groups leave, at least 1."""
    return max(1, int(min(allowed_cpus(), quota())))


def vector_units() -> list[str] | None:
    """Which of the instruction sets that matter the CPU has; None where the system does not say."""
    try:
        cpu_flags = {*Path("/proc/cpuinfo").read_text().split()}
    except OSError:
        return None
    return [unit for unit in _UNITS if unit in cpu_flags]


def check_memory(argument: str, value: object, needed: int) -> None:
    """Check that a number of bytes is free.

    Args:
        argument: The argument that asks for the memory.
        value: Its value.
        needed: The number of bytes.

    Raises:
        MemoryError: Fewer bytes are free.

    >>> check_memory("n", 1, needed=2**61)
    Traceback (most recent call last):
    rlox.OutOfMemoryError: n: expected a value that fits into ... free bytes, got 1, \
which needs 2305843009213693952 bytes; use a smaller value
    """
    free = available_memory()
    free = 2**62 if free is None else free
    if needed > free:
        raise OutOfMemoryError(
            argument,
            f"a value that fits into {free} free bytes",
            f"{short_repr(value)}, which needs {short_repr(needed)} bytes",
            "use a smaller value",
        )
