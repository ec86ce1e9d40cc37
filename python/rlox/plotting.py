"""Learning curves, of one run or of many. Needs matplotlib, the extra `rlox[plot]`."""

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError
from rlox._training.metrics import ELAPSED, METRIC, STEPS, column, read_metrics, smoothed
from rlox.scores import bootstrap_interval, interquartile_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Along = Literal["steps", "time"]
# Places along the axis at which several seeds are compared, and draws for their interval.
_PLACES, _RESAMPLES = 200, 1000
# Matplotlib is not made for several threads at once.
_drawing = threading.Lock()
_LABELS = {"steps": "environment steps", "time": "seconds of training"}


def plot_curve(metrics: str | Path, image: str | Path, title: str = "") -> None:
    """Draws the mean return over environment steps from a run's `metrics.csv` into a PNG.

    Args:
        metrics: The CSV file.
        image: Where the picture goes.
        title: Above it.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    with _drawing:
        figure, rows = _figure(), read_metrics(metrics)
        axes = figure.add_subplot()
        axes.plot(column(rows, STEPS, metrics), column(rows, METRIC, metrics))
        axes.set_xlabel(_LABELS["steps"])
        axes.set_ylabel("mean return of the last 100 episodes")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        figure.savefig(image, dpi=120)


@dataclass(frozen=True)
class Curve:
    """One run's metric: where along the axis, (n,), and what it was there, (n,).

    Runs of one `label` and equal `settings` differ in their seed alone.
    """

    label: str
    settings: dict[str, Any]
    at: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]


def read_curve(
    run: str | Path, metric: str = METRIC, along: Along = "steps", smooth: int = 1
) -> Curve:
    """A run's metric, labelled with its algorithm, environment and backend.

    Args:
        run: The run folder.
        metric: A column of its `metrics.csv`; rows that have none, or NaN, are left out.
        along: "steps" of all environments together, or "time", seconds of training.
        smooth: Each value is the mean of so many rows, those before it and its own.

    Raises:
        FileNotFoundError: There is no `metrics.csv`.
        ValueError: It has no such column, or no number in it.
    """
    file = Path(run) / "metrics.csv"
    rows = read_metrics(file)
    values = column(rows, metric, file)
    steps = column(rows, STEPS, file)
    at = steps if along == "steps" else column(rows, ELAPSED, file)
    # A run that went on from an older checkpoint made some steps anew: the later ones count.
    after = np.fmin.accumulate(np.append(steps, np.inf)[::-1])[::-1][1:]
    there = np.isfinite(values) & np.isfinite(at) & (steps < after)
    if not there.any():
        raise ArgumentError(
            str(file), f"numbers as {metric}", "none", "choose another metric, or train on"
        )
    return Curve(*_read_label_and_settings(Path(run)), at[there], smoothed(values[there], smooth))


def plot_runs(
    curves: Sequence[Curve],
    image: str | Path,
    *,
    metric: str = METRIC,
    along: Along = "steps",
    bands: bool = True,
    title: str = "",
) -> list[str]:
    """Draws curves into a picture: those that differ in their seed alone as one, with a band.

    The line is the interquartile mean of such runs, where all of them have been; the band is its
    95% interval (`rlox.scores`). Runs that were nowhere at once are lines of their own.

    Args:
        curves: What `read_curve` gave.
        image: Where the picture goes; its ending says what it is (png, svg, pdf).
        metric, along: What the axes are called.
        bands: False draws every run as a line of its own.
        title: Above it.

    Returns:
        The lines' labels, with the number of runs where there are several, and the settings in
        which runs of a label differ.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: No curve, or an ending that matplotlib does not know.
    """
    if not curves:
        raise ArgumentError("curves", "at least one", "none", "pass what read_curve gives")
    figure = _figure()
    known, ending = figure.canvas.get_supported_filetypes(), Path(image).suffix.lstrip(".")
    if ending.lower() not in known:
        raise ArgumentError(
            "image",
            f"a name that ends in .{', .'.join(sorted(known))}",
            repr(str(image)),
            "pass one that ends in .png",
        )
    axes = figure.add_subplot()
    labels = []
    for label, group in _groups(curves, bands):
        labels.append(label if len(group) == 1 else f"{label} ({len(group)} runs)")
        if len(group) == 1:
            axes.plot(group[0].at, group[0].values, label=labels[-1])
            continue
        at, values = _together(group)
        (line,) = axes.plot(at, interquartile_mean(values), label=labels[-1])
        low, high = bootstrap_interval(values, resamples=_RESAMPLES)
        axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel(_LABELS[along])
    axes.set_ylabel(metric)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(image, dpi=120)
    return labels


def _groups(curves: Iterable[Curve], bands: bool) -> list[tuple[str, list[Curve]]]:
    if not bands:
        return [(curve.label, [curve]) for curve in curves]
    labels: dict[str, dict[str, list[Curve]]] = {}
    for curve in curves:
        groups = labels.setdefault(curve.label, {})
        groups.setdefault(json.dumps(curve.settings, sort_keys=True), []).append(curve)
    return [
        (f"{label}{_differing(group[0].settings, alike.values())}", part)
        for label, alike in labels.items()
        for group in alike.values()
        for part in ([group] if _overlap(group) else [[curve] for curve in group])
    ]


def _overlap(group: Sequence[Curve]) -> bool:
    """Whether there are places that all curves of a group have been at."""
    return bool(max(curve.at[0] for curve in group) <= min(curve.at[-1] for curve in group))


def _differing(settings: dict[str, Any], groups: Iterable[list[Curve]]) -> str:
    """The settings in which not all groups of a label agree, as words behind it."""
    others = [group[0].settings for group in groups]
    differ = [name for name in settings if any(x.get(name) != settings[name] for x in others)]
    return "".join(f", {name} {settings[name]}" for name in differ[:3])


def _together(group: Sequence[Curve]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Places that all curves of a group have been at, (p,), and their values there, (p, runs)."""
    first = max(curve.at[0] for curve in group)
    last = min(curve.at[-1] for curve in group)
    at = np.linspace(first, last, _PLACES)
    return at, np.stack([np.interp(at, curve.at, curve.values) for curve in group], axis=-1)


def _read_label_and_settings(run: Path) -> tuple[str, dict[str, Any]]:
    """A run's algorithm, environment and backend, and its settings; its folder's name without."""
    try:
        config: Any = json.loads((run / "config.json").read_bytes())
        label_parts = [config[name] for name in ("algorithm", "env", "backend")]
        settings = {**config["settings"], **config["env_kwargs"]}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return run.name, {}
    return " ".join(str(word) for word in label_parts if word is not None), settings


def _figure() -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "matplotlib: expected the package, for the learning curve, got none; "
            "pip install 'rlox[plot]'",
            name="matplotlib",
        ) from error
    return Figure(figsize=(7, 4), layout="constrained")
