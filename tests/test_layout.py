"""Observations of users: arrays of finite real numbers are accepted, other values are rejected."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlox import ArgumentTypeError, NonFiniteError, Normalizer
from rlox._layout import Layout, as_batch
from support.rejections import expect_rejection, rejections


def box_layout(shape):
    return Layout(spaces.Box(-np.inf, np.inf, shape))


@pytest.mark.parametrize(
    "obs",
    [
        [1, 2],
        (1.0, 2.0),
        np.array([1, 2], np.uint8),
        np.array([9.0, 1.0, 9.0, 2.0])[1::2],
        torch.tensor([1.0, 2.0]),
        [True, 2],
    ],
)
def test_as_batch_accepts_anything_that_numpy_converts(obs):
    rows, single = as_batch(obs, box_layout((2,)))
    assert (rows.tolist(), rows.dtype, single) == ([[1.0, 2.0]], np.float32, True)
    rows, single = as_batch(np.stack([obs, obs, obs]), box_layout((2,)))
    assert (rows.shape, single) == ((3, 2), False)


def test_as_batch_returns_a_copy():
    obs = np.zeros((1, 2), np.float32)
    as_batch(obs, box_layout((2,)))[0][:] = 7
    assert not obs.any()


@rejections(
    *(
        (partial(as_batch, obs, box_layout((2,))), ArgumentTypeError, "obs", hint)
        for obs, hint in (
            ("abc", "convert"),
            ([1.0, None], ""),
            ([1j, 2j], ""),
            (np.array(["2020", "2021"], "M8[Y]"), ""),
            ([[1.0, 2.0], [3.0]], "the same length"),
            (torch.zeros(2, requires_grad=True), "detach"),
        )
    ),
    (lambda: as_batch([0.0, np.nan], box_layout((2,))), NonFiniteError, "obs"),
    (lambda: as_batch([0.0, 1e300], box_layout((2,))), NonFiniteError, "obs"),
)
def test_as_batch_rejects_other_values_than_finite_real_numbers(rejection):
    expect_rejection(rejection)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-2, 2, (3,)),
        spaces.Box(0, 255, (6, 5, 3), np.uint8),
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(3),
        spaces.Dict(eye=spaces.Box(0, 255, (2, 3), np.uint8), side=spaces.Discrete(3, start=1)),
        spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)]),
    ],
    ids=str,
)
def test_reward_normalizer_does_not_change_observations(space):
    layout, obs = Layout(space), space.sample()
    normalizer = Normalizer(1, layout.shape, obs=False)
    assert not normalizer.normalizes_obs
    (rows, single), (expected, _) = as_batch(obs, layout, normalizer), as_batch(obs, layout)
    assert single
    assert rows.dtype == layout.dtype
    assert np.array_equal(rows, expected)
    assert np.array_equal(rows[0], layout.row(obs))


def test_obs_normalizer_converts_bytes_to_float32():
    layout = Layout(spaces.Box(0, 255, (2,), np.uint8))
    normalizer = Normalizer(1, (2,), reward=False)
    assert normalizer.normalizes_obs
    normalizer.update_obs([[100, 100], [200, 200]])
    rows, _ = as_batch([100, 200], layout, normalizer)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, [[-1.0, 1.0]], atol=1e-3)
