"""Conversion of Stable-Baselines3's keywords to rlox's settings, and hints for other names."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._layout import is_image
from rlox._registry import ALGORITHMS, SDE_CLIP_MEAN
from rlox._validation import check_float_or_tuple, check_keywords, short_repr
from rlox.configs import ACTIVATIONS
from rlox.noise import ActionNoise, GaussianNoise, OrnsteinUhlenbeckNoise

_FUNCTION = "pass learn() a function of (run, metrics) or an rlox.callbacks.Callback"
_LEARN = "pass it to learn()"
_NETWORKS = "use model.trainer.learner.state().networks, a dict of arrays"
_NORMALIZE = "use the settings normalize_obs and normalize_reward of rlox.trainers"
_NUM_ENVS = "pass a vector environment: rlox.make_vec(id, num_envs)"
_POLICY_KWARGS = "pass it in policy_kwargs"
_SAVED_REPLAY = "use save(path) and load(path), which include the replay buffer"
_VECTOR = "use rlox.make_vec(id, n) or a vector environment of Gymnasium"
# Alternatives to unsupported names, attributes and keywords.
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
    **dict.fromkeys(("Monitor", "VecMonitor"), "remove it, rlox records returns and lengths"),
    **dict.fromkeys(("logger", "set_logger", "configure"), f"pass tensorboard_log=, or {_FUNCTION}"),
    **dict.fromkeys(("policy_class", "policy_kwargs"), "use the settings in model.trainer.config"),
    "VecFrameStack": "wrap the environment in gymnasium.wrappers.FrameStackObservation",
    "EvalCallback": "use rlox.callbacks.EvalCallback(every=...)",
    "CheckpointCallback": "use rlox.callbacks.CheckpointCallback(every=...)",
    "ProgressBarCallback": "pass progress_bar=True to learn()",
    "StopTrainingOnRewardThreshold": "use rlox.callbacks.EvalCallback(reward_threshold=...)",
    "StopTrainingOnNoModelImprovement": "use rlox.callbacks.EarlyStoppingCallback(patience=...)",
    "HerReplayBuffer": "pass her='future' to DQNTrainer, SACTrainer or TD3Trainer of rlox.trainers",
    "train": "call model.trainer.learner.iterate(), which runs one iteration",
    "set_parameters": "use load(path); rlox.sb3.convert converts a zip to a checkpoint",
    "policy": "use model.trainer.learner.to_torch() for on-policy models with native networks",
    "ep_info_buffer": "use count, returns and lengths of model.trainer.learner.episodes",
    "clip_coef": "use clip_range, as in Stable-Baselines3",
}


def NormalActionNoise(mean: npt.ArrayLike, sigma: npt.ArrayLike) -> ActionNoise:  # noqa: N802
    """Return an `rlox.noise.GaussianNoise` for Stable-Baselines3's arguments.

    Args:
        mean: Mean, a number or shape (k,).
        sigma: Standard deviations for actions in [-1, 1], a number or shape (k,).

    Raises:
        ArgumentTypeError: A value is not a number or an array of numbers.
        ArgumentError: `rlox.noise` does not support a value.

    >>> NormalActionNoise(mean=np.zeros(2), sigma=0.1 * np.ones(2)).sigma
    0.1
    """
    return GaussianNoise(_collapse("sigma", sigma), mean=_collapse("mean", mean))


def OrnsteinUhlenbeckActionNoise(  # noqa: N802
    mean: npt.ArrayLike,
    sigma: npt.ArrayLike,
    theta: float = 0.15,
    dt: float = 1e-2,
    initial_noise: npt.ArrayLike | None = None,
) -> ActionNoise:
    """Return an `rlox.noise.OrnsteinUhlenbeckNoise` for Stable-Baselines3's arguments.

    Args:
        mean: Long-term mean, a number or shape (k,).
        sigma: Standard deviations per unit of time, a number or shape (k,).
        theta: Rate of the return to the mean.
        dt: Time between two steps.
        initial_noise: Value at the start of an episode, a number or shape (k,); None: 0.

    Raises:
        ArgumentTypeError: A value is not a number or an array of numbers.
        ArgumentError: `rlox.noise` does not support a value.

    >>> OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.5 * np.ones(1)).sigma
    0.5
    """
    initial = None if initial_noise is None else _collapse("initial_noise", initial_noise) or None
    return OrnsteinUhlenbeckNoise(
        _collapse("sigma", sigma), theta, dt, mean=_collapse("mean", mean), initial_noise=initial
    )


def _collapse(name: str, value: npt.ArrayLike) -> float | tuple[float, ...]:
    """Return an array of numbers as a tuple, or as one number if all are equal."""
    numbers = np.ravel(check_float_or_tuple(name, value)).tolist()
    return numbers[0] if len({*numbers}) == 1 else tuple(numbers)


def as_action_noise(value: object) -> object:
    """Convert noise of Stable-Baselines3 to `rlox.noise`; return other values unchanged."""
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
        "use a class of rlox.noise, whose noise is separate for each environment",
    )


# Remaining progress at which schedules are compared.
_PROGRESS = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.0)


def schedule(name: str, value: Any) -> tuple[Any, str]:
    """Return (initial value, "constant" or "linear") of a number or a function.

    Args:
        name: Name of the keyword, for errors.
        value: Number, or function of the remaining progress in [0, 1].

    Raises:
        ArgumentError: `value` is a str, or the function is neither constant nor linear to 0.
        ArgumentTypeError: The function does not return numbers.

    >>> schedule("learning_rate", lambda remaining: remaining * 0.01)
    (0.01, 'linear')
    """
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
    if np.allclose(values, first, rtol=1e-6, atol=1e-15):
        return first, "constant"
    if np.allclose(values, np.multiply(first, _PROGRESS), rtol=1e-6, atol=1e-15):
        return first, "linear"
    points = ", ".join(f"{x:g}: {y:g}" for x, y in zip(_PROGRESS, values, strict=True))
    raise ArgumentError(
        name,
        "a constant, or a function that decreases linearly to 0",
        f"{{{points}}}",
        f"pass {first:g}, or lambda remaining: remaining * {first:g}",
    )


_ON_POLICY = ("ppo", "a2c")
_FEATURES = "pass features_extractor=, a function of the observation space, to a trainer of rlox.trainers"
_CUSTOM_POLICY = "pass a custom policy to a trainer of rlox.trainers"
# By key of policy_kwargs: the only values that built-in networks support, and a hint.
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "features_extractor_class": ((None,), _FEATURES),
    "features_extractor_kwargs": ((None, {}), _FEATURES),
    "n_critics": ((2,), _CUSTOM_POLICY),
    "use_expln": ((False,), "remove it, standard deviations are exp(log_std)"),
    "squash_output": ((False,), "use SAC for squashed actions, PPO and A2C clip actions"),
    "normalize_images": ((True,), "scale images in a wrapper, networks divide them by 255"),
    "clip_mean": ((SDE_CLIP_MEAN,), "remove it, gSDE's means are clipped to [-2, 2]"),
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
# A2C's optimizers by the class name: rlox's name and the default eps.
_OPTIMIZERS = {"RMSprop": ("rmsprop", 1e-8), "RMSpropTFLike": ("rmsprop_tf", 1e-10), "Adam": ("adam", 1e-5)}


def policy_settings(algorithm: str, policy_kwargs: object) -> dict[str, Any]:
    """Return the trainer's settings for `policy_kwargs`.

    Raises:
        ArgumentTypeError: `policy_kwargs` is not a dict, or has an unknown key.
        ArgumentError: Built-in networks do not support a value.

    >>> policy_settings("ppo", {"net_arch": {"pi": [64], "vf": [64]}, "activation_fn": "relu"})
    {'net_arch': [64], 'activation': 'relu'}
    """
    if policy_kwargs is None:
        return {}
    if not isinstance(policy_kwargs, Mapping):
        raise ArgumentTypeError("policy_kwargs", "a dict or None", short_repr(policy_kwargs), "pass dict(net_arch=...)")
    check_keywords(policy_kwargs, _KNOWN[algorithm], "policy_kwargs")
    fixed = _FIXED | {"share_features_extractor": ((algorithm in _ON_POLICY,), f"{_CUSTOM_POLICY}, or remove it")}
    settings: dict[str, Any] = {}
    for name, value in policy_kwargs.items():
        if name == "net_arch":
            settings |= {} if value is None else {"net_arch": _net_arch(algorithm, value)}
        elif name == "activation_fn":
            settings["activation"] = _activation(value)
        elif name in fixed:
            allowed, fix = fixed[name]
            if value not in allowed and getattr(value, "__name__", "") != "FlattenExtractor":
                raise ArgumentError("policy_kwargs", f"{allowed[0]!r} for {name}", short_repr(value), fix)
        elif not name.startswith("optimizer_"):
            settings[name] = value
    return settings | _optimizer(algorithm, policy_kwargs)


def _net_arch(algorithm: str, value: object) -> object:
    """Return the hidden layers, which must be equal for actor and critic."""
    if isinstance(value, Sequence) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0]  # format of older versions of Stable-Baselines3
    if not isinstance(value, Mapping):
        return value
    names = ("pi", "vf") if algorithm in _ON_POLICY else ("pi", "qf")
    layers = [[*value[name]] for name in names if isinstance(value.get(name), Sequence)]
    is_shared = len(layers) == 2 and layers[0] == layers[1] and {*value} == {*names}
    if algorithm == "dqn" or not is_shared:
        expected = "a list of layer sizes"
        if algorithm != "dqn":
            expected = f"equal layer sizes for {names[0]!r} and {names[1]!r}"
        raise ArgumentError("net_arch", expected, short_repr(dict(value)), f"pass a list, or {_CUSTOM_POLICY}")
    return layers[0]


def _activation(value: object) -> str:
    """Return the name of an activation; `value` is a class of torch or a name."""
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
    """Return A2C's optimizer settings; check that other algorithms use the defaults."""
    cls, keywords = policy_kwargs.get("optimizer_class"), policy_kwargs.get("optimizer_kwargs")
    name, default_eps = _OPTIMIZERS.get(str(getattr(cls, "__name__", cls)), ("", None))
    if cls is not None and (not name or (algorithm != "a2c" and name != "adam")):
        raise ArgumentError(
            "policy_kwargs",
            "a supported optimizer_class",
            short_repr(cls),
            "use RMSprop, RMSpropTFLike or Adam for A2C, and Adam for other algorithms",
        )
    eps = keywords.get("eps") if isinstance(keywords, Mapping) else None
    is_default = algorithm == "a2c" or eps in (None, ALGORITHMS[algorithm].adam_eps)
    if not isinstance(keywords, Mapping | None) or {*(keywords or ())} - {"eps"} or not is_default:
        raise ArgumentError(
            "policy_kwargs", "no optimizer_kwargs except eps of A2C", short_repr(keywords), "remove optimizer_kwargs"
        )
    if algorithm != "a2c":
        return {}
    settings: dict[str, Any] = {"optimizer": name} if name else {}
    if eps is not None or name:
        settings["optimizer_eps"] = default_eps if eps is None else eps
    return settings


def check_policy(policy: object) -> None:
    """Check that a policy is "MlpPolicy" or "CnnPolicy"."""
    if not isinstance(policy, str) or policy not in ("MlpPolicy", "CnnPolicy"):
        error = ArgumentError if isinstance(policy, str) else ArgumentTypeError
        raise error(
            "policy",
            "'MlpPolicy' or 'CnnPolicy'",
            short_repr(policy),
            "pass one of them, or use rlox.trainers for Dict observations and torch modules (policy=)",
        )


def check_observations(policy: str, algorithm: str, space: gym.Space[Any]) -> None:
    """Check that the policy name matches the observation space and the algorithm."""
    has_parts = isinstance(space, gym.spaces.Dict | gym.spaces.Tuple)
    fitting = "CnnPolicy" if is_image(space) else "MlpPolicy"
    supported = not has_parts and (fitting == "MlpPolicy" or algorithm in (*_ON_POLICY, "dqn"))
    if policy != fitting or not supported:
        fix = f"pass {fitting!r}" if supported else "use rlox.trainers for this observation space"
        expected = "images with PPO, A2C or DQN" if policy == "CnnPolicy" else "vector observations"
        raise ArgumentError("policy", f"{expected} for {policy!r}", str(space), fix)
