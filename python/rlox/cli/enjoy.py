"""`rlox enjoy RUN`: a trained policy at play, in a window or frame by frame."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import gymnasium as gym

from rlox._errors import ArgumentError
from rlox.cli.output import say, say_json
from rlox.cli.saved import open_trainer
from rlox.cli.usage import POSITIONAL, named, parse
from rlox.evaluation import SeededPredictor, evaluate, evaluation_seed


@dataclass
class Enjoy:
    """Watch a trained policy play in Gymnasium's own environment."""

    run: Annotated[str, POSITIONAL, named("RUN")]
    """Run folder, or a checkpoint."""
    episodes: int = 3  # how many full episodes
    render_mode: Literal["human", "rgb_array"] = "human"  # a window, or frames that nobody sees
    seed: int | None = None  # of the episodes; None: the one that belongs to the run's seed
    stochastic: bool = False  # samples rather than the most likely actions
    env: str | None = None  # id of another environment than the one trained on
    json: bool = False  # print returns, lengths and the number of frames as JSON


class _Drawn(gym.Wrapper[Any, Any, Any, Any]):
    """Draws every step where the environment does not do it of its own, and counts."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.frames = 0

    def reset(self, **about: Any) -> tuple[Any, dict[str, Any]]:
        said = self.env.reset(**about)
        self._draw()
        return said

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        said = self.env.step(action)
        self._draw()
        return said

    def _draw(self) -> None:
        if self.render_mode != "human":
            self.env.render()
        self.frames += 1


@contextmanager
def _explaining_no_screen(mode: str) -> Iterator[None]:
    """Says what to do where pygame finds no screen."""
    try:
        yield
    except Exception as error:
        if mode == "human" and type(error).__module__.startswith("pygame"):
            raise ArgumentError(
                "--render-mode",
                "rgb_array where there is no screen",
                f"human ({error})",
                "add --render-mode rgb_array",
            ) from error
        raise


def run(words: Sequence[str]) -> int:
    """Plays, and tells the return of each episode."""
    asked = parse(Enjoy, "enjoy", words)
    with open_trainer(asked.run, instead=asked.env) as trainer:
        seed = evaluation_seed(trainer.seed) if asked.seed is None else asked.seed
        env_id = asked.env or str(trainer.env_id)
        kwargs = trainer.env_kwargs if asked.env is None else {}

        drawn: list[_Drawn] = []

        def made(**keywords: Any) -> gym.Env[Any, Any]:
            env = gym.make(env_id, render_mode=asked.render_mode, **keywords)
            drawn.append(_Drawn(env))
            return drawn[-1]

        with _explaining_no_screen(asked.render_mode):
            result = evaluate(
                SeededPredictor(trainer.learner, seed),
                made,
                asked.episodes,
                seed=seed,
                deterministic=not asked.stochastic,
                num_envs=1,
                env_kwargs=kwargs,
            )
    if asked.json:
        say_json({**result, "frames": sum(env.frames for env in drawn)})
        return 0
    for i, (gained, steps) in enumerate(zip(result["returns"], result["lengths"], strict=True), 1):
        say(f"episode {i}: return {gained:.2f} in {steps:,} steps")
    return 0
