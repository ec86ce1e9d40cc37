"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) in PyTorch.

An iteration takes `train_freq` steps per environment, stores the transitions in a replay buffer,
and learns from minibatches. Each minibatch updates two critics, the actor, and a learned
temperature. The loop is `_off_policy.OffPolicyLearner.iterate`; this module defines the targets,
the losses and the update.
"""

import math
from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn

from rlox._nn.critics import make_target_network, polyak_update
from rlox._nn.custom import critic_parts, make_custom_actor_critic
from rlox._nn.optim import Adam
from rlox._nn.runtime import TensorObs
from rlox.algorithms._off_policy import OffPolicyLearner
from rlox.algorithms._replay import ReplayBatch
from rlox.configs import SACConfig
from rlox.features import FeaturesExtractor, features_for
from rlox.policies import PolicyLike, SquashedPolicy

__all__ = ["SAC", "SACConfig"]


class StochasticActor(Protocol):
    """Protocol of policies that sample actions with their log-probabilities."""

    def get_action_and_logprob(self, obs: TensorObs) -> tuple[Tensor, Tensor]:
        """Sample actions (N, k); return them and their log-probabilities (N,)."""


class Temperature(nn.Module):
    """Learned entropy coefficient, stored as its logarithm."""

    def __init__(self, begin: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((1,), math.log(begin)))


@torch.no_grad()
def sac_targets(policy: StochasticActor, critic_target: nn.Module, batch: ReplayBatch, alpha: Tensor) -> Tensor:
    """Compute the targets of the critics, (B,), from the minimum of the target critics.

    The next value includes the entropy bonus. Targets bootstrap after a truncation, but not after a
    termination.

    Args:
        policy: Policy that samples the next actions.
        critic_target: Target critics, which map observations and actions to values (critics, B).
        batch: B transitions.
        alpha: Entropy coefficient, (1,).
    """
    next_actions, next_log_probs = policy.get_action_and_logprob(batch.next_obs)
    next_values = critic_target(batch.next_obs, next_actions).amin(0) - alpha * next_log_probs
    targets: Tensor = batch.rewards + batch.discounts * ~batch.terminated * next_values
    return targets


def critic_loss(critic: nn.Module, batch: ReplayBatch, targets: Tensor) -> Tensor:
    """Compute half the sum over critics of the mean squared errors."""
    errors = critic(batch.obs, batch.actions) - targets
    loss: Tensor = 0.5 * (errors**2).mean(1).sum()
    return loss


def actor_loss(critic: nn.Module, batch: ReplayBatch, actions: Tensor, log_probs: Tensor, alpha: Tensor) -> Tensor:
    """Compute the actor loss, the mean of alpha * log_probs - min(Q1, Q2)."""
    loss: Tensor = (alpha * log_probs - critic(batch.obs, actions).amin(0)).mean()
    return loss


class SAC(OffPolicyLearner[SACConfig]):
    """SAC learner with environments, actor, critics, replay buffer and optimizers.

    Args:
        env: Environments from `rlox.make_vec` with Box actions.
        config: Settings; `num_envs` must be the number of environments.
        seed: Seed of weights, environments, actions and minibatches, an int >= 0.
        policy: Torch module with the members below, or a function from the observation and the
            action space to such a module. The function is called with torch's global generator
            seeded from `seed`. None: `rlox.policies.SquashedPolicy`.
        features_extractor: Features extractor of the built-in policy; the critic loss trains it.

    Members of `policy`:

    - `get_action_and_logprob(obs)` returns differentiable actions (N, k) in [-1, 1] and their
      log-probabilities (N,).
    - `mode(obs)` returns greedy actions (N, k).
    - `critic` is a submodule that maps observations and actions to values (critics, N). All
      parameters outside of `critic` belong to the actor.
    - With `use_sde`, three further methods are optional: `reset_noise(rows)` draws noise matrices,
      `explore(obs)` returns actions with these matrices, and `one_matrix()` is a context manager
      in which all rows have the same matrix.

    Raises:
        ArgumentError: Spaces, policy and config do not match.
        ArgumentTypeError: `env`, `config` or `policy` has another type.
        OutOfMemoryError: The networks or the replay buffer do not fit into memory.

    >>> from rlox import make_vec
    >>> config = SACConfig(learning_starts=8, net_arch=(16,))
    >>> learner = SAC(make_vec("Pendulum-v1", 1), config, seed=1)
    >>> metrics = [learner.iterate() for _ in range(10)][-1]
    >>> metrics["time/total_timesteps"], metrics["train/n_updates"]
    (10, 2)
    """

    algorithm = "sac"
    metric_names = ("actor_loss", "critic_loss", "ent_coef", "ent_coef_loss")

    def make_policy(
        self, policy: PolicyLike, features_extractor: FeaturesExtractor | None, init: torch.Generator
    ) -> nn.Module:
        """Return actor and critics."""
        config, (obs_space, action_space) = self.config, self.spaces
        if policy is not None:
            methods = ("get_action_and_logprob", "mode")
            return make_custom_actor_critic(policy, obs_space, action_space, methods, features_extractor)
        features = features_for(obs_space, features_extractor, init)
        return SquashedPolicy(
            obs_space,
            action_space,
            features=features,
            net_arch=self.net_arch(features),
            activation=config.activation,
            use_sde=config.use_sde,
            log_std_init=config.log_std_init,
            init=init,
        )

    def make_targets(self) -> dict[str, nn.Module]:
        """Create the target critics, and the temperature if it is learned."""
        config, ent_coef = self.config, str(self.config.ent_coef)
        self.alpha = torch.full((1,), 0.0, device=self.device)
        self.temperature: Temperature | None = None
        targets: dict[str, nn.Module] = {"critic_target": make_target_network(self.policy.critic)}
        self.critic_target = targets["critic_target"]
        if ent_coef.startswith("auto"):
            begin = float(ent_coef.partition("_")[2] or 1.0)
            self.temperature = Temperature(begin).to(self.device)
            targets["temperature"] = self.temperature
        else:
            self.alpha += float(config.ent_coef)
        dim = math.prod(self.spaces[1].shape or ())
        auto = config.target_entropy == "auto"
        self.target_entropy = -float(dim) if auto else float(config.target_entropy)
        return targets

    def make_optimizers(self) -> list[Adam]:
        """Create one optimizer for the actor, one for the critics and one for a learned temperature."""
        actor, critic = critic_parts(self.policy)
        self.actor_optimizer = Adam(self.policy, eps=self.spec.adam_eps, parts=actor)
        self.critic_optimizer = Adam(self.policy, eps=self.spec.adam_eps, parts=critic)
        optimizers = [self.actor_optimizer, self.critic_optimizer]
        if self.temperature is not None:
            optimizers.append(Adam(self.temperature, eps=self.spec.adam_eps))
        self.compile_losses(sac_targets, critic_loss, actor_loss)
        return optimizers

    def begin(self) -> None:
        """Sample new noise matrices for gSDE."""
        if self.config.use_sde and (reset_noise := getattr(self.policy, "reset_noise", None)):
            reset_noise(self.config.num_envs)

    def sample_actions(self, obs: TensorObs, mask: Tensor | None) -> Tensor:
        """Sample actions from the policy with independent noise, even if gSDE is used."""
        return self.policy.get_action_and_logprob(obs)[0]  # type: ignore[no-any-return]  # a Tensor

    def explore_actions(self, obs: TensorObs, mask: Tensor | None) -> Tensor:
        """Sample actions from the policy; with gSDE, use the noise matrices of `begin`."""
        if self.config.use_sde and (explore := getattr(self.policy, "explore", None)):
            return explore(obs)  # type: ignore[no-any-return]  # a Tensor
        return self.sample_actions(obs, mask)

    def greedy_actions(self, obs: TensorObs, mask: Tensor | None) -> Tensor:
        """Return the actions of the policy without noise."""
        return self.policy.mode(obs)  # type: ignore[no-any-return]  # a Tensor

    def update(self, batch: ReplayBatch, learning_rate: float) -> None:
        """Update the critics, then the actor, then the temperature, then the target critics."""
        config, policy, critic = self.config, self.policy, self.policy.critic
        targets_of, critic_loss_of, actor_loss_of = self.losses
        temperature, alpha = self.temperature, self.alpha
        if temperature is not None:
            alpha = temperature.log_alpha.detach().exp()
        self.record(ent_coef=alpha)

        # With gSDE, all actions of an update are sampled with one noise matrix, as in Stable-Baselines3.
        one_matrix = getattr(policy, "one_matrix", None) if config.use_sde else None
        with (one_matrix or nullcontext)():
            actions, log_probs = policy.get_action_and_logprob(batch.obs)
            targets = targets_of(policy, self.critic_target, batch, alpha)
        loss = critic_loss_of(critic, batch, targets)
        self.optimizer_step(self.critic_optimizer, loss, learning_rate, "critic_loss")

        loss = actor_loss_of(critic, batch, actions, log_probs, alpha)
        self.optimizer_step(self.actor_optimizer, loss, learning_rate, "actor_loss")
        if temperature is not None:  # after the actor, whose loss uses the previous temperature
            excess = (log_probs + self.target_entropy).detach()
            loss = -(temperature.log_alpha * excess).mean()
            self.optimizer_step(self.optimizers[2], loss, learning_rate, "ent_coef_loss")
        if self.updates % config.target_update_interval == 0:
            polyak_update(self.critic_target, critic, config.tau)
