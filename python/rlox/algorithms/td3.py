"""Twin delayed DDPG (Fujimoto et al. 2018, arXiv:1802.09477) in PyTorch.

An iteration takes `train_freq` steps per environment with action noise, stores the transitions in a
replay buffer, and learns from minibatches. Each minibatch updates two critics. The actor and the
target networks are updated once per `policy_delay` minibatches. The loop is
`_off_policy.OffPolicyLearner.iterate`; this module defines the targets, the losses and the update.
"""

import torch
from torch import Tensor, nn

from rlox._nn.critics import DeterministicPolicy, make_target_network, polyak_update
from rlox._nn.custom import critic_parts, make_custom_actor_critic
from rlox._nn.optim import Adam
from rlox._nn.runtime import TensorObs
from rlox.algorithms._off_policy import OffPolicyLearner
from rlox.algorithms._replay import ReplayBatch
from rlox.configs import TD3Config
from rlox.features import FeaturesExtractor, features_for
from rlox.policies import PolicyLike

__all__ = ["TD3", "TD3Config"]


@torch.no_grad()
def td3_targets(actor_target: nn.Module, critic_target: nn.Module, batch: ReplayBatch, noise: Tensor) -> Tensor:
    """Compute the targets of the critics, (B,), from the minimum of the target critics.

    Targets bootstrap after a truncation, but not after a termination.

    Args:
        actor_target: Target actor, from observations to actions (B, k).
        critic_target: Target critics, from observations and actions to (critics, B).
        batch: B transitions.
        noise: Clipped noise of the next actions (target policy smoothing), (B, k).
    """
    next_actions = (actor_target(batch.next_obs) + noise).clamp(-1, 1)
    next_values = critic_target(batch.next_obs, next_actions).amin(0)
    targets: Tensor = batch.rewards + batch.discounts * ~batch.terminated * next_values
    return targets


def critic_loss(critic: nn.Module, batch: ReplayBatch, targets: Tensor) -> Tensor:
    """Compute the sum over critics of the mean squared errors."""
    errors = critic(batch.obs, batch.actions) - targets
    loss: Tensor = (errors**2).mean(1).sum()
    return loss


def actor_loss(policy: DeterministicPolicy, batch: ReplayBatch) -> Tensor:
    """Compute the actor loss, the negative mean value of the first critic."""
    return -policy.critic(batch.obs, policy.actor(batch.obs))[0].mean()  # type: ignore[no-any-return]  # a Tensor


class TD3(OffPolicyLearner[TD3Config]):
    """TD3 learner with environments, actor, critics, replay buffer and optimizers.

    Args:
        env: Environments from `rlox.make_vec` with Box actions.
        config: Settings; `num_envs` must be the number of environments.
        seed: Seed of weights, environments, actions and minibatches, an int >= 0.
        policy: Torch module with the submodules `actor` and `critic`, or a function from the
            observation and the action space to such a module. The function is called with torch's
            global generator seeded from `seed`. `actor` maps observations to actions (N, k) in
            [-1, 1]. `critic` maps observations and actions to values (critics, N). None:
            `rlox._nn.critics.DeterministicPolicy`.
        features_extractor: Features extractor of the built-in policy. The actor and the critics
            have separate copies.

    Raises:
        ArgumentError: Spaces, policy and config do not match.
        ArgumentTypeError: `env`, `config` or `policy` has another type.
        OutOfMemoryError: The networks or the replay buffer do not fit into memory.

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
        self, policy: PolicyLike, features_extractor: FeaturesExtractor | None, init: torch.Generator
    ) -> nn.Module:
        """Return actor and critics."""
        config, (obs_space, action_space) = self.config, self.spaces
        if policy is not None:
            return make_custom_actor_critic(policy, obs_space, action_space, ("actor",), features_extractor)
        features = [features_for(obs_space, features_extractor, init) for _ in range(2)]
        net_arch = self.net_arch(features[0])
        return DeterministicPolicy(action_space, *features, net_arch=net_arch, activation=config.activation, init=init)

    def make_targets(self) -> dict[str, nn.Module]:
        """Create the target actor and the target critics."""
        self.actor_target = make_target_network(self.policy.actor)
        self.critic_target = make_target_network(self.policy.critic)
        return {"actor_target": self.actor_target, "critic_target": self.critic_target}

    def make_optimizers(self) -> list[Adam]:
        """Create one optimizer for the actor and one for the critics."""
        actor, critic = critic_parts(self.policy)
        self.actor_optimizer = Adam(self.policy, eps=self.spec.adam_eps, parts=actor)
        self.critic_optimizer = Adam(self.policy, eps=self.spec.adam_eps, parts=critic)
        self.compile_losses(td3_targets, critic_loss, actor_loss)
        return [self.actor_optimizer, self.critic_optimizer]

    def sample_actions(self, obs: TensorObs, mask: Tensor | None) -> Tensor:
        """Return the actor's actions; exploration adds `action_noise` afterwards."""
        return self.greedy_actions(obs, mask)

    def greedy_actions(self, obs: TensorObs, mask: Tensor | None) -> Tensor:
        """Return the actor's actions, (N, k) in [-1, 1]."""
        return self.policy.actor(obs)  # type: ignore[no-any-return]  # a Tensor

    def update(self, batch: ReplayBatch, learning_rate: float) -> None:
        """Update the critics; once per `policy_delay` minibatches, also the actor and the targets."""
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
