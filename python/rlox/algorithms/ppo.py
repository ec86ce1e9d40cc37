"""Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347) in PyTorch.

An iteration collects `n_steps` steps from each of `num_envs` environments, estimates advantages by
GAE (Schulman et al. 2016), and learns from the rollout in `n_epochs` passes of minibatches.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlox import _finite, learners, policies
from rlox._nn.optim import Adam, clip_norm_
from rlox._rlox import enter_phase as enter
from rlox.algorithms._on_policy import Batch, TorchLearner
from rlox.configs import PPOConfig, scheduled


def ppo_loss(
    evaluate: policies.Evaluate, batch: Batch, config: PPOConfig, clip_coef: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the clipped surrogate loss (equation 7 of the paper) with value loss and entropy.

    Args:
        evaluate: Function from observations, actions and masks to log-probabilities, entropies and
            values, (B,) each.
        batch: B steps of a rollout.
        config: Loss coefficients, `clip_coef_vf` and `normalize_advantage`.
        clip_coef: Clip range of the probability ratio, 1 +/- clip_coef.

    Returns:
        Total loss, a scalar with gradient; log-ratios of new to old probability, (B,); and the
        policy, value, entropy and total losses, (4,). Only the total loss has a gradient.
    """
    log_probs, entropy, values = evaluate(batch.obs, batch.actions, batch.masks)
    log_ratio = log_probs - batch.log_probs
    ratio = log_ratio.exp()

    advantages = batch.advantages
    if config.normalize_advantage and len(advantages) > 1:
        std, mean = torch.std_mean(advantages)
        advantages = (advantages - mean) / (std + 1e-8)
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()

    if config.clip_coef_vf is not None:
        moved = (values - batch.values).clamp(-config.clip_coef_vf, config.clip_coef_vf)
        values = batch.values + moved
    value_loss = F.mse_loss(values, batch.returns)
    entropy_loss = -entropy.mean()

    loss = policy_loss + config.vf_coef * value_loss
    if config.ent_coef != 0:  # skips the gradient of a term with the factor 0
        loss = loss + config.ent_coef * entropy_loss
    parts = torch.stack((policy_loss, value_loss, entropy_loss, loss))
    return loss, log_ratio.detach(), parts.detach()


class PPO(TorchLearner[PPOConfig]):
    """PPO learner with environments, policy and optimizer.

    Args:
        env: Environments from `rlox.make_vec`.
        config: Settings; `num_envs` must be the number of environments.
        seed: Seed of initial weights, environments, actions and minibatches, an int >= 0.
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
    >>> learner = PPO(make_vec("CartPole-v1", 8), PPOConfig(num_envs=8, n_steps=32), seed=1)
    >>> metrics = learner.iterate()
    >>> metrics["time/total_timesteps"], sorted(metrics)[:2]
    (256, ['rollout/ep_len_mean', 'rollout/ep_rew_mean'])
    """

    algorithm = "ppo"

    def prepare(self) -> None:
        """Create the optimizer, and compile the loss if `config.compile`."""
        self.optimizer = Adam(self.policy)
        self.loss = torch.compile(ppo_loss) if self.config.compile else ppo_loss

    def batches(self, rows: Batch) -> Iterator[Batch]:
        """Iterate over all steps in minibatches, in a new random order."""
        total = len(rows.obs)
        size = self.config.batch_size or total  # for mypy: the config has replaced None
        if total <= size:
            yield self.unpack_batch(rows)  # the loss of a single batch does not depend on the order
            return
        permutation = torch.randperm(total, generator=self.generator, device=self.device)
        for index in permutation.split(size):
            enter("buffer")
            batch = self.unpack_batch(rows.at(index))
            enter("gradient_update")
            yield batch

    def update(self, progress: float) -> dict[str, float]:
        """Learn for `n_epochs` epochs, or until `approx_kl` exceeds 1.5 * `target_kl`."""
        config, optimizer = self.config, self.optimizer
        learning_rate = scheduled(config.learning_rate, config.lr_schedule, progress)
        clip_coef = scheduled(config.clip_coef, config.clip_schedule, progress)
        enter("gradient_update")
        rows = self.rows.to(self.device)
        if self.buffer.n_transitions < len(rows.obs):  # drop rows in which an env only reset
            rows = rows.at(torch.from_numpy(self.buffer.valid).flatten())
        parts, log_ratios = list[Tensor](), list[Tensor]()
        norms = torch.zeros((), device=self.device)
        # torch.compile specialises on the value of a float, but not of a tensor.
        clip: Any = torch.tensor(clip_coef, dtype=torch.float64) if config.compile else clip_coef
        stop, epoch_start = False, 0
        for _ in range(config.n_epochs):
            epoch_start = len(log_ratios)
            for batch in self.batches(rows):
                if stop := self.stop_requested:
                    break
                loss, log_ratio, part = self.loss(self.evaluate, batch, config, clip)
                parts.append(part)
                log_ratios.append(log_ratio)
                if config.target_kl is not None:
                    stop = self.divergence(log_ratio) > 1.5 * config.target_kl
                if stop:
                    break
                gradient = optimizer.gradient(loss)
                norms += clip_norm_(gradient, config.max_grad_norm)
                is_non_finite = ~norms.isfinite()
                if self.device.type != "cpu":
                    # Reading the flag here would wait for the device; `metrics` reads it once.
                    gradient.masked_fill_(is_non_finite, 0.0)
                elif stop := bool(is_non_finite):
                    break
                optimizer.step(gradient, learning_rate)
            self.updates += len(log_ratios) > epoch_start
            if stop:
                break
        if not parts:
            return {}
        last = torch.cat(log_ratios[epoch_start:] or log_ratios[-1:])  # of the last epoch
        return {
            **self.metrics(rows, torch.stack(parts), torch.cat(log_ratios), norms, clip_coef),
            "train/approx_kl": approx_kl(last).item(),
            "train/learning_rate": learning_rate,
            "train/clip_range": clip_coef,
            **({} if config.clip_coef_vf is None else {"train/clip_range_vf": config.clip_coef_vf}),
            "train/n_updates": self.updates,
        }

    def divergence(self, log_ratio: Tensor) -> float:
        """Return the `approx_kl` of a minibatch, for the comparison with `target_kl`."""
        return approx_kl(log_ratio).item()

    def metrics(
        self, rows: Batch, parts: Tensor, log_ratio: Tensor, norms: Tensor, clip_coef: float
    ) -> dict[str, float]:
        """Return metrics from the losses (M, 4) of M minibatches and the sum of gradient norms.

        `clip_fraction` is a mean over steps. Stable-Baselines3 averages the means of minibatches,
        so its result differs if the last minibatch is smaller.

        Raises:
            NonFiniteError: A loss or a gradient is NaN or infinite.
        """
        # Reading a number waits for the GPU, so metrics are read once per iteration.
        names = ("policy_gradient_loss", "value_loss", "entropy_loss", "loss")
        means = dict(zip(names, parts.mean(0).tolist(), strict=True))
        _finite.check_finite({**means, "gradient": norms.item()}, self.timesteps)
        arrays = (x.numpy(force=True) for x in (rows.values, rows.returns))
        metrics = {f"train/{name}": mean for name, mean in means.items()} | {
            "train/loss": parts[-1, -1].item(),  # of the last minibatch, as in Stable-Baselines3
            "train/clip_fraction": ((log_ratio.exp() - 1).abs() > clip_coef).float().mean().item(),
            "train/explained_variance": learners.explained_variance(*arrays),
        }
        return metrics | policies.std_metrics(self.policy)


def approx_kl(log_ratio: Tensor) -> Tensor:
    """Estimate KL(old || new) from log-ratios by the k3 estimator (Schulman 2020)."""
    return (log_ratio.exp() - 1 - log_ratio).mean()
