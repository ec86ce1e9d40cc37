"""Spaces in words: the same for equal spaces, others for others, whatever NumPy prints."""

import numpy as np
import pytest
from gymnasium import spaces

from rlox.spaces import describe

BOX = spaces.Box(*(np.array([s * 1.5, s * np.inf], np.float32) for s in (-1, 1)))
WIDE = spaces.Box(0, np.arange(1, 101, dtype=np.float32))
DESCRIPTIONS = [
    (spaces.Discrete(4), "Discrete(n=4, start=0, dtype=int64)"),
    (spaces.Discrete(4, start=-1), "Discrete(n=4, start=-1, dtype=int64)"),
    (
        spaces.MultiDiscrete([2, 3]),
        "MultiDiscrete(nvec=[2, 3], start=0, shape=(2,), dtype=int64)",
    ),
    (spaces.MultiBinary(3), "MultiBinary(shape=(3,), dtype=int8)"),
    (spaces.Box(-1, 1, (3, 2)), "Box(low=-1.0, high=1.0, shape=(3, 2), dtype=float32)"),
    (BOX, "Box(low=[-1.5, -inf], high=[1.5, inf], shape=(2,), dtype=float32)"),
    (spaces.Box(0, 255, (2, 2), np.uint8), "Box(low=0, high=255, shape=(2, 2), dtype=uint8)"),
    (spaces.Box(0, 1, (0,)), "Box(low=[], high=[], shape=(0,), dtype=float32)"),
]


@pytest.mark.parametrize(("space", "words"), DESCRIPTIONS)
def test_a_space_in_words(space, words):
    assert describe(space) == words


def test_print_options_change_nothing():
    before = [describe(space) for space in (BOX, WIDE)]
    with np.printoptions(precision=1, threshold=2, floatmode="fixed", suppress=True):
        assert [describe(space) for space in (BOX, WIDE)] == before


def test_many_bounds_are_told_by_their_checksum():
    high = WIDE.high.copy()
    high[50] = np.nextafter(high[50], np.float32(0))
    close = spaces.Box(0, high)
    with np.printoptions(precision=3):
        assert str(WIDE) == str(close)  # which is why that does not do
    assert describe(WIDE) != describe(close)
    assert describe(WIDE) == describe(spaces.Box(0, WIDE.high.copy()))
    assert "low=0.0, high=sha256:" in describe(WIDE)


def test_spaces_that_rollouts_do_not_know_are_refused():
    with pytest.raises(TypeError, match=r"space: expected Discrete, .* got Text"):
        describe(spaces.Text(3))
