"""Deep Q-networks (Mnih et al. 2015, Nature 518) in PyTorch.

An iteration takes `train_freq` epsilon-greedy steps per environment, stores the transitions in a
replay buffer, and learns from minibatches. The loop is `_off_policy.OffPolicyLearner.iterate`; this
module defines the networks, the exploration, the targets, the loss and the update.

Options: double Q-learning (van Hasselt et al. 2016), dueling networks (Wang et al. 2016),
prioritized replay (Schaul et al. 2016), and multi-step returns (`n_steps`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlox._nn.critics import DuelingNetwork, FeaturedMlp, make_target_network, polyak_update
from rlox._nn.custom import make_custom_q_network
from rlox._nn.optim import Adam
from rlox._nn.runtime import TensorObs
from rlox.algorithms._off_policy import OffPolicyLearner
from rlox.algorithms._replay import ReplayBatch
from rlox.configs import DQNConfig
from rlox.features import FeaturesExtractor, features_for
from rlox.policies import PolicyLike

__all__ = ["DQN", "DQNConfig"]


@torch.no_grad()
def dqn_targets(online: nn.Module, target: nn.Module, batch: ReplayBatch, double: bool) -> Tensor:
    """Compute the targets of the action values, (B,).

    Targets bootstrap after a truncation, but not after a termination.

    Args:
        online: Trained Q-network; with `double`, it chooses the next actions.
        target: Target network, which evaluates the next actions.
        batch: B transitions.
        double: Use double Q-learning.
    """
    values = target(batch.next_obs)
    choices = online(batch.next_obs) if double else values
    if batch.next_masks is not None:
        choices = choices.masked_fill(~batch.next_masks, -torch.inf)
    next_values = values.gather(1, choices.argmax(1, keepdim=True)).squeeze(1)
    targets: Tensor = batch.rewards + batch.discounts * ~batch.terminated * next_values
    return targets


def dqn_loss(online: nn.Module, batch: ReplayBatch, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean Huber loss, with importance weights if any, and the TD errors (B,)."""
    values = online(batch.obs).gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    losses = F.smooth_l1_loss(values, targets, reduction="none")
    if batch.weights is not None:
        losses = batch.weights * losses
    return losses.mean(), (targets - values).detach()


class DQN(OffPolicyLearner[DQNConfig]):
    """DQN learner with environments, Q-networks, replay buffer and optimizer.

    Args:
        env: Environments from `rlox.make_vec` with Discrete actions.
        config: Settings; `num_envs` must be the number of environments.
        seed: Seed of weights, environments, actions and minibatches, an int >= 0.
        policy: Torch module from observations to the values of all actions, (N, n) float32, or a
            function from the observation and the action space to such a module. The function is
            called with torch's global generator seeded from `seed`. None: an MLP; for images, a
            `rlox.features.NatureCNN` and an MLP.
        features_extractor: Features extractor of the built-in network, see
            `rlox.policies.MlpPolicy`.

    Raises:
        ArgumentError: Spaces, policy and config do not match.
        ArgumentTypeError: `env`, `config` or `policy` has another type.
        OutOfMemoryError: The networks or the replay buffer do not fit into memory.

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
        self, policy: PolicyLike, features_extractor: FeaturesExtractor | None, init: torch.Generator
    ) -> nn.Module:
        """Return the Q-network to train."""
        config, (obs_space, action_space) = self.config, self.spaces
        if policy is not None:
            return make_custom_q_network(policy, obs_space, action_space, features_extractor)
        features = features_for(obs_space, features_extractor, init)
        n = int(action_space.n)  # type: ignore[attr-defined]  # Discrete
        network, outputs = (DuelingNetwork, n + 1) if config.dueling else (FeaturedMlp, n)
        return network(features, outputs, self.net_arch(features), config.activation, init)

    def make_targets(self) -> dict[str, nn.Module]:
        """Create the target network."""
        self.target = make_target_network(self.policy)
        return {"q_net_target": self.target}

    def make_optimizers(self) -> list[Adam]:
        """Create the optimizer of the Q-network."""
        self.optimizer = Adam(self.modules, eps=self.spec.adam_eps, parts=("q_net",))
        self.compile_losses(dqn_targets, dqn_loss)
        return [self.optimizer]

    def exploration_rate(self, progress: float) -> float:
        """Return the probability of a random action, which decreases linearly with `progress`."""
        config = self.config
        begin, end = config.exploration_initial_eps, config.exploration_final_eps
        if progress >= config.exploration_fraction:
            return float(end)
        return float(begin + progress / config.exploration_fraction * (end - begin))

    def rates(self, progress: float) -> dict[str, float]:
        """Return the exploration rate at the start of the iteration, as a metric."""
        return {"rollout/exploration_rate": self.exploration_rate(progress)}

    def sampling(self, progress: float) -> dict[str, float]:
        """Return the exponent of the importance weights, which rises linearly with `progress` to 1."""
        begin = self.config.priority_beta
        return {"beta": begin + progress * (1 - begin)} if self.config.prioritized else {}

    def greedy_actions(self, obs: TensorObs, mask: Tensor | None) -> Tensor:
        """Return the allowed actions with the highest values, (N,)."""
        values: Tensor = self.policy(obs)
        if mask is not None:
            values = values.masked_fill(~mask, -torch.inf)
        return values.argmax(1)

    def sample_actions(self, obs: TensorObs, mask: Tensor | None) -> Tensor:
        """Sample epsilon-greedy actions among the allowed ones, (N,)."""
        values: Tensor = self.policy(obs)
        draws = torch.empty_like(values[:, :1]).uniform_(generator=self.generator)
        random_values = torch.empty_like(values).uniform_(generator=self.generator)
        epsilon = self.exploration_rate(self.progress)
        values = torch.where(draws < epsilon, random_values, values)
        if mask is not None:
            values = values.masked_fill(~mask, -torch.inf)
        return values.argmax(1)

    def on_step(self, before: int) -> None:
        """Update the target network when `timesteps` passes a multiple of the update interval."""
        every = self.config.target_update_interval
        if before // every < self.timesteps // every:
            polyak_update(self.target, self.policy, self.config.tau)

    def update(self, batch: ReplayBatch, learning_rate: float) -> None:
        """Take one gradient step on a minibatch; see `OffPolicyLearner.update`."""
        config, (targets_of, loss_of) = self.config, self.losses
        targets = targets_of(self.policy, self.target, batch, config.double)
        loss, errors = loss_of(self.policy, batch, targets)
        self.optimizer_step(self.optimizer, loss, learning_rate, "loss", config.max_grad_norm)
        if config.prioritized:
            self.replay.prioritize(errors)
