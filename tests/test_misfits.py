"""Observations that are not of the space that their environment says."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import rlox
from rlox.trainers import PPOTrainer


class Misfit(gym.Env):
    """Gives `first` at a reset and `then` at a step."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, first, then):
        self.observation_space, self.first, self.then = space, first, then

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.first, {}

    def step(self, action):
        return self.then, 0.0, False, False, {}


BOX = spaces.Box(-1, 1, (4,))
RIGHT, SHORT = np.zeros(4, np.float32), np.zeros(3, np.float32)
DICT, TUPLE = spaces.Dict(a=BOX), spaces.Tuple([BOX, spaces.Discrete(3)])


def rollout(mode="sync", **kwargs):
    env = rlox.make_vec(Misfit, 2, vectorization_mode=mode, **kwargs)
    try:
        rlox.collect_rollout(env, None, 2)
    finally:
        env.close()


@pytest.mark.parametrize(
    ("space", "first", "then", "words"),
    [
        (BOX, SHORT, RIGHT, r"obs: expected shape \(4,\), .* got shape \(3,\) from environment 0"),
        (BOX, RIGHT, SHORT, r"obs: expected shape \(4,\), .* got shape \(3,\) from environment 0"),
        (BOX, RIGHT, np.zeros((4, 1)), r"obs: .* got shape \(4, 1\) from environment 0, a Misfit"),
        (DICT, {"a": SHORT}, None, r"obs\['a'\]: expected shape \(4,\), .* got shape \(3,\)"),
        (
            DICT,
            {"a": RIGHT},
            {"b": RIGHT},
            r"obs: expected a dict with the keys \['a'\], .*\['b'\]",
        ),
        (
            BOX,
            np.zeros(4, np.int64),
            RIGHT.astype(np.complex64),
            r"obs: expected dtype float32, .*c",
        ),
        (spaces.Discrete(3), 0, 1.5, r"obs: expected dtype int64, .* got dtype float64 from env"),
        (TUPLE, (SHORT, 1), None, r"obs\[0\]: expected shape \(4,\), .* got shape \(3,\)"),
    ],
)
def test_it_is_said_which_environment_gave_what(space, first, then, words):
    with pytest.raises(ValueError, match=words):
        rollout(space=space, first=first, then=then)


@pytest.mark.filterwarnings("ignore")
def test_of_workers_the_error_is_told():
    with pytest.raises(ValueError, match=r"obs: expected observations of Box.*worker.*\(3,\)"):
        rollout("async", space=BOX, first=SHORT, then=RIGHT)


def test_trainers_say_it_too():
    trainer = PPOTrainer(lambda: Misfit(BOX, SHORT, RIGHT), 0, runs_dir=None)
    with pytest.raises(ValueError, match=r"obs: .*from environment 0, a Misfit; mend"):
        trainer.train(10)


def test_failures_of_environments_are_not_taken_for_misfits():
    class Fuel(Misfit):
        """Gives arrays for tuples, which Gymnasium takes, until there is nothing left."""

        steps = 0

        def step(self, action):
            self.steps += 1
            if self.steps == 3:
                raise RuntimeError("out of fuel")
            return super().step(action)

    pairs, both = spaces.Tuple([BOX, BOX]), np.zeros((2, 4), np.float32)
    env = rlox.make_vec(Fuel, 1, space=pairs, first=both, then=both)
    with pytest.raises(RuntimeError, match=r"^out of fuel$"):
        rlox.collect_rollout(env, None, 8)
    # Nor where an observation was wrong that nobody has looked at yet.
    env = rlox.make_vec(Fuel, 2, space=BOX, first=RIGHT, then=SHORT)
    env.reset()
    env.unwrapped.envs[1].steps = 2
    with pytest.raises(RuntimeError, match=r"^out of fuel$"):
        env.step([0, 0])


def test_other_failures_stay_as_they_are():
    class Broken(Misfit):
        def step(self, action):
            raise ValueError("out of fuel")

    env = rlox.make_vec(Broken, 2, space=BOX, first=RIGHT, then=RIGHT)
    with pytest.raises(ValueError, match=r"^out of fuel$"):
        rlox.collect_rollout(env, None, 2)


def test_a_reward_that_is_no_number_is_named():
    class Paid(Misfit):
        def step(self, action):
            return self.then, np.array([1.0]), False, False, {}

    env = rlox.make_vec(Paid, 2, space=BOX, first=RIGHT, then=RIGHT)
    with pytest.raises(ValueError, match=r"rewards: expected a number from each .*an array"):
        rlox.collect_rollout(env, None, 2)
