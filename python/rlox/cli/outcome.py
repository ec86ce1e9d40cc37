"""What training came to, for people or as JSON."""

from rlox.cli.commands import INTERRUPTED
from rlox.cli.output import say, say_json
from rlox.results import CTRL_C, TrainResult
from rlox.trainer import Trainer


def tell_training(trainer: Trainer, result: TrainResult, *, as_json: bool) -> int:
    """Tells it, and returns the exit code: 0, or 130 after Ctrl-C.

    What a callback ended, by a reward that was reached for one, is done.
    """
    about = {
        "algorithm": trainer.algorithm,
        "env": trainer.env_name,
        "seed": trainer.seed,
        "backend": trainer.learner.backend,
    }
    if as_json:
        say_json({**about, **result})
    else:
        say("{algorithm} {env}, seed {seed}, {backend}".format(**about))
        say(
            f"{result['timesteps']:,} steps, this time in {result['seconds']:.1f} s at "
            f"{result['sps']:,.0f} steps/s"
        )
        episodes = result["episodes"]
        if episodes:
            last = f"the last {min(episodes, 100)} of {episodes:,} episodes"
            say(f"mean return {result['mean_reward']:.2f} of {last}")
        else:
            say("no episode has finished yet")
        if result["run_dir"] is not None:
            say(f"run folder {result['run_dir']}")
        if result["interrupted"]:
            where = result["run_dir"]
            say("interrupted" + (f"; go on with: rlox resume {where}" if where else ""))
        elif result["stopped_by"] is not None:
            say(f"ended by {result['stopped_by']}")
    return INTERRUPTED if result["stopped_by"] == CTRL_C else 0
