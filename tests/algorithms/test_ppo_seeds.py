"""PPO: the seed decides everything, for policies of one's own, too."""

import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlox import make_vec
from rlox.algorithms import PPO, PPOConfig
from toy_envs import Echo
from toy_policies import Coin

SMALL = PPOConfig(num_envs=4, n_steps=32, batch_size=32, n_epochs=2)


def learner(env, config=SMALL, seed=0, policy=None):
    return PPO(make_vec(env, config.num_envs), config, seed, policy)


WEIGHTS = """
import hashlib, random, sys
import numpy as np, torch
random.seed({outside}); np.random.seed({outside}); torch.manual_seed({outside})
from rlox.trainers import PPOTrainer
for env in ("CartPole-v1", "Pendulum-v1"):
    trainer = PPOTrainer(env=env, seed={seed}, n_steps=64, runs_dir=None)
    trainer.train(600)
    torch.rand({outside}), np.random.rand({outside})
    weights = b"".join(p.detach().numpy().tobytes() for p in trainer.learner.policy.parameters())
    print(hashlib.sha256(weights).hexdigest())
"""


def test_a_seed_decides_the_weights_whatever_the_global_generators_say():
    programs = [WEIGHTS.format(outside=o, seed=s) for o, s in ((1, 7), (2, 7), (1, 8))]
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for code in programs
    ]
    first, again, other = (process.communicate(timeout=110)[0].split() for process in started)
    assert [len(digest) for digest in first] == [64, 64]
    assert first == again
    assert set(first).isdisjoint(other)


def weights_of(ppo):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in ppo.policy.parameters()))


def test_a_policy_of_ones_own_is_as_repeatable_and_leaves_the_global_generator_alone():
    digests = []
    for outside in (1, 2):
        torch.manual_seed(outside)
        before = torch.get_rng_state()
        ppo = learner("CartPole-v1", policy=Coin)
        for _ in range(3):
            ppo.iterate()
        assert torch.equal(before, torch.get_rng_state())
        digests.append(weights_of(ppo).hexdigest())
    assert digests[0] == digests[1]


def test_a_policy_of_ones_own_learns():
    ppo = learner(Echo, replace(SMALL, gamma=0.0, learning_rate=0.05, n_epochs=10), policy=Coin)
    for _ in range(20):
        metrics = ppo.iterate()
    assert metrics["rollout/ep_rew_mean"] > 8  # 3.3 at first
    with pytest.raises(TypeError, match="mode"):
        ppo.predict(np.zeros(3))
    assert 0 <= ppo.predict(np.zeros(3), deterministic=False) < 3
