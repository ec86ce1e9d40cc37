"""Learners on each network backend in Rust that the extension contains."""

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
from support.rejections import rejects
from support.runs import pair

BACKENDS = network_backends()
# Rounding errors grow with each update. This share of a curve's span is allowed for them.
DRIFT = 1e-3
LEARNERS = {
    "ppo": (NativePPO, PPOConfig(num_envs=4, n_steps=64, batch_size=256, normalize_obs=True)),
    "a2c": (NativeA2C, A2CConfig(num_envs=4, n_steps=16, normalize_obs=True)),
}


def make_learner_on(algorithm, backend, seed=3, env="CartPole-v1"):
    make, config = LEARNERS[algorithm]
    return make(make_vec(env, 4), config, seed, backend)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("algorithm", LEARNERS)
def test_initial_weights_and_actions_equal_the_native_backend(algorithm, backend):
    native, other = (make_learner_on(algorithm, name, env="Pendulum-v1") for name in ("native", backend))
    np.testing.assert_equal(other.policy.tensors(), native.policy.tensors())
    assert native.collect()
    assert other.collect()
    for name in ("actions", "log_probs", "values"):
        actual, expected = getattr(other.buffer, name), getattr(native.buffer, name)
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_losses_of_a_hundred_updates_equal_torch(algorithm, schedule, backend):
    settings = {"learning_rate": 3e-3, "lr_schedule": schedule, "ent_coef": 0.01}
    if algorithm == "ppo":
        settings |= {"n_epochs": 1, "batch_size": 33, "clip_schedule": schedule}
    rust, torch_learner = pair(algorithm, "CartPole-v1", backend, **settings)
    names = ["train/value_loss", "train/entropy_loss"]
    names += ["train/loss", "train/approx_kl"] if algorithm == "ppo" else ["train/policy_loss"]
    rust_losses, torch_losses = np.zeros((2, len(names), 100))
    for i in range(100):
        for learner, losses in ((rust, rust_losses), (torch_learner, torch_losses)):
            metrics = learner.update(progress=i / 100)
            losses[:, i] = [metrics[name] for name in names]
    for name, rust_curve, torch_curve in zip(names, rust_losses, torch_losses, strict=True):
        span = np.ptp(torch_curve)
        assert span > 1e-2, name  # the curve moves, so that a difference would be visible
        np.testing.assert_allclose(rust_curve, torch_curve, rtol=0, atol=DRIFT * span, err_msg=name)


SCRIPT = """
import hashlib, sys
from rlox import trainers
name, backend = sys.argv[1:]
env, steps, settings = {
    "PPOTrainer": ("CartPole-v1", 2048, {"num_envs": 8, "n_steps": 64}),
    "A2CTrainer": ("CartPole-v1", 2048, {"num_envs": 8, "n_steps": 64}),
    "SACTrainer": ("Pendulum-v1", 40, {"learning_starts": 16, "buffer_size": 1000}),
}[name]
settings |= dict(net_arch=(256, 256), normalize_obs=True, runs_dir=None)
trainer = getattr(trainers, name)(env, 3, backend=backend, **settings)
trainer.train(512 if backend == "torch" else steps)
state = trainer.learner.state()
arrays = {**state.networks, **{"optimizer." + n: x for n, x in state.optimizer.items()}}
content = b"".join(n.encode() + arrays[n].tobytes() for n in sorted(arrays))
print(hashlib.sha256(content).hexdigest())
"""
TRAINER_NAMES = ["PPOTrainer", "A2CTrainer", "SACTrainer"]


@pytest.mark.parametrize(
    ("trainer_name", "backend"), [*itertools.product(TRAINER_NAMES, BACKENDS), ("PPOTrainer", "torch")]
)
def test_a_seed_gives_the_same_weights_in_each_process(trainer_name, backend):
    digests = set()
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, trainer_name, backend]
    # Matrix products of torch depend on the number of threads. Matrix products of rlox do not.
    for threads in ("1", "1") if backend == "torch" else ("1", "2", "2"):
        # Variables of the thread pools of rlox and of the libraries.
        pools = ("RLOX_NUM_THREADS", "RAYON_NUM_THREADS", "CANDLE_NUM_THREADS", "OMP_NUM_THREADS")
        env = {**os.environ, **dict.fromkeys(pools, threads)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout.strip())
    assert len(digests) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_non_finite_returns_are_rejected_and_change_nothing(backend):
    ppo = make_learner_on("ppo", backend)
    ppo.iterate()
    ppo.buffer.returns[3, 1] = np.nan
    before = ppo.policy.tensors()
    with rejects(NonFiniteError, "returns", got="NaN", timesteps=256) as raised:
        ppo.update(0.0)
    assert raised.value.row is not None
    np.testing.assert_equal(ppo.policy.tensors(), before)
    assert ppo.iterate()["time/total_timesteps"] == 512  # the next rollout is finite


@pytest.mark.parametrize("backend", BACKENDS)
def test_networks_larger_than_memory_are_rejected(backend):
    with rejects(OutOfMemoryError, "net_arch"):
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
def test_off_policy_learners_equal_the_native_backend(algorithm, backend):
    settings = SMALL | OFF_POLICY[algorithm][2]
    native, other = (make_learner(algorithm, each, 3, **settings) for each in ("native", backend))
    first = native.policy.tensors()
    np.testing.assert_equal(other.policy.tensors(), first)
    for learner in (native, other):
        run_iterations(learner, 8 + 10)  # random actions, then minibatches
    assert native.updates == other.updates == 10
    moved = 0.0
    for name, weights in native.policy.tensors().items():
        # Adam magnifies gradients that are nearly zero: single weights may differ.
        assert np.abs(other.policy.tensors()[name] - weights).mean() < 1e-4, name
        moved = max(moved, np.abs(weights - first[name]).mean())
    assert moved > 5e-4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_off_policy_runs_are_repeatable_and_load_into_torch_and_back(algorithm, backend, tmp_path):
    trainer_cls, env, settings = OFF_POLICY[algorithm]
    options = {"backend": backend, "runs_dir": None, **SMALL, **settings}
    first, second = (trainer_cls(env, 3, **options) for _ in "ab")
    for each in (first, second):
        each.train(60)
    assert first.learner.backend == backend
    assert first.learner.updates == 22  # one per iteration of two steps after sixteen steps
    np.testing.assert_equal(first.learner.policy.tensors(), second.learner.policy.tensors())
    shape = first.env.single_observation_space.shape
    obs = np.random.default_rng(0).normal(size=(50, *shape)).astype(np.float32)
    first.save(tmp_path / "saved")
    torch_trainer = type(first).load(tmp_path / "saved", backend="torch", runs_dir=None)
    np.testing.assert_allclose(torch_trainer.predict(obs), first.predict(obs), rtol=1e-4, atol=1e-4)
    torch_trainer.train(10)
    torch_trainer.save(tmp_path / "further")
    native_trainer = type(first).load(tmp_path / "further", backend=backend, runs_dir=None)
    assert (native_trainer.learner.backend, len(native_trainer.learner.replay)) == (backend, 70)
    np.testing.assert_allclose(native_trainer.predict(obs), torch_trainer.predict(obs), rtol=1e-4, atol=1e-4)
    native_trainer.train(10)
    assert native_trainer.learner.updates == 32
