"""`VecEnv`: Gymnasium's vector interface, the methods of rlox, seeds and states."""

import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

import rlox
from rlox import ArgumentError, ArgumentTypeError, ClosedError, NonFiniteError, RolloutBuffer, VecEnv
from rlox.envs import native as envs
from rlox.trainers import PPOTrainer
from support.envs import IDS, NATIVE
from support.rejections import rejects
from support.thread_runs import join, start_threads

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode


def make_reference(env_id="CartPole-v1", mode=SAME_STEP, n=3, **kwargs):
    return SyncVectorEnv([lambda: gym.make(env_id, **kwargs)] * n, autoreset_mode=mode)


def random_actions(env, seed=0):
    env.action_space.seed(seed)
    while True:
        yield env.action_space.sample()


@pytest.mark.parametrize("env_id", IDS)
def test_spaces_and_metadata_equal_gymnasiums(env_id):
    ours, ref = VecEnv(3, env_id=env_id, render_mode="rgb_array"), make_reference(env_id)
    for name in ("observation", "action", "single_observation", "single_action"):
        assert getattr(ours, f"{name}_space") == getattr(ref, f"{name}_space"), name
    assert ours.num_envs == 3
    assert isinstance(ours.num_envs, int)
    assert ours.reset()[0] in ours.observation_space
    assert ours.metadata["render_fps"] == gym.make(env_id).metadata["render_fps"]
    assert ours.metadata["render_modes"] == ["rgb_array"]
    assert "autoreset_mode" not in VecEnv.metadata


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_autoreset_mode_accepts_members_values_and_names(mode):
    for value in (mode, mode.value, mode.name):
        assert VecEnv(autoreset_mode=value).metadata["autoreset_mode"] is mode


BAD_MASKS = {
    "list": [True, False, True],
    "None": None,
    "shape": np.array([True]),
    "rank": np.array([[True, False, True]]),
    "dtype": np.array([1, 0, 1]),
    "empty": np.zeros(3, bool),
}


@pytest.mark.parametrize("mask", BAD_MASKS.values(), ids=BAD_MASKS)
def test_bad_reset_masks_raise_the_same_errors_as_gymnasium(mask):
    ours, ref = VecEnv(3, seed=0), make_reference()
    before = ours.reset_all()
    ref.reset(seed=0)
    with pytest.raises((TypeError, ValueError)) as expected:
        ref.reset(seed=1, options={"reset_mask": mask})
    error = {TypeError: ArgumentTypeError, ValueError: ArgumentError}[expected.type]
    with rejects(error, "options['reset_mask']"):
        ours.reset(seed=1, options={"reset_mask": mask})
    assert np.array_equal(ours.collect_n_steps(1)["obs"][0], before)


def test_reset_changes_neither_unmasked_environments_nor_options():
    env, options = VecEnv(3, seed=0), {"reset_mask": np.array([False, True, False])}
    with rejects(ArgumentError, "reset_mask"):  # the first reset must include all environments
        env.reset(options=options)
    assert np.array_equal(env.reset_all(), VecEnv(3, seed=0).reset_all())
    before, *_ = env.step([0, 1, 0])
    obs, infos = env.reset(options=options)
    assert np.array_equal(obs[[0, 2]], before[[0, 2]])
    assert not np.array_equal(obs[1], before[1])
    assert infos == {}
    assert list(options) == ["reset_mask"]


def test_step_returns_new_arrays():
    env = VecEnv(2, seed=0, max_episode_steps=1)
    first_obs, _ = env.reset()
    pairs = [(first_obs, first_obs.copy())]
    for _ in range(3):
        *arrays, infos = env.step([0, 1])
        pairs += [(array, array.copy()) for array in arrays]
        pairs += [(infos[mask], infos[mask].copy()) for mask in ("_final_obs", "_final_info")]
        pairs += [(row, row.copy()) for row in infos["final_obs"]]
    assert all(np.array_equal(array, copy) for array, copy in pairs)
    arrays = [array for array, _ in pairs]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[i + 1 :])
    assert all(array.flags.writeable for array in arrays)


@pytest.mark.parametrize("make", [list, tuple, np.uint8, np.int32, lambda x: np.repeat(x, 2)[::2]])
def test_actions_accept_integers_of_any_container(make):
    ours, ref = VecEnv(3, seed=0), VecEnv(3, seed=0)
    ours.reset(), ref.reset()
    assert np.array_equal(ours.step(make([0, 1, 1]))[0], ref.step(np.array([0, 1, 1]))[0])


def test_disabled_mode_rejects_steps_of_finished_environments():
    env = VecEnv(2, 0, autoreset_mode=DISABLED, max_episode_steps=2)
    env.reset()
    env.step([0, 0])
    obs, _, _, truncated, infos = env.step([0, 0])
    assert truncated.all()
    assert infos == {}
    with rejects(ArgumentError, "step", "reset_mask", env=0):
        env.step([0, 0])
    after, _ = env.reset(options={"reset_mask": np.array([True, False])})
    assert np.array_equal(after[1], obs[1])
    with rejects(ArgumentError, "step", "reset_mask", env=1):
        env.step([0, 0])
    env.reset(options={"reset_mask": np.array([False, True])})
    env.step([0, 0])


def test_resets_set_np_random_seed_and_np_random_returns_copies():
    env = VecEnv(2)
    assert env.np_random_seed == (-1, -1)
    env.reset(seed=4)
    assert env.np_random_seed == (4, 5)
    env.reset()
    assert env.np_random_seed == (4, 5)
    env.reset(seed=9, options={"reset_mask": np.array([False, True])})
    assert env.np_random_seed == (4, 10)
    number = env.np_random[0].random()
    assert env.np_random[0].random() == number, "np_random returns copies"


@pytest.mark.parametrize("env_id", IDS)
def test_frames_equal_gymnasiums(env_id):
    ours = VecEnv(2, env_id=env_id, render_mode="rgb_array")
    ref = make_reference(env_id, n=2, render_mode="rgb_array")
    single = gym.make(f"rlox/{env_id}", render_mode="rgb_array")
    for env in (ours, ref, single):
        env.reset(seed=3)
    for _, actions in zip(range(12), random_actions(ours), strict=False):
        frames, expected = ours.render(), ref.render()
        assert isinstance(frames, tuple)
        assert all(frame.dtype == np.uint8 for frame in frames)
        assert all(np.array_equal(a, b) for a, b in zip(frames, expected, strict=True))
        assert np.array_equal(single.render(), expected[0])
        assert not np.array_equal(*frames)
        ours.step(actions), ref.step(actions), single.step(actions[0])
    ours.close(), ref.close(), single.close()


def test_render_needs_a_mode_and_a_reset():
    for env in (VecEnv(1), envs.NativeEnv("CartPole-v1")):
        env.reset()
        with pytest.warns(UserWarning, match="rgb_array"):
            assert env.render() is None
    with rejects(ArgumentError, "render", "call reset first"):
        VecEnv(1, render_mode="rgb_array").render()
    with rejects(ArgumentError, "render_mode", got="'ansi'"):
        envs.NativeEnv("CartPole-v1", render_mode="ansi")


def test_methods_reject_a_closed_environment():
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
        env.pop_episodes,
        lambda: env.step([0, 0]),
        lambda: env.step_all([0, 0]),
        lambda: env.step_into([0, 0], obs, rewards, flags, flags.copy()),
        lambda: env.collect_n_steps(1),
        lambda: env.np_random,
    ):
        with rejects(ClosedError, "VecEnv", got="a closed one"):
            call()


@pytest.mark.parametrize("env_id", IDS)
def test_vector_wrappers_of_gymnasium_give_the_same_results(env_id):
    def wrap(env):
        env = wrappers.NormalizeObservation(env)
        env = wrappers.NormalizeReward(env)
        env = wrappers.RecordEpisodeStatistics(env)
        return wrappers.DictInfoToList(env)

    ours = wrap(VecEnv(3, env_id=env_id, autoreset_mode=NEXT_STEP, max_episode_steps=30))
    ref = wrap(make_reference(env_id, NEXT_STEP, max_episode_steps=30))
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
                assert all(a["episode"][key] == b["episode"][key] for key in "rl")
    assert episodes >= 9


def test_record_episode_statistics_accepts_masked_resets():
    env = wrappers.RecordEpisodeStatistics(VecEnv(2, 0, autoreset_mode=DISABLED))
    env.reset(seed=0)
    env.step([0, 1])
    env.reset(options={"reset_mask": np.array([True, False])})
    assert env.episode_lengths.tolist() == [0, 1]


@pytest.mark.parametrize("env_id", IDS)
def test_the_spec_makes_equal_environments(env_id):
    env = VecEnv(3, env_id=env_id, max_episode_steps=7, **NATIVE[env_id])
    assert str(env) == f"VecEnv(rlox/{env_id}, num_envs=3)"
    again = gym.make_vec(env.spec)
    assert isinstance(again, VecEnv)
    assert again.metadata == env.metadata
    env.reset(seed=0), again.reset(seed=0)
    for _, actions in zip(range(20), random_actions(env), strict=False):
        for a, b in zip(env.step(actions)[:4], again.step(actions)[:4], strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_step_all_returns_terminal_obs_in_every_mode(mode):
    env, twin = (VecEnv(3, 0, autoreset_mode=mode, max_episode_steps=9) for _ in "ab")
    assert np.array_equal(env.reset_all(), twin.reset_all())
    for _ in range(9):
        result = env.step_all([0, 1, 0])
        *expected, infos = twin.step([0, 1, 0])
        for name, value in zip(("obs", "rewards", "terminated", "truncated"), expected, strict=True):
            assert result[name].dtype == value.dtype
            assert np.array_equal(result[name], value)
        final_obs, done = infos.get("final_obs", expected[0]), expected[2] | expected[3]
        for last, row, ended in zip(result["terminal_obs"], final_obs, done, strict=True):
            assert np.array_equal(last, row) if ended else last is None
        if done.any() and mode is DISABLED:
            break
    assert done.any()


@pytest.mark.parametrize("env_id", IDS)
def test_step_into_writes_the_results_of_step(env_id):
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


@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP], ids=["same", "next"])
@pytest.mark.parametrize("env_id", IDS)
def test_collect_n_steps_equals_single_steps(env_id, mode):
    kwargs = {"autoreset_mode": mode, "max_episode_steps": 20}
    env, twin = (VecEnv(3, 5, env_id, **kwargs) for _ in "ab")

    def policy(obs):
        if env.single_action_space.shape:
            return np.sign(obs[:, 1:2])
        return (obs[:, -1] > 0).astype(int)

    obs, over = twin.reset_all(), np.zeros(3, bool)
    for n in (20, 50, 30):  # each call continues the last one
        got, final = env.collect_n_steps(n, policy), []
        for t in range(n):
            assert np.array_equal(got["obs"][t], obs)
            # In NEXT_STEP mode, the step after the end of an episode only resets.
            assert np.array_equal(got["valid"][t], ~over if mode is NEXT_STEP else [True] * 3)
            actions = policy(obs)
            assert np.array_equal(got["actions"][t], actions)
            obs, rewards, terminated, truncated, infos = twin.step(actions)
            assert np.array_equal(got["rewards"][t], rewards)
            assert np.array_equal(got["terminated"][t], terminated)
            assert np.array_equal(got["truncated"][t], truncated)
            over, rows = terminated | truncated, infos.get("final_obs", obs)
            final += [(3 * t + i, rows[i]) for i in np.flatnonzero(over)]
        assert np.array_equal(got["last_obs"], obs)
        assert got["final_index"].tolist() == [index for index, _ in final]
        assert np.array_equal(got["final_obs"], np.array([row for _, row in final]))
        assert len(final) >= 3


def test_random_actions_are_uniform_inside_the_bounds_and_seeded():
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
    assert not np.array_equal(env.action_stream.random(8), env.np_random[0].random(8))
    assert not np.array_equal(VecEnv().reset_all(), VecEnv().reset_all())


def test_collect_n_steps_continues_a_rollout():
    env = VecEnv(2, seed=0)
    buffer = RolloutBuffer(1, 2, (4,))
    env.begin_rollout(buffer)
    assert np.array_equal(env.collect_n_steps(1)["obs"][0], buffer.obs[0])
    env.begin_rollout(buffer, seed=5)
    assert np.array_equal(buffer.obs[0], VecEnv(2, seed=5).reset_all())
    assert env.np_random_seed == (5, 6)


def test_collect_n_steps_rejects_disabled_mode():
    env = VecEnv(1, autoreset_mode=AutoresetMode.DISABLED)
    with rejects(ArgumentError, "autoreset_mode", "autoreset_mode='SameStep'", got="DISABLED"):
        env.collect_n_steps(3)


def test_pop_episodes_returns_each_episode_once():
    env = VecEnv(2, seed=0, max_episode_steps=3)
    env.reset()
    for _ in range(4):
        env.step([0, 1])
    assert env.pop_episodes()[1].tolist() == [3, 3]
    assert env.pop_episodes()[0].tolist() == []
    env.reset(options={"reset_mask": np.array([True, False])})
    env.step([0, 1])
    env.step([0, 1])
    assert env.pop_episodes()[1].tolist() == [3], "a reset discards the running episode"


def make_foreign():
    return rlox.make_vec("CartPole-v1", 2, vectorization_mode="sync")


CALLS = {
    "VecEnv": lambda seed: rlox.VecEnv(2, seed),
    "VecEnv.reset": lambda seed: rlox.VecEnv(2).reset(seed=seed),
    "VecEnv.reset each": lambda seed: rlox.VecEnv(2).reset(seed=[0, seed]),
    "GymVecEnv.reset": lambda seed: make_foreign().reset(seed=seed),
    "GymVecEnv.reset each": lambda seed: make_foreign().reset(seed=[0, seed]),
    "NativeEnv.reset": lambda seed: gym.make("rlox/CartPole-v1").reset(seed=seed),
    "make_vec": lambda seed: rlox.make_vec("CartPole-v1", 2, seed=seed).reset(),
    "make_vec of Gymnasium": lambda seed: rlox.make_vec("FrozenLake-v1", 2, seed=seed),
    "trainer": lambda seed: PPOTrainer("CartPole-v1", seed, runs_dir=None),
    "NativeVectorEnv": lambda seed: rlox._rlox.NativeVectorEnv("CartPole-v1", 2, seed),
}


@pytest.mark.parametrize("name", CALLS)
def test_seeds_must_be_nonnegative_integers(name):
    call = CALLS[name]
    for seed in (0, 7, np.int8(7), np.uint64(2**64 - 1), 2**64, 2**70):
        call(seed)
    for wrong in (True, np.bool_(False), 1.5, 2.0, np.float32(2), float("nan"), "1"):
        with rejects(ArgumentTypeError, "seed"):
            call(wrong)
    for wrong in (-1, np.int64(-1), -(2**70)):
        with rejects(ArgumentError, "seed"):
            call(wrong)


@pytest.mark.parametrize("seed", [2**64 - 1, 2**64, 2**70, 2**128, 2**200 + 12345])
@pytest.mark.parametrize("n", [1, 40])
def test_large_seeds_give_the_trajectories_of_gymnasium(seed, n):
    env, seeded = rlox.VecEnv(n), rlox.VecEnv(n, seed=seed)
    obs = env.reset(seed=seed)[0]
    expected = [gym.make("CartPole-v1").reset(seed=seed + i)[0] for i in range(n)]
    assert np.array_equal(obs, expected)
    assert np.array_equal(seeded.reset()[0], expected)
    assert np.array_equal(env.reset(seed=[seed + i for i in range(n)])[0], expected)
    assert env.np_random_seed == tuple(seed + i for i in range(n))


def test_lists_of_seeds_may_change_after_reset():
    for seed in ([1, 2], np.array([1, 2])):
        env = rlox.VecEnv(2)
        env.reset(seed=seed)
        seed[0] = 9
        expected = rlox.VecEnv(2)
        expected.reset(seed=[1, 2])
        assert env.action_stream.random() == expected.action_stream.random()


def test_large_seeds_leave_other_streams_unchanged():
    env, twin = rlox.VecEnv(3, 0), rlox.VecEnv(3, 0)
    env.reset(), twin.reset()
    before = [stream.bit_generator.state for stream in env.np_random]
    mask = np.array([True, False, True])
    with rejects(ArgumentError, "options", expected="only low, high"):
        env.reset(seed=2**70, options={"reset_mask": mask, "foo": 1.0})
    assert [stream.bit_generator.state for stream in env.np_random] == before
    obs = env.reset(seed=[2**70, None, None], options={"reset_mask": mask})[0]
    assert np.array_equal(obs[0], gym.make("CartPole-v1").reset(seed=2**70)[0])
    expected = twin.reset(options={"reset_mask": mask})[0]
    assert np.array_equal(obs[1:], expected[1:])


NAN, INF = float("nan"), float("inf")
N = 70


def replace_element(state, name, index, value):
    array = state[name].copy()
    array[index] = value
    return state | {name: array}


BAD_NUMBERS = {
    "NaN": ("states", 0, NAN),
    "beyond float32": ("states", 0, 1e300),
    "NaN return": ("episode_returns", ..., NAN),
    "stream of zeros": ("streams", ..., 0),
    "even increment": ("streams", 3, 2),
    "flag is 2": ("streams", 4, 2),
    "33 bits": ("streams", 5, 2**32),
    "finished in SAME_STEP mode": ("finished", ..., True),
    "negative steps": ("episode_steps", ..., -1),
}
BAD_SHAPES = {"states": np.zeros((3, 5)), "episode_returns": [0.0], "streams": [[1] * 6]}


@pytest.mark.parametrize("n", [N, 2], ids=["lanes", "copies"])
@pytest.mark.parametrize("mode", [SAME_STEP, NEXT_STEP], ids=["same", "next"])
@pytest.mark.parametrize("case", BAD_NUMBERS)
def test_set_state_rejects_one_bad_row_and_changes_nothing(n, mode, case):
    name, column, value = BAD_NUMBERS[case]
    mode = SAME_STEP if name == "finished" else mode  # NEXT_STEP environments may be finished
    env = VecEnv(n, 0, autoreset_mode=mode)
    env.reset()
    other = env.get_state()
    env.step(np.ones(n, int))
    before = env.get_state()
    with rejects(NonFiniteError if np.isnan(value) else ArgumentError, name) as raised:
        env.set_state(replace_element(other, name, (n - 1, column), value))
    if name in ("episode_returns", "finished"):
        assert raised.value.env == n - 1
    for key, array in env.get_state().items():
        assert np.array_equal(array, before[key]), key
    env.set_state(other)


@pytest.mark.parametrize("name", BAD_SHAPES)
def test_set_state_rejects_arrays_of_another_shape(name):
    env = VecEnv(3, 0)
    env.reset()
    good = env.get_state()
    with rejects(ArgumentError, name):
        env.set_state(good | {name: BAD_SHAPES[name]})
    with rejects(ArgumentError, "state", expected=f'the key "{name}"'):
        env.set_state({key: array for key, array in good.items() if key != name})


def test_set_state_of_pendulum_accepts_only_an_unknown_torque():
    env = VecEnv(2, 0, "Pendulum-v1")
    env.reset()
    good = env.get_state()
    assert np.isnan(good["states"][:, 2]).all()
    env.set_state(good)
    for column, value in [(0, NAN), (1, NAN), (2, INF)]:
        with rejects(NonFiniteError, "states", env=1):
            env.set_state(replace_element(good, "states", (1, column), value))


def test_get_state_is_consistent_while_another_thread_steps():
    n, actions, stop = 512, np.ones((512, 1), np.float32), threading.Event()
    env, twin = (VecEnv(n, 0, "Pendulum-v1", max_episode_steps=-1) for _ in "ab")
    env.reset(), twin.reset()

    def step():
        while not stop.is_set():
            env.step(actions)

    threads, errors = start_threads(step)
    states = [env.get_state() for _ in range(200)]
    stop.set()
    join(threads)
    steps = 0
    for state in states:
        for _ in range(int(state["episode_steps"][0]) - steps):
            twin.step(actions)
            steps += 1
        expected = twin.get_state()
        assert all(np.array_equal(state[k], expected[k], equal_nan=k == "states") for k in state)
    assert errors == []
