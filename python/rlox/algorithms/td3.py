"""Twin delayed DDPG (Fujimoto et al. 2018) in PyTorch: targets, losses and update.

The built-in networks are `rlox.featured.DeterministicPolicy`'s. What stands around them is what
other algorithms have, too: `rlox.configs.TD3Config` has the settings,
`rlox.exploring.Explorer.collect` makes the steps and fills the buffer of `rlox.replaying`, and
`rlox.off_policy_learner.OffPolicyLearner.iterate` is the loop, which calls `update` here.

An iteration makes `train_freq` steps of each environment, with noise, keeps them in a replay
buffer, and learns from minibatches of it: two critics from what a smoothed target actor would do
next, and every `policy_delay` minibatches the actor from the first critic.
"""

from typing import Any

import torch
from torch import Tensor, nn

from rlox._nn.critics import DeterministicPolicy, make_target_network, polyak_update
from rlox._nn.custom import critic_parts, make_custom_actor_critic
from rlox._nn.optim import Adam
from rlox.algorithms._off_policy import EPS, OffPolicyLearner
from rlox.algorithms._replay import ReplayBatch
from rlox.configs import TD3Config
from rlox.features import FeaturesExtractor, NatureCNN, features_for

__all__ = ["TD3", "TD3Config"]


@torch.no_grad()
def td3_targets(
    actor_target: nn.Module, critic_target: nn.Module, batch: ReplayBatch, noise: Tensor
) -> Tensor:
    """What the critics shall say, (B,): where the time was over, something still comes after."""
    next_actions = (actor_target(batch.next_obs) + noise).clamp(-1, 1)
    next_values = critic_target(batch.next_obs, next_actions).amin(0)
    targets: Tensor = batch.rewards + batch.discounts * ~batch.terminated * next_values
    return targets


def critic_loss(critic: nn.Module, batch: ReplayBatch, targets: Tensor) -> Tensor:
    """The sum over critics of their mean squared errors."""
    errors = critic(batch.obs, batch.actions) - targets
    loss: Tensor = (errors**2).mean(1).sum()
    return loss


def actor_loss(policy: Any, batch: ReplayBatch) -> Tensor:
    """Actions shall be worth much to the first critic."""
    return -policy.critic(batch.obs, policy.actor(batch.obs))[0].mean()  # type: ignore[no-any-return]  # a Tensor


class TD3(OffPolicyLearner):
    """The learner: what the loop of `OffPolicyLearner` asks of TD3.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them, with Box actions.
        config: Settings; `num_envs` must be the environments'.
        seed: Decides everything random: weights, environments, actions, minibatches.
        policy: A torch module, or a function from the observation and the action space to one
            (called under our seed), with two parts that are modules: `actor`, from observations to
            actions (N, k) in [-1, 1], and `critic`, from observations and actions to (critics, N).
            None: `rlox._nn.critics.DeterministicPolicy`.
        features_extractor: For the built-in policy; one each for actor and critics.

    Raises:
        ValueError, TypeError: Spaces, policy and config that do not fit together.

    >>> from rlox import make_vec
    >>> config = TD3Config(learning_starts=8, net_arch=(16,))
    >>> learner = TD3(make_vec("Pendulum-v1", 1), config, seed=1)
    >>> metrics = [learner.iterate() for _ in range(10)][-1]
    >>> metrics["time/total_timesteps"], metrics["train/n_updates"]
    (10, 2)
    """

    algorithm = "td3"
    metric_names = ("actor_loss", "critic_loss")

    def make_policy(
        self, policy: Any, features_extractor: FeaturesExtractor | None, init: torch.Generator
    ) -> nn.Module:
        """Actor and critics."""
        config, (obs_space, action_space) = self.config, self.spaces
        if policy is not None:
            return make_custom_actor_critic(
                policy, obs_space, action_space, ("actor",), features_extractor
            )
        features = [features_for(obs_space, features_extractor, init) for _ in range(2)]
        net_arch = config.net_arch
        if net_arch is None:
            net_arch = (256, 256) if isinstance(features[0], NatureCNN) else (400, 300)
        return DeterministicPolicy(
            action_space, *features, net_arch=net_arch, activation=config.activation, init=init
        )

    def make_targets(self) -> dict[str, nn.Module]:
        """The targets of actor and critics."""
        self.actor_target = make_target_network(self.policy.actor)
        self.critic_target = make_target_network(self.policy.critic)
        return {"actor_target": self.actor_target, "critic_target": self.critic_target}

    def make_optimizers(self) -> list[Adam]:
        """One each for actor and critics."""
        actor, critic = critic_parts(self.policy)
        self.actor_optimizer = Adam(self.policy, eps=EPS, parts=actor)
        self.critic_optimizer = Adam(self.policy, eps=EPS, parts=critic)
        self.compile_losses(td3_targets, critic_loss, actor_loss)
        return [self.actor_optimizer, self.critic_optimizer]

    def sample_actions(self, obs: Any, mask: Tensor | None) -> Tensor:
        """The actor's actions: what explores is noise that is added to them."""
        return self.greedy_actions(obs, mask)

    def greedy_actions(self, obs: Any, mask: Tensor | None) -> Tensor:
        """The actor's actions."""
        return self.policy.actor(obs)  # type: ignore[no-any-return]  # a Tensor

    def update(self, batch: ReplayBatch, learning_rate: float) -> None:
        """A step of the critics, and now and then of the actor and the targets."""
        config, policy = self.config, self.policy
        targets_of, critic_loss_of, actor_loss_of = self.losses
        noise = torch.empty_like(batch.actions).normal_(generator=self.generator)
        noise.mul_(config.target_policy_noise)
        noise.clamp_(-config.target_noise_clip, config.target_noise_clip)
        targets = targets_of(self.actor_target, self.critic_target, batch, noise)
        loss = critic_loss_of(policy.critic, batch, targets)
        self.optimizer_step(self.critic_optimizer, loss, learning_rate, "critic_loss")

        if (self.updates + 1) % config.policy_delay == 0:
            loss = actor_loss_of(policy, batch)
            self.optimizer_step(self.actor_optimizer, loss, learning_rate, "actor_loss")
            polyak_update(self.actor_target, policy.actor, config.tau)
            polyak_update(self.critic_target, policy.critic, config.tau)
