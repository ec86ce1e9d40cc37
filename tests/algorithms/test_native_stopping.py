"""Learners on native networks that are told to stop."""

import threading

import numpy as np
import pytest

from rlox import make_vec
from rlox.configs import A2CConfig, PPOConfig
from rlox.native import NativeA2C, NativePPO


def test_a_learner_can_be_stopped_from_another_thread():
    config = PPOConfig(num_envs=2, n_steps=10_000, n_epochs=10_000)
    learner = NativePPO(make_vec("CartPole-v1", 2), config, seed=1)
    timer = threading.Timer(0.5, lambda: setattr(learner, "stopping", True))
    timer.start()
    learner.iterate()  # hours, else
    timer.join()
    assert learner.iterate() == {}  # the steps of which do not count
    steps = learner.timesteps
    learner.stopping = False
    assert learner.timesteps == steps <= 20_000


@pytest.mark.parametrize("algorithm", ["ppo", "ppo with target_kl", "a2c"])
def test_a_large_minibatch_is_dropped_when_it_is_stopped(algorithm):
    sizes = {"num_envs": 16, "n_steps": 20_000, "net_arch": (64, 64, 64)}
    if algorithm == "a2c":
        learner = NativeA2C(make_vec("CartPole-v1", 16), A2CConfig(**sizes), seed=1)
    else:
        kl = 0.1 if "target_kl" in algorithm else None
        config = PPOConfig(**sizes, batch_size=16 * 20_000, n_epochs=1, target_kl=kl)
        learner = NativePPO(make_vec("CartPole-v1", 16), config, seed=1)
    assert learner.collect()
    before = learner.policy.tensors(), learner.policy.optimizer_state()
    timer = threading.Timer(0.1, lambda: setattr(learner, "stopping", True))
    timer.start()
    assert learner.update(1.0) == {}  # which takes a second, else
    assert learner.updates == 0
    timer.join()
    after = learner.policy.tensors(), learner.policy.optimizer_state()
    for was, now in zip(before, after, strict=True):
        for name, array in was.items():
            np.testing.assert_array_equal(now[name], array)
    learner.stopping = False
    assert learner.update(1.0)["train/n_updates"] == 1
