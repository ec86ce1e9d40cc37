"""Draw docs/learning_curve.svg: evaluations of PPO on CartPole-v1 for several seeds.

Usage: python examples/python/learning_curve.py [IMAGE]
"""

import sys
import tempfile
from pathlib import Path

import rlox
from rlox.callbacks import Callback, EvalCallback
from rlox.plotting import plot_runs, read_curve

METRIC = "eval/mean_reward"
SEEDS = range(5)
TIMESTEPS = 100_000
IMAGE = Path(__file__).resolve().parents[2] / "docs/learning_curve.svg"


def make_callbacks() -> list[Callback]:
    """Return callbacks that play 10 greedy episodes every 5,000 steps."""
    return [EvalCallback(every=5_000, n_episodes=10, save_best=False)]


def main(image: str | Path) -> None:
    """Train all seeds, and draw the interquartile mean of their scores with its 95% interval."""
    with tempfile.TemporaryDirectory() as folder:
        results = rlox.train_many("ppo", "CartPole-v1", SEEDS, TIMESTEPS, callbacks=make_callbacks, runs_dir=folder)
        curves = [read_curve(result["run_dir"] or "", METRIC) for result in results]
        title = "mean return of 10 greedy episodes"
        plot_runs(curves, image, metric=METRIC, title=title)
    print(f"final scores  {', '.join(f'{curve.values[-1]:.1f}' for curve in curves)}")
    print(f"image         {image}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else IMAGE)
