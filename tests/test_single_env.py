"""Errors of native environments name the arguments and attributes that the caller set."""

import gymnasium as gym
import numpy as np
import pytest

from rlox import ArgumentError, NonFiniteError, VecEnv
from rlox.envs import NativeEnv


def test_single_environment_names_state_and_action():
    env = gym.make("rlox/CartPole-v1").unwrapped
    env.reset(seed=0)
    for call, kind, argument in (
        (lambda: setattr(env, "state", [np.nan, 0.0, 0.0, 0.0]), NonFiniteError, "state"),
        (lambda: env.step(5), ArgumentError, "action"),
    ):
        with pytest.raises(kind) as raised:
            call()
        assert (raised.value.argument, raised.value.env) == (argument, None)


@pytest.mark.parametrize("base", [VecEnv, NativeEnv])
def test_constants_of_subclasses_are_rejected(base):
    kind = type("Moon", (base,), {"gravity": 1.6})
    with pytest.raises(AttributeError, match=r"^gravity: expected 9\.8, got 1\.6"):
        kind(**({"n": 1} if base is VecEnv else {"env_id": "CartPole-v1"}))
