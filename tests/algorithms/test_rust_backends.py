"""Learners on each backend of networks in Rust that the extension was built with."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from rlox import make_vec
from rlox._rlox import network_backends
from rlox.configs import A2CConfig, DQNConfig, PPOConfig, SACConfig, TD3Config
from rlox.native import NativeA2C, NativePPO
from rlox.native_off_policy import NativeDQN, NativeSAC, NativeTD3
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer
from support.envs import Echo, Imitate
from support.runs import pair

BACKENDS = network_backends()
# Rounding differs, and grows from update to update: so much of the curve's span is allowed for it.
DRIFT = 1e-3
LEARNERS = {
    "ppo": (NativePPO, PPOConfig(num_envs=4, n_steps=64, batch_size=256, normalize_obs=True)),
    "a2c": (NativeA2C, A2CConfig(num_envs=4, n_steps=16, normalize_obs=True)),
}
TRAINERS = {"ppo": PPOTrainer, "a2c": A2CTrainer}


def learner(algorithm, backend, seed=3, env="CartPole-v1"):
    make, config = LEARNERS[algorithm]
    return make(make_vec(env, 4), config, seed, backend)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("algorithm", LEARNERS)
def test_they_begin_with_the_weights_and_actions_of_the_native_one(algorithm, backend):
    native, other = (learner(algorithm, name, env="Pendulum-v1") for name in ("native", backend))
    for name, weights in native.policy.tensors().items():
        np.testing.assert_array_equal(other.policy.tensors()[name], weights)
    assert native.collect()
    assert other.collect()
    for name in ("actions", "log_probs", "values"):
        mine, theirs = getattr(other.buffer, name), getattr(native.buffer, name)
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_a_hundred_updates_lose_what_those_of_torch_do(algorithm, schedule, backend):
    settings = {"learning_rate": 3e-3, "lr_schedule": schedule, "ent_coef": 0.01}
    if algorithm == "ppo":
        settings |= {"n_epochs": 1, "batch_size": 33, "clip_schedule": schedule}
    rust, torchs = pair(algorithm, "CartPole-v1", backend, **settings)
    names = ["train/value_loss", "train/entropy_loss"]
    names += ["train/loss", "train/approx_kl"] if algorithm == "ppo" else ["train/policy_loss"]
    mine, theirs = np.zeros((2, len(names), 100))
    for i in range(100):
        left = 1 - i / 100
        falling = left if schedule == "linear" else 1.0
        said = rust.update(left)
        mine[:, i] = [said[name] for name in names]
        given = (3e-3 * falling, 0.2 * falling)[: 2 if algorithm == "ppo" else 1]
        said = torchs.update(*given)
        theirs[:, i] = [said[name] for name in names]
    for name, one, other in zip(names, mine, theirs, strict=True):
        span = np.ptp(other)
        assert span > 1e-2, name  # it moved, so that it could have gone apart
        np.testing.assert_allclose(one, other, rtol=0, atol=DRIFT * span, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", LEARNERS)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_trained_policies_go_to_torch_and_back(algorithm, backend, env):
    how = {"num_envs": 4, "n_steps": 16, "normalize_obs": False, "runs_dir": None}
    trainer = TRAINERS[algorithm](env, 1, backend=backend, **how)
    trainer.train(256)
    assert trainer.learner.backend == backend
    module = trainer.learner.to_torch()
    obs = np.random.default_rng(0).normal(size=(50, *trainer.env.single_observation_space.shape))
    batch = trainer.predict(obs)

    def said_by(module):
        with torch.no_grad():
            said = module.actor(torch.from_numpy(obs).float())
        if env == "CartPole-v1":
            return said.argmax(1).numpy()
        return said.clamp(-2, 2).numpy()

    np.testing.assert_allclose(batch, said_by(module), rtol=1e-4, atol=1e-5)
    for row, expected in zip(obs, batch, strict=True):
        np.testing.assert_allclose(trainer.predict(row), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.25)
    trainer.learner.load_torch(module)
    np.testing.assert_allclose(trainer.predict(obs), said_by(module), rtol=1e-4, atol=1e-5)
    for name, weights in module.state_dict().items():
        np.testing.assert_array_equal(trainer.learner.policy.tensors()[name], weights.numpy())


SCRIPT = """
import hashlib, sys
from rlox.trainers import A2CTrainer, PPOTrainer
algorithm, backend = sys.argv[1:]
kind = {"ppo": PPOTrainer, "a2c": A2CTrainer}[algorithm]
how = dict(num_envs=8, n_steps=64, net_arch=(256, 256), normalize_obs=True, runs_dir=None)
trainer = kind("CartPole-v1", 3, backend=backend, **how)
trainer.train(2048)
state = trainer.learner.state()
all_of_it = {**state.networks, **{"optimizer." + n: x for n, x in state.optimizer.items()}}
said = b"".join(name.encode() + all_of_it[name].tobytes() for name in sorted(all_of_it))
print(hashlib.sha256(said).hexdigest())
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", LEARNERS)
def test_a_seed_gives_the_same_weights_in_each_process_on_one_and_on_two_threads(
    algorithm, backend
):
    said = set()
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, algorithm, backend]
    for threads in ("1", "2", "2"):
        # Of ours, and of whatever pools the libraries have.
        pools = ("RLOX_NUM_THREADS", "RAYON_NUM_THREADS", "CANDLE_NUM_THREADS")
        env = {**os.environ, **dict.fromkeys(pools, threads)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        said.add(done.stdout.strip())
    assert len(said) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_are_not_finite_are_named_and_nothing_has_moved(backend):
    ppo = learner("ppo", backend)
    ppo.iterate()
    ppo.buffer.returns[3, 1] = np.nan
    before = ppo.policy.tensors()
    with pytest.raises(FloatingPointError, match=r"returns: .*NaN in row.* at step 256"):
        ppo.update(1.0)
    for name, array in ppo.policy.tensors().items():
        np.testing.assert_array_equal(array, before[name])
    assert ppo.iterate()["time/total_timesteps"] == 512  # the next rollout is a better one


@pytest.mark.parametrize("backend", BACKENDS)
def test_networks_beyond_memory_are_refused(backend):
    with pytest.raises(MemoryError, match="net_arch"):
        NativePPO(make_vec("CartPole-v1", 1), PPOConfig(net_arch=(2**40,) * 2), 0, backend)


OFF_POLICY = {
    "dqn": (DQNTrainer, NativeDQN, DQNConfig, "CartPole-v1", {"target_update_interval": 20}),
    "sac": (SACTrainer, NativeSAC, SACConfig, "Pendulum-v1", {}),
    "td3": (TD3Trainer, NativeTD3, TD3Config, "Pendulum-v1", {}),
}
SMALL = {"num_envs": 2, "net_arch": (16, 16), "learning_starts": 16, "batch_size": 16}
SMALL |= {"buffer_size": 500, "train_freq": 1, "gradient_steps": 1}


def trained(algorithm, backend, steps=60):
    """A trainer that has made so many steps."""
    kind, *_, env, settings = OFF_POLICY[algorithm]
    trainer = kind(env, 3, backend=backend, runs_dir=None, **SMALL, **settings)
    trainer.train(steps)
    return trainer


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_those_that_replay_begin_with_the_native_ones_weights_and_go_the_same_way(
    algorithm, backend
):
    _, make, config, env, settings = OFF_POLICY[algorithm]
    native, other = (
        make(make_vec(env, 2), config(**SMALL, **settings), 3, name) for name in ("native", backend)
    )
    first = native.policy.tensors()
    for name, weights in first.items():
        np.testing.assert_array_equal(other.policy.tensors()[name], weights)
    for _ in range(8 + 10):  # random actions, and minibatches
        native.iterate()
        other.iterate()
    assert native.updates == other.updates == 10
    moved = 0.0
    for name, weights in native.policy.tensors().items():
        # Adam makes much of gradients that are nearly zero: single weights may go apart.
        assert np.abs(other.policy.tensors()[name] - weights).mean() < 1e-4, name
        moved = max(moved, np.abs(weights - first[name]).mean())
    assert moved > 5e-4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_those_that_replay_repeat_and_go_to_torch_and_back(algorithm, backend, tmp_path):
    one, two = (trained(algorithm, backend) for _ in range(2))
    assert one.learner.backend == backend
    assert one.learner.updates == 22  # one an iteration of two steps, after sixteen
    for name, weights in one.learner.policy.tensors().items():
        np.testing.assert_array_equal(two.learner.policy.tensors()[name], weights)
    shape = one.env.single_observation_space.shape
    obs = np.random.default_rng(0).normal(size=(50, *shape)).astype(np.float32)
    one.save(tmp_path / "saved")
    torchs = type(one).load(tmp_path / "saved", backend="torch", runs_dir=None)
    np.testing.assert_allclose(torchs.predict(obs), one.predict(obs), rtol=1e-4, atol=1e-4)
    torchs.train(10)
    torchs.save(tmp_path / "further")
    again = type(one).load(tmp_path / "further", backend=backend, runs_dir=None)
    assert (again.learner.backend, len(again.learner.replay)) == (backend, 70)
    np.testing.assert_allclose(again.predict(obs), torchs.predict(obs), rtol=1e-4, atol=1e-4)
    again.train(10)
    assert again.learner.updates == 32


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_those_that_replay_learn_an_identity(algorithm, backend):
    kind, discrete = OFF_POLICY[algorithm][0], algorithm == "dqn"
    settings = {"target_update_interval": 50, "train_freq": 1} if discrete else {}
    settings |= {"ent_coef": 0.01} if algorithm == "sac" else {}
    how = {"gamma": 0.0, "learning_rate": 3e-3, "net_arch": (32, 32), "batch_size": 64}
    env = Echo if discrete else Imitate
    trainer = kind(env, 0, backend=backend, runs_dir=None, **how, **settings)
    trainer.train(1_000)
    mean = trainer.evaluate(10)["mean_reward"]
    assert mean == 10.0 if discrete else mean > -0.5
