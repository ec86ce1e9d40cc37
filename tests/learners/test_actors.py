"""Actors in threads and processes: equal rollouts, errors, stops and clean exits."""

import gc
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rlox import ArgumentError, ArgumentTypeError, ClosedError, NonFiniteError, VecEnv, make_vec, train_many
from rlox.configs import IMPALAConfig, PPOConfig
from rlox.learners import EpisodeStatistics
from rlox.learners._actors import blank_policy, start_thread_actors
from rlox.learners.native_on_policy import NativeIMPALA
from rlox.trainers import A2CTrainer, DQNTrainer, IMPALATrainer, PPOTrainer
from support.envs import Breaking, Echo, Slow, cartpole
from support.rejections import expect_rejection, rejections, rejects
from support.thread_runs import run_in_fork, run_threads

CONFIG = IMPALAConfig(num_envs=4, net_arch=(8,))
NEEDS_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
SYNCHRONOUS = {"deterministic": True, "max_staleness": 0}
NEEDS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def train_and_get_state(env="CartPole-v1", trainer_cls=IMPALATrainer, steps=640, **settings):
    defaults = {"seed": 3, "deterministic": True, "max_staleness": 2, "num_actors": 2, "runs_dir": None}
    with trainer_cls(env=env, **defaults | settings) as trainer:
        trainer.train(steps)
        return trainer.learner.state()


def iterate(learner, times):
    for _ in range(times):
        learner.iterate()


def make_impala(**settings):
    return lambda: IMPALATrainer(**{"env": "CartPole-v1", "seed": 0, "runs_dir": None, **settings})


@rejections(
    (
        make_impala(env=gym.make_vec("CartPole-v1", 8, vectorization_mode="sync")),
        ArgumentError,
        "env",
        "deterministic=True",
    ),
    (make_impala(actors="ray", deterministic=True, max_staleness=0), ArgumentError, "actors", "raise max_staleness"),
    (make_impala(actors="grpc://a:1,b:1"), ArgumentError, "num_actors", "or name fewer"),
    (make_impala(env=Echo, actors="threads"), ArgumentError, "actors", "set actors='processes'"),
    (make_impala(actors="grpc"), ArgumentError, "actors", "pass 'auto'"),
    (make_impala(max_staleness=0), ArgumentError, "max_staleness", "deterministic=True"),
    (make_impala(num_actors=4, max_staleness=2), ArgumentError, "max_staleness", "lower num_actors"),
    (make_impala(num_actors=3), ArgumentError, "num_actors", "actors share the environments evenly"),
    (make_impala(num_actors=0), ArgumentError, "num_actors", "pass 1 or more"),
    (make_impala(num_actors=2, normalize_obs=True), ArgumentError, "num_actors", "in a wrapper"),
    (make_impala(actors="grpc://b:1,a", num_actors=2), ArgumentError, "actors", "the address"),
)
def test_invalid_actor_settings_are_rejected(rejection):
    expect_rejection(rejection)


def test_minibatches_are_at_most_one_actors_rollout():
    config = {"num_envs": 8, "n_steps": 16, "async_collect": True, "num_actors": 4}
    assert PPOConfig(**config).batch_size == 32
    expected = "at most num_envs / num_actors * n_steps = 32 steps"
    with rejects(ArgumentError, "batch_size", expected=expected, got="64"):
        PPOConfig(**config, batch_size=64)


@pytest.mark.parametrize(
    ("trainer_cls", "saved", "loaded", "argument", "got"),
    [
        (PPOTrainer, {"n_steps": 32}, {"actors": "threads"}, "actors", "async_collect is False"),
        (IMPALATrainer, SYNCHRONOUS, {"actors": "threads"}, "actors", "take turns"),
        (DQNTrainer, {"buffer_size": 100}, {"actors": "threads"}, "actors", "no such setting"),
        (IMPALATrainer, {}, {"actors": "grpc"}, "actors", "'grpc'"),
        (IMPALATrainer, {}, {"actors": 3}, "actors", "3"),
        (IMPALATrainer, {}, {"actors": "grpc://a:1,b:1"}, "num_actors", "1"),
        (IMPALATrainer, {"env": Echo}, {"env": Echo, "actors": "threads"}, "actors", "'threads'"),
    ],
)
def test_load_rejects_unsupported_actors(tmp_path, trainer_cls, saved, loaded, argument, got):
    with trainer_cls(**{"env": "CartPole-v1", "seed": 1, "runs_dir": None, **saved}) as trainer:
        trainer.save(tmp_path / "saved")
    error = ArgumentTypeError if loaded["actors"] == 3 else ArgumentError
    with rejects(error, argument) as raised:
        trainer_cls.load(tmp_path / "saved", runs_dir=None, **loaded)
    assert got in raised.value.got


# Threads


def has_actor_threads():
    """Return whether this process has actor threads."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has exited
            names.append(path.read_text())
    return any(name.startswith("rlox-actor") for name in names)


def actor_threads_exit():
    until = time.monotonic() + 5
    while has_actor_threads() and time.monotonic() < until:
        time.sleep(0.01)
    return not has_actor_threads()


def start_actors(config=CONFIG):
    env = VecEnv(config.num_envs)
    policy = blank_policy(env, config)
    return policy, start_thread_actors(env, config, policy, None, 1, np.random.default_rng(0))


@NEEDS_LINUX
def test_actor_threads_exit_with_their_owner():
    _, actors = start_actors()
    assert actors.pop(EpisodeStatistics()) is not None
    assert has_actor_threads()
    actors.close()
    actors.close()
    assert actor_threads_exit()
    with pytest.raises(ClosedError):
        actors.pop(EpisodeStatistics())
    learner = NativeIMPALA(make_vec("CartPole-v1", 4), CONFIG, 0)
    learner.iterate()
    assert has_actor_threads()
    del learner
    gc.collect()
    assert actor_threads_exit()


def test_error_of_an_actor_is_raised_once_and_closes_all_actors():
    policy, actors = start_actors()
    non_finite = {name: np.full_like(x, np.nan) for name, x in policy.tensors().items()}
    actors.pop(EpisodeStatistics())
    actors.publish(non_finite)

    def pop_until_error():
        for _ in range(5):
            actors.pop(EpisodeStatistics())

    with rejects(NonFiniteError, "tensors"):
        pop_until_error()
    with pytest.raises(ClosedError):
        actors.pop(EpisodeStatistics())
    actors.close()


def test_publish_requires_a_new_rollout():
    policy, actors = start_actors()
    for weights in (policy, policy.tensors()):
        with rejects(ArgumentError, "publish"):
            actors.publish(weights)
    actors.pop(EpisodeStatistics())
    actors.publish(policy)
    with rejects(ArgumentError, "publish"):
        actors.publish(policy)
    actors.close()


def test_learner_restarts_failed_actors():
    learner = NativeIMPALA(make_vec("CartPole-v1", 4), CONFIG, 0)
    learner.iterate()
    learner.actors.close()
    with pytest.raises(ClosedError):
        learner.iterate()
    assert learner.actors is None
    assert learner.iterate()["time/total_timesteps"] == 40


def test_episodes_of_all_actors_are_counted():
    config = IMPALAConfig(num_envs=4, n_steps=50, num_actors=2, net_arch=(8,))
    policy, actors = start_actors(config)
    episodes, steps = EpisodeStatistics(), 0
    for _ in range(40):
        rollout = actors.pop(episodes)
        steps += rollout.buffer.n_transitions
        actors.publish(policy)
    actors.close()
    assert steps == 40 * 50 * 2
    # CartPole pays 1 a step.
    assert episodes.count > 100
    assert list(episodes.returns) == list(episodes.lengths)


def test_rollouts_of_constant_weights_do_not_depend_on_their_staleness():
    states = []
    for staleness in (0, 1, 3):
        config = IMPALAConfig(num_envs=4, deterministic=True, max_staleness=staleness, learning_rate=0.0)
        learner = NativeIMPALA(make_vec("CartPole-v1", 4), config, 3)
        iterate(learner, 60)
        states.append((learner.episodes.state(), learner.timesteps))
        learner.stop_actors()
    assert states[0] == states[1] == states[2]
    assert states[0][0]["count"] > 10


def test_learners_in_several_threads_count_their_own_steps():
    seeds, timesteps = iter(range(4)), []

    def work():
        learner = NativeIMPALA(make_vec("CartPole-v1", 4), CONFIG, next(seeds))
        iterate(learner, 50)
        timesteps.append(learner.timesteps)

    assert run_threads(work, 4) == []
    assert timesteps == [1000] * 4


@NEEDS_FORK
def test_forked_child_cannot_use_threads_of_its_parent():
    _, actors = start_actors()
    actors.pop(EpisodeStatistics())

    def work():
        for call in (lambda: actors.pop(EpisodeStatistics()), actors.metrics):
            with pytest.raises(ClosedError):
                call()
        actors.close()

    run_in_fork(work)
    assert actors.pop(EpisodeStatistics()) is not None
    actors.close()


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(600)
@NEEDS_LINUX
def test_memory_stays_flat_over_ten_million_transitions():
    def resident():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    config = IMPALAConfig(num_envs=16, n_steps=20, num_actors=2)
    learner = NativeIMPALA(make_vec("CartPole-v1", 16), config, 0)
    sizes = []
    while learner.timesteps < 11_000_000:
        learner.iterate()
        if learner.timesteps >= (len(sizes) + 1) * 1_000_000:
            sizes.append(resident())
    learner.stop_actors()
    assert max(sizes[1:]) / sizes[0] < 1.01, sizes


# Processes


def child_processes():
    """Return the ids of the child processes."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in path.read_text().split()}


def test_processes_and_threads_collect_equal_rollouts():
    threads, processes = train_and_get_state(), train_and_get_state(cartpole)
    np.testing.assert_equal(threads.networks, processes.networks)
    assert threads.counters == processes.counters


@pytest.mark.processes
def test_custom_policies_act_in_processes_reproducibly():
    pytest.importorskip("torch")
    from support.policies import Coin

    settings = {"num_envs": 4, "n_steps": 16, "policy": Coin, "steps": 320, "num_actors": 1}
    first, second = (train_and_get_state(**settings) for _ in range(2))
    np.testing.assert_equal(first.networks, second.networks)
    env = make_vec("CartPole-v1")
    policy = Coin(env.single_observation_space, env.single_action_space)
    before = {name: x.numpy().copy() for name, x in policy.state_dict().items()}
    settings |= {"async_collect": True, "batch_size": 32, "policy": policy}
    learned = train_and_get_state(trainer_cls=PPOTrainer, **settings).networks
    assert all((learned[name] != before[name]).any() for name in before)


@pytest.mark.processes
def test_normalizer_statistics_return_from_processes(tmp_path):
    settings = {"normalize_obs": True, "normalize_reward": True, "async_collect": True}
    settings |= {"num_envs": 4, "n_steps": 8, "runs_dir": None}
    with A2CTrainer(env=cartpole, seed=1, **settings) as trainer:
        trainer.train(320)
        statistics = trainer.learner.normalizer.state()
        # One count for each rollout of the updates, including the observations after the last step.
        assert statistics["obs_count"].round() == 320 + 4
        trainer.save(tmp_path / "saved")
        trainer.learner.stop_actors()
        loaded = A2CTrainer.load(tmp_path / "saved", env=cartpole, runs_dir=None)
        with loaded, pytest.warns(UserWarning, match="rollouts under way are not saved"):
            loaded.train(320)
        later = loaded.learner.normalizer.state()
        assert later["obs_count"].round() == 2 * (320 + 4)


@pytest.mark.processes
def test_actors_run_in_worker_processes_and_start_processes():
    settings = {"async_collect": True, "n_steps": 8, "num_envs": 2, "runs_dir": None}
    results = train_many("a2c", cartpole, [1, 2], 64, processes=True, backend="native", **settings)
    assert [result["timesteps"] for result in results] == [64, 64]
    asynchronous = {"env_kwargs": {"vectorization_mode": "async"}, **settings}
    with A2CTrainer(env=cartpole, seed=1, **asynchronous) as trainer:
        assert trainer.train(64)["timesteps"] == 64


@pytest.mark.processes
@NEEDS_FORK
def test_forked_child_does_not_stop_processes_of_its_parent():
    with IMPALATrainer(env=cartpole, seed=0, runs_dir=None) as trainer:
        trainer.train(80)
        run_in_fork(trainer.close)
        assert trainer.train(80)["timesteps"] == 160


@pytest.mark.processes
@NEEDS_LINUX
@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("raise", ArithmeticError, "the environment broke"),
        pytest.param("kill", RuntimeError, "exit code -9", marks=pytest.mark.kills),
    ],
)
def test_error_of_an_environment_is_raised_and_stops_all_processes(fault, error, text):
    before = child_processes()
    config = IMPALAConfig(num_envs=2, net_arch=(4,))
    learner = NativeIMPALA(make_vec(Breaking, 2, fault=fault), config, 0)
    with rejects(error, text):
        iterate(learner, 10)
    assert child_processes() == before
    assert learner.actors is None


@pytest.mark.processes
@NEEDS_LINUX
def test_unresponsive_processes_do_not_block_stop_and_close():
    before = child_processes()
    with IMPALATrainer(env=Slow, seed=0, runs_dir=None) as trainer:  # processes of Slow start slowly
        threading.Timer(1.0, trainer.stop).start()
        start = time.monotonic()
        assert trainer.train(1_000)["timesteps"] == 0
        assert time.monotonic() - start < 8
    config = IMPALAConfig(num_envs=2, net_arch=(4,))
    learner = NativeIMPALA(make_vec(Breaking, 2, fault="sleep"), config, 0)
    threading.Timer(3.0, setattr, (learner, "stop_requested", True)).start()
    while learner.iterate():
        pass
    assert learner.timesteps == 30  # the 19 steps before the long step are three complete rollouts
    start = time.monotonic()
    learner.stop_actors()
    assert time.monotonic() - start < 6
    assert child_processes() == before


@pytest.mark.processes
def test_environments_that_differ_in_processes_are_rejected():
    parent, lock = os.getpid(), threading.Lock()

    def only_in_parent():
        if os.getpid() != parent:
            raise LookupError("only at home")
        return cartpole()

    def locked():
        with lock:
            return cartpole()

    def differs_in_child():
        return gym.make("CartPole-v1" if os.getpid() == parent else "Acrobot-v1")

    learner = NativeIMPALA(make_vec(only_in_parent, 2), IMPALAConfig(num_envs=2, net_arch=(4,)), 0)
    with pytest.raises(LookupError, match="only at home"):
        learner.iterate()
    assert learner.actors is None
    with rejects(ArgumentTypeError, "env", "create locks, files and connections"):
        train_and_get_state(locked)
    with rejects(ArgumentError, "env", got=str(gym.make("Acrobot-v1").observation_space)):
        train_and_get_state(differs_in_child)


@pytest.mark.processes
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_loaded_run_resumes_with_other_kinds_of_actors(tmp_path, backend):
    settings = {"seed": 3, "deterministic": True, "max_staleness": 2, "num_actors": 2, "runs_dir": None}
    with IMPALATrainer(env="CartPole-v1", actors="threads", backend=backend, **settings) as trainer:
        trainer.train(320)
        trainer.save(tmp_path / "saved")
    states, before = [], child_processes()
    for actors in (None, "threads", "processes"):
        with IMPALATrainer.load(tmp_path / "saved", actors=actors, runs_dir=None) as loaded:
            with pytest.warns(UserWarning, match="rollouts under way are not saved"):
                loaded.train(320)
            assert loaded.config.actors == actors or actors is None
            assert bool(child_processes() - before) == (actors == "processes")
            states.append(loaded.learner.state())
            loaded.save(tmp_path / "again")
    assert IMPALATrainer.load(tmp_path / "again", runs_dir=None).config.actors == "processes"
    np.testing.assert_equal(states[0].networks, states[1].networks)
    if backend == "native":  # on torch, processes draw from torch's generator
        np.testing.assert_equal(states[0].networks, states[2].networks)
    assert states[0].counters["timesteps"] == states[2].counters["timesteps"] == 640


SCRIPT = """
import os, signal, threading
import gymnasium as gym
from rlox._training.run import CTRL_C
from rlox.trainers import IMPALATrainer, PPOTrainer

if __name__ == "__main__":
    settings = {"async_collect": True, "num_envs": 2, "n_steps": 16, "seed": 1, "runs_dir": None}
    for trainer in (
        IMPALATrainer(env="CartPole-v1", seed=1, runs_dir=None),
        PPOTrainer(env=lambda: gym.make("CartPole-v1"), **settings),
    ):
        trainer.train(64)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        result = trainer.train(10**9)
        print(result["stopped_by"] == CTRL_C, result["interrupted"], trainer.timesteps > 64)
"""


@pytest.mark.processes
@pytest.mark.serial
def test_ctrl_c_stops_a_script_with_its_threads_and_processes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"] * 6, done.stdout
    assert "Traceback" not in done.stderr
