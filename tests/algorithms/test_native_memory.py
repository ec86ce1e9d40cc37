"""Where the system grants no memory, native networks say so and stay what they were."""

import subprocess
import sys

import numpy as np
import pytest

from rlox import make_vec
from rlox.configs import PPOConfig
from rlox.native import NativePPO

pytest.importorskip("resource")

CALLS = """
import os, resource, sys
import numpy as np
from rlox import make_vec
from rlox.configs import PPOConfig
from rlox.native import NativePPO

config = PPOConfig(num_envs=8, n_steps=256, batch_size=2048, n_epochs=1, net_arch=(512, 512))
calls = {
    "make": lambda learner: NativePPO(learner.env, config, seed=0),
    "iterate": lambda learner: learner.iterate(),
    "predict": lambda learner: learner.predict(np.zeros((50_000, 4), np.float32)),
}

def outcome(call, mebibytes):
    learner = NativePPO(make_vec("CartPole-v1", 8), config, seed=0)
    before = learner.policy.tensors()
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (mebibytes << 20), resource.RLIM_INFINITY))
    try:
        call(learner)
        return "done"
    except MemoryError:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    after = learner.policy.tensors()
    assert all(np.array_equal(x, after[name]) for name, x in before.items())
    assert learner.timesteps == 0
    return "refused"

for name, call in calls.items():
    for mebibytes in (1, 8, 16, 200):
        child = os.fork()  # a process that has no free memory of earlier cases
        if child == 0:
            print(name, outcome(call, mebibytes), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, (name, mebibytes)
"""


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_refused_memory_is_an_error_and_changes_nothing():
    run = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    said = [line.split() for line in run.stdout.splitlines()]
    for name in ("make", "iterate", "predict"):
        outcomes = [outcome for call, outcome in said if call == name]
        assert (len(outcomes), outcomes[0], outcomes[-1]) == (4, "refused", "done"), name


@pytest.mark.parametrize("part", ["networks", "optimizer", "environment"])
def test_a_state_that_is_refused_is_not_loaded_in_part(part):
    """Not even to be taken back: what was there before may be nothing that can be loaded."""
    config = PPOConfig(num_envs=2, n_steps=8, batch_size=16, n_epochs=1)
    learner = NativePPO(make_vec("CartPole-v1", 2), config, seed=0)
    learner.iterate()
    state = learner.state()
    getattr(state, part).clear()
    getattr(state, part)["nonsense"] = np.ones(1, np.float32)
    real = learner.policy

    class Checking:
        def load(self, tensors):
            raise AssertionError("loaded")

        def __getattr__(self, name):
            return getattr(real, name)

    learner.policy = Checking()
    with pytest.raises(ValueError, match=f"section {part}: "):
        learner.load_state(state)
