"""`rlox train ALGORITHM ENV`: an algorithm's settings are flags; a YAML file may hold them, too."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, make_dataclass
from typing import Annotated, Any

from rlox.backends import Backend
from rlox.cli import many
from rlox.cli.around import Around, surroundings
from rlox.cli.config_file import read_config, read_scalar
from rlox.cli.file_settings import KEYWORDS, algorithm_of, env_of, mapping_of, settings_of
from rlox.cli.flags import flat, settings_type, with_noise
from rlox.cli.mistakes import UsageError, blaming
from rlox.cli.outcome import tell_training
from rlox.cli.saved import trainer_of, trainers
from rlox.cli.usage import POSITIONAL, dotted, given, named, parse
from rlox.presets import preset
from rlox.registered import find_spec


@dataclass
class Run:
    """What is trained, for how long, and what is left behind."""

    env: Annotated[str | None, POSITIONAL, named("ENV", hint="")] = None
    """Id of the environment; --env-kwargs.NAME VALUE are arguments of its own."""
    config: Annotated[str | None, named("FILE", hint="")] = None
    """YAML file, or a run's config.json, of these; flags win"""
    seed: Annotated[int | None, named("N", hint="")] = None
    """decides everything random; else any, which is told"""
    seeds: Annotated[str | None, named("0-9", hint="")] = None
    """a run for each, side by side; or 0,3,7"""
    total_timesteps: Annotated[int | None, named("N", hint="")] = None
    """steps to make, all environments together"""
    backend: Backend = "auto"  # what computes the networks; auto: by what is asked for
    runs_dir: Annotated[str | None, named("DIR")] = "runs"
    """where the run folder is made, or None"""
    progress: bool = True  # show progress on stderr
    json: bool = False  # print what came of it as JSON


@dataclass
class _About(Around, Run):
    __doc__ = Run.__doc__


_DECIDED = [field.name for field in fields(Run) if field.name != "config"]
_AROUND = [field.name for field in fields(Around)]
_IN_FILES = [*(name for name in _DECIDED if name != "json"), *_AROUND]


def run(words: Sequence[str]) -> int:
    """Trains, and tells what came of it."""
    asked, words = dotted(KEYWORDS, words)
    start = "--settings."
    words = [f"--{w.removeprefix(start)}" if w.startswith(start) else w for w in words]
    path = given("config", words)
    file = {} if path is None else read_config(path)
    algorithm, words = algorithm_of(file, words)
    if algorithm is None:
        parse(_About, "train {" + ",".join(trainers()) + "}", ["--help"])
    settings = settings_of(file, str(algorithm), _IN_FILES)
    decided, chosen = _parsed(str(algorithm), file, words)
    if not isinstance(env := decided["env"], str):
        raise UsageError(
            f"ENV: expected an environment's id, got {env}; rlox train {algorithm} CartPole-v1"
        )
    if ":" not in env:  # else a module that registers it is imported first
        with blaming(["env"]):
            find_spec(env)
    if decided["total_timesteps"] is None:
        raise UsageError(
            "--total-timesteps: expected how many steps to make, got none; "
            "add --total-timesteps 100_000"
        )
    settings |= with_noise(chosen, {**preset(str(algorithm), env), **settings})
    own = mapping_of(file, KEYWORDS)
    own |= {name: read_scalar(word, f"--env-kwargs.{name}") for name, word in asked.items()}
    with blaming([*file, *settings]):
        return _train(str(algorithm), decided, {KEYWORDS: own, **settings})


def _train(algorithm: str, decided: dict[str, Any], settings: dict[str, Any]) -> int:
    if (seeds := decided.pop("seeds")) is not None:
        return many.train(algorithm, seeds, decided, settings)
    steps, progress, as_json = (decided.pop(n) for n in ("total_timesteps", "progress", "json"))
    about = surroundings(Around(**{name: decided.pop(name) for name in _AROUND}))
    with trainer_of(algorithm)(**decided, **settings) as trainer:
        result = trainer.train(steps, progress_bar=progress, **about)
        return tell_training(trainer, result, as_json=as_json)


def _parsed(
    algorithm: str, file: Mapping[str, Any], words: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What decides the run, of flags before the file, and the settings that flags gave."""
    config_type = trainer_of(algorithm).config_type
    first = words[0] if words and not words[0].startswith("-") else file.get("env")
    flags = settings_type(config_type, algorithm, first if isinstance(first, str) else None)
    kinds = [("run", flat(Run)), ("around", flat(Around)), ("settings", flat(flags))]
    about: Any = make_dataclass("Train", kinds)
    about.__doc__ = (
        f"Train {algorithm}. What is not given comes from rl-zoo3 for this ENV, or is a default."
    )
    parsed = parse(about, f"train {algorithm}", words)
    decided = {name: getattr(parsed.run, name) for name in _DECIDED}
    decided |= asdict(parsed.around)
    for name in file.keys() & {*_IN_FILES}:
        said = given(name, words) is not None or given(f"no_{name}", words) is not None
        if not said and name != "env":
            decided[name] = file[name]
    if decided["env"] is None:
        decided["env"] = env_of(file)
    asked = [name for name in ("seed", "seeds") if given(name, words) is not None]
    if len(asked) == 1:  # a flag wins over the other one in the file, as over the same one
        decided["seeds" if asked == ["seed"] else "seed"] = None
    return decided, parsed.settings
