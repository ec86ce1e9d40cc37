"""Actors outside of the learner's process."""

from types import SimpleNamespace

from rlox.learners._actors import RemoteActor
from support.rejections import rejects


def test_a_stopped_actor_raises():
    worker = SimpleNamespace(poll=lambda seconds: True, receive=lambda: None)
    with rejects(RuntimeError, "stopped"):
        RemoteActor(worker, [], []).wait(0.0)
