"""Masks passed to methods of the built-in policies."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlox import ArgumentError, ArgumentTypeError
from rlox.policies import MlpPolicy, SdePolicy
from support.rejections import rejects


def calls_with_mask(space, mask):
    """Yield a call of each policy method with a mask, for these actions."""
    obs, box = torch.zeros(2, 3), spaces.Box(-1, 1, (3,))
    policy_types = [MlpPolicy, SdePolicy] if isinstance(space, spaces.Box) else [MlpPolicy]
    for policy in (policy_type(box, space) for policy_type in policy_types):
        action = policy.get_action_and_logprob(obs)[0]
        yield lambda p=policy: p.get_action_and_logprob(obs, mask)
        yield lambda p=policy, a=action: p.get_action_and_logprob(obs, mask, a)
        yield lambda p=policy, a=action: p.evaluate_actions(obs, a, mask)
        yield lambda p=policy: p.act(obs, mask)
        yield lambda p=policy: p.frozen_act()(obs, mask)
        yield lambda p=policy: p.mode(obs, mask)
        yield lambda p=policy: p.distribution(obs, mask)


ALL = torch.ones(2, 5, dtype=torch.bool)
EMPTY_GROUP = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]).bool()


@pytest.mark.parametrize(
    ("space", "mask", "error", "expected", "got"),
    [
        (spaces.Discrete(5), ALL[:, :4], ArgumentError, "(2, 5)", "shape (2, 4)"),
        (spaces.Discrete(5), ALL[0], ArgumentError, "(2, 5)", "shape (5,)"),
        (spaces.Discrete(5), ~ALL, ArgumentError, "(2, 5)", "rows without"),
        (spaces.Discrete(5), ALL * 1j, ArgumentTypeError, "(2, 5)", "torch.complex64"),
        (spaces.Discrete(5), "all", ArgumentTypeError, "(2, 5)", "'all'"),
        (spaces.Discrete(5), ALL * 2.5, ArgumentError, "(2, 5)", "numbers other than 0 and 1"),
        (spaces.Discrete(5), [[0, 1, 1, 1, np.nan]] * 2, ArgumentError, "(2, 5)", "nan"),
        (spaces.MultiDiscrete([2, 3]), EMPTY_GROUP, ArgumentError, "(2, 5)", "rows without"),
        (spaces.MultiBinary(5), ALL, ArgumentError, "(2, 10)", "shape (2, 5)"),
        (spaces.MultiBinary(2), [[1] * 4, [1, 1, 0, 0]], ArgumentError, "(2, 4)", "rows without"),
        (spaces.Box(-1, 1, (5,)), ALL, ArgumentError, "None", "Tensor"),
    ],
)
def test_every_policy_method_rejects_invalid_masks(space, mask, error, expected, got):
    for call in calls_with_mask(space, mask):
        with rejects(error, "action_masks") as raised:
            call()
        assert expected in raised.value.expected
        assert got in raised.value.got


@pytest.mark.parametrize("convert", [np.asarray, torch.Tensor.tolist, torch.Tensor.byte])
def test_masks_can_be_arrays_lists_and_bytes(convert):
    mask = torch.tensor([[True, False, False, False, False]] * 2)
    for call in calls_with_mask(spaces.Discrete(5), convert(mask)):
        result = call()
        log_probs = result.log_probs if hasattr(result, "log_probs") else None
        if log_probs is not None:
            assert torch.allclose(log_probs[:, 0], torch.zeros(2))
        elif not isinstance(result, tuple):
            assert result.tolist() == [0, 0]
