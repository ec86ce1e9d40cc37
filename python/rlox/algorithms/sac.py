"""Soft actor-critic (Haarnoja et al. 2018) in PyTorch: targets, losses and update.

The built-in networks are `rlox.squashed.SquashedPolicy`'s. What stands around them is what other
algorithms have, too: `rlox.configs.SACConfig` has the settings, `rlox.exploring.Explorer.collect`
makes the steps and fills the buffer of `rlox.replaying`, and
`rlox.off_policy_learner.OffPolicyLearner.iterate` is the loop, which calls `update` here.

An iteration makes `train_freq` steps of each environment, keeps them in a replay buffer, and learns
from minibatches of it: two critics from what the next state is worth, entropy included, the actor
from the critics, and the temperature from how far the entropy is from its target.
"""

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rlox._nn.critics import make_target_network, polyak_update
from rlox._nn.custom import critic_parts, make_custom_actor_critic
from rlox._nn.optim import Adam
from rlox.algorithms._off_policy import EPS, OffPolicyLearner
from rlox.algorithms._replay import ReplayBatch
from rlox.configs import SACConfig
from rlox.features import FeaturesExtractor, features_for
from rlox.policies import SquashedPolicy

__all__ = ["SAC", "SACConfig"]


class Temperature(nn.Module):
    """What entropy is worth: the exponential of a parameter."""

    def __init__(self, begin: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((1,), math.log(begin)))


@torch.no_grad()
def sac_targets(policy: Any, critic_target: nn.Module, batch: ReplayBatch, alpha: Tensor) -> Tensor:
    """What the critics shall say, (B,): where the time was over, something still comes after."""
    next_actions, next_log_probs = policy.get_action_and_logprob(batch.next_obs)
    next_values = critic_target(batch.next_obs, next_actions).amin(0) - alpha * next_log_probs
    targets: Tensor = batch.rewards + batch.discounts * ~batch.terminated * next_values
    return targets


def critic_loss(critic: nn.Module, batch: ReplayBatch, targets: Tensor) -> Tensor:
    """Half the sum over critics of their mean squared errors."""
    errors = critic(batch.obs, batch.actions) - targets
    loss: Tensor = 0.5 * (errors**2).mean(1).sum()
    return loss


def actor_loss(
    critic: nn.Module, batch: ReplayBatch, actions: Tensor, log_probs: Tensor, alpha: Tensor
) -> Tensor:
    """Actions shall be worth much to the critic that says least, and not be sure."""
    loss: Tensor = (alpha * log_probs - critic(batch.obs, actions).amin(0)).mean()
    return loss


class SAC(OffPolicyLearner):
    """The learner: what the loop of `OffPolicyLearner` asks of SAC.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them, with Box actions.
        config: Settings; `num_envs` must be the environments'.
        seed: Decides everything random: weights, environments, actions, minibatches.
        policy: A torch module, or a function from the observation and the action space to one
            (called under our seed), with `get_action_and_logprob(obs)`: actions (N, k) in [-1, 1],
            through which gradients flow, and their log-probabilities (N,); `mode(obs)`: greedy
            actions (N, k); and a part `critic`, a module from observations and actions to
            (critics, N). All other parameters are the actor's. With `use_sde`, `reset_noise(rows)`,
            `explore(obs)` and `one_matrix()`, if it has them, are called as of
            `rlox.policies.SquashedPolicy`. None: that one.
        features_extractor: For the built-in policy; learns by the critics' loss.

    Raises:
        ValueError, TypeError: Spaces, policy and config that do not fit together.

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
        self, policy: Any, features_extractor: FeaturesExtractor | None, init: torch.Generator
    ) -> nn.Module:
        """Actor and critics."""
        config, (obs_space, action_space) = self.config, self.spaces
        if policy is not None:
            methods = ("get_action_and_logprob", "mode")
            return make_custom_actor_critic(
                policy, obs_space, action_space, methods, features_extractor
            )
        return SquashedPolicy(
            obs_space,
            action_space,
            features=features_for(obs_space, features_extractor, init),
            net_arch=(256, 256) if config.net_arch is None else config.net_arch,
            activation=config.activation,
            use_sde=config.use_sde,
            log_std_init=config.log_std_init,
            init=init,
        )

    def make_targets(self) -> dict[str, nn.Module]:
        """The critics' targets, and the temperature."""
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
            self.alpha += config.ent_coef
        dim = math.prod(self.spaces[1].shape or ())
        auto = config.target_entropy == "auto"
        self.target_entropy = -float(dim) if auto else float(config.target_entropy)
        return targets

    def make_optimizers(self) -> list[Adam]:
        """One each for actor, critics and temperature."""
        actor, critic = critic_parts(self.policy)
        self.actor_optimizer = Adam(self.policy, eps=EPS, parts=actor)
        self.critic_optimizer = Adam(self.policy, eps=EPS, parts=critic)
        optimizers = [self.actor_optimizer, self.critic_optimizer]
        if self.temperature is not None:
            optimizers.append(Adam(self.temperature, eps=EPS))
        self.compile_losses(sac_targets, critic_loss, actor_loss)
        return optimizers

    def begin(self) -> None:
        """Draws new matrices of gSDE."""
        if self.config.use_sde and hasattr(self.policy, "reset_noise"):
            self.policy.reset_noise(self.config.num_envs)

    def sample_actions(self, obs: Any, mask: Tensor | None) -> Tensor:
        """Actions with the policy's own noise, each drawn anew."""
        return self.policy.get_action_and_logprob(obs)[0]  # type: ignore[no-any-return]  # a Tensor

    def explore_actions(self, obs: Any, mask: Tensor | None) -> Tensor:
        """Actions with the policy's own noise, with gSDE that of `begin`."""
        if self.config.use_sde and hasattr(self.policy, "explore"):
            return self.policy.explore(obs)  # type: ignore[no-any-return]  # a Tensor
        return self.sample_actions(obs, mask)

    def greedy_actions(self, obs: Any, mask: Tensor | None) -> Tensor:
        """Actions without noise."""
        return self.policy.mode(obs)  # type: ignore[no-any-return]  # a Tensor

    def update(self, batch: ReplayBatch, learning_rate: float) -> None:
        """A step of the critics, of the actor by the new critics, and of the temperature."""
        config, policy, critic = self.config, self.policy, self.policy.critic
        targets_of, critic_loss_of, actor_loss_of = self.losses
        temperature, alpha = self.temperature, self.alpha
        if temperature is not None:
            alpha = temperature.log_alpha.detach().exp()
        self.record(ent_coef=alpha)

        # Of gSDE, all that an update samples is by one matrix, as in Stable-Baselines3.
        one_matrix = getattr(policy, "one_matrix", nullcontext) if config.use_sde else nullcontext
        with one_matrix():
            actions, log_probs = policy.get_action_and_logprob(batch.obs)
            targets = targets_of(policy, self.critic_target, batch, alpha)
        loss = critic_loss_of(critic, batch, targets)
        self.optimizer_step(self.critic_optimizer, loss, learning_rate, "critic_loss")

        loss = actor_loss_of(critic, batch, actions, log_probs, alpha)
        self.optimizer_step(self.actor_optimizer, loss, learning_rate, "actor_loss")
        if temperature is not None:  # last: nothing else goes by its new value
            excess = (log_probs + self.target_entropy).detach()
            loss = -(temperature.log_alpha * excess).mean()
            self.optimizer_step(self.optimizers[2], loss, learning_rate, "ent_coef_loss")
        if self.updates % config.target_update_interval == 0:
            polyak_update(self.critic_target, critic, config.tau)
