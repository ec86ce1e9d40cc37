"""Options of the commands, as dataclasses filled from flags, YAML files and run folders."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_type_hints

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._files import parse_yaml, read_small
from rlox._optional import load_extra
from rlox._registry import ALGORITHMS
from rlox._validation import (
    Setting,
    check_bool,
    check_float,
    check_int,
    check_keywords,
    get_settings,
    hint,
    short_repr,
)
from rlox.cli import UsageError
from rlox.learners._backends import Backend
from rlox.noise import KINDS
from rlox.presets import preset

T = TypeVar("T")
_typed_dict: Any = TypedDict  # type checkers accept only calls with literal names
# Keys of a run's `config.json` that only describe the run.
_DESCRIPTION = ("sources", "spaces", "versions", "custom_policy", "custom_features")
_LARGEST = 1 << 20  # bytes of a config file
_NOISE_SETTINGS = {name: x for cls in KINDS.values() for name, x in get_settings(cls).items()}


def option(text: str, default: Any = MISSING, metavar: str | None = None, low: int | None = None) -> Any:
    """Declare a field of an options dataclass; a field without a default is required.

    Subclasses of `Options` reject integers below `low`.
    """
    return field(default=default, metadata={"flag": {"text": text, "metavar": metavar}, "low": low})


def argument(text: str, metavar: str, default: Any = MISSING) -> Any:
    """Declare a positional argument as a field of an options dataclass."""
    flag = {"text": text, "metavar": metavar, "positional": True}
    return field(default=default, metadata={"flag": flag, "low": None})


@dataclass
class Options:
    """Base of options dataclasses, which checks flags, lists, and integers that have a lower bound."""

    def __post_init__(self) -> None:
        for item in fields(self):
            low, value = item.metadata["low"], getattr(self, item.name)
            if low is not None and (value is not None or item.default is not None):
                check_int(item.name, value, low, fix="pass a positive integer")
            if isinstance(item.default, bool):
                check_bool(item.name, value)
            if isinstance(item.default, tuple) and not isinstance(value, list | tuple):
                raise ArgumentTypeError(item.name, "a list", short_repr(value), f"write [{value}]")


@dataclass
class RunOptions(Options):
    """Options for callbacks and loggers; frequencies count steps of all environments."""

    loggers: tuple[str, ...] = option("any of console csv jsonl tensorboard wandb mlflow", (), metavar="NAME...")
    eval_every: int | None = option("evaluate every N steps, and save the best", None, "N", 1)
    eval_episodes: int | None = option("episodes per evaluation; default: 10", None, "N", 1)
    stop_at_reward: float | None = option("stop at this mean return of evaluations", None, "X")
    patience: int | None = option("stop after N steps without a better mean return", None, "N", 1)
    checkpoint_every: int | None = option("save a checkpoint every N steps", None, "N", 1)
    keep_last: int | None = option("number of checkpoints to keep; default: 3", None, "N", 1)
    video_every: int | None = option("record an episode every N steps", None, "N", 1)
    timing: bool = option("log shares of the run time", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop_at_reward is not None:
            check_float("stop_at_reward", self.stop_at_reward, fix="pass a number")
        for name, needed in NEEDS.items():
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise UsageError(
                    f"{to_flag(name)}: expected {to_flag(needed)} as well, got none; add {to_flag(needed)} 10_000"
                )


# Options, and the option without which they have no effect.
NEEDS = {"eval_episodes": "eval_every", "stop_at_reward": "eval_every", "keep_last": "checkpoint_every"}


@dataclass
class _StartOptions:
    env: str | None = argument("Id of the environment; pass its arguments as --env-kwargs.NAME VALUE", "ENV", None)
    config: str | None = option("YAML file or config.json; flags take precedence", None, "FILE")
    seed: int | None = option("seed of all random numbers; default: drawn and printed", None, "N")
    seeds: str | None = option("several runs, one per seed, such as 0-9 or 0,3,7", None, "0-9")
    total_timesteps: int | None = option("total steps of all environments", None, "N", 1)
    backend: Backend = option("implementation of the networks", "auto")
    runs_dir: str | None = option("folder for the run folders; None: write no files", "runs", "DIR")
    progress: bool = option("show progress on stderr", True)
    json: bool = option("print the result as JSON", False)


@dataclass
class TrainOptions(RunOptions, _StartOptions):
    """Train an algorithm; rlox train ALGORITHM --help lists the settings."""


@dataclass(frozen=True)
class Experiment:
    """Command line and config file of `train` or `sweep`, merged."""

    algorithm: str
    options: Any
    settings: dict[str, Any]
    env_kwargs: dict[str, Any]


def parse_experiment(options_type: type[Any], command: str, argv: Sequence[str]) -> Experiment:
    """Parse `ALGORITHM ENV [OPTIONS]` and the file of `--config`; flags take precedence.

    Raises:
        UsageError: An option, the file or a key of the file is wrong.
        SystemExit: With 0 after help, or with 2 after an option that tyro rejects.
    """
    files, argv = _pop_options("config", argv)
    kwargs, argv = _pop_options("env-kwargs", argv, dotted=True)
    config = read_config(files[""]) if files else {}
    positional = bool(argv) and not argv[0].startswith("-")
    algorithm, argv = (argv[0], argv[1:]) if positional else (config.get("algorithm"), argv)
    if algorithm is None and {"-h", "--help"} & {*argv}:
        parse_flags(options_type, f"{command} {{{','.join(sorted(ALGORITHMS))}}}", ["--help"])
    if str(algorithm) not in ALGORITHMS:
        expected = f"an algorithm ({', '.join(sorted(ALGORITHMS))})"
        fix = hint(str(algorithm), ALGORITHMS) if algorithm else f"rlox {command} ppo CartPole-v1"
        raise UsageError(f"ALGORITHM: expected {expected}, got {algorithm or 'none'}; {fix}")
    algorithm = str(algorithm)
    options, settings = _split(config, options_type, algorithm)
    env = argv[0] if argv and not argv[0].startswith("-") else options.get("env")
    flags, chosen = _parse_with_settings(options_type, command, algorithm, env, argv)
    if len(seed_flags := flags.keys() & {"seed", "seeds"}) == 1:
        for name in {"seed", "seeds"} - seed_flags:
            options.pop(name, None)
    options |= flags
    env = options.get("env")
    if not isinstance(env, str):
        example = f"rlox {command} {algorithm} CartPole-v1"
        raise UsageError(f"ENV: expected the id of an environment, got {env}; {example}")
    if ":" in env and "env" not in flags:
        raise UsageError(
            f"--config, env: expected an id without a module, got {env!r}; if you trust the "
            f"module, which would be imported, pass {env!r} as ENV"
        )
    if options.get("total_timesteps") is None:
        raise UsageError("--total-timesteps: expected the number of steps, got none; add --total-timesteps 100_000")
    settings |= _with_noise(chosen, {**preset(algorithm, env), **settings})
    flag_kwargs = {name: read_yaml(text, f"--env-kwargs.{name}") for name, text in kwargs.items()}
    env_kwargs = _mapping(config, "env_kwargs") | flag_kwargs
    return Experiment(algorithm, options_type(**options), settings, env_kwargs)


def option_names() -> set[str]:
    """Return the names of options, settings and noise parameters."""
    classes: list[Any] = [TrainOptions, *(spec.config for spec in ALGORITHMS.values())]
    names = (item.name for cls in classes for item in fields(cls))
    return {"env_id", "env_kwargs", *_NOISE_SETTINGS, *names}


def parse(options_type: type[T], command: str, argv: Sequence[str]) -> T:
    """Parse the arguments of a command into an options dataclass."""
    required = any(item.default is MISSING for item in fields(options_type))  # type: ignore[arg-type]
    if not argv and not required:  # works without tyro
        return options_type()
    return options_type(**parse_flags(options_type, command, argv))


def parse_flags(options_type: type[Any], command: str, argv: Sequence[str]) -> dict[str, Any]:
    """Parse the arguments of a command; return only the options that are set."""
    return dict(_run_tyro(_make_flags(options_type), options_type.__doc__, command, argv))


def _parse_with_settings(
    options_type: type[Any], command: str, algorithm: str, env: Any, argv: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse options and settings; the help shows the settings of the preset for `env`."""
    tyro: Any = load_extra("tyro", "cli", "rlox")
    tuned = preset(algorithm, env) if isinstance(env, str) else {}
    groups = {"run": _make_flags(options_type), "settings": _make_setting_flags(ALGORITHMS[algorithm].config, tuned)}
    flat = [(name, Annotated[cls, tyro.conf.OmitArgPrefixes]) for name, cls in groups.items()]
    description = f"{command.capitalize()} {algorithm}. Settings default to the preset of ENV."
    parsed = _run_tyro(make_dataclass("Groups", flat), description, f"{command} {algorithm}", argv)
    return parsed.run, parsed.settings


def _run_tyro(cls: Any, description: str | None, command: str, argv: Sequence[str]) -> Any:
    tyro: Any = load_extra("tyro", "cli", "rlox")
    cls.__doc__ = description
    if os.environ.get("NO_COLOR"):
        tyro._experimental_options["ansi_codes"] = False
    if {"-h", "--help"} & {*argv}:
        argv = ["--help"]  # otherwise the help omits options that are set before --help
    return tyro.cli(cls, prog=f"rlox {command}", args=argv)


def _make_flags(options_type: type[Any]) -> Any:
    """Return a TypedDict of options, from which the parser omits options that are not set."""
    from typing_extensions import Required

    types, flags = get_type_hints(options_type), dict[str, Any]()
    for item in fields(options_type):
        default_text = "" if item.default in (None, MISSING, ()) else f"(default: {item.default})"
        flag = _make_flag(types[item.name], default_text=default_text, **item.metadata["flag"])
        flags[item.name] = Required[flag] if item.default is MISSING else flag
    return _typed_dict(options_type.__name__, flags, total=False)


def _make_setting_flags(config_type: type[Any], tuned: Mapping[str, Any]) -> Any:
    """Return a TypedDict of settings, with the values of a preset in the help."""
    flags = dict[str, Any]()
    for name, item in get_settings(config_type).items():
        value, source = tuned.get(name, item.default), "rl-zoo3" if name in tuned else "default"
        if name == "action_noise":
            flags |= _make_noise_flags(item.doc, source, value or {})
        else:
            text = " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
            flags[name] = _make_flag(item.type, item.doc, default_text=_hint(item, f"{source}: {text or 'nothing'}"))
    return _typed_dict(config_type.__name__, flags, total=False)


def _hint(item: Setting, text: str = "") -> str:
    """Return the default and the bounds of a number for the help."""
    return f"({'; '.join(filter(None, (text, item.bounds)))})" if text or item.bounds else ""


def _make_noise_flags(text: str, source: str, noise: Mapping[str, Any]) -> dict[str, Any]:
    default_text = f"({source}: {noise.get('kind', 'none')})"
    flags = {"action_noise": _make_flag(Literal[(*KINDS, "none")], text, default_text=default_text)}
    for name, item in _NOISE_SETTINGS.items():
        kinds = [kind for kind, cls in KINDS.items() if name in get_settings(cls)]
        doc = item.doc if len(kinds) == len(KINDS) else f"{item.doc} ({', '.join(kinds)})"
        default_text = _hint(item, f"{source}: {noise[name]}" if name in noise else "")
        flag = f"action_noise.{name}"
        flags[flag] = _make_flag(float, doc, default_text=default_text, name=flag)
    return flags


def _make_flag(kind: Any, text: str, *, default_text: str, positional: bool = False, **names: str | None) -> Any:
    tyro: Any = load_extra("tyro", "cli", "rlox")
    arg = tyro.conf.arg(help=text, help_behavior_hint=default_text, **names)
    return Annotated[(kind, arg, *([tyro.conf.Positional] if positional else []))]


def _with_noise(flags: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of flags; noise flags change the noise of the file or preset."""
    settings = {name: x for name, x in flags.items() if not name.startswith("action_noise")}
    numbers = {name[13:]: x for name, x in flags.items() if name.startswith("action_noise.")}
    if "action_noise" not in flags and not numbers:
        return settings
    noise = base.get("action_noise")
    base_numbers = dict(noise) if isinstance(noise, Mapping) else {}
    base_kind = base_numbers.pop("kind", "none")
    kind = flags.get("action_noise", base_kind)
    names = [*get_settings(KINDS[kind])] if kind in KINDS else []
    if unknown := sorted(numbers.keys() - {*names}):
        raise UsageError(
            f"--action-noise.{unknown[0]}: expected a parameter of {kind} noise "
            f"({', '.join(names) or 'no parameters'}), got {unknown[0]}; set --action-noise "
            f"{' or '.join(KINDS)}"
        )
    if kind not in KINDS:
        return {**settings, "action_noise": None}
    noise = KINDS[kind](**{**(base_numbers if kind == base_kind else {}), **numbers})
    return {**settings, "action_noise": noise}


def _pop_options(name: str, argv: Sequence[str], *, dotted: bool = False) -> tuple[dict[str, str], list[str]]:
    """Remove `--NAME VALUE` or `--NAME.KEY VALUE`; return values by key, and other arguments."""
    values, rest = dict[str, str](), list[str]()
    remaining = iter(argv)
    for argument_text in remaining:
        start, equal, value = argument_text.partition("=")
        flag, _, key = start.partition(".")
        if flag.replace("_", "-") != f"--{name}" or bool(key) != dotted:
            rest.append(argument_text)
            continue
        value = value if equal else next(remaining, "--")
        if value.startswith("--"):
            raise UsageError(f"{start}: expected a value, got none; write {start} VALUE")
        values[key] = value
    return values, rest


def _split(config: Mapping[str, Any], options_type: type[Any], algorithm: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a config file into options and settings, which may be at the top level as well."""
    for name in ("custom_policy", "custom_features"):
        if config.get(name):
            raise UsageError(
                f"--config, {name}: expected a run with built-in networks, got a run with networks "
                "defined in Python, which files cannot hold; train it in Python"
            )
    options = {item.name for item in fields(options_type)} - {"config"}
    known = [item.name for item in fields(ALGORITHMS[algorithm].config)]
    excluded = {"algorithm", "settings", "env_kwargs", *_DESCRIPTION}
    top = {name: value for name, value in config.items() if name not in excluded}
    inner = _plain_names(_mapping(config, "settings"), "--config, settings")
    try:
        check_keywords(top, [*known, *options], algorithm)
        check_keywords(inner, known, algorithm)
    except TypeError as error:
        raise UsageError(f"--config: {error}") from error
    if twice := sorted(top.keys() & inner.keys()):
        raise UsageError(
            f"--config: expected {twice[0]!r} once, got it at the top level and under settings; remove one of them"
        )
    settings = {name: value for name, value in top.items() if name not in options}
    return {name: top[name] for name in top.keys() & options}, {**settings, **inner}


def _mapping(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    content = {} if config.get(name) is None else config[name]
    if not isinstance(content, dict):
        raise UsageError(f"--config, {name}: expected keys and values, got {content!r}; write {name}: {{}}")
    return content


def read_config(path: str, flag: str = "--config") -> dict[str, Any]:
    """Return the content of a YAML or JSON file, with "_" for "-" in the top-level keys.

    Raises:
        UsageError: The file cannot be read, or does not hold keys and values.
    """
    file = Path(path)
    try:
        data = read_small(file, _LARGEST)
    except (OSError, ValueError) as error:
        names = [x.name for x in file.parent.glob("*") if x.suffix in (".yaml", ".yml")]
        fix = hint(file.name, sorted(names)) if names else "pass the path of a file"
        raise UsageError(f"{flag}: expected a YAML file, got {path!r} ({error}); {fix}") from error
    content = read_yaml(data, f"{flag} {path}")
    if not isinstance(content, dict | None):
        raise UsageError(f"{flag} {path}: expected keys and values, got a {type(content).__name__}; write key: value")
    return _plain_names(content or {}, f"{flag} {path}")


def _plain_names(content: dict[Any, Any], where: str) -> dict[str, Any]:
    names = {str(key).replace("-", "_"): value for key, value in content.items()}
    if len(names) < len(content):
        raise UsageError(f"{where}: expected each key once, got a key with - and _; remove one")
    return names


def read_yaml(data: str | bytes, where: str) -> Any:
    """Return the content of YAML; see `rlox._files.parse_yaml`.

    Raises:
        UsageError: The data are not YAML; the text names `where` and the line.
    """
    try:
        return parse_yaml(where, data)
    except ArgumentError as error:
        raise UsageError(str(error)) from error


def to_flag(name: str) -> str:
    """Return the flag of an option, such as --keep-last for keep_last."""
    return "--" + name.replace("_", "-")
