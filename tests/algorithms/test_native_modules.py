"""Weights of torch modules that native policies take over, and what they refuse of them."""

import numpy as np
import pytest
import torch

from rlox import make_vec
from rlox.algorithms import PPOConfig
from rlox.native import NativePPO


def test_half_weights_are_taken_over():
    native = NativePPO(make_vec("CartPole-v1", 1), PPOConfig(), seed=1)
    native.load_torch(native.to_torch().bfloat16())
    expected = native.to_torch().bfloat16().state_dict()
    for name, weight in native.policy.tensors().items():
        np.testing.assert_array_equal(weight, expected[name].float().numpy())


class Odd(torch.nn.Module):
    """A module that says it has something else than tensors."""

    def __init__(self, said):
        super().__init__()
        self.said = said

    def state_dict(self):
        return self.said


@pytest.mark.parametrize(
    ("module", "error", "match"),
    [
        (torch.nn.ReLU(), ValueError, "module: expected the activation 'tanh', got relu; "),
        (Odd({"actor.0.weight": [1.0]}), TypeError, r"got \[1\.0\] as actor\.0\.weight; "),
        (Odd({"a": torch.ones(1, dtype=torch.complex64)}), TypeError, "expected real tensors"),
        (Odd({"a": torch.ones(1, device="meta")}), TypeError, "tensors with numbers in its"),
        (Odd([1.0]), TypeError, r"got \[1\.0\] as state_dict\(\); "),
        (Odd({"a": torch.ones(1)}), ValueError, 'one named "actor.0.weight"'),
        (7, TypeError, "module: expected a torch module, got int; "),
    ],
)
def test_what_has_no_such_weights_is_refused_and_changes_nothing(module, error, match):
    native = NativePPO(make_vec("CartPole-v1", 1), PPOConfig(), seed=1)
    before = native.policy.tensors()
    with pytest.raises(error, match=match):
        native.load_torch(module)
    for name, weight in native.policy.tensors().items():
        np.testing.assert_array_equal(weight, before[name])
