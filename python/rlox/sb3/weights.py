"""The parameters of Stable-Baselines3's MlpPolicy by the names that rlox's networks have."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError

Arrays = dict[str, npt.NDArray[np.float32]]
# From the beginnings of their names to ours, by algorithm; layers keep their numbers.
_ON_POLICY = {"mlp_extractor.policy_net": "actor", "mlp_extractor.value_net": "critic"}
_BEGINNINGS: dict[str, dict[str, str]] = {
    "ppo": _ON_POLICY,
    "a2c": _ON_POLICY,
    "dqn": {"q_net.q_net": "q_net", "q_net_target.q_net": "q_net_target"},
    "sac": {"actor.latent_pi": "actor"},
    "td3": {"actor.mu": "actor", "actor_target.mu": "actor_target"},
}
_CRITICS = {f"critic{end}.qf{i}": f"critic{end}.qf{i}" for end in ("", "_target") for i in (0, 1)}
_LAYER = re.compile(r"(.+)\.(\d+)\.(weight|bias)")


def renamed(algorithm: str, weights: Mapping[str, Any], variables: Mapping[str, Any]) -> Arrays:
    """Their parameters as rlox's networks of the same algorithm have them.

    Args:
        algorithm: "ppo".
        weights: Of `policy.pth`, by their names.
        variables: Of `pytorch_variables.pth`.

    Raises:
        ValueError: There is one that an MlpPolicy does not have.

    >>> list(renamed("dqn", {"q_net.q_net.0.bias": np.zeros(2)}, {}))
    ['q_net.0.bias']
    """
    beginnings = {**_BEGINNINGS[algorithm], **(_CRITICS if algorithm in ("sac", "td3") else {})}
    rest, ours = dict(weights), Arrays()
    for name in weights:
        found = _LAYER.fullmatch(name)
        if found and found[1] in beginnings:
            ours[f"{beginnings[found[1]]}.{found[2]}.{found[3]}"] = rest.pop(name)
    if algorithm in ("ppo", "a2c"):
        _take_heads(rest, ours, {"action_net": "actor", "value_net": "critic"})
        if "log_std" in rest:
            ours["log_std"] = rest.pop("log_std")
    if algorithm == "sac":
        _take_squashed(rest, ours)
        for name, log in (("log_ent_coef", False), ("ent_coef_tensor", True)):
            if name in variables:
                value = np.asarray(variables[name], np.float32).reshape(1)
                with np.errstate(divide="ignore"):
                    ours["log_alpha"] = np.log(value) if log else value
    if rest:
        raise ArgumentError(
            "policy.pth",
            f"the parameters of {algorithm.upper()}'s MlpPolicy",
            f"{min(rest)!r}, too",
            "only that policy is converted",
        )
    return ours


def _take_heads(rest: dict[str, Any], ours: Arrays, heads: Mapping[str, str]) -> None:
    """Moves last layers behind the hidden ones of their networks."""
    for theirs, net in heads.items():
        at = _behind(ours, net)
        for part in ("weight", "bias"):
            if f"{theirs}.{part}" in rest:
                ours[f"{net}.{at}.{part}"] = rest.pop(f"{theirs}.{part}")


def _take_squashed(rest: dict[str, Any], ours: Arrays) -> None:
    """Moves the last layers of SAC's actor: mean and deviation as one, or gSDE's mean alone."""
    at = _behind(ours, "actor")
    for part in ("weight", "bias"):
        names = [f"actor.mu.{part}", f"actor.log_std.{part}"]
        if all(name in rest for name in names):
            ours[f"actor.{at}.{part}"] = np.concatenate([rest.pop(name) for name in names])
        elif f"actor.mu.0.{part}" in rest:  # with what cuts it behind
            ours[f"actor.{at}.{part}"] = rest.pop(f"actor.mu.0.{part}")
    if "actor.log_std" in rest:
        ours["log_std"] = rest.pop("actor.log_std")


def _behind(ours: Arrays, net: str) -> int:
    """The number of the layer behind the hidden ones, with activations between them."""
    return 2 * sum(re.fullmatch(rf"{net}\.\d+\.weight", name) is not None for name in ours)


def hidden_layers(ours: Mapping[str, Any], net: str) -> tuple[int, ...]:
    """Widths of the hidden layers of a network.

    >>> weights = {"q_net.0.weight": np.zeros((8, 4)), "q_net.2.weight": np.zeros((2, 8))}
    >>> hidden_layers(weights, "q_net")
    (8,)
    """
    found = {}
    for name, weight in ours.items():
        layer = _LAYER.fullmatch(name)
        if layer and layer[1] == net and layer[3] == "weight":
            found[int(layer[2])] = int(weight.shape[0])
    return tuple(found[number] for number in sorted(found))[:-1]
