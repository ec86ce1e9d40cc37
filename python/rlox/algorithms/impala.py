"""IMPALA (Espeholt et al. 2018) in PyTorch, from rollouts of older policies to the loss.

Actors collect `n_steps` steps from each of their environments with a copy of the policy's weights,
in threads without Python or in processes, while the learner takes one gradient step on each of
their rollouts.
V-trace corrects for the updates that came between. `deterministic=True` with `max_staleness=0` lets collector
and learner take turns, for any environment and any policy.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rlox import _finite, learners, policies
from rlox._nn import runtime
from rlox._nn.optim import clip_norm_
from rlox._rlox import compute_vtrace
from rlox._rlox import enter_phase as enter
from rlox.algorithms._on_policy import TorchLearner
from rlox.algorithms.a2c import make_optimizer
from rlox.configs import IMPALAConfig, scheduled
from rlox.envs._rollout_env import RolloutEnv
from rlox.features import FeaturesExtractor


def impala_loss(
    log_probs: Tensor,
    entropy: Tensor,
    values: Tensor,
    vs: Tensor,
    advantages: Tensor,
    config: IMPALAConfig,
) -> tuple[Tensor, Tensor]:
    """The policy gradient's loss with V-trace's advantages, the value loss, the entropy bonus.

    Args:
        log_probs, entropy, values: Of the steps, by the policy as it is, (B,).
        vs, advantages: V-trace's targets and advantages (the paper's section 4.2), constants, (B,).
        config: The weights.

    Returns:
        The loss (); policy, value, entropy and whole loss (4,). Only the first has a gradient.
    """
    policy_loss = -(advantages * log_probs).mean()
    value_loss = F.mse_loss(values, vs)
    entropy_loss = -entropy.mean()

    loss = policy_loss + config.vf_coef * value_loss
    if config.ent_coef != 0:  # else its gradient would be computed only to be multiplied by 0
        loss = loss + config.ent_coef * entropy_loss
    return loss, torch.stack((policy_loss, value_loss, entropy_loss, loss)).detach()


class IMPALA(TorchLearner):
    """The learner: actors, policy, optimiser, and the loop over rollouts.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.
        config: Settings; `num_envs` must be the environments'.
        seed: Decides everything random: initial weights, environments, actions.
        policy: A torch module that does what `rlox.policies.ActorCritic` says, or a function from
            the observation and action space to one (called under our seed); None: the built-in MLP.
        features_extractor: For the built-in policy, see `rlox.policies.MlpPolicy`.

    Raises:
        ValueError, TypeError: Spaces, policy and config that do not fit together.

    >>> from rlox import make_vec
    >>> learner = IMPALA(make_vec("CartPole-v1", 8), IMPALAConfig(), seed=1)
    >>> metrics = learner.iterate()
    >>> metrics["time/total_timesteps"], sorted(metrics)[:2]
    (40, ['rollout/ep_len_mean', 'rollout/ep_rew_mean'])
    """

    algorithm = "impala"

    def __init__(
        self,
        env: RolloutEnv,
        config: IMPALAConfig,
        seed: int,
        policy: policies.PolicyLike = None,
        features_extractor: FeaturesExtractor | None = None,
    ) -> None:
        super().__init__(env, config, seed, policy, features_extractor)
        with runtime.limit_threads(1):
            self.optimizer = make_optimizer(config, self.policy)
        self._make_storage()

    def finish_rollout(self, first_step: int) -> None:
        """Do nothing: V-trace estimates advantages with the policy of the update."""

    def collect_for_remote(self, seed: int) -> bool:
        """Fills the buffer, for a learner elsewhere; see `OnPolicyLearner`."""
        is_full = super().collect_for_remote(seed)
        if is_full:  # who learns from it estimates advantages, but only whole rollouts are sent
            zeros = np.zeros(self.config.num_envs), np.zeros(len(self.buffer.final_index))
            self.buffer.finish(zeros[0], 0.0, 0.0, zeros[1])
        return is_full

    @torch.no_grad()
    def correct(self, log_probs: Tensor, values: Tensor) -> list[Tensor]:
        """V-trace's targets and advantages of all rows by the policy as it is, (T * N,) each."""
        buffer, config, device = self.buffer, self.config, log_probs.device
        shape = (buffer.n_steps, buffer.num_envs)
        with runtime.evaluating(self.policy):
            # Where an episode was cut, what would have followed is worth its last state's value.
            cut, final_values = buffer.final_index, np.zeros(shape, np.float32)
            if len(cut):
                final_values.flat[cut] = self.values(buffer.final_obs)
            last_values = self.values(buffer.last_obs)
        now = log_probs.numpy(force=True).reshape(shape)
        enter("gae_compute")
        targets = compute_vtrace(
            now - buffer.log_probs,
            buffer.rewards,
            values.numpy(force=True).reshape(shape),
            None,
            last_values,
            config.gamma,
            config.rho_bar,
            config.c_bar,
            lam=config.vtrace_lambda,
            pg_rho_bar=config.rho_bar,
            terminated=buffer.terminated,
            truncated=buffer.truncated,
            final_values=final_values,
        )
        return [torch.from_numpy(x).flatten().to(device) for x in targets]

    def update(self, progress: float) -> dict[str, float]:
        """Make one gradient step on the rollout."""
        config, policy, buffer = self.config, self.policy, self.buffer
        learning_rate = scheduled(config.learning_rate, config.lr_schedule, progress)
        enter("gradient_update")
        rows = self.unpack_batch(self.rows.to(self.device))
        log_probs, entropy, values = self.evaluate(rows.obs, rows.actions, rows.masks)
        vs, advantages = self.correct(log_probs, values)
        log_rhos = log_probs.detach() - rows.log_probs
        enter("gradient_update")
        tensors = log_probs, entropy, values, vs, advantages
        if buffer.n_transitions < len(log_probs):  # in the others, environments only reset
            valid = torch.from_numpy(buffer.valid).flatten().to(self.device)
            log_probs, entropy, values, vs, advantages = (x[valid] for x in tensors)
            log_rhos = log_rhos[valid]
        loss, parts = impala_loss(log_probs, entropy, values, vs, advantages, config)
        gradient = self.optimizer.gradient(loss)
        norm = clip_norm_(gradient, config.max_grad_norm)
        names = ("policy_loss", "value_loss", "entropy_loss", "loss")
        losses = dict(zip(names, parts.tolist(), strict=True))
        _finite.check_finite({**losses, "gradient": norm.item()}, self.timesteps)
        self.optimizer.step(gradient, learning_rate)
        self.updates += 1
        rhos, arrays = log_rhos.exp(), (x.numpy(force=True) for x in (values, vs))
        metrics = {f"train/{name}": value for name, value in losses.items()} | {
            "train/approx_kl": (rhos - 1 - log_rhos).mean().item(),
            "train/clip_fraction": (rhos > config.rho_bar).float().mean().item(),
            "train/explained_variance": learners.explained_variance(*arrays),
            "train/learning_rate": learning_rate,
            "train/n_updates": self.updates,
        }
        if hasattr(policy, "log_std"):
            metrics["train/std"] = policy.log_std.detach().exp().mean().item()
        return metrics
