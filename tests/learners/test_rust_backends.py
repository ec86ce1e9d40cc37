"""Learners on each backend of networks in Rust that the extension was built with."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from rlox import NonFiniteError, OutOfMemoryError, make_vec
from rlox._rlox import network_backends
from rlox.configs import A2CConfig, PPOConfig
from rlox.learners.native_on_policy import NativeA2C, NativePPO
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer
from support.off_policy import make_learner, run_iterations
from support.refusals import refuses
from support.runs import pair

BACKENDS = network_backends()
# Rounding differs, and grows from update to update: so much of the curve's span is allowed for it.
DRIFT = 1e-3
LEARNERS = {
    "ppo": (NativePPO, PPOConfig(num_envs=4, n_steps=64, batch_size=256, normalize_obs=True)),
    "a2c": (NativeA2C, A2CConfig(num_envs=4, n_steps=16, normalize_obs=True)),
}


def learner(algorithm, backend, seed=3, env="CartPole-v1"):
    make, config = LEARNERS[algorithm]
    return make(make_vec(env, 4), config, seed, backend)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("algorithm", LEARNERS)
def test_they_begin_with_the_weights_and_actions_of_the_native_one(algorithm, backend):
    native, other = (learner(algorithm, name, env="Pendulum-v1") for name in ("native", backend))
    np.testing.assert_equal(other.policy.tensors(), native.policy.tensors())
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
        for learner, losses in ((rust, mine), (torchs, theirs)):
            metrics = learner.update(progress=i / 100)
            losses[:, i] = [metrics[name] for name in names]
    for name, one, other in zip(names, mine, theirs, strict=True):
        span = np.ptp(other)
        assert span > 1e-2, name  # it moved, so that it could have gone apart
        np.testing.assert_allclose(one, other, rtol=0, atol=DRIFT * span, err_msg=name)


SCRIPT = """
import hashlib, sys
from rlox import trainers
kind, backend = sys.argv[1:]
env, steps, how = {
    "PPOTrainer": ("CartPole-v1", 2048, {"num_envs": 8, "n_steps": 64}),
    "A2CTrainer": ("CartPole-v1", 2048, {"num_envs": 8, "n_steps": 64}),
    "SACTrainer": ("Pendulum-v1", 40, {"learning_starts": 16, "buffer_size": 1000}),
}[kind]
how |= dict(net_arch=(256, 256), normalize_obs=True, runs_dir=None)
trainer = getattr(trainers, kind)(env, 3, backend=backend, **how)
trainer.train(512 if backend == "torch" else steps)
state = trainer.learner.state()
arrays = {**state.networks, **{"optimizer." + n: x for n, x in state.optimizer.items()}}
content = b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))
print(hashlib.sha256(content).hexdigest())
"""
KINDS = ["PPOTrainer", "A2CTrainer", "SACTrainer"]


@pytest.mark.parametrize(
    ("kind", "backend"), [*itertools.product(KINDS, BACKENDS), ("PPOTrainer", "torch")]
)
def test_a_seed_gives_the_same_weights_in_each_process(kind, backend):
    digests = set()
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, kind, backend]
    # Matrix products of torch depend on the number of threads, those of rlox do not.
    for threads in ("1", "1") if backend == "torch" else ("1", "2", "2"):
        # The pools of rlox and of the libraries.
        pools = ("RLOX_NUM_THREADS", "RAYON_NUM_THREADS", "CANDLE_NUM_THREADS", "OMP_NUM_THREADS")
        env = {**os.environ, **dict.fromkeys(pools, threads)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout.strip())
    assert len(digests) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_are_not_finite_are_named_and_nothing_has_moved(backend):
    ppo = learner("ppo", backend)
    ppo.iterate()
    ppo.buffer.returns[3, 1] = np.nan
    before = ppo.policy.tensors()
    with refuses(NonFiniteError, "returns", got="NaN", timesteps=256) as raised:
        ppo.update(0.0)
    assert raised.value.row is not None
    np.testing.assert_equal(ppo.policy.tensors(), before)
    assert ppo.iterate()["time/total_timesteps"] == 512  # the next rollout is a better one


@pytest.mark.parametrize("backend", BACKENDS)
def test_networks_beyond_memory_are_refused(backend):
    with refuses(OutOfMemoryError, "net_arch"):
        NativePPO(make_vec("CartPole-v1", 1), PPOConfig(net_arch=(2**40,) * 2), 0, backend)


OFF_POLICY = {
    "DQN": (DQNTrainer, "CartPole-v1", {"target_update_interval": 20}),
    "SAC": (SACTrainer, "Pendulum-v1", {}),
    "TD3": (TD3Trainer, "Pendulum-v1", {}),
}
SMALL = {"num_envs": 2, "net_arch": (16, 16), "learning_starts": 16, "batch_size": 16}
SMALL |= {"buffer_size": 500, "train_freq": 1, "gradient_steps": 1}


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_off_policy_learners_begin_with_the_native_weights_and_learn_the_same(algorithm, backend):
    settings = SMALL | OFF_POLICY[algorithm][2]
    native, other = (make_learner(algorithm, each, 3, **settings) for each in ("native", backend))
    first = native.policy.tensors()
    np.testing.assert_equal(other.policy.tensors(), first)
    for learner in (native, other):
        run_iterations(learner, 8 + 10)  # random actions, and minibatches
    assert native.updates == other.updates == 10
    moved = 0.0
    for name, weights in native.policy.tensors().items():
        # Adam magnifies gradients that are nearly zero: single weights may differ.
        assert np.abs(other.policy.tensors()[name] - weights).mean() < 1e-4, name
        moved = max(moved, np.abs(weights - first[name]).mean())
    assert moved > 5e-4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_off_policy_runs_repeat_and_go_to_torch_and_back(algorithm, backend, tmp_path):
    kind, env, settings = OFF_POLICY[algorithm]
    how = {"backend": backend, "runs_dir": None, **SMALL, **settings}
    one, two = (kind(env, 3, **how) for _ in "ab")
    for each in (one, two):
        each.train(60)
    assert one.learner.backend == backend
    assert one.learner.updates == 22  # one an iteration of two steps, after sixteen
    np.testing.assert_equal(one.learner.policy.tensors(), two.learner.policy.tensors())
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
