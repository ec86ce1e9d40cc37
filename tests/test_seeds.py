"""Seeds: one rule wherever they are taken."""

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox.evaluation import evaluate
from rlox.trainers import PPOTrainer


def reset(env):
    def call(seed):
        made = env()
        made.reset(seed=seed)
        made.close()

    return call


class Still:
    def predict(self, obs, deterministic=True):
        return np.zeros(len(obs), np.int64)


TAKERS = {
    "VecEnv": lambda seed: rlox.VecEnv(2, seed),
    "VecEnv.reset": reset(lambda: rlox.VecEnv(2)),
    "VecEnv.reset each": lambda seed: rlox.VecEnv(2).reset(seed=[0, seed]),
    "ForeignVecEnv.reset": reset(lambda: rlox.make_vec("Acrobot-v1", 2, vectorization_mode="sync")),
    "ForeignVecEnv.reset each": lambda seed: rlox.make_vec(
        "CartPole-v1", 2, vectorization_mode="sync"
    ).reset(seed=[0, seed]),
    "NativeEnv.reset": reset(lambda: gym.make("rlox/CartPole-v1")),
    "make_vec": lambda seed: rlox.make_vec("CartPole-v1", 2, seed=seed).reset(),
    "make_vec of others": lambda seed: rlox.make_vec("FrozenLake-v1", 2, seed=seed),
    "trainer": lambda seed: PPOTrainer("CartPole-v1", seed, runs_dir=None),
    "evaluate": lambda seed: evaluate(Still(), "CartPole-v1", 1, seed=seed),
    "NativeVectorEnv": lambda seed: rlox._rlox.NativeVectorEnv("CartPole-v1", 2, seed),
}


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_seeds_are_integers_of_any_size_that_are_not_negative(take):
    for seed in (0, 7, np.int8(7), np.uint64(2**64 - 1), 2**64, 2**70):
        take(seed)
    for wrong in (True, np.bool_(False), 1.5, 2.0, np.float32(2), float("nan"), "1"):
        with pytest.raises(TypeError, match=r"seed: expected .*integer.*, got .*; pass "):
            take(wrong)
    for wrong in (-1, np.int64(-1), -(2**70)):
        with pytest.raises(ValueError, match=r"seed: expected .*at least 0, got .*-.*; pass "):
            take(wrong)


@pytest.mark.parametrize("seed", [2**64 - 1, 2**64, 2**70, 2**128, 2**200 + 12345])
@pytest.mark.parametrize("n", [1, 40])
def test_large_seeds_give_gymnasiums_trajectories(seed, n):
    env, each = rlox.VecEnv(n), rlox.VecEnv(n, seed=seed)
    obs = env.reset(seed=seed)[0]
    others = [gym.make("CartPole-v1").reset(seed=seed + i)[0] for i in range(n)]
    assert np.array_equal(obs, others)
    assert np.array_equal(each.reset()[0], others)
    assert np.array_equal(env.reset(seed=[seed + i for i in range(n)])[0], others)
    assert env.np_random_seed == tuple(seed + i for i in range(n))


def test_lists_of_seeds_stay_the_callers():
    for seed in ([1, 2], np.array([1, 2])):
        env = rlox.VecEnv(2)
        env.reset(seed=seed)
        seed[0] = 9
        expected = rlox.VecEnv(2)
        expected.reset(seed=[1, 2])
        assert env.action_stream.random() == expected.action_stream.random()


def test_large_seeds_leave_the_other_streams_alone():
    env, twin = rlox.VecEnv(3, 0), rlox.VecEnv(3, 0)
    env.reset(), twin.reset()
    before = [stream.bit_generator.state for stream in env.np_random]
    mask = np.array([True, False, True])
    with pytest.raises(ValueError, match="options: expected only low, high"):
        env.reset(seed=2**70, options={"reset_mask": mask, "foo": 1.0})
    assert [stream.bit_generator.state for stream in env.np_random] == before
    obs = env.reset(seed=[2**70, None, None], options={"reset_mask": mask})[0]
    assert np.array_equal(obs[0], gym.make("CartPole-v1").reset(seed=2**70)[0])
    kept = twin.reset(options={"reset_mask": mask})[0]
    assert np.array_equal(obs[1:], kept[1:])
