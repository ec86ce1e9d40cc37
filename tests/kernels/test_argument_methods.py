"""Arguments with methods that mislead, change other arguments or never return."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from rlox import ArgumentError, Normalizer, RolloutBuffer, VecEnv
from rlox._rlox import NativeVectorEnv
from support.rejections import rejects

N = 4096


class MisleadingInt(int):
    def __lt__(self, other):
        return False

    def __add__(self, other):
        return "x"

    def __float__(self):
        return 7.0

    def bit_length(self):
        return 2**62

    def to_bytes(self, *args):
        return b""


def test_integers_are_read_without_overridden_methods():
    for argument, call in (
        ("seed", lambda: NativeVectorEnv("CartPole-v1", 2, MisleadingInt(-5))),
        ("n_steps", lambda: RolloutBuffer(MisleadingInt(-5), 1, (4,))),
        ("seed", lambda: NativeVectorEnv("CartPole-v1", 2).reset([0, MisleadingInt(-5)])),
    ):
        with rejects(ArgumentError, argument, got="-5"):
            call()
    env, large = NativeVectorEnv("CartPole-v1", 3), 2**70 + 2**32 - 1
    obs = env.reset(large)
    assert np.array_equal(obs, env.reset([large + i for i in range(3)]))
    assert np.array_equal(obs, env.reset(MisleadingInt(large)))


def test_flags_accept_numpy_booleans():
    Normalizer(1, (1,), obs=np.True_, reward=np.False_)


class SelfClearingNumber:
    """Number that clears the dict that contains it."""

    def __init__(self, **others):
        self.dict = {"low": self, **others}

    def __float__(self):
        self.dict.clear()
        return -0.01


def test_options_can_change_while_they_are_read():
    NativeVectorEnv("CartPole-v1", 2).reset(None, None, SelfClearingNumber(high=0.01).dict)


class ResizingKey:
    """Key that resizes an array when it is compared."""

    def __init__(self, key, array):
        self.key, self.array = key, array

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        if self.array is not None and self.array.dtype != np.int8:
            self.array.dtype = np.int8
            self.array.resize((N,), refcheck=False)
            self.array[:] = 1
        return False


@pytest.mark.parametrize("key", ["states", "episode_steps", "finished", "streams"])
def test_set_state_reads_an_array_that_changes_during_the_call(key):
    env = VecEnv(N, 0)
    env.reset()
    state = {name: np.array(array) for name, array in env.get_state().items()}
    key_object = ResizingKey(key, None)
    state = {key_object: None, **state}
    key_object.array = state["episode_returns"]
    env._native.set_state(state)
    assert key_object.array.dtype == np.int8
    assert (env.get_state()["episode_returns"] == 1).all()


CALLS = [
    "rlox.compute_gae(x, x, x, 0.0, Float(), 0.9)",
    "rlox.compute_gae(x, x, x, 0.0, Int(1), 0.9)",
    "rlox.pack_sequences([[1]], Index())",
    "rlox.RolloutBuffer(2, 1, Attribute())",
    "rlox.RolloutBuffer(2, 1, (4,), obs_dtype=Named())",
    "NativeVectorEnv('CartPole-v1', 2).reset(Attribute())",
    "NativeVectorEnv('CartPole-v1', 2, Int(2**70))",
    "NativeVectorEnv('CartPole-v1', 2).reset([Int(2**70)] * 2)",
    "NativeVectorEnv('CartPole-v1', 2).reset(None, None, {'low': Float()})",
    "NativeVectorEnv('CartPole-v1', 2).set_state(state)",
    "rlox.compute_group_advantages([None, Float()])",
    "rlox.compute_group_advantages(np.array([None, 1.0]).view(Array))",
    "rlox.compute_gae(x.astype('>f8').view(Array), x, x, 0.0)",
    "rlox.Normalizer(1, (1,)).load_state(Mapping())",
]
# Each call runs in a thread of a forked process, which exits while a method of an argument waits.
WAIT_PROGRAM = """
import json, os, sys, threading, time
import numpy as np, rlox
from rlox._rlox import NativeVectorEnv
started = threading.Event()
def wait(*args):
    started.set()
    while True:
        time.sleep(0.001)
class Float:
    __float__ = wait
class Index:
    __index__ = wait
class Attribute:
    __getattr__ = wait
class Int(int):
    __lt__ = __add__ = __index__ = __float__ = __repr__ = wait
class Meta(type):
    __repr__ = wait
class Named(metaclass=Meta):
    __repr__ = lambda self: 1 / 0
class Array(np.ndarray):
    def __getattribute__(self, name):
        wait()
class Key:
    __hash__ = lambda self: hash("states")
    __eq__ = lambda *keys: bool(armed) and wait()
class Mapping:
    __getitem__ = wait
armed, x = [], np.ones(4)
state = {Key(): 0, "states": 0}
armed.append(True)
def call(code):
    exec(code, globals())
    started.set()
codes = {}
for code in json.load(sys.stdin):
    pid = os.fork()
    if pid == 0:
        threading.Thread(target=call, args=(code,), daemon=True).start()
        assert started.wait(30)
        time.sleep(0.01)
        sys.exit()
    codes[code] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(codes))
"""


@pytest.fixture(scope="module")
def exit_codes():
    command = [sys.executable, "-W", "ignore", "-c", WAIT_PROGRAM]
    done = subprocess.run(command, input=json.dumps(CALLS), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
@pytest.mark.parametrize("call", CALLS)
def test_interpreter_exits_while_a_method_of_an_argument_runs(exit_codes, call):
    assert exit_codes[call] == 0
