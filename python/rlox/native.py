"""PPO, A2C and IMPALA on rlox's own networks, in Rust: they need no tensor library."""

import numpy as np

from rlox.configs import EPS
from rlox.native_learner import NativeLearner

__all__ = ["NativeA2C", "NativeIMPALA", "NativePPO"]


def _single(setting: float) -> float:
    """A setting as the networks hold it: schedules begin from there, in Python as in Rust."""
    return float(np.float32(setting))


def _spread(said: dict[str, float]) -> dict[str, float]:
    """The mean standard deviation of Box actions, if they are."""
    return {"train/std": said["std"]} if "std" in said else {}


class NativePPO(NativeLearner):
    """Proximal policy optimization without torch; the settings are `rlox.configs.PPOConfig`'s.

    >>> from rlox import make_vec
    >>> from rlox.configs import PPOConfig
    >>> learner = NativePPO(make_vec("CartPole-v1", 8), PPOConfig(num_envs=8, n_steps=32), seed=1)
    >>> learner.iterate()["time/total_timesteps"]
    256
    """

    algorithm = "ppo"

    def update(self, left: float) -> dict[str, float]:
        """Epochs of minibatches over the rollout; see `NativeLearner.update`."""
        config, falling = self.config, {"constant": 1.0, "linear": left}
        learning_rate = _single(config.learning_rate) * falling[config.lr_schedule]
        clip_coef = _single(config.clip_coef) * falling[config.clip_schedule]
        names = ("batch_size", "n_epochs", "clip_coef_vf", "ent_coef", "vf_coef", "target_kl")
        rest = ("normalize_advantage", "max_grad_norm")
        given = {name: getattr(config, name) for name in (*names, *rest)}
        given |= {"learning_rate": learning_rate, "clip_coef": clip_coef}
        said = self.learn(self.policy.ppo, given | {"optimizer": "adam", "optimizer_eps": EPS})
        if not said["updates"]:
            return {}
        self.updates += int(said["updates"])
        return {
            "train/policy_gradient_loss": said["policy_loss"],
            "train/value_loss": said["value_loss"],
            "train/entropy_loss": said["entropy_loss"],
            "train/loss": said["loss"],
            "train/clip_fraction": said["clip_fraction"],
            "train/explained_variance": said["explained_variance"],
            **_spread(said),
            "train/approx_kl": said["approx_kl"],
            "train/learning_rate": config.learning_rate * falling[config.lr_schedule],
            "train/clip_range": config.clip_coef * falling[config.clip_schedule],
            **({} if config.clip_coef_vf is None else {"train/clip_range_vf": config.clip_coef_vf}),
            "train/n_updates": self.updates,
        }


class NativeA2C(NativeLearner):
    """Advantage actor-critic without torch; the settings are `rlox.configs.A2CConfig`'s.

    >>> from rlox import make_vec
    >>> from rlox.configs import A2CConfig
    >>> learner = NativeA2C(make_vec("CartPole-v1", 8), A2CConfig(num_envs=8), seed=1)
    >>> learner.iterate()["time/total_timesteps"]
    40
    """

    algorithm = "a2c"

    def update(self, left: float) -> dict[str, float]:
        """One gradient step on the rollout; see `NativeLearner.update`."""
        config, falling = self.config, {"constant": 1.0, "linear": left}
        learning_rate = _single(config.learning_rate) * falling[config.lr_schedule]
        names = ("optimizer", "optimizer_eps", "normalize_advantage", "ent_coef", "vf_coef")
        given = {name: getattr(config, name) for name in (*names, "max_grad_norm")}
        said = self.learn(self.policy.a2c, given | {"learning_rate": learning_rate})
        if not said["updates"]:
            return {}
        self.updates += 1
        return {
            "train/policy_loss": said["policy_loss"],
            "train/value_loss": said["value_loss"],
            "train/entropy_loss": said["entropy_loss"],
            "train/loss": said["loss"],
            "train/explained_variance": said["explained_variance"],
            "train/learning_rate": config.learning_rate * falling[config.lr_schedule],
            "train/n_updates": self.updates,
            **_spread(said),
        }


class NativeIMPALA(NativeLearner):
    """IMPALA without torch; the settings are `rlox.configs.IMPALAConfig`'s.

    Actors are threads with native environments and a copy of the policy each, which never have the
    GIL. `close` ends them, as does the end of the learner.

    >>> from rlox import make_vec
    >>> from rlox.configs import IMPALAConfig
    >>> learner = NativeIMPALA(make_vec("CartPole-v1", 8), IMPALAConfig(), seed=1)
    >>> learner.iterate()["time/total_timesteps"]
    40
    """

    algorithm = "impala"

    def update(self, left: float) -> dict[str, float]:
        """One gradient step on a rollout; see `NativeLearner.update`."""
        config, falling = self.config, {"constant": 1.0, "linear": left}
        learning_rate = _single(config.learning_rate) * falling[config.lr_schedule]
        names = ("optimizer", "optimizer_eps", "gamma", "vtrace_lambda", "rho_bar", "c_bar")
        rest = ("ent_coef", "vf_coef", "max_grad_norm")
        given = {name: getattr(config, name) for name in (*names, *rest)}
        said = self.learn(self.policy.impala, given | {"learning_rate": learning_rate})
        if not said["updates"]:
            return {}
        self.updates += 1
        return {
            "train/policy_loss": said["policy_loss"],
            "train/value_loss": said["value_loss"],
            "train/entropy_loss": said["entropy_loss"],
            "train/loss": said["loss"],
            "train/approx_kl": said["approx_kl"],
            "train/clip_fraction": said["clip_fraction"],
            "train/explained_variance": said["explained_variance"],
            "train/learning_rate": config.learning_rate * falling[config.lr_schedule],
            "train/n_updates": self.updates,
            **_spread(said),
        }
