"""Calls of native environments that are rejected, without a change of state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlox
from rlox import ArgumentError, ArgumentTypeError, OutOfMemoryError, VecEnv
from support.refusals import expect_refusal, refusals

NAN, INF = float("nan"), float("inf")
N = 3
FLAGS = np.zeros(N, bool)


def cart(**kwargs):
    return VecEnv(N, 0, "CartPole-v1", **kwargs)


def pendulum(**kwargs):
    return VecEnv(N, 0, "Pendulum-v1", **kwargs)


def arrays(env, **replaced):
    """Return valid arguments of `step_into`, some of them replaced."""
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
    passed = arrays(env, **replaced)
    before = {name: np.array(value) for name, value in passed.items()}
    try:
        env.step_into(**passed)
    finally:
        assert all(np.array_equal(passed[name], before[name]) for name in passed)


def frozen(array):
    array.flags.writeable = False
    return array


@refusals(
    ("0", lambda: VecEnv(0), ArgumentError, "n"),
    ("-1", lambda: VecEnv(-1), ArgumentError, "n"),
    ("1.5", lambda: VecEnv(1.5), ArgumentTypeError, "n"),
    ("'3'", lambda: VecEnv("3"), ArgumentTypeError, "n"),
    ("None", lambda: VecEnv(None), ArgumentTypeError, "n"),
    ("2 ** 62", lambda: VecEnv(2**62), OutOfMemoryError, "n"),
    ("2 ** 64", lambda: VecEnv(2**64), OutOfMemoryError, "n"),
    ("10 ** 30", lambda: VecEnv(10**30), OutOfMemoryError, "n"),
    ("2 ** 45", lambda: VecEnv(2**45), OutOfMemoryError, "n"),
    ("1, -1", lambda: VecEnv(1, -1), ArgumentError, "seed"),
    ("1, 0.5", lambda: VecEnv(1, 0.5), ArgumentTypeError, "seed"),
    ("1, 'a'", lambda: VecEnv(1, "a"), ArgumentTypeError, "seed"),
    ("1, [1]", lambda: VecEnv(1, [1]), ArgumentTypeError, "seed"),
    (
        "env_id='CartPole-v2'",
        lambda: VecEnv(env_id="CartPole-v2"),
        ArgumentError,
        "env_id",
        "did you mean CartPole-v1",
    ),
    (
        "env_id='pendulum'",
        lambda: VecEnv(env_id="pendulum"),
        ArgumentError,
        "env_id",
        "did you mean Pendulum-v1",
    ),
    ("env_id=''", lambda: VecEnv(env_id=""), ArgumentError, "env_id"),
    ("env_id=7", lambda: VecEnv(env_id=7), ArgumentError, "env_id"),
    ("env_id='x' * 100000", lambda: VecEnv(env_id="x" * 100000), ArgumentError, "env_id"),
    (
        "autoreset_mode='Sometimes'",
        lambda: VecEnv(autoreset_mode="Sometimes"),
        ArgumentError,
        "autoreset_mode",
    ),
    ("autoreset_mode=1", lambda: VecEnv(autoreset_mode=1), ArgumentError, "autoreset_mode"),
    (
        "max_episode_steps=0",
        lambda: VecEnv(max_episode_steps=0),
        ArgumentError,
        "max_episode_steps",
    ),
    (
        "max_episode_steps=-2",
        lambda: VecEnv(max_episode_steps=-2),
        ArgumentError,
        "max_episode_steps",
    ),
    (
        "max_episode_steps=2 ** 70",
        lambda: VecEnv(max_episode_steps=2**70),
        ArgumentError,
        "max_episode_steps",
    ),
    (
        "max_episode_steps=1.5",
        lambda: VecEnv(max_episode_steps=1.5),
        ArgumentTypeError,
        "max_episode_steps",
    ),
    ("render_mode='ansi'", lambda: VecEnv(render_mode="ansi"), ArgumentError, "render_mode"),
    ("gravity=9.8", lambda: VecEnv(gravity=9.8), ArgumentError, "env arguments"),
    ("g='10'", lambda: pendulum(g="10"), ArgumentTypeError, "g"),
    ("g=NAN", lambda: pendulum(g=NAN), ArgumentError, "g"),
    ("g=INF", lambda: pendulum(g=INF), ArgumentError, "g"),
    (
        "sutton_barto_reward=True",
        lambda: pendulum(sutton_barto_reward=True),
        ArgumentError,
        "env arguments",
    ),
    (
        "1, env_id='Pendulum-v1', g=10 ** 400",
        lambda: VecEnv(1, env_id="Pendulum-v1", g=10**400),
        ArgumentError,
        "g",
    ),
    (
        "1, max_episode_steps='3'",
        lambda: VecEnv(1, max_episode_steps="3"),
        ArgumentTypeError,
        "max_episode_steps",
    ),
    ("1).get_state(", lambda: VecEnv(1).get_state(), ArgumentError, "get_state"),
    (
        "2).reset(options={'reset_masks': np.ones(2, bool)}",
        lambda: VecEnv(2).reset(options={"reset_masks": np.ones(2, bool)}),
        ArgumentError,
        "options",
    ),
    (
        "1, max_episode_steps=True",
        lambda: VecEnv(1, max_episode_steps=True),
        ArgumentTypeError,
        "max_episode_steps",
    ),
    (
        "native max_episode_steps=True",
        lambda: rlox._rlox.NativeVectorEnv("CartPole-v1", 1, max_episode_steps=True),
        ArgumentTypeError,
        "max_episode_steps",
    ),
    ("num_envs=4", lambda: VecEnv(num_envs=4), ArgumentError, "env arguments"),
    (
        "env_id='Ant-v5'",
        lambda: VecEnv(2, env_id="Ant-v5"),
        ArgumentError,
        "env_id",
        "rlox.make_vec",
    ),
)
def test_constructor_rejects_invalid_arguments(refusal):
    expect_refusal(refusal)


def expect_unchanged(make, refusal):
    """Check that a rejected call leaves an environment in the state of its twin."""
    env, twin = make(), make()
    for each in (env, twin):
        each.reset()
        each.step(arrays(each)["actions"])
    expect_refusal(refusal, env)
    assert env.np_random_seed == twin.np_random_seed
    for _ in range(20):
        results = zip(
            env.step(arrays(env)["actions"]), twin.step(arrays(env)["actions"]), strict=True
        )
        assert all(isinstance(a, dict) or np.array_equal(a, b) for a, b in results)
    assert np.array_equal(env.reset_all(), twin.reset_all())


@refusals(
    ("step([0, 1])", lambda env: env.step([0, 1]), ArgumentError, "actions"),
    ("step([0, 1, 0, 1])", lambda env: env.step([0, 1, 0, 1]), ArgumentError, "actions"),
    ("step([[0], [1], [0]])", lambda env: env.step([[0], [1], [0]]), ArgumentError, "actions"),
    ("step(1)", lambda env: env.step(1), ArgumentError, "actions"),
    ("step([])", lambda env: env.step([]), ArgumentError, "actions"),
    (
        "two actions per environment",
        lambda env: env.step([[0, 1], [0, 1], [0, 1]]),
        ArgumentError,
        "actions",
    ),
    ("step([0, 1, 2])", lambda env: env.step([0, 1, 2]), ArgumentError, "actions"),
    ("step([-1, 0, 0])", lambda env: env.step([-1, 0, 0]), ArgumentError, "actions"),
    ("step([0, 2 ** 63, 0])", lambda env: env.step([0, 2**63, 0]), ArgumentError, "actions"),
    ("step([0, 2 ** 70, 0])", lambda env: env.step([0, 2**70, 0]), ArgumentError, "actions"),
    ("step([0.0, 1.0, 0.0])", lambda env: env.step([0.0, 1.0, 0.0]), ArgumentTypeError, "actions"),
    ("step([NAN] * 3)", lambda env: env.step([NAN] * 3), ArgumentTypeError, "actions"),
    (
        "step([True, False, True])",
        lambda env: env.step([True, False, True]),
        ArgumentTypeError,
        "actions",
    ),
    ("step(['a', 'b', 'c'])", lambda env: env.step(["a", "b", "c"]), ArgumentTypeError, "actions"),
    ("step(None)", lambda env: env.step(None), ArgumentTypeError, "actions"),
    ("step([[0], [0, 1], 1])", lambda env: env.step([[0], [0, 1], 1]), ArgumentError, "actions"),
    ("step([0j, 1j, 0j])", lambda env: env.step([0j, 1j, 0j]), ArgumentTypeError, "actions"),
    ("step({0: 1})", lambda env: env.step({0: 1}), ArgumentTypeError, "actions"),
    (
        "step_into(obs=np.zeros((N, 4)))",
        lambda env: step_into(env, obs=np.zeros((N, 4))),
        ArgumentTypeError,
        "obs",
    ),
    (
        "step_into(obs=np.zeros((N, 5), np.float32))",
        lambda env: step_into(env, obs=np.zeros((N, 5), np.float32)),
        ArgumentError,
        "obs",
    ),
    (
        "step_into(obs=np.zeros((4, N), np.float32))",
        lambda env: step_into(env, obs=np.zeros((4, N), np.float32)),
        ArgumentError,
        "obs",
    ),
    (
        "step_into(rewards=np.zeros((N, 1)))",
        lambda env: step_into(env, rewards=np.zeros((N, 1))),
        ArgumentError,
        "rewards",
    ),
    (
        "step_into(obs=np.zeros((4, N), np.float32).T)",
        lambda env: step_into(env, obs=np.zeros((4, N), np.float32).T),
        ArgumentError,
        "obs",
    ),
    (
        "step_into(obs=frozen(np.zeros((N, 4), np.float32)))",
        lambda env: step_into(env, obs=frozen(np.zeros((N, 4), np.float32))),
        ArgumentError,
        "obs",
    ),
    (
        "step_into(obs=[[0.0] * 4] * N)",
        lambda env: step_into(env, obs=[[0.0] * 4] * N),
        ArgumentTypeError,
        "obs",
    ),
    (
        "step_into(rewards=np.zeros(N, np.float32))",
        lambda env: step_into(env, rewards=np.zeros(N, np.float32)),
        ArgumentTypeError,
        "rewards",
    ),
    (
        "step_into(rewards=np.zeros(N + 1))",
        lambda env: step_into(env, rewards=np.zeros(N + 1)),
        ArgumentError,
        "rewards",
    ),
    (
        "step_into(terminated=np.zeros(N, np.uint8))",
        lambda env: step_into(env, terminated=np.zeros(N, np.uint8)),
        ArgumentTypeError,
        "terminated",
    ),
    (
        "step_into(truncated=np.zeros(N - 1, bool))",
        lambda env: step_into(env, truncated=np.zeros(N - 1, bool)),
        ArgumentError,
        "truncated",
    ),
    (
        "step_into(truncated=None)",
        lambda env: step_into(env, truncated=None),
        ArgumentTypeError,
        "truncated",
    ),
    (
        "step_into(final_obs=np.zeros((N, 4)))",
        lambda env: step_into(env, final_obs=np.zeros((N, 4))),
        ArgumentTypeError,
        "final_obs",
    ),
    (
        "step_into(final_obs=np.zeros((N, 3), np.float32))",
        lambda env: step_into(env, final_obs=np.zeros((N, 3), np.float32)),
        ArgumentError,
        "final_obs",
    ),
    (
        "step_into(actions=[0, 0, 5])",
        lambda env: step_into(env, actions=[0, 0, 5]),
        ArgumentError,
        "actions",
    ),
    ("reset(seed=-1)", lambda env: env.reset(seed=-1), ArgumentError, "seed"),
    ("reset(seed=1.5)", lambda env: env.reset(seed=1.5), ArgumentTypeError, "seed"),
    ("reset(seed='abc')", lambda env: env.reset(seed="abc"), ArgumentTypeError, "seed"),
    ("reset(seed=[1, 2, -3])", lambda env: env.reset(seed=[1, 2, -3]), ArgumentError, "seed"),
    ("reset(seed=[1, 2, 'c'])", lambda env: env.reset(seed=[1, 2, "c"]), ArgumentTypeError, "seed"),
    ("reset(seed=[1, 2])", lambda env: env.reset(seed=[1, 2]), ArgumentError, "seed"),
    (
        "reset(options={'wind': 1.0})",
        lambda env: env.reset(options={"wind": 1.0}),
        ArgumentError,
        "options",
    ),
    (
        "reset(options={'low': 'a'})",
        lambda env: env.reset(options={"low": "a"}),
        ArgumentError,
        "options",
    ),
    (
        "reset(options={'low': NAN})",
        lambda env: env.reset(options={"low": NAN}),
        ArgumentError,
        "options",
    ),
    (
        "reset(options={'low': 1.0})",
        lambda env: env.reset(options={"low": 1.0}),
        ArgumentError,
        "options",
    ),
    (
        "reset(options={'high': INF})",
        lambda env: env.reset(options={"high": INF}),
        ArgumentError,
        "options",
    ),
    (
        "reset(options={3: 1.0})",
        lambda env: env.reset(options={3: 1.0}),
        ArgumentTypeError,
        "options",
    ),
    ("reset(options=[1])", lambda env: env.reset(options=[1]), ArgumentTypeError, "options"),
    ("collect_n_steps(0)", lambda env: env.collect_n_steps(0), ArgumentError, "n"),
    ("collect_n_steps(-5)", lambda env: env.collect_n_steps(-5), ArgumentError, "n"),
    ("collect_n_steps(2.5)", lambda env: env.collect_n_steps(2.5), ArgumentTypeError, "n"),
    ("collect_n_steps(2 ** 62)", lambda env: env.collect_n_steps(2**62), OutOfMemoryError, "n"),
    ("collect_n_steps(2 ** 42)", lambda env: env.collect_n_steps(2**42), OutOfMemoryError, "n"),
    ("collect_n_steps(2, 7)", lambda env: env.collect_n_steps(2, 7), ArgumentTypeError, "policy"),
    (
        "collect_n_steps(2, lambda obs: [0, 1, 9])",
        lambda env: env.collect_n_steps(2, lambda obs: [0, 1, 9]),
        ArgumentError,
        "actions",
    ),
    (
        "uint64 2**64 - 1",
        lambda env: env.step(np.array([1, 0, 2**64 - 1], "u8")),
        ArgumentError,
        "actions",
    ),
    (
        "big-endian uint64",
        lambda env: env.step(np.array([1, 0, 2**64 - 1], ">u8")),
        ArgumentError,
        "actions",
    ),
    (
        "one array for two results",
        lambda env: step_into(env, terminated=FLAGS, truncated=FLAGS),
        ArgumentError,
        "truncated",
    ),
)
def test_discrete_environment_rejects_invalid_calls_and_keeps_its_state(refusal):
    expect_unchanged(cart, refusal)


@refusals(
    (
        "step([[0.0], [NAN], [0.0]])",
        lambda env: env.step([[0.0], [NAN], [0.0]]),
        ArgumentError,
        "actions",
    ),
    (
        "step([[0.0], [0.0], [-INF]])",
        lambda env: env.step([[0.0], [0.0], [-INF]]),
        ArgumentError,
        "actions",
    ),
    (
        "step([[0.0], [1e+39], [0.0]])",
        lambda env: env.step([[0.0], [1e39], [0.0]]),
        ArgumentError,
        "actions",
    ),
    ("step([[0.0]])", lambda env: env.step([[0.0]]), ArgumentError, "actions"),
    ("step([0.0] * 3)", lambda env: env.step([0.0] * 3), ArgumentError, "actions"),
    ("step(np.zeros((3, 2)))", lambda env: env.step(np.zeros((3, 2))), ArgumentError, "actions"),
    ("step([['a']] * 3)", lambda env: env.step([["a"]] * 3), ArgumentTypeError, "actions"),
    (
        "reset(options={'x_init': -1})",
        lambda env: env.reset(options={"x_init": -1}),
        ArgumentError,
        "options",
    ),
)
def test_continuous_environment_rejects_invalid_calls_and_keeps_its_state(refusal):
    expect_unchanged(pendulum, refusal)


@pytest.mark.parametrize("make", [cart, pendulum], ids=["cart", "pendulum"])
@pytest.mark.parametrize("method", ["step", "step_all", "step_into"])
def test_step_before_reset_is_rejected(make, method):
    env = make()
    passed = arrays(env) if method == "step_into" else {"actions": arrays(env)["actions"]}
    with pytest.raises(ArgumentError) as raised:
        getattr(env, method)(**passed)
    assert raised.value.argument == "step"
    assert np.array_equal(env.reset_all(), make().reset_all())


def test_step_accepts_unsigned_actions_of_any_byte_order():
    env, twin = VecEnv(3, 0), VecEnv(3, 0)
    env.reset(), twin.reset()
    for order in "=><":
        obs = env.step(np.array([1, 0, 1], f"{order}u8"))[0]
        assert np.array_equal(obs, twin.step([1, 0, 1])[0])


HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([2**63, -(2**63), 2**64, 10**40, b"x", 1j, np.float32, object()])
    | st.builds(
        np.zeros,
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
        st.sampled_from(["f4", "f8", "i8", "u1", "?", "c8", "O", "U3", "M8[s]", "i4,f4"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=6,
)
CALLS = ["step", "step_all", "reset_all", "step_into", "reset", "begin_rollout", "step_rollout"]


def outcome(call, *args, **kwargs):
    """Return the result of a call, or the error if its type is documented."""
    try:
        return call(*args, **kwargs)
    except (TypeError, ValueError, MemoryError) as error:
        return error


@given(st.sampled_from(CALLS), st.lists(HOSTILE, max_size=6), st.booleans())
def test_arbitrary_arguments_give_a_result_or_a_documented_error(call, args, box):
    env = pendulum() if box else cart()
    env.reset()
    if call == "reset":
        got = outcome(env.reset, **dict(zip(("seed", "options"), args, strict=False)))
    else:
        got = outcome(getattr(env, call), *args)
    assert not isinstance(got, Exception) or str(got)
    assert env.step(arrays(env)["actions"])[0].shape == env.observation_space.shape


@given(
    st.lists(HOSTILE, max_size=3),
    st.dictionaries(st.sampled_from(["g", "max_episode_steps", "x"]), HOSTILE),
)
def test_constructor_with_arbitrary_arguments_gives_a_result_or_a_documented_error(args, kwargs):
    small = [4 if type(arg) is int and 4 < arg < 2**40 else arg for arg in args]
    got = outcome(lambda: VecEnv(*small, **kwargs).reset())
    assert not isinstance(got, Exception) or str(got)
