"""Policies: what a trainer asks of one (`ActorCritic`), and the built-in MLPs."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlox import distributions, settings
from rlox._errors import ArgumentError, ArgumentTypeError
from rlox.actor_critic import (
    ActorCritic,
    Evaluate,
    acting,
    check_policy,
    evaluating_actions,
    expect_mask,
    expect_spaces,
    greedy,
    sampled,
    torch_dtype,
)
from rlox.distributions import Bernoulli, Categorical, Distribution, Gaussian, MultiCategorical
from rlox.features import FeaturesExtractor, NatureCNN, make_features, own_features
from rlox.networks import ACTIVATIONS, mlp, paired

__all__ = [
    "ActorCritic",
    "Evaluate",
    "MlpPolicy",
    "SdePolicy",
    "acting",
    "check_policy",
    "evaluating_actions",
    "greedy",
    "make_policy",
    "sampled",
    "torch_dtype",
]

PolicyLike: TypeAlias = nn.Module | Callable[[gym.Space[Any], gym.Space[Any]], nn.Module] | None


class MlpPolicy(nn.Module):
    """An actor and a critic, two MLPs behind common features: the built-in `ActorCritic`.

    Features are the observations' numbers, integers one-hot, and what a `NatureCNN` makes of
    pictures; see `rlox.features.make_features`.

    Discrete actions are categorical, the components of MultiDiscrete ones independently so, and
    those of MultiBinary ones are independently 0 or 1. Box actions are Gaussian around the actor's
    output, with a standard deviation that does not depend on the state; `log_std` is a parameter.

    Args:
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple.
        action_space: Discrete, MultiDiscrete, MultiBinary or Box, of any shape.
        net_arch: Widths of the hidden layers. None: (64, 64), or none behind a single `NatureCNN`,
            as in Stable-Baselines3.
        shared_trunk: Whether actor and critic have the hidden layers in common, too.
        features_extractor: A function, or class, from the observation space to a torch module with
            an attribute `features_dim`, in the place of the built-in features.
        activation: "tanh", "relu", "elu", "gelu" or "silu".
        ortho_init: Orthogonal initial weights with the gains that PPO is known to need.
        log_std_init: Initial logarithm of the standard deviation.
        init: Decides the initial weights; None: torch's global generator.

    Raises:
        TypeError: No spaces, or a setting of another kind.
        ValueError: Other spaces, an unknown activation, a setting out of range.

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
        expect_spaces(observation_space, action_space)
        shared_trunk = settings.flag("shared_trunk", shared_trunk)
        ortho_init = settings.flag("ortho_init", ortho_init)
        log_std_init = settings.number("log_std_init", log_std_init, -20, 20)
        if not isinstance(init, torch.Generator | None):
            raise ArgumentTypeError(
                "init",
                "a torch.Generator or None",
                settings.shown(init),
                "pass torch.Generator().manual_seed(seed)",
            )
        layer = ACTIVATIONS[settings.text("activation", activation, tuple(ACTIVATIONS))]
        if features_extractor is None:
            self.features = make_features(observation_space, ortho_init, generator=init)
        else:
            self.features = own_features(features_extractor, observation_space)
        width: Any = self.features.features_dim
        if net_arch is None:
            net_arch = () if isinstance(self.features, NatureCNN) else (64, 64)
        sizes = [width, *settings.whole_numbers("net_arch", net_arch)]
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
                    "flatten it in a wrapper, or pass a policy of your own",
                )
        self.actor = mlp([*sizes, outputs], layer, 0.01, ortho_init, init)
        self.critic = mlp([*sizes, 1], layer, 1.0, ortho_init, init)
        self.generator = torch.Generator()

    def distribution(self, obs: Tensor, mask: Tensor | None = None) -> Distribution:
        """Of the actions at each observation; `mask` is the table's.

        Raises:
            ValueError, TypeError: A mask, here and in what follows, of another shape or kind, that
                allows nothing, or for Box actions.
        """
        return self._chances(self._common(obs), mask)

    def _common(self, obs: Any) -> Tensor:
        """What actor and critic have in common."""
        common: Tensor = self.trunk(self.features(obs))
        return common

    def _chances(self, common: Tensor, mask: Tensor | None) -> Distribution:
        return self._of_outputs(self.actor(common), mask)

    def _of_outputs(self, out: Tensor, mask: Tensor | None) -> Distribution:
        if mask is not None:
            counts = None if self.kind == "gaussian" else self.counts or [out.shape[-1]]
            out = distributions.masked(out, expect_mask(mask, counts, out))
        match self.kind:
            case "categorical":
                return Categorical(out)
            case "categoricals":
                return MultiCategorical(out, self.counts)
            case "bernoulli":
                return Bernoulli(out)
        return Gaussian(out, self.log_std.exp())

    def _rows(self, actions: Tensor) -> Tensor:
        """Actions as distributions have them: (N,) of Discrete ones, else (N, k)."""
        return actions if self.kind == "categorical" else actions.reshape(len(actions), -1)

    def _shaped(self, rows: Tensor) -> Tensor:
        """Actions in the shape that their space has."""
        return rows.reshape(len(rows), *self.action_shape)

    def get_action_and_logprob(
        self, obs: Tensor, mask: Tensor | None = None, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(action, log_prob, entropy): of a sample, or of `action` where one is given."""
        chances = self.distribution(obs, mask)
        rows = chances.sample(self.generator) if action is None else self._rows(action)
        return self._shaped(rows), chances.log_prob(rows), chances.entropy()

    def get_value(self, obs: Tensor) -> Tensor:
        """The value of each observation, (N,)."""
        return self._value(self._common(obs))

    def _value(self, common: Tensor) -> Tensor:
        value: Tensor = self.critic(common)
        return value.squeeze(-1)

    def act(self, obs: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(action, log_prob, value) of a sample at each observation."""
        common = self._common(obs)
        chances = self._chances(common, mask)
        rows = chances.sample(self.generator)
        return self._shaped(rows), chances.log_prob(rows), self._value(common)

    def frozen_act(self) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
        """`act` with the weights as they are now: actor and critic in one pass, for a rollout."""
        both = paired(self.actor, self.critic)

        def act(obs: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
            assert both is not None
            out, value = both(self._common(obs))
            chances = self._of_outputs(out, mask)
            rows = chances.sample(self.generator)
            return self._shaped(rows), chances.log_prob(rows), value.squeeze(-1)

        return self.act if both is None else act

    def evaluate_actions(
        self, obs: Any, action: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(log_prob, entropy, value) of given actions."""
        common = self._common(obs)
        chances = self._chances(common, mask)
        return chances.log_prob(self._rows(action)), chances.entropy(), self._value(common)

    def mode(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The greedy action at each observation."""
        return self._shaped(self.distribution(obs, mask).mode())


class SdePolicy(MlpPolicy):
    """`MlpPolicy` with state-dependent exploration (gSDE, Raffin et al. 2021), for Box actions.

    A sample adds `latent @ matrix` to the mean, where `latent` is the actor's last hidden layer (no
    gradient flows into it from here) and the matrix, one for each row, has Gaussian entries with
    standard deviation `exp(log_std)`. It stays the same until `reset_noise`, so that exploration is
    smooth in time. Given the state, an action is Gaussian with variance
    `latent**2 @ exp(log_std)**2`.

    Args:
        full_std: A standard deviation for each hidden unit and action rather than for each unit.
        observation_space, action_space, mlp_settings: As for `MlpPolicy`; `log_std` is
            (hidden units, k), or (hidden units, 1) without `full_std`.
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
            raise ArgumentError("action space", "a Box", str(action_space), "use MlpPolicy")
        full_std = settings.flag("full_std", full_std)
        log_std_init = settings.number("log_std_init", log_std_init, -20, 20)
        super().__init__(observation_space, action_space, **mlp_settings)
        head = self.actor[-1]
        assert isinstance(head, nn.Linear)
        shape = (head.in_features, head.out_features if full_std else 1)
        self.log_std = nn.Parameter(torch.full(shape, log_std_init))
        self.actions = head.out_features
        self.exploration: Tensor | None = None

    def reset_noise(self, rows: int) -> None:
        """Draws a new exploration matrix for each of so many rows."""
        std = self.log_std.detach().exp().expand(-1, self.actions)
        noise = torch.empty((rows, *std.shape), device=std.device)
        self.exploration = std * noise.normal_(generator=self.generator)

    def _latent(self, common: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and standard deviation of the actions, and the last hidden layer."""
        *hidden, head = self.actor
        latent = common
        for layer in hidden:
            latent = layer(latent)
        mean, latent = head(latent), latent.detach()
        variance = (latent**2) @ (self.log_std * 2).exp().expand(-1, self.actions)
        return mean, (variance + 1e-6).sqrt(), latent

    def _chances(self, common: Tensor, mask: Tensor | None) -> Gaussian:
        if mask is not None:
            expect_mask(mask, None, common)
        return Gaussian(*self._latent(common)[:2])

    def frozen_act(self) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
        """`act`, as what is drawn needs the actor's hidden layer."""
        return self.act

    def act(self, obs: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """As `MlpPolicy.act`, with `reset_noise`'s matrices where there is one for each row."""
        common = self._common(obs)
        if mask is not None:
            expect_mask(mask, None, common)
        mean, std, latent = self._latent(common)
        noise = None
        if self.exploration is not None and len(self.exploration) == len(latent):
            noise = torch.bmm(latent.unsqueeze(1), self.exploration).squeeze(1)
        chances = Gaussian(mean, std, noise)
        rows = chances.sample(self.generator)
        return self._shaped(rows), chances.log_prob(rows), self._value(common)


def make_policy(
    policy: PolicyLike,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    shape: Mapping[str, Any],
) -> nn.Module:
    """The caller's policy, checked, or for None a built-in one.

    Args:
        policy: A module, or a function from the two spaces to one.
        observation_space: Of one environment.
        action_space: Of one environment.
        shape: Values of `rlox.configs.SHAPE_SETTINGS`, "features_extractor" and "init", for the
            built-in ones.

    Raises:
        ValueError, TypeError: As `check_policy` and the built-in policies do.
    """
    if policy is None:
        given = dict(shape)
        if given.pop("use_sde"):
            return SdePolicy(observation_space, action_space, **given)
        del given["full_std"]
        return MlpPolicy(observation_space, action_space, **given)
    if not callable(policy):  # a module is
        raise ArgumentTypeError(
            "policy",
            "a torch module, a function of observation and action space that makes one, or None",
            repr(policy),
            "see rlox.policies.ActorCritic",
        )
    if shape.get("features_extractor") is not None:
        raise ArgumentTypeError(
            "features_extractor",
            "none beside a policy of your own",
            repr(shape["features_extractor"]),
            "leave one of them out",
        )
    made = policy if isinstance(policy, nn.Module) else policy(observation_space, action_space)
    check_policy(made, observation_space, action_space)
    return made
