"""Asynchronous environments: errors of workers are raised, and no process stays behind."""

import os
import signal
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv

from rlox import collect_rollout, make_vec

# Gymnasium logs what happened in a worker through warnings.
pytestmark = pytest.mark.filterwarnings("default::UserWarning")


class Fragile(gym.Env):
    """Raises or dies in its third step."""

    observation_space = gym.spaces.Box(0, 100, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fate=None):
        self.fate = fate

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 3 and self.fate == "raise":
            raise LookupError("the pole is gone")
        if self.steps == 3 and self.fate == "die":
            os._exit(3)
        return np.full(1, self.steps, np.float32), 1.0, self.steps == 4, False, {}


def workers(env):
    return env.unwrapped.processes


def test_error_in_a_worker_is_raised_and_closing_ends_all_workers():
    env = make_vec(Fragile, 2, vectorization_mode="async", fate="raise")
    running = workers(env)
    assert isinstance(env.unwrapped, AsyncVectorEnv)
    with pytest.raises(LookupError, match="the pole is gone"):
        collect_rollout(env, None, 5)
    env.close()
    assert not any(worker.is_alive() for worker in running)
    env.close()


def test_dead_worker_raises_and_closing_ends_the_others():
    env = make_vec(Fragile, 2, vectorization_mode="async", fate="die")
    running = workers(env)
    with pytest.raises(RuntimeError, match=r"env: .*worker.* died at step 3"):
        collect_rollout(env, None, 5)
    env.close()
    assert not any(worker.is_alive() for worker in running)


def test_refused_environments_leave_no_process(monkeypatch):
    made = []
    close = AsyncVectorEnv.close_extras
    monkeypatch.setattr(
        AsyncVectorEnv,
        "close_extras",
        lambda self, **kwargs: (made.append(self), close(self, **kwargs))[1],
    )

    class OddAction(Fragile):
        action_space = gym.spaces.Tuple([gym.spaces.Discrete(2)])

    with pytest.raises(TypeError, match="action space"):
        make_vec(OddAction, 2, vectorization_mode="async")
    assert len(made) == 1
    assert not any(worker.is_alive() for worker in workers(made[0]))


@pytest.mark.parametrize("env", ["CartPole-v1", Fragile])
def test_asynchronous_environments_close_in_order(env):
    made = make_vec(env, 2, seed=3, vectorization_mode="async")
    running = workers(made)
    batch = collect_rollout(made, None, 6)
    assert batch.valid.all()
    made.close()
    assert [worker.exitcode for worker in running] == [0, 0]


TRAIN = """
from rlox.trainers import PPOTrainer
keywords = {"vectorization_mode": "async"}
with PPOTrainer(
    "CartPole-v1", 1, num_envs=2, n_steps=16, env_kwargs=keywords, runs_dir=None
) as trainer:
    said = lambda trainer, metrics: print("go", flush=True)
    print(trainer.train(10**7, callbacks=[said])["interrupted"])
    print(trainer.evaluate(1)["returns"] != [])
"""
COLLECT = """
from rlox import collect_rollout, make_vec
env = make_vec("CartPole-v1", 2, seed=0, vectorization_mode="async")
while True:
    collect_rollout(env, None, 16)
    print("go", flush=True)
"""


def group_is_gone(group):
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
    """A terminal interrupts the whole group: the run ends in order all the same."""
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
            assert group_is_gone(process.pid)
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
