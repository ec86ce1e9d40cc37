"""Sources of action masks, and steps without a reported mask."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from rlox import ArgumentError, collect_rollout, make_vec
from rlox.envs._masks import MaskSource
from rlox.evaluation import evaluate
from rlox.trainers import A2CTrainer, PPOTrainer
from support.masked_envs import Doors
from support.rejections import rejects

MODES = list(AutoresetMode)
SMALL = {"n_steps": 16, "runs_dir": None, "action_masks": True, "num_envs": 2}


class Once(Doors):
    """`Doors` that report a mask after a reset only; later all actions are allowed."""

    step_infos = None

    def step(self, action):
        assert self.at > 0 or self.open[action - 10]
        self.open[:] = True
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, dict(self.step_infos or {})


class OnceThenNone(Once):
    """`Once` that reports the mask None in steps."""

    step_infos = {"action_mask": None}  # noqa: RUF012


class Never(OnceThenNone):
    """Environment that always reports the mask None."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], dict(self.step_infos)


def first_allowed(obs, mask):
    """Return the first allowed action."""
    return 10 + mask.argmax(1)


@pytest.mark.parametrize("cls", [Once, OnceThenNone])
@pytest.mark.parametrize("mode", MODES)
def test_all_actions_are_allowed_if_no_environment_reports_a_mask(mode, cls):
    batch = collect_rollout(make_vec(cls, 2, seed=0, autoreset_mode=mode), first_allowed, 12)
    length = 6 if mode is AutoresetMode.NEXT_STEP else 5
    masked = ~batch.action_masks.all(2)
    assert masked.all(1).tolist() == [t % length == 0 for t in range(12)]
    for backend in ("native", "torch"):
        trainer = (PPOTrainer, A2CTrainer)[cls is Once](cls, 0, backend=backend, **SMALL)
        assert trainer.train(96)["timesteps"] == 96
        masks = trainer.learner.buffer.field("action_masks")
        assert set(masks.sum(2).ravel()) == {2, 3, 6}
        assert trainer.evaluate(3)["lengths"] == [5, 5, 5]


def test_evaluation_allows_all_actions_if_no_mask_is_reported():
    allowed = []

    class Recording:
        learner = PPOTrainer(Once, 0, **SMALL).learner

        def predict(self, obs, deterministic=True, action_masks=None):
            allowed.append(int(action_masks.sum()))
            return 10 + action_masks.argmax(1)

    assert evaluate(Recording(), Once, 2, seed=0, num_envs=1)["lengths"] == [5, 5]
    assert [count == 6 for count in allowed] == [False, *[True] * 4] * 2


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_trainers_reject_environments_without_masks_before_a_step(backend):
    class Unsteppable(Never):
        def step(self, action):
            pytest.fail("stepped")

    trainer = A2CTrainer(Unsteppable, 0, backend=backend, **SMALL)
    for call in (trainer.train, trainer.evaluate):
        with rejects(ArgumentError, "action_masks", "or set action_masks=False"):
            call(64)
    assert not make_vec(Unsteppable, 2).has_action_masks


class Corridor(gym.vector.VectorEnv):
    """Vector environment whose method `action_masks` allows the action equal to the obs."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    num_envs = 2
    single_observation_space, single_action_space = spaces.Box(0, 2, (1,)), spaces.Discrete(3)

    def __init__(self, rows=2):
        self.at, self.rows = np.zeros(2, int), rows

    def reset(self, *, seed=None, options=None):
        self.at = np.array([0, 1])
        return self.at[:, None].astype(np.float32), {}

    def step(self, actions):
        assert (actions == self.at).all()
        self.at = (self.at + 1) % 3
        flags = np.zeros(2, bool), np.zeros(2, bool)
        return self.at[:, None].astype(np.float32), np.ones(2), *flags, {}

    def action_masks(self):
        return np.resize(self.at[:, None] == np.arange(3), (self.rows, 3))


class ListMasks(gym.vector.VectorWrapper):
    """Vector wrapper whose `action_masks` returns lists of integers."""

    def action_masks(self):
        return self.env.action_masks().astype(np.int8).tolist()


@pytest.mark.parametrize("wrap", [lambda env: env, ListMasks, RecordEpisodeStatistics])
def test_action_masks_of_the_vector_environment_are_used(wrap):
    batch = collect_rollout(make_vec(wrap(Corridor())), None, 6)
    assert batch.actions[:, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert batch.action_masks.sum(2).tolist() == [[1, 1]] * 6
    for backend in ("native", "torch"):
        trainer = A2CTrainer(wrap(Corridor()), 0, backend=backend, **SMALL)
        assert trainer.train(32)["timesteps"] == 32
    expected = "shape (2, 3), a row for each environment"
    with rejects(ArgumentError, "action_mask", expected=expected, got="3 rows"):
        collect_rollout(make_vec(wrap(Corridor(rows=3))), None, 6)


def test_wrapped_vector_environments_of_rlox_without_masks_have_none():
    import rlox

    for inner in (rlox.VecEnv(2), make_vec(lambda: gym.make("CartPole-v1"), 2)):
        wrapped = make_vec(RecordEpisodeStatistics(inner))
        assert not wrapped.has_action_masks
        assert collect_rollout(wrapped, None, 3).action_masks is None


@pytest.mark.parametrize(
    "final_info",
    [
        {},
        {"action_mask": [None, None], "_action_mask": [True, True]},
        {"action_mask": np.ones((2, 6)), "_action_mask": np.zeros(2, bool)},
        {"action_mask": np.zeros((2, 6)), "_action_mask": np.ones(2, bool)},
        np.array([{"action_mask": np.ones(6)}, None], object),  # Gymnasium uses a dict of arrays
    ],
)
def test_missing_final_masks_allow_no_action(final_info):
    source = MaskSource(make_vec(Doors, 2, autoreset_mode=AutoresetMode.SAME_STEP).env)
    infos = {"action_mask": np.ones((2, 6)), "final_info": final_info}
    with pytest.warns(UserWarning, match="action_mask: "):
        assert not source.read_final(infos, np.ones(2, bool), same_step=True).any()
    infos = {"action_mask": np.ones((2, 5))}
    expected = "shape (2, 6), a flag for each action"
    with rejects(ArgumentError, "action_mask", expected=expected, got="(2, 5)"):
        source.read_final(infos, np.array([False, True]), same_step=False)
    assert not source.read_final(infos, np.zeros(2, bool), same_step=False).any()
