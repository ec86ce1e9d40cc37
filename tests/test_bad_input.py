"""Wrong calls are told what was expected, what came and what to do, and change nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlox import Normalizer, RolloutBuffer, RunningMeanStd, VecEnv

NAN, INF = float("nan"), float("inf")
N = 3


def cart(**kwargs):
    return VecEnv(N, 0, "CartPole-v1", **kwargs)


def pendulum(**kwargs):
    return VecEnv(N, 0, "Pendulum-v1", **kwargs)


def arrays(env, **replaced):
    """Arguments of `step_into`, right but for those replaced."""
    shape = env.observation_space.shape
    right = {
        "actions": np.zeros((N, *env.single_action_space.shape), env.single_action_space.dtype),
        "obs": np.zeros(shape, np.float32),
        "rewards": np.zeros(N),
        "terminated": np.zeros(N, bool),
        "truncated": np.zeros(N, bool),
    }
    return {**right, **replaced}


def frozen(array):
    array.flags.writeable = False
    return array


# What to do, the error, and words that the message must hold.
MAKING = [
    (lambda: VecEnv(0), ValueError, "n: .*at least 1, got 0"),
    (lambda: VecEnv(-1), ValueError, "n: .*at least 1.*-1"),
    (lambda: VecEnv(1.5), (TypeError, ValueError), "n: .*1.5"),
    (lambda: VecEnv("3"), (TypeError, ValueError), "n: .*'3'"),
    (lambda: VecEnv(None), (TypeError, ValueError), "n: .*None"),
    (lambda: VecEnv(2**62), MemoryError, "n: .*got 4611686018427387904.*needs"),
    (lambda: VecEnv(2**64), MemoryError, "n: .*18446744073709551616"),
    (lambda: VecEnv(10**30), MemoryError, "n: .*10{30}"),
    (lambda: VecEnv(2**45), MemoryError, "n: .*35184372088832"),
    (lambda: VecEnv(1, -1), ValueError, "seed: .*at least 0, got -1"),
    (lambda: VecEnv(1, 0.5), (TypeError, ValueError), "seed: .*0.5"),
    (lambda: VecEnv(1, "a"), (TypeError, ValueError), "seed: .*'a'"),
    (lambda: VecEnv(1, [1]), (TypeError, ValueError), r"seed: .*\[1\]"),
    (lambda: VecEnv(env_id="CartPole-v2"), ValueError, "env_id: .*'?CartPole-v2.*mean CartPole-v1"),
    (lambda: VecEnv(env_id="pendulum"), ValueError, "mean Pendulum-v1"),
    (lambda: VecEnv(env_id=""), ValueError, "env_id"),
    (lambda: VecEnv(env_id=7), (TypeError, ValueError), "env_id: .*7"),
    (lambda: VecEnv(env_id="x" * 100_000), ValueError, "env_id"),
    (
        lambda: VecEnv(autoreset_mode="Sometimes"),
        ValueError,
        "autoreset_mode: .*SameStep.*Sometimes",
    ),
    (lambda: VecEnv(autoreset_mode=1), (TypeError, ValueError), "autoreset_mode"),
    (lambda: VecEnv(max_episode_steps=0), ValueError, "max_episode_steps: .*0"),
    (lambda: VecEnv(max_episode_steps=-2), ValueError, "max_episode_steps: .*-2"),
    (lambda: VecEnv(max_episode_steps=2**70), (ValueError, TypeError), "max_episode_steps"),
    (lambda: VecEnv(max_episode_steps=1.5), (ValueError, TypeError), "max_episode_steps"),
    (lambda: VecEnv(render_mode="ansi"), ValueError, "render_mode: .*'ansi'"),
    (lambda: VecEnv(gravity=9.8), ValueError, "sutton_barto_reward.*gravity"),
    (lambda: pendulum(g="10"), (TypeError, ValueError), "g: .*number"),
    (lambda: pendulum(g=NAN), ValueError, "g: .*finite.*NaN"),
    (lambda: pendulum(g=INF), ValueError, "g: .*finite.*inf"),
    (lambda: pendulum(sutton_barto_reward=True), ValueError, "sutton_barto_reward"),
    (lambda: RolloutBuffer(0, 1, (4,)), ValueError, "n_steps: .*at least 1"),
    (lambda: RolloutBuffer(-1, 1, (4,)), ValueError, "n_steps: .*-1"),
    (lambda: RolloutBuffer(1, -1, (4,)), ValueError, "num_envs: .*-1"),
    (lambda: RolloutBuffer(2**40, 2**40, (4,)), MemoryError, "n_steps.*bytes"),
    (lambda: RolloutBuffer(2, 2, (2**40,)), MemoryError, "obs_shape: .*bytes"),
    (lambda: RunningMeanStd((2**60,)), MemoryError, "shape: .*bytes"),
    (lambda: RunningMeanStd((0,)), ValueError, "shape: .*at least one"),
    (lambda: RolloutBuffer(2**62, 1, (4,)), MemoryError, "n_steps"),
    (lambda: RolloutBuffer(1, 1, (2**62,)), MemoryError, "bytes"),
    (lambda: RolloutBuffer(1, 1, (2**40, 2**40)), MemoryError, "bytes"),
    (lambda: RolloutBuffer(1, 1, (-4,)), ValueError, "obs_shape: .*-4"),
    (lambda: RolloutBuffer(1, 1, (4,), action_dtype="int8"), ValueError, "action_dtype: .*int8"),
    (lambda: RolloutBuffer(1, 1, (4,), obs_dtype="f2"), ValueError, "obs_dtype: .*float32.*f"),
    (lambda: Normalizer(-1, (4,)), ValueError, "num_envs: .*-1"),
    (lambda: Normalizer(1, (4,), gamma=2.0), ValueError, "gamma: .*2"),
    (lambda: Normalizer(1, (4,), epsilon=-1.0), ValueError, "epsilon: .*-1"),
    (lambda: Normalizer(1, (4,), clip_obs=NAN), ValueError, "clip_obs: .*NaN"),
]


@pytest.mark.parametrize(("make", "error", "words"), MAKING, ids=[words for *_, words in MAKING])
def test_what_cannot_be_made_says_why(make, error, words):
    with pytest.raises(error, match=words):
        make()


USING = [
    # actions of a Discrete space
    (cart, lambda env: env.step([0, 1]), ValueError, r"actions: .*\[3\], got shape \[2\]"),
    (cart, lambda env: env.step([0, 1, 0, 1]), ValueError, r"actions: .*\[3\], got shape \[4\]"),
    (cart, lambda env: env.step([[0], [1], [0]]), ValueError, r"actions: .*got shape \[3, 1\]"),
    (cart, lambda env: env.step(1), ValueError, "actions: .*3"),
    (cart, lambda env: env.step([]), ValueError, "actions: .*3.*0"),
    (cart, lambda env: env.step([[0, 1], [0, 1], [0, 1]]), ValueError, "actions: "),
    (
        cart,
        lambda env: env.step([0, 1, 2]),
        ValueError,
        r"actions: .*\[0, 1\].*2 in environment 2",
    ),
    (cart, lambda env: env.step([-1, 0, 0]), ValueError, "actions: .*-1 in environment 0"),
    (cart, lambda env: env.step([0, 2**63, 0]), (TypeError, ValueError), "actions: "),
    (cart, lambda env: env.step([0, 2**70, 0]), (TypeError, ValueError), "actions: "),
    (cart, lambda env: env.step([0.0, 1.0, 0.0]), TypeError, "actions: .*integers.*float64"),
    (cart, lambda env: env.step([NAN] * 3), TypeError, "actions: .*integers.*float64"),
    (cart, lambda env: env.step([True, False, True]), TypeError, "actions: .*integers.*bool"),
    (cart, lambda env: env.step(["a", "b", "c"]), TypeError, "actions: .*integers"),
    (cart, lambda env: env.step(None), TypeError, "actions: .*integers.*object"),
    (cart, lambda env: env.step([[0], [0, 1], 1]), ValueError, "actions: "),
    (cart, lambda env: env.step([0j, 1j, 0j]), TypeError, "actions: .*complex"),
    (cart, lambda env: env.step({0: 1}), TypeError, "actions: "),
    # actions of a Box space
    (pendulum, lambda env: env.step([[0.0], [NAN], [0.0]]), ValueError, "NaN in environment 1"),
    (pendulum, lambda env: env.step([[0.0], [0.0], [-INF]]), ValueError, "-inf in environment 2"),
    (pendulum, lambda env: env.step([[0.0], [1e39], [0.0]]), ValueError, "float32.*got 1e39"),
    (
        pendulum,
        lambda env: env.step([[0.0]]),
        ValueError,
        r"actions: .*\[3, 1\], got shape \[1, 1\]",
    ),
    (
        pendulum,
        lambda env: env.step([0.0] * 3),
        ValueError,
        r"actions: .*\[3, 1\], got shape \[3\]",
    ),
    (pendulum, lambda env: env.step(np.zeros((3, 2))), ValueError, "actions: "),
    (pendulum, lambda env: env.step([["a"]] * 3), TypeError, "actions: .*real numbers"),
    # the caller's arrays
    (cart, {"obs": np.zeros((N, 4))}, TypeError, "obs: .*float32.*float64"),
    (cart, {"obs": np.zeros((N, 5), np.float32)}, ValueError, r"obs: .*\[3, 4\].*\[3, 5\]"),
    (cart, {"obs": np.zeros((4, N), np.float32)}, ValueError, r"obs: .*\[3, 4\].*\[4, 3\]"),
    (cart, {"rewards": np.zeros((N, 1))}, ValueError, r"rewards: .*\[3\].*\[3, 1\]"),
    (cart, {"obs": np.zeros((4, N), np.float32).T}, ValueError, "obs: .*C-contiguous"),
    (cart, {"obs": frozen(np.zeros((N, 4), np.float32))}, ValueError, "obs: .*writeable"),
    (cart, {"obs": [[0.0] * 4] * N}, TypeError, "obs: .*array.*list"),
    (cart, {"rewards": np.zeros(N, np.float32)}, TypeError, "rewards: .*float64.*float32"),
    (cart, {"rewards": np.zeros(N + 1)}, ValueError, "rewards: .*3.*4"),
    (cart, {"terminated": np.zeros(N, np.uint8)}, TypeError, "terminated: .*bool.*uint8"),
    (cart, {"truncated": np.zeros(N - 1, bool)}, ValueError, "truncated: .*3.*2"),
    (cart, {"truncated": None}, TypeError, "truncated: .*NoneType"),
    (cart, {"final_obs": np.zeros((N, 4))}, TypeError, "final_obs: .*float32"),
    (
        cart,
        {"final_obs": np.zeros((N, 3), np.float32)},
        ValueError,
        r"final_obs: .*\[3, 4\].*\[3, 3\]",
    ),
    (cart, {"actions": [0, 0, 5]}, ValueError, "5 in environment 2"),
    # resets
    (cart, lambda env: env.reset(seed=-1), ValueError, "seed: .*at least 0, got -1"),
    (cart, lambda env: env.reset(seed=1.5), (TypeError, ValueError), "seed"),
    (cart, lambda env: env.reset(seed="abc"), TypeError, "seed: .*'abc'"),
    (cart, lambda env: env.reset(seed=[1, 2, -3]), ValueError, "seed: .*-3"),
    (cart, lambda env: env.reset(seed=[1, 2, "c"]), (TypeError, ValueError), "seed: .*'c'"),
    (cart, lambda env: env.reset(seed=[1, 2]), ValueError, "^seed: expected one for each of 3"),
    (cart, lambda env: env.reset(options={"wind": 1.0}), ValueError, "options: .*low, high.*wind"),
    (cart, lambda env: env.reset(options={"low": "a"}), (TypeError, ValueError), "options: .*low"),
    (cart, lambda env: env.reset(options={"low": NAN}), ValueError, "options: .*low.*NaN"),
    (cart, lambda env: env.reset(options={"low": 1.0}), ValueError, "options: .*low <= high"),
    (cart, lambda env: env.reset(options={"high": INF}), ValueError, "options: .*finite"),
    (cart, lambda env: env.reset(options={3: 1.0}), (TypeError, ValueError), "options"),
    (cart, lambda env: env.reset(options=[1]), (TypeError, ValueError), r"options: .*dict.*\[1\]"),
    (pendulum, lambda env: env.reset(options={"x_init": -1}), ValueError, "options: .*x_init"),
    # collecting
    (cart, lambda env: env.collect_n_steps(0), ValueError, "n: .*at least 1.*0"),
    (cart, lambda env: env.collect_n_steps(-5), ValueError, "n: .*at least 1.*-5"),
    (cart, lambda env: env.collect_n_steps(2.5), TypeError, "n: .*integer.*2.5"),
    (cart, lambda env: env.collect_n_steps(2**62), MemoryError, "n: .*4611686018427387904"),
    (cart, lambda env: env.collect_n_steps(2**42), MemoryError, "n: .*4398046511104"),
    (cart, lambda env: env.collect_n_steps(2, 7), TypeError, "policy: .*int"),
    (cart, lambda env: env.collect_n_steps(2, lambda obs: [0, 1, 9]), ValueError, "actions: "),
]


@pytest.mark.parametrize(
    ("make", "use", "error", "words"), USING, ids=[f"{i}-{row[3]}" for i, row in enumerate(USING)]
)
def test_wrong_use_is_refused_and_changes_nothing(make, use, error, words):
    env, twin = make(), make()
    for each in (env, twin):
        each.reset()
        each.step(arrays(each)["actions"])
    if isinstance(use, dict):
        passed = arrays(env, **use)
        before = {name: np.array(value) for name, value in passed.items()}
        with pytest.raises(error, match=words):
            env.step_into(**passed)
        assert all(np.array_equal(passed[name], before[name]) for name in passed)
    else:
        with pytest.raises(error, match=words):
            use(env)
    assert env.np_random_seed == twin.np_random_seed
    for _ in range(20):
        for a, b in zip(
            env.step(arrays(env)["actions"]), twin.step(arrays(env)["actions"]), strict=True
        ):
            assert isinstance(a, dict) or np.array_equal(a, b)
    assert np.array_equal(env.reset_all(), twin.reset_all())


@pytest.mark.parametrize("make", [cart, pendulum])
@pytest.mark.parametrize("method", ["step", "step_all", "step_into"])
def test_stepping_before_the_first_reset_is_refused(make, method):
    env = make()
    passed = arrays(env) if method == "step_into" else {"actions": arrays(env)["actions"]}
    with pytest.raises(ValueError, match="call reset first"):
        getattr(env, method)(**passed)
    assert np.array_equal(env.reset_all(), make().reset_all())


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
    """What a call gives, or the error a Python caller expects of it."""
    try:
        return call(*args, **kwargs)
    except (TypeError, ValueError, MemoryError) as error:
        return error


@given(st.sampled_from(CALLS), st.lists(HOSTILE, max_size=6), st.booleans())
def test_whatever_comes_the_answer_is_a_result_or_an_error(call, args, box):
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
def test_whatever_is_asked_for_is_made_or_refused(args, kwargs):
    small = [4 if type(arg) is int and 4 < arg < 2**40 else arg for arg in args]
    got = outcome(lambda: VecEnv(*small, **kwargs).reset())
    assert not isinstance(got, Exception) or str(got)


def test_one_array_for_two_results_is_refused():
    env = cart()
    env.reset()
    flags = np.zeros(N, bool)
    with pytest.raises(ValueError, match="truncated: "):
        env.step_into(**arrays(env, terminated=flags, truncated=flags))
