"""PPO: the seed decides everything, for policies of one's own, too."""

import hashlib
import inspect
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rlox import make_vec
from rlox.algorithms import PPO, PPOConfig
from rlox.networks import layer
from support.envs import Echo
from toy_policies import Coin

SMALL = PPOConfig(num_envs=4, n_steps=32, batch_size=32, n_epochs=2)


def learner(env, config=SMALL, seed=0, policy=None):
    return PPO(make_vec(env, config.num_envs), config, seed, policy)


def digests(seed, outside):
    """Return digests of trained weights. The global generators are seeded with `outside`."""
    import hashlib
    import random

    import numpy as np
    import torch

    from rlox.trainers import PPOTrainer

    random.seed(outside)
    np.random.seed(outside)  # noqa: NPY002
    torch.manual_seed(outside)
    made = []
    for env in ("CartPole-v1", "Pendulum-v1"):
        trainer = PPOTrainer(env, seed, n_steps=64, runs_dir=None, backend="torch")
        trainer.train(600)
        torch.rand(outside)
        weights = b"".join(
            p.detach().numpy().tobytes() for p in trainer.learner.policy.parameters()
        )
        made.append(hashlib.sha256(weights).hexdigest())
    return made


def test_a_seed_decides_the_weights_whatever_the_global_generators_say():
    program = inspect.getsource(digests) + "print(*digests(7, 1))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    first = done.stdout.split()
    assert [len(digest) for digest in first] == [64, 64]
    assert first == digests(7, 1) == digests(7, 2)
    assert set(first).isdisjoint(digests(8, 1))


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


PIXELS = spaces.Dict(a=spaces.Box(0, 255, (36, 36, 3), np.uint8), b=spaces.Box(-1, 1, (2,)))


@pytest.mark.parametrize("ortho_init", [True, False])
@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (4,)), PIXELS], ids=["numbers", "pixels"])
def test_built_in_networks_draw_nothing_from_the_global_generator(space, ortho_init, monkeypatch):
    """So another thread that draws from it changes nothing, nor is it changed."""

    def drawn(*args):
        raise AssertionError("the process's generator was touched")

    class Seen(Echo):
        observation_space = space

    config = replace(SMALL, ortho_init=ortho_init, shared_trunk=True)
    before = torch.get_rng_state()
    monkeypatch.setattr(torch.random, "fork_rng", drawn)
    made = [learner(Seen, config, seed).policy.state_dict() for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    names = [name for name in made[0] if name.endswith("weight")]
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
    assert not any(torch.equal(made[0][name], made[2][name]) for name in names)


def test_threads_that_draw_leave_initial_weights_alone():
    wanted, stop = learner("CartPole-v1").policy.state_dict(), threading.Event()

    def draw():
        while not stop.is_set():
            torch.rand(10)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        made = [learner("CartPole-v1").policy.state_dict() for _ in range(20)]
    finally:
        stop.set()
        thread.join()
    assert all(torch.equal(weights[name], wanted[name]) for weights in made for name in wanted)


def test_layers_start_as_torchs_own():
    for kind, sizes, how in ((nn.Linear, (5, 3), {}), (nn.Conv2d, (3, 4), {"kernel_size": 2})):
        torch.manual_seed(3)
        theirs = kind(*sizes, **how).state_dict()
        ours = layer(kind, *sizes, generator=torch.Generator().manual_seed(3), **how).state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
