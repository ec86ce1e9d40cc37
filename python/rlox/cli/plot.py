"""`rlox plot RUN...`: learning curves of one or many runs, seeds as bands."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rlox.cli.mistakes import UsageError
from rlox.cli.output import say, say_json
from rlox.cli.usage import POSITIONAL, named, parse
from rlox.diagnosis import FOLDER as DIAGNOSIS
from rlox.metrics import METRIC
from rlox.plotting import plot_runs, read_curve


@dataclass
class Plot:
    """Draw a metric of runs; those that differ in their seed alone become one line with a band."""

    runs: Annotated[tuple[str, ...], POSITIONAL, named("RUN...")] = ()
    """Run folders, or folders above them."""
    metric: str = METRIC  # column of metrics.csv
    x: Literal["steps", "time"] = "steps"  # environment steps, or seconds of training
    smooth: int = 1  # each value is the mean of so many rows, those before it and its own
    bands: bool = True  # runs that differ in their seed alone as one line
    out: str | None = None  # picture to write (.png, .svg, .pdf); None: curve.png in the one run
    title: str = ""  # above it
    json: bool = False  # print what was drawn as JSON


def run(words: Sequence[str]) -> int:
    """Draws, and tells where the picture is."""
    asked = parse(Plot, "plot", words)
    if not asked.runs:
        raise UsageError("RUN...: expected at least one run folder, got none; rlox plot runs")
    if asked.smooth < 1:
        raise UsageError(f"--smooth: expected at least 1 row, got {asked.smooth}; pass more")
    folders = list(dict.fromkeys(folder for path in asked.runs for folder in _folders(path)))
    out = Path(asked.out) if asked.out else _picture(folders)
    curves = [read_curve(folder, asked.metric, asked.x, asked.smooth) for folder in folders]
    about = {"metric": asked.metric, "along": asked.x, "bands": asked.bands, "title": asked.title}
    lines = plot_runs(curves, out, **about)  # type: ignore[arg-type]  # as the function has them
    if asked.json:
        say_json({"image": str(out), "lines": lines, "runs": [str(folder) for folder in folders]})
        return 0
    for line in lines:
        say(line)
    say(f"drawn into {out}")
    return 0


def _folders(path: str) -> list[Path]:
    """The run folder at a path, or all below it."""
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"RUN: expected a run folder, {path} is none; pass where one is")
    if (folder / "metrics.csv").is_file():
        return [folder]
    found = sorted(file.parent for file in folder.rglob("metrics.csv"))
    below = [one for one in found if one.name != DIAGNOSIS]  # whose rows are those of its run
    if not below:
        raise FileNotFoundError(
            f"RUN: expected a run folder or one above, {path} has no metrics.csv; pass another"
        )
    return below


def _picture(folders: list[Path]) -> Path:
    return folders[0] / "curve.png" if len(folders) == 1 else Path("curves.png")
