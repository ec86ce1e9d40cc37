"""Where the system grants no memory, native networks say so and stay what they were."""

import subprocess
import sys

import numpy as np
import pytest

from rlox import make_vec
from rlox.configs import PPOConfig
from rlox.native import NativePPO

pytest.importorskip("resource")

CALL = """
import resource, sys
import numpy as np
from rlox import make_vec
from rlox.configs import PPOConfig
from rlox.native import NativePPO

kind, spare = sys.argv[1], int(sys.argv[2])
env = make_vec("CartPole-v1", 8)
config = PPOConfig(num_envs=8, n_steps=256, batch_size=2048, n_epochs=1, net_arch=(512, 512))

def limit():
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, resource.RLIM_INFINITY))

try:
    if kind == "make":
        limit()
        NativePPO(env, config, seed=0)
    else:
        learner = NativePPO(env, config, seed=0)
        obs, before = np.zeros((50_000, 4), np.float32), learner.policy.tensors()
        limit()
        if kind == "iterate":
            learner.iterate()
        else:
            learner.predict(obs)
    print("done")
except MemoryError as error:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    if kind != "make":
        after = learner.policy.tensors()
        assert all(np.array_equal(x, after[name]) for name, x in before.items())
        assert learner.timesteps == 0
    print("refused", error)
"""


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["make", "iterate", "predict"])
def test_refused_memory_is_an_error_and_changes_nothing(kind):
    said = []
    for mebibytes in (1, 8, 16, 200):
        command = [sys.executable, "-c", CALL, kind, str(mebibytes << 20)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, (mebibytes, run.stderr[-2000:])
        said.append(run.stdout.split()[0])
    assert said[0] == "refused"
    assert said[-1] == "done"


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
    with pytest.raises(ValueError, match=f"^{part}: "):
        learner.load_state(state)
