"""Checkpoints that a test changes, and comparison of learner states."""

import numpy as np

from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.learners import MEMBERS


def rewrite(source, change, target=None):
    """Write a checkpoint again after `change(manifest, members)`; return its folder."""
    saved = read_checkpoint(source)
    change(saved.manifest, saved.members)
    write_checkpoint(target or source, saved.manifest, saved.members)
    return target or source


def expect_equal_states(a, b, members=MEMBERS):
    """Check that counters, random streams and the bytes of two learner states are equal."""
    np.testing.assert_equal((a.counters, a.streams), (b.counters, b.streams))
    for name in members:
        arrays, expected = getattr(a, name), getattr(b, name)
        np.testing.assert_equal(arrays, expected, err_msg=name)  # reports the first difference
        assert exact(arrays) == exact(expected), name


def exact(arrays):
    """Return dtypes, shapes and bytes: `assert_equal` broadcasts and accepts other dtypes."""
    return {name: (x.dtype, x.shape, x.tobytes()) for name, x in (arrays or {}).items()}


def expect_equal_networks(a, b):
    """Check that the networks of two trainers are equal."""
    np.testing.assert_equal(a.learner.state().networks, b.learner.state().networks)
