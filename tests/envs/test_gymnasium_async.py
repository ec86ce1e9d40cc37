"""Asynchronous environments: errors of workers are raised, and all processes end."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import gymnasium as gym
import pytest
from gymnasium.vector import AsyncVectorEnv

from rlox import ArgumentTypeError, collect_rollout, make_vec
from support.envs import Breaking
from support.rejections import rejects

# Gymnasium reports errors of workers as warnings.
pytestmark = pytest.mark.filterwarnings("default::UserWarning")


def workers(env):
    return env.unwrapped.processes


@pytest.mark.parametrize(
    ("fault", "error", "argument", "message"),
    [("raise", ArithmeticError, "", "the environment broke"), ("kill", RuntimeError, "env: ", "died at step 20")],
)
def test_error_of_a_worker_is_raised_and_close_ends_all_workers(fault, error, argument, message):
    env = make_vec(Breaking, 2, vectorization_mode="async", fault=fault)
    running = workers(env)
    assert isinstance(env.unwrapped, AsyncVectorEnv)
    with rejects(error, argument, message):
        collect_rollout(env, None, 25)
    env.close()
    assert not any(worker.is_alive() for worker in running)
    env.close()


def test_rejected_environments_leave_no_process_running():
    class OddAction(Breaking):
        action_space = gym.spaces.Tuple([gym.spaces.Discrete(2)])

    before = multiprocessing.active_children()
    with rejects(ArgumentTypeError, "action space"):
        make_vec(OddAction, 2, vectorization_mode="async")
    assert multiprocessing.active_children() == before


@pytest.mark.parametrize("env", ["CartPole-v1", Breaking])
def test_workers_of_closed_environments_exit_with_0(env):
    envs = make_vec(env, 2, seed=3, vectorization_mode="async")
    running = workers(envs)
    batch = collect_rollout(envs, None, 6)
    assert batch.valid.all()
    envs.close()
    assert [worker.exitcode for worker in running] == [0, 0]


TRAIN = """
from rlox.trainers import PPOTrainer
keywords = {"vectorization_mode": "async"}
with PPOTrainer(
    "CartPole-v1", 1, num_envs=2, n_steps=16, env_kwargs=keywords, runs_dir=None
) as trainer:
    announce = lambda run, metrics: print("go", flush=True)
    print(trainer.train(10**7, callbacks=[announce])["interrupted"])
    print(trainer.evaluate(1)["returns"] != [])
"""
COLLECT = """
from rlox import collect_rollout, make_vec
env = make_vec("CartPole-v1", 2, seed=0, vectorization_mode="async")
while True:
    collect_rollout(env, None, 16)
    print("go", flush=True)
"""


def wait_for_end_of_group(group):
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.processes
@pytest.mark.serial
@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")
@pytest.mark.parametrize(("program", "last"), [(TRAIN, "True\nTrue\n"), (COLLECT, None)])
def test_interrupt_from_the_terminal_ends_all_processes(program, last):
    """Check that a signal to the whole process group stops training, or raises in a rollout."""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout.readline() == "go\n"
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
            assert wait_for_end_of_group(process.pid)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if last is None:
        assert "KeyboardInterrupt" in err
        assert process.returncode != 0
    else:
        assert process.returncode == 0, err
        assert out.endswith(last)
        assert "KeyboardInterrupt" not in err
