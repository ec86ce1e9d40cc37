"""Where DQN, SAC and TD3 compute: devices, copies to them, and `torch.compile`.

No GPU is needed: "meta" tensors stand for those of another device, and copies that a GPU would make
some time later are made as late as they may be.
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
from support.refusals import refuses

SMALL = {"learning_starts": 4, "batch_size": 8, "buffer_size": 100, "net_arch": (8,)}


NUMBERS = gym.spaces.Box(-1, 1, (1,))
PARTS = gym.spaces.Dict(number=NUMBERS, camera=gym.spaces.Box(0, 255, (3, 36, 36), np.uint8))


def pictures():
    return Sampled(PARTS, NUMBERS)


# Case, environment and further settings.
KINDS = {
    "DQN": ("DQN", None, {}),
    "DQN, all options": ("DQN, all options", None, {"utd_ratio": None}),
    "SAC": ("SAC", None, {}),
    "SAC, fixed temperature": ("SAC", None, {"ent_coef": 0.1}),
    "SAC, gSDE": ("SAC", None, {"use_sde": True}),
    "SAC, normalised": ("SAC", None, NORMALIZED),
    "SAC, pictures": ("SAC", pictures, {}),
    "TD3": ("TD3", None, {"policy_delay": 1, "action_noise": None}),
    "TD3, pictures": ("TD3", pictures, {}),
}
PLAIN = ["DQN", "DQN, all options", "SAC", "SAC, gSDE", "TD3"]


def learner(kind, **changes):
    case, env, settings = KINDS[kind]
    return make_learner(case, "torch", 3, env, **{**SMALL, **settings, **changes})


class Elsewhere(torch.Generator):
    """A generator of the CPU that says it is another device's."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls, "cpu")
        made.place = torch.device(device)
        return made

    @property
    def device(self):
        return self.place


class AllOn(TorchDispatchMode):
    """Refuses whatever makes a tensor that is on another device."""

    def __init__(self, device):
        super().__init__()
        self.kind, self.calls = device, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        for tensor in tree_leaves(made):
            assert not isinstance(tensor, Tensor) or tensor.device.type == self.kind, func
        self.calls += 1
        return made


@pytest.mark.parametrize("kind", KINDS)
def test_all_tensors_of_acting_and_of_an_update_are_on_the_device(kind, monkeypatch):
    monkeypatch.setattr(torch_state, "find_device", lambda name: torch.device("meta"))
    monkeypatch.setattr(torch, "Generator", Elsewhere)
    one = learner(kind, learning_starts=1000)
    run_iterations(one, 12)
    assert {p.device.type for p in one.modules.parameters()} == {"meta"}
    monkeypatch.setattr(one.replay, "prioritize", lambda errors: errors)
    batch = one.replay.sample(one.streams["minibatches"], one.normalizer, **one.sampling(0.0))
    obs = one.unpack_obs(one.stepper.obs.copy())
    with AllOn("meta") as watch:
        for _ in range(2):
            one.begin()
            one.sample_actions(obs, None)
            one.greedy_actions(obs, None)
            one.update(batch, 1e-3)
    assert watch.calls > 50


class Late(TorchFunctionMode):
    """Copies to other devices that nobody waited for are made when somebody does, and not before.

    It stands for CUDA's events, too.
    """

    def __init__(self):
        super().__init__()
        self.due, self.marked, self.pinned = [], [], set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is Tensor.pin_memory:
            pinned = args[0].clone()
            self.pinned.add(pinned.data_ptr())
            return pinned
        if func is Tensor.to and isinstance(args[1], torch.device):
            source, there = args[0], torch.zeros_like(args[0])
            if kwargs.get("non_blocking"):
                assert args[1].type != "cuda" or source.data_ptr() in self.pinned
                self.due.append((there, source))
            else:
                there.copy_(source)
            return there
        return func(*args, **kwargs)

    def record(self, stream):
        self.marked = list(self.due)

    def synchronize(self):
        for there, source in self.marked:
            there.copy_(source)
        self.due, self.marked = [], []


@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("kind", ["DQN, all options", "SAC", "SAC, normalised", "SAC, pictures"])
def test_memory_is_not_written_to_while_it_is_on_its_way_to_a_device(kind, device, monkeypatch):
    one = learner(kind, learning_starts=1000)
    run_iterations(one, 30)
    layout, space, config, buffer = one.layout, one.spaces[1], one.config, one.replay.buffer
    replay = Replay(layout, space, config, config.num_envs, torch.device(device))
    replay.buffer = buffer
    late = Late()
    monkeypatch.setattr(torch.cuda, "Event", lambda: late)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    with late:
        batches = [replay.sample(np.random.default_rng(i), one.normalizer) for i in range(4)]
    late.record(None)
    late.synchronize()
    for i, batch in enumerate(batches):
        expected = one.replay.sample(np.random.default_rng(i), one.normalizer)
        for got, wanted in zip(tree_leaves(batch), tree_leaves(expected), strict=True):
            same = torch.equal(got, wanted) if isinstance(got, Tensor) else got == wanted
            assert same


def test_only_what_is_learned_from_is_sent_to_a_device(monkeypatch):
    one, sent = learner("DQN, all options", learning_starts=1000), []
    one.iterate()
    monkeypatch.setattr(Tensor, "to", lambda tensor, *_, **__: sent.append(tensor) or tensor)
    one.replay.device = torch.device("meta")
    one.replay.sample(np.random.default_rng(0), None)
    # Observations, next ones, actions, rewards, terminated, discounts, weights.
    assert len(sent) == 7


@pytest.mark.parametrize("trainer", [SACTrainer, TD3Trainer])
def test_unavailable_devices_are_rejected(trainer):
    with refuses(ArgumentError, "device", "pass another device such as 'cpu'"):
        trainer("Pendulum-v1", device="meta", runs_dir=None)
    with refuses(ArgumentError, "device", 'backend="torch"'):
        trainer("Pendulum-v1", device="cuda", backend="native", runs_dir=None)


# Torch hides it from all but those to whom warnings are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("kind", PLAIN)
def test_what_is_compiled_learns_the_same(kind):
    from torch._dynamo.utils import counters  # which takes seconds

    before = torch.get_rng_state()
    plain, compiled = (learner(kind, compile=flag) for flag in (False, True))
    rows = [[one.iterate() for _ in range(9)] for one in (plain, compiled)]
    assert compiled.losses is compiled._fast is not compiled._plain  # a whole batch has been there
    graphs = counters["stats"]["unique_graphs"]
    rows = [[one.iterate() for _ in range(5)] for one in (plain, compiled)]
    assert counters["stats"]["unique_graphs"] == graphs > 0
    assert plain.updates == compiled.updates > 1
    for name, told in rows[0][-1].items():
        np.testing.assert_allclose(rows[1][-1][name], told, rtol=1e-4, atol=1e-4, err_msg=name)
    after = compiled._networks()
    for name, array in plain._networks().items():
        np.testing.assert_allclose(after[name], array, rtol=1e-4, atol=1e-4, err_msg=name)
    assert torch.equal(torch.get_rng_state(), before)
