"""`rlox train ALGORITHM ENV`: an algorithm's settings are flags; a YAML file may hold them, too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass
from typing import Annotated, Any

from rlox.backends import Backend
from rlox.cli.config_file import read_config, read_scalar
from rlox.cli.flags import flat, settings_type, with_noise
from rlox.cli.mistakes import UsageError, hint
from rlox.cli.outcome import tell_training
from rlox.cli.saved import trainer_of, trainers
from rlox.cli.usage import POSITIONAL, dotted, given, named, parse
from rlox.keywords import refuse_unknown
from rlox.presets import preset

_KEYWORDS = "env_kwargs"
# What a run's `config.json` says beside what decides: read over, so that it is a config file.
_TOLD = ("sources", "spaces", "versions", "own_policy", "own_features")


@dataclass
class Run:
    """What is trained, for how long, and what is left behind."""

    env: Annotated[str | None, POSITIONAL, named("ENV")] = None
    """Id of the environment; --env-kwargs.NAME VALUE are arguments of its own."""
    config: str | None = None  # YAML file, or a run's config.json, with any of these; flags win
    seed: int | None = None  # decides everything random; None: any, which the run folder tells
    total_timesteps: int | None = None  # steps to make, all environments together
    backend: Backend = "auto"  # what computes the networks; auto: by what is asked for
    runs_dir: str | None = "runs"  # where the run folder is made; None: nowhere
    progress: bool = True  # show progress on stderr
    json: bool = False  # print what came of it as JSON


_DECIDED = [field.name for field in fields(Run) if field.name != "config"]
_IN_FILES = [name for name in _DECIDED if name != "json"]


def run(words: Sequence[str]) -> int:
    """Trains, and tells what came of it."""
    asked, words = dotted(_KEYWORDS, words)
    start = "--settings."
    words = [f"--{w.removeprefix(start)}" if w.startswith(start) else w for w in words]
    path = given("config", words)
    file = {} if path is None else read_config(path)
    algorithm, words = _algorithm(file, words)
    if algorithm is None:
        parse(Run, "train {" + ",".join(trainers()) + "}", ["--help"])
    settings = _settings_of(file, str(algorithm))
    decided, chosen = _parsed(str(algorithm), file, words)
    if not isinstance(env := decided["env"], str):
        raise UsageError(
            f"ENV: expected an environment's id, got {env}; rlox train {algorithm} CartPole-v1"
        )
    if decided["total_timesteps"] is None:
        raise UsageError(
            "--total-timesteps: expected how many steps to make, got none; "
            "add --total-timesteps 100_000"
        )
    settings |= with_noise(chosen, {**preset(str(algorithm), env), **settings})
    own = _mapping(file, _KEYWORDS)
    own |= {name: read_scalar(word, f"--env-kwargs.{name}") for name, word in asked.items()}
    return _train(str(algorithm), decided, {_KEYWORDS: own, **settings})


def _train(algorithm: str, decided: dict[str, Any], settings: dict[str, Any]) -> int:
    steps, progress, as_json = (decided.pop(n) for n in ("total_timesteps", "progress", "json"))
    with trainer_of(algorithm)(**decided, **settings) as trainer:
        result = trainer.train(steps, progress_bar=progress)
        return tell_training(trainer, result, as_json=as_json)


def _algorithm(file: Mapping[str, Any], words: list[str]) -> tuple[str | None, list[str]]:
    """The algorithm, None where only help is asked for, and the words after it."""
    name = file.get("algorithm")
    if words and not words[0].startswith("-"):
        name, words = words[0], words[1:]
    if name is None and {"-h", "--help"} & {*words}:
        return None, words
    if name not in trainers():
        near = hint(str(name), trainers()) if name is not None else "rlox train ppo CartPole-v1"
        expected = f"an algorithm ({', '.join(trainers())})"
        raise UsageError(f"ALGORITHM: expected {expected}, got {name or 'none'}; {near}")
    return name, words


def _parsed(
    algorithm: str, file: Mapping[str, Any], words: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What decides the run, of flags before the file, and the settings that flags gave."""
    config_type = trainer_of(algorithm).config_type
    first = words[0] if words and not words[0].startswith("-") else file.get("env")
    flags = settings_type(config_type, algorithm, first if isinstance(first, str) else None)
    kinds = [("run", flat(Run)), ("settings", flat(flags))]
    about: Any = make_dataclass("Train", kinds)
    about.__doc__ = (
        f"Train {algorithm}. What is not given comes from rl-zoo3 for this ENV, or is a default."
    )
    parsed = parse(about, f"train {algorithm}", words)
    decided = {name: getattr(parsed.run, name) for name in _DECIDED}
    for name in file.keys() & {*_IN_FILES}:
        if given(name, words) is None and not (name == "env" and decided["env"] is not None):
            decided[name] = file[name]
    return decided, parsed.settings


def _settings_of(file: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """The settings in a file, at its top or under `settings`.

    Raises:
        UsageError: A key that there is not, or a trainer that a file alone cannot make.
    """
    config_type = trainer_of(algorithm).config_type
    known = [field.name for field in fields(config_type)]
    others = ["algorithm", "settings", _KEYWORDS, *_IN_FILES]
    for name in ("own_policy", "own_features"):
        if file.get(name):
            raise UsageError(
                f"{name}: expected settings, got those of a run with a network of its own, which "
                "no file holds; train it in Python"
            )
    top = {name: value for name, value in file.items() if name not in (*others, *_TOLD)}
    inner = {name.replace("-", "_"): x for name, x in _mapping(file, "settings").items()}
    try:
        refuse_unknown(top, [*known, *others], algorithm)
        refuse_unknown(inner, known, algorithm)
    except TypeError as error:
        raise UsageError(f"--config: {error}") from error
    return {**top, **inner}


def _mapping(file: Mapping[str, Any], name: str) -> dict[str, Any]:
    content = file.get(name)
    if content is not None and not isinstance(content, dict):
        raise UsageError(
            f"--config, {name}: expected keys and values, got {content!r}; write {name}: {{}}"
        )
    return dict(content or {})
