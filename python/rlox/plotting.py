"""Plots of learning curves. Needs matplotlib (``pip install 'rlox[plot]'``)."""

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError
from rlox._optional import load_extra
from rlox._training.metrics_files import column, read_metrics, smoothed
from rlox.learners import TIMESTEPS
from rlox.logger.base import ELAPSED, METRIC
from rlox.scores import bootstrap_interval, interquartile_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_curve", "plot_runs", "read_curve"]

Along = Literal["steps", "time"]
# Number of points of a curve of several runs, and of bootstrap resamples for its interval.
_PLACES, _RESAMPLES = 200, 1000
# Matplotlib is not thread-safe.
_drawing = threading.Lock()
_LABELS = {"steps": "environment steps", "time": "seconds of training"}


def plot_curve(metrics: str | Path, image: str | Path, title: str = "") -> None:
    """Plot the mean return over environment steps from the `metrics.csv` of a run.

    Args:
        metrics: Path of the CSV file.
        image: Path of the image; the suffix selects the format, such as `.png`.
        title: Title of the plot.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        FileNotFoundError: The CSV file does not exist.
        ArgumentError: The CSV file has no such column, or a value is not a number.
    """
    with _drawing:
        figure, rows = _figure(), read_metrics(metrics)
        axes = figure.add_subplot()
        axes.plot(column(rows, TIMESTEPS, metrics), column(rows, METRIC, metrics))
        axes.set(xlabel=_LABELS["steps"], ylabel="mean return of the last 100 episodes", title=title)
        axes.grid(alpha=0.3)
        figure.savefig(image, dpi=120)


@dataclass(frozen=True)
class Curve:
    """Metric of one run.

    Attributes:
        label: Algorithm, environment and backend of the run.
        settings: Settings of the run. Runs with equal labels and settings differ only in the seed.
        at: Positions on the horizontal axis, (n,).
        values: Values of the metric at these positions, (n,).
    """

    label: str
    settings: dict[str, Any]
    at: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]


def read_curve(run: str | Path, metric: str = METRIC, along: Along = "steps", smooth: int = 1) -> Curve:
    """Read a metric of a run.

    Args:
        run: Run folder.
        metric: Column of `metrics.csv`. Rows where the value is missing or not finite are skipped.
        along: Horizontal axis: "steps" of all environments together, or "time" in seconds of training.
        smooth: Length of the moving average in rows; each value is averaged with the values before it.

    Returns:
        The curve. For a run folder without a readable `config.json`, the label is the folder name.

    Raises:
        FileNotFoundError: There is no `metrics.csv`.
        ArgumentError: The column does not exist or contains no finite number, or a value is not a number.
    """
    file = Path(run) / "metrics.csv"
    rows = read_metrics(file)
    values = column(rows, metric, file)
    steps = column(rows, TIMESTEPS, file)
    at = steps if along == "steps" else column(rows, ELAPSED, file)
    # A run resumed from an older checkpoint repeats some steps; the later rows count.
    smallest_later_step = np.fmin.accumulate(np.append(steps, np.inf)[::-1])[::-1][1:]
    valid = np.isfinite(values) & np.isfinite(at) & (steps < smallest_later_step)
    if not valid.any():
        raise ArgumentError(
            str(file), f"numbers in the column {metric}", "none", "choose another metric, or train longer"
        )
    return Curve(*_read_label_and_settings(Path(run)), at[valid], smoothed(values[valid], smooth))


def plot_runs(
    curves: Sequence[Curve],
    image: str | Path,
    *,
    metric: str = METRIC,
    along: Along = "steps",
    bands: bool = True,
    title: str = "",
) -> list[str]:
    """Plot curves in one image, and combine runs that differ only in the seed.

    The line of combined runs is their interquartile mean, and the band is its 95% bootstrap
    interval (see `rlox.scores`). Both cover the part of the axis that all combined runs cover. Runs
    without a common part are drawn as separate lines.

    Args:
        curves: Curves from `read_curve`.
        image: Path of the image; the suffix selects the format, such as `.png`, `.svg` or `.pdf`.
        metric: Label of the vertical axis.
        along: Horizontal axis of the curves, "steps" or "time".
        bands: Combine runs; False draws each run as a separate line.
        title: Title of the plot.

    Returns:
        Labels of the lines. A label includes the number of combined runs, and up to three settings
        if runs with the same label have different settings.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ArgumentError: `curves` is empty, or matplotlib does not support the suffix of `image`.
    """
    if not curves:
        raise ArgumentError("curves", "at least one curve", "none", "pass results of read_curve")
    figure = _figure()
    supported = figure.canvas.get_supported_filetypes()
    suffix = Path(image).suffix.lstrip(".")
    if suffix.lower() not in supported:
        raise ArgumentError(
            "image",
            f"a name that ends in .{', .'.join(sorted(supported))}",
            repr(str(image)),
            "pass a name that ends in .png",
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
    axes.set(xlabel=_LABELS[along], ylabel=metric, title=title)
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
        (f"{label}{_differing(group[0].settings, groups.values())}", part)
        for label, groups in labels.items()
        for group in groups.values()
        for part in ([group] if _overlap(group) else [[curve] for curve in group])
    ]


def _overlap(group: Sequence[Curve]) -> bool:
    """Return whether the curves of a group have a common part of the axis."""
    return bool(max(curve.at[0] for curve in group) <= min(curve.at[-1] for curve in group))


def _differing(settings: dict[str, Any], groups: Iterable[list[Curve]]) -> str:
    """Return up to three settings in which groups of a label differ, as a suffix of the label."""
    others = [group[0].settings for group in groups]
    differ = [name for name in settings if any(x.get(name) != settings[name] for x in others)]
    return "".join(f", {name} {settings[name]}" for name in differ[:3])


def _together(group: Sequence[Curve]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return positions (p,) in the common part of the curves, and values there, (p, runs)."""
    first = max(curve.at[0] for curve in group)
    last = min(curve.at[-1] for curve in group)
    at = np.linspace(first, last, _PLACES)
    return at, np.stack([np.interp(at, curve.at, curve.values) for curve in group], axis=-1)


def _read_label_and_settings(run: Path) -> tuple[str, dict[str, Any]]:
    """Return the label and settings of a run, or its folder name and {} without a valid config."""
    try:
        config = json.loads((run / "config.json").read_bytes())
        label_parts = [config[name] for name in ("algorithm", "env", "backend")]
        settings = {**config["settings"], **config["env_kwargs"]}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return run.name, {}
    return " ".join(str(part) for part in label_parts if part is not None), settings


def _figure() -> "Figure":
    figures = load_extra("matplotlib.figure", "plot", "rlox.plotting")
    figure: Figure = figures.Figure(figsize=(7, 4), layout="constrained")
    return figure
