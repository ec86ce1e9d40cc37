"""Rejected calls of native environments, which change no state."""

import gymnasium as gym
import numpy as np
import pytest

from rlox import ArgumentError, ArgumentTypeError, NonFiniteError, OutOfMemoryError, VecEnv, make_vec
from support.rejections import Rejection, expect_rejection, rejections

NAN = float("nan")
N = 3
FLAGS = np.zeros(N, bool)


def cart(**kwargs):
    return VecEnv(N, 0, "CartPole-v1", **kwargs)


def pendulum(**kwargs):
    return VecEnv(N, 0, "Pendulum-v1", **kwargs)


def step_arguments(env, **replaced):
    """Return valid arguments of `step_into`, updated by `replaced`."""
    valid = {
        "actions": np.zeros((N, *env.single_action_space.shape), env.single_action_space.dtype),
        "obs": np.zeros(env.observation_space.shape, np.float32),
        "rewards": np.zeros(N),
        "terminated": np.zeros(N, bool),
        "truncated": np.zeros(N, bool),
    }
    return valid | replaced


def step_into(env, **replaced):
    """Call `step_into` and check that rejected arrays are not written."""
    passed = step_arguments(env, **replaced)
    before = {name: np.array(value) for name, value in passed.items()}
    try:
        env.step_into(**passed)
    finally:
        assert all(np.array_equal(passed[name], before[name]) for name in passed)


def frozen(array):
    array.flags.writeable = False
    return array


@rejections(
    (lambda: VecEnv(0), ArgumentError, "n"),
    (lambda: VecEnv(1.5), ArgumentTypeError, "n"),
    (lambda: VecEnv(2**62), OutOfMemoryError, "n"),
    (lambda: VecEnv(10**30), OutOfMemoryError, "n"),
    (lambda: VecEnv(2**45), OutOfMemoryError, "n"),
    (lambda: VecEnv(1, -1), ArgumentError, "seed"),
    (lambda: VecEnv(1, 0.5), ArgumentTypeError, "seed"),
    (lambda: VecEnv(1, [1]), ArgumentTypeError, "seed"),
    (lambda: VecEnv(env_id="CartPole-v2"), ArgumentError, "env_id", "did you mean CartPole-v1"),
    (lambda: VecEnv(env_id="pendulum"), ArgumentError, "env_id", "did you mean Pendulum-v1"),
    (lambda: VecEnv(env_id="Ant-v5"), ArgumentError, "env_id", "rlox.make_vec"),
    (lambda: VecEnv(env_id=7), ArgumentTypeError, "env_id"),
    (lambda: VecEnv(autoreset_mode="Sometimes"), ArgumentError, "autoreset_mode"),
    (lambda: VecEnv(max_episode_steps=0), ArgumentError, "max_episode_steps"),
    (lambda: VecEnv(max_episode_steps=2**70), ArgumentError, "max_episode_steps"),
    (lambda: VecEnv(max_episode_steps=1.5), ArgumentTypeError, "max_episode_steps"),
    (lambda: VecEnv(max_episode_steps=True), ArgumentTypeError, "max_episode_steps"),
    (lambda: VecEnv(render_mode="ansi"), ArgumentError, "render_mode"),
    (lambda: VecEnv(num_env=2), ArgumentError, "env_kwargs"),
    (lambda: make_vec("CartPole-v1", 2, num_env=2), ArgumentError, "env_kwargs"),
    (lambda: make_vec("CartPole-v1", 2**45), OutOfMemoryError, "num_envs"),
    (lambda: gym.make_vec("rlox/CartPole-v1", 2**45), OutOfMemoryError, "num_envs"),
    (lambda: pendulum(sutton_barto_reward=True), ArgumentError, "env_kwargs"),
    (lambda: pendulum(g="10"), ArgumentTypeError, "g"),
    (lambda: pendulum(g=NAN), ArgumentError, "g"),
    (lambda: pendulum(g=10**400), ArgumentError, "g"),
    (lambda: VecEnv(1).get_state(), ArgumentError, "get_state"),
    (lambda: VecEnv(2).reset(options={"reset_masks": FLAGS[:2]}), ArgumentError, "options"),
)
def test_constructor_rejects_invalid_arguments(rejection):
    expect_rejection(rejection)


def check_rejected_without_change(make, rejection):
    """Check that an environment equals a twin after a rejected call."""
    env, twin = make(), make()
    for x in (env, twin):
        x.reset()
        x.step(step_arguments(x)["actions"])
    expect_rejection(rejection, env)
    assert env.np_random_seed == twin.np_random_seed
    for _ in range(20):
        results = zip(env.step(step_arguments(env)["actions"]), twin.step(step_arguments(env)["actions"]), strict=True)
        assert all(isinstance(a, dict) or np.array_equal(a, b) for a, b in results)
    assert np.array_equal(env.reset_all(), twin.reset_all())


@rejections(
    (lambda env: env.step([0, 1]), ArgumentError, "actions"),
    (lambda env: env.step([[0], [1], [0]]), ArgumentError, "actions"),
    (lambda env: env.step(1), ArgumentError, "actions"),
    (lambda env: env.step([[0, 1], [0, 1], [0, 1]]), ArgumentError, "actions"),
    (lambda env: env.step([0, 1, 2]), ArgumentError, "actions"),
    (lambda env: env.step([-1, 0, 0]), ArgumentError, "actions"),
    (lambda env: env.step([0, 2**63, 0]), ArgumentError, "actions"),
    (lambda env: env.step([0, 2**70, 0]), ArgumentError, "actions"),
    (lambda env: env.step(np.array([1, 0, 2**64 - 1], "u8")), ArgumentError, "actions"),
    (lambda env: env.step(np.array([1, 0, 2**64 - 1], ">u8")), ArgumentError, "actions"),
    (lambda env: env.step([[0], [0, 1], 1]), ArgumentError, "actions"),
    (lambda env: env.step([0.0, 1.0, 0.0]), ArgumentTypeError, "actions"),
    (lambda env: env.step([True, False, True]), ArgumentTypeError, "actions"),
    (lambda env: env.step(["a", "b", "c"]), ArgumentTypeError, "actions"),
    (lambda env: step_into(env, actions=[0, 0, 5]), ArgumentError, "actions"),
    (lambda env: step_into(env, obs=np.zeros((N, 4))), ArgumentTypeError, "obs"),
    (lambda env: step_into(env, obs=[[0.0] * 4] * N), ArgumentTypeError, "obs"),
    (lambda env: step_into(env, obs=np.zeros((N, 5), np.float32)), ArgumentError, "obs"),
    (lambda env: step_into(env, obs=np.zeros((4, N), np.float32).T), ArgumentError, "obs"),
    (lambda env: step_into(env, obs=frozen(np.zeros((N, 4), np.float32))), ArgumentError, "obs"),
    (lambda env: step_into(env, rewards=np.zeros((N, 1))), ArgumentError, "rewards"),
    (lambda env: step_into(env, rewards=np.zeros(N, np.float32)), ArgumentTypeError, "rewards"),
    (lambda env: step_into(env, terminated=FLAGS.view("u1")), ArgumentTypeError, "terminated"),
    (lambda env: step_into(env, truncated=FLAGS[1:]), ArgumentError, "truncated"),
    (lambda env: step_into(env, truncated=None), ArgumentTypeError, "truncated"),
    (lambda env: step_into(env, terminated=FLAGS, truncated=FLAGS), ArgumentError, "truncated"),
    (lambda env: step_into(env, final_obs=np.zeros((N, 4))), ArgumentTypeError, "final_obs"),
    (lambda env: step_into(env, final_obs=np.zeros((N, 3), "f4")), ArgumentError, "final_obs"),
    (lambda env: env.reset(seed=-1), ArgumentError, "seed"),
    (lambda env: env.reset(seed=1.5), ArgumentTypeError, "seed"),
    (lambda env: env.reset(seed=[1, 2, -3]), ArgumentError, "seed"),
    (lambda env: env.reset(seed=[1, 2, "c"]), ArgumentTypeError, "seed"),
    (lambda env: env.reset(seed=[1, 2]), ArgumentError, "seed"),
    (lambda env: env.reset(options={"wind": 1.0}), ArgumentError, "options"),
    (lambda env: env.reset(options={"low": "a"}), ArgumentError, "options"),
    (lambda env: env.reset(options={"low": NAN}), ArgumentError, "options"),
    (lambda env: env.reset(options={"low": 1.0}), ArgumentError, "options"),
    (lambda env: env.reset(options={3: 1.0}), ArgumentTypeError, "options"),
    (lambda env: env.reset(options=[1]), ArgumentTypeError, "options"),
    (lambda env: env.collect_n_steps(0), ArgumentError, "n"),
    (lambda env: env.collect_n_steps(2.5), ArgumentTypeError, "n"),
    (lambda env: env.collect_n_steps(2**62), OutOfMemoryError, "n"),
    (lambda env: env.collect_n_steps(2**42), OutOfMemoryError, "n"),
    (lambda env: env.collect_n_steps(2, 7), ArgumentTypeError, "policy"),
    (lambda env: env.collect_n_steps(2, lambda obs: [0, 1, 9]), ArgumentError, "actions"),
)
def test_discrete_environment_rejects_invalid_calls_without_change(rejection):
    check_rejected_without_change(cart, rejection)


@rejections(
    (lambda env: env.step([[0.0], [NAN], [0.0]]), NonFiniteError, "actions"),
    (lambda env: env.step([[0.0], [1e39], [0.0]]), ArgumentError, "actions"),
    (lambda env: env.step([[0.0]]), ArgumentError, "actions"),
    (lambda env: env.step([0.0] * 3), ArgumentError, "actions"),
    (lambda env: env.step(np.zeros((3, 2))), ArgumentError, "actions"),
    (lambda env: env.step([["a"]] * 3), ArgumentTypeError, "actions"),
    (lambda env: env.reset(options={"x_init": -1}), ArgumentError, "options"),
)
def test_continuous_environment_rejects_invalid_calls_without_change(rejection):
    check_rejected_without_change(pendulum, rejection)


@pytest.mark.parametrize("make", [cart, pendulum], ids=["cart", "pendulum"])
@pytest.mark.parametrize("method", ["step", "step_all", "step_into"])
def test_step_before_reset_is_rejected(make, method):
    env = make()
    passed = step_arguments(env)
    if method != "step_into":
        passed = {"actions": passed["actions"]}
    expect_rejection(Rejection(lambda: getattr(env, method)(**passed), ArgumentError, "step"))
    assert np.array_equal(env.reset_all(), make().reset_all())


def test_step_accepts_unsigned_actions_of_any_byte_order():
    env, twin = VecEnv(3, 0), VecEnv(3, 0)
    env.reset(), twin.reset()
    for byte_order in "=><":
        obs = env.step(np.array([1, 0, 1], f"{byte_order}u8"))[0]
        assert np.array_equal(obs, twin.step([1, 0, 1])[0])
