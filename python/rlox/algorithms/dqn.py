"""Deep Q-networks (Mnih et al. 2015) in PyTorch: networks, exploration, targets, loss and update.

What stands around them is what other algorithms have, too. `rlox.configs.DQNConfig` has the
settings, `rlox.exploring.Explorer.collect` makes the steps and fills the buffer of
`rlox.replaying`, and `rlox.off_policy_learner.OffPolicyLearner.iterate` is the loop, which calls
`update` here.

An iteration makes `train_freq` steps of each environment, some of them at random, keeps them in a
replay buffer, and learns from minibatches of it what actions are worth. As options: the online
network chooses the next action (double), values and advantages apart (dueling), steps sampled by
how wrong they are (prioritized), and several steps at once (`n_steps`).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlox._nn.critics import make_target_network, polyak_update, q_network
from rlox._nn.custom import make_custom_q_network
from rlox._nn.optim import Adam
from rlox.algorithms._off_policy import EPS, OffPolicyLearner
from rlox.algorithms._replay import ReplayBatch
from rlox.configs import DQNConfig
from rlox.features import FeaturesExtractor, NatureCNN, features_for

__all__ = ["DQN", "DQNConfig"]


@torch.no_grad()
def dqn_targets(online: nn.Module, target: nn.Module, batch: ReplayBatch, double: bool) -> Tensor:
    """What the chosen actions shall be worth, (B,): a time limit is no end."""
    values = target(batch.next_obs)
    choices = online(batch.next_obs) if double else values
    if batch.next_masks is not None:
        choices = choices.masked_fill(~batch.next_masks, -torch.inf)
    next_values = values.gather(1, choices.argmax(1, keepdim=True)).squeeze(1)
    targets: Tensor = batch.rewards + batch.discounts * ~batch.terminated * next_values
    return targets


def dqn_loss(online: nn.Module, batch: ReplayBatch, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean Huber loss, weighted where priorities decided, and the TD errors (B,)."""
    values = online(batch.obs).gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    losses = F.smooth_l1_loss(values, targets, reduction="none")
    if batch.weights is not None:
        losses = batch.weights * losses
    return losses.mean(), (targets - values).detach()


class DQN(OffPolicyLearner):
    """The learner: what the loop of `OffPolicyLearner` asks of DQN.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them, with Discrete actions.
        config: Settings; `num_envs` must be the environments'.
        seed: Decides everything random: weights, environments, actions, minibatches.
        policy: A torch module from observations to the values of all actions, (N, n), or a function
            from the observation and the action space to one (called under our seed). None: an MLP,
            behind a `rlox.features.NatureCNN` for pictures.
        features_extractor: For the built-in network, see `rlox.policies.MlpPolicy`.

    Raises:
        ValueError, TypeError: Spaces, policy and config that do not fit together.

    >>> from rlox import make_vec
    >>> config = DQNConfig(learning_starts=8, net_arch=(16,))
    >>> learner = DQN(make_vec("CartPole-v1", 1), config, seed=1)
    >>> metrics = [learner.iterate() for _ in range(4)][-1]
    >>> metrics["time/total_timesteps"], metrics["train/n_updates"]
    (16, 2)
    """

    algorithm, policy_name = "dqn", "q_net"
    metric_names = ("loss",)

    def make_policy(
        self, policy: Any, features_extractor: FeaturesExtractor | None, init: torch.Generator
    ) -> nn.Module:
        """The network that learns."""
        config, (obs_space, action_space) = self.config, self.spaces
        if policy is not None:
            return make_custom_q_network(policy, obs_space, action_space, features_extractor)
        features = features_for(obs_space, features_extractor, init)
        net_arch = config.net_arch
        if net_arch is None:
            net_arch = () if isinstance(features, NatureCNN) else (64, 64)
        actions = int(action_space.n)  # type: ignore[attr-defined]  # Discrete
        return q_network(features, actions, net_arch, config.activation, config.dueling, init)

    def make_targets(self) -> dict[str, nn.Module]:
        """The network that follows."""
        self.target = make_target_network(self.policy)
        return {"q_net_target": self.target}

    def make_optimizers(self) -> list[Adam]:
        """The only one."""
        self.optimizer = Adam(self.modules, eps=EPS, parts=("q_net",))
        self.compile_losses(dqn_targets, dqn_loss)
        return [self.optimizer]

    def exploration_rate(self, progress: float) -> float:
        """The share of random actions when so much of the run is done."""
        config = self.config
        begin, end = config.exploration_initial_eps, config.exploration_final_eps
        if progress >= config.exploration_fraction:
            return float(end)
        return float(begin + progress / config.exploration_fraction * (end - begin))

    def rates(self, progress: float) -> dict[str, float]:
        """The share of random actions in the iteration's first step, as a metric."""
        return {"rollout/exploration_rate": self.exploration_rate(progress)}

    def sampling(self, progress: float) -> dict[str, float]:
        """How much importance weights make up for priorities: all in the end."""
        begin = self.config.priority_beta
        return {"beta": begin + progress * (1 - begin)} if self.config.prioritized else {}

    def greedy_actions(self, obs: Any, mask: Tensor | None) -> Tensor:
        """The actions that are worth most, of those that are allowed."""
        values: Tensor = self.policy(obs)
        if mask is not None:
            values = values.masked_fill(~mask, -torch.inf)
        return values.argmax(1)

    def sample_actions(self, obs: Any, mask: Tensor | None) -> Tensor:
        """Greedy actions, and now and then any that is allowed: ever more rarely, step by step."""
        values: Tensor = self.policy(obs)
        anyhow = torch.empty_like(values[:, :1]).uniform_(generator=self.generator)
        chance = torch.empty_like(values).uniform_(generator=self.generator)
        values = torch.where(anyhow < self.exploration_rate(self.progress), chance, values)
        if mask is not None:
            values = values.masked_fill(~mask, -torch.inf)
        return values.argmax(1)

    def on_step(self, before: int) -> None:
        """Moves the target network every so many steps of all environments together."""
        every = self.config.target_update_interval
        if before // every < self.timesteps // every:
            polyak_update(self.target, self.policy, self.config.tau)

    def update(self, batch: ReplayBatch, learning_rate: float) -> None:
        """One gradient step."""
        config, (targets_of, loss_of) = self.config, self.losses
        targets = targets_of(self.policy, self.target, batch, config.double)
        loss, errors = loss_of(self.policy, batch, targets)
        self.optimizer_step(self.optimizer, loss, learning_rate, "loss", config.max_grad_norm)
        if config.prioritized:
            self.replay.prioritize(errors)
