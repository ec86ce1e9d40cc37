"""The caller's own networks for SAC, TD3 and DQN."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox.actor_critic import zeros
from rlox.torch_state import evaluating

# What a policy says, and the shapes that it must have.
Said: TypeAlias = dict[str, tuple[Any, tuple[int, ...]]]
_SEE = "see the algorithm's class in rlox.algorithms"


def critic_parts(policy: nn.Module) -> tuple[list[str], list[str]]:
    """The first words of the names of the actor's parameters, and of the critics'."""
    first = {name.partition(".")[0] for name, _ in policy.named_parameters()}
    return sorted(first - {"critic"}), ["critic"]


def made_by_caller(
    policy: Any,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    needed: Sequence[str],
    features_extractor: object,
) -> nn.Module:
    """The caller's policy.

    Args:
        policy: A module, or a function from the two spaces to one.
        observation_space: Of one environment.
        action_space: Of one environment.
        needed: Its methods, or parts that are modules.
        features_extractor: None, or it is refused.

    Raises:
        TypeError: It is none, something is missing, or there are features beside it.
    """
    if features_extractor is not None:
        raise ArgumentTypeError(
            "features_extractor",
            "none beside a policy of your own",
            repr(features_extractor),
            "leave one of them out",
        )
    made = policy
    if not isinstance(policy, nn.Module) and callable(policy):
        made = policy(observation_space, action_space)
    if not isinstance(made, nn.Module) or not all(callable(getattr(made, n, None)) for n in needed):
        raise ArgumentTypeError(
            "policy",
            "a torch module, or a function of observation and action space that makes one, with "
            f"{' and '.join(needed)}",
            type(made).__name__,
            _SEE,
        )
    return made


def own_q_network(
    policy: Any,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    features_extractor: object,
) -> nn.Module:
    """The caller's Q-network, tried on two observations.

    Raises:
        TypeError: As `made_by_caller`.
        ValueError: It does not give the values of all actions.
    """
    about = (observation_space, action_space, ("forward",), features_extractor)
    made = made_by_caller(policy, *about)
    n = int(action_space.n)  # type: ignore[attr-defined]  # Discrete
    _expect_said(made, observation_space, lambda obs: {"values": (made(obs), (2, n))})
    return made


def own_actor_critic(
    policy: Any,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    needed: Sequence[str],
    features_extractor: object,
) -> nn.Module:
    """The caller's actor and critics, tried on two observations.

    Args:
        policy, observation_space, features_extractor: As for `made_by_caller`.
        action_space: Box.
        needed: Methods, or parts, that take observations: "get_action_and_logprob" gives actions
            and log-probabilities, others actions. Beside them there is `critic`.

    Raises:
        TypeError: As `made_by_caller`.
        ValueError: What it says has another shape or dtype; it is named.
    """
    about = (observation_space, action_space, (*needed, "critic"), features_extractor)
    made: Any = made_by_caller(policy, *about)
    dim = math.prod(action_space.shape or ())

    def ask(obs: Any) -> Said:
        said: Said = {}
        for name in needed:
            told = getattr(made, name)(obs)
            if name == "get_action_and_logprob":
                told, log_probs = told
                said["log-probabilities"] = log_probs, (2,)
            said[f"actions of {name}"] = told, (2, dim)
        values = made.critic(obs, told)
        said["values of critic"] = values, (len(values), 2)
        return said

    _expect_said(made, observation_space, ask)
    return made  # type: ignore[no-any-return]  # a module


def _expect_said(
    policy: nn.Module, observation_space: gym.Space[Any], ask: Callable[[Any], Said]
) -> None:
    device = next((p.device for p in policy.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad(), evaluating(policy):
            said = ask(zeros(observation_space, 2, device))
    except Exception as error:
        kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        got = f"{type(policy).__name__}, which failed with {type(error).__name__}: {error}"
        raise kind("policy", "one that takes observations", got, _SEE) from error
    for name, (tensor, shape) in said.items():
        known = isinstance(tensor, Tensor)
        if not known or tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
            got = f"{tuple(tensor.shape)} and {tensor.dtype}" if known else type(tensor).__name__
            raise ArgumentError(
                "policy",
                f"{name} of shape {shape} and torch.float32 for 2 observations",
                str(got),
                _SEE,
            )
