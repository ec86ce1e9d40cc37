"""`make_vec`: ids, classes, functions, environments and vector environments."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import toy_envs  # noqa: F401  # registers an id
from counters import Counter, fill
from rlox import VecEnv, make_vec
from rlox.vector import ForeignVecEnv

SAME_STEP = AutoresetMode.SAME_STEP


@pytest.mark.parametrize("env_id", ["CartPole-v1", "rlox/CartPole-v1", "rlox:rlox/CartPole-v1"])
def test_make_vec_takes_the_native_implementation_of_an_id(env_id):
    env = make_vec(env_id, 3, seed=5, sutton_barto_reward=True)
    assert isinstance(env, VecEnv)
    assert np.array_equal(env.reset_all(), VecEnv(3, 5).reset_all())
    assert (env.step([0, 0, 0])[1] == 0).all()


def test_make_vec_makes_gymnasiums_where_there_is_none():
    env = make_vec("toy/Echo-v0", 2, seed=3, n=5)
    assert isinstance(env, ForeignVecEnv)
    assert np.array_equal(fill(env, 1).obs[0, 1], gym.make("toy/Echo-v0", n=5).reset(seed=4)[0])


def test_make_vec_takes_gymnasiums_own_environment_from_a_function():
    env = make_vec(lambda: gym.make("MountainCarContinuous-v0", goal_velocity=0.01), 2, seed=3)
    assert isinstance(env, ForeignVecEnv)
    expected = VecEnv(1, env_id="MountainCarContinuous-v0").reset_all(seed=4)[0]
    assert np.array_equal(fill(env, 1).obs[0, 1], expected)
    assert env.unwrapped.envs[0].unwrapped.goal_velocity == 0.01


def test_make_vec_takes_classes_functions_environments_and_vector_environments():
    made = SyncVectorEnv([lambda: Counter(truncate_at=4)] * 3, autoreset_mode=SAME_STEP)
    for env, n in (
        (make_vec(Counter, 2, truncate_at=4), 2),
        (make_vec(lambda: Counter(truncate_at=4), 2), 2),
        (make_vec(Counter(truncate_at=4)), 1),
        (make_vec(made), 3),
    ):
        assert isinstance(env, ForeignVecEnv)
        assert env.num_envs == n
        assert make_vec(env) is env
        assert fill(env, 5).truncated.sum() == n
    native = VecEnv(2)
    assert make_vec(native) is native
    assert np.array_equal(
        make_vec(native, seed=9).collect_n_steps(1)["obs"][0], VecEnv(2, 9).reset_all()
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "words"),
    [
        (("CartPole-v9",), {}, ValueError, "env: .*'CartPole-v9'.*CartPole-v1"),
        (("cartpole",), {}, ValueError, "CartPole-v1"),
        (("MountianCar-v0",), {}, ValueError, "MountainCar-v0"),
        (("qqqq",), {}, ValueError, r"env: .*'qqqq'.*registry"),
        (("not an id!",), {}, ValueError, "env: .*'not an id!'"),
        (("CartPole-v1", 0), {}, ValueError, "num_envs: .*at least 1, got 0"),
        ((Counter, -3), {}, ValueError, "num_envs: .*at least 1, got -3"),
        (("CartPole-v1", "3"), {}, TypeError, "num_envs: .*integer.*'3'"),
        (("CartPole-v1", 2**62), {}, MemoryError, "num_envs: .*got 4611686018427387904"),
        (("toy/Echo-v0", 2**62), {}, MemoryError, "num_envs: .*got 4611686018427387904"),
        ((Counter, 2**62), {}, MemoryError, "num_envs: .*got 4611686018427387904"),
        ((Counter(), 2), {}, ValueError, "num_envs: .*1 for a single"),
        ((Counter(),), {"g": 1}, TypeError, "g: .*already made"),
        ((VecEnv(1),), {"g": 1}, TypeError, "g: .*already made"),
        ((3,), {}, TypeError, "env: .*got int"),
        (("Pendulum-v1",), {"gravity": 1}, ValueError, "gravity"),
        ((Counter,), {"vectorization_mode": "both"}, ValueError, "vectorization_mode: .*'both'"),
        ((Counter,), {"vectorization_mode": "vector_entry_point"}, ValueError, "vectorization_mod"),
        (("toy/Echo-v0",), {"vectorization_mode": "vector_entry_point"}, ValueError, "toy/Echo-v0"),
        ((Counter(),), {"vectorization_mode": "async"}, ValueError, "async.*its class"),
        ((VecEnv(1),), {"vectorization_mode": "sync"}, TypeError, "vectorization_mode: .*already"),
        ((VecEnv(1),), {"wrappers": [lambda env: env]}, TypeError, "wrappers: .*already"),
        ((Counter,), {"wrappers": ["flat"]}, TypeError, "wrappers: .*functions"),
        ((Counter,), {"wrappers": lambda env: env}, TypeError, "wrappers: .*list"),
        ((Counter,), {"wrappers": [lambda env: 3]}, TypeError, "env: .*got a int"),
        ((lambda: VecEnv(1),), {}, TypeError, "env: .*got a VecEnv"),
        ((Counter,), {"autoreset_mode": "never"}, ValueError, "autoreset_mode: .*'never'"),
    ],
    ids=str,
)
def test_make_vec_says_what_is_wrong(args, kwargs, error, words):
    with pytest.raises(error, match=words):
        make_vec(*args, **kwargs)
