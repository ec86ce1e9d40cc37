"""Keywords that nobody has: refused, with what they may have been meant for."""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import gymnasium as gym

from rlox._errors import ArgumentError

P = ParamSpec("P")
T = TypeVar("T")

# How `VecEnv` and native environments say that a keyword is none of theirs.
_REFUSED = (
    "^VecEnv has no setting '{0}';",
    '^env arguments: expected .*, got "{0}";',
    "^{0}: expected a number or a boolean",
)


def refuse_unknown(
    given: Iterable[str], known: Iterable[str], what: str, also: Mapping[str, str] | None = None
) -> None:
    """Names the first keyword that is not known, and near ones that are.

    Args:
        given: The keywords that were passed.
        known: Those that there are.
        what: Whose they are.
        also: What to say to those who pass others that are often passed.

    Raises:
        TypeError: There is one.

    >>> refuse_unknown(["gama"], ["gamma", "n_steps"], what="PPOTrainer")
    Traceback (most recent call last):
    TypeError: PPOTrainer has no setting 'gama'; did you mean 'gamma'?
    """
    known, also = list(known), also or {}
    for name in given:
        if name not in known:
            near = _hint(name, known, also)
            hint = near or f"it has {', '.join(known)}; leave it out, or pass one of them"
            raise TypeError(f"{what} has no setting {name!r}; {hint}")


def hint(name: str, known: Iterable[str]) -> str:
    """What somebody may have meant, or all that there is.

    >>> hint("trian", ["train", "eval"]), hint("x", ["train", "eval"])
    ("did you mean 'train'?", 'there are train, eval')
    """
    all_known = list(known)
    if near := nearest(name, all_known):
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"there are {', '.join(all_known)}"


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three that somebody may have meant, the nearest first; versions and case count little.

    >>> nearest("cartpole", ["Acrobot-v1", "CartPole-v1"]), nearest("Foo-v1", ["Acrobot-v1"])
    (['CartPole-v1'], [])
    """
    stems: dict[str, list[str]] = {}
    for one in dict.fromkeys(known):
        stems.setdefault(_stem(one), []).append(one)
    near = difflib.get_close_matches(_stem(name), stems, n=3, cutoff=0.55)
    return [one for stem in near for one in sorted(stems[stem], reverse=True)][:3]


def _stem(name: str) -> str:
    """What tells names apart: versions and the case do not."""
    return re.sub(r"-v\d+$", "", name.lower())


def _hint(name: str, known: list[str], also: Mapping[str, str]) -> str:
    also = {other: hint for other, hint in also.items() if other not in known}
    if name in also:
        return also[name]
    parts = {x: (x, *x.split("_"), _initials(x)) for x in known}
    near = [x for x in known if any(part.startswith(name) for part in parts[x])]
    near = near or difflib.get_close_matches(name, known, n=3)
    hints = [f"did you mean {' or '.join(map(repr, near))}?"] if near else []
    hints += [also[other] for other in difflib.get_close_matches(name, also, n=1)]
    return " ".join(dict.fromkeys(hints))


def _initials(name: str) -> str:
    return "".join(part[:1] for part in name.split("_"))


def meant(**names: str) -> dict[str, str]:
    """What `refuse_unknown` takes as `also`, from what others call arguments to what we do.

    >>> meant(num_envs="n")
    {'num_envs': "did you mean 'n'?"}
    """
    return {name: f"did you mean {ours!r}?" for name, ours in names.items()}


def names_of(function: Callable[..., Any]) -> list[str]:
    """The keywords that a function, or a class, has by name.

    >>> names_of(lambda n, *others, seed=None, **rest: None)
    ['n', 'seed']
    """
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    about = inspect.signature(function).parameters.items()
    return [name for name, p in about if p.kind in named and name not in ("self", "cls")]


def places(trainer: Any) -> dict[str, str]:
    """What to say to those who pass an argument of a trainer, or its class, to another call."""
    kind: Any = trainer if isinstance(trainer, type) else type(trainer)
    made = (*names_of(kind), *(field.name for field in fields(kind.config_type)))
    there = dict.fromkeys(names_of(kind.train), "train(), not to the constructor")
    there |= dict.fromkeys(made, f"the constructor, {kind.__name__}(...)")
    return {name: f"{name} belongs to {place}" for name, place in there.items()}


# What trainers have instead of keywords of Stable-Baselines3's; those that replay, of goals, too.
_THEIRS = {"policy_kwargs": "pass net_arch, activation or features_extractor as they are"}
_THEIR_REPLAY = {
    "replay_buffer_class": 'for goals in hindsight pass her="future" ("final", "episode"); DQN has '
    "prioritized=True",
    "replay_buffer_kwargs": "pass her= for its goal_selection_strategy, and n_sampled_goal= as it "
    "is",
    "goal_selection_strategy": "pass it as her=",
    "optimize_memory_usage": "leave it out: next observations that follow are stored once anyway",
}


def refuse_settings(trainer: Any, settings: Iterable[str]) -> None:
    """Refuses settings that the trainer's algorithm does not have, as `refuse_unknown` does."""
    known = (*(field.name for field in fields(trainer.config_type)), *names_of(type(trainer)))
    also = {**_THEIRS, **(_THEIR_REPLAY if "her" in known else {})}
    refuse_unknown(settings, known, type(trainer).__name__, {**places(trainer), **also})


def refuse_policy_name(env: object) -> None:
    """Refuses the name of a policy in the place of an environment, where others' trainers take it.

    Raises:
        ValueError: It is one.
    """
    if isinstance(env, str) and env.endswith("Policy") and env not in gym.registry:
        raise ArgumentError(
            "env",
            "an environment as the first argument",
            repr(env),
            "leave that out, as the built-in policy fits the spaces, and pass policy= for a "
            "network of your own",
        )


def knowing_keywords(
    also: Callable[[Any], Mapping[str, str]] = lambda owner: {},
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: unknown keywords are refused as `refuse_unknown` does.

    Args:
        also: From the first argument to what `refuse_unknown` takes as `also`.

    >>> @knowing_keywords()
    ... def step(env, n_steps=1): ...
    >>> step(None, n_step=3)
    Traceback (most recent call last):
    TypeError: step() has no setting 'n_step'; did you mean 'n_steps'?
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        known = names_of(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if not kwargs.keys() <= {*known}:
                hints = also(args[0]) if args else {}
                made = function.__name__ == "__init__"
                what = type(args[0]).__name__ if made else f"{function.__name__}()"
                refuse_unknown(kwargs, known, what, hints)
            return function(*args, **kwargs)

        return call

    return decorate


def refuse_near(
    what: Callable[..., Any],
    given: Iterable[str],
    taking: Any,
    besides: Iterable[str] = (),
    also: Mapping[str, str] | None = None,
) -> None:
    """For keywords that `what` passes on: refuses what is none there, and may be one of its own.

    Other keywords are left for `taking` to refuse.

    Args:
        what: Its own keywords are those that may have been meant.
        given: The keywords that it passes on.
        taking: What takes them: by its signature, if it has one.
        besides: Keywords that are taken on the way.
        also: As for `refuse_unknown`.

    Raises:
        TypeError: There is one.

    >>> def make(factory, seed=None, **kwargs): ...
    >>> refuse_near(make, ["seeds"], lambda seeds: None)
    >>> refuse_near(make, ["seeds"], lambda size: None)
    Traceback (most recent call last):
    TypeError: make has no setting 'seeds'; did you mean 'seed'?
    """
    try:
        about = inspect.signature(taking).parameters.values()
    except (TypeError, ValueError):  # some of C have none
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in about):
        return
    own, theirs = names_of(what), {*names_of(taking), *besides}
    for name in given:
        if name not in theirs and _hint(name, own, also or {}):
            refuse_unknown([name], own, what.__name__, also)


@contextmanager
def explaining_unknown(
    what: Callable[..., Any], given: Iterable[str], also: Mapping[str, str] | None = None
) -> Iterator[None]:
    """For keywords that `what` passes on to native environments, as `refuse_near`.

    Which keywords these take, they only say in errors. No code of a caller's runs in them.

    Raises:
        TypeError: A keyword was refused that is near one that `what` itself has.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        known = names_of(what)
        for name in given:
            ways = [way.format(re.escape(name)) for way in _REFUSED]
            if any(re.search(way, str(error)) for way in ways) and _hint(name, known, also or {}):
                refuse_unknown([name], known, what.__name__, also)
        raise
