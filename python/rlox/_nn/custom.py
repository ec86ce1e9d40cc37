"""Checks of custom policies and networks."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._nn.runtime import TensorObs, evaluating, zeros


def check_spaces(observation_space: object, action_space: object) -> None:
    """Check that both arguments are Gymnasium spaces.

    Raises:
        ArgumentTypeError: An argument is no space.
    """
    for name, space in (("observation", observation_space), ("action", action_space)):
        if not isinstance(space, gym.Space):
            raise ArgumentTypeError(
                f"{name}_space", "a gymnasium.Space", type(space).__name__, f"pass env.single_{name}_space"
            )


def check_policy(policy: object, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
    """Check that a policy returns what `rlox.policies.ActorCritic` requires for two observations.

    Raises:
        ArgumentError: A method fails, or an output has another shape or dtype.
        ArgumentTypeError: `policy` is no torch module, lacks a method or raises a TypeError, or an
            argument is no space.
    """
    check_spaces(observation_space, action_space)
    methods = ("get_action_and_logprob", "get_value")
    if not isinstance(policy, nn.Module) or not all(hasattr(policy, name) for name in methods):
        raise ArgumentTypeError(
            "policy",
            f"a torch module with {' and '.join(methods)}",
            type(policy).__name__,
            "implement rlox.policies.ActorCritic",
        )
    module: Any = policy  # mypy takes every attribute of a module for a tensor
    action_shape = (2, *(action_space.shape or ()))
    action_dtype = torch.float32 if isinstance(action_space, spaces.Box) else torch.int64

    def call_policy(obs: TensorObs) -> PolicyOutputs:
        action, log_prob, entropy = module.get_action_and_logprob(obs)
        outputs = {"log_prob": log_prob, "entropy": entropy}
        outputs["log_prob of a passed action"] = module.get_action_and_logprob(obs, action=action)[1]
        outputs["value"] = module.get_value(obs)
        if act := getattr(policy, "act", None):
            _, outputs["log_prob of act"], outputs["value of act"] = act(obs)
        if evaluate_actions := getattr(policy, "evaluate_actions", None):
            names = ("log_prob", "entropy", "value")
            evaluated = zip(names, evaluate_actions(obs, action), strict=True)
            outputs |= {f"{name} of evaluate_actions": tensor for name, tensor in evaluated}
        scalars: PolicyOutputs = {name: (tensor, (2,), torch.float32) for name, tensor in outputs.items()}
        return {"action": (action, action_shape, action_dtype), **scalars}

    _check_outputs(
        policy,
        observation_space,
        call_policy,
        "methods get_action_and_logprob(obs, mask=None, action=None) -> (action, log_prob, "
        "entropy) and get_value(obs) -> value, optionally act(obs) -> (action, log_prob, "
        "value) and evaluate_actions(obs, action) -> (log_prob, entropy, value)",
        "see rlox.policies.ActorCritic",
    )


def _fused(policy: object, name: str, *others: str) -> Any:
    """Return the optional method `name` of a policy, or None.

    The result is None if the method is missing. It is also None if a subclass overrides
    `get_action_and_logprob`, `get_value` or one of `others`, but not `name`, which would ignore this.
    """
    required = ("get_action_and_logprob", "get_value", *others)
    for namespace in (vars(policy), *map(vars, type(policy).__mro__)):
        if name in namespace:
            return getattr(policy, name)
        if any(method in namespace for method in required):
            return None
    return None


# Torch module, a function from observation and action space to a module, or None.
PolicyLike: TypeAlias = nn.Module | Callable[[gym.Space[Any], gym.Space[Any]], nn.Module] | None
# Outputs of a policy by name, each with its expected shape and dtype.
PolicyOutputs: TypeAlias = dict[str, tuple[Any, tuple[int, ...], torch.dtype]]
_HINT = "see the algorithm's class in rlox.algorithms"


def critic_parts(policy: nn.Module) -> tuple[list[str], list[str]]:
    """Return the first components of the parameter names of the actor, and of the critics."""
    first = {name.partition(".")[0] for name, _ in policy.named_parameters()}
    return sorted(first - {"critic"}), ["critic"]


def make_custom_policy(
    policy: PolicyLike,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    needed: Sequence[str],
    features_extractor: object,
) -> nn.Module:
    """Return a custom policy, or the policy that a function creates for the spaces.

    Args:
        policy: Torch module, or a function from observation and action space to a module.
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
        needed: Names of the required methods or submodules.
        features_extractor: Must be None.

    Raises:
        ArgumentTypeError: `policy` is of another type or lacks a name in `needed`, or
            `features_extractor` is not None.
    """
    if features_extractor is not None:
        raise ArgumentTypeError(
            "features_extractor",
            "None with a custom policy",
            repr(features_extractor),
            "omit features_extractor or policy",
        )
    module = policy
    if not isinstance(policy, nn.Module) and callable(policy):
        module = policy(observation_space, action_space)
    if not isinstance(module, nn.Module) or not all(callable(getattr(module, n, None)) for n in needed):
        raise ArgumentTypeError(
            "policy",
            "a torch module, or a function from observation and action space to a torch module, "
            f"with {' and '.join(needed)}",
            type(module).__name__,
            _HINT,
        )
    return module


def make_custom_q_network(
    policy: PolicyLike, observation_space: gym.Space[Any], action_space: gym.Space[Any], features_extractor: object
) -> nn.Module:
    """Return a custom Q-network after a check of its output for two observations.

    Raises:
        ArgumentError: The network fails, or its output is not float32 (2, n).
        ArgumentTypeError: As `make_custom_policy`, or the network raises a TypeError.
    """
    module = make_custom_policy(policy, observation_space, action_space, ("forward",), features_extractor)
    n = int(action_space.n)  # type: ignore[attr-defined]  # Discrete
    _check_outputs(module, observation_space, lambda obs: {"values": (module(obs), (2, n), torch.float32)})
    return module


def make_custom_actor_critic(
    policy: PolicyLike,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    needed: Sequence[str],
    features_extractor: object,
) -> nn.Module:
    """Return a custom actor-critic after a check of its outputs for two observations.

    Args:
        policy: As for `make_custom_policy`.
        observation_space: As for `make_custom_policy`.
        action_space: Box action space.
        needed: Names of the required methods or submodules of the actor. All take observations and
            return actions (N, k); "get_action_and_logprob" also returns log-probabilities (N,).
        features_extractor: Must be None.

    Raises:
        ArgumentError: The policy fails, or an output has another shape or dtype.
        ArgumentTypeError: As `make_custom_policy`, or the policy raises a TypeError.
    """
    needed_names = (*needed, "critic")
    module: Any = make_custom_policy(policy, observation_space, action_space, needed_names, features_extractor)
    dim = math.prod(action_space.shape or ())

    def call_policy(obs: TensorObs) -> PolicyOutputs:
        outputs: PolicyOutputs = {}
        for name in needed:
            actions = getattr(module, name)(obs)
            if name == "get_action_and_logprob":
                actions, log_probs = actions
                outputs["log-probabilities"] = log_probs, (2,), torch.float32
            outputs[f"actions of {name}"] = actions, (2, dim), torch.float32
        values = module.critic(obs, actions)
        outputs["values of critic"] = values, (len(values), 2), torch.float32
        return outputs

    _check_outputs(module, observation_space, call_policy)
    return module  # type: ignore[no-any-return]  # an nn.Module


def _check_outputs(
    policy: nn.Module,
    observation_space: gym.Space[Any],
    call_policy: Callable[[TensorObs], PolicyOutputs],
    expected: str = "a policy for observations of the env",
    hint: str = _HINT,
) -> None:
    """Check that `call_policy` accepts two observations and returns outputs as expected."""
    try:
        with torch.no_grad(), evaluating(policy):
            outputs = call_policy(zeros(observation_space, policy))
    except Exception as error:
        error_type = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        got = f"{type(policy).__name__}, which failed with {type(error).__name__}: {error}"
        raise error_type("policy", expected, got, hint) from error
    for name, (tensor, shape, dtype) in outputs.items():
        is_tensor = isinstance(tensor, Tensor)
        if not is_tensor or tuple(tensor.shape) != shape or tensor.dtype != dtype:
            got = f"{tuple(tensor.shape)} and {tensor.dtype}" if is_tensor else type(tensor).__name__
            raise ArgumentError("policy", f"{name} of shape {shape} and {dtype} for 2 observations", got, hint)
