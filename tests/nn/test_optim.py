"""Adam and RMSprop equal torch, and TensorFlow's RMSprop equals its definition."""

import numpy as np
import pytest
import torch
from torch import nn

from rlox import ArgumentError
from rlox._nn.optim import Adam, RMSprop, clip_norm_
from support.rejections import Rejection, expect_rejection, rejects

RMS = {"alpha": 0.9, "eps": 1e-3}
OPTIMIZERS = {
    "Adam": lambda net: Adam(net),
    "RMSprop": lambda net: RMSprop(net, **RMS),
    "RMSprop of TensorFlow": lambda net: RMSprop(net, **RMS, tf_like=True),
}
ALL_OPTIMIZERS = pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def make_network(dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2, bias=False))
        return net.to(dtype)


def compute_loss(net, i):
    with torch.random.fork_rng():
        torch.manual_seed(i)
        return net(torch.randn(16, 4).to(net[0].weight.dtype)).square().mean()


def step(optimizer, net, i, rate=1e-2):
    gradient = optimizer.gradient(compute_loss(net, i))
    clip_norm_(gradient, 0.05)
    optimizer.step(gradient, rate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("make_optimizer", "cls", "settings"),
    [
        pytest.param(OPTIMIZERS["Adam"], torch.optim.Adam, {"eps": 1e-5}, id="Adam"),
        pytest.param(OPTIMIZERS["RMSprop"], torch.optim.RMSprop, RMS, id="RMSprop"),
    ],
)
def test_steps_with_clipping_equal_torch(make_optimizer, cls, settings, dtype):
    net, expected = make_network(dtype), make_network(dtype)
    optimizer, reference = make_optimizer(net), cls(expected.parameters(), **settings)
    for i in range(50):
        rate = 1e-2 / (1 + i)
        step(optimizer, net, i, rate)
        reference.param_groups[0]["lr"] = rate
        reference.zero_grad()
        compute_loss(expected, i).backward()
        nn.utils.clip_grad_norm_(expected.parameters(), 0.05)
        reference.step()
    for actual, expected_parameter in zip(net.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(actual, expected_parameter, rtol=1e-5, atol=1e-6)


def test_tensorflow_rmsprop_equals_its_definition():
    net = make_network()
    rmsprop = OPTIMIZERS["RMSprop of TensorFlow"](net)
    weights = rmsprop.vector.double().numpy()
    square = np.ones_like(weights)
    for i in range(50):
        gradient = rmsprop.gradient(compute_loss(net, i))
        rmsprop.step(gradient, 1e-2)
        square = 0.9 * square + 0.1 * gradient.double().numpy() ** 2
        weights = weights - 1e-2 * gradient.double().numpy() / np.sqrt(square + 1e-3)
    np.testing.assert_allclose(rmsprop.vector, weights, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("norm", "after"), [(0.5, 0.5), (2.0, 1.0)])
def test_only_gradients_above_the_limit_are_clipped(norm, after):
    gradient = torch.full((4,), norm / 2)
    clip_norm_(gradient, 1.0)
    torch.testing.assert_close(gradient.norm().item(), after, rtol=1e-5, atol=0)


@ALL_OPTIMIZERS
def test_loaded_state_continues_like_the_original(make_optimizer):
    net, copy = make_network(), make_network()
    optimizer = make_optimizer(net)
    step(optimizer, net, 0)
    state, weights = optimizer.state(), {k: v.clone() for k, v in net.state_dict().items()}
    means = [f"{name}.{mean}" for mean in ("exp_avg", "exp_avg_sq") for name in weights]
    assert sorted(state) == sorted(["0.step", "2.step", *means])
    if isinstance(optimizer, RMSprop):
        assert not any(state[f"{name}.exp_avg"].any() for name in weights)
        squares = [state[f"{name}.exp_avg_sq"] > 0.5 for name in weights]
        assert all(square.all() == optimizer.tf_like for square in squares)
    step(optimizer, net, 1)

    copy.load_state_dict(weights)
    restored = make_optimizer(copy)
    restored.load_state(state)
    step(restored, copy, 1)
    assert torch.equal(optimizer.vector, restored.vector)


def test_states_of_other_parameters_and_optimizers_are_rejected():
    net = make_network()
    adam = Adam(net)
    step(adam, net, 0)
    state = adam.state()
    for optimizer, wrong in (
        (Adam(nn.Sequential(nn.Linear(4, 7))), state),
        (Adam(make_network()), {**state, "0.step": np.zeros(3)}),
        (RMSprop(make_network()), state),
    ):
        expect_rejection(Rejection(optimizer.load_state, ArgumentError, "optimizer"), wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("0.step", 0.5),
        ("2.step", 1.0),
        ("0.bias.exp_avg_sq", -1.0),
        ("0.bias.exp_avg_sq", np.inf),
        ("2.weight.exp_avg", np.nan),
    ],
)
def test_invalid_states_are_rejected_and_change_nothing(name, value):
    adam = Adam(make_network())
    state = adam.state()
    state[name] = np.full_like(state[name], value)
    with rejects(ArgumentError, "optimizer", got=str(value)) as raised:
        adam.load_state(state)
    assert raised.value.expected.endswith(f"in {name}")
    assert all(not array.any() for array in adam.state().values())


def test_parameters_with_new_memory_are_updated():
    net, moved = make_network(), make_network()
    adam, other = Adam(net), Adam(moved)
    for i in range(3):
        for parameter in moved.parameters():
            parameter.data = parameter.data.clone()
        step(adam, net, i)
        step(other, moved, i)
    for actual, expected_parameter in zip(net.parameters(), moved.parameters(), strict=True):
        assert torch.equal(actual, expected_parameter)


def test_frozen_and_unused_parameters_do_not_change():
    net = make_network()
    net[0].weight.requires_grad_(False)
    net.unused = nn.Parameter(torch.ones(3))
    frozen = net[0].weight.clone()
    adam = Adam(net)
    adam.step(adam.gradient(net[2](net[0](torch.ones(1, 4))).sum()), 0.1)
    assert torch.equal(net[0].weight, frozen)
    assert torch.equal(net.unused, torch.ones(3))


def test_modules_without_parameters_or_of_mixed_dtypes_are_rejected():
    for module in (nn.Tanh(), nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double())):
        expect_rejection(Rejection(Adam, ArgumentError, "policy"), module)
