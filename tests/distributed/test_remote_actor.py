"""Actors outside of the learner's process."""

from types import SimpleNamespace

from rlox.learners._actors import RemoteActor
from support.refusals import refuses


def test_actor_that_was_stopped_is_an_error_with_a_sentence():
    worker = SimpleNamespace(poll=lambda seconds: True, receive=lambda: None)
    with refuses(RuntimeError, "stopped"):
        RemoteActor(worker, [], []).wait(0.0)
