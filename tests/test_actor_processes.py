"""Actors in processes: the same rollouts as in threads, any policy, and how they end."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rlox import make_vec, train_many
from rlox.configs import IMPALAConfig, PPOConfig
from rlox.native import NativeIMPALA
from rlox.trainers import A2CTrainer, DQNTrainer, IMPALATrainer, PPOTrainer
from support.envs import Breaking, Echo, Slow, cartpole

SPACES = ("observation", "action")
torch = pytest.importorskip("torch")


class Own(torch.nn.Module):
    """A policy of one's own, of two layers that share one."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.inner = torch.nn.Linear(observation_space.shape[0], 32)
        self.out = torch.nn.Linear(32, action_space.n + 1)

    def get_action_and_logprob(self, obs, mask=None, action=None):
        pi = torch.distributions.Categorical(logits=self.out(self.inner(obs).tanh())[:, :-1])
        action = pi.sample() if action is None else action
        return action, pi.log_prob(action), pi.entropy()

    def get_value(self, obs):
        return self.out(self.inner(obs).tanh())[:, -1]


def children():
    """Processes of this one that live."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in path.read_text().split()}


def trained(env, kind=IMPALATrainer, steps=640, **settings):
    how = {"seed": 3, "lockstep": True, "max_lag": 2, "num_actors": 2, "runs_dir": None}
    with kind(env=env, **how | settings) as trainer:
        trainer.train(steps)
        return trainer.learner.state()


def test_processes_collect_what_threads_do():
    in_threads, in_processes = trained("CartPole-v1"), trained(cartpole)
    np.testing.assert_equal(in_threads.networks, in_processes.networks)
    assert in_threads.counters == in_processes.counters


def test_a_policy_of_ones_own_acts_in_processes_and_runs_are_repeatable():
    how = {"num_envs": 4, "n_steps": 16, "policy": Own, "steps": 320, "num_actors": 1}
    one, other = (trained("CartPole-v1", **how) for _ in range(2))
    np.testing.assert_equal(one.networks, other.networks)
    assert {*one.networks} == {"inner.weight", "inner.bias", "out.weight", "out.bias"}
    made = Own(*(getattr(make_vec("CartPole-v1"), f"single_{x}_space") for x in SPACES))
    begun = {name: x.numpy().copy() for name, x in made.state_dict().items()}
    how |= {"async_collect": True, "batch_size": 32, "policy": made}
    learned = trained("CartPole-v1", PPOTrainer, **how).networks
    assert all((learned[name] != begun[name]).any() for name in begun)


def test_an_identity_is_learned():
    how = {"seed": 0, "num_envs": 8, "gamma": 0.0, "runs_dir": None, "num_actors": 2}
    with IMPALATrainer(env=Echo, **how) as trainer:
        trainer.train(20_000)
        assert trainer.evaluate(10)["mean_reward"] == 10.0


def test_statistics_of_a_normaliser_come_back(tmp_path):
    how = {"normalize_obs": True, "normalize_reward": True, "async_collect": True}
    how |= {"num_envs": 4, "n_steps": 8, "runs_dir": None}
    with A2CTrainer(env=cartpole, seed=1, **how) as trainer:
        trainer.train(320)
        seen = trainer.learner.normalizer.state()
        # Of every rollout that was learned from, with the observations after the last step.
        assert seen["obs_count"].round() == 320 + 4
        trainer.save(tmp_path / "saved")
        trainer.learner.stop_actors()
        again = A2CTrainer.load(tmp_path / "saved", env=cartpole, runs_dir=None)
        with again, pytest.warns(UserWarning, match="rollouts under way are not saved"):
            again.train(320)
        later = again.learner.normalizer.state()
        assert later["obs_count"].round() == 2 * (320 + 4)


def test_actors_may_be_where_processes_are_and_have_processes():
    how = {"async_collect": True, "n_steps": 8, "num_envs": 2, "runs_dir": None}
    results = train_many("a2c", cartpole, [1, 2], 64, processes=True, backend="native", **how)
    assert [result["timesteps"] for result in results] == [64, 64]
    apart = {"env_kwargs": {"vectorization_mode": "async"}, **how}
    with A2CTrainer(env=cartpole, seed=1, **apart) as trainer:
        assert trainer.train(64)["timesteps"] == 64


def test_stopping_ends_the_wait_for_actors_that_begin():
    with IMPALATrainer(env=Slow, seed=0, runs_dir=None) as trainer:
        threading.Timer(1.0, trainer.stop).start()
        start = time.monotonic()
        assert trainer.train(1_000)["timesteps"] == 0
        assert time.monotonic() - start < 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_them_alone():
    with IMPALATrainer(env=cartpole, seed=0, runs_dir=None) as trainer:
        trainer.train(80)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            trainer.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert trainer.train(80)["timesteps"] == 160


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_what_an_environment_raises_is_raised_and_nothing_stays():
    before = children()
    config = IMPALAConfig(num_envs=2, net_arch=(4,))
    learner = NativeIMPALA(make_vec(Breaking, 2), config, 0)

    def learn(one):
        for _ in range(10):
            one.iterate()

    with pytest.raises(ArithmeticError, match="the environment broke"):
        learn(learner)
    assert children() == before
    assert learner.actors is None
    killing = NativeIMPALA(make_vec(Breaking, 2, how="kill"), config, 0)
    with pytest.raises(RuntimeError, match=r"actor 0: expected a living process.* died with -9"):
        learn(killing)
    assert children() == before


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_step_that_lasts_holds_nobody_up():
    before = children()
    learner = NativeIMPALA(
        make_vec(Breaking, 2, how="sleep"), IMPALAConfig(num_envs=2, net_arch=(4,)), 0
    )
    stop = threading.Timer(3.0, setattr, (learner, "stopping", True))
    stop.start()
    while learner.iterate():
        pass
    assert learner.timesteps == 30  # of 19 steps before the one that lasts, three whole rollouts
    start = time.monotonic()
    learner.stop_actors()
    assert time.monotonic() - start < 6
    assert children() == before


def test_environments_that_cannot_be_made_there_are_told_of():
    parent = os.getpid()

    def only_here():
        if os.getpid() != parent:
            raise LookupError("only at home")
        return cartpole()

    learner = NativeIMPALA(make_vec(only_here, 2), IMPALAConfig(num_envs=2, net_arch=(4,)), 0)
    with pytest.raises(LookupError, match="only at home"):
        learner.iterate()
    assert learner.actors is None


SCRIPT = """
import os, signal, sys, threading
import gymnasium as gym
from rlox.trainers import PPOTrainer

if __name__ == "__main__":
    how = {"async_collect": True, "num_envs": 2, "n_steps": 16, "runs_dir": None}
    trainer = PPOTrainer(env=lambda: gym.make("CartPole-v1"), seed=1, **how)
    trainer.train(64)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    result = trainer.train(10**9)
    print(result["stopped_by"], trainer.timesteps > 64)
"""


def test_ctrl_c_ends_a_script_and_its_processes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "True", done.stdout
    assert "Traceback" not in done.stderr


def test_minibatches_are_of_an_actors_rollout():
    config = {"num_envs": 8, "n_steps": 16, "async_collect": True, "num_actors": 4}
    assert PPOConfig(**config).batch_size == 32
    match = r"batch_size: expected at most num_envs / num_actors \* n_steps = 32 steps, got 64"
    with pytest.raises(ValueError, match=match):
        PPOConfig(**config, batch_size=64)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_loaded_run_goes_on_with_actors_elsewhere(tmp_path, backend):
    how = {"seed": 3, "lockstep": True, "max_lag": 2, "num_actors": 2, "runs_dir": None}
    with IMPALATrainer(env="CartPole-v1", actors="threads", backend=backend, **how) as trainer:
        trainer.train(320)
        trainer.save(tmp_path / "saved")
    went, began = [], children()
    for actors in (None, "threads", "processes"):
        with IMPALATrainer.load(tmp_path / "saved", actors=actors, runs_dir=None) as loaded:
            with pytest.warns(UserWarning, match="rollouts under way are not saved"):
                loaded.train(320)
            assert loaded.config.actors == actors or actors is None
            assert bool(children() - began) == (actors == "processes")
            went.append(loaded.learner.state())
            loaded.save(tmp_path / "again")
    again = IMPALATrainer.load(tmp_path / "again", runs_dir=None)
    assert again.config.actors == "processes"
    np.testing.assert_equal(went[0].networks, went[1].networks)
    if backend == "native":  # on torch, processes draw from torch's generator
        np.testing.assert_equal(went[0].networks, went[2].networks)
    assert went[0].counters["timesteps"] == went[2].counters["timesteps"] == 640


def test_actors_are_refused_where_the_loaded_run_has_none(tmp_path):
    expected = "actors: expected a checkpoint of a run with actors, got one in which"
    turns = {"lockstep": True, "max_lag": 0}
    for kind, settings, why in (
        (PPOTrainer, {"n_steps": 32}, "async_collect is False"),
        (IMPALATrainer, turns, "actor and learner take turns"),
        (DQNTrainer, {"buffer_size": 100}, "dqn has no such setting"),
    ):
        with kind("CartPole-v1", 1, runs_dir=None, **settings) as trainer:
            trainer.save(tmp_path / "saved")
        with pytest.raises(ValueError, match=f"{expected} {why}.*'threads'; leave it out"):
            kind.load(tmp_path / "saved", actors="threads", runs_dir=None)
    with IMPALATrainer("CartPole-v1", 1, runs_dir=None) as trainer:
        trainer.save(tmp_path / "saved")
    for actors, error, match in (
        ("grpc", ValueError, "actors: expected 'auto', .* got 'grpc'; pass one of them"),
        (3, TypeError, "actors: expected a str, got 3"),
        ("grpc://a:1,b:1", ValueError, "num_actors: expected at least 2, one for each worker"),
    ):
        with pytest.raises(error, match=match):
            IMPALATrainer.load(tmp_path / "saved", actors=actors, runs_dir=None)
    with IMPALATrainer(Echo, 1, runs_dir=None) as trainer:
        trainer.save(tmp_path / "saved")
    with pytest.raises(ValueError, match="actors: expected 'processes' or 'ray' where environ"):
        IMPALATrainer.load(tmp_path / "saved", env=Echo, actors="threads", runs_dir=None)


def test_what_a_process_cannot_make_alike_is_named():
    here, lock = os.getpid(), threading.Lock()

    def locked():
        with lock:
            return cartpole()

    def others():
        return gym.make("CartPole-v1" if os.getpid() == here else "Acrobot-v1")

    with pytest.raises(TypeError, match="env: expected environments and policy that another proc"):
        trained(locked)
    said = r"env: expected the observation space of the learner's .*\(4,\).*, got Box.*\(6,\)"
    with pytest.raises(ValueError, match=said):
        trained(others)
