"""Environments that say nothing of their autoreset mode, or what is not true."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import TransformReward

from rlox import make_vec
from scripts import Script, column, finished

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode


class Quiet(SyncVectorEnv):
    """Says nothing, or something else, about its mode."""

    def __init__(self, says, mode):
        super().__init__([Script] * 2, autoreset_mode=mode)
        self.metadata = dict(self.metadata, autoreset_mode=says)
        if says is None:
            del self.metadata["autoreset_mode"]


def test_without_a_mode_in_its_metadata_an_environment_is_taken_as_gymnasium_takes_it():
    with pytest.warns(UserWarning, match=r"no metadata\['autoreset_mode'\].*NEXT_STEP"):
        env = make_vec(Quiet(None, NEXT_STEP))
    assert column("valid", finished(env, 5)) == [True, True, False, True, True]
    assert column("valid", finished(make_vec(Quiet("NextStep", NEXT_STEP)), 3))[2] is False


def test_environments_that_do_not_do_what_their_mode_says_are_refused():
    with pytest.raises(ValueError, match=r"autoreset_mode'\], got 'sometimes'"):
        make_vec(Quiet("sometimes", NEXT_STEP))
    env = make_vec(Quiet(NEXT_STEP, SAME_STEP))
    with pytest.raises(ValueError, match=r"environment 0 to reset at step 3.*got 1.0.*metadata"):
        finished(env, 5)
    env = make_vec(Quiet(SAME_STEP, NEXT_STEP))
    with pytest.raises(ValueError, match=r"final_obs: .*ended at step 2"):
        finished(env, 5)


class Deaf(VectorEnv):
    """Two counters in DISABLED mode that take no reset mask: all start anew, or none can."""

    num_envs = 2
    single_observation_space, single_action_space = Script.observation_space, Script.action_space
    metadata = {"autoreset_mode": DISABLED}  # noqa: RUF012

    def __init__(self, takes_options):
        self.takes_options, self.at = takes_options, None

    def reset(self, *, seed=None, **kwargs):
        if not self.takes_options and kwargs["options"] is not None:
            raise TypeError("reset() got an option that it does not know")
        self.at = np.zeros(2)
        return self.at[:, None].astype(np.float32), {}

    def step(self, actions):
        self.at += 1
        over = self.at >= [2, 5]
        return self.at[:, None].astype(np.float32), np.ones(2), over, np.zeros(2, bool), {}


def test_disabled_environments_that_cannot_reset_by_mask_are_refused():
    with pytest.raises(ValueError, match=r"env: .*DISABLED.*reset_mask.*other observations"):
        finished(make_vec(Deaf(takes_options=True)), 3)


def test_what_a_reset_raises_is_raised():
    with pytest.raises(TypeError, match=r"^reset\(\) got an option that it does not know$"):
        finished(make_vec(Deaf(takes_options=False)), 3)


def test_wrappers_may_make_other_rewards_of_what_comes_with_a_reset():
    made = SyncVectorEnv([Script] * 2, autoreset_mode=NEXT_STEP)
    wrapped = TransformReward(made, lambda rewards: rewards - 1)
    assert column("valid", finished(make_vec(wrapped), 5)) == column(
        "valid", finished(make_vec(SyncVectorEnv([Script] * 2, autoreset_mode=NEXT_STEP)), 5)
    )
