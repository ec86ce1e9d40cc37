"""Masks given to the built-in policies by hand: used, or refused in clear words."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlox import ArgumentError, ArgumentTypeError
from rlox.policies import MlpPolicy, SdePolicy
from support.refusals import refuses


def said_of(space, mask):
    """What each method of a policy for these actions says with a mask."""
    obs, box = torch.zeros(2, 3), spaces.Box(-1, 1, (3,))
    kinds = [MlpPolicy, SdePolicy] if isinstance(space, spaces.Box) else [MlpPolicy]
    for policy in (kind(box, space) for kind in kinds):
        action = policy.get_action_and_logprob(obs)[0]
        yield lambda p=policy: p.get_action_and_logprob(obs, mask)
        yield lambda p=policy, a=action: p.get_action_and_logprob(obs, mask, a)
        yield lambda p=policy, a=action: p.evaluate_actions(obs, a, mask)
        yield lambda p=policy: p.act(obs, mask)
        yield lambda p=policy: p.frozen_act()(obs, mask)
        yield lambda p=policy: p.mode(obs, mask)
        yield lambda p=policy: p.distribution(obs, mask)


ALL = torch.ones(2, 5, dtype=torch.bool)
NONE_IN_ONE = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]).bool()


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
        (spaces.MultiDiscrete([2, 3]), NONE_IN_ONE, ArgumentError, "(2, 5)", "rows without"),
        (spaces.MultiBinary(5), ALL, ArgumentError, "(2, 10)", "shape (2, 5)"),
        (spaces.MultiBinary(2), [[1] * 4, [1, 1, 0, 0]], ArgumentError, "(2, 4)", "rows without"),
        (spaces.Box(-1, 1, (5,)), ALL, ArgumentError, "None", "Tensor"),
    ],
)
def test_masks_that_make_no_sense_are_refused_by_every_method(space, mask, error, expected, got):
    for say in said_of(space, mask):
        with refuses(error, "action_masks") as raised:
            say()
        assert expected in raised.value.expected
        assert got in raised.value.got


@pytest.mark.parametrize("given", [np.asarray, torch.Tensor.tolist, torch.Tensor.byte])
def test_masks_may_be_arrays_lists_and_numbers(given):
    mask = torch.tensor([[True, False, False, False, False]] * 2)
    for say in said_of(spaces.Discrete(5), given(mask)):
        said = say()
        log_probs = said.log_probs if hasattr(said, "log_probs") else None
        if log_probs is not None:
            assert torch.allclose(log_probs[:, 0], torch.zeros(2))
        elif not isinstance(said, tuple):
            assert said.tolist() == [0, 0]
