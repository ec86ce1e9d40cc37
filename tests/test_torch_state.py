"""Torch's global state is put back, and what modules keep is read before it is written."""

import contextlib

import numpy as np
import pytest
import torch
from torch import nn

from rlox.torch_state import find_device, module_arrays, module_tensors, own_generator, place


def test_the_global_generator_is_put_back_also_after_an_error():
    before = torch.get_rng_state()
    with contextlib.suppress(RuntimeError), own_generator(3):
        torch.rand(1)
        raise RuntimeError
    assert torch.equal(torch.get_rng_state(), before)


def test_the_generator_of_mps_is_ours_and_put_back(monkeypatch):
    calls = []
    state = torch.zeros(1)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.mps, "manual_seed", lambda seed: calls.append(seed))
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda new: calls.append(new is state))
    with own_generator(3, torch.device("mps")):
        calls.append("inside")
    assert calls == [3, "inside", True]


@pytest.mark.parametrize("name", ["abacus", "meta", "cuda:99", ""])
def test_devices_that_torch_cannot_use_are_refused(name):
    with pytest.raises(ValueError, match="device: expected one that torch can use here"):
        find_device(name)


def test_what_a_module_gave_it_takes():
    module, other = nn.Linear(2, 3), nn.Linear(2, 3)
    other.load_state_dict(module_tensors(other, module_arrays(module)))
    assert torch.equal(module.weight, other.weight)
    assert module.weight.data_ptr() != other.weight.data_ptr()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("bias"), r"with float32 \(3,\) as bias, got nothing"),
        (lambda a: a.update(more=np.zeros(1)), r"with nothing as more, got float64 \(1,\)"),
        (lambda a: a.update(bias=np.zeros(3)), r"with float32 .* as bias, got float64 \(3,\)"),
        (lambda a: a.update(bias=np.zeros(4, np.float32)), r"as bias, got float32 \(4,\)"),
    ],
)
def test_what_another_module_gave_is_refused(change, message):
    module = nn.Linear(2, 3)
    arrays = module_arrays(module)
    change(arrays)
    with pytest.raises(ValueError, match=f"networks: expected what a Linear .* {message}"):
        module_tensors(module, arrays)


def test_a_module_with_a_place_for_a_generator_gets_it():
    generator = torch.Generator()
    module = nn.Tanh()
    module.generator = None
    assert place(module, generator).generator is generator
    assert not hasattr(place(nn.Tanh(), generator), "generator")
