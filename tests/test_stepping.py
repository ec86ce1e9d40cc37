"""What `VecEnv` has besides Gymnasium's methods: `step_all`, `step_into`, `collect_n_steps`."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlox import RolloutBuffer, VecEnv

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
IDS = ["Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]


def random_actions(env, seed=0):
    env.action_space.seed(seed)
    while True:
        yield env.action_space.sample()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_step_all_tells_last_observations_in_every_mode(mode):
    env, twin = (VecEnv(3, 0, autoreset_mode=mode, max_episode_steps=9) for _ in "ab")
    assert np.array_equal(env.reset_all(), twin.reset_all())
    for _ in range(9):
        told = env.step_all([0, 1, 0])
        obs, rewards, terminated, truncated, infos = twin.step([0, 1, 0])
        for key, value in zip(
            ("obs", "rewards", "terminated", "truncated"),
            (obs, rewards, terminated, truncated),
            strict=True,
        ):
            assert told[key].dtype == value.dtype
            assert np.array_equal(told[key], value)
        assert isinstance(told["terminal_obs"], list)
        expected = infos.get("final_obs", obs)
        for i, done in enumerate(terminated | truncated):
            last = told["terminal_obs"][i]
            assert (last is not None) == done
            assert last is None or np.array_equal(last, expected[i])
        if (terminated | truncated).any() and mode is DISABLED:
            break
    assert any(last is not None for last in told["terminal_obs"])


@pytest.mark.parametrize("env_id", IDS)
def test_step_into_writes_what_step_returns(env_id):
    env, twin = (VecEnv(4, 0, env_id, max_episode_steps=15) for _ in "ab")
    obs, rewards = np.full_like(env.reset_all(), np.nan), np.empty(4)
    terminated, truncated, final_obs = np.empty(4, bool), np.empty(4, bool), np.empty_like(obs)
    twin.reset()
    ended = 0
    for _, actions in zip(range(60), random_actions(env), strict=False):
        final_obs[:] = np.nan
        out = (obs, rewards, terminated, truncated)
        assert env.step_into(actions, *out, final_obs) is None
        *expected, infos = twin.step(actions)
        assert all(np.array_equal(a, b) for a, b in zip(out, expected, strict=True))
        last = infos.get("final_obs", [None] * 4)
        for row, value in zip(final_obs, last, strict=True):
            assert np.isnan(row).all() if value is None else np.array_equal(row, value)
        ended += sum(value is not None for value in last)
    assert ended > 10


def test_a_subclass_may_change_step_into():
    class Louder(VecEnv):
        def step_into(self, actions, obs, rewards, terminated, truncated, final_obs=None):
            super().step_into(actions, obs, rewards, terminated, truncated, final_obs)
            rewards *= 2

    env = Louder(1, 0)
    obs, rewards = env.reset_all(), np.empty(1)
    env.step_into([0], obs, rewards, np.empty(1, bool), np.empty(1, bool))
    assert rewards[0] == 2.0


@pytest.mark.parametrize("env_id", IDS)
def test_collect_n_steps_is_stepping_by_hand(env_id):
    env, twin = (VecEnv(3, 5, env_id, max_episode_steps=20) for _ in "ab")

    def policy(obs):
        if env.single_action_space.shape:
            return np.sign(obs[:, 1:2])
        return (obs[:, -1] > 0).astype(int)

    obs = twin.reset_all()
    for _ in range(2):  # the second call goes on where the first stopped
        got = env.collect_n_steps(50, policy)
        final = []
        for t in range(50):
            assert np.array_equal(got["obs"][t], obs)
            actions = policy(obs)
            assert np.array_equal(got["actions"][t], actions)
            obs, rewards, terminated, truncated, infos = twin.step(actions)
            assert np.array_equal(got["rewards"][t], rewards)
            assert np.array_equal(got["terminated"][t], terminated)
            assert np.array_equal(got["truncated"][t], truncated)
            rows = infos.get("final_obs", [])
            final += [(3 * t + i, row) for i, row in enumerate(rows) if row is not None]
        assert np.array_equal(got["last_obs"], obs)
        assert got["final_index"].tolist() == [index for index, _ in final]
        assert np.array_equal(got["final_obs"], np.array([row for _, row in final]))
        assert len(final) > 5


def test_random_collection_is_uniform_inside_the_bounds_and_seeded():
    env = VecEnv(8, seed=1, env_id="Pendulum-v1")
    actions = env.collect_n_steps(500)["actions"]
    assert actions.dtype == np.float32
    assert actions.shape == (500, 8, 1)
    assert -2 <= actions.min() < -1.99
    assert 1.99 < actions.max() <= 2
    assert abs(actions.mean()) < 0.1
    pole = VecEnv(8, seed=1)
    counts = np.bincount(pole.collect_n_steps(500)["actions"].ravel())
    assert len(counts) == 2
    assert abs(counts[0] / 4000 - 0.5) < 0.05
    env.reset(seed=1)
    assert np.array_equal(env.collect_n_steps(500)["actions"], actions)
    assert not np.array_equal(env.collect_n_steps(500)["actions"], actions)


def test_random_actions_have_a_stream_of_their_own():
    env = VecEnv(1, seed=1)
    assert not np.array_equal(env.action_stream.random(8), env.np_random[0].random(8))


def test_collecting_goes_on_after_a_rollout_began():
    env = VecEnv(2, seed=0)
    buffer = RolloutBuffer(1, 2, (4,))
    env.begin_rollout(buffer)
    assert np.array_equal(env.collect_n_steps(1)["obs"][0], buffer.obs[0])
    env.begin_rollout(buffer, seed=5)
    assert np.array_equal(buffer.obs[0], VecEnv(2, seed=5).reset_all())
    assert env.np_random_seed == (5, 6)


def test_collecting_in_next_step_mode_says_which_rows_only_reset():
    env = VecEnv(3, 5, max_episode_steps=12)
    other = VecEnv(3, 5, max_episode_steps=12, autoreset_mode=NEXT_STEP)
    rows = [[], []]
    for _ in range(3):  # where one call ends at an end, the next one begins with a reset
        got = other.collect_n_steps(37)
        over = got["terminated"] | got["truncated"]
        assert not (over & ~got["valid"]).any()
        assert (got["rewards"] == got["valid"]).all()
        assert np.array_equal(~got["valid"][1:], over[:-1])
        ends = got["obs"].reshape(-1, 4), np.append(got["obs"][1:], got["last_obs"][None], axis=0)
        assert np.array_equal(got["final_obs"], ends[1].reshape(-1, 4)[got["final_index"]])
        rows[0] += [got["actions"][got["valid"][:, i], i] for i in range(3)]
        rows[1] += [got["obs"][got["valid"][:, i], i] for i in range(3)]
    # Alone, the transitions are those of environments that reset in the same step.
    for i in range(3):
        env.reset(seed=[5 + i] * 3)
        chosen, seen = (np.concatenate(kind[i::3]) for kind in rows)
        for action, obs in zip(chosen, seen, strict=True):
            one = env.collect_n_steps(1, lambda _, action=action: [action] * 3)
            assert np.array_equal(one["obs"][0, 0], obs)
    assert env.collect_n_steps(50)["valid"].all()


def test_a_collection_that_begins_with_a_reset_says_so():
    env = VecEnv(2, 5, max_episode_steps=4, autoreset_mode=NEXT_STEP)
    assert env.collect_n_steps(4)["valid"].all()
    assert env.collect_n_steps(2)["valid"].tolist() == [[False, False], [True, True]]


def test_collecting_in_disabled_mode_is_refused_and_says_what_to_do():
    env = VecEnv(1, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(
        ValueError, match=r"autoreset_mode: .*DISABLED; .*autoreset_mode='SameStep'"
    ):
        env.collect_n_steps(3)


def test_episodes_are_drained_once_and_resets_cut_them_uncounted():
    env = VecEnv(2, seed=0, max_episode_steps=3)
    env.reset()
    for _ in range(4):
        env.step([0, 1])
    assert env.drain_episodes()[1].tolist() == [3, 3]
    assert env.drain_episodes()[0].tolist() == []
    env.reset(options={"reset_mask": np.array([True, False])})
    env.step([0, 1])
    env.step([0, 1])
    assert env.drain_episodes()[1].tolist() == [3]
