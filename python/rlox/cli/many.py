"""`rlox train ALGORITHM ENV --seeds 0-9`: a run for each seed, side by side over the cores."""

import math
import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from rlox.callbacks import Callback
from rlox.cli.around import Around, surroundings
from rlox.cli.commands import DONE, FAILED, INTERRUPTED, in_a_line
from rlox.cli.mistakes import UsageError
from rlox.cli.output import say, say_json
from rlox.cli.saved import trainer_of
from rlox.many import Runs, RunsFailedError, runs
from rlox.many._jobs import Outcome, TrainJob
from rlox.results import TrainResult
from rlox.scores import Score, score
from rlox.settings import shown

# More seeds than anybody means.
_MOST = 100_000


def seeds_of(given: Any) -> list[int]:
    """Seeds as a command line or a file says them.

    Args:
        given: Numbers and ranges, both ends included, with commas between, or a list of numbers.

    Raises:
        UsageError: It is something else.

    >>> seeds_of("0-3,7"), seeds_of([4, 5])
    ([0, 1, 2, 3, 7], [4, 5])
    """
    wrong = UsageError(
        f"--seeds: expected numbers and ranges, each seed once, got {shown(given)}; write --seeds "
        "0-9 or --seeds 0,3,7"
    )
    if isinstance(given, list | int) and not isinstance(given, bool):
        found: list[Any] = given if isinstance(given, list) else [given]
    elif isinstance(given, str):
        found = []
        for part in given.replace(" ", "").split(","):
            ends = re.fullmatch(r"(\d[\d_]*)(?:-(\d[\d_]*))?", part)
            if ends is None:
                raise wrong
            first, last = int(ends[1]), int(ends[2] or ends[1])
            if not 0 <= last - first < _MOST:
                raise wrong
            found += [*range(first, last + 1)]
    else:
        raise wrong
    plain = all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in found)
    if not plain or not found or len({*found}) < len(found):
        raise wrong
    return found


def train(
    algorithm: str, given: Any, decided: Mapping[str, Any], settings: Mapping[str, Any]
) -> int:
    """Trains with each seed, and tells each run and what all of them came to.

    Args:
        algorithm: Which.
        given: The seeds, as `seeds_of` takes them.
        decided: What else decides the runs.
        settings: Of the algorithm, and the environment's arguments.

    Returns:
        0; 1 where a run failed; 130 after Ctrl-C.
    """
    seeds, about = seeds_of(given), dict(decided)
    if about.pop("seed") is not None:
        raise UsageError("--seeds: expected no --seed beside it, got both; leave one of them out")
    steps, progress, as_json = (about.pop(name) for name in ("total_timesteps", "progress", "json"))
    around = Around(**{name: about.pop(name) for name in vars(Around())})
    loggers = surroundings(around)["loggers"]
    env = about.pop("env")
    asked = runs(
        trainer_of(algorithm),
        env,
        seeds,
        steps,
        callbacks=partial(_callbacks, around),
        loggers=loggers,
        **about,
        **settings,
    )
    to = sys.stderr if as_json else sys.stdout
    tell = partial(_tell, asked.jobs, to) if progress or not as_json else None
    came = _ended(asked, tell)
    _sum_up({"algorithm": algorithm, "env": env}, seeds, came, as_json)
    if asked.scope.stopping:
        return INTERRUPTED
    return FAILED if any(isinstance(one, BaseException) for one in came) else DONE


def _callbacks(around: Around) -> list[Callback]:
    """Fresh ones; a function that processes can be sent."""
    made: list[Callback] = surroundings(around)["callbacks"]
    return made


def _ended(asked: Runs, tell: Any) -> list[Outcome]:
    """What each run came to."""
    try:
        return [*asked.train(tell)]
    except RunsFailedError as failed:
        results = enumerate(failed.results)
        return [failed.errors[n] if one is None else one for n, one in results]


def _tell(jobs: list[TrainJob], to: Any, number: int, came: Outcome) -> None:
    seed = jobs[number].seed
    if isinstance(came, BaseException):
        say(f"seed {seed}: failed: {in_a_line(came)}", to=sys.stderr)
        return
    mean = came["mean_reward"]
    said = "no episode finished" if math.isnan(mean) else f"mean return {mean:.2f}"
    steps = f"{came['timesteps']:,} steps in {came['seconds']:.1f} s"
    folder = "" if came["run_dir"] is None else f", {came['run_dir']}"
    say(f"seed {seed}: {said}, {steps}{folder}", to=to)


def _sum_up(about: dict[str, Any], seeds: list[int], came: list[Outcome], as_json: bool) -> None:
    results = [one for one in came if not isinstance(one, BaseException)]
    means = [one["mean_reward"] for one in results if not math.isnan(one["mean_reward"])]
    all_of = score(means) if means else None
    if as_json:
        told = [{"seed": n, **_told(one)} for n, one in zip(seeds, came, strict=True)]
        say_json({**about, "runs": told, "mean_reward": _named(all_of)})
        return
    counts = {
        "failed": len(came) - len(results),
        "interrupted": sum(one["interrupted"] for one in results),
    }
    told_of = "".join(f", {count} {what}" for what, count in counts.items() if count)
    say(f"{about['algorithm']} {about['env']}: {len(came)} runs{told_of}")
    if all_of is not None:
        low, high = all_of["iqm_interval"]
        say(
            f"mean return {all_of['mean']:.2f} +- {all_of['std']:.2f}, interquartile mean "
            f"{all_of['iqm']:.2f} [{low:.2f}, {high:.2f}] of {len(means)} runs' last 100 episodes"
        )


def _told(came: Outcome) -> TrainResult | dict[str, str]:
    return {"error": in_a_line(came)} if isinstance(came, BaseException) else came


def _named(all_of: Score | None) -> dict[str, Any] | None:
    """A score of runs, which has no episodes."""
    if all_of is None:
        return None
    return {"runs" if name == "episodes" else name: value for name, value in all_of.items()}
