"""Devices of DQN, SAC and TD3, copies to devices, and `torch.compile`.

No GPU is needed: "meta" tensors replace GPU tensors, and asynchronous copies are simulated by
copies at the last possible time.
"""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlox import ArgumentError
from rlox._nn import runtime as torch_state
from rlox.algorithms._replay import Replay
from rlox.trainers import SACTrainer, TD3Trainer
from support.envs import Sampled
from support.off_policy import NORMALIZED, make_learner, run_iterations
from support.rejections import rejects

SMALL = {"learning_starts": 4, "batch_size": 8, "buffer_size": 100, "net_arch": (8,)}


NUMBERS = gym.spaces.Box(-1, 1, (1,))
PARTS = gym.spaces.Dict(number=NUMBERS, camera=gym.spaces.Box(0, 255, (3, 36, 36), np.uint8))


def make_pictures():
    return Sampled(PARTS, NUMBERS)


# Case of `make_learner`, environment and changed settings.
CASES = {
    "DQN": ("DQN", None, {}),
    "DQN, all options": ("DQN, all options", None, {"utd_ratio": None}),
    "SAC": ("SAC", None, {}),
    "SAC, fixed temperature": ("SAC", None, {"ent_coef": 0.1}),
    "SAC, gSDE": ("SAC", None, {"use_sde": True}),
    "SAC, normalised": ("SAC", None, NORMALIZED),
    "SAC, pictures": ("SAC", make_pictures, {}),
    "TD3": ("TD3", None, {"policy_delay": 1, "action_noise": None}),
    "TD3, pictures": ("TD3", make_pictures, {}),
}
PLAIN = ["DQN", "DQN, all options", "SAC", "SAC, gSDE", "TD3"]


def make_case_learner(name, **changes):
    case, env, settings = CASES[name]
    return make_learner(case, "torch", 3, env, **{**SMALL, **settings, **changes})


class FakeDeviceGenerator(torch.Generator):
    """CPU generator that reports another device."""

    def __new__(cls, device="cpu"):
        generator = super().__new__(cls, "cpu")
        generator.reported_device = torch.device(device)
        return generator

    @property
    def device(self):
        return self.reported_device


class RequireDevice(TorchDispatchMode):
    """Mode that rejects operations whose results are on another device."""

    def __init__(self, device):
        super().__init__()
        self.device_type, self.calls = device, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        for tensor in tree_leaves(result):
            assert not isinstance(tensor, Tensor) or tensor.device.type == self.device_type, func
        self.calls += 1
        return result


@pytest.mark.parametrize("name", CASES)
def test_all_tensors_of_acting_and_of_an_update_are_on_the_device(name, monkeypatch):
    monkeypatch.setattr(torch_state, "find_device", lambda name: torch.device("meta"))
    monkeypatch.setattr(torch, "Generator", FakeDeviceGenerator)
    learner = make_case_learner(name, learning_starts=1000)
    run_iterations(learner, 12)
    assert {p.device.type for p in learner.modules.parameters()} == {"meta"}
    monkeypatch.setattr(learner.replay, "prioritize", lambda errors: errors)
    batch = learner.replay.sample(learner.streams["minibatches"], learner.normalizer, **learner.sampling(0.0))
    obs = learner.unpack_obs(learner.stepper.obs.copy())
    with RequireDevice("meta") as mode:
        for _ in range(2):
            learner.begin()
            learner.sample_actions(obs, None)
            learner.greedy_actions(obs, None)
            learner.update(batch, 1e-3)
    assert mode.calls > 50


class DelayedCopies(TorchFunctionMode):
    """Mode that delays non-blocking copies until `synchronize`, and replaces CUDA events."""

    def __init__(self):
        super().__init__()
        self.pending, self.recorded, self.pinned = [], [], set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is Tensor.pin_memory:
            pinned = args[0].clone()
            self.pinned.add(pinned.data_ptr())
            return pinned
        if func is Tensor.to and isinstance(args[1], torch.device):
            source, target = args[0], torch.zeros_like(args[0])
            if kwargs.get("non_blocking"):
                assert args[1].type != "cuda" or source.data_ptr() in self.pinned
                self.pending.append((target, source))
            else:
                target.copy_(source)
            return target
        return func(*args, **kwargs)

    def record(self, stream):
        self.recorded = list(self.pending)

    def synchronize(self):
        for target, source in self.recorded:
            target.copy_(source)
        self.pending, self.recorded = [], []


@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("name", ["DQN, all options", "SAC", "SAC, normalised", "SAC, pictures"])
def test_pinned_memory_is_not_overwritten_before_the_copy_ends(name, device, monkeypatch):
    learner = make_case_learner(name, learning_starts=1000)
    run_iterations(learner, 30)
    layout, space, config, buffer = (learner.layout, learner.spaces[1], learner.config, learner.replay.buffer)
    replay = Replay(layout, space, config, config.num_envs, torch.device(device))
    replay.buffer = buffer
    copies = DelayedCopies()
    monkeypatch.setattr(torch.cuda, "Event", lambda: copies)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    with copies:
        batches = [replay.sample(np.random.default_rng(i), learner.normalizer) for i in range(4)]
    copies.record(None)
    copies.synchronize()
    for i, batch in enumerate(batches):
        expected = learner.replay.sample(np.random.default_rng(i), learner.normalizer)
        for a, b in zip(tree_leaves(batch), tree_leaves(expected), strict=True):
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def test_only_fields_of_the_minibatch_are_copied_to_the_device(monkeypatch):
    learner, sent = make_case_learner("DQN, all options", learning_starts=1000), []
    learner.iterate()
    monkeypatch.setattr(Tensor, "to", lambda tensor, *_, **__: sent.append(tensor) or tensor)
    learner.replay.device = torch.device("meta")
    learner.replay.sample(np.random.default_rng(0), None)
    # obs, next_obs, actions, rewards, terminated, discounts, weights
    assert len(sent) == 7


@pytest.mark.parametrize("cls", [SACTrainer, TD3Trainer])
def test_unavailable_devices_are_rejected(cls):
    with rejects(ArgumentError, "device", "pass another device such as 'cpu'"):
        cls("Pendulum-v1", device="meta", runs_dir=None)
    with rejects(ArgumentError, "device", 'backend="torch"'):
        cls("Pendulum-v1", device="cuda", backend="native", runs_dir=None)


# Torch raises this warning internally, which matters only if warnings are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_compiled_learners_learn_the_same(name):
    from torch._dynamo.utils import counters  # this import takes seconds

    before = torch.get_rng_state()
    plain, compiled = (make_case_learner(name, compile=x) for x in (False, True))
    rows = [[x.iterate() for _ in range(9)] for x in (plain, compiled)]
    assert compiled.losses is compiled._fast is not compiled._plain  # a full minibatch was compiled
    graphs = counters["stats"]["unique_graphs"]
    rows = [[x.iterate() for _ in range(5)] for x in (plain, compiled)]
    assert counters["stats"]["unique_graphs"] == graphs > 0
    assert plain.updates == compiled.updates > 1
    close = {"rtol": 1e-4, "atol": 1e-4}
    for key, value in rows[0][-1].items():
        np.testing.assert_allclose(rows[1][-1][key], value, **close, err_msg=key)
    after = compiled._networks()
    for key, array in plain._networks().items():
        np.testing.assert_allclose(after[key], array, **close, err_msg=key)
    assert torch.equal(torch.get_rng_state(), before)
