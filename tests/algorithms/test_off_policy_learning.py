"""What DQN, SAC and TD3 learn in environments so small that the answer is known."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlox._rlox import network_backends
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer
from support.envs import Count, Echo, Imitate
from support.off_policy import BACKENDS, NORMALIZED, WithPlace, iterated, make_learner

EVERY_BACKEND = [*network_backends(), "torch"]
FAST = {"learning_rate": 3e-3, "gamma": 0.0, "learning_starts": 100, "runs_dir": None}


def discrete_identity(backend, steps=1_000, **settings):
    """Return the mean return after training: 10 at best, a third of it by chance."""
    given = {**FAST, "train_freq": 1, "target_update_interval": 50, **settings}
    trainer = DQNTrainer(lambda: Echo(start=3), 0, backend=backend, **given)
    trainer.train(steps)
    assert trainer.learner.backend == backend
    return trainer.evaluate(10)["mean_reward"]


@pytest.mark.parametrize(
    ("settings", "backend"),
    [
        *(({}, backend) for backend in EVERY_BACKEND),
        ({"double": True, "dueling": True}, "native"),
        ({"prioritized": True, "num_envs": 4, "gradient_steps": -1}, "torch"),
        (NORMALIZED, "native"),
    ],
)
def test_a_discrete_identity_is_learned(settings, backend):
    assert discrete_identity(backend, **settings) == 10.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_discrete_identity_is_not_reached_without_learning(backend):
    assert discrete_identity(backend, 200, learning_rate=0.0) < 7


def continuous_identity(trainer, backend, steps=1_000, env=Imitate, **settings):
    """Return the mean return after training: 0 at best, -3.3 for doing nothing."""
    how = {**FAST, "net_arch": (32, 32), "batch_size": 64, **settings}
    made = trainer(env, 0, backend=backend, **how)
    made.train(steps)
    assert made.learner.backend == backend
    return made.evaluate(10)["mean_reward"]


@pytest.mark.parametrize(
    ("trainer", "settings", "backend"),
    [
        *((SACTrainer, {"ent_coef": 0.01}, backend) for backend in EVERY_BACKEND),
        (SACTrainer, {"ent_coef": "auto_0.1", "num_envs": 2, "utd_ratio": 1.0}, "native"),
        (SACTrainer, {"ent_coef": 0.01, "use_sde": True, "log_std_init": -1.0}, "native"),
        *((TD3Trainer, {}, backend) for backend in EVERY_BACKEND),
        (TD3Trainer, NORMALIZED, "native"),
        (TD3Trainer, {"env": WithPlace}, "torch"),
    ],
)
def test_a_continuous_identity_is_learned(trainer, settings, backend):
    assert continuous_identity(trainer, backend, **settings) > (-0.3 if "env" in settings else -0.5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("trainer", [SACTrainer, TD3Trainer])
def test_a_continuous_identity_is_not_reached_without_learning(trainer, backend):
    assert continuous_identity(trainer, backend, 200, learning_rate=0.0) < -2


class Bars(Echo):
    """Observe an image of a bar, whose direction is the rewarded action."""

    def __init__(self):
        super().__init__(2)
        self.observation_space = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)

    def _observe(self):
        self.place = int(self.np_random.integers(2))
        image = np.zeros((1, 36, 36), np.uint8)
        image[0, 16:20] = 255
        return image if self.place else image.transpose(0, 2, 1)


def test_images_are_stored_as_bytes_and_learned_from():
    given = {**FAST, "learning_rate": 1e-3, "train_freq": 4, "buffer_size": 1000}
    trainer = DQNTrainer(Bars, 0, **given, target_update_interval=50)
    trainer.train(500)
    assert trainer.evaluate(5)["mean_reward"] == 10.0
    assert trainer.learner.replay.buffer.sample(1)["obs"].dtype == np.uint8


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, obs, actions):
        return self.net(torch.cat([obs, actions], 1)).T


class Own(nn.Module):
    """An actor and one critic, for SAC and TD3."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh())
        self.actor, self.critic = net, Critic()

    def mode(self, obs):
        return self.actor(obs)

    def get_action_and_logprob(self, obs):
        mean = self.actor(obs)
        action = (mean + 0.1 * torch.randn_like(mean)).clamp(-1, 1)
        return action, torch.zeros(len(obs))


@pytest.mark.parametrize("trainer", [SACTrainer, TD3Trainer])
def test_a_custom_policy_learns_and_is_saved(trainer, tmp_path):
    settings = {"ent_coef": 0.0} if trainer is SACTrainer else {}
    made = trainer(Imitate, 0, policy=Own, batch_size=64, **FAST, **settings)
    made.train(1_000)
    assert made.evaluate(10)["mean_reward"] > -0.5
    made.save(tmp_path / "own")
    again = trainer.load(tmp_path / "own", env=Imitate, policy=Own, runs_dir=None)
    assert again.evaluate(3)["returns"] == made.evaluate(3)["returns"]


def test_gsde_methods_are_not_called_without_use_sde():
    class Exploring(Own):
        def explore(self, obs):
            raise AssertionError("called without use_sde")

        one_matrix = explore

    SACTrainer(Imitate, 0, policy=Exploring, batch_size=8, **FAST).train(120)


def test_a_custom_q_network_learns():
    def network(observation_space, action_space):
        return nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, int(action_space.n)))

    trainer = DQNTrainer(Echo, 0, policy=network, train_freq=1, target_update_interval=50, **FAST)
    trainer.train(1_000)
    assert trainer.evaluate(10)["mean_reward"] == 10.0


def test_custom_feature_extractors_are_trained():
    class Squares(nn.Module):
        def __init__(self, space):
            super().__init__()
            self.layer, self.features_dim = nn.Linear(2, 8), 8

        def forward(self, obs):
            return self.layer(torch.cat([obs, obs**2], 1)).relu()

    for trainer in (SACTrainer, TD3Trainer):
        made = trainer(Imitate, 0, features_extractor=Squares, net_arch=(8,), **FAST)
        before = made.learner._networks()
        made.train(110)
        after = made.learner._networks()
        for name in ("critic.features.layer.weight", "critic_target.features.layer.weight"):
            assert (before[name] != after[name]).any()


@pytest.mark.parametrize(
    ("trainer", "policy", "message"),
    [
        (SACTrainer, nn.Linear(1, 1), "get_action_and_logprob and mode and critic, got Linear"),
        (TD3Trainer, lambda *_: nn.Linear(1, 1), "actor and critic, got Linear"),
        (DQNTrainer, nn.Linear(3, 2), r"values of shape \(2, 3\) .* got \(2, 2\)"),
        (DQNTrainer, nn.Linear(4, 3), "failed with RuntimeError"),
    ],
)
def test_incomplete_policies_are_rejected(trainer, policy, message):
    with pytest.raises((TypeError, ValueError), match=message):
        trainer(Echo if trainer is DQNTrainer else Imitate, policy=policy, runs_dir=None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_value_continues_beyond_a_truncation(backend):
    def value(terminate):
        env = lambda: Count(limit=10, terminate=terminate, scale=0.0)  # noqa: E731
        settings = {"learning_starts": 100, "gamma": 0.8, "learning_rate": 1e-2, "batch_size": 32}
        settings |= {"target_update_interval": 20, "train_freq": 1, "exploration_fraction": 0.0}
        one = make_learner("DQN", backend, 1, env, **settings)
        iterated(one, 700)
        return one

    def best(one):
        networks = one.state().networks
        hidden = np.maximum(networks["q_net.0.bias"], 0)
        return (networks["q_net.2.weight"] @ hidden + networks["q_net.2.bias"]).max()

    assert best(value(terminate=False)) == pytest.approx(1 / (1 - 0.8), rel=0.05)
    # Huber's gradients sum to 0: 0.9 (1 + 0.8 v - v) for steps, -0.1 for the last of ten.
    assert best(value(terminate=True)) == pytest.approx((1 - 0.1 / 0.9) / 0.2, rel=0.05)
