"""`compute_gae`, `compute_vtrace`, `compute_returns` and `compute_lambda_returns`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlox
from rlox import ArgumentError, ArgumentTypeError
from support.rejections import Rejection, expect_rejection, rejections
from support.thread_runs import run_threads


def random_rollout(seed, shape, dtype=np.float64):
    """Return log ratios, rewards, values, (terminated, truncated, final values) and last values."""
    rng = np.random.default_rng(seed)
    log_rhos, rewards, values, final_values = rng.normal(size=(4, *shape)).astype(dtype)
    terminated, truncated = rng.random((2, *shape)) < 0.1
    last = rng.normal(size=shape[1:]).astype(dtype)
    return log_rhos, rewards, values, (terminated, truncated, final_values), last


def as_kwargs(limits):
    return dict(zip(("terminated", "truncated", "final_values"), limits, strict=True))


def slow_gae(rewards, values, terminated, truncated, final_values, last_value, gamma, lam):
    """Return GAE of one trajectory (equation 16 of Schulman et al.) with time limits in float64."""
    advantages = np.zeros(len(rewards))
    advantage, next_value = 0.0, last_value
    for t in reversed(range(len(rewards))):
        after = final_values[t] if truncated[t] else next_value
        delta = rewards[t] + (0.0 if terminated[t] else gamma * after) - values[t]
        done = terminated[t] or truncated[t]
        advantage = delta + (0.0 if done else gamma * lam * advantage)
        advantages[t], next_value = advantage, values[t]
    return advantages, advantages + values


def test_gae_equals_values_computed_by_hand():
    # gamma 0.5, lambda 0.5. Step 2 terminates: A = 4 - 1 = 3. Step 1 is truncated with
    # V(final) = 8: A = 2 + 0.5 * 8 - 1 = 5. Step 0: A = 1 + 0.5 * 1 - 1 + 0.25 * 5 = 1.75.
    limits = {"terminated": [0, 0, 1], "truncated": [0, 1, 0], "final_values": [0.0, 8.0, 0.0]}
    arguments = ([1.0, 2.0, 4.0], [1.0, 1.0, 1.0], None, 100.0)
    advantages, returns = rlox.compute_gae(*arguments, gamma=0.5, lam=0.5, **limits)
    np.testing.assert_array_equal(advantages, [1.75, 5.0, 3.0])
    np.testing.assert_array_equal(returns, [2.75, 6.0, 4.0])


@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 70),
    envs=st.integers(1, 40),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_gae_equals_a_slow_reference(seed, steps, envs, gamma, lam):
    _, rewards, values, limits, last = random_rollout(seed, (steps, envs))
    advantages, returns = rlox.compute_gae(rewards, values, None, last, gamma, lam, **as_kwargs(limits))
    for n in range(envs):
        column = [x[:, n] for x in (rewards, values, *limits)]
        expected = slow_gae(*column, last[n], gamma, lam)
        np.testing.assert_allclose(advantages[:, n], expected[0], rtol=1e-6, atol=1e-10)
        np.testing.assert_allclose(returns[:, n], expected[1], rtol=1e-6, atol=1e-10)


def test_out_is_written_and_returned():
    out = np.full((4, 2), np.nan), np.full((4, 2), np.nan)
    ones = np.ones((4, 2))
    got = rlox.compute_gae(ones, ones * 0, ones * 0, [0.0, 0.0], out=out)
    assert all(array is array_out for array, array_out in zip(got, out, strict=True))
    np.testing.assert_array_equal(out, rlox.compute_gae(ones, ones * 0, ones * 0, [0, 0]))


@pytest.mark.parametrize("steps", [4, 100_000])
def test_results_are_new_arrays_and_inputs_do_not_change(steps):
    rewards, zeros = np.ones(steps), np.zeros(steps)
    first = rlox.compute_gae(rewards, zeros, zeros, 0.0)[0]
    copy = first.copy()
    second = rlox.compute_gae(rewards * 7, zeros, zeros, 0.0)[0]
    np.testing.assert_array_equal(first, copy)
    np.testing.assert_allclose(second, copy * 7)
    np.testing.assert_array_equal(rewards, np.ones(steps))


def test_memory_of_live_results_is_not_reused():
    rewards, zeros = np.ones(100_000), np.zeros(100_000)
    expected = rlox.compute_gae(rewards, zeros, zeros, 0.0)[0].copy()
    views = [rlox.compute_gae(rewards, zeros, zeros, 0.0)[0][::2] for _ in range(5)]
    for _ in range(5):
        rlox.compute_gae(rewards * 3, zeros, zeros, 0.0)
    for view in views:
        np.testing.assert_array_equal(view, expected[::2])


@pytest.mark.parametrize("dtype", [">f4", ">f8", "g", "i1", ">i4", "u8", "?"])
def test_long_arrays_of_every_dtype_and_layout_give_the_same_result(dtype):
    rng, n = np.random.default_rng(0), 20_000
    rewards = rng.integers(0, 2, n).astype(dtype)
    zeros, dones = np.zeros(n), rng.random(n) < 0.1
    expected = rlox.compute_gae(rewards.astype(float), zeros, dones, 0.0)[0]
    misaligned = np.zeros(n * rewards.itemsize + 1, np.uint8)[1:].view(dtype)
    misaligned[:] = rewards
    strided = np.repeat(rewards, 2)[::2]
    for numbers in (rewards, strided, misaligned, strided[::-1][::-1], rewards.tolist()):
        assert np.array_equal(rlox.compute_gae(numbers, zeros, dones, 0.0)[0], expected)


def test_all_nonzero_bytes_of_booleans_are_true():
    odd = np.array([0, 2, 255, 0, 1], np.uint8).view(bool)
    plain = np.array([False, True, True, False, True])
    for flags in (odd, np.repeat(odd, 2)[::2]):
        got = rlox.compute_gae(np.ones(5), np.zeros(5), flags, 0.0)
        assert np.array_equal(got, rlox.compute_gae(np.ones(5), np.zeros(5), plain, 0.0))


def test_float32_results_are_computed_in_float64():
    n = 5000
    rewards = np.random.default_rng(0).normal(size=n).astype(np.float32)
    dones, values = np.zeros(n, bool), rewards[::-1].copy()
    single = rlox.compute_gae(rewards, values, dones, 0.5, 1.0, 1.0)
    double = rlox.compute_gae(rewards.astype(float), values.astype(float), dones, 0.5, 1.0, 1.0)
    for got, expected in zip(single, double, strict=True):
        assert got.dtype == np.float32
        assert np.array_equal(got, expected.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batched_gae_equals_gae_of_columns(dtype):
    rng = np.random.default_rng(0)
    t, n = 40, 5
    rewards, values, final_values = rng.normal(size=(3, t, n)).astype(dtype)
    terminated, truncated = rng.random((2, t, n)) < 0.15
    last = rng.normal(size=n).astype(dtype)
    limits = {"terminated": terminated, "truncated": truncated, "final_values": final_values}
    expected = rlox.compute_gae(rewards, values, None, last, 0.9, 0.8, **limits)
    flat = {name: array.T.ravel() for name, array in limits.items()}
    got = rlox.compute_gae_batched(rewards.T.ravel(), values.T.ravel(), None, last, t, 0.9, 0.8, **flat)
    for flat_result, expected_result in zip(got, expected, strict=True):
        np.testing.assert_allclose(flat_result.reshape(n, t).T, expected_result, rtol=1e-6, atol=1e-10)
    flat = [x.T.ravel() for x in (rewards, values, terminated)]
    got = rlox.compute_gae_batched(*flat, last, t, 0.9, 0.8)
    expected = rlox.compute_gae(rewards, values, terminated, last, 0.9, 0.8)
    for flat_result, expected_result in zip(got, expected, strict=True):
        assert flat_result.dtype == dtype
        np.testing.assert_allclose(flat_result.reshape(n, t).T, expected_result, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("lam", [1e-60, 0.0, 0.95])
def test_nan_propagates_equally_in_trajectories_and_columns(lam):
    rewards, zeros, dones = np.ones(300), np.zeros(300), np.zeros(300, bool)
    rewards[150] = np.nan
    dones[40] = True
    log_rhos = zeros - (100.0 if lam == 0.95 else 0.0)  # this makes the traces smaller than 1e-40
    first = 150 if lam == 0.0 else 41
    for kernel, arrays in (
        (rlox.compute_gae, (rewards, zeros, dones)),
        (rlox.compute_vtrace, (log_rhos, rewards, zeros, dones)),
    ):
        single = kernel(*arrays, 0.0, 0.99, lam=lam)[0]
        column = kernel(*(x[:, None] for x in arrays), np.zeros(1), 0.99, lam=lam)[0][:, 0]
        np.testing.assert_array_equal(np.isnan(single), np.isnan(column))
        np.testing.assert_array_equal(np.flatnonzero(np.isnan(single)), np.arange(first, 151))
    limits = {"terminated": dones, "truncated": np.zeros(300, bool), "final_values": zeros}
    limited = rlox.compute_gae(rewards, zeros, None, 0.0, 0.99, lam, **limits)
    np.testing.assert_array_equal(limited, rlox.compute_gae(rewards, zeros, dones, 0.0, 0.99, lam))


def slow_vtrace(log_rhos, rewards, values, limits, last, gamma, rho_bar, c_bar, lam, pg_rho_bar):
    """Return the V-trace targets of Espeholt et al. with time limits in float64."""
    terminated, truncated, final_values = limits
    vs, pg_advantages = np.zeros_like(rewards), np.zeros_like(rewards)
    next_value = next_vs = np.asarray(last, np.float64)
    for t in reversed(range(len(rewards))):
        next_value = np.where(truncated[t], final_values[t], next_value)
        next_vs = np.where(truncated[t], final_values[t], next_vs)
        discount, ratio = gamma * ~terminated[t], np.exp(log_rhos[t])
        delta = np.minimum(rho_bar, ratio) * (rewards[t] + discount * next_value - values[t])
        trace = discount * lam * np.minimum(c_bar, ratio)
        vs[t] = values[t] + delta + trace * (next_vs - next_value)
        pg_rho = np.minimum(pg_rho_bar, ratio)
        pg_advantages[t] = pg_rho * (rewards[t] + discount * next_vs - values[t])
        next_value, next_vs = values[t], vs[t]
    return vs, pg_advantages


@given(
    seed=st.integers(0, 2**32),
    shape=st.one_of(st.tuples(st.integers(1, 300)), st.tuples(st.integers(1, 30), st.integers(1, 90))),
    dtype=st.sampled_from([np.float32, np.float64]),
    factors=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    bars=st.tuples(*[st.one_of(st.floats(0, 4), st.just(np.inf))] * 3),
)
def test_vtrace_equals_a_slow_reference(seed, shape, dtype, factors, bars):
    (gamma, lam), (rho_bar, c_bar, pg_rho_bar) = factors, bars
    c_bar = min(c_bar, 1.0)
    log_rhos, rewards, values, limits, last = random_rollout(seed, shape, dtype)
    options = {"lam": lam, "pg_rho_bar": pg_rho_bar}
    arrays = log_rhos, rewards, values
    got = rlox.compute_vtrace(*arrays, None, last, gamma, rho_bar, c_bar, **options, **as_kwargs(limits))
    wide = [np.asarray(x, np.float64) for x in arrays]
    expected = slow_vtrace(*wide, limits, last, gamma, rho_bar, c_bar, lam, pg_rho_bar)
    for result, expected_result in zip(got, expected, strict=True):
        assert result.dtype == dtype
        # float32 ratios differ from the exact ratios by at most two units in the last place.
        atol = 1e-10 if dtype == np.float64 else 1e-10 + 3e-6 * np.abs(expected_result).max()
        np.testing.assert_allclose(result, expected_result, rtol=1e-6, atol=atol)


@pytest.mark.parametrize("shape", [(300,), (40, 17)])
@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_on_policy_vtrace_equals_gae_and_lambda_returns(shape, lam):
    log_rhos, rewards, values, limits, last = random_rollout(1, shape)
    limits = as_kwargs(limits)
    zeros = np.zeros_like(log_rhos)
    vs, pg_advantages = rlox.compute_vtrace(zeros, rewards, values, None, last, 0.99, lam=lam, **limits)
    advantages, returns = rlox.compute_gae(rewards, values, None, last, 0.99, lam, **limits)
    np.testing.assert_allclose(vs - values, advantages, rtol=1e-9, atol=1e-9)
    lambda_returns = rlox.compute_lambda_returns(rewards, values, None, last, 0.99, lam, **limits)
    np.testing.assert_allclose(lambda_returns, returns, rtol=1e-9, atol=1e-9)
    if lam == 1.0:
        np.testing.assert_allclose(pg_advantages, advantages, rtol=1e-9, atol=1e-9)
        discounted = rlox.compute_returns(rewards, None, last, 0.99, **limits)
        np.testing.assert_array_equal(discounted, lambda_returns)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_arrays_give_empty_results(shape):
    empty, last = np.zeros(shape), np.zeros(shape[1:])
    for got in rlox.compute_vtrace(empty, empty, empty, empty, last, 0.9):
        assert got.shape == shape
    for got in rlox.compute_gae(empty, empty, empty, last):
        assert got.shape == shape
    assert rlox.compute_returns(empty, empty, last).shape == shape
    assert rlox.compute_lambda_returns(empty, empty, empty, last).shape == shape


def test_long_calls_run_in_parallel():
    arrays = random_rollout(5, (50_000,))[:3]
    dones = np.zeros(50_000, bool)
    expected = rlox.compute_vtrace(*arrays, dones, 0.0, 0.99)

    def work():
        for _ in range(20):
            np.testing.assert_array_equal(rlox.compute_vtrace(*arrays, dones, 0.0, 0.99), expected)

    assert run_threads(work, 4) == []


ZEROS = np.zeros(4)
WITHOUT_FINAL_VALUES = {"final_values": None, "dones": None, "terminated": ZEROS, "truncated": ZEROS + 1}
SINGLE = (np.zeros(4, np.float32), ZEROS)
NO_FLAGS, BOTH_FLAGS = {"dones": None, "terminated": None}, {"dones": ZEROS, "terminated": ZEROS}
RAGGED = [[1.0], [1.0, 2.0]]
# Changed arguments. The first argument is the rejected one.
REJECTED = {
    "axes": ({"rewards": np.zeros((2, 2, 2))}, ArgumentError),
    "last value": ({"last_value": [0.0, 1.0]}, ArgumentError),
    "gamma": ({"gamma": 1.5}, ArgumentError),
    "gamma of text": ({"gamma": "much"}, ArgumentTypeError),
    "lam": ({"lam": float("nan")}, ArgumentError),
    "flags": ({"dones": np.full(4, 0.5)}, ArgumentError),
    "complex": ({"rewards": np.ones(4, complex)}, ArgumentTypeError),
    "ragged": ({"values": RAGGED}, ArgumentError),
    "neither flags": (NO_FLAGS, ArgumentTypeError),
    "both flags": (BOTH_FLAGS, ArgumentTypeError),
    "no final values": (WITHOUT_FINAL_VALUES, ArgumentError),
    "no log_rhos": ({"log_rhos": None}, ArgumentTypeError),
    "rho_bar": ({"rho_bar": -1.0}, ArgumentError),
    "c_bar": ({"c_bar": float("nan")}, ArgumentError),
    "pg_rho_bar": ({"pg_rho_bar": -0.5}, ArgumentError),
    "out": ({"out": SINGLE}, ArgumentTypeError),
}
RATIOS = {"log_rhos", "rho_bar", "c_bar", "pg_rho_bar"}
UNSUPPORTED = {
    "compute_gae": RATIOS,
    "compute_vtrace": {"out"},
    "compute_returns": RATIOS | {"values", "lam", "out"},
    "compute_lambda_returns": RATIOS | {"out"},
}


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        pytest.param(name, change, error, id=f"{name} {case}")
        for name, unsupported in UNSUPPORTED.items()
        for case, (change, error) in REJECTED.items()
        if not unsupported & change.keys()
    ],
)
def test_advantage_kernels_reject_invalid_arguments(name, change, error):
    arguments = {"rewards": ZEROS + 1, "dones": ZEROS, "last_value": 0.0, "gamma": 0.9}
    arguments |= {x: ZEROS for x in ("values", "log_rhos") if x not in UNSUPPORTED[name]} | change
    rejected = next(iter(change))
    if name == "compute_vtrace":
        arguments["bootstrap_value"] = arguments.pop("last_value")
        rejected = rejected.replace("last_value", "bootstrap_value")
    rejected = rejected.replace("out", "out[0]")
    expect_rejection(Rejection(lambda: getattr(rlox, name)(**arguments), error, rejected))


@rejections(
    (lambda f: f(ZEROS[:3], ZEROS[:3], ZEROS[:3], [0, 0], 2), ArgumentError, "rewards"),
    (lambda f: f(ZEROS, ZEROS, ZEROS, [[0], [0]], 2), ArgumentError, "last_values"),
    (lambda f: f(ZEROS, ZEROS, None, [0], 4), ArgumentTypeError, "dones"),
)
def test_batched_gae_rejects_invalid_arguments(rejection):
    expect_rejection(rejection, rlox.compute_gae_batched)
