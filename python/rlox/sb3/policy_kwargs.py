"""`policy_kwargs` of Stable-Baselines3 as the settings that shape our built-in networks."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox.keywords import refuse_unknown
from rlox.settings import ACTIVATIONS, shown

_ON_POLICY = ("ppo", "a2c")
# What values ask for nothing that built-in networks do not do anyway.
_FIXED: dict[str, tuple[Any, ...]] = {
    "use_expln": (False,),
    "squash_output": (False,),
    "features_extractor_kwargs": (None, {}),
    "normalize_images": (True,),
    "n_critics": (2,),
    "clip_mean": (2.0,),
}
_WHY = {
    "features_extractor_class": (
        "rlox.trainers take such a class, from the observation space to a module with "
        "features_dim, as features_extractor="
    ),
    "features_extractor_kwargs": "rlox.trainers take a function as features_extractor=",
    "share_features_extractor": "built-in networks share features as they do by default there",
    "n_critics": "there are two critics here; pass a policy of your own to rlox.trainers",
    "use_expln": "deviations are exponentials here; leave it out",
    "squash_output": "PPO and A2C clip actions here; use SAC for squashed ones",
    "normalize_images": "pictures are divided by 255; scale them in a wrapper",
    "clip_mean": "gSDE's means are cut to 2 here; leave it out",
    "optimizer_class": "A2C has RMSprop, RMSpropTFLike and Adam, the others Adam; leave it out",
    "optimizer_kwargs": "only eps, and only of A2C, is a setting here; leave it out",
}
_ALL = (
    *("net_arch", "activation_fn", "features_extractor_class", "features_extractor_kwargs"),
    *("normalize_images", "optimizer_class", "optimizer_kwargs"),
)
_GAUSSIAN = ("use_sde", "log_std_init", "use_expln")
_SHARED = ("share_features_extractor",)
_KNOWN: dict[str, tuple[str, ...]] = {
    "dqn": _ALL,
    "td3": (*_ALL, *_SHARED, "n_critics"),
    "sac": (*_ALL, *_GAUSSIAN, *_SHARED, "n_critics", "clip_mean"),
    **dict.fromkeys(
        _ON_POLICY, (*_ALL, *_GAUSSIAN, *_SHARED, "ortho_init", "full_std", "squash_output")
    ),
}
# What is added to Adam's roots.
_EPS = {"ppo": 1e-5, "dqn": 1e-8, "sac": 1e-8, "td3": 1e-8}
_OPTIMIZERS = {"RMSprop": "rmsprop", "RMSpropTFLike": "rmsprop_tf", "Adam": "adam"}
# The eps of these classes where none is given.
_USUAL_EPS = {"rmsprop": 1e-8, "rmsprop_tf": 1e-10, "adam": 1e-5}


def policy_settings(algorithm: str, given: Any) -> dict[str, Any]:
    """The settings that `policy_kwargs` ask for.

    Args:
        algorithm: "ppo".
        given: A dict, or None.

    Raises:
        TypeError: It is no dict, or has an unknown key (near ones are named).
        ValueError: It asks for what built-in networks do not do; the key is named.

    >>> policy_settings("ppo", {"net_arch": {"pi": [64], "vf": [64]}, "activation_fn": "relu"})
    {'net_arch': [64], 'activation': 'relu'}
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            "policy_kwargs", "a dict or None", shown(given), "pass dict(net_arch=...)"
        )
    refuse_unknown(given, _KNOWN[algorithm], "policy_kwargs", {"activation": "pass activation_fn"})
    settings: dict[str, Any] = {}
    for name, value in given.items():
        match name:
            case "net_arch":
                if value is not None:
                    settings["net_arch"] = _net_arch(algorithm, value)
            case "activation_fn":
                settings["activation"] = _activation(value)
            case "optimizer_class" | "optimizer_kwargs":
                pass
            case _ if name in _WHY:
                _expect_nothing(algorithm, name, value)
            case _:
                settings[name] = value
    return settings | _optimizer(algorithm, given)


def _expect_nothing(algorithm: str, name: str, value: Any) -> None:
    allowed = _FIXED.get(name, (None,))
    if name == "share_features_extractor":
        allowed = (algorithm in _ON_POLICY,)
    plain = getattr(value, "__name__", "") == "FlattenExtractor"
    if not plain and value not in allowed:
        raise ArgumentError(
            "policy_kwargs", f"{name} = {allowed[0]}", shown(value), str(_WHY[name])
        )


def _net_arch(algorithm: str, value: Any) -> Any:
    """Hidden layers, the same for both networks."""
    if isinstance(value, Sequence) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0]  # as older versions had it
    if not isinstance(value, Mapping):
        return value
    names = ("pi", "vf") if algorithm in _ON_POLICY else ("pi", "qf")
    if algorithm == "dqn":
        raise ArgumentError(
            "net_arch",
            "a list of hidden layers, as DQN has one network",
            shown(value),
            "pass a list",
        )
    arches = [value.get(name, ()) for name in names]
    arches = [list(arch) if isinstance(arch, Sequence) else arch for arch in arches]
    if set(value) - {*names} or arches[0] != arches[1]:
        raise ArgumentError(
            "net_arch",
            f"the same hidden layers as {names[0]!r} and {names[1]!r}, as built-in networks have "
            "them",
            shown(dict(value)),
            "pass one list, or a policy of your own to rlox.trainers",
        )
    return arches[0]


def _activation(value: Any) -> str:
    """The name of an activation, of torch's class for it or of ours."""
    name = value if isinstance(value, str) else getattr(value, "__name__", "")
    theirs = isinstance(value, str) or getattr(value, "__module__", "").startswith("torch.nn.")
    if not theirs or name.lower() not in ACTIVATIONS:
        raise ArgumentError(
            "activation_fn",
            "torch.nn.Tanh, ReLU, ELU, GELU or SiLU",
            shown(value),
            "pass one of these classes, or a policy of your own to rlox.trainers",
        )
    return str(name.lower())


def _optimizer(algorithm: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of A2C's optimiser; other algorithms' are as they are by default there."""
    kind, keywords = given.get("optimizer_class"), given.get("optimizer_kwargs")
    if not isinstance(keywords, Mapping | None):
        raise _no_optimizer("optimizer_kwargs", keywords)
    about = dict(keywords or {})
    eps, called = about.pop("eps", None), getattr(kind, "__name__", kind)
    name = _OPTIMIZERS.get(called, "") if isinstance(called, str) else ""
    if kind is not None and (not name or (algorithm != "a2c" and name != "adam")):
        raise _no_optimizer("optimizer_class", kind)
    if about or (algorithm != "a2c" and eps not in (None, _EPS[algorithm])):
        raise _no_optimizer("optimizer_kwargs", keywords)
    if algorithm != "a2c":
        return {}
    settings: dict[str, Any] = {"optimizer": name} if name else {}
    if eps is not None or name:
        settings["optimizer_eps"] = _USUAL_EPS[name] if eps is None else eps
    return settings


def _no_optimizer(name: str, got: Any) -> ValueError:
    return ArgumentError("policy_kwargs", f"no {name}", shown(got), str(_WHY[name]))
