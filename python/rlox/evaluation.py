"""Scores: full episodes in Gymnasium's own environments."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._finite import check_finite_array
from rlox._spaces import to_json
from rlox._validation import check_bool, check_int, check_seed, resolve_seed, short_repr
from rlox.envs._checks import CheckedEnv, check_observations, require_env
from rlox.envs._make import EnvFactory, make_registered
from rlox.envs._masks import MaskSource

if TYPE_CHECKING:
    from rlox.learners import Learner
    from rlox.trainers import Trainer


class EvaluationResult(TypedDict):
    """What `evaluate` gives."""

    mean_reward: float  # mean of `returns`
    std_reward: float  # standard deviation of `returns`
    returns: list[float]  # the sum of raw rewards of each episode
    lengths: list[int]  # the steps of each episode


class Predictor(Protocol):
    """What can be evaluated: a trainer, a learner, or anything else that decides on actions."""

    def predict(self, obs: npt.NDArray[Any], deterministic: bool = True) -> npt.NDArray[Any]:
        """Actions (n, ...) as the environment takes them, for raw observations (n, ...)."""


class SeededPredictor:
    """A learner whose samples come from a seed, so that they neither differ from one evaluation to
    the next nor move the learner's own stream.

    Args:
        learner: Decides on actions.
        seed: Of the samples; environments made with this seed have other streams.
        interrupt_requested: Asked before each step whether what is being played shall end there.

    Raises:
        TypeError: No learner, no seed, or no function.
        ValueError: A seed below 0.
    """

    def __init__(
        self, learner: "Learner", seed: int, interrupt_requested: Callable[[], bool] = lambda: False
    ) -> None:
        if not hasattr(learner, "config"):
            raise ArgumentTypeError(
                "learner", "a Learner", short_repr(learner), "pass a trainer's `learner`"
            )
        if not callable(interrupt_requested):
            raise ArgumentTypeError(
                "interrupt_requested",
                "a function without arguments",
                short_repr(interrupt_requested),
                "pass lambda: False",
            )
        self._learner, seed, self.interrupt_requested = (
            learner,
            check_seed(seed),
            interrupt_requested,
        )
        self.spaces = getattr(learner, "spaces", None)
        self.masked = bool(getattr(learner.config, "action_masks", False))
        # The spawn key keeps this stream apart from the environments', which have none.
        self._stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))

    def predict(
        self, obs: Any, deterministic: bool = True, action_masks: npt.ArrayLike | None = None
    ) -> npt.NDArray[Any]:
        """As `Learner.predict`, with this stream."""
        return self._learner.predict(obs, deterministic, self._stream, action_masks)


def evaluation_seed(seed: int, *, training: bool = False) -> int:
    """The seed of the episodes that belong to a trainer's seed: always the same, and its own.

    Args:
        seed: The trainer's.
        training: For those that are played while it trains, by which the best is chosen: others,
            so that the score of the best is not the one for which it was chosen.

    >>> evaluation_seed(1) == evaluation_seed(1) != evaluation_seed(2)
    True
    """
    # The learner's streams are children 0, 1, ... of the same sequence.
    during = check_bool("training", training)
    stream = np.random.SeedSequence(check_seed(seed), spawn_key=(2**32 - (2 if during else 1),))
    return int(stream.generate_state(1)[0] >> 1)


def check_env_maker(env: Any) -> Any:
    """What environments can be made of.

    Raises:
        TypeError: It is neither an id, a spec nor a function.
    """
    if isinstance(env, str | EnvSpec) or callable(env):
        return env
    raise ArgumentTypeError(
        "env",
        "an id or a function that makes an environment",
        type(env).__name__,
        "pass what makes it",
    )


def get_env_maker(trainer: "Trainer", env: Any = None) -> Any:
    """What `evaluate` makes environments of: `env`, or what the trainer was given.

    Raises:
        ValueError: Those were already made, so `env` is needed.
    """
    chosen = (trainer.env_id or trainer._env) if env is None else env
    if env is None and not (isinstance(chosen, str | EnvSpec) or callable(chosen)):
        raise ArgumentError(
            "env",
            "an id or a function, as the trainer was given environments already made",
            "None",
            "pass env=",
        )
    return chosen


def evaluate(
    policy: Predictor,
    env: str | EnvSpec | Callable[..., gym.Env[Any, Any]],
    n_episodes: int = 30,
    *,
    seed: int | None = None,
    deterministic: bool = True,
    num_envs: int = 10,
    env_kwargs: dict[str, Any] | None = None,
    max_episode_steps: int | None = None,
) -> EvaluationResult:
    """Plays `n_episodes` full episodes.

    Episodes are shared out among the environments beforehand: environment i counts its first ones
    and no others. Taking the first `n_episodes` to finish would prefer short episodes.

    Args:
        policy: Decides on actions. Samples (`deterministic=False`) come from its own stream:
            `Trainer.evaluate` is what makes them the same each time.
        env: An id in Gymnasium's registry, an `EnvSpec`, or a function that makes an environment.
        n_episodes: At least 1.
        seed: Environment i gets `seed + i`; None takes entropy from the operating system.
        deterministic: Passed to `policy.predict`.
        num_envs: How many environments play at once, at most.
        env_kwargs: Passed to what makes the environments; `make_vec`'s own modes are left out.
        max_episode_steps: Episodes that have not ended by then are cut off there, which some
            environments never do themselves; None: where the environment has it.

    Returns:
        If the policy's `interrupt_requested()` becomes true, the means are NaN, and returns and
        lengths are those of the finished episodes.

    Raises:
        TypeError: An argument of another kind, such as an environment already made.
        ValueError: A number below 1 or not whole, a negative seed, an unknown id.

    >>> class Left:
    ...     def predict(self, obs, deterministic=True):
    ...         return np.zeros(len(obs), np.int64)
    >>> result = evaluate(Left(), "CartPole-v1", n_episodes=3, seed=0)
    >>> result["returns"]
    [11.0, 10.0, 9.0]
    """
    fix = "ask for one or more"
    n_episodes = check_int("n_episodes", n_episodes, 1, fix=fix)
    n = min(check_int("num_envs", num_envs, 1, fix=fix), n_episodes)
    seed = None if seed is None else resolve_seed(seed)
    deterministic = check_bool("deterministic", deterministic)
    if not hasattr(policy, "predict"):
        raise ArgumentTypeError(
            "policy",
            "an object with predict(obs, deterministic)",
            type(policy).__name__,
            "pass a trainer or a learner",
        )
    keywords: Mapping[str, Any] = {} if env_kwargs is None else env_kwargs
    if not isinstance(keywords, Mapping):
        raise ArgumentTypeError(
            "env_kwargs", "a dict of keywords or None", repr(keywords), "pass a dict"
        )
    limits: list[Callable[..., gym.Env[Any, Any]]] = []
    if max_episode_steps is not None:
        most = check_int("max_episode_steps", max_episode_steps, 1, fix="pass None for no limit")
        limits = [partial(TimeLimit, max_episode_steps=most)]
    envs = _make_vector(env, n, _drop_vector_modes(keywords), limits)
    try:
        episodes, is_complete = _play(policy, envs, n_episodes, seed, deterministic)
    except (LookupError, TypeError, ValueError):
        check_observations(envs.unwrapped)
        raise
    finally:
        envs.close()
    returns, lengths = ([episode[k] for row in episodes for episode in row] for k in (0, 1))
    return {
        "mean_reward": float(np.mean(returns)) if is_complete else math.nan,
        "std_reward": float(np.std(returns)) if is_complete else math.nan,
        "returns": returns,
        "lengths": [int(length) for length in lengths],
    }


def _drop_vector_modes(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords but for how `make_vec` steps environments for training: no matter of episodes."""
    modes = {"vectorization_mode", "autoreset_mode"}
    return {name: value for name, value in keywords.items() if name not in modes}


def _make_vector(
    env: str | EnvSpec | Callable[..., gym.Env[Any, Any]],
    n: int,
    env_kwargs: dict[str, Any],
    limits: list[Callable[..., gym.Env[Any, Any]]],
) -> VectorEnv[Any, Any, Any]:
    same_step = AutoresetMode.SAME_STEP
    vector_kwargs = {"autoreset_mode": same_step}
    if isinstance(env, EnvSpec):
        spec_kwargs = _drop_vector_modes(env.kwargs)
        kwargs = {"wrappers": spec_kwargs.pop("wrappers", ()), **env_kwargs}
        wrappers = (*(kwargs.pop("wrappers") or ()), *limits)
        spec = dataclasses.replace(env, kwargs=spec_kwargs)
        return make_registered(EnvFactory(spec, "sync", wrappers, kwargs=kwargs), n, vector_kwargs)
    if isinstance(env, str):
        if limits:
            wrappers = (*(env_kwargs.get("wrappers") or ()), *limits)
            env_kwargs = {**env_kwargs, "wrappers": wrappers}
        try:
            return gym.make_vec(env, n, "sync", vector_kwargs=vector_kwargs, **env_kwargs)
        except gym.error.DependencyNotInstalled:
            raise
        except gym.error.Error as error:
            raise ArgumentError(
                "env", "an id in Gymnasium's registry", repr(env), str(error)
            ) from error
    check_env_maker(env)

    def make_single(index: int) -> gym.Env[Any, Any]:
        checked: gym.Env[Any, Any] = CheckedEnv(require_env(env(**env_kwargs)), index)
        for limit in limits:
            checked = limit(checked)
        return checked

    return SyncVectorEnv([partial(make_single, i) for i in range(n)], autoreset_mode=same_step)


def _check_spaces(policy: Predictor, envs: VectorEnv[Any, Any, Any]) -> None:
    """Check that environments have the spaces that the learner was made for."""
    pair = getattr(policy, "spaces", None) or ()
    spaces = envs.single_observation_space, envs.single_action_space
    for what, ours, theirs in zip(("observation", "action"), pair, spaces, strict=False):
        is_compatible = isinstance(theirs, type(ours)) or isinstance(ours, type(theirs))
        is_compatible = is_compatible and ours.shape == theirs.shape
        # What an action means, its bounds say; observations are numbers all the same.
        if not is_compatible or (what == "action" and to_json(ours) != to_json(theirs)):
            raise ArgumentError(
                "env",
                f"{what} space {ours}, as the policy was made for",
                str(theirs),
                "pass an environment with the same spaces",
            )


def _play(
    policy: Predictor,
    envs: VectorEnv[Any, Any, Any],
    n_episodes: int,
    seed: int | None,
    deterministic: bool,
) -> tuple[list[list[tuple[float, int]]], bool]:
    """(return, length) of each environment's first episodes, and whether all were played."""
    _check_spaces(policy, envs)
    n = envs.num_envs
    wanted = [n_episodes // n + (i < n_episodes % n) for i in range(n)]
    episodes: list[list[tuple[float, int]]] = [[] for _ in range(n)]
    returns, lengths = np.zeros(n), np.zeros(n, np.int64)
    obs, infos = envs.reset(seed=seed)
    masked, nobody = getattr(policy, "masked", False), np.zeros(n, np.bool_)
    steps = 0
    source, interrupt_requested = MaskSource(envs), getattr(policy, "interrupt_requested", bool)
    while any(len(row) < count for row, count in zip(episodes, wanted, strict=True)):
        if interrupt_requested():
            for row, *cut in zip(episodes, returns, lengths, strict=True):
                row.append((float(cut[0]), int(cut[1])))
            return episodes, False
        masks: dict[str, Any] = {}
        if masked:
            masks["action_masks"] = source.read(infos, nobody)
        actions = policy.predict(obs, deterministic, **masks)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        check_finite_array("rewards", np.asarray(rewards, np.float64)[None], steps)
        steps += 1
        returns += rewards
        lengths += 1
        for i in np.flatnonzero(terminated | truncated):
            if len(episodes[i]) < wanted[i]:
                episodes[i].append((float(returns[i]), int(lengths[i])))
            returns[i], lengths[i] = 0.0, 0
    return episodes, True
