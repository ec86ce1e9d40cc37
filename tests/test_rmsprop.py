"""RMSprop against torch's, and TensorFlow's form against its definition."""

import numpy as np
import pytest
import torch
from torch import nn

from rlox.adam import Adam
from rlox.rmsprop import RMSprop


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2, bias=False))


def loss(net, i):
    with torch.random.fork_rng():
        torch.manual_seed(i)
        return net(torch.randn(16, 4)).square().mean()


def test_steps_equal_torchs():
    ours, theirs = network(), network()
    rmsprop = RMSprop(ours, alpha=0.9, eps=1e-3)
    reference = torch.optim.RMSprop(theirs.parameters(), alpha=0.9, eps=1e-3)
    for i in range(50):
        rate = 1e-2 / (1 + i)
        rmsprop.step(rmsprop.gradient(loss(ours, i)), rate)
        reference.param_groups[0]["lr"] = rate
        reference.zero_grad()
        loss(theirs, i).backward()
        reference.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_tensorflows_form_is_its_definition():
    net = network()
    rmsprop = RMSprop(net, alpha=0.9, eps=1e-3, tf_like=True)
    weights = rmsprop.vector.double().numpy()
    square = np.ones_like(weights)
    for i in range(50):
        gradient = rmsprop.gradient(loss(net, i))
        rmsprop.step(gradient, 1e-2)
        square = 0.9 * square + 0.1 * gradient.double().numpy() ** 2
        weights = weights - 1e-2 * gradient.double().numpy() / np.sqrt(square + 1e-3)
    np.testing.assert_allclose(rmsprop.vector, weights, rtol=1e-4, atol=1e-6)


def test_the_first_step_of_either_form_is_as_computed_by_hand():
    def moved(tf_like):
        module = nn.Linear(1, 1, bias=False)
        rmsprop = RMSprop(module, alpha=0.75, eps=0.5, tf_like=tf_like)
        before = module.weight.item()
        rmsprop.step(torch.tensor([2.0]), 1.0)
        return before - module.weight.item()

    # The mean square is 0.75 * start + 0.25 * 4.
    assert moved(tf_like=False) == pytest.approx(2 / (1 + 0.5), rel=1e-6)
    assert moved(tf_like=True) == pytest.approx(2 / np.sqrt(1.75 + 0.5), rel=1e-6)


@pytest.mark.parametrize("tf_like", [False, True])
def test_a_state_goes_on_where_it_was_taken(tf_like):
    net = network()
    rmsprop = RMSprop(net, tf_like=tf_like)
    rmsprop.step(rmsprop.gradient(loss(net, 0)), 1e-2)
    state, weights = rmsprop.state(), {k: v.clone() for k, v in net.state_dict().items()}
    assert all(tf_like == (state[f"{name}.exp_avg_sq"] > 0.5).all() for name in weights)
    assert not any(state[f"{name}.exp_avg"].any() for name in weights)
    rmsprop.step(rmsprop.gradient(loss(net, 1)), 1e-2)

    again = network()
    again.load_state_dict(weights)
    other = RMSprop(again, tf_like=tf_like)
    other.load_state(state)
    other.step(other.gradient(loss(again, 1)), 1e-2)
    assert torch.equal(rmsprop.vector, other.vector)


def test_a_state_of_another_optimizer_is_refused():
    net = network()
    adam = Adam(net)
    adam.step(adam.gradient(loss(net, 0)), 1e-2)
    with pytest.raises(ValueError, match=r"optimizer: expected zeros, which this optimiser keeps"):
        RMSprop(network()).load_state(adam.state())
