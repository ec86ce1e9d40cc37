"""What a benchmark says: medians, intervals, ratios, the machine, a table, a JSON file."""

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
BASELINE = "baseline"  # an rlox of another commit
SLOWER = 0.95  # a row is lost where the whole interval of its speed lies below
Floats = npt.NDArray[np.float64]


def resampled(numbers: Floats) -> Floats:
    """Rounds drawn with replacement; subjects with as many rounds share the draws."""
    rounds = len(numbers)
    draws = np.random.default_rng(0).integers(0, rounds, (RESAMPLES, rounds))
    drawn: Floats = numbers[draws]
    return drawn


def resampled_medians(seconds: Floats) -> Floats:
    """Medians of rounds drawn with replacement."""
    medians: Floats = np.median(resampled(seconds), axis=1)
    return medians


def interquartile_mean(numbers: Floats) -> Floats:
    """The mean without the lowest and the highest quarter, along the last axis."""
    cut = numbers.shape[-1] // 4
    means: Floats = np.sort(numbers)[..., cut : numbers.shape[-1] - cut].mean(axis=-1)
    return means


def interval(drawn: Floats, middle: float) -> list[float]:
    """A statistic and the 95% interval of its bootstrap distribution."""
    low, high = np.percentile(drawn, [2.5, 97.5])
    return [float(middle), float(low), float(high)]


def evaluate(row: dict[str, Any]) -> dict[str, Any]:
    """Adds to each subject `time` and `ratio`, its time over ours, with intervals, and the
    interquartile mean of its returns as `score`.

    Only subjects of the same `work` are compared. Ours is the first of them that is, at the number
    of threads that suits it best. `best` compares, for each work, the fastest peer with the
    fastest of our own ways.
    """
    medians: dict[int, Floats] = {}
    for number, subject in enumerate(row["subjects"]):
        if "error" not in subject:
            seconds = np.asarray(subject["seconds"])
            medians[number] = resampled_medians(seconds)
            subject["time"] = interval(medians[number], float(np.median(seconds)))
        if "error" not in subject and "return" in subject:
            returns = np.asarray(subject["return"])
            means = interquartile_mean(resampled(returns))
            subject["score"] = interval(means, float(interquartile_mean(returns)))
    row["baseline"] = [
        {"subject": row["subjects"][one], "ratio": speed(row["subjects"], one, other, medians)}
        for one, other in baseline_pairs(row["subjects"], medians)
    ]
    row["best"] = []
    for work in dict.fromkeys(subject["work"] for subject in row["subjects"]):
        alike = [
            one
            for one in medians
            if row["subjects"][one]["work"] == work and row["subjects"][one]["peer"] != BASELINE
        ]
        row["best"] += compare(row["subjects"], alike, medians)
    return row


def baseline_pairs(
    subjects: list[dict[str, Any]], medians: dict[int, Floats]
) -> list[tuple[int, int]]:
    """Return the indices of each measured subject of ours and of the same one at the baseline."""
    return [
        (one, one + 1)
        for one in medians
        if one + 1 in medians and subjects[one + 1]["peer"] == BASELINE
    ]


def speed(
    subjects: list[dict[str, Any]], one: int, other: int, medians: dict[int, Floats]
) -> list[float]:
    """Return the time of `other` over the time of `one`, with its interval."""
    middle = subjects[other]["time"][0] / subjects[one]["time"][0]
    return interval(medians[other] / medians[one], middle)


def slower(row: dict[str, Any]) -> list[str]:
    """Return the subjects whose whole interval of speed relative to the baseline is too low."""
    return [
        f"{row['name']}, {label(pair['subject'])}"
        for pair in row["baseline"]
        if pair["ratio"][2] < SLOWER
    ]


def compare(
    subjects: list[dict[str, Any]], alike: list[int], medians: dict[int, Floats]
) -> list[dict[str, Any]]:
    """Adds `ratio` to subjects of the same work; the best peer with our best, if there are both."""

    alike = sorted(alike, key=lambda number: float(subjects[number]["time"][0]))
    own = [number for number in alike if subjects[number]["ours"]]
    peers = [number for number in alike if not subjects[number]["ours"]]
    if not own:
        return []
    first = subjects[min(own)]["name"]
    baseline = next(number for number in own if subjects[number]["name"] == first)
    for number in alike:
        subjects[number]["ratio"] = speed(subjects, baseline, number, medians)
    if not peers:
        return []
    pair = {"peer": label(subjects[peers[0]]), "ours": label(subjects[own[0]])}
    return [
        {
            "work": subjects[own[0]]["work"],
            **pair,
            "ratio": speed(subjects, own[0], peers[0], medians),
        }
    ]


def heading(title: str) -> str:
    """The title and the machine."""
    about = machine()
    load = f"load {about['load']:.2f}" if about["load"] is not None else "load unknown"
    where = f"{about['processor']}, {about['cores']} cores, {about['system']}, {load}"
    return f"\n{title}\n{'=' * len(title)}\n{where}"


def duration(seconds: float) -> str:
    """A time in a fitting unit."""
    for scale, unit in ((1e-6, "ns"), (1e-3, "us"), (1.0, "ms")):
        if seconds < scale:
            return f"{seconds / scale * 1e3:.3g} {unit}"
    return f"{seconds:.3g} s"


def rate(each_second: float, unit: str) -> str:
    """So many units a second."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if each_second >= scale:
            return f"{each_second / scale:.3g} {letter} {unit}/s"
    return f"{each_second:.3g} {unit}/s"


def table(row: dict[str, Any], columns: tuple[str, ...] = ()) -> str:
    """A row as text: a line for each subject, and the best peer of each kind of work."""
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
        text = f"{duration(middle):>8} [{duration(low)}, {duration(high)}]"
        speed = rate(row["amount"] / middle, row["unit"])
        line = f"  {name}  {text:<30} {speed:>16}"
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
    """A line for each of ours and each peer with as many returns, of four or more: is it no worse,
    that is not below the lower end of the peer's interval?
    """
    told = [one for one in subjects if len(one.get("return", ())) >= 4 and "score" in one]
    lines = []
    for own in (one for one in told if one["ours"]):
        for peer in (one for one in told if not one["ours"] and one["work"] == own["work"]):
            mean, low = own["score"][0], peer["score"][1]
            verdict = "no worse" if mean >= low else "WORSE"
            lines.append(f"  {label(own)}: {mean:.4g} is {verdict} than {label(peer)}'s {low:.4g}")
    return lines


def label(subject: dict[str, Any]) -> str:
    """A subject's name, with its threads if there are several."""
    threads = f", {subject['threads']} threads" if subject["threads"] > 1 else ""
    return f"{subject['name']}{threads}"


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """Which of the vector extensions that matter here the processor has."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return []
    return sorted(words & {"avx2", "fma", "avx512f", "avx512_bf16", "asimd", "sve"})


def machine() -> dict[str, Any]:
    """The machine, and how busy it is now."""
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
    """Seconds so far: on the clock, of all processors together while busy, and their number."""
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
    """Which part of the machine other processes used, and the load average."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if before is None or after is None:
        return {"others": None, "average": load}
    whole = (after[0] - before[0]) * after[2]
    others = max(0.0, after[1] - before[1] - ours) / whole if whole else None
    return {"others": others, "average": load}


def save(
    folder: Path, name: str, started: str, options: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    """Writes everything measured so far."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "benchmark": name,
        "started": started,
        "machine": machine(),
        "options": options,
        "method": f"interleaved rounds; median; 95% bootstrap intervals of {RESAMPLES} resamples",
        "rows": rows,
    }
    (folder / f"{name}-{started}.json").write_text(json.dumps(document, indent=1))
