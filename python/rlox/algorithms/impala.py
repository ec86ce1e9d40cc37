"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561) in PyTorch.

Actors collect `n_steps` steps from each of their environments with a copy of the weights, in native
threads, processes or remote workers. The learner takes one gradient step per rollout, and V-trace
corrects for the staleness of the actors' policy. With `deterministic=True`, `max_staleness=0` and
`num_actors=1`, one thread alternates between collecting and learning; this mode supports every
environment and policy.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rlox import learners, policies
from rlox._nn import runtime
from rlox._rlox import compute_vtrace
from rlox._rlox import enter_phase as enter
from rlox.algorithms._on_policy import TorchLearner
from rlox.algorithms.a2c import make_optimizer
from rlox.configs import IMPALAConfig, scheduled


def impala_loss(
    log_probs: Tensor, entropy: Tensor, values: Tensor, vs: Tensor, advantages: Tensor, config: IMPALAConfig
) -> tuple[Tensor, Tensor]:
    """Compute the policy gradient loss with V-trace advantages, value loss and entropy bonus.

    Args:
        log_probs: Log-probabilities of the actions by the current policy, (B,).
        entropy: Entropies of the current policy, (B,).
        values: Values of the current policy, (B,).
        vs: V-trace targets (equation 1 of the paper), constants, (B,).
        advantages: V-trace policy gradient advantages (section 4.2), constants, (B,).
        config: Loss coefficients.

    Returns:
        Total loss, a scalar with gradient; and a vector (4,) without gradient: the policy, value,
        entropy and total losses.
    """
    policy_loss = -(advantages * log_probs).mean()
    value_loss = F.mse_loss(values, vs)
    entropy_loss = -entropy.mean()

    loss = policy_loss + config.vf_coef * value_loss
    if config.ent_coef != 0:  # skips the gradient of a term with the factor 0
        loss = loss + config.ent_coef * entropy_loss
    return loss, torch.stack((policy_loss, value_loss, entropy_loss, loss)).detach()


class IMPALA(TorchLearner[IMPALAConfig]):
    """IMPALA learner with actors, policy and optimizer.

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
        ArgumentError: Spaces, policy and config do not match, or the actors cannot run as
            `config.actors` asks.
        ArgumentTypeError: `env`, `config` or `policy` has another type.
        OutOfMemoryError: The networks or the rollouts do not fit into memory.

    >>> from rlox import make_vec
    >>> learner = IMPALA(make_vec("CartPole-v1", 8), IMPALAConfig(), seed=1)
    >>> metrics = learner.iterate()
    >>> metrics["time/total_timesteps"], sorted(metrics)[:2]
    (40, ['rollout/ep_len_mean', 'rollout/ep_rew_mean'])
    """

    algorithm = "impala"

    def prepare(self) -> None:
        """Create the optimizer that `config.optimizer` names."""
        self.optimizer = make_optimizer(self.config, self.policy)

    def finish_rollout(self, first_step: int) -> None:
        """Do nothing, because `update` estimates the advantages by V-trace."""

    def collect_for_remote(self, seed: int) -> bool:
        """Fill the buffer with a rollout; see `TorchLearner.collect_for_remote`."""
        is_full = super().collect_for_remote(seed)
        if is_full:
            # Only a finished buffer can be sent. The learner ignores the advantages that `finish` computes.
            zeros = np.zeros(self.config.num_envs), np.zeros(len(self.buffer.final_index))
            self.buffer.finish(zeros[0], 0.0, 0.0, zeros[1])
        return is_full

    @torch.no_grad()
    def correct(self, log_probs: Tensor, values: Tensor) -> list[Tensor]:
        """Return V-trace targets and advantages for the current policy, (T * N,) each."""
        buffer, config, device = self.buffer, self.config, log_probs.device
        shape = (buffer.n_steps, buffer.num_envs)
        with runtime.evaluating(self.policy):
            # A truncated episode bootstraps from the value of its last state.
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
        """Take one gradient step on the rollout; see `TorchLearner.update`."""
        config, buffer = self.config, self.buffer
        learning_rate = scheduled(config.learning_rate, config.lr_schedule, progress)
        enter("gradient_update")
        rows = self.unpack_batch(self.rows.to(self.device))
        log_probs, entropy, values = self.evaluate(rows.obs, rows.actions, rows.masks)
        vs, advantages = self.correct(log_probs, values)
        log_rhos = log_probs.detach() - rows.log_probs
        enter("gradient_update")
        tensors = log_probs, entropy, values, vs, advantages
        if buffer.n_transitions < len(log_probs):  # drop rows in which an env only reset
            valid = torch.from_numpy(buffer.valid).flatten().to(self.device)
            log_probs, entropy, values, vs, advantages = (x[valid] for x in tensors)
            log_rhos = log_rhos[valid]
        loss, parts = impala_loss(log_probs, entropy, values, vs, advantages, config)
        losses = self.take_step(loss, parts, learning_rate)
        rhos, arrays = log_rhos.exp(), (x.numpy(force=True) for x in (values, vs))
        return {
            **losses,
            "train/approx_kl": (rhos - 1 - log_rhos).mean().item(),
            "train/clip_fraction": (rhos > config.rho_bar).float().mean().item(),
            "train/explained_variance": learners.explained_variance(*arrays),
            "train/learning_rate": learning_rate,
            "train/n_updates": self.updates,
            **policies.std_metrics(self.policy),
        }
