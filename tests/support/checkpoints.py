"""Checkpoints that a test changes, and comparison of learner states."""

import numpy as np

from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.learner import MEMBERS


def rewrite(source, change, target=None):
    """Write a checkpoint again after `change(manifest, members)`; return its folder."""
    saved = read_checkpoint(source)
    change(saved.manifest, saved.members)
    write_checkpoint(target or source, saved.manifest, saved.members)
    return target or source


def expect_equal_states(a, b, members=MEMBERS):
    """Check that counters, random streams and the arrays of two learner states are equal."""
    assert (a.counters, a.streams) == (b.counters, b.streams)
    for name in members:
        np.testing.assert_equal(getattr(a, name), getattr(b, name), err_msg=name)


def expect_equal_networks(a, b):
    """Check that the networks of two trainers are equal."""
    np.testing.assert_equal(a.learner.state().networks, b.learner.state().networks)
