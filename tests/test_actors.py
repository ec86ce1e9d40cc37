"""Actors: what they are refused for, and that they end."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rlox import ClosedError, VecEnv, make_vec
from rlox.actors import blank_policy, in_threads
from rlox.configs import IMPALAConfig
from rlox.learner import EpisodeStatistics
from rlox.native import NativeIMPALA
from rlox.trainers import IMPALATrainer
from support.envs import Echo

CONFIG = IMPALAConfig(num_envs=4, net_arch=(8,))


def refused(match, env="CartPole-v1", **settings):
    with pytest.raises(ValueError, match=match):
        IMPALATrainer(env=env, seed=0, runs_dir=None, **settings)


def test_what_actors_cannot_do_is_named_with_the_way_out():
    turns = "set lockstep=True, max_lag=0 and num_actors=1"
    said = f"env: expected an id, or a function.*ForeignVecEnv already made; pass what.*{turns}"
    refused(said, env=gym.make_vec("CartPole-v1", 8, vectorization_mode="sync"))
    turns = {"lockstep": True, "max_lag": 0}
    refused("actors: expected 'auto' where actor and learner take turns", actors="ray", **turns)
    refused("num_actors: expected at least 2, one for each worker, got 1", actors="grpc://a:1,b:1")
    refused("max_lag: expected at least 1 where", max_lag=0)
    said = "actors: expected 'processes' or 'ray' where environments are not native, got 'threads'"
    refused(said, env=Echo, actors="threads")
    refused("actors: expected 'auto', .*or workers such as 'grpc://.*, got 'grpc'", actors="grpc")
    for wrong in ("a", "a:", ":1", "a:x", "a:0", "a:65536", "b:1,a"):
        said = "actors: expected workers as host:port, such as 'grpc://host:50051,host:50052', got"
        refused(f"{said} '{wrong.split(',')[-1]}' in 'grpc", actors=f"grpc://{wrong}", num_actors=2)
    refused("max_lag: expected at least 1 where actors do not wait.*lockstep=True", max_lag=0)
    refused("max_lag: expected at least num_actors = 4, got 2", num_actors=4, max_lag=2)
    refused("num_actors: expected a divisor of num_envs = 8, got 3", num_actors=3)
    refused("num_actors: expected a divisor of num_envs = 8, got 16", num_actors=16)
    refused("num_actors: expected an integer of at least 1, got 0", num_actors=0)
    refused("num_actors: expected 1 beside normalize_obs", num_actors=2, normalize_obs=True)


def working():
    """Whether this process has threads of actors."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            names.append(path.read_text())
    return any(name.startswith("rlox-actor") for name in names)


def ended():
    """Whether they end soon: the system takes its time."""
    until = time.monotonic() + 5
    while working() and time.monotonic() < until:
        time.sleep(0.01)
    return not working()


def made(config=CONFIG):
    env = VecEnv(config.num_envs)
    policy = blank_policy(env, config)
    return policy, in_threads(env, config, policy, None, 1, np.random.default_rng(0))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_threads_end_with_their_owner():
    _, actors = made()
    assert actors.next(EpisodeStatistics()) is not None
    assert working()
    actors.close()
    actors.close()
    assert ended()
    with pytest.raises(ClosedError, match="NativeActors"):
        actors.next(EpisodeStatistics())
    learner = NativeIMPALA(make_vec("CartPole-v1", 4), CONFIG, 0)
    learner.iterate()
    assert working()
    del learner
    gc.collect()
    assert ended()


def test_what_an_actor_fails_of_is_raised_once_and_ends_all():
    policy, actors = made()
    spoiled = {name: np.full_like(x, np.nan) for name, x in policy.tensors().items()}
    actors.next(EpisodeStatistics())
    actors.publish(spoiled)

    def many():
        for _ in range(5):
            actors.next(EpisodeStatistics())

    with pytest.raises((ValueError, FloatingPointError), match="finite"):
        many()
    with pytest.raises(ClosedError, match="collector: expected one whose actors work"):
        actors.next(EpisodeStatistics())
    actors.close()


def test_weights_are_published_for_a_rollout_that_was_taken_alone():
    policy, actors = made()
    for weights in (policy, policy.tensors()):
        with pytest.raises(
            ValueError, match="publish: expected a rollout that was taken with next"
        ):
            actors.publish(weights)
    actors.next(EpisodeStatistics())
    actors.publish(policy)
    with pytest.raises(ValueError, match="publish: expected a rollout that was taken with next"):
        actors.publish(policy)
    actors.close()


def test_a_learner_whose_actors_failed_begins_with_new_ones():
    learner = NativeIMPALA(make_vec("CartPole-v1", 4), CONFIG, 0)
    learner.iterate()
    learner.actors.close()
    with pytest.raises(ClosedError):
        learner.iterate()
    assert learner.actors is None
    assert learner.iterate()["time/total_timesteps"] == 40


def test_episodes_of_all_actors_are_told_of():
    config = IMPALAConfig(num_envs=4, n_steps=50, num_actors=2, net_arch=(8,))
    policy, actors = made(config)
    episodes, steps = EpisodeStatistics(), 0
    for _ in range(40):
        taken = actors.next(episodes)
        steps += actors.buffers[taken.buffer].n_transitions
        actors.publish(policy)
    actors.close()
    assert steps == 40 * 50 * 2
    # CartPole pays 1 a step.
    assert episodes.count > 100
    assert list(episodes.returns) == list(episodes.lengths)


def test_weights_that_stay_make_the_same_rollouts_however_far_actors_are_ahead():
    seen = []
    for lag in (0, 1, 3):
        config = IMPALAConfig(num_envs=4, lockstep=True, max_lag=lag, learning_rate=0.0)
        learner = NativeIMPALA(make_vec("CartPole-v1", 4), config, 3)
        for _ in range(60):
            learner.iterate()
        seen.append((learner.episodes.state(), learner.timesteps))
        learner.stop_actors()
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][0]["count"] > 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused_what_has_no_threads_there():
    _, actors = made()
    actors.next(EpisodeStatistics())
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with pytest.raises(ClosedError, match="forked"):
            actors.next(EpisodeStatistics())
        with pytest.raises(ClosedError, match="forked"):
            actors.metrics()
        actors.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert actors.next(EpisodeStatistics()) is not None
    actors.close()


def test_ctrl_c_ends_a_run_and_the_process_ends():
    code = """
import os, signal, threading
from rlox.results import CTRL_C
from rlox.trainers import IMPALATrainer
trainer = IMPALATrainer(env="CartPole-v1", seed=1, runs_dir=None)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
result = trainer.train(10**9)
print(result["stopped_by"] == CTRL_C, result["interrupted"], trainer.timesteps > 0)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-3:] == ["True"] * 3, done.stdout


def test_learners_in_several_threads_count_their_own_steps():
    told = []

    def work(seed):
        learner = NativeIMPALA(make_vec("CartPole-v1", 4), CONFIG, seed)
        for _ in range(50):
            learner.iterate()
        told.append(learner.timesteps)

    all_of_them = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in all_of_them:
        thread.start()
    for thread in all_of_them:
        thread.join(60)
    assert told == [1000] * 4


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_memory_stays_flat_over_ten_million_transitions():
    def resident():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    config = IMPALAConfig(num_envs=16, n_steps=20, num_actors=2)
    learner = NativeIMPALA(make_vec("CartPole-v1", 16), config, 0)
    seen = []
    while learner.timesteps < 11_000_000:
        learner.iterate()
        if learner.timesteps >= (len(seen) + 1) * 1_000_000:
            seen.append(resident())
    learner.stop_actors()
    assert max(seen[1:]) / seen[0] < 1.01, seen
