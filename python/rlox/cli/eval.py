"""`rlox eval RUN`: the score of a trained policy, and how sure one can be of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from rlox.cli.output import say, say_json
from rlox.cli.saved import open_trainer
from rlox.cli.usage import POSITIONAL, named, parse
from rlox.scores import score
from rlox.settings import whole


@dataclass
class Eval:
    """Play full episodes in Gymnasium's own environment, and tell what they came to."""

    run: Annotated[str, POSITIONAL, named("RUN")]
    """Run folder, or a checkpoint."""
    episodes: int = 30  # how many full episodes
    seed: int | None = None  # of the episodes; None: the one that belongs to the run's seed
    stochastic: bool = False  # samples rather than the most likely actions
    env: str | None = None  # id of another environment than the one trained on
    backend: str | None = None  # what computes the networks; None: what did
    json: bool = False  # print the score, returns and lengths as JSON


def run(words: Sequence[str]) -> int:
    """Evaluates, and tells the score."""
    asked = parse(Eval, "eval", words)
    whole("episodes", asked.episodes, 1, fix="ask for one or more")
    with open_trainer(asked.run, instead=asked.env, backend=asked.backend) as trainer:
        result = trainer.evaluate(
            asked.episodes, seed=asked.seed, deterministic=not asked.stochastic, env=asked.env
        )
    told = score(result["returns"])
    if asked.json:
        about = {"algorithm": trainer.algorithm, "env": asked.env or trainer.env_name}
        say_json({**about, **told, "returns": result["returns"], "lengths": result["lengths"]})
        return 0
    low, high = told["iqm_interval"]
    say(f"{trainer.algorithm} {asked.env or trainer.env_name}, {told['episodes']} episodes")
    say(f"mean {told['mean']:.2f}, standard deviation {told['std']:.2f}")
    say(f"interquartile mean {told['iqm']:.2f}, 95% interval [{low:.2f}, {high:.2f}]")
    return 0
