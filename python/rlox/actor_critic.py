"""What a trainer asks of a policy: `ActorCritic`, and whether a module is one."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox.layouts import Layout
from rlox.masks import as_flags, mask_parameter
from rlox.settings import shown
from rlox.torch_state import evaluating

# From observations, actions and masks to log_prob, entropy and value.
Evaluate: TypeAlias = Callable[[Any, Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor]]


class ActorCritic(Protocol):
    """What a trainer asks of a policy: any torch module with these methods can take its place.

    | name | shape | dtype | meaning |
    |---|---|---|---|
    | obs | (N, *obs_shape) | float32 | observations, normalised where the trainer normalises |
    | mask | (N, n) | bool | True where an action is allowed; None allows all |
    | action | (N, *action_shape) | int64, float32 | integers count from 0; Box is unclipped |
    | log_prob | (N,) | float32 | log-probability (or -density) of the whole action |
    | entropy | (N,) | float32 | of the distribution at each observation |
    | value | (N,) | float32 | of each observation; (N, 1) is refused |

    Observations of a Box of uint8, of Discrete and of other spaces come as `rlox.layouts.Layout`
    says: uint8, int64, dicts and tuples. Masks are for Discrete actions, (N, sum(nvec)) for
    MultiDiscrete ones, (N, 2 * k) for the 0 and 1 of each of k components of MultiBinary ones, and
    only given where the environment has them.

    More is optional. `act(obs, mask=None) -> (action, log_prob, value)` is what collecting steps
    calls, without gradients, and `evaluate_actions(obs, action, mask=None) -> (log_prob, entropy,
    value)` what updates call, where one pass is cheaper than two calls. They are not called where a
    subclass has overridden the two methods below and not them, nor with masks that they do not
    take. Masks go to the parameter of that name (or `action_mask`, `action_masks`), whichever it
    is. `mode(obs, mask=None) -> action` is the greedy action, which deterministic prediction needs.
    `reset_noise(rows)` is called at the start of an iteration and every `sde_sample_freq` steps. An
    attribute `generator` gets the trainer's own `torch.Generator`. What draws from torch's global
    generator while training finds a stream of the trainer's, and the global state is put back
    afterwards.

    >>> class Coin(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.logits, self.value = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    ...
    ...     def get_action_and_logprob(self, obs, mask=None, action=None):
    ...         choice = torch.distributions.Categorical(logits=self.logits.expand(len(obs), 2))
    ...         action = choice.sample() if action is None else action
    ...         return action, choice.log_prob(action), choice.entropy()
    ...
    ...     def get_value(self, obs):
    ...         return self.value.expand(len(obs))
    >>> check_policy(Coin(), spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
    """

    def get_action_and_logprob(
        self, obs: Tensor, mask: Tensor | None = None, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(action, log_prob, entropy): of a sample, or of `action` where one is given."""

    def get_value(self, obs: Tensor) -> Tensor:
        """The value of each observation."""


def expect_spaces(observation_space: Any, action_space: Any) -> None:
    """Refuses what is no space.

    Raises:
        TypeError: It is none.
    """
    for name, space in (("observation", observation_space), ("action", action_space)):
        if not isinstance(space, gym.Space):
            raise ArgumentTypeError(
                f"{name}_space",
                "a gymnasium.Space",
                type(space).__name__,
                f"pass env.single_{name}_space",
            )


def check_policy(
    policy: Any, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> None:
    """Tries a policy on two observations and compares what it says with the table above.

    Raises:
        TypeError: It is no torch module, or a method is missing.
        ValueError: Something has another shape or dtype; it is named.
    """
    expect_spaces(observation_space, action_space)
    methods = ("get_action_and_logprob", "get_value")
    if not isinstance(policy, nn.Module) or not all(hasattr(policy, name) for name in methods):
        raise ArgumentTypeError(
            "policy",
            f"a torch module with {' and '.join(methods)}",
            type(policy).__name__,
            "rlox.policies.ActorCritic says what they must do",
        )
    module: Any = policy  # mypy takes a module's methods for tensors
    device = next((p.device for p in policy.parameters()), torch.device("cpu"))
    obs = zeros(observation_space, 2, device)
    try:
        with torch.no_grad(), evaluating(policy):
            action, log_prob, entropy = module.get_action_and_logprob(obs)
            again = module.get_action_and_logprob(obs, action=action)[1]
            said = {"log_prob": log_prob, "entropy": entropy, "value": module.get_value(obs)}
            if hasattr(module, "act"):
                _, said["log_prob of act"], said["value of act"] = module.act(obs)
            if hasattr(module, "evaluate_actions"):
                names = ("log_prob", "entropy", "value")
                evaluated = zip(names, module.evaluate_actions(obs, action), strict=True)
                said |= {f"{name} of evaluate_actions": tensor for name, tensor in evaluated}
    except Exception as error:
        kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        raise kind(
            "policy",
            "get_action_and_logprob(obs, mask=None, action=None) to give action, log_prob and "
            "entropy, of a given action too, get_value(obs) to give values, act(obs), if there is "
            "one, action, log_prob and value, evaluate_actions(obs, action) log_prob, entropy and "
            "value",
            f"{type(policy).__name__}, which failed with {type(error).__name__}: {error}",
            "see rlox.policies.ActorCritic",
        ) from error
    said["log_prob of a given action"] = again
    integer = not isinstance(action_space, spaces.Box)
    expected = ((2, *(action_space.shape or ())), torch.int64 if integer else torch.float32)
    wanted = {"action": (action, *expected)}
    wanted |= {name: (tensor, (2,), torch.float32) for name, tensor in said.items()}
    for name, (tensor, shape, dtype) in wanted.items():
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ArgumentError(
                "policy",
                f"{name} of shape {shape} and {dtype} for 2 observations",
                f"{tuple(tensor.shape)} and {tensor.dtype}",
                "see rlox.policies.ActorCritic",
            )


def _fused(policy: Any, name: str, *others: str) -> Any:
    """An optional method; None where there is none, or a subclass changed what it stands for."""
    required = ("get_action_and_logprob", "get_value", *others)
    for namespace in (vars(policy), *map(vars, type(policy).__mro__)):
        if name in namespace:
            return getattr(policy, name)
        if any(method in namespace for method in required):
            return None
    return None


def expect_mask(mask: Any, counts: Sequence[int] | None, logits: Tensor) -> Tensor:
    """A mask, bool (N, n), for N rows of logits, with so many flags for each component.

    Raises:
        TypeError: No flags.
        ValueError: Another shape, a component that is allowed nothing, or actions (`counts` is
            None) that have no masks.

    >>> expect_mask([[1, 0]], [2], torch.zeros(1, 2))
    tensor([[ True, False]])
    """
    if counts is None:
        raise ArgumentError(
            "action_masks",
            "None, as Box actions have no masks",
            type(mask).__name__,
            "leave it out",
        )
    shape = (len(logits), sum(counts))
    expected = f"flags of shape {shape}"
    if not isinstance(mask, Tensor):
        mask = torch.from_numpy(as_flags("action_masks", expected, mask))
    if mask.is_complex():
        raise ArgumentTypeError("action_masks", expected, str(mask.dtype), "convert it to bool")
    if mask.dtype != torch.bool and not ((mask == 0) | (mask == 1)).all():
        got = "numbers other than 0 and 1"
        raise ArgumentError("action_masks", expected, got, "convert it to bool")
    flags: Tensor = mask.to(logits.device, torch.bool)
    fits = flags.shape == shape
    if not fits or not torch.stack([x.any(-1) for x in flags.split(list(counts), -1)]).all():
        raise ArgumentError(
            "action_masks",
            f"{expected}, with an action (of each component) that is allowed in each row",
            f"shape {tuple(flags.shape)}{' and rows without' if fits else ''}",
            "pass a flag for each action",
        )
    return flags


def _with_mask(method: Any) -> Callable[..., Any]:
    """A method of a policy that gets a mask by the parameter's name, wherever that stands."""
    parameter = mask_parameter(method)

    def call(*args: Any, mask: Tensor | None, **others: Any) -> Any:
        if mask is None and (parameter is None or parameter.default is not parameter.empty):
            return method(*args, **others)
        if parameter is None:
            raise ArgumentTypeError(
                "policy",
                f"{getattr(method, '__qualname__', method)} to have a parameter mask, as the "
                "environment says what is allowed",
                "none",
                "add mask=None, or set action_masks=False",
            )
        return method(*args, **{parameter.name: mask}, **others)

    return call


def _fused_act(policy: Any) -> Any:
    frozen = _fused(policy, "frozen_act", "act", "distribution")
    return _fused(policy, "act") if frozen is None else frozen()


def _mask_comes(after: int, method: Any) -> bool:
    """Whether a method takes the mask right after so many other arguments, without its name."""
    at = [*inspect.signature(method).parameters.values()][after : after + 1]
    return at == [mask_parameter(method)] and at[0].kind is at[0].POSITIONAL_OR_KEYWORD


def takes_masks(policy: Any) -> bool:
    """Whether what `acting` gives takes masks."""
    methods = (_fused_act(policy), policy.get_action_and_logprob)
    return any(mask_parameter(method) is not None for method in methods)


def acting(policy: Any) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """The policy's `act`, or what does the same for one that has none, while nothing is learned.

    An `act` that takes no mask is not called with one: `get_action_and_logprob` is.
    """
    fused, separate = _fused_act(policy), _with_mask(policy.get_action_and_logprob)
    together, masked = _with_mask(fused), mask_parameter(fused) is not None
    if masked and _mask_comes(1, fused):
        made: Callable[..., tuple[Tensor, Tensor, Tensor]] = fused
        return made

    def act(obs: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if fused is not None and (mask is None or masked):
            said: tuple[Tensor, Tensor, Tensor] = together(obs, mask=mask)
            return said
        action, log_prob, *_ = separate(obs, mask=mask)
        return action, log_prob, policy.get_value(obs)

    return act


def evaluating_actions(policy: Any) -> Evaluate:
    """The policy's `evaluate_actions`, or what does the same for one that has none, as `acting`."""
    fused = _fused(policy, "evaluate_actions")
    separate, together = _with_mask(policy.get_action_and_logprob), _with_mask(fused)
    masked = mask_parameter(fused) is not None
    if masked and _mask_comes(2, fused):
        made: Evaluate = fused
        return made

    def evaluate(
        obs: Any, action: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if fused is not None and (mask is None or masked):
            said: tuple[Tensor, Tensor, Tensor] = together(obs, action, mask=mask)
            return said
        _, log_prob, entropy = separate(obs, mask=mask, action=action)
        return log_prob, entropy, policy.get_value(obs)

    return evaluate


def greedy(policy: Any, obs: Any, mask: Tensor | None = None) -> Tensor:
    """The policy's greedy actions.

    Raises:
        TypeError: It has no `mode`, or one that takes no mask where there is one.
    """
    if not hasattr(policy, "mode"):
        raise ArgumentTypeError(
            "policy",
            "a method mode(obs) for greedy actions",
            f"{type(policy).__name__} without",
            "add it or pass deterministic=False",
        )
    actions: Tensor = _with_mask(policy.mode)(obs, mask=mask)
    return actions


def sampled(policy: Any, obs: Any, mask: Tensor | None = None) -> Tensor:
    """Actions that the policy draws."""
    actions: Tensor = _with_mask(policy.get_action_and_logprob)(obs, mask=mask)[0]
    return actions


def zeros(space: gym.Space[Any], n: int, device: torch.device) -> Any:
    """`n` observations of zeros, as a policy gets them."""
    layout = Layout(space)
    rows = torch.from_numpy(np.zeros((n, *layout.shape), layout.dtype))
    return layout.unpack(rows.to(device), torch_dtype)


def torch_dtype(dtype: "np.dtype[Any]") -> torch.dtype:
    """Torch's name for a dtype of NumPy.

    Raises:
        TypeError: It has none.

    >>> torch_dtype(np.dtype(np.uint8))
    torch.uint8
    """
    kind = getattr(torch, str(getattr(dtype, "name", "")), None)
    if isinstance(kind, torch.dtype):
        return kind
    raise ArgumentTypeError("dtype", "one that torch has, too", shown(dtype), "convert it first")
