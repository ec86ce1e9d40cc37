"""Values of Stable-Baselines3's keywords as rlox's settings; alternatives to its other names."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._layout import is_image
from rlox._validation import (
    ACTIVATIONS,
    check_float,
    check_float_or_tuple,
    check_keywords,
    check_str,
    short_repr,
)
from rlox.noise import ActionNoise, GaussianNoise, OrnsteinUhlenbeckNoise

_FUNCTION = "learn() takes a function of (trainer, metrics), or an rlox.callbacks.Callback"
_LEARN = "pass it to learn()"
_NETWORKS = "model.trainer.learner.state().networks has arrays by name"
_NORMALIZE = "rlox.trainers have normalize_obs and normalize_reward"
_NUM_ENVS = "pass as many environments: rlox.make_vec(id, num_envs)"
_POLICY_KWARGS = "pass it in policy_kwargs"
_SAVED_REPLAY = "save(path) and load(path) include the replay buffer"
_VECTOR = "rlox.make_vec(id, n) makes many environments, and models take Gymnasium's, too"
# Alternatives to names, attributes and keywords of Stable-Baselines3 and of rlox.trainers.
HINTS = {
    **dict.fromkeys(("make_vec_env", "make_atari_env", "DummyVecEnv", "SubprocVecEnv"), _VECTOR),
    **dict.fromkeys(("VecNormalize", "get_vec_normalize_env"), _NORMALIZE),
    **dict.fromkeys(("normalize_obs", "normalize_reward"), _NORMALIZE),
    **dict.fromkeys(("BaseCallback", "StopTrainingOnMaxEpisodes"), _FUNCTION),
    **dict.fromkeys(("total_timesteps", "callback", "progress_bar"), _LEARN),
    **dict.fromkeys(("n_envs", "num_envs"), _NUM_ENVS),
    **dict.fromkeys(("net_arch", "activation_fn", "ortho_init", "log_std_init"), _POLICY_KWARGS),
    **dict.fromkeys(("get_parameters", "actor", "critic", "q_net"), _NETWORKS),
    **dict.fromkeys(("replay_buffer", "save_replay_buffer", "load_replay_buffer"), _SAVED_REPLAY),
    **dict.fromkeys(("Monitor", "VecMonitor"), "rlox counts returns and lengths; leave it out"),
    **dict.fromkeys(
        ("logger", "set_logger", "configure"), f"pass tensorboard_log=, or {_FUNCTION}"
    ),
    **dict.fromkeys(("policy_class", "policy_kwargs"), "model.trainer.config has the settings"),
    "VecFrameStack": "wrap environments in gymnasium.wrappers.FrameStackObservation",
    "EvalCallback": "use rlox.callbacks.EvalCallback(every=...)",
    "CheckpointCallback": "use rlox.callbacks.CheckpointCallback(every=...)",
    "ProgressBarCallback": "pass progress_bar=True to learn()",
    "StopTrainingOnRewardThreshold": "use rlox.callbacks.EvalCallback(reward_threshold=...)",
    "StopTrainingOnNoModelImprovement": "use rlox.callbacks.EarlyStoppingCallback(patience=...)",
    "HerReplayBuffer": "pass her='future' to DQNTrainer, SACTrainer or TD3Trainer of rlox.trainers",
    "train": "model.trainer.learner.iterate() is one iteration",
    "set_parameters": "load(path) takes a checkpoint; rlox.sb3.convert makes one from a zip",
    "policy": "on-policy models on native networks have model.trainer.learner.to_torch()",
    "ep_info_buffer": "model.trainer.learner.episodes has count, returns and lengths",
    "clip_coef": "use clip_range, as in Stable-Baselines3",
}


def NormalActionNoise(mean: npt.ArrayLike, sigma: npt.ArrayLike) -> ActionNoise:  # noqa: N802
    """Return `rlox.noise.GaussianNoise` from Stable-Baselines3's arguments.

    Args:
        mean: (k,) or a number.
        sigma: (k,) or a number: standard deviations of actions in [-1, 1].

    Raises:
        ValueError: Numbers that `rlox.noise` does not have.

    >>> NormalActionNoise(mean=np.zeros(2), sigma=0.1 * np.ones(2)).sigma
    0.1
    """
    return _make_noise(GaussianNoise, sigma=sigma, mean=mean)


def OrnsteinUhlenbeckActionNoise(  # noqa: N802
    mean: npt.ArrayLike,
    sigma: npt.ArrayLike,
    theta: float = 0.15,
    dt: float = 1e-2,
    initial_noise: npt.ArrayLike | None = None,
) -> ActionNoise:
    """Return `rlox.noise.OrnsteinUhlenbeckNoise` from Stable-Baselines3's arguments.

    Args:
        mean: (k,) or a number: the value to which the noise returns.
        sigma: (k,) or a number: standard deviations per unit of time.
        theta: Rate of the return to the mean.
        dt: Time between two steps.
        initial_noise: (k,) or a number: value at the start of an episode; None: 0.

    Raises:
        ValueError: Numbers that `rlox.noise` does not have.

    >>> OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.5 * np.ones(1)).sigma
    0.5
    """
    rates: dict[str, Any] = {"theta": check_float("theta", theta), "dt": check_float("dt", dt)}
    if initial_noise is not None:
        rates["initial_noise"] = initial_noise
    return _make_noise(OrnsteinUhlenbeckNoise, sigma=sigma, mean=mean, **rates)


def _make_noise(noise_type: Callable[..., ActionNoise], **values: npt.ArrayLike) -> ActionNoise:
    """Make the noise, with one number instead of an array of equal ones."""
    names = {field.name for field in fields(noise_type)}  # type: ignore[arg-type]  # a dataclass
    numbers: dict[str, Any] = {}
    for name, value in values.items():
        array = np.ravel(check_float_or_tuple(name, value))
        is_uniform = bool((array == array[0]).all())
        if is_uniform and array[0] == 0.0 and name in ("mean", "initial_noise"):
            continue  # the default
        if name not in names or (not is_uniform and "mean" not in names):
            expected = "0" if name not in names else "the same for all components"
            raise ArgumentError(
                name,
                f"{expected}, as rlox.noise has no other",
                short_repr(value),
                "add the noise in a wrapper of the environment",
            )
        numbers[name] = float(array[0]) if is_uniform else tuple(array.tolist())
    return noise_type(**numbers)


def as_action_noise(value: Any) -> Any:
    """Convert a noise object of Stable-Baselines3 to one of `rlox.noise`; return other values."""
    if not type(value).__module__.startswith("stable_baselines3."):
        return value
    state, name = vars(value), type(value).__name__
    if name == "NormalActionNoise":
        return NormalActionNoise(state["_mu"], state["_sigma"])
    if name == "OrnsteinUhlenbeckActionNoise":
        names = ("_mu", "_sigma", "_theta", "_dt", "initial_noise")
        return OrnsteinUhlenbeckActionNoise(*(state[name] for name in names))
    raise ArgumentError(
        "action_noise",
        "NormalActionNoise or OrnsteinUhlenbeckActionNoise",
        short_repr(value),
        "make one of rlox.noise, every environment has its own",
    )


# Remaining progress at which schedules are compared.
_PROGRESS = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.0)


def schedule(name: str, value: Any) -> tuple[Any, str]:
    """Return a number, or a function of the remaining progress, as (number, "constant"|"linear").

    Raises:
        ValueError: The function is neither constant nor falls linearly to 0, or it is a text.
        TypeError: The function does not return numbers.

    >>> schedule("learning_rate", lambda remaining: remaining * 0.01)
    (0.01, 'linear')
    """
    if isinstance(value, str):
        raise ArgumentError(
            name,
            "a number or a function of the remaining progress",
            repr(value),
            "pass lambda remaining: remaining * 0.001 for 'lin_0.001'",
        )
    if not callable(value):
        return value, "constant"
    try:
        values = [float(value(remaining)) for remaining in _PROGRESS]
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            name,
            "a function of the remaining progress that returns a number",
            f"{type(error).__name__}: {error}",
            "pass a number",
        ) from error
    first = values[0]
    for kind, slopes in (("constant", [1.0] * len(values)), ("linear", _PROGRESS)):
        expected = [first * slope for slope in slopes]
        if all(
            math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-15)
            for x, y in zip(values, expected, strict=True)
        ):
            return first, kind
    points = ", ".join(f"{x:g}: {y:g}" for x, y in zip(_PROGRESS, values, strict=True))
    raise ArgumentError(
        name,
        "a constant, or a function that falls linearly to 0",
        f"{{{points}}}",
        f"pass {first:g}, or lambda remaining: remaining * {first:g}",
    )


_ON_POLICY = ("ppo", "a2c")
_FEATURES = "rlox.trainers take a function of the observation space as features_extractor="
_CUSTOM_POLICY = "pass a policy of your own to rlox.trainers"
# Keys of policy_kwargs that built-in networks take with one value only, and the alternative.
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "features_extractor_class": ((None,), _FEATURES),
    "features_extractor_kwargs": ((None, {}), _FEATURES),
    "n_critics": ((2,), _CUSTOM_POLICY),
    "use_expln": ((False,), "standard deviations are exponentials; leave it out"),
    "squash_output": ((False,), "PPO and A2C clip actions; use SAC for squashed ones"),
    "normalize_images": ((True,), "images are divided by 255; scale them in a wrapper"),
    "clip_mean": ((2.0,), "gSDE's means are clipped to 2; leave it out"),
}
_ALL = (
    *("net_arch", "activation_fn", "features_extractor_class", "features_extractor_kwargs"),
    *("normalize_images", "optimizer_class", "optimizer_kwargs"),
)
_GAUSSIAN = ("use_sde", "log_std_init", "use_expln")
_ACTOR_CRITIC = (*_ALL, *_GAUSSIAN, "share_features_extractor", "ortho_init", "full_std")
_KNOWN: dict[str, tuple[str, ...]] = {
    "dqn": _ALL,
    "td3": (*_ALL, "share_features_extractor", "n_critics"),
    "sac": (*_ALL, *_GAUSSIAN, "share_features_extractor", "n_critics", "clip_mean"),
    **dict.fromkeys(_ON_POLICY, (*_ACTOR_CRITIC, "squash_output")),
}
_ADAM_EPS = {"ppo": 1e-5, "dqn": 1e-8, "sac": 1e-8, "td3": 1e-8}
# A2C's optimizers and their default eps, by the names of the classes.
_OPTIMIZERS = {
    "RMSprop": ("rmsprop", 1e-8),
    "RMSpropTFLike": ("rmsprop_tf", 1e-10),
    "Adam": ("adam", 1e-5),
}


def policy_settings(algorithm: str, policy_kwargs: Any) -> dict[str, Any]:
    """Return the settings that `policy_kwargs` stand for.

    Raises:
        TypeError: `policy_kwargs` is not a dict, or has an unknown key.
        ValueError: Built-in networks do not have this value; the key is named.

    >>> policy_settings("ppo", {"net_arch": {"pi": [64], "vf": [64]}, "activation_fn": "relu"})
    {'net_arch': [64], 'activation': 'relu'}
    """
    if policy_kwargs is None:
        return {}
    if not isinstance(policy_kwargs, Mapping):
        raise ArgumentTypeError(
            "policy_kwargs", "a dict or None", short_repr(policy_kwargs), "pass dict(net_arch=...)"
        )
    check_keywords(policy_kwargs, _KNOWN[algorithm], "policy_kwargs")
    fixed = _FIXED | {
        "share_features_extractor": (
            (algorithm in _ON_POLICY,),
            f"{_CUSTOM_POLICY}, or leave it out",
        )
    }
    settings: dict[str, Any] = {}
    for name, value in policy_kwargs.items():
        if name == "net_arch":
            settings |= {} if value is None else {"net_arch": _net_arch(algorithm, value)}
        elif name == "activation_fn":
            settings["activation"] = _activation(value)
        elif name in fixed:
            allowed, fix = fixed[name]
            if value not in allowed and getattr(value, "__name__", "") != "FlattenExtractor":
                raise ArgumentError(
                    "policy_kwargs", f"{name} = {allowed[0]}", short_repr(value), fix
                )
        elif not name.startswith("optimizer_"):
            settings[name] = value
    return settings | _optimizer(algorithm, policy_kwargs)


def _net_arch(algorithm: str, value: Any) -> Any:
    """Return the hidden layers, which actor and critic share."""
    if isinstance(value, Sequence) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0]  # the form of older versions
    if not isinstance(value, Mapping):
        return value
    names = ("pi", "vf") if algorithm in _ON_POLICY else ("pi", "qf")
    layers = [[*value[name]] for name in names if isinstance(value.get(name), Sequence)]
    is_shared = len(layers) == 2 and layers[0] == layers[1] and {*value} == {*names}
    if algorithm == "dqn" or not is_shared:
        expected = "one list" if algorithm == "dqn" else f"the same hidden layers for {names}"
        raise ArgumentError(
            "net_arch",
            f"{expected}, as built-in networks have them",
            short_repr(dict(value)),
            "pass a list, or a policy of your own to rlox.trainers",
        )
    return layers[0]


def _activation(value: Any) -> str:
    """Return the name of an activation from torch's class or from a name."""
    name = value if isinstance(value, str) else getattr(value, "__name__", "")
    is_torch = isinstance(value, str) or getattr(value, "__module__", "").startswith("torch.nn.")
    if not is_torch or name.lower() not in ACTIVATIONS:
        raise ArgumentError(
            "activation_fn",
            "torch.nn.Tanh, ReLU, ELU, GELU or SiLU",
            short_repr(value),
            f"pass one of these classes, or {_CUSTOM_POLICY}",
        )
    return str(name.lower())


def _optimizer(algorithm: str, policy_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return A2C's optimizer settings; check that other algorithms have their defaults."""
    cls, keywords = policy_kwargs.get("optimizer_class"), policy_kwargs.get("optimizer_kwargs")
    name, default_eps = _OPTIMIZERS.get(str(getattr(cls, "__name__", cls)), ("", None))
    if cls is not None and (not name or (algorithm != "a2c" and name != "adam")):
        raise ArgumentError(
            "policy_kwargs",
            "no optimizer_class",
            short_repr(cls),
            "A2C has RMSprop, RMSpropTFLike and Adam, the others Adam",
        )
    eps = keywords.get("eps") if isinstance(keywords, Mapping) else None
    is_default = algorithm == "a2c" or eps in (None, _ADAM_EPS[algorithm])
    if not isinstance(keywords, Mapping | None) or {*(keywords or ())} - {"eps"} or not is_default:
        raise ArgumentError(
            "policy_kwargs",
            "no optimizer_kwargs but A2C's eps",
            short_repr(keywords),
            "leave them out",
        )
    if algorithm != "a2c":
        return {}
    settings: dict[str, Any] = {"optimizer": name} if name else {}
    if eps is not None or name:
        settings["optimizer_eps"] = default_eps if eps is None else eps
    return settings


def check_policy(policy: Any) -> None:
    """Check the name of a policy.

    Raises:
        TypeError, ValueError: The policy is not 'MlpPolicy' or 'CnnPolicy'.
    """
    if not isinstance(policy, str) or policy.startswith("MultiInput"):
        error = ArgumentError if isinstance(policy, str) else ArgumentTypeError
        raise error(
            "policy",
            "'MlpPolicy' or 'CnnPolicy'",
            short_repr(policy),
            "rlox.trainers take Dict observations, and torch modules as policy=",
        )
    check_str("policy", policy, ("MlpPolicy", "CnnPolicy"))


def check_observations(policy: str, algorithm: str, space: gym.Space[Any]) -> None:
    """Check that the named policy is the built-in one for these observations.

    Raises:
        ValueError: Another policy, or none, is.
    """
    has_parts = isinstance(space, gym.spaces.Dict | gym.spaces.Tuple)
    fitting = "CnnPolicy" if is_image(space) else "MlpPolicy"
    supported = not has_parts and (fitting == "MlpPolicy" or algorithm in (*_ON_POLICY, "dqn"))
    if policy != fitting or not supported:
        fix = f"pass {fitting!r}" if supported else "rlox.trainers take such observations"
        kind = "images (of PPO, A2C and DQN)" if policy == "CnnPolicy" else "one vector of numbers"
        raise ArgumentError("policy", f"{kind} for {policy!r}", str(space), fix)
