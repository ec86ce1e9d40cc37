"""Isolation of torch's global random state, threads and modes, and states of modules."""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from rlox import ArgumentError  # noqa: E402
from rlox._nn.runtime import (  # noqa: E402
    attach_generator,
    isolate_rng,
    limit_threads,
    module_arrays,
    module_tensors,
)
from rlox._rlox import network_backends  # noqa: E402
from rlox.policies import MlpPolicy  # noqa: E402
from rlox.trainers import A2CTrainer, PPOTrainer  # noqa: E402
from support.rejections import rejects  # noqa: E402
from support.thread_runs import run_program, run_threads  # noqa: E402

SMALL = {"num_envs": 4, "n_steps": 16, "runs_dir": None, "backend": "torch"}


def get_weights(trainer):
    parameters = trainer.learner.policy.parameters()
    return np.concatenate([p.detach().numpy().ravel() for p in parameters])


def test_weights_do_not_depend_on_torchs_thread_count():
    before, results = torch.get_num_threads(), []
    first, second = limit_threads(1), limit_threads(1)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            trainer = PPOTrainer("CartPole-v1", 7, **SMALL)
            trainer.train(64)
            results.append(get_weights(trainer))
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_num_threads() == 1
        second.__exit__(None, None, None)  # the last exit restores the number
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


@pytest.mark.parametrize("trainer_cls", [PPOTrainer, A2CTrainer])
def test_trainers_in_threads_are_independent_and_leave_torchs_generator(trainer_cls):
    serial = [trainer_cls("CartPole-v1", seed, **SMALL) for seed in range(4)]
    for trainer in serial:
        trainer.train(128)
    torch.manual_seed(3)
    before, threads_before = torch.get_rng_state(), torch.get_num_threads()
    seeds, parallel = iter(range(4)), {}

    def work():
        seed = next(seeds)
        parallel[seed] = trainer_cls("CartPole-v1", seed, **SMALL)
        parallel[seed].train(128)

    assert run_threads(work, 4) == []
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads_before
    for seed, trainer in enumerate(serial):
        assert np.array_equal(get_weights(parallel[seed]), get_weights(trainer)), seed


def test_isolate_rng_restores_the_generator_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), isolate_rng(5):
        torch.rand(3).reshape(1 // 0)
    assert torch.equal(torch.get_rng_state(), before)


class RegularisedPolicy(MlpPolicy):
    """Policy with dropout and batch normalization."""

    def __init__(self, observation_space, action_space):
        super().__init__(observation_space, action_space)
        self.actor.insert(1, nn.Dropout(0.5))
        self.actor.insert(1, nn.BatchNorm1d(64))


@pytest.mark.parametrize("trainer_cls", [PPOTrainer, A2CTrainer])
def test_dropout_and_batch_norm_are_active_only_in_updates(trainer_cls):
    trainer = trainer_cls("CartPole-v1", 1, policy=RegularisedPolicy, **SMALL)
    modes = []
    trainer.learner.policy.critic.register_forward_pre_hook(lambda critic, _: modes.append(critic.training))
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


@pytest.mark.parametrize("trainer_cls", [PPOTrainer, A2CTrainer])
def test_dropout_uses_the_trainers_seed(trainer_cls):
    results = []
    for global_seed in (0, 1):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        trainer = trainer_cls("CartPole-v1", 1, policy=RegularisedPolicy, **SMALL)
        trainer.train(128)
        assert torch.equal(torch.get_rng_state(), before)
        results.append(get_weights(trainer))
    assert np.array_equal(*results)


class WrapperPolicy(nn.Module):
    """Policy that delegates to an inner policy."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.inner = MlpPolicy(observation_space, action_space)

    def get_action_and_logprob(self, *args, **keywords):
        return self.inner.get_action_and_logprob(*args, **keywords)

    def get_value(self, obs):
        return self.inner.get_value(obs)


def test_nested_policies_use_the_trainers_seed_and_resume_exactly(tmp_path):
    settings = {"policy": WrapperPolicy, "lr_schedule": "constant", "clip_schedule": "constant", **SMALL}
    other, half, uninterrupted = (PPOTrainer("CartPole-v1", seed, **settings) for seed in (2, 1, 1))
    for trainer in (other, half):
        nn.init.zeros_(trainer.learner.policy.inner.actor[-1].weight)
        trainer.train(64)
    nn.init.zeros_(uninterrupted.learner.policy.inner.actor[-1].weight)
    assert not np.array_equal(other.learner.buffer.actions, half.learner.buffer.actions)
    uninterrupted.train(128)
    half.save(tmp_path / "half")
    resumed = PPOTrainer.load(tmp_path / "half", policy=WrapperPolicy, runs_dir=None)
    resumed.train(64)
    assert np.array_equal(get_weights(uninterrupted), get_weights(resumed))


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
def test_forked_children_can_train_while_parent_threads_run():
    run_program(FORK, *network_backends(), "torch", RLOX_NUM_THREADS="2")


def test_isolate_rng_seeds_and_restores_the_mps_generator(monkeypatch):
    calls = []
    state = torch.zeros(1)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.mps, "manual_seed", lambda seed: calls.append(seed))
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda new: calls.append(new is state))
    with isolate_rng(3, torch.device("mps")):
        calls.append("inside")
    assert calls == [3, "inside", True]


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.pop("bias"),
        lambda a: a.update(more=np.zeros(1)),
        lambda a: a.update(bias=np.zeros(3)),
        lambda a: a.update(bias=np.zeros(4, np.float32)),
    ],
    ids=["missing", "unknown", "dtype", "shape"],
)
def test_module_tensors_rejects_other_arrays(change):
    module, other = nn.Linear(2, 3), nn.Linear(2, 3)
    arrays = module_arrays(module)
    other.load_state_dict(module_tensors(other, arrays))
    assert torch.equal(module.weight, other.weight)
    assert module.weight.data_ptr() != other.weight.data_ptr()
    change(arrays)
    with rejects(ArgumentError, "networks", "create the policy"):
        module_tensors(module, arrays)


def test_attach_generator_sets_only_an_existing_attribute():
    generator = torch.Generator()
    module = nn.Tanh()
    module.generator = None
    assert attach_generator(module, generator).generator is generator
    assert not hasattr(attach_generator(nn.Tanh(), generator), "generator")
