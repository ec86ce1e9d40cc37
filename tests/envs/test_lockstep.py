"""Native environments give the same numbers as Gymnasium's in every step."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given
from hypothesis import strategies as st

from rlox import ArgumentError, VecEnv
from support.envs import IDS
from support.rejections import rejects

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode
N = 8
# Arguments that Gymnasium's Acrobot has as attributes.
ATTRIBUTES = ("dt", "torque_noise_max", "nips")


def make_reference(env_id, mode, n=N, **kwargs):
    attributes = {name: kwargs.pop(name) for name in ATTRIBUTES if name in kwargs}
    if "nips" in attributes:
        attributes["book_or_nips"] = "nips" if attributes.pop("nips") else "book"
    # Gymnasium's checks of every action and observation take longer than the steps.
    make = {"disable_env_checker": True, **kwargs}
    env = SyncVectorEnv([lambda: gym.make(env_id, **make)] * n, autoreset_mode=mode)
    for single in env.envs:
        for name, value in attributes.items():
            setattr(single.unwrapped, name, value)
    return env


def skilled_actions(env_id, obs):
    """Return actions that reach the goal, or the time limit in CartPole."""
    if env_id == "CartPole-v1":
        lean = obs[:, 2] + 0.4 * obs[:, 3] + 0.05 * obs[:, 1] + 0.02 * obs[:, 0]
        return (lean > 0).astype(int)
    if env_id == "Acrobot-v1":
        return np.where(obs[:, 4] > 0, 0, 2)
    return np.where(obs[:, 1] < 0, 0, 2)


def actions_for(env_id, obs, rng):
    """Return actions of rows that are random, skilled, or a mixture with a row's share of skill."""
    n = len(obs)
    if env_id == "Pendulum-v1":
        return rng.uniform(-3, 3, (n, 1)).astype(np.float32)  # some are outside the bounds
    random = rng.integers(0, 2 if env_id == "CartPole-v1" else 3, n)
    skill = np.arange(n) % 4 / 3
    actions = np.where(rng.random(n) < skill, skilled_actions(env_id, obs), random)
    if env_id == "MountainCarContinuous-v0":
        strength = rng.choice([0.7, 1.0, 1.3, 4.0], n) * rng.choice([1.0, rng.random()])
        return ((actions - 1) * strength).astype(np.float32)[:, None]
    return actions


def assert_infos_equal(ours, expected):
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_infos_equal(ours[key], value)
        elif value.dtype == object:
            assert ours[key].dtype == object
            for a, b in zip(ours[key], value, strict=True):
                assert (a is None) == (b is None)
                assert a is None or (a.dtype == b.dtype and np.array_equal(a, b))
        else:
            assert ours[key].dtype == value.dtype
            assert np.array_equal(ours[key], value)


def assert_steps_equal(ours, expected):
    for name, a, b in zip(("obs", "rewards", "terminated", "truncated"), ours[:4], expected[:4], strict=True):
        assert a.dtype == b.dtype, name
        assert np.array_equal(a, b), name
    assert_infos_equal(ours[4], expected[4])


def assert_states_equal(ours, ref):
    """Check the f64 states, because f32 observations hide differences of the last bits."""
    for state, env in zip(ours._native.states(), ref.envs, strict=True):
        expected = np.asarray(env.unwrapped.state)
        assert np.array_equal(state[: len(expected)], expected)


def run_in_lockstep(env_id, mode, steps, n=N, seed=123, **kwargs):
    """Step both; return the numbers of episodes with a termination, a truncation, and both."""
    ours = VecEnv(n, env_id=env_id, autoreset_mode=mode, **kwargs)
    ref = make_reference(env_id, mode, n, **kwargs)
    obs, infos = ours.reset(seed=seed)
    expected, expected_infos = ref.reset(seed=seed)
    assert np.array_equal(obs, expected)
    assert_infos_equal(infos, expected_infos)
    rng = np.random.default_rng(seed)
    counts = np.zeros(3, int)
    for step in range(steps):
        actions = actions_for(env_id, obs, rng)
        result = ours.step(actions)
        assert_steps_equal(result, ref.step(actions))
        if step % 10 == 0:
            assert_states_equal(ours, ref)
        obs, _, terminated, truncated, _ = result
        done = terminated | truncated
        counts += [terminated.sum(), truncated.sum(), (terminated & truncated).sum()]
        if mode is DISABLED and done.any():
            obs, _ = ours.reset(options={"reset_mask": done})
            assert np.array_equal(obs, ref.reset(options={"reset_mask": done.copy()})[0])
    for a, b in zip(ours.np_random, ref.np_random, strict=True):
        assert a.bit_generator.state == b.bit_generator.state
    assert ours.np_random_seed == ref.np_random_seed
    ours.close()
    ref.close()
    return counts


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_hundred_thousand_steps_are_equal(env_id, mode):
    terminated, truncated, _ = run_in_lockstep(env_id, mode, 100_000 // N)
    assert truncated > 10
    assert (terminated > 1000) == (env_id == "CartPole-v1")


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(
    ("env_id", "steps"),
    [
        ("MountainCar-v0", 100_000),
        ("MountainCarContinuous-v0", 100_000),
        ("Acrobot-v1", 20_000),
        pytest.param("Acrobot-v1", 100_000, marks=pytest.mark.slow),  # Gymnasium needs seconds
    ],
)
def test_steps_to_the_goal_are_equal(env_id, steps, mode):
    terminated, truncated, _ = run_in_lockstep(env_id, mode, steps // 50, n=50)
    assert terminated > 50
    assert truncated > 10 or steps < 100_000


@pytest.mark.parametrize("env_id", IDS)
def test_masked_resets_are_equal(env_id):
    steps = 2500 if env_id != "Acrobot-v1" else 600
    assert run_in_lockstep(env_id, DISABLED, steps).sum() > 5


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_time_limits_are_equal_in_steps_that_also_terminate(mode):
    assert (run_in_lockstep("CartPole-v1", mode, 600, max_episode_steps=12) > 0).all()


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("CartPole-v1", {"sutton_barto_reward": True}),
        ("Pendulum-v1", {"g": 9.81}),
        ("Pendulum-v1", {"g": 0}),
        ("Pendulum-v1", {"max_episode_steps": 1}),
        ("CartPole-v1", {"max_episode_steps": -1}),
        ("MountainCar-v0", {"goal_velocity": 0.03}),
        ("MountainCarContinuous-v0", {"goal_velocity": 0.03}),
        ("MountainCarContinuous-v0", {"goal_velocity": 0.07 + 1e-10, "max_episode_steps": 300}),
        ("Acrobot-v1", {"dt": 0.05}),
        ("Acrobot-v1", {"nips": True}),
        ("Acrobot-v1", {"torque_noise_max": 0.7}),
        ("Acrobot-v1", {"max_episode_steps": 3}),
    ],
)
def test_environments_with_arguments_equal_gymnasiums(env_id, kwargs, mode):
    run_in_lockstep(env_id, mode, 120 if env_id == "Acrobot-v1" else 700, **kwargs)


SEEDS_OF_RESETS = [0, 1, 2**32 - 1, 2**32, 2**63 + 5, 2**64 - 1, 2**96 - 2]


@pytest.mark.parametrize("seed", [*SEEDS_OF_RESETS, [5] * N, list(range(N))[::-1]])
@pytest.mark.parametrize("env_id", IDS)
def test_every_seed_gives_the_first_obs_of_gymnasium(env_id, seed):
    ours, ref = VecEnv(N, env_id=env_id), make_reference(env_id, SAME_STEP)
    for reset_seed in (seed, None, seed):
        assert np.array_equal(ours.reset(seed=reset_seed)[0], ref.reset(seed=reset_seed)[0])
    assert ours.np_random_seed == ref.np_random_seed
    if not isinstance(seed, list):
        assert np.array_equal(VecEnv(N, seed=seed, env_id=env_id).reset_all(), ref.reset(seed=seed)[0])


def test_none_in_a_list_of_seeds_continues_the_stream():
    ours, ref = VecEnv(3), make_reference("CartPole-v1", SAME_STEP, n=3)
    for seed in (7, [1, None, 3], [None, None, 5]):
        assert np.array_equal(ours.reset(seed=seed)[0], ref.reset(seed=seed)[0])
    assert ours.np_random_seed == ref.np_random_seed == (1, 8, 5)


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("CartPole-v1", {"low": -0.2, "high": 0.3}),
        ("CartPole-v1", {"low": 0.01}),
        ("CartPole-v1", {"high": np.float32(0.5)}),
        ("CartPole-v1", {"low": 0, "high": 0}),
        ("Pendulum-v1", {"x_init": 0.5, "y_init": 0.1}),
        ("Pendulum-v1", {"y_init": 0}),
        ("Pendulum-v1", {}),
        ("Acrobot-v1", {"low": -3, "high": 3}),
        ("Acrobot-v1", {"low": 0.0}),
        ("MountainCar-v0", {"low": -1.3, "high": 0.7}),
        ("MountainCar-v0", {"low": 1e4, "high": 1e4}),
        ("MountainCarContinuous-v0", {"low": -1.3, "high": 0.7}),
        ("MountainCarContinuous-v0", {"high": -0.55}),
    ],
)
def test_resets_with_options_equal_gymnasiums(env_id, options):
    ours, ref = VecEnv(4, env_id=env_id), make_reference(env_id, SAME_STEP, n=4)
    ours.reset(seed=1), ref.reset(seed=1)
    mask = np.array([True, False, True, True])
    for seed, more in ((2, {}), (None, {}), (3, {"reset_mask": mask}), (None, {"reset_mask": mask})):
        obs, _ = ours.reset(seed=seed, options={**options, **more})
        assert np.array_equal(obs, ref.reset(seed=seed, options={**options, **more})[0])
        rng = np.random.default_rng(0)
        for _ in range(20):
            actions = actions_for(env_id, obs, rng)
            result = ours.step(actions)
            assert_steps_equal(result, ref.step(actions))
            obs = result[0]


def test_a_masked_reset_in_the_middle_cancels_a_pending_autoreset():
    ours = VecEnv(2, autoreset_mode=NEXT_STEP, max_episode_steps=3)
    ref = make_reference("CartPole-v1", NEXT_STEP, n=2, max_episode_steps=3)
    for env in (ours, ref):
        env.reset(seed=0)
    for step in range(12):
        if step == 3:  # both episodes are over
            mask = np.array([True, False])
            assert np.array_equal(
                ours.reset(options={"reset_mask": mask})[0], ref.reset(options={"reset_mask": mask})[0]
            )
        assert_steps_equal(ours.step([0, 1]), ref.step(np.array([0, 1])))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_episode_statistics_equal_gymnasiums_wrapper(mode):
    for env_id in ("CartPole-v1", "Pendulum-v1"):
        ours = VecEnv(N, seed=3, env_id=env_id, autoreset_mode=mode, max_episode_steps=40)
        ref = RecordEpisodeStatistics(make_reference(env_id, mode, max_episode_steps=40), buffer_length=10_000)
        obs, _ = ours.reset(seed=3)
        ref.reset(seed=3)
        rng = np.random.default_rng(0)
        for _ in range(300):
            actions = actions_for(env_id, obs, rng)
            obs, _, terminated, truncated, _ = ours.step(actions)
            ref.step(actions)
            done = terminated | truncated
            if mode is DISABLED and done.any():
                obs, _ = ours.reset(options={"reset_mask": done})
                # Gymnasium's SyncVectorEnv removes the mask from the wrapper's options.
                ref.env.reset(options={"reset_mask": done})
                ref.episode_returns[done], ref.episode_lengths[done] = 0, 0
                ref.prev_dones[done] = False
        returns, lengths = ours.pop_episodes()
        assert returns.dtype == np.float64
        assert lengths.dtype == np.int64
        assert len(returns) > 40
        assert lengths.tolist() == list(ref.length_queue)
        assert returns.tolist() == list(ref.return_queue)


MASKS = st.lists(st.booleans(), min_size=3, max_size=3).filter(any).map(np.array)
SEEDS = st.none() | st.integers(0, 2**40) | st.lists(st.none() | st.integers(0, 99), min_size=3, max_size=3)
OPERATIONS = st.lists(
    st.tuples(st.just("step"), st.integers(1, 12))
    | st.tuples(st.just("reset"), SEEDS, st.none() | MASKS, st.sampled_from([{}, {"low": -0.2}])),
    max_size=12,
)


@given(st.sampled_from(AutoresetMode), st.integers(1, 9), OPERATIONS)
def test_any_sequence_of_resets_and_steps_is_equal(mode, limit, operations):
    ours = VecEnv(3, autoreset_mode=mode, max_episode_steps=limit)
    ref = make_reference("CartPole-v1", mode, n=3, max_episode_steps=limit)
    rng = np.random.default_rng(0)
    ours.reset(seed=0), ref.reset(seed=0)
    over = np.zeros(3, bool)
    for operation, *details in operations:
        if operation == "reset":
            seed, mask, options = details
            options = options if mask is None else {**options, "reset_mask": mask}
            expected = ref.reset(seed=seed, options=dict(options))[0]
            assert np.array_equal(ours.reset(seed=seed, options=options)[0], expected)
            over[...] = False if mask is None else over & ~mask
            continue
        for _ in range(details[0]):
            actions = rng.integers(0, 2, 3)
            if mode is DISABLED and over.any():
                with rejects(ArgumentError, "step", "reset_mask", env=int(over.argmax())):
                    ours.step(actions)
                break
            expected = ref.step(actions)
            assert_steps_equal(ours.step(actions), expected)
            over = expected[2] | expected[3]
    assert ours.np_random_seed == ref.np_random_seed
    for a, b in zip(ours.np_random, ref.np_random, strict=True):
        assert a.bit_generator.state == b.bit_generator.state
