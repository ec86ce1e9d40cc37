"""Errors of single native environments name the arguments of their methods."""

import gymnasium as gym
import numpy as np
import pytest

from rlox import ArgumentError


def test_single_environment_names_state_and_action():
    env = gym.make("rlox/CartPole-v1").unwrapped
    env.reset(seed=0)
    for call, argument in (
        (lambda: setattr(env, "state", [np.nan, 0.0, 0.0, 0.0]), "state"),
        (lambda: env.step(5), "action"),
    ):
        with pytest.raises(ArgumentError) as raised:
            call()
        assert (raised.value.argument, raised.value.env) == (argument, None)
