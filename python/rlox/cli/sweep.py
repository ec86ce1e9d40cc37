"""`rlox sweep ALGORITHM ENV`: many trials, and the best settings as a file for `rlox train`."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any

from rlox._errors import ArgumentError
from rlox.backends import Backend
from rlox.cli.config_file import read_config, read_scalar
from rlox.cli.file_settings import KEYWORDS, algorithm_of, env_of, mapping_of, settings_of
from rlox.cli.flags import flat, settings_type, with_noise
from rlox.cli.mistakes import UsageError, blaming
from rlox.cli.output import say, say_json
from rlox.cli.saved import trainer_of, trainers
from rlox.cli.usage import POSITIONAL, dotted, given, named, parse
from rlox.presets import preset
from rlox.settings import whole
from rlox.sweep import Plan, Sweep, as_space, default_space

_N: Any = named("N", hint="")
_IN_FILES = ("env", "seed", "total_timesteps", "backend", "eval_every", "eval_episodes")


@dataclass
class Search:
    """Search for good settings. Those that are given are the same in all trials."""

    env: Annotated[str | None, POSITIONAL, named("ENV", hint="")] = None
    """Id of the environment; --env-kwargs.NAME VALUE are arguments of its own."""
    config: Annotated[str | None, named("FILE", hint="")] = None
    """YAML file of settings that are the same in all trials"""
    space: Annotated[str | None, named("FILE", hint="")] = None
    """YAML file of what to search; else what suits the algorithm"""
    trials: int = 20  # how many, those of before included
    jobs: int = 1  # how many at once, in processes
    total_timesteps: Annotated[int | None, _N] = None
    """steps of each trial"""
    eval_every: Annotated[int | None, _N] = None
    """steps between evaluations; else a tenth of all"""
    eval_episodes: int = 10  # of each evaluation
    prune: bool = True  # end what is below the median of the others
    startup_trials: int = 5  # random ones, not pruned
    storage: str = "sweep.db"  # SQLite file that keeps them
    study: Annotated[str | None, named("NAME", hint="")] = None
    """its name there; else ALGORITHM-ENV"""
    seed: Annotated[int | None, _N] = None
    """of the first trial; others count on"""
    backend: Backend = "auto"  # what computes the networks
    runs_dir: Annotated[str | None, named("DIR")] = "runs"
    """where run folders are made, or None"""
    progress: bool = True  # tell each trial on stderr
    json: bool = False  # print all trials as JSON


def run(words: Sequence[str]) -> int:
    """Searches, and prints the best settings."""
    asked, words = dotted(KEYWORDS, words)
    path = given("config", words)
    file = {} if path is None else read_config(path)
    algorithm, words = algorithm_of(file, words, "sweep")
    if algorithm is None:
        parse(Search, "sweep {" + ",".join(trainers()) + "}", ["--help"])
    name = str(algorithm)
    fixed = settings_of(file, name, _IN_FILES)
    search, chosen = _parsed(name, file, words)
    for one in (file.keys() & {*_IN_FILES}) - {"env"}:
        if given(one, words) is None:
            setattr(search, one, file[one])
    search.env = search.env or env_of(file)
    if not isinstance(search.env, str):
        raise UsageError(
            f"ENV: expected an environment's id, got {search.env}; rlox sweep {name} CartPole-v1"
        )
    fixed |= with_noise(chosen, {**preset(name, search.env), **fixed})
    own = mapping_of(file, KEYWORDS)
    own |= {key: read_scalar(word, f"--env-kwargs.{key}") for key, word in asked.items()}
    with blaming([*file, *fixed]):
        plan = _plan(name, search, fixed, own)
        sweep = Sweep(plan, search.storage, search.study, search.runs_dir)
    try:
        sweep.run(search.trials, search.jobs, _teller(sweep) if search.progress else None)
    except KeyboardInterrupt:
        told = f"interrupted after {len(sweep.done())} trials, which {search.storage} keeps; the "
        say(told + "same command goes on", to=sys.stderr)
        raise
    return _tell(sweep, as_json=search.json)


def _parsed(
    algorithm: str, file: Mapping[str, Any], words: Sequence[str]
) -> tuple[Search, dict[str, Any]]:
    """What is asked for, and the settings that flags fixed."""
    first = words[0] if words and not words[0].startswith("-") else file.get("env")
    env = first if isinstance(first, str) else None
    flags = settings_type(trainer_of(algorithm).config_type, algorithm, env)
    about: Any = make_dataclass("Sweep", [("search", flat(Search)), ("settings", flat(flags))])
    about.__doc__ = f"Search for good settings of {algorithm}."
    parsed = parse(about, f"sweep {algorithm}", words)
    return parsed.search, parsed.settings


def _plan(
    algorithm: str, search: Search, fixed: dict[str, Any], env_kwargs: dict[str, Any]
) -> Plan:
    steps = search.total_timesteps
    if steps is None:
        raise UsageError(
            "--total-timesteps: expected how many steps each trial makes, got none; add "
            "--total-timesteps 100_000"
        )
    whole("total_timesteps", steps, 1)
    every = max(steps // 10, 1) if search.eval_every is None else search.eval_every
    whole("eval_every", every, 1)
    settings = {"num_envs": 1, **preset(algorithm, str(search.env)), **fixed}
    num_envs = whole("num_envs", settings["num_envs"], 1)
    if search.space is None:
        space = default_space(algorithm, num_envs, every)
    else:
        try:
            config_type = trainer_of(algorithm).config_type
            space = as_space(read_config(search.space, "--space"), algorithm, config_type)
        except (TypeError, ValueError) as error:
            raise UsageError(f"--space: {error}") from error
    return Plan(
        algorithm,
        str(search.env),
        {name: one for name, one in space.items() if name not in fixed},
        total_timesteps=steps,
        eval_every=every,
        eval_episodes=search.eval_episodes,
        seed=search.seed,
        startup_trials=search.startup_trials,
        prune=search.prune,
        backend=search.backend,
        env_kwargs=env_kwargs,
        settings=fixed,
    )


def _teller(sweep: Sweep) -> Any:
    def tell(trial: Any) -> None:
        about = trial.user_attrs
        how = {"COMPLETE": f"mean reward {trial.value or 0.0:.2f}", "PRUNED": "pruned"}
        said = how.get(trial.state.name, f"failed: {about.get('error')}")
        best = sweep.best()
        beside = "" if best is None else f"; best {best.value:.2f} of trial {best.number}"
        say(f"trial {trial.number}: {said} in {about['timesteps']:,} steps{beside}", to=sys.stderr)

    return tell


def _tell(sweep: Sweep, *, as_json: bool) -> int:
    """The best settings as YAML, or all trials as JSON; 1 where no trial has a score."""
    trials, best = sweep.done(), sweep.best()
    if best is None:
        said = [x.user_attrs["error"] for x in trials if "error" in x.user_attrs]
        raise ArgumentError(
            "score",
            "a trial with one",
            f"{len(trials)} without (the last failed with {(said[-1] if said else 'nothing')})",
            "change the space or the settings, and pass another --study",
        )
    config = sweep.config(best)
    if as_json:
        told = [
            {"number": x.number, "state": x.state.name.lower(), "score": x.value, **x.user_attrs}
            for x in trials
        ]
        say_json({"study": sweep.name, "best": {"score": best.value, **config}, "trials": told})
        return 0
    settings = config.pop("settings")
    say(f"# mean reward {best.value:.2f}: trial {best.number}, the best of {len(trials)}")
    for name, value in config.items():
        say(f"{name}: {json.dumps(value)}")
    say("settings:" + ("" if settings else " {}"))
    for name, value in settings.items():
        say(f"  {name}: {json.dumps(value)}")
    return 0
