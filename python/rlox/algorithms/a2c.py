"""Synchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783) in PyTorch.

An iteration collects `n_steps` steps from each of `num_envs` environments, estimates advantages by
GAE (Schulman et al. 2016), and takes one gradient step on the rollout.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from rlox import learners, policies
from rlox._nn.optim import Adam, RMSprop, VectorOptimizer
from rlox._rlox import enter_phase as enter
from rlox.algorithms._on_policy import Batch, TorchLearner
from rlox.configs import A2CConfig, IMPALAConfig, scheduled


def a2c_loss(evaluate: policies.Evaluate, batch: Batch, config: A2CConfig) -> tuple[Tensor, Tensor]:
    """Compute the policy gradient loss with value loss and entropy bonus.

    Args:
        evaluate: Function from observations, actions and masks to log-probabilities, entropies and
            values, (B,) each.
        batch: B steps of a rollout.
        config: Loss coefficients and `normalize_advantage`.

    Returns:
        Total loss, a scalar with gradient; and a vector (4,) without gradient: the policy, value,
        entropy and total losses.
    """
    log_probs, entropy, values = evaluate(batch.obs, batch.actions, batch.masks)

    advantages = batch.advantages
    if config.normalize_advantage and len(advantages) > 1:
        std, mean = torch.std_mean(advantages)
        advantages = (advantages - mean) / (std + 1e-8)
    policy_loss = -(advantages * log_probs).mean()
    value_loss = F.mse_loss(values, batch.returns)
    entropy_loss = -entropy.mean()

    loss = policy_loss + config.vf_coef * value_loss
    if config.ent_coef != 0:  # skips the gradient of a term with the factor 0
        loss = loss + config.ent_coef * entropy_loss
    return loss, torch.stack((policy_loss, value_loss, entropy_loss, loss)).detach()


class A2C(TorchLearner[A2CConfig]):
    """A2C learner with environments, policy and optimizer.

    Args:
        env: Environments from `rlox.make_vec`.
        config: Settings; `num_envs` must be the number of environments.
        seed: Seed of initial weights, environments and actions, an int >= 0.
        policy: Torch module that implements `rlox.policies.ActorCritic`, or a function from the
            observation and the action space to such a module; None: the built-in MLP. The function
            is called with torch's global generator seeded from `seed`.
        features_extractor: Features extractor of the built-in policy, see
            `rlox.policies.MlpPolicy`.

    Raises:
        ArgumentError: Spaces, policy and config do not match.
        ArgumentTypeError: `env`, `config` or `policy` has another type.
        OutOfMemoryError: The networks or the rollouts do not fit into memory.

    >>> from rlox import make_vec
    >>> learner = A2C(make_vec("CartPole-v1", 8), A2CConfig(num_envs=8), seed=1)
    >>> metrics = learner.iterate()
    >>> metrics["time/total_timesteps"], sorted(metrics)[:2]
    (40, ['rollout/ep_len_mean', 'rollout/ep_rew_mean'])
    """

    algorithm = "a2c"

    def prepare(self) -> None:
        """Create the optimizer that `config.optimizer` names."""
        self.optimizer = make_optimizer(self.config, self.policy)
        self.loss = a2c_loss

    def update(self, progress: float) -> dict[str, float]:
        """Take one gradient step on the rollout; see `TorchLearner.update`."""
        config = self.config
        learning_rate = scheduled(config.learning_rate, config.lr_schedule, progress)
        enter("gradient_update")
        rows = self.rows.to(self.device)
        if self.buffer.n_transitions < len(rows.obs):  # drop rows in which an env only reset
            rows = rows.at(torch.from_numpy(self.buffer.valid).flatten())
        loss, parts = self.loss(self.evaluate, self.unpack_batch(rows), config)
        losses = self.take_step(loss, parts, learning_rate)
        arrays = (x.numpy(force=True) for x in (rows.values, rows.returns))
        return {
            **losses,
            "train/explained_variance": learners.explained_variance(*arrays),
            "train/learning_rate": learning_rate,
            "train/n_updates": self.updates,
            **policies.std_metrics(self.policy),
        }


def make_optimizer(config: A2CConfig | IMPALAConfig, module: torch.nn.Module) -> VectorOptimizer:
    """Return the optimizer that `config.optimizer` names, for all parameters of a module."""
    if config.optimizer == "adam":
        return Adam(module, eps=config.optimizer_eps)
    tf_like = config.optimizer == "rmsprop_tf"
    return RMSprop(module, eps=config.optimizer_eps, tf_like=tf_like)
