"""Learning curves. Needs matplotlib, the extra `rlox[plot]`."""

import csv
from pathlib import Path


def plot_curve(metrics: str | Path, image: str | Path, title: str = "") -> None:
    """Draws the mean return over environment steps from a run's `metrics.csv` into a PNG.

    Args:
        metrics: The CSV file.
        image: Where the picture goes.
        title: Above it.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the learning curve needs matplotlib; install it with: pip install 'rlox[plot]'",
            name="matplotlib",
        ) from error

    with open(metrics, newline="") as file:
        rows = list(csv.DictReader(file))
    steps = [float(row["time/total_timesteps"]) for row in rows]
    returns = [float(row["rollout/ep_rew_mean"]) for row in rows]

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(steps, returns)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("mean return of the last 100 episodes")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.savefig(image, dpi=120)
