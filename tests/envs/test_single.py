"""Subclasses of native environments: constants are rejected, methods are allowed."""

import pytest

from rlox import VecEnv
from rlox.envs import NativeEnv
from support.rejections import rejects


def init_with_gravity(self, *args, **kwargs):
    self.gravity = 1.6
    super(type(self), self).__init__(*args, **kwargs)


@pytest.mark.parametrize("base", [VecEnv, NativeEnv])
@pytest.mark.parametrize("members", [{"gravity": 1.6}, {"__init__": init_with_gravity}], ids=["class", "init"])
def test_constants_of_subclasses_are_rejected(base, members):
    cls = type("Moon", (base,), members)
    with rejects(AttributeError, "expected 9.8, got 1.6", name="gravity"):
        cls(**({"n": 1} if base is VecEnv else {"env_id": "CartPole-v1"}))


def test_subclasses_may_have_methods_with_names_of_constants():
    env = type("Long", (VecEnv,), {"length": lambda self: 3})(1)
    assert (env.length(), env.gravity) == (3, 9.8)
