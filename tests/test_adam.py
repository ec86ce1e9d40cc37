"""Adam against torch's, which is slower to import and to step."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from rlox.adam import Adam
from rlox.optimizer import clip_norm_


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2, bias=False))


def loss(net, i):
    with torch.random.fork_rng():
        torch.manual_seed(i)
        return net(torch.randn(16, 4)).square().mean()


def step(adam, net, i, rate=1e-2):
    gradient = adam.gradient(loss(net, i))
    clip_norm_(gradient, 0.05)
    adam.step(gradient, rate)


def test_steps_with_clipping_equal_torchs():
    ours, theirs = network(), network()
    adam, reference = Adam(ours), torch.optim.Adam(theirs.parameters(), eps=1e-5)
    for i in range(50):
        rate = 1e-2 / (1 + i)
        step(adam, ours, i, rate)
        reference.param_groups[0]["lr"] = rate
        reference.zero_grad()
        loss(theirs, i).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
        reference.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("norm", "after"), [(0.5, 0.5), (2.0, 1.0)])
def test_only_gradients_that_are_too_long_are_shortened(norm, after):
    gradient = torch.full((4,), norm / 2)
    clip_norm_(gradient, 1.0)
    torch.testing.assert_close(gradient.norm().item(), after, rtol=1e-5, atol=0)


def test_a_state_goes_on_where_it_was_taken():
    net = network()
    adam = Adam(net)
    step(adam, net, 0)
    state, weights = adam.state(), {k: v.clone() for k, v in net.state_dict().items()}
    assert sorted(state) == sorted(
        [
            "0.step",
            "2.step",
            *(f"{n}.{kind}" for kind in ("exp_avg", "exp_avg_sq") for n in weights),
        ]
    )
    step(adam, net, 1)

    again = network()
    again.load_state_dict(weights)
    other = Adam(again)
    other.load_state(state)
    step(other, again, 1)
    for mine, theirs in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_state_of_other_parameters_is_refused():
    state = Adam(network()).state()
    with pytest.raises(ValueError, match=r"optimizer: .* first 0\.bias\.exp_avg"):
        Adam(nn.Sequential(nn.Linear(4, 7))).load_state(state)
    with pytest.raises(ValueError, match="optimizer: expected the state of these parameters"):
        Adam(network()).load_state({**state, "0.step": np.zeros(3)})


@pytest.mark.parametrize(
    ("name", "number", "expected"),
    [
        ("0.step", 0.5, "one count of steps, in 0.step, got 0.5"),
        ("2.step", 1.0, "one count of steps, in 2.step, got 1.0"),
        ("0.bias.exp_avg_sq", -1.0, "finite numbers, at least 0, in 0.bias.exp_avg_sq, got -1.0"),
        ("0.bias.exp_avg_sq", np.inf, "finite numbers, at least 0, in 0.bias.exp_avg_sq, got inf"),
        ("2.weight.exp_avg", np.nan, "finite numbers, in 2.weight.exp_avg, got nan"),
    ],
)
def test_a_state_that_makes_no_sense_is_refused_and_changes_nothing(name, number, expected):
    adam = Adam(network())
    state = adam.state()
    state[name] = np.full_like(state[name], number)
    with pytest.raises(ValueError, match=rf"optimizer: expected {re.escape(expected)}; "):
        adam.load_state(state)
    assert all(not array.any() for array in adam.state().values())


def test_parameters_with_new_memory_are_still_moved():
    net, moved = network(), network()
    adam, other = Adam(net), Adam(moved)
    for i in range(3):
        moved.load_state_dict(moved.state_dict(), assign=False)
        for parameter in moved.parameters():
            parameter.data = parameter.data.clone()
        step(adam, net, i)
        step(other, moved, i)
    for mine, theirs in zip(net.parameters(), moved.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_frozen_parameters_stay_and_unused_ones_have_no_gradient():
    net = network()
    net[0].weight.requires_grad_(False)
    net.unused = nn.Parameter(torch.ones(3))
    frozen = net[0].weight.clone()
    adam = Adam(net)
    adam.step(adam.gradient(net[2](net[0](torch.ones(1, 4))).sum()), 0.1)
    assert torch.equal(net[0].weight, frozen)
    assert torch.equal(net.unused, torch.ones(3))


@pytest.mark.parametrize(
    ("module", "got"),
    [
        (nn.Tanh(), "got none"),
        (
            nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()),
            "got torch.float32 on cpu, torch.float64 on cpu",
        ),
    ],
)
def test_parameters_that_do_not_make_one_vector_are_refused(module, got):
    with pytest.raises(ValueError, match=f"expected trainable parameters of one dtype.*{got}"):
        Adam(module)
