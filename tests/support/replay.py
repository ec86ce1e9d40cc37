"""Transitions whose fields all have the number of the transition."""

import numpy as np


def transition(i, terminated=False, truncated=False, dim=2):
    """Return the arguments of `push` for transition number i."""
    obs, next_obs = np.full(dim, i, np.float32), np.full(dim, i + 1, np.float32)
    return obs, [-i], 0.5 * i, terminated, truncated, next_obs


def batch_of(rows):
    """Return the arguments of `push_batch` for transitions with these numbers."""
    obs, actions, rewards, terminated, truncated, next_obs = zip(
        *(transition(i) for i in rows), strict=True
    )
    return obs, next_obs, actions, rewards, terminated, truncated


def check(batch, dim=2):
    """Return the numbers of the transitions; all fields of a row must agree."""
    i = batch["obs"][:, 0]
    assert np.array_equal(batch["obs"], np.repeat(i, dim).reshape(-1, dim))
    assert np.array_equal(batch["next_obs"], np.repeat(i + 1, dim).reshape(-1, dim))
    assert np.array_equal(batch["actions"][:, 0], -i)
    assert np.array_equal(batch["rewards"], 0.5 * i)
    return i


def assert_equal_batches(one, other):
    """Compare batches, or states, with their dtypes."""
    np.testing.assert_equal(one, other)
    for name, array in one.items():
        assert isinstance(array, dict) or array.dtype == other[name].dtype, name
