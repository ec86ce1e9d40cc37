"""The native environments in Gymnasium's registry: `gym.make` and `gym.make_vec`."""

import subprocess
import sys
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.performance import benchmark_step
from gymnasium.vector import AutoresetMode

from rlox import ClosedError, VecEnv, envs, streams
from rlox._rlox import env_ids
from rlox.uniform import random_actions

IDS = ["Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
# Gymnasium's Acrobot takes none; its attributes are compared in parity/test_lockstep.py.
KWARGS = {
    "Acrobot-v1": {},
    "CartPole-v1": {"sutton_barto_reward": True},
    "MountainCar-v0": {"goal_velocity": 0.02},
    "MountainCarContinuous-v0": {"goal_velocity": 0.02},
    "Pendulum-v1": {"g": 3.5},
}


def test_every_native_id_is_registered_with_gymnasiums_limit():
    assert set(IDS) == set(env_ids())
    for env_id in env_ids():
        ours, ref = gym.spec(f"rlox/{env_id}"), gym.spec(env_id)
        assert ours.max_episode_steps == ref.max_episode_steps
        assert ours.reward_threshold == ref.reward_threshold
        assert not ours.nondeterministic


def test_registering_again_changes_nothing():
    before = dict(gym.registry)
    envs.register()
    assert gym.registry == before


def test_a_module_prefix_imports_and_registers():
    code = (
        "import gymnasium as gym\n"
        "print(gym.make_vec('rlox:rlox/CartPole-v1', 64).num_envs,"
        " gym.make('rlox:rlox/Pendulum-v1').reset(seed=0)[0].shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split("\n")[0] == "64 (3,)"


@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
@pytest.mark.parametrize("env_id", env_ids())
def test_gymnasiums_checker_has_nothing_to_say_that_it_does_not_say_of_its_own(env_id, render_mode):
    def complaints(name):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_env(gym.make(name, render_mode=render_mode).unwrapped)
        return sorted(str(warning.message) for warning in caught)

    assert complaints(f"rlox/{env_id}") == complaints(env_id)


@pytest.mark.parametrize("kwargs", [{}, KWARGS], ids=["default", "arguments"])
@pytest.mark.parametrize("env_id", IDS)
def test_a_single_environment_is_gymnasiums_step_by_step(env_id, kwargs):
    kwargs = kwargs.get(env_id, {})
    ours, ref = gym.make(f"rlox/{env_id}", **kwargs), gym.make(env_id, **kwargs)
    ref.action_space.seed(0)
    episodes = 0
    for seed in (0, None, None, 17):
        assert np.array_equal(ours.reset(seed=seed)[0], ref.reset(seed=seed)[0])
        done = False
        while not done:
            action = ref.action_space.sample()
            obs, *rest, info = ours.step(action)
            expected, *ref_rest, ref_info = ref.step(action)
            assert obs.dtype == expected.dtype
            assert np.array_equal(obs, expected)
            assert rest == ref_rest
            assert info == ref_info == {}
            done = rest[1] or rest[2]
        episodes += 1
        ours_rng, ref_rng = (env.unwrapped.np_random for env in (ours, ref))
        assert ours_rng.bit_generator.state == ref_rng.bit_generator.state
    assert episodes == 4
    assert ours.unwrapped.np_random_seed == 17


@pytest.mark.parametrize("env_id", env_ids())
def test_nothing_but_a_reset_draws(env_id):
    """If a step drew, `np_random` would have to follow it too."""
    env = envs.NativeEnv(env_id)
    env.reset(seed=0)
    before = env._native.rng_states()
    env.action_space.seed(0)
    for _ in range(5):
        env.step(env.action_space.sample())
    assert np.array_equal(env._native.rng_states(), before)


def test_a_noisy_environment_draws_from_np_random():
    ours = gym.make("rlox/Acrobot-v1", torque_noise_max=0.5)
    ref = gym.make("Acrobot-v1")
    ref.unwrapped.torque_noise_max = 0.5
    assert np.array_equal(ours.reset(seed=1)[0], ref.reset(seed=1)[0])
    for _ in range(5):
        assert np.array_equal(ours.step(1)[0], ref.step(1)[0])
        assert ours.unwrapped.np_random.random() == ref.unwrapped.np_random.random()


def test_all_randomness_is_np_random():
    env, ref = envs.NativeEnv("CartPole-v1"), gym.make("CartPole-v1").unwrapped
    for each in (env, ref):
        each.reset(seed=3)
        each.np_random.random(5)
        each.np_random.integers(0, 9, dtype=np.int32)  # leaves half a word behind
    assert np.array_equal(env.reset()[0], ref.reset()[0])
    assert env.np_random.bit_generator.state == ref.np_random.bit_generator.state
    (words,) = env._native.rng_states()
    assert np.array_equal(words, streams.state_for_native(ref.np_random))
    for each in (env, ref):
        each.np_random = np.random.default_rng(5)
    assert np.array_equal(env.reset()[0], ref.reset()[0])
    assert env.np_random.random() == ref.np_random.random()
    env.np_random = np.random.Generator(np.random.MT19937(0))
    with pytest.raises(ValueError, match=r"np_random: .*PCG64.*MT19937"):
        env.reset()


@pytest.mark.parametrize("env_id", IDS)
def test_reset_options_reach_the_environment(env_id):
    names = ("x_init", "y_init") if env_id == "Pendulum-v1" else ("low", "high")
    options = dict(zip(names, (0.1, 0.2), strict=True))
    ours, ref = gym.make(f"rlox/{env_id}"), gym.make(env_id)
    assert np.array_equal(
        ours.reset(seed=1, options=options)[0], ref.reset(seed=1, options=options)[0]
    )


@pytest.mark.parametrize("env_id", IDS)
def test_frames_of_a_single_environment_are_gymnasiums(env_id):
    ours, ref = (gym.make(name, render_mode="rgb_array") for name in (f"rlox/{env_id}", env_id))
    ours.reset(seed=3), ref.reset(seed=3)
    for _ in range(5):
        assert np.array_equal(ours.render(), ref.render())
        action = ref.action_space.sample()
        ours.step(action), ref.step(action)
    ours.close(), ref.close()


def test_a_window_opens_in_human_mode():
    env = gym.make("rlox/CartPole-v1", render_mode="human")
    env.reset(seed=0)
    env.step(0)
    assert env.unwrapped._renderer._env.screen is not None
    env.close()


def test_render_modes_are_checked():
    with pytest.raises(ValueError, match=r"render_mode: .*'ansi'"):
        envs.NativeEnv("CartPole-v1", render_mode="ansi")
    env = envs.NativeEnv("CartPole-v1")
    env.reset()
    with pytest.warns(UserWarning, match="rgb_array"):
        assert env.render() is None


def test_a_finished_or_closed_environment_says_so():
    env = envs.NativeEnv("CartPole-v1")
    with pytest.raises(ValueError, match="reset"):
        env.step(0)
    env.reset(seed=0)
    while not env.step(0)[2]:
        pass
    with pytest.raises(ValueError, match="over"):
        env.step(0)
    env.reset()
    env.close()
    env.close()
    for call in (env.reset, lambda: env.step(0)):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.parametrize("action", [2, -1, 0.5, np.nan, None, [0, 1], "left"], ids=str)
def test_bad_actions_of_a_single_environment_are_refused(action):
    env, twin = envs.NativeEnv("CartPole-v1"), envs.NativeEnv("CartPole-v1")
    env.reset(seed=0), twin.reset(seed=0)
    with pytest.raises((TypeError, ValueError), match=r"actions?: expected"):
        env.step(action)
    assert np.array_equal(env.step(1)[0], twin.step(1)[0])


@pytest.mark.parametrize("mode", [None, "vector_entry_point", "sync", "async"])
@pytest.mark.parametrize("env_id", IDS)
def test_every_vectorization_mode_gives_the_same_trajectories(env_id, mode):
    kwargs = KWARGS[env_id]
    made = gym.make_vec(f"rlox/{env_id}", 3, vectorization_mode=mode, **kwargs)
    assert isinstance(made, VecEnv) == (mode in (None, "vector_entry_point"))
    assert made.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    ref = gym.make_vec(env_id, 3, vectorization_mode="sync", **kwargs)
    assert made.spec.max_episode_steps == ref.spec.max_episode_steps
    try:
        assert np.array_equal(made.reset(seed=0)[0], ref.reset(seed=0)[0])
        ref.action_space.seed(0)
        for _ in range(60 if mode == "async" else 250):
            actions = ref.action_space.sample()
            *got, infos = made.step(actions)
            *expected, ref_infos = ref.step(actions)
            assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
            assert infos == ref_infos == {}
    finally:
        made.close()


def test_make_vec_takes_a_mode_a_limit_and_a_render_mode():
    env = gym.make_vec(
        "rlox/CartPole-v1",
        2,
        autoreset_mode=AutoresetMode.SAME_STEP,
        max_episode_steps=1,
        render_mode="rgb_array",
    )
    env.reset(seed=0)
    assert env.step([0, 1])[3].all()
    assert len(env.render()) == 2
    env.close()
    endless = gym.make_vec("rlox/Pendulum-v1", 1, max_episode_steps=-1)
    endless.reset(seed=0)
    assert not any(endless.step([[0.0]])[3][0] for _ in range(250))


def test_specs_make_the_same_environment_again():
    env = gym.make("rlox/Pendulum-v1", g=2.0)
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.spec == env.spec
    env.reset(seed=0), again.reset(seed=0)
    assert np.array_equal(env.step([1.0])[0], again.step([1.0])[0])
    vector = gym.make_vec("rlox/Pendulum-v1", 3, g=2.0)
    assert gym.make_vec(vector.spec).num_envs == 3


def test_unknown_arguments_are_named():
    for make in (gym.make, gym.make_vec):
        with pytest.raises(ValueError, match=r"sutton_barto_reward.*gravity"):
            make("rlox/CartPole-v1", gravity=9.8)


def test_gymnasiums_wrappers_and_benchmark_take_a_single_environment():
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("rlox/CartPole-v1", max_episode_steps=5))
    env = gym.wrappers.NormalizeObservation(gym.wrappers.TimeAwareObservation(env))
    env.reset(seed=0)
    for _ in range(4):
        assert env.step(0)[0].shape == (5,)
    assert env.step(0)[4]["episode"]["l"] == 5
    assert benchmark_step(gym.make("rlox/Pendulum-v1"), target_duration=0.05, seed=0) > 100


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("env_id", env_ids())
@pytest.mark.parametrize("n", [3, 21])  # copies, and lanes
def test_environments_go_on_exactly_from_a_state_taken_at_any_step(env_id, mode, n):
    limit = 7
    make = partial(VecEnv, n, env_id=env_id, autoreset_mode=mode, max_episode_steps=limit)
    env, rng = make(seed=3), np.random.default_rng(0)
    env.reset()
    for _ in range(20):
        copy = make()
        copy.set_state({name: array.copy() for name, array in env.get_state().items()})
        assert np.array_equal(copy._native.observe(), env._native.observe())
        over = env.get_state()["finished"]
        if mode == "Disabled" and over.any():
            options = {"reset_mask": over}
            obs = [e.reset(options=options)[0] for e in (env, copy)]
            assert np.array_equal(*obs)
        env.drain_episodes()
        for _ in range(1 if mode == "Disabled" else 3):
            actions = random_actions(env.single_action_space, rng, (n,))
            got, expected = copy.step(actions), env.step(actions)
            for x, y in zip(got[:4], expected[:4], strict=True):
                assert np.array_equal(x, y)
        for x, y in zip(copy.drain_episodes(), env.drain_episodes(), strict=True):
            assert np.array_equal(x, y)


def test_states_that_make_no_sense_are_refused_and_change_nothing():
    env = VecEnv(3, 0)
    with pytest.raises(ValueError, match="reset"):
        env.get_state()
    env.reset()
    good = env.get_state()
    for name, bad in [
        ("states", np.full((3, 4), np.inf)),
        ("states", np.zeros((3, 5))),
        ("states", np.zeros((2, 4))),
        ("episode_steps", [-1, 0, 0]),
        ("episode_returns", [0.0]),
        ("finished", [2, 0, 0]),
        ("streams", np.zeros((3, 5), int)),
    ]:
        with pytest.raises(ValueError, match=name):
            env.set_state(good | {name: bad})
    with pytest.raises(ValueError, match=r"state: .*streams"):
        env.set_state({name: array for name, array in good.items() if name != "streams"})
    for name, array in env.get_state().items():
        assert np.array_equal(array, good[name]), name
