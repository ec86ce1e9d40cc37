"""What a trainer does not depend on, and does not disturb: torch's global state, threads, modes."""

import os
import sys
import threading

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rlox import ArgumentError, ClosedError, CorruptFileError, checkpoint  # noqa: E402
from rlox._nn.runtime import isolate_rng, limit_threads  # noqa: E402
from rlox._rlox import network_backends  # noqa: E402
from rlox.policies import MlpPolicy  # noqa: E402
from rlox.trainers import A2CTrainer, PPOTrainer  # noqa: E402
from support.refusals import refuses  # noqa: E402
from support.thread_runs import join, run_program, run_threads, start_threads  # noqa: E402

SMALL = {"num_envs": 4, "n_steps": 16, "runs_dir": None, "backend": "torch"}


def weights(trainer):
    parameters = trainer.learner.policy.parameters()
    return np.concatenate([p.detach().numpy().ravel() for p in parameters])


def test_weights_do_not_depend_on_torchs_number_of_threads():
    before, found = torch.get_num_threads(), []
    first, second = limit_threads(1), limit_threads(1)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            trainer = PPOTrainer("CartPole-v1", 7, **SMALL)
            trainer.train(64)
            found.append(weights(trainer))
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_num_threads() == 1
        second.__exit__(None, None, None)  # the last to leave restores the number
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize("kind", [PPOTrainer, A2CTrainer])
def test_trainers_in_threads_leave_each_other_and_torchs_generator_alone(kind):
    alone = [kind("CartPole-v1", seed, **SMALL) for seed in range(4)]
    for trainer in alone:
        trainer.train(128)
    torch.manual_seed(3)
    before, threads_before = torch.get_rng_state(), torch.get_num_threads()
    seeds, together = iter(range(4)), {}

    def work():
        seed = next(seeds)
        together[seed] = kind("CartPole-v1", seed, **SMALL)
        together[seed].train(128)

    assert run_threads(work, 4) == []
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads_before
    for seed, trainer in enumerate(alone):
        assert np.array_equal(weights(together[seed]), weights(trainer)), seed


def test_error_restores_the_generator():
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), isolate_rng(5):
        torch.rand(3).reshape(1 // 0)
    assert torch.equal(torch.get_rng_state(), before)


class Regularised(MlpPolicy):
    """With layers that behave otherwise in training."""

    def __init__(self, observation_space, action_space):
        super().__init__(observation_space, action_space)
        self.actor.insert(1, torch.nn.Dropout(0.5))
        self.actor.insert(1, torch.nn.BatchNorm1d(64))


@pytest.mark.parametrize("kind", [PPOTrainer, A2CTrainer])
def test_dropout_and_batch_norm_are_active_only_in_updates(kind):
    trainer = kind("CartPole-v1", 1, policy=Regularised, **SMALL)
    modes = []
    trainer.learner.policy.critic.register_forward_pre_hook(
        lambda critic, _: modes.append(critic.training)
    )
    trainer.train(64)
    assert set(modes) == {False, True}
    statistics = trainer.learner.policy.actor[1].running_mean.clone()
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    first = trainer.predict(obs)
    assert np.array_equal(first, trainer.predict(obs))
    assert np.array_equal(trainer.predict(obs[0]), first[0])
    assert trainer.evaluate(2, seed=1) == trainer.evaluate(2, seed=1)
    assert trainer.learner.policy.training
    assert torch.equal(statistics, trainer.learner.policy.actor[1].running_mean)


class Minimal(torch.nn.Module):
    """Without `action`, and without entropy."""

    def __init__(self, *_):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def get_action_and_logprob(self, obs, mask=None):
        said = torch.distributions.Categorical(logits=self.layer(obs))
        action = said.sample()
        return action, said.log_prob(action)

    def get_value(self, obs):
        return self.layer(obs)[:, 0]


def test_policies_without_entropy_are_rejected():
    with refuses(ArgumentError, "policy", "rlox.policies.ActorCritic"):
        PPOTrainer("CartPole-v1", 1, policy=Minimal, **SMALL)


def test_loading_a_checkpoint_imports_no_module(tmp_path, monkeypatch):
    module = tmp_path / "somebodys.py"
    module.write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gym.register('Somebodys-v0', CartPoleEnv, max_episode_steps=50)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    trainer = PPOTrainer("somebodys:Somebodys-v0", 1, **SMALL)
    trainer.save(tmp_path / "saved")
    assert PPOTrainer.load(tmp_path / "saved", runs_dir=None).env_id == "Somebodys-v0"

    saved = checkpoint.read_checkpoint(tmp_path / "saved")
    checkpoint.write_checkpoint(
        tmp_path / "crafted", {**saved.manifest, "env": "somebodys:Somebodys-v0"}, saved.members
    )
    del sys.modules["somebodys"], gym.registry["Somebodys-v0"]
    file = str(tmp_path / "crafted" / "manifest.json")
    with refuses(CorruptFileError, file, section="manifest"):
        PPOTrainer.load(tmp_path / "crafted")
    with refuses(ArgumentError, "env", "import the module", got="'Somebodys-v0'"):
        PPOTrainer.load(tmp_path / "saved")
    assert "somebodys" not in sys.modules


@pytest.mark.parametrize("kind", [PPOTrainer, A2CTrainer])
def test_dropout_draws_from_the_seed_of_the_trainer(kind):
    found = []
    for global_seed in (0, 1):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        trainer = kind("CartPole-v1", 1, policy=Regularised, **SMALL)
        trainer.train(128)
        assert torch.equal(torch.get_rng_state(), before)
        found.append(weights(trainer))
    assert np.array_equal(*found)


class Wrapped(torch.nn.Module):
    """A policy inside a policy, which says nothing but what that one says."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.inner = MlpPolicy(observation_space, action_space)

    def get_action_and_logprob(self, *args, **keywords):
        return self.inner.get_action_and_logprob(*args, **keywords)

    def get_value(self, obs):
        return self.inner.get_value(obs)


def test_nested_policies_draw_from_the_seed_of_the_trainer_and_resume_exactly(tmp_path):
    how = {"policy": Wrapped, "lr_schedule": "constant", "clip_schedule": "constant", **SMALL}
    other, half, whole = (PPOTrainer("CartPole-v1", seed, **how) for seed in (2, 1, 1))
    for trainer in (other, half):
        torch.nn.init.zeros_(trainer.learner.policy.inner.actor[-1].weight)
        trainer.train(64)
    torch.nn.init.zeros_(whole.learner.policy.inner.actor[-1].weight)
    assert not np.array_equal(other.learner.buffer.actions, half.learner.buffer.actions)
    whole.train(128)
    half.save(tmp_path / "half")
    rest = PPOTrainer.load(tmp_path / "half", policy=Wrapped, runs_dir=None)
    rest.train(64)
    assert np.array_equal(weights(whole), weights(rest))


FORK = """
import sys, threading
import torch
from rlox._nn.runtime import isolate_rng
from rlox.trainers import PPOTrainer
from support.thread_runs import run_in_fork

def make(**settings):
    return PPOTrainer("CartPole-v1", 1, **settings, runs_dir=None)

entered, leave = threading.Event(), threading.Event()
def hold():
    with isolate_rng(1):
        entered.set()
        leave.wait()
thread = threading.Thread(target=hold)
thread.start()
entered.wait()
run_in_fork(lambda: make(num_envs=2, n_steps=16, backend="torch").train(32))
leave.set()
thread.join()

torch.set_num_threads(2)
for backend in sys.argv[1:]:
    settings = dict(num_envs=8, n_steps=128, batch_size=1024, n_epochs=1, backend=backend)
    settings |= dict(net_arch=(256, 256))
    trainer = make(**settings)
    trainer.train(1024)
    run_in_fork(lambda: (trainer.train(1024), trainer.evaluate(2), make(**settings).train(1024)))
"""


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_children_can_train_whatever_threads_the_parent_has():
    run_program(FORK, *network_backends(), "torch", RLOX_NUM_THREADS="2")


@pytest.mark.parametrize("progress", [float("nan"), -0.1, 2.0])
@pytest.mark.parametrize("kind", [PPOTrainer, A2CTrainer])
def test_progress_outside_of_the_run_is_refused(kind, progress):
    trainer = kind("CartPole-v1", 1, **SMALL)
    before = weights(trainer)
    with refuses(ArgumentError, "progress", expected="a finite number in [0, 1]"):
        trainer.learner.iterate(progress)
    assert np.array_equal(weights(trainer), before)
    assert trainer.timesteps == 0


def test_a_learner_in_use_by_another_thread_is_rejected():
    trainer = PPOTrainer("CartPole-v1", 1, **SMALL)
    inside, leave = threading.Event(), threading.Event()
    act = trainer.learner.policy.act

    def wait(*args):
        inside.set()
        leave.wait(30)
        return act(*args)

    trainer.learner.policy.act = wait  # within an iteration
    threads, errors = start_threads(lambda: trainer.train(64))
    inside.wait(30)
    with refuses(ClosedError, "learner", "create one trainer per thread"):
        trainer.learner.iterate()
    leave.set()
    join(threads)
    assert (errors, trainer.timesteps) == ([], 64)
