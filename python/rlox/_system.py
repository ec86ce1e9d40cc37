"""Resources of this process: CPUs, CPU instruction sets and free memory."""

import os
from pathlib import Path

from rlox._errors import OutOfMemoryError
from rlox._rlox import available_memory
from rlox._validation import short_repr

# Instruction sets that the kernels of rlox use.
_UNITS = ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "asimd")


def allowed_cpus() -> int:
    """Return the number of CPUs in the affinity mask of this process; without a mask, of all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota(root: Path = Path("/sys/fs/cgroup"), group: Path = Path("/proc/self/cgroup")) -> float:
    """Return the CPU limit of this process's control groups in CPUs; infinity without a limit.

    Args:
        root: Mount point of the control groups, version 1 or 2.
        group: File that lists the control groups of this process.
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
            folders = [path for path in (inner, *inner.parents) if path.is_relative_to(top)]
            limits += [limit for path in folders if (limit := _limit(path)) is not None]
    return min(limits)


def _limit(folder: Path) -> float | None:
    """Return the CPU limit of one control group, or None without a limit."""
    try:
        if (folder / "cpu.max").exists():
            limit, period = (folder / "cpu.max").read_text().split()
        else:
            limit = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return None if limit == "max" or int(limit) < 0 else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def threads() -> int:
    """Return the number of threads that can run in parallel: CPU affinity and quota, at least 1."""
    return max(1, int(min(allowed_cpus(), quota())))


def vector_units() -> list[str] | None:
    """Return the CPU's instruction sets that rlox uses; None on systems other than Linux, which do not list them."""
    try:
        cpu_flags = {*Path("/proc/cpuinfo").read_text().split()}
    except OSError:
        return None
    return [unit for unit in _UNITS if unit in cpu_flags]


def check_memory(argument: str, value: object, needed: int) -> None:
    """Check that the `needed` bytes for the value of an argument are free.

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
