"""Layouts: observations of any space become rows and come back as they were."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from rlox.layouts import Layout
from rlox.policies import torch_dtype

SPACES = {
    "Box": spaces.Box(-1, 1, (2, 3)),
    "Box of float64": spaces.Box(-1, 1, (2,), np.float64),
    "Box of uint8": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "scalar Box": spaces.Box(-1, 1, ()),
    "Discrete": spaces.Discrete(5, start=-2),
    "MultiDiscrete": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 2], [3, 4]]),
    "MultiBinary": spaces.MultiBinary((2, 3)),
    "Dict": spaces.Dict({"z": spaces.Box(0, 255, (3,), np.uint8), "a": spaces.Box(-1, 1, (2,))}),
    "Tuple": spaces.Tuple((spaces.Discrete(3, start=4), spaces.MultiBinary(5))),
    "nested": spaces.Dict(
        {
            "eyes": spaces.Tuple([spaces.Box(0, 255, (2, 2, 1), np.uint8)] * 2),
            "body": spaces.Dict({"joints": spaces.Box(-1, 1, (3,)), "mood": spaces.Discrete(3)}),
        }
    ),
    "Dict of integers": spaces.Dict({1: spaces.Box(-1, 1, (2,)), 2: spaces.Discrete(2)}),
}


def flat(space, obs):
    """Leaves as rollouts hold them, worked out from the space alone."""
    match space:
        case spaces.Dict():
            return [x for key, part in space.spaces.items() for x in flat(part, obs[key])]
        case spaces.Tuple():
            return [x for part, o in zip(space.spaces, obs, strict=True) for x in flat(part, o)]
        case spaces.Discrete() | spaces.MultiDiscrete():
            return [np.asarray(obs, np.int64) - space.start]
    kind = np.float32 if np.issubdtype(space.dtype, np.floating) else np.uint8
    return [np.asarray(obs, kind)]


def leaves(obs):
    if isinstance(obs, dict):
        return [x for part in obs.values() for x in leaves(part)]
    if isinstance(obs, tuple):
        return [x for part in obs for x in leaves(part)]
    return [obs]


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_what_is_packed_comes_back(space):
    layout, batched = Layout(space), batch_space(space, 7)
    batched.seed(3)
    obs = batched.sample()
    rows = layout.pack(obs)
    assert (rows.shape, rows.dtype) == ((7, *layout.shape), layout.dtype)
    expected = flat(space, obs)
    for got, want in zip(leaves(layout.unpack(rows)), expected, strict=True):
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)
    tensors = layout.unpack(torch.from_numpy(rows), torch_dtype)
    for got, want in zip(leaves(tensors), expected, strict=True):
        assert np.array_equal(got.numpy(), want)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_rows_may_have_more_dimensions_in_front(space):
    layout = Layout(space)
    rows = layout.pack(batch_space(space, 6).sample())
    for got, want in zip(
        leaves(layout.unpack(rows.reshape(2, 3, *layout.shape))),
        leaves(layout.unpack(rows)),
        strict=True,
    ):
        assert np.array_equal(got.reshape(want.shape), want)
        assert got.shape[:2] == (2, 3)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_single_observation_is_a_row(space):
    layout = Layout(space)
    space.seed(5)
    one = space.sample()
    for got, want in zip(
        leaves(layout.unpack(layout.row(one)[None])), flat(space, one), strict=True
    ):
        assert np.array_equal(got[0], want)


def test_views_of_packed_rows_are_not_copies():
    layout = Layout(SPACES["Dict"])
    rows = np.zeros((2, *layout.shape), np.uint8)
    layout.unpack(rows)["a"][:] = 1.0
    assert rows.any()


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Dict(a=spaces.Sequence(spaces.Discrete(2)))]
)
def test_other_spaces_are_refused_by_their_place(space):
    with pytest.raises(TypeError, match=r"observation space: expected Box.* as obs"):
        Layout(space)


def test_what_is_missing_is_named():
    layout = Layout(SPACES["nested"])
    with pytest.raises(ValueError, match=r"obs\['body'\]\['joints'\]: .*in the observation"):
        layout.pack({"eyes": (np.zeros((1, 2, 2, 1)),) * 2, "body": {}})


@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        (
            spaces.Discrete(3, start=2),
            [2, 5],
            r"obs: expected integers in \[2, 5\), got 5 in row 1",
        ),
        (spaces.Discrete(3), [-1], r"obs: expected integers in \[0, 3\), got -1 in row 0"),
        (spaces.MultiDiscrete([2, 9]), [[0, 8], [2, 0]], r"in \[0, 2\), got 2 in row 1"),
        (spaces.MultiBinary(2), [[0, 1], [1, 3]], r"in \[0, 2\), got 3 in row 1"),
        (spaces.Dict(a=spaces.Discrete(2)), {"a": [9]}, r"obs\['a'\]: .*\[0, 2\), got 9"),
    ],
)
def test_integers_that_are_not_in_the_space_are_refused(space, obs, words):
    with pytest.raises(ValueError, match=words):
        Layout(space).pack(obs)


def test_a_space_without_parts_is_refused():
    with pytest.raises(
        ValueError, match=r"observation space: expected one with parts, got Dict\(\)"
    ):
        Layout(spaces.Dict({}))


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_no_observations_are_no_rows(space):
    layout = Layout(space)
    batched = batch_space(space, 2)
    rows = layout.pack(layout.told(layout.pack(batched.sample())[:0]))
    assert (rows.shape, rows.dtype) == ((0, *layout.shape), layout.dtype)
