"""Actors in threads and processes: equal rollouts, errors, stops, and that they end."""

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

from rlox import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    NonFiniteError,
    VecEnv,
    make_vec,
    train_many,
)
from rlox.configs import IMPALAConfig, PPOConfig
from rlox.learners import EpisodeStatistics
from rlox.learners._actors import blank_policy, start_thread_actors
from rlox.learners.native_on_policy import NativeIMPALA
from rlox.trainers import A2CTrainer, DQNTrainer, IMPALATrainer, PPOTrainer
from support.envs import Breaking, Echo, Slow, cartpole
from support.refusals import expect_refusal, refusals, refuses
from support.thread_runs import run_in_fork, run_threads

CONFIG = IMPALAConfig(num_envs=4, net_arch=(8,))
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
TURNS = {"deterministic": True, "max_staleness": 0}
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def trained(env="CartPole-v1", kind=IMPALATrainer, steps=640, **settings):
    how = {"seed": 3, "deterministic": True, "max_staleness": 2, "num_actors": 2, "runs_dir": None}
    with kind(env=env, **how | settings) as trainer:
        trainer.train(steps)
        return trainer.learner.state()


def iterate(learner, times):
    for _ in range(times):
        learner.iterate()


def impala(**settings):
    return lambda: IMPALATrainer(**{"env": "CartPole-v1", "seed": 0, "runs_dir": None, **settings})


@refusals(
    (
        impala(env=gym.make_vec("CartPole-v1", 8, vectorization_mode="sync")),
        ArgumentError,
        "env",
        "deterministic=True",
    ),
    (
        impala(actors="ray", deterministic=True, max_staleness=0),
        ArgumentError,
        "actors",
        "raise max_staleness",
    ),
    (impala(actors="grpc://a:1,b:1"), ArgumentError, "num_actors", "or name fewer"),
    (impala(env=Echo, actors="threads"), ArgumentError, "actors", "set actors='processes'"),
    (impala(actors="grpc"), ArgumentError, "actors", "pass 'auto'"),
    (impala(max_staleness=0), ArgumentError, "max_staleness", "deterministic=True"),
    (impala(num_actors=4, max_staleness=2), ArgumentError, "max_staleness", "lower num_actors"),
    (impala(num_actors=3), ArgumentError, "num_actors", "actors share the environments evenly"),
    (impala(num_actors=0), ArgumentError, "num_actors", "pass 1 or more"),
    (impala(num_actors=2, normalize_obs=True), ArgumentError, "num_actors", "in a wrapper"),
    (impala(actors="grpc://b:1,a", num_actors=2), ArgumentError, "actors", "the address"),
)
def test_settings_that_actors_cannot_have_are_refused(refusal):
    expect_refusal(refusal)


def test_minibatches_are_at_most_one_actors_rollout():
    config = {"num_envs": 8, "n_steps": 16, "async_collect": True, "num_actors": 4}
    assert PPOConfig(**config).batch_size == 32
    expected = "at most num_envs / num_actors * n_steps = 32 steps"
    with refuses(ArgumentError, "batch_size", expected=expected, got="64"):
        PPOConfig(**config, batch_size=64)


@pytest.mark.parametrize(
    ("kind", "saved", "loaded", "argument", "got"),
    [
        (PPOTrainer, {"n_steps": 32}, {"actors": "threads"}, "actors", "async_collect is False"),
        (IMPALATrainer, TURNS, {"actors": "threads"}, "actors", "take turns"),
        (DQNTrainer, {"buffer_size": 100}, {"actors": "threads"}, "actors", "no such setting"),
        (IMPALATrainer, {}, {"actors": "grpc"}, "actors", "'grpc'"),
        (IMPALATrainer, {}, {"actors": 3}, "actors", "3"),
        (IMPALATrainer, {}, {"actors": "grpc://a:1,b:1"}, "num_actors", "1"),
        (IMPALATrainer, {"env": Echo}, {"env": Echo, "actors": "threads"}, "actors", "'threads'"),
    ],
)
def test_actors_that_a_loaded_run_cannot_have_are_refused(
    tmp_path, kind, saved, loaded, argument, got
):
    with kind(**{"env": "CartPole-v1", "seed": 1, "runs_dir": None, **saved}) as trainer:
        trainer.save(tmp_path / "saved")
    error = ArgumentTypeError if loaded["actors"] == 3 else ArgumentError
    with refuses(error, argument) as raised:
        kind.load(tmp_path / "saved", runs_dir=None, **loaded)
    assert got in raised.value.got


# Threads


def actor_threads():
    """Whether this process has threads of actors."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            names.append(path.read_text())
    return any(name.startswith("rlox-actor") for name in names)


def threads_end():
    until = time.monotonic() + 5
    while actor_threads() and time.monotonic() < until:
        time.sleep(0.01)
    return not actor_threads()


def make(config=CONFIG):
    env = VecEnv(config.num_envs)
    policy = blank_policy(env, config)
    return policy, start_thread_actors(env, config, policy, None, 1, np.random.default_rng(0))


@LINUX
def test_threads_end_with_their_owner():
    _, actors = make()
    assert actors.pop(EpisodeStatistics()) is not None
    assert actor_threads()
    actors.close()
    actors.close()
    assert threads_end()
    with pytest.raises(ClosedError):
        actors.pop(EpisodeStatistics())
    learner = NativeIMPALA(make_vec("CartPole-v1", 4), CONFIG, 0)
    learner.iterate()
    assert actor_threads()
    del learner
    gc.collect()
    assert threads_end()


def test_error_of_an_actor_is_raised_once_and_ends_all():
    policy, actors = make()
    spoiled = {name: np.full_like(x, np.nan) for name, x in policy.tensors().items()}
    actors.pop(EpisodeStatistics())
    actors.publish(spoiled)

    def take_all():
        for _ in range(5):
            actors.pop(EpisodeStatistics())

    with refuses(NonFiniteError, "tensors"):
        take_all()
    with pytest.raises(ClosedError):
        actors.pop(EpisodeStatistics())
    actors.close()


def test_weights_are_published_only_after_a_rollout_was_taken():
    policy, actors = make()
    for weights in (policy, policy.tensors()):
        with refuses(ArgumentError, "publish"):
            actors.publish(weights)
    actors.pop(EpisodeStatistics())
    actors.publish(policy)
    with refuses(ArgumentError, "publish"):
        actors.publish(policy)
    actors.close()


def test_learner_whose_actors_failed_starts_new_ones():
    learner = NativeIMPALA(make_vec("CartPole-v1", 4), CONFIG, 0)
    learner.iterate()
    learner.actors.close()
    with pytest.raises(ClosedError):
        learner.iterate()
    assert learner.actors is None
    assert learner.iterate()["time/total_timesteps"] == 40


def test_episodes_of_all_actors_are_counted():
    config = IMPALAConfig(num_envs=4, n_steps=50, num_actors=2, net_arch=(8,))
    policy, actors = make(config)
    episodes, steps = EpisodeStatistics(), 0
    for _ in range(40):
        taken = actors.pop(episodes)
        steps += actors.buffers[taken.buffer].n_transitions
        actors.publish(policy)
    actors.close()
    assert steps == 40 * 50 * 2
    # CartPole pays 1 a step.
    assert episodes.count > 100
    assert list(episodes.returns) == list(episodes.lengths)


def test_rollouts_of_constant_weights_do_not_depend_on_the_lag():
    states = []
    for lag in (0, 1, 3):
        config = IMPALAConfig(num_envs=4, deterministic=True, max_staleness=lag, learning_rate=0.0)
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


@FORKS
def test_forked_child_cannot_use_threads_of_its_parent():
    _, actors = make()
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
@LINUX
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


def children():
    """Processes of this one that live."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in path.read_text().split()}


def test_processes_collect_what_threads_do():
    threads, processes = trained(), trained(cartpole)
    np.testing.assert_equal(threads.networks, processes.networks)
    assert threads.counters == processes.counters


@pytest.mark.processes
def test_custom_policy_acts_in_processes_and_runs_are_repeatable():
    pytest.importorskip("torch")
    from support.policies import Coin

    how = {"num_envs": 4, "n_steps": 16, "policy": Coin, "steps": 320, "num_actors": 1}
    one, other = (trained(**how) for _ in range(2))
    np.testing.assert_equal(one.networks, other.networks)
    env = make_vec("CartPole-v1")
    policy = Coin(env.single_observation_space, env.single_action_space)
    before = {name: x.numpy().copy() for name, x in policy.state_dict().items()}
    how |= {"async_collect": True, "batch_size": 32, "policy": policy}
    learned = trained(kind=PPOTrainer, **how).networks
    assert all((learned[name] != before[name]).any() for name in before)


@pytest.mark.processes
def test_normalizer_statistics_come_back_from_processes(tmp_path):
    how = {"normalize_obs": True, "normalize_reward": True, "async_collect": True}
    how |= {"num_envs": 4, "n_steps": 8, "runs_dir": None}
    with A2CTrainer(env=cartpole, seed=1, **how) as trainer:
        trainer.train(320)
        statistics = trainer.learner.normalizer.state()
        # Of every rollout that was learned from, with the observations after the last step.
        assert statistics["obs_count"].round() == 320 + 4
        trainer.save(tmp_path / "saved")
        trainer.learner.stop_actors()
        again = A2CTrainer.load(tmp_path / "saved", env=cartpole, runs_dir=None)
        with again, pytest.warns(UserWarning, match="rollouts under way are not saved"):
            again.train(320)
        later = again.learner.normalizer.state()
        assert later["obs_count"].round() == 2 * (320 + 4)


@pytest.mark.processes
def test_actors_work_in_worker_processes_and_start_processes_themselves():
    how = {"async_collect": True, "n_steps": 8, "num_envs": 2, "runs_dir": None}
    results = train_many("a2c", cartpole, [1, 2], 64, processes=True, backend="native", **how)
    assert [result["timesteps"] for result in results] == [64, 64]
    asynchronous = {"env_kwargs": {"vectorization_mode": "async"}, **how}
    with A2CTrainer(env=cartpole, seed=1, **asynchronous) as trainer:
        assert trainer.train(64)["timesteps"] == 64


@pytest.mark.processes
@FORKS
def test_forked_child_leaves_processes_of_its_parent_alone():
    with IMPALATrainer(env=cartpole, seed=0, runs_dir=None) as trainer:
        trainer.train(80)
        run_in_fork(trainer.close)
        assert trainer.train(80)["timesteps"] == 160


@pytest.mark.processes
@LINUX
@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("raise", ArithmeticError, "the environment broke"),
        pytest.param("kill", RuntimeError, "exit code -9", marks=pytest.mark.kills),
    ],
)
def test_error_of_an_environment_is_raised_and_ends_all_processes(how, error, text):
    before = children()
    config = IMPALAConfig(num_envs=2, net_arch=(4,))
    learner = NativeIMPALA(make_vec(Breaking, 2, fault=how), config, 0)
    with refuses(error, text):
        iterate(learner, 10)
    assert children() == before
    assert learner.actors is None


@pytest.mark.processes
@LINUX
def test_processes_that_do_not_answer_hold_nobody_up():
    before = children()
    with IMPALATrainer(env=Slow, seed=0, runs_dir=None) as trainer:  # whose processes start slowly
        threading.Timer(1.0, trainer.stop).start()
        start = time.monotonic()
        assert trainer.train(1_000)["timesteps"] == 0
        assert time.monotonic() - start < 8
    config = IMPALAConfig(num_envs=2, net_arch=(4,))
    learner = NativeIMPALA(make_vec(Breaking, 2, fault="sleep"), config, 0)
    threading.Timer(3.0, setattr, (learner, "stop_requested", True)).start()
    while learner.iterate():
        pass
    assert learner.timesteps == 30  # 19 steps before the one that lasts are three whole rollouts
    start = time.monotonic()
    learner.stop_actors()
    assert time.monotonic() - start < 6
    assert children() == before


@pytest.mark.processes
def test_environments_that_a_process_cannot_make_alike_are_refused():
    parent, lock = os.getpid(), threading.Lock()

    def only_here():
        if os.getpid() != parent:
            raise LookupError("only at home")
        return cartpole()

    def locked():
        with lock:
            return cartpole()

    def other():
        return gym.make("CartPole-v1" if os.getpid() == parent else "Acrobot-v1")

    learner = NativeIMPALA(make_vec(only_here, 2), IMPALAConfig(num_envs=2, net_arch=(4,)), 0)
    with pytest.raises(LookupError, match="only at home"):
        learner.iterate()
    assert learner.actors is None
    with refuses(ArgumentTypeError, "env", "create locks, files and connections"):
        trained(locked)
    with refuses(ArgumentError, "env", got=str(gym.make("Acrobot-v1").observation_space)):
        trained(other)


@pytest.mark.processes
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_loaded_run_goes_on_with_actors_elsewhere(tmp_path, backend):
    how = {"seed": 3, "deterministic": True, "max_staleness": 2, "num_actors": 2, "runs_dir": None}
    with IMPALATrainer(env="CartPole-v1", actors="threads", backend=backend, **how) as trainer:
        trainer.train(320)
        trainer.save(tmp_path / "saved")
    states, before = [], children()
    for actors in (None, "threads", "processes"):
        with IMPALATrainer.load(tmp_path / "saved", actors=actors, runs_dir=None) as loaded:
            with pytest.warns(UserWarning, match="rollouts under way are not saved"):
                loaded.train(320)
            assert loaded.config.actors == actors or actors is None
            assert bool(children() - before) == (actors == "processes")
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
from rlox._training.results import CTRL_C
from rlox.trainers import IMPALATrainer, PPOTrainer

if __name__ == "__main__":
    how = {"async_collect": True, "num_envs": 2, "n_steps": 16, "seed": 1, "runs_dir": None}
    for trainer in (
        IMPALATrainer(env="CartPole-v1", seed=1, runs_dir=None),
        PPOTrainer(env=lambda: gym.make("CartPole-v1"), **how),
    ):
        trainer.train(64)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        result = trainer.train(10**9)
        print(result["stopped_by"] == CTRL_C, result["interrupted"], trainer.timesteps > 64)
"""


@pytest.mark.processes
@pytest.mark.serial
def test_ctrl_c_ends_a_script_with_its_threads_and_processes(tmp_path):
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
