"""`VecEnv` by Gymnasium's rules for vector environments, and its own methods."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.performance import benchmark_vector_step
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

import rlox
from rlox import ClosedError, VecEnv

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
IDS = ["Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
KWARGS = {
    "Acrobot-v1": {"dt": 0.1},
    "CartPole-v1": {"sutton_barto_reward": True},
    "MountainCar-v0": {"goal_velocity": 0.01},
    "MountainCarContinuous-v0": {"goal_velocity": 0.01},
    "Pendulum-v1": {"g": 5.0},
}


def sync(env_id="CartPole-v1", mode=SAME_STEP, n=3, **kwargs):
    return SyncVectorEnv([lambda: gym.make(env_id, **kwargs)] * n, autoreset_mode=mode)


def random_actions(env, seed=0):
    env.action_space.seed(seed)
    while True:
        yield env.action_space.sample()


@pytest.mark.parametrize("env_id", IDS)
def test_spaces_are_gymnasiums(env_id):
    ours, ref = VecEnv(3, env_id=env_id), sync(env_id)
    for name in ("observation", "action", "single_observation", "single_action"):
        assert getattr(ours, f"{name}_space") == getattr(ref, f"{name}_space"), name
    assert ours.num_envs == 3
    assert isinstance(ours.num_envs, int)
    assert ours.reset()[0] in ours.observation_space


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_autoreset_mode_is_an_enum_member_also_if_given_by_its_value_or_name(mode):
    for given in (mode, mode.value, mode.name):
        assert VecEnv(autoreset_mode=given).metadata["autoreset_mode"] is mode


@pytest.mark.parametrize("env_id", IDS)
def test_metadata_is_gymnasiums(env_id):
    metadata = VecEnv(env_id=env_id, render_mode="rgb_array").metadata
    assert metadata["render_fps"] == gym.make(env_id).metadata["render_fps"]
    assert metadata["render_modes"] == ["rgb_array"]
    assert "autoreset_mode" not in VecEnv.metadata


@pytest.mark.parametrize(
    "options",
    [
        {"reset_mask": [True, False, True]},
        {"reset_mask": None},
        {"reset_mask": np.array([True])},
        {"reset_mask": np.array([[True, False, True]])},
        {"reset_mask": np.array([1, 0, 1])},
        {"reset_mask": np.zeros(3, bool)},
    ],
)
def test_bad_reset_masks_are_refused_in_gymnasiums_words(options):
    ours, ref = VecEnv(3, seed=0), sync()
    before = ours.reset_all()
    ref.reset(seed=0)
    with pytest.raises((TypeError, ValueError)) as expected:
        ref.reset(seed=1, options=dict(options))
    with pytest.raises(expected.type) as raised:
        ours.reset(seed=1, options=options)
    assert str(raised.value) == str(expected.value)
    assert np.array_equal(ours.collect_n_steps(1)["obs"][0], before)


@pytest.mark.parametrize("seed", [[1], [1, 2, 3, 4], []])
def test_reset_rejects_a_wrong_number_of_seeds_as_gymnasium_does(seed):
    for env in (sync(), VecEnv(3)):
        with pytest.raises(ValueError, match=f"{len(seed)}"):
            env.reset(seed=seed)


def test_environments_outside_the_mask_keep_their_observation_and_the_options_stay_whole():
    env = VecEnv(3, seed=0)
    env.reset()
    before, *_ = env.step([0, 1, 0])
    options = {"reset_mask": np.array([False, True, False])}
    obs, infos = env.reset(options=options)
    assert np.array_equal(obs[[0, 2]], before[[0, 2]])
    assert not np.array_equal(obs[1], before[1])
    assert infos == {}
    assert list(options) == ["reset_mask"]


def test_the_first_reset_may_not_leave_environments_out():
    env = VecEnv(2, seed=0)
    with pytest.raises(ValueError, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([True, False])})
    assert np.array_equal(env.reset_all(), VecEnv(2, seed=0).reset_all())


def test_what_a_step_returns_is_the_callers_own():
    env = VecEnv(2, seed=0, max_episode_steps=1)
    first_obs, _ = env.reset()
    kept = [(first_obs, first_obs.copy())]
    for _ in range(3):
        *arrays, infos = env.step([0, 1])
        kept += [(array, array.copy()) for array in arrays]
        kept += [(infos[mask], infos[mask].copy()) for mask in ("_final_obs", "_final_info")]
        kept += [(row, row.copy()) for row in infos["final_obs"]]
    assert all(np.array_equal(array, copy) for array, copy in kept)
    arrays = [array for array, _ in kept]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[i + 1 :])
    assert all(array.flags.writeable for array in arrays)


@pytest.mark.parametrize(
    "actions",
    [
        [0, 1, 1],
        (0, 1, 1),
        np.array([0, 1, 1], np.uint8),
        np.array([0, 1, 1], np.int32),
        np.array([0, 9, 1, 9, 1])[::2],
    ],
    ids=str,
)
def test_actions_are_whatever_makes_an_array_of_integers(actions):
    ours, ref = VecEnv(3, seed=0), VecEnv(3, seed=0)
    ours.reset(), ref.reset()
    assert np.array_equal(ours.step(actions)[0], ref.step(np.array([0, 1, 1]))[0])


def test_the_action_of_a_reset_row_is_ignored():
    seen = []
    for action in (0, 1):
        env = VecEnv(1, 0, autoreset_mode=NEXT_STEP, max_episode_steps=1)
        env.reset()
        assert env.step([0])[3][0]
        obs, reward, terminated, truncated, _ = env.step([action])
        assert (reward[0], terminated[0], truncated[0]) == (0.0, False, False)
        seen.append(obs)
    assert np.array_equal(*seen)


def test_a_finished_environment_must_be_reset_in_disabled_mode():
    env = VecEnv(2, 0, autoreset_mode=DISABLED, max_episode_steps=2)
    env.reset()
    env.step([0, 0])
    obs, _, _, truncated, infos = env.step([0, 0])
    assert truncated.all()
    assert infos == {}
    with pytest.raises(ValueError, match=r"environment 0.*reset_mask"):
        env.step([0, 0])
    after, _ = env.reset(options={"reset_mask": np.array([True, False])})
    assert np.array_equal(after[1], obs[1])
    with pytest.raises(ValueError, match="environment 1"):
        env.step([0, 0])
    env.reset(options={"reset_mask": np.array([False, True])})
    env.step([0, 0])


def test_one_seed_gives_one_trajectory_and_another_seed_another():
    def trajectory(seed):
        env = VecEnv(4, seed, "Pendulum-v1")
        return env.collect_n_steps(250)

    first, again, other = trajectory(0), trajectory(0), trajectory(1)
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert not np.array_equal(first["obs"], other["obs"])
    assert not np.array_equal(first["actions"], other["actions"])
    assert not np.array_equal(VecEnv().reset_all(), VecEnv().reset_all())


def test_streams_and_seeds_are_told_as_gymnasium_tells_them():
    env = VecEnv(2)
    assert env.np_random_seed == (-1, -1)
    env.reset(seed=4)
    assert env.np_random_seed == (4, 5)
    env.reset()
    assert env.np_random_seed == (4, 5)
    env.reset(seed=9, options={"reset_mask": np.array([False, True])})
    assert env.np_random_seed == (4, 10)
    drawn = env.np_random[0].random()
    assert env.np_random[0].random() == drawn, "what is handed out is a copy"


@pytest.mark.parametrize("env_id", IDS)
def test_frames_are_gymnasiums(env_id):
    ours = VecEnv(2, env_id=env_id, render_mode="rgb_array")
    ref = sync(env_id, n=2, render_mode="rgb_array")
    ours.reset(seed=3), ref.reset(seed=3)
    for _, actions in zip(range(12), random_actions(ours), strict=False):
        frames, expected = ours.render(), ref.render()
        assert isinstance(frames, tuple)
        assert all(frame.dtype == np.uint8 for frame in frames)
        assert all(np.array_equal(a, b) for a, b in zip(frames, expected, strict=True))
        assert not np.array_equal(*frames)
        ours.step(actions), ref.step(actions)
    ours.close(), ref.close()


def test_rendering_needs_a_mode_and_a_reset():
    env = VecEnv(1)
    env.reset()
    with pytest.warns(UserWarning, match="rgb_array"):
        assert env.render() is None
    with pytest.raises(ValueError, match="call reset first"):
        VecEnv(1, render_mode="rgb_array").render()
    with pytest.raises(ValueError, match=r"render_mode: .*'human'"):
        VecEnv(1, render_mode="human")


@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_a_closed_environment_does_not_render(render_mode):
    env = VecEnv(1, render_mode=render_mode)
    env.close()
    with pytest.raises(ClosedError, match="expected an open VecEnv"):
        env.render()


def test_other_ids_of_gymnasium_are_sent_to_make_vec():
    with pytest.raises(ValueError, match=r"env_id: .*'Blackjack-v1'.*rlox\.make_vec"):
        VecEnv(env_id="Blackjack-v1")


@pytest.mark.parametrize("name", ["n", "env_id", "n_envs"])
def test_names_of_other_calls_are_refused_with_the_right_one(name):
    with pytest.raises(TypeError, match=f"make_vec has no setting '{name}'"):
        rlox.make_vec("CartPole-v1", 2, **{name: 3})


def test_a_closed_environment_says_so():
    env = VecEnv(2, seed=0, render_mode="rgb_array")
    obs = env.reset_all()
    env.render()
    assert not env.closed
    env.close()
    env.close()
    assert env.closed
    rewards, flags = np.zeros(2), np.zeros(2, bool)
    for call in (
        env.reset,
        env.reset_all,
        env.render,
        env.drain_episodes,
        lambda: env.step([0, 0]),
        lambda: env.step_all([0, 0]),
        lambda: env.step_into([0, 0], obs, rewards, flags, flags.copy()),
        lambda: env.collect_n_steps(1),
        lambda: env.np_random,
    ):
        with pytest.raises(ClosedError, match="closed"):
            call()
    assert issubclass(ClosedError, ValueError)


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasiums_wrappers_see_no_difference(env_id):
    def wrapped(env):
        env = wrappers.NormalizeObservation(env)
        env = wrappers.NormalizeReward(env)
        env = wrappers.RecordEpisodeStatistics(env)
        return wrappers.DictInfoToList(env)

    ours = wrapped(VecEnv(3, env_id=env_id, autoreset_mode=NEXT_STEP, max_episode_steps=30))
    ref = wrapped(sync(env_id, NEXT_STEP, max_episode_steps=30))
    assert np.array_equal(ours.reset(seed=0)[0], ref.reset(seed=0)[0])
    episodes = 0
    for _, actions in zip(range(120), random_actions(ours), strict=False):
        *ours_step, ours_infos = ours.step(actions)
        *ref_step, ref_infos = ref.step(actions)
        assert all(np.array_equal(a, b) for a, b in zip(ours_step, ref_step, strict=True))
        for a, b in zip(ours_infos, ref_infos, strict=True):
            assert a.keys() == b.keys()
            if "episode" in a:
                episodes += 1
                assert (a["episode"]["r"], a["episode"]["l"]) == (
                    b["episode"]["r"],
                    b["episode"]["l"],
                )
    assert episodes >= 9


def test_statistics_of_masked_resets_are_right_in_gymnasiums_wrapper():
    """The mask stays in the options, so that the wrapper restarts only those statistics."""
    env = wrappers.RecordEpisodeStatistics(VecEnv(2, 0, autoreset_mode=DISABLED))
    env.reset(seed=0)
    env.step([0, 1])
    env.reset(options={"reset_mask": np.array([True, False])})
    assert env.episode_lengths.tolist() == [0, 1]


def test_the_statistics_wrapper_sees_no_difference_in_same_step_mode():
    ours, ref = (
        wrappers.RecordEpisodeStatistics(env)
        for env in (VecEnv(3, max_episode_steps=30), sync(max_episode_steps=30))
    )
    ours.reset(seed=0), ref.reset(seed=0)
    for _, actions in zip(range(200), random_actions(ours), strict=False):
        ours.step(actions), ref.step(actions)
    assert list(ours.return_queue) == list(ref.return_queue)
    assert list(ours.length_queue) == list(ref.length_queue)
    assert len(ours.length_queue) > 10


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_gymnasiums_benchmark_runs(mode):
    env = VecEnv(16, autoreset_mode=mode, max_episode_steps=10)
    assert benchmark_vector_step(env, target_duration=0.05, seed=0) > 1000


@pytest.mark.parametrize("env_id", IDS)
def test_the_spec_makes_the_same_again(env_id):
    env = VecEnv(3, env_id=env_id, max_episode_steps=7, **KWARGS[env_id])
    assert str(env) == f"VecEnv(rlox/{env_id}, num_envs=3)"
    again = gym.make_vec(env.spec)
    assert isinstance(again, VecEnv)
    assert again.metadata == env.metadata
    env.reset(seed=0), again.reset(seed=0)
    for _, actions in zip(range(20), random_actions(env), strict=False):
        for a, b in zip(env.step(actions)[:4], again.step(actions)[:4], strict=True):
            assert np.array_equal(a, b)
