"""Transitions whose fields are all computed from the transition's number."""

import numpy as np


def transition(i, terminated=False, truncated=False, dim=2):
    """Return the arguments of `push` for transition number i."""
    obs, next_obs = np.full(dim, i, np.float32), np.full(dim, i + 1, np.float32)
    return obs, [-i], 0.5 * i, terminated, truncated, next_obs


def batch_of(rows):
    """Return the arguments of `push_batch` for transitions with these numbers."""
    obs, actions, rewards, terminated, truncated, next_obs = zip(*(transition(i) for i in rows), strict=True)
    return obs, next_obs, actions, rewards, terminated, truncated


def check(batch, dim=2):
    """Return the numbers of the transitions, after a check of all fields."""
    i = batch["obs"][:, 0]
    assert np.array_equal(batch["obs"], np.repeat(i, dim).reshape(-1, dim))
    assert np.array_equal(batch["next_obs"], np.repeat(i + 1, dim).reshape(-1, dim))
    assert np.array_equal(batch["actions"][:, 0], -i)
    assert np.array_equal(batch["rewards"], 0.5 * i)
    return i


def assert_batches_equal(batch, expected):
    """Check that batches, or states, are equal in values and dtypes."""
    np.testing.assert_equal(batch, expected)
    for name, array in batch.items():
        assert isinstance(array, dict) or array.dtype == expected[name].dtype, name
