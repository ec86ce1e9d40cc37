"""REINFORCE (Williams 1992, doi:10.1007/BF00992696) as an algorithm that is added to rlox."""

from dataclasses import dataclass

from rlox._nn.optim import Adam
from rlox._registry import AlgorithmSpec
from rlox.algorithms._on_policy import TorchLearner
from rlox.configs import A2CConfig


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig(A2CConfig):
    """Settings of REINFORCE."""

    learning_rate: float = 3e-3


class Reinforce(TorchLearner[ReinforceConfig]):
    """REINFORCE learner: gradient ascent on returns, without a baseline."""

    algorithm = "reinforce"

    def prepare(self):
        self.optimizer = Adam(self.policy)

    def update(self, progress):
        batch = self.unpack_batch(self.rows)
        log_probs, _, _ = self.evaluate(batch.obs, batch.actions, batch.masks)
        returns = batch.advantages + batch.values
        loss = -(log_probs * (returns - returns.mean())).mean()
        self.optimizer.step(self.optimizer.gradient(loss), self.config.learning_rate)
        self.updates += 1
        return {"train/loss": float(loss.detach()), "train/n_updates": self.updates}


SPEC = AlgorithmSpec(name="reinforce", config=ReinforceConfig, torch_learner="support.reinforce:Reinforce")
