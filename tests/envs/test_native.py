"""Native environments in Gymnasium's registry: `gym.make` and `gym.make_vec`."""

import copy
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.performance import benchmark_step
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlox import ArgumentError, ArgumentTypeError, ClosedError, NonFiniteError, VecEnv
from rlox import _rng as streams
from rlox._rlox import env_ids
from rlox._spaces import random_actions
from rlox.envs import native as envs
from support.envs import IDS, NATIVE
from support.rejections import rejects
from support.thread_runs import run_program


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
    assert run_program(code) == "64 (3,)\n"


@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
@pytest.mark.parametrize("env_id", env_ids())
def test_gymnasiums_checker_gives_the_same_warnings_as_for_gymnasiums(env_id, render_mode):
    def warnings_of(name):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_env(gym.make(name, render_mode=render_mode).unwrapped)
        return sorted(str(warning.message) for warning in caught)

    assert warnings_of(f"rlox/{env_id}") == warnings_of(env_id)


@pytest.mark.parametrize("kwargs", [{}, NATIVE], ids=["default", "arguments"])
@pytest.mark.parametrize("env_id", IDS)
def test_a_single_environment_equals_gymnasiums_in_every_step(env_id, kwargs):
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


def test_a_noisy_environment_draws_from_np_random():
    ours = gym.make("rlox/Acrobot-v1", torque_noise_max=0.5)
    ref = gym.make("Acrobot-v1")
    ref.unwrapped.torque_noise_max = 0.5
    assert np.array_equal(ours.reset(seed=1)[0], ref.reset(seed=1)[0])
    for _ in range(5):
        assert np.array_equal(ours.step(1)[0], ref.step(1)[0])
        assert ours.unwrapped.np_random.random() == ref.unwrapped.np_random.random()


def test_np_random_is_the_only_source_of_randomness():
    env, ref = envs.NativeEnv("CartPole-v1"), gym.make("CartPole-v1").unwrapped
    for single in (env, ref):
        single.reset(seed=3)
        single.np_random.random(5)
        single.np_random.integers(0, 9, dtype=np.int32)  # PCG64 buffers 32 bits
    assert np.array_equal(env.reset()[0], ref.reset()[0])
    assert env.np_random.bit_generator.state == ref.np_random.bit_generator.state
    (state,) = env._native.rng_states()
    assert np.array_equal(state, streams.state_for_native(ref.np_random))
    for single in (env, ref):
        single.np_random = np.random.default_rng(5)
    assert np.array_equal(env.reset()[0], ref.reset()[0])
    assert env.np_random.random() == ref.np_random.random()
    env.np_random = np.random.Generator(np.random.MT19937(0))
    with rejects(ArgumentError, "np_random", expected="a generator over PCG64", got="MT19937"):
        env.reset()


@pytest.mark.parametrize("env_id", IDS)
def test_reset_options_reach_the_environment(env_id):
    names = ("x_init", "y_init") if env_id == "Pendulum-v1" else ("low", "high")
    options = dict(zip(names, (0.1, 0.2), strict=True))
    ours, ref = gym.make(f"rlox/{env_id}"), gym.make(env_id)
    assert np.array_equal(ours.reset(seed=1, options=options)[0], ref.reset(seed=1, options=options)[0])


def test_a_window_opens_in_human_mode():
    env = gym.make("rlox/CartPole-v1", render_mode="human")
    env.reset(seed=0)
    env.step(0)
    assert env.unwrapped._renderer._env.screen is not None
    env.close()


def test_finished_and_closed_environments_reject_steps():
    env = envs.NativeEnv("CartPole-v1")
    with rejects(ArgumentError, "step", "call reset first"):
        env.step(0)
    env.reset(seed=0)
    while not env.step(0)[2]:
        pass
    with rejects(ArgumentError, "step", got="an episode that is over"):
        env.step(0)
    env.reset()
    env.close()
    env.close()
    for call in (env.reset, lambda: env.step(0)):
        with pytest.raises(ClosedError):
            call()


@pytest.mark.parametrize("action", [2, -1, 0.5, None, [0, 1]], ids=str)
def test_a_single_environment_rejects_invalid_actions(action):
    env, twin = envs.NativeEnv("CartPole-v1"), envs.NativeEnv("CartPole-v1")
    env.reset(seed=0), twin.reset(seed=0)
    with rejects(ArgumentTypeError if action in (0.5, None) else ArgumentError, "action", env=None):
        env.step(action)
    assert np.array_equal(env.step(1)[0], twin.step(1)[0])


@pytest.mark.parametrize("mode", [None, "vector_entry_point", "sync", "async"])
@pytest.mark.parametrize("env_id", IDS)
def test_every_vectorization_mode_gives_the_same_trajectories(env_id, mode):
    kwargs = NATIVE[env_id]
    env = gym.make_vec(f"rlox/{env_id}", 3, vectorization_mode=mode, **kwargs)
    assert isinstance(env, VecEnv) == (mode in (None, "vector_entry_point"))
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    ref = gym.make_vec(env_id, 3, vectorization_mode="sync", **kwargs)
    assert env.spec.max_episode_steps == ref.spec.max_episode_steps
    try:
        assert np.array_equal(env.reset(seed=0)[0], ref.reset(seed=0)[0])
        ref.action_space.seed(0)
        for _ in range(60 if mode == "async" else 250):
            actions = ref.action_space.sample()
            *got, infos = env.step(actions)
            *expected, ref_infos = ref.step(actions)
            assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
            assert infos == ref_infos == {}
    finally:
        env.close()


def test_make_vec_accepts_autoreset_mode_limit_and_render_mode():
    env = gym.make_vec(
        "rlox/CartPole-v1", 2, autoreset_mode=AutoresetMode.SAME_STEP, max_episode_steps=1, render_mode="rgb_array"
    )
    env.reset(seed=0)
    assert env.step([0, 1])[3].all()
    assert len(env.render()) == 2
    env.close()
    endless = gym.make_vec("rlox/Pendulum-v1", 1, max_episode_steps=-1)
    endless.reset(seed=0)
    assert not any(endless.step([[0.0]])[3][0] for _ in range(250))


def test_specs_make_equal_environments():
    env = gym.make("rlox/Pendulum-v1", g=2.0)
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.spec == env.spec
    env.reset(seed=0), again.reset(seed=0)
    assert np.array_equal(env.step([1.0])[0], again.step([1.0])[0])


def test_gymnasiums_wrappers_and_benchmark_accept_a_single_environment():
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("rlox/CartPole-v1", max_episode_steps=5))
    env = gym.wrappers.NormalizeObservation(gym.wrappers.TimeAwareObservation(env))
    env.reset(seed=0)
    for _ in range(4):
        assert env.step(0)[0].shape == (5,)
    assert env.step(0)[4]["episode"]["l"] == 5
    assert benchmark_step(gym.make("rlox/Pendulum-v1"), target_duration=0.05, seed=0) > 100


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("env_id", env_ids())
@pytest.mark.parametrize("n", [3, 21])  # scalar copies, and SIMD lanes
def test_environments_continue_exactly_from_the_state_of_any_step(env_id, mode, n):
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
        env.pop_episodes()
        for _ in range(1 if mode == "Disabled" else 3):
            actions = random_actions(env.single_action_space, rng, (n,))
            got, expected = copy.step(actions), env.step(actions)
            for x, y in zip(got[:4], expected[:4], strict=True):
                assert np.array_equal(x, y)
        for x, y in zip(copy.pop_episodes(), env.pop_episodes(), strict=True):
            assert np.array_equal(x, y)


def native_and_gymnasium(env_id):
    return (gym.make(name, max_episode_steps=-1).unwrapped for name in (f"rlox/{env_id}", env_id))


def assert_states_equal(ours, ref):
    state = np.asarray(ref.state)
    assert (ours.state.dtype, ours.state.shape) == (state.dtype, state.shape)
    assert np.array_equal(ours.state, state)


# Bounds of random states, and the dtypes of states.
STATES = {
    "Acrobot-v1": ([4.0, 4.0, 12.0, 28.0], ["f4", "f8"]),
    "CartPole-v1": ([2.5, 4.0, 0.25, 4.0], ["f8"]),
    "MountainCar-v0": ([1.2, 0.07], ["f8"]),
    "MountainCarContinuous-v0": ([1.2, 0.07], ["f4", "f8"]),
    "Pendulum-v1": ([9.0, 8.0], ["f8"]),
}


@pytest.mark.parametrize("env_id", IDS)
def test_steps_after_a_reset_and_after_setting_states_equal_gymnasiums(env_id):
    """Check states that are set before the first reset, in episodes and after their ends."""
    ours, ref = native_and_gymnasium(env_id)
    assert ours.state is None
    high, dtypes = STATES[env_id]
    rng, terminations = np.random.default_rng(0), 0
    ref.action_space.seed(0)
    for i in range(200):
        if i == 5:
            ours.reset(seed=1), ref.reset(seed=1)
        else:
            state = (rng.uniform(-1, 1, len(high)) * high).astype(dtypes[i % len(dtypes)])
            ours.state = ref.state = state
            ref.steps_beyond_terminated = None
        assert_states_equal(ours, ref)
        for _ in range(3):
            action = ref.action_space.sample()
            obs, *rest, _ = ours.step(action)
            expected, *expected_rest, _ = ref.step(action)
            assert np.array_equal(obs, expected)
            assert rest == expected_rest
            assert_states_equal(ours, ref)
            if rest[1]:
                terminations += 1
                break
    assert (terminations > 10) == (env_id != "Pendulum-v1")


@pytest.mark.parametrize(
    "state", [[0.0] * 3, [[0.0] * 4], 0.0, "upright", [True] * 4, [None] * 4, [np.nan] * 4, [1e39] * 4], ids=str
)
def test_invalid_states_are_rejected(state):
    env = gym.make("rlox/CartPole-v1").unwrapped
    env.reset(seed=0)
    before = env.state
    with rejects(NonFiniteError if state == [np.nan] * 4 else ArgumentError, "state", env=None):
        env.state = state
    assert np.array_equal(env.state, before)
    with pytest.raises(ValueError, match="read-only"):
        env.state[0] = 1.0


def constants(env):
    """Return the attributes of an environment that are numbers, strings, lists or arrays."""
    attributes = {**vars(type(env)), **vars(env)}
    types = (int, float, str, list, np.ndarray)
    return {
        name: value
        for name, value in attributes.items()
        if isinstance(value, types) and not isinstance(value, bool) and name[0] != "_"
    }


@pytest.mark.parametrize("env_id", IDS)
def test_constants_equal_gymnasiums_and_are_read_only(env_id):
    env, ref = native_and_gymnasium(env_id)
    expected = constants(ref)
    assert len(expected) > 6
    for name, value in expected.items():
        for ours in (env, VecEnv(2, env_id=env_id)):
            assert np.array_equal(getattr(ours, name), value), name
            with rejects(AttributeError, f"{name}: ", name=name, obj=ours):
                setattr(ours, name, 30.0)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "expected"),
    [
        ("Acrobot-v1", {"dt": 0.1, "torque_noise_max": 0.5}, {"dt": 0.1, "torque_noise_max": 0.5}),
        ("Acrobot-v1", {"nips": True}, {"book_or_nips": "nips", "dt": 0.2}),
        ("Acrobot-v1", {"nips": 0}, {"book_or_nips": "book"}),
        ("MountainCar-v0", {"goal_velocity": 0.02}, {"goal_velocity": 0.02}),
        ("MountainCarContinuous-v0", {"goal_velocity": 0.02}, {"goal_velocity": 0.02}),
        ("Pendulum-v1", {"g": 3.5}, {"g": 3.5, "m": 1.0}),
    ],
)
def test_constants_have_the_values_of_the_arguments(env_id, kwargs, expected):
    for env in (gym.make(f"rlox/{env_id}", **kwargs).unwrapped, VecEnv(2, 0, env_id, **kwargs)):
        assert {name: getattr(env, name) for name in expected} == expected
        for name in expected.keys() - {"m"}:
            setattr(env, name, expected[name])
            with rejects(AttributeError, f"{name}: ", "= to the constructor", name=name):
                setattr(env, name, 1.0)


SETTERS = {
    "setattr": lambda name: setattr(gym.make("rlox/CartPole-v1").unwrapped, name, 30.0),
    "set_wrapper_attr": lambda name: gym.make("rlox/CartPole-v1").set_wrapper_attr(name, 30.0),
    "set_attr": lambda name: SyncVectorEnv([lambda: gym.make("rlox/CartPole-v1")]).set_attr(name, 30.0),
    "VecEnv": lambda name: setattr(VecEnv(n=2), name, 30.0),
}


@pytest.mark.parametrize("setter", SETTERS)
def test_setting_gravity_raises(setter):
    with rejects(AttributeError, "9.8, got 30.0", "gymnasium.make('CartPole-v1')", name="gravity"):
        SETTERS[setter]("gravity")


@pytest.mark.parametrize("setter", SETTERS)
@pytest.mark.parametrize("name", ["gravitation", "_sutton_barto_reward", "steps_beyond_terminated"])
def test_unknown_attributes_cannot_be_set(setter, name):
    with rejects(AttributeError, f"{name}: expected an attribute of", name=name):
        SETTERS[setter](name)
    assert not hasattr(VecEnv(), name)


def test_attributes_of_gymnasiums_interface_can_be_set():
    env, vector = gym.make("rlox/CartPole-v1").unwrapped, VecEnv(2)
    env.np_random = np.random.default_rng(1)
    for x in (env, vector):
        x.spec, x.render_mode, x.metadata = None, "rgb_array", {"render_fps": 5}
        x.action_space, x.observation_space = x.action_space, x.observation_space
        assert (x.spec, x.metadata) == (None, {"render_fps": 5})
        assert copy.copy(x).gravity == 9.8


class Counting(envs.NativeEnv):
    """Subclass with attributes that are set before and after the base constructor."""

    def __init__(self):
        self.limit = 3
        super().__init__("CartPole-v1")
        self.count = 0


def test_subclasses_may_add_attributes():
    class Recording(VecEnv):
        def reset(self, **kwargs):
            self.last, _ = super().reset(**kwargs)
            return self.last, {}

    env, vector = Counting(), Recording(2, 0)
    env.count += 1
    assert (env.limit, env.count) == (3, 1)
    assert np.array_equal(vector.reset()[0], vector.last)
    for x in (env, vector):
        with rejects(AttributeError, "gravity: ", name="gravity"):
            x.gravity = 30.0
