"""Policies on torch: the protocol `ActorCritic` and the built-in policies."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import gymnasium as gym
import numpy.typing as npt
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from rlox import _validation
from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._nn import distributions
from rlox._nn.critics import Critics
from rlox._nn.custom import PolicyLike as PolicyLike
from rlox._nn.custom import _fused, check_policy, check_spaces, make_custom_policy
from rlox._nn.distributions import Bernoulli, Categorical, Distribution, Gaussian, MultiCategorical
from rlox._nn.networks import ACTIVATIONS, fuse_mlps, mlp
from rlox._nn.runtime import TensorObs
from rlox._registry import NET_ARCH, SDE_CLIP_MEAN
from rlox.envs._masks import as_flags, mask_parameter
from rlox.features import FeaturesExtractor, NatureCNN, features_for

__all__ = ["ActorCritic", "MlpPolicy"]


class MlpPolicy(nn.Module):
    """Built-in `ActorCritic`: an actor and a critic, two MLPs on shared features.

    Features are the flattened observations, with integers one-hot, and a `NatureCNN` for images;
    see `rlox.features.make_features`.

    The action distributions are categorical for Discrete, independent categoricals for
    MultiDiscrete, independent Bernoullis for MultiBinary and a Gaussian for Box. The mean of the
    Gaussian is the output of the actor. Its standard deviation does not depend on the state:
    `log_std` is a parameter.

    Args:
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple space.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box space, of any shape.
        net_arch: Sizes of the hidden layers. None: (64, 64), or () after a `NatureCNN`, as in
            Stable-Baselines3.
        shared_trunk: Share the hidden layers between actor and critic.
        features_extractor: Function or class from the observation space to a torch module with an
            attribute `features_dim`; None: the built-in features.
        activation: "tanh", "relu", "elu", "gelu" or "silu".
        ortho_init: Initialize weights orthogonally, with gain sqrt(2) for hidden layers, 0.01 for
            actions and 1 for values; biases with 0.
        log_std_init: Initial log standard deviation, in [-20, 20].
        init: Generator of the initial weights; None: torch's global generator.

    Raises:
        ArgumentError: A space is not supported, or a setting is out of range.
        ArgumentTypeError: A space or a setting has a wrong type.

    >>> policy = MlpPolicy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
    >>> action, log_prob, entropy = policy.get_action_and_logprob(torch.zeros(8, 4))
    >>> action.shape, log_prob.shape, entropy.shape
    (torch.Size([8]), torch.Size([8]), torch.Size([8]))
    >>> next(iter(policy.state_dict()))
    'actor.0.weight'
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        net_arch: Sequence[int] | None = None,
        shared_trunk: bool = False,
        features_extractor: FeaturesExtractor | None = None,
        activation: str = "tanh",
        ortho_init: bool = True,
        log_std_init: float = 0.0,
        init: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_spaces(observation_space, action_space)
        shared_trunk = _validation.check_bool("shared_trunk", shared_trunk)
        ortho_init = _validation.check_bool("ortho_init", ortho_init)
        log_std_init = _validation.check_float("log_std_init", log_std_init, -20, 20)
        if not isinstance(init, torch.Generator | None):
            raise ArgumentTypeError(
                "init",
                "a torch.Generator or None",
                _validation.short_repr(init),
                "pass torch.Generator().manual_seed(seed)",
            )
        layer = ACTIVATIONS[_validation.check_str("activation", activation, tuple(ACTIVATIONS))]
        self.features = features_for(observation_space, features_extractor, init, ortho_init)
        width = int(self.features.features_dim)  # type: ignore[arg-type]  # an int
        if net_arch is None:
            net_arch = () if isinstance(self.features, NatureCNN) else NET_ARCH
        sizes = [width, *_validation.check_int_tuple("net_arch", net_arch)]
        self.trunk: nn.Module = nn.Identity()
        if shared_trunk and len(sizes) > 1:
            self.trunk = nn.Sequential(*mlp(sizes, layer, math.sqrt(2), ortho_init, init), layer())
            sizes = sizes[-1:]
        self.action_shape = tuple(action_space.shape or ())
        self.counts: list[int] = []
        match action_space:
            case spaces.Discrete():
                self.kind, outputs = "categorical", int(action_space.n)
            case spaces.MultiDiscrete():
                self.counts = action_space.nvec.ravel().tolist()
                self.kind, outputs = "categoricals", sum(self.counts)
            case spaces.MultiBinary():
                self.kind, outputs = "bernoulli", math.prod(self.action_shape)
                self.counts = [2] * outputs
            case spaces.Box():
                self.kind, outputs = "gaussian", math.prod(self.action_shape)
                self.log_std = nn.Parameter(torch.full((outputs,), log_std_init))
            case _:
                raise ArgumentError(
                    "action space",
                    "Discrete, MultiDiscrete, MultiBinary or Box",
                    str(action_space),
                    "flatten it in a wrapper, or pass a custom policy",
                )
        self.actor = mlp([*sizes, outputs], layer, 0.01, ortho_init, init)
        self.critic = mlp([*sizes, 1], layer, 1.0, ortho_init, init)
        self.generator = torch.Generator()

    def distribution(self, obs: TensorObs, mask: Tensor | None = None) -> Distribution:
        """Return the action distributions at observations, restricted by a mask.

        Raises:
            ArgumentError, ArgumentTypeError: As for `check_mask`, in all methods with a mask.
        """
        return self._chances(self._shared_latent(obs), mask)

    def _shared_latent(self, obs: TensorObs) -> Tensor:
        """Return the input of actor and critic: features, after the trunk if there is one."""
        common: Tensor = self.trunk(self.features(obs))
        return common

    def _chances(self, common: Tensor, mask: Tensor | None, explore: bool = False) -> Distribution:
        """Return the action distributions; if `explore`, gSDE uses its exploration matrices."""
        return self._of_outputs(self.actor(common), mask)

    def _of_outputs(self, out: Tensor, mask: Tensor | None) -> Distribution:
        if mask is not None:
            counts = None if self.kind == "gaussian" else self.counts or [out.shape[-1]]
            out = distributions.apply_mask(out, check_mask(mask, counts, out))
        match self.kind:
            case "categorical":
                return Categorical(out)
            case "categoricals":
                return MultiCategorical(out, self.counts)
            case "bernoulli":
                return Bernoulli(out)
        return Gaussian(out, self.log_std.exp())

    def _rows(self, actions: Tensor) -> Tensor:
        """Reshape actions for distributions: (N,) for Discrete, else (N, k)."""
        return actions if self.kind == "categorical" else actions.reshape(len(actions), -1)

    def _shaped(self, rows: Tensor) -> Tensor:
        """Reshape actions to the shape of the action space."""
        return rows.reshape(len(rows), *self.action_shape)

    def get_action_and_logprob(
        self, obs: TensorObs, mask: Tensor | None = None, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (action, log_prob, entropy) of a sample, or of `action` if it is not None."""
        chances = self.distribution(obs, mask)
        rows = chances.sample(self.generator) if action is None else self._rows(action)
        return self._shaped(rows), chances.log_prob(rows), chances.entropy()

    def get_value(self, obs: TensorObs) -> Tensor:
        """Return the values (N,) of observations."""
        return self._value(self._shared_latent(obs))

    def _value(self, common: Tensor) -> Tensor:
        value: Tensor = self.critic(common)
        return value.squeeze(-1)

    def act(self, obs: TensorObs, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return (action, log_prob, value) of a sample at each observation."""
        common = self._shared_latent(obs)
        chances = self._chances(common, mask, explore=True)
        rows = chances.sample(self.generator)
        return self._shaped(rows), chances.log_prob(rows), self._value(common)

    def frozen_act(self) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
        """Return a faster `act` with copies of the weights; call this again after an update."""
        both = fuse_mlps(self.actor, self.critic)

        def act(obs: TensorObs, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
            assert both is not None
            out, value = both(self._shared_latent(obs))
            chances = self._of_outputs(out, mask)
            rows = chances.sample(self.generator)
            return self._shaped(rows), chances.log_prob(rows), value.squeeze(-1)

        return self.act if both is None else act

    def evaluate_actions(
        self, obs: TensorObs, action: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (log_prob, entropy, value) of actions at observations."""
        common = self._shared_latent(obs)
        chances = self._chances(common, mask)
        return chances.log_prob(self._rows(action)), chances.entropy(), self._value(common)

    def mode(self, obs: TensorObs, mask: Tensor | None = None) -> Tensor:
        """Return the greedy action at each observation."""
        return self._shaped(self.distribution(obs, mask).mode())


class SdePolicy(MlpPolicy):
    """`MlpPolicy` with state-dependent exploration (gSDE, Raffin et al. 2021), for Box actions.

    A sample is `mean + latent @ matrix`, where `latent` is the actor's last hidden layer, without
    gradient. Each row of a batch has a matrix of Gaussian entries with standard deviation
    `exp(log_std)`. Matrices change only in `reset_noise`, so that exploration is smooth in time. The
    marginal distribution of an action is Gaussian with variance `latent**2 @ exp(log_std)**2`.

    Args:
        observation_space, action_space, mlp_settings: As for `MlpPolicy`.
        full_std: Make `log_std` a matrix (hidden units, k) instead of (hidden units, 1).
        log_std_init: Initial log standard deviation, in [-20, 20].

    Raises:
        ArgumentError, ArgumentTypeError: As for `MlpPolicy`, or `action_space` is no Box.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        full_std: bool = True,
        log_std_init: float = 0.0,
        **mlp_settings: Any,
    ) -> None:
        if not isinstance(action_space, spaces.Box):
            raise ArgumentError("action space", "a Box space", str(action_space), "use MlpPolicy")
        full_std = _validation.check_bool("full_std", full_std)
        log_std_init = _validation.check_float("log_std_init", log_std_init, -20, 20)
        super().__init__(observation_space, action_space, **mlp_settings)
        head = self.actor[-1]
        assert isinstance(head, nn.Linear)
        shape = (head.in_features, head.out_features if full_std else 1)
        self.log_std = nn.Parameter(torch.full(shape, log_std_init))
        self.actions = head.out_features
        self.exploration: Tensor | None = None

    def reset_noise(self, rows: int) -> None:
        """Sample new exploration matrices for batches of `rows` observations."""
        std = self.log_std.detach().exp().expand(-1, self.actions)
        noise = torch.empty((rows, *std.shape), device=std.device)
        self.exploration = std * noise.normal_(generator=self.generator)

    def _chances(self, common: Tensor, mask: Tensor | None, explore: bool = False) -> Gaussian:
        """Return the action distributions; exploration uses the matrices if there is one per row."""
        if mask is not None:
            check_mask(mask, None, common)
        *hidden, head = self.actor
        latent = common
        for layer in hidden:
            latent = layer(latent)
        mean, latent = head(latent), latent.detach()
        variance = (latent**2) @ (self.log_std * 2).exp().expand(-1, self.actions)
        noise = None
        if explore and self.exploration is not None and len(self.exploration) == len(latent):
            noise = torch.bmm(latent.unsqueeze(1), self.exploration).squeeze(1)
        return Gaussian(mean, (variance + 1e-6).sqrt(), noise)

    def frozen_act(self) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
        """Return `act` itself, because gSDE needs the actor's last hidden layer."""
        return self.act


def make_policy(
    policy: PolicyLike, observation_space: gym.Space[Any], action_space: gym.Space[Any], shape: Mapping[str, Any]
) -> nn.Module:
    """Create a built-in policy, or return a custom policy after a check.

    Args:
        policy: Torch module, or a function from observation and action space to a module; None: a
            built-in policy.
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
        shape: Values of `rlox.configs.SHAPE_SETTINGS`, "features_extractor" and "init", for
            built-in policies.

    Raises:
        ArgumentError, ArgumentTypeError: As `check_policy` and the built-in policies, or both
            `policy` and a features extractor are passed.
    """
    if policy is None:
        kwargs = dict(shape)
        if kwargs.pop("use_sde"):
            return SdePolicy(observation_space, action_space, **kwargs)
        del kwargs["full_std"]
        return MlpPolicy(observation_space, action_space, **kwargs)
    needed = ("get_action_and_logprob", "get_value")
    module = make_custom_policy(policy, observation_space, action_space, needed, shape["features_extractor"])
    check_policy(module, observation_space, action_space)
    return module


# Bounds of log standard deviations, as in Stable-Baselines3.
LOG_STD = (-20.0, 2.0)


class SquashedPolicy(nn.Module):
    """Actor with a tanh-squashed Gaussian and two critics (SAC).

    Actor and critics share the features module, which only the critic loss trains.

    With `use_sde` (gSDE, Raffin et al. 2021), a sample adds `latent @ matrix` to the mean, where
    `latent` is the actor's last hidden layer. The entries of the matrix are Gaussian with standard
    deviations `exp(log_std)`. In `explore`, each environment has a matrix, which `reset_noise`
    replaces. In updates, all rows of a batch share one matrix, and so do all batches within
    `one_matrix`. As in Stable-Baselines3's SAC, the gradient of the noise reaches the hidden
    layers, unlike in PPO.

    Args:
        observation_space: Observation space of one environment.
        action_space: Box action space of one environment.
        features: Module from observations to (N, features_dim).
        net_arch: Sizes of the hidden layers of actor and critics.
        activation: "tanh", "relu", "elu", "gelu" or "silu".
        use_sde: Use gSDE instead of a standard deviation per state from the actor.
        log_std_init: Initial `log_std` of gSDE.
        init: Generator of the initial weights; None: torch's global generator.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        features: nn.Module,
        net_arch: Sequence[int],
        activation: str,
        use_sde: bool = False,
        log_std_init: float = -3.0,
        init: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        layer, width = ACTIVATIONS[activation], int(features.features_dim)  # type: ignore[arg-type]  # an int
        self.actions = math.prod(action_space.shape or ())
        outputs = self.actions if use_sde else 2 * self.actions
        self.actor = mlp([width, *net_arch, outputs], layer, 1.0, False, init)
        if use_sde:
            hidden = net_arch[-1] if net_arch else width
            self.log_std = nn.Parameter(torch.full((hidden, self.actions), log_std_init))
        self.critic = Critics(features, width, self.actions, net_arch, layer, generator=init)
        self.use_sde = use_sde
        self.exploration: Tensor | None = None
        self._drawn: Tensor | None = None  # standard normal matrix within `one_matrix`
        self.generator: torch.Generator | None = None

    def reset_noise(self, rows: int) -> None:
        """Sample new exploration matrices for batches of `rows` observations, with gSDE only."""
        if self.use_sde:
            self.exploration = (self.log_std.exp() * self._normals(rows)).detach()

    @contextmanager
    def one_matrix(self) -> Iterator[None]:
        """Use one gSDE matrix for all samples of `get_action_and_logprob` in a `with` block."""
        if self.use_sde:
            self._drawn = self._normals(1)
        try:
            yield
        finally:
            self._drawn = None

    def _normals(self, count: int) -> Tensor:
        drawn = torch.empty((count, *self.log_std.shape), device=self.log_std.device)
        return drawn.normal_(generator=self.generator)

    def _latent(self, obs: TensorObs) -> Tensor:
        """Return the actor's last hidden layer, without a gradient to the features."""
        latent: Tensor = self.critic.features(obs).detach()
        for part in list(self.actor)[:-1]:
            latent = part(latent)
        return latent

    def mode(self, obs: TensorObs) -> Tensor:
        """Return the greedy actions (N, k)."""
        out: Tensor = self.actor[-1](self._latent(obs))
        if self.use_sde:
            return out.clamp(-SDE_CLIP_MEAN, SDE_CLIP_MEAN).tanh()
        return out[:, : self.actions].tanh()

    def explore(self, obs: TensorObs) -> Tensor:
        """Sample actions (N, k); gSDE uses the exploration matrices if there is one per row."""
        latent, exploration = self._latent(obs), self.exploration
        if exploration is None or len(exploration) != len(latent):
            return self.get_action_and_logprob(obs)[0]
        mean: Tensor = self.actor[-1](latent).clamp(-SDE_CLIP_MEAN, SDE_CLIP_MEAN)
        return (mean + torch.bmm(latent.unsqueeze(1), exploration).squeeze(1)).tanh()

    def get_action_and_logprob(self, obs: TensorObs) -> tuple[Tensor, Tensor]:
        """Sample reparameterized actions (N, k); return them and their log-probabilities (N,)."""
        latent = self._latent(obs)
        out = self.actor[-1](latent)
        if self.use_sde:
            mean = out.clamp(-SDE_CLIP_MEAN, SDE_CLIP_MEAN)
            variance = (latent**2) @ (2 * self.log_std).exp() + 1e-6
            drawn = self._normals(1) if self._drawn is None else self._drawn
            noise = latent @ (self.log_std.exp() * drawn[0])
            density = -0.5 * noise**2 / variance - 0.5 * variance.log()
        else:
            mean, log_std = out.chunk(2, 1)
            log_std = log_std.clamp(*LOG_STD)
            drawn = torch.empty_like(mean).normal_(generator=self.generator)
            noise = log_std.exp() * drawn
            density = -0.5 * drawn**2 - log_std
        u = mean + noise
        # log(1 - tanh(u)^2) in a numerically stable form.
        log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u))
        return u.tanh(), (density - log_slope - distributions.LOG_SQRT_2PI).sum(1)


# Function from observations, actions and masks to log_prob, entropy and value.
Evaluate: TypeAlias = Callable[[TensorObs, Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor]]


class ActorCritic(Protocol):
    """Protocol of policies for PPO, A2C and IMPALA: a torch module with these methods.

    | name | shape | dtype | meaning |
    |---|---|---|---|
    | obs | (N, *obs_shape) | float32 | observations, normalized if the trainer normalizes |
    | mask | (N, n) | bool | True where an action is allowed; None allows all |
    | action | (N, *action_shape) | int64, float32 | integers count from 0; Box is unclipped |
    | log_prob | (N,) | float32 | log-probability or log-density, summed over components |
    | entropy | (N,) | float32 | entropy of the distribution at each observation |
    | value | (N,) | float32 | value of each observation; (N, 1) is rejected |

    Observations are uint8 for MultiBinary and a Box of uint8, int64 for Discrete and MultiDiscrete,
    and dicts or tuples of tensors for Dict and Tuple; see `rlox._layout.Layout`. The number of
    flags n is the number of Discrete actions, sum(nvec) for MultiDiscrete, and 2 * k for k
    MultiBinary components (0 and 1 of each). Masks are passed only if the environment reports them,
    to the parameter named `mask`, `action_mask` or `action_masks`.

    Optional members:

    - `act(obs, mask=None) -> (action, log_prob, value)` replaces calls of the two methods below in
      rollouts, which need no gradients.
    - `evaluate_actions(obs, action, mask=None) -> (log_prob, entropy, value)` replaces calls of the
      two methods below in updates.
    - `mode(obs, mask=None) -> action` returns greedy actions, for deterministic prediction.
    - `reset_noise(rows)` is called at the start of an iteration and every `sde_sample_freq` steps.
    - `generator` is set to the trainer's `torch.Generator`.

    If there is a mask, and `act` or `evaluate_actions` has no parameter for it, the two methods
    below are called instead. The same holds if a subclass overrides one of the two methods below,
    but not `act` or `evaluate_actions`. During training, the trainer seeds torch's global generator,
    and later restores its state.

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
        self, obs: TensorObs, mask: Tensor | None = None, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (action, log_prob, entropy) of a sample, or of `action` if it is not None."""

    def get_value(self, obs: TensorObs) -> Tensor:
        """Return the values (N,) of observations."""


def check_mask(mask: Tensor | npt.ArrayLike, counts: Sequence[int] | None, logits: Tensor) -> Tensor:
    """Return a mask as a bool tensor (N, sum(counts)) on the device of the logits.

    Args:
        mask: Flags as a tensor, an array or nested lists.
        counts: Flags per action component; None: Box actions, which have no masks.
        logits: (N, ...).

    Raises:
        ArgumentError: The shape is wrong, a number is neither 0 nor 1, a component has no allowed
            action, or `counts` is None.
        ArgumentTypeError: The elements of the mask are neither bools nor numbers.

    >>> check_mask([[1, 0]], [2], torch.zeros(1, 2))
    tensor([[ True, False]])
    """
    if counts is None:
        raise ArgumentError(
            "action_masks", "None, because Box actions have no masks", type(mask).__name__, "omit the mask"
        )
    shape = (len(logits), sum(counts))
    expected = f"flags of shape {shape}"
    if not isinstance(mask, Tensor):
        mask = torch.from_numpy(as_flags("action_masks", expected, mask))
    if mask.is_complex():
        raise ArgumentTypeError("action_masks", expected, str(mask.dtype), "convert the mask to bool")
    if mask.dtype != torch.bool and not ((mask == 0) | (mask == 1)).all():
        got = "numbers other than 0 and 1"
        raise ArgumentError("action_masks", expected, got, "convert the mask to bool")
    flags: Tensor = mask.to(logits.device, torch.bool)
    fits = flags.shape == shape
    if not fits or not torch.stack([x.any(-1) for x in flags.split(list(counts), -1)]).all():
        raise ArgumentError(
            "action_masks",
            f"{expected}, with an allowed action (of each component) in each row",
            f"shape {tuple(flags.shape)}{' with rows without an allowed action' if fits else ''}",
            "pass one flag per action, True where it is allowed",
        )
    return flags


def _with_mask(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a policy method so that the mask is passed by the name of its parameter."""
    parameter = mask_parameter(method)

    def call(*args: object, mask: Tensor | None, **others: object) -> Any:
        if mask is None and (parameter is None or parameter.default is not parameter.empty):
            return method(*args, **others)
        if parameter is None:
            raise ArgumentTypeError(
                "policy",
                f"a parameter mask of {getattr(method, '__qualname__', method)}, because the "
                "environment reports action masks",
                "no such parameter",
                "add mask=None, or set action_masks=False",
            )
        return method(*args, **{parameter.name: mask}, **others)

    return call


def _fused_act(policy: object) -> Any:
    frozen = _fused(policy, "frozen_act", "act", "distribution")
    return _fused(policy, "act") if frozen is None else frozen()


def _mask_comes(after: int, method: Callable[..., object]) -> bool:
    """Return True if a method accepts the mask as positional argument number `after`."""
    at = [*inspect.signature(method).parameters.values()][after : after + 1]
    return at == [mask_parameter(method)] and at[0].kind is at[0].POSITIONAL_OR_KEYWORD


def takes_masks(policy: ActorCritic) -> bool:
    """Return True if the function from `get_act_fn` accepts masks."""
    methods = (_fused_act(policy), policy.get_action_and_logprob)
    return any(mask_parameter(method) is not None for method in methods)


def get_act_fn(policy: ActorCritic) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return the policy's `act`, or a function that computes the same.

    The function is valid until the weights change. If there is a mask and `act` has no parameter
    for it, `get_action_and_logprob` and `get_value` are called instead.
    """
    fused, separate = _fused_act(policy), _with_mask(policy.get_action_and_logprob)
    together, masked = _with_mask(fused), mask_parameter(fused) is not None
    if masked and _mask_comes(1, fused):
        act_fn: Callable[..., tuple[Tensor, Tensor, Tensor]] = fused
        return act_fn

    def act(obs: TensorObs, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if fused is not None and (mask is None or masked):
            outputs: tuple[Tensor, Tensor, Tensor] = together(obs, mask=mask)
            return outputs
        action, log_prob, *_ = separate(obs, mask=mask)
        return action, log_prob, policy.get_value(obs)

    return act


def get_evaluate_fn(policy: ActorCritic) -> Evaluate:
    """Return the policy's `evaluate_actions`, or a function that computes the same."""
    fused = _fused(policy, "evaluate_actions")
    separate, together = _with_mask(policy.get_action_and_logprob), _with_mask(fused)
    masked = mask_parameter(fused) is not None
    if masked and _mask_comes(2, fused):
        evaluate_fn: Evaluate = fused
        return evaluate_fn

    def evaluate(obs: TensorObs, action: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if fused is not None and (mask is None or masked):
            outputs: tuple[Tensor, Tensor, Tensor] = together(obs, action, mask=mask)
            return outputs
        _, log_prob, entropy = separate(obs, mask=mask, action=action)
        return log_prob, entropy, policy.get_value(obs)

    return evaluate


def greedy_actions(policy: ActorCritic, obs: TensorObs, mask: Tensor | None = None) -> Tensor:
    """Return the greedy actions of a policy.

    Raises:
        ArgumentTypeError: The policy has no `mode`, or `mode` has no parameter for the mask.
    """
    mode = getattr(policy, "mode", None)
    if mode is None:
        raise ArgumentTypeError(
            "policy",
            "a policy with a method mode(obs) for greedy actions",
            f"{type(policy).__name__} without mode()",
            "add it or pass deterministic=False",
        )
    actions: Tensor = _with_mask(mode)(obs, mask=mask)
    return actions


def std_metrics(policy: ActorCritic) -> dict[str, float]:
    """Return the mean standard deviation of Gaussian actions as a metric; empty without any."""
    log_std = getattr(policy, "log_std", None)
    return {} if log_std is None else {"train/std": log_std.detach().exp().mean().item()}


def sample_actions(policy: ActorCritic, obs: TensorObs, mask: Tensor | None = None) -> Tensor:
    """Return sampled actions of a policy."""
    actions: Tensor = _with_mask(policy.get_action_and_logprob)(obs, mask=mask)[0]
    return actions
