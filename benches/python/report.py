"""Reports of benchmarks: medians, intervals, ratios, the machine, a table and a JSON file."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
BASELINE = "baseline"  # rlox of another commit
SLOWER = 0.95  # a row is slower if its whole speed interval is below
Floats = npt.NDArray[np.float64]


def resample(numbers: Floats) -> Floats:
    """Return RESAMPLES draws of all rounds with replacement, (RESAMPLES, rounds).

    Subjects with equally many rounds get the same draws, so that a disturbed round affects both
    sides of a ratio.
    """
    rounds = len(numbers)
    draws = np.random.default_rng(0).integers(0, rounds, (RESAMPLES, rounds))
    drawn: Floats = numbers[draws]
    return drawn


def resampled_medians(seconds: Floats) -> Floats:
    """Return the medians of rounds drawn with replacement."""
    medians: Floats = np.median(resample(seconds), axis=1)
    return medians


def interquartile_mean(numbers: Floats) -> Floats:
    """Return the mean without the lowest and the highest quarter, along the last axis."""
    cut = numbers.shape[-1] // 4
    means: Floats = np.sort(numbers)[..., cut : numbers.shape[-1] - cut].mean(axis=-1)
    return means


def interval(drawn: Floats, middle: float) -> list[float]:
    """Return a statistic and the 95% interval of its bootstrap distribution."""
    low, high = np.percentile(drawn, [2.5, 97.5])
    return [float(middle), float(low), float(high)]


def evaluate(row: dict[str, Any]) -> dict[str, Any]:
    """Add `time`, `ratio` (time over rlox's time) and `score` to each subject, with intervals.

    Only subjects with the same `work` (`side_by_side.Subject.work`) are compared. The reference is
    the first rlox subject with this `work`, with its best number of threads. `score` is the
    interquartile mean of the returns. `best` compares the fastest peer with the fastest rlox
    subject for each `work`.
    """
    medians: dict[int, Floats] = {}
    for index, subject in enumerate(row["subjects"]):
        if "error" not in subject:
            seconds = np.asarray(subject["seconds"])
            medians[index] = resampled_medians(seconds)
            subject["time"] = interval(medians[index], float(np.median(seconds)))
        if "error" not in subject and "return" in subject:
            returns = np.asarray(subject["return"])
            means = interquartile_mean(resample(returns))
            subject["score"] = interval(means, float(interquartile_mean(returns)))
    row["baseline"] = [
        {"subject": row["subjects"][index], "ratio": speed(row["subjects"], index, baseline_index, medians)}
        for index, baseline_index in baseline_pairs(row["subjects"], medians)
    ]
    row["best"] = []
    for work in dict.fromkeys(subject["work"] for subject in row["subjects"]):
        comparable = [
            index
            for index in medians
            if row["subjects"][index]["work"] == work and row["subjects"][index]["peer"] != BASELINE
        ]
        row["best"] += compare(row["subjects"], comparable, medians)
    return row


def baseline_pairs(subjects: list[dict[str, Any]], medians: dict[int, Floats]) -> list[tuple[int, int]]:
    """Return the index pairs of each measured rlox subject and its baseline subject."""
    return [(index, index + 1) for index in medians if index + 1 in medians and subjects[index + 1]["peer"] == BASELINE]


def speed(subjects: list[dict[str, Any]], index: int, other_index: int, medians: dict[int, Floats]) -> list[float]:
    """Return the time of `other_index` over the time of `index`, with its interval."""
    middle = subjects[other_index]["time"][0] / subjects[index]["time"][0]
    return interval(medians[other_index] / medians[index], middle)


def slower(row: dict[str, Any]) -> list[str]:
    """Return the subjects whose interval of speed relative to the baseline is below SLOWER."""
    return [f"{row['name']}, {label(pair['subject'])}" for pair in row["baseline"] if pair["ratio"][2] < SLOWER]


def compare(subjects: list[dict[str, Any]], indices: list[int], medians: dict[int, Floats]) -> list[dict[str, Any]]:
    """Add `ratio` to subjects with the same `work`; compare the fastest peer with the fastest rlox."""
    indices = sorted(indices, key=lambda index: float(subjects[index]["time"][0]))
    our_indices = [index for index in indices if subjects[index]["ours"]]
    peer_indices = [index for index in indices if not subjects[index]["ours"]]
    if not our_indices:
        return []
    first = subjects[min(our_indices)]["name"]
    baseline = next(index for index in our_indices if subjects[index]["name"] == first)
    for index in indices:
        subjects[index]["ratio"] = speed(subjects, baseline, index, medians)
    if not peer_indices:
        return []
    pair = {"peer": label(subjects[peer_indices[0]]), "ours": label(subjects[our_indices[0]])}
    return [
        {
            "work": subjects[our_indices[0]]["work"],
            **pair,
            "ratio": speed(subjects, our_indices[0], peer_indices[0], medians),
        }
    ]


def heading(title: str) -> str:
    """Return the title and a description of the machine."""
    info = machine()
    load = f"load {info['load']:.2f}" if info["load"] is not None else "load unknown"
    description = f"{info['processor']}, {info['cores']} cores, {info['system']}, {load}"
    return f"\n{title}\n{'=' * len(title)}\n{description}"


def duration(seconds: float) -> str:
    """Format a time with a suitable unit."""
    for scale, unit in ((1e-6, "ns"), (1e-3, "us"), (1.0, "ms")):
        if seconds < scale:
            return f"{seconds / scale * 1e3:.3g} {unit}"
    return f"{seconds:.3g} s"


def rate(each_second: float, unit: str) -> str:
    """Format a rate with a suitable unit prefix."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if each_second >= scale:
            return f"{each_second / scale:.3g} {letter} {unit}/s"
    return f"{each_second:.3g} {unit}/s"


def table(row: dict[str, Any], columns: tuple[str, ...] = ()) -> str:
    """Return a row as text: a line per subject, and the best peer of each kind of work."""
    others = row["load"]["others"]
    busy = "" if others is None else f", other processes used {others:.0%} of the machine"
    lines = [f"\n{row['name']}   ({row['rounds']} rounds{busy})"]
    width = max(len(label(subject)) for subject in row["subjects"])
    for subject in row["subjects"]:
        name = label(subject).ljust(width)
        if "error" in subject:
            lines.append(f"  {name}  {subject['error']}")
            continue
        middle, low, high = subject["time"]
        time_text = f"{duration(middle):>8} [{duration(low)}, {duration(high)}]"
        speed = rate(row["amount"] / middle, row["unit"])
        line = f"  {name}  {time_text:<30} {speed:>16}"
        if "ratio" in subject:
            line += "  {:>7.3g}x [{:.3g}, {:.3g}]".format(*subject["ratio"])
        if "score" in subject:
            line += "  interquartile mean {:.4g} [{:.4g}, {:.4g}]".format(*subject["score"])
        for column in (column for column in columns if column in subject):
            line += f"  {column}: " + " ".join(f"{value:.4g}" for value in subject[column])
        lines.append(line)
    for pair in row["baseline"]:
        ratio = "{:.3g}x [{:.3g}, {:.3g}]".format(*pair["ratio"])
        lines.append(f"  baseline takes {ratio} the time of {label(pair['subject'])}")
    for best in row["best"]:
        work = f" ({best['work']})" if best["work"] else ""
        ratio = "{:.3g}x [{:.3g}, {:.3g}]".format(*best["ratio"])
        lines.append(f"  best peer{work}: {best['peer']} takes {ratio} the time of {best['ours']}")
    return "\n".join(lines + scores(row["subjects"]))


def scores(subjects: list[dict[str, Any]]) -> list[str]:
    """Compare the scores of rlox with those of peers that have at least four returns.

    An rlox score is no worse if it is not below the lower end of the peer's interval.
    """
    scored = [subject for subject in subjects if len(subject.get("return", ())) >= 4 and "score" in subject]
    lines = []
    for ours in (subject for subject in scored if subject["ours"]):
        for peer in (subject for subject in scored if not subject["ours"] and subject["work"] == ours["work"]):
            mean, low = ours["score"][0], peer["score"][1]
            verdict = "no worse" if mean >= low else "WORSE"
            lines.append(f"  {label(ours)}: {mean:.4g} is {verdict} than {label(peer)}'s {low:.4g}")
    return lines


def label(subject: dict[str, Any]) -> str:
    """Return the name of a subject, with its threads if there are several."""
    threads = f", {subject['threads']} threads" if subject["threads"] > 1 else ""
    return f"{subject['name']}{threads}"


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """Return the relevant vector extensions of the processor."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return []
    return sorted(flags & {"avx2", "fma", "avx512f", "avx512_bf16", "asimd", "sve"})


def machine() -> dict[str, Any]:
    """Return a description of the machine and its current load."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": processor(),
        "vector extensions": instruction_sets(),
        "cores": allowed,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def machine_load() -> tuple[float, float, float] | None:
    """Return seconds on the clock, busy seconds of all processors, and the number of processors."""
    try:
        line = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[1:9])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return time.monotonic(), busy, float(os.cpu_count() or 1)


def load_between(
    before: tuple[float, float, float] | None, after: tuple[float, float, float] | None, ours: float
) -> dict[str, float | None]:
    """Return the share of the machine that other processes used, and the load average."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if before is None or after is None:
        return {"others": None, "average": load}
    capacity = (after[0] - before[0]) * after[2]
    others = max(0.0, after[1] - before[1] - ours) / capacity if capacity else None
    return {"others": others, "average": load}


def save(folder: Path, name: str, start_time: str, options: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write all measurements so far."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "benchmark": name,
        "started": start_time,
        "machine": machine(),
        "options": options,
        "method": f"interleaved rounds; median; 95% bootstrap intervals of {RESAMPLES} resamples",
        "rows": rows,
    }
    (folder / f"{name}-{start_time}.json").write_text(json.dumps(document, indent=1))
