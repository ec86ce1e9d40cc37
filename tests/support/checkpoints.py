"""Rewriting of checkpoints, and comparison of learner states."""

import numpy as np

from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.learners import MEMBERS


def rewrite(source, change, target=None):
    """Write a checkpoint again after `change(manifest, members)`; return the folder."""
    saved = read_checkpoint(source)
    change(saved.manifest, saved.members)
    write_checkpoint(target or source, saved.manifest, saved.members)
    return target or source


def assert_states_equal(a, b, members=MEMBERS):
    """Check that counters, random streams and the bytes of two learner states are equal."""
    np.testing.assert_equal((a.counters, a.streams), (b.counters, b.streams))
    for name in members:
        arrays, expected = getattr(a, name), getattr(b, name)
        np.testing.assert_equal(arrays, expected, err_msg=name)  # reports the first difference
        assert array_bytes(arrays) == array_bytes(expected), name


def array_bytes(arrays):
    """Return dtypes, shapes and bytes, which `assert_equal` does not compare exactly."""
    return {name: (x.dtype, x.shape, x.tobytes()) for name, x in (arrays or {}).items()}


def assert_networks_equal(a, b):
    """Check that the networks of two trainers are equal."""
    np.testing.assert_equal(a.learner.state().networks, b.learner.state().networks)
