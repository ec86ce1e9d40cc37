"""`compute_gae`, `compute_vtrace`, `compute_returns` and `compute_lambda_returns`."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlox


def random_rollout(seed, shape, dtype=np.float64):
    """Return log ratios, rewards, values, (terminated, truncated, final values), last values."""
    rng = np.random.default_rng(seed)
    log_rhos, rewards, values, final_values = rng.normal(size=(4, *shape)).astype(dtype)
    terminated, truncated = rng.random((2, *shape)) < 0.1
    last = rng.normal(size=shape[1:]).astype(dtype)
    return log_rhos, rewards, values, (terminated, truncated, final_values), last


def keywords(ends):
    return dict(zip(("terminated", "truncated", "final_values"), ends, strict=True))


def slow_gae(rewards, values, terminated, truncated, final_values, last_value, gamma, lam):
    """Compute equation 16 of Schulman et al. with time limits for one trajectory in float64."""
    advantages = np.zeros(len(rewards))
    advantage, next_value = 0.0, last_value
    for t in reversed(range(len(rewards))):
        after = final_values[t] if truncated[t] else next_value
        delta = rewards[t] + (0.0 if terminated[t] else gamma * after) - values[t]
        done = terminated[t] or truncated[t]
        advantage = delta + (0.0 if done else gamma * lam * advantage)
        advantages[t], next_value = advantage, values[t]
    return advantages, advantages + values


def test_gae_equals_values_by_hand():
    # gamma 0.5, lambda 0.5. Backwards: step 2 terminates: A = 4 - 1 = 3. Step 1 is truncated with
    # V(final) = 8: A = 2 + 0.5 * 8 - 1 = 5. Step 0 goes on: A = 1 + 0.5 * 1 - 1 + 0.25 * 5 = 1.75.
    advantages, returns = rlox.compute_gae(
        [1.0, 2.0, 4.0],
        [1.0, 1.0, 1.0],
        None,
        100.0,
        gamma=0.5,
        lam=0.5,
        terminated=[False, False, True],
        truncated=[False, True, False],
        final_values=[0.0, 8.0, 0.0],
    )
    np.testing.assert_array_equal(advantages, [1.75, 5.0, 3.0])
    np.testing.assert_array_equal(returns, [2.75, 6.0, 4.0])


def test_a_step_that_is_terminated_and_truncated_is_a_termination():
    advantages, _ = rlox.compute_gae(
        [1.0], [0.5], None, 9.0, terminated=[True], truncated=[True], final_values=[9.0]
    )
    np.testing.assert_array_equal(advantages, [0.5])


@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 70),
    envs=st.integers(1, 40),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_gae_equals_a_slow_reference(seed, steps, envs, gamma, lam):
    _, rewards, values, ends, last = random_rollout(seed, (steps, envs))
    advantages, returns = rlox.compute_gae(
        rewards, values, None, last, gamma, lam, **keywords(ends)
    )
    for n in range(envs):
        column = [x[:, n] for x in (rewards, values, *ends)]
        expected = slow_gae(*column, last[n], gamma, lam)
        np.testing.assert_allclose(advantages[:, n], expected[0], rtol=1e-6, atol=1e-10)
        np.testing.assert_allclose(returns[:, n], expected[1], rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batched_gae_equals_each_environment_alone(dtype):
    _, rewards, values, (dones, *_), last = random_rollout(3, (50, 7), dtype)
    flat = [np.ascontiguousarray(x.T).ravel() for x in (rewards, values, dones)]
    advantages, returns = rlox.compute_gae_batched(*flat, last, 50, 0.99, 0.95)
    assert advantages.dtype == returns.dtype == dtype
    for n in range(7):
        alone = rlox.compute_gae(rewards[:, n], values[:, n], dones[:, n], last[n], 0.99, 0.95)
        np.testing.assert_array_equal(advantages[n * 50 : (n + 1) * 50], alone[0])
        np.testing.assert_array_equal(returns[n * 50 : (n + 1) * 50], alone[1])


def test_gae_accepts_everything_that_asarray_accepts():
    expected = rlox.compute_gae(np.ones(4), np.zeros(4), np.zeros(4, bool), 0.0)[0]
    wide = np.zeros((4, 2))
    wide[:, 0] = 1
    for rewards in ([1, 1, 1, 1], (1.0,) * 4, np.ones(4, np.uint8), wide[:, 0], np.ones(4, ">f8")):
        got, _ = rlox.compute_gae(rewards, [0] * 4, [0] * 4, 0)
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == np.float64
    frozen = np.ones(4)
    frozen.flags.writeable = False
    np.testing.assert_array_equal(rlox.compute_gae(frozen, [0] * 4, [0] * 4, 0)[0], expected)


def test_float32_stays_float32():
    ones = np.ones((8, 2), np.float32)
    advantages, returns = rlox.compute_gae(ones, ones, ones * 0, [0.0, 0.0])
    assert advantages.dtype == returns.dtype == np.float32


def test_torch_tensors_are_taken():
    torch = pytest.importorskip("torch", reason="torch is an extra")
    ones = torch.ones(4)
    got, _ = rlox.compute_gae(ones, torch.zeros(4), torch.zeros(4, dtype=torch.bool), 0.0)
    expected, _ = rlox.compute_gae(np.ones(4, np.float32), [0] * 4, [0] * 4, 0)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected)


def test_out_is_written_and_returned():
    out = np.full((4, 2), np.nan), np.full((4, 2), np.nan)
    ones = np.ones((4, 2))
    got = rlox.compute_gae(ones, ones * 0, ones * 0, [0.0, 0.0], out=out)
    assert got[0] is out[0]
    assert got[1] is out[1]
    np.testing.assert_array_equal(out[0], rlox.compute_gae(ones, ones * 0, ones * 0, [0, 0])[0])


@pytest.mark.parametrize("steps", [4, 100_000])
def test_results_are_new_arrays_and_inputs_do_not_change(steps):
    rewards, zeros = np.ones(steps), np.zeros(steps)
    first = rlox.compute_gae(rewards, zeros, zeros, 0.0)[0]
    kept = first.copy()
    second = rlox.compute_gae(rewards * 7, zeros, zeros, 0.0)[0]
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_allclose(second, kept * 7)
    np.testing.assert_array_equal(rewards, np.ones(steps))


def test_memory_of_results_in_use_is_not_used_again():
    rewards, zeros = np.ones(100_000), np.zeros(100_000)
    expected = rlox.compute_gae(rewards, zeros, zeros, 0.0)[0].copy()
    held = [rlox.compute_gae(rewards, zeros, zeros, 0.0)[0][::2] for _ in range(5)]
    for _ in range(5):
        rlox.compute_gae(rewards * 3, zeros, zeros, 0.0)
    for view in held:
        np.testing.assert_array_equal(view, expected[::2])


def test_batched_gae_rejects_mismatched_lengths():
    with pytest.raises(ValueError, match="rewards"):
        rlox.compute_gae_batched(np.ones(7), np.ones(7), np.zeros(7), np.ones(2), 4, 0.9, 0.9)
    with pytest.raises(ValueError, match="last_values"):
        rlox.compute_gae_batched(np.ones(8), np.ones(8), np.zeros(8), np.ones((2, 1)), 4, 0.9, 0.9)


def test_an_argument_that_changes_another_one_is_rejected():
    """The method `__array__` of an argument runs after the arguments before it were read."""
    rewards = np.ones(1000)

    class Meddler:
        def __array__(self, dtype=None, copy=None):
            rewards.dtype = np.int8  # eight times as many elements
            return np.zeros(1000)

    with pytest.raises(ValueError, match=r"values: .*\[8000\].*\[1000\]"):
        rlox.compute_gae(rewards, Meddler(), np.zeros(1000, bool), 0.0)
    rewards.dtype = np.float64

    class Shrinker(Meddler):
        def __array__(self, dtype=None, copy=None):
            rewards.dtype = "V8"
            return np.zeros(1000)

    with pytest.raises((ValueError, TypeError), match="rewards"):
        rlox.compute_gae(rewards, np.zeros(1000), Shrinker(), 0.0)


@pytest.mark.parametrize("dtype", [">f4", "f8", ">f8", "g", "i1", "u2", ">i4", "u8", "?"])
@pytest.mark.parametrize("n", [50, 20_000])
def test_every_dtype_and_layout_gives_the_same_result(dtype, n):
    rng = np.random.default_rng(0)
    rewards = rng.integers(0, 2, n).astype(dtype)
    zeros, dones = np.zeros(n), rng.random(n) < 0.1
    expected = rlox.compute_gae(rewards.astype(float), zeros, dones, 0.0)[0]
    raw = np.zeros(n * rewards.itemsize + 1, np.uint8)
    misaligned = raw[1:].view(dtype)
    misaligned[:] = rewards
    strided = np.repeat(rewards, 2)[::2]
    for numbers in (rewards, strided, misaligned, strided[::-1][::-1], rewards.tolist()):
        assert np.array_equal(rlox.compute_gae(numbers, zeros, dones, 0.0)[0], expected)
    assert np.array_equal(
        rlox.compute_gae(zeros, rewards, dones, 0.0)[0] + rewards.astype(float),
        rlox.compute_gae(zeros, rewards.astype(float), dones, 0.0)[1],
    )


def test_every_non_zero_byte_of_a_boolean_is_true():
    odd = np.array([0, 2, 255, 0, 1], np.uint8).view(bool)
    plain = np.array([False, True, True, False, True])
    for flags in (odd, np.repeat(odd, 2)[::2]):
        got = rlox.compute_gae(np.ones(5), np.zeros(5), flags, 0.0)
        assert np.array_equal(got, rlox.compute_gae(np.ones(5), np.zeros(5), plain, 0.0))


def test_single_precision_is_computed_in_double():
    n = 5000
    rewards = np.random.default_rng(0).normal(size=n).astype(np.float32)
    dones, values = np.zeros(n, bool), rewards[::-1].copy()
    single = rlox.compute_gae(rewards, values, dones, 0.5, 1.0, 1.0)
    double = rlox.compute_gae(rewards.astype(float), values.astype(float), dones, 0.5, 1.0, 1.0)
    for got, expected in zip(single, double, strict=True):
        assert got.dtype == np.float32
        assert np.array_equal(got, expected.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_flat_trajectories_have_time_limits(dtype):
    rng = np.random.default_rng(0)
    t, n = 40, 5
    rewards, values, final_values = rng.normal(size=(3, t, n)).astype(dtype)
    terminated, truncated = rng.random((2, t, n)) < 0.15
    last = rng.normal(size=n).astype(dtype)
    ends = {"terminated": terminated, "truncated": truncated, "final_values": final_values}
    expected = rlox.compute_gae(rewards, values, None, last, 0.9, 0.8, **ends)
    flat = {name: array.T.ravel() for name, array in ends.items()}
    got = rlox.compute_gae_batched(
        rewards.T.ravel(), values.T.ravel(), None, last, t, 0.9, 0.8, **flat
    )
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one.reshape(n, t).T, other, rtol=1e-6, atol=1e-10)
    with pytest.raises(TypeError, match="dones: expected either dones, or terminated"):
        rlox.compute_gae_batched(rewards[0], values[0], None, last, 1)
    with pytest.raises(ValueError, match=r"truncated: .*final_values"):
        rlox.compute_gae_batched(
            rewards[0], values[0], terminated[0], last, 1, final_values=final_values[0]
        )


@pytest.mark.parametrize("lam", [1e-60, 0.0, 0.95])
def test_nan_reaches_as_far_in_one_trajectory_as_in_a_column(lam):
    rewards, zeros = np.ones(300), np.zeros(300)
    rewards[150] = np.nan
    dones = np.zeros(300, bool)
    dones[40] = True
    one = rlox.compute_gae(rewards, zeros, dones, 0.0, 0.99, lam)[0]
    ends = {"terminated": dones, "truncated": np.zeros(300, bool), "final_values": zeros}
    limited = rlox.compute_gae(rewards, zeros, None, 0.0, 0.99, lam, **ends)[0]
    np.testing.assert_array_equal(limited, one)
    columns = (x[:, None] for x in (rewards, zeros, dones))
    column = rlox.compute_gae(*columns, np.zeros(1), 0.99, lam)[0][:, 0]
    np.testing.assert_array_equal(np.isnan(one), np.isnan(column))
    first = 150 if lam == 0.0 else 41
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(one)), np.arange(first, 151))


def slow_vtrace(log_rhos, rewards, values, ends, last, gamma, rho_bar, c_bar, lam, pg_rho_bar):
    """Compute the equations of Espeholt et al. with time limits in float64."""
    terminated, truncated, final_values = ends
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


def test_vtrace_equals_values_by_hand():
    # Ratios 1/2, 4, 4; temporal differences -0.5, 2, 3, all with gamma 0.5.
    arguments = np.log([0.5, 4.0, 4.0]), [1.0, 2.0, 3.0], [2.0, 1.0, 2.0], [0, 0, 0], 4.0, 0.5
    vs, pg_advantages = rlox.compute_vtrace(*arguments, 2.0, 1.0, pg_rho_bar=3.0)
    # 2 * 3 = 6; 2 * 2 + 0.5 * 6 = 7; 0.5 * -0.5 + 0.5 * 0.5 * 7 = 1.5, each on its value.
    np.testing.assert_array_equal(vs, [3.5, 8.0, 8.0])
    # 3 * 3; 3 * (2 + 0.5 * 8 - 1); 0.5 * (1 + 0.5 * 8 - 2).
    np.testing.assert_array_equal(pg_advantages, [1.5, 15.0, 9.0])


def test_vtrace_with_time_limits_equals_values_by_hand():
    vs, pg_advantages = rlox.compute_vtrace(
        [0.0] * 3,
        [1.0, 2.0, 4.0],
        [1.0, 1.0, 1.0],
        None,
        float("nan"),
        0.5,
        terminated=[False, False, True],
        truncated=[False, True, True],
        final_values=[float("nan"), 8.0, float("nan")],
    )
    np.testing.assert_array_equal(vs, [4.0, 6.0, 4.0])
    np.testing.assert_array_equal(pg_advantages, [3.0, 5.0, 3.0])


@given(
    seed=st.integers(0, 2**32),
    shape=st.one_of(
        st.tuples(st.integers(1, 300)), st.tuples(st.integers(1, 30), st.integers(1, 90))
    ),
    dtype=st.sampled_from([np.float32, np.float64]),
    factors=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    bars=st.tuples(*[st.one_of(st.floats(0, 4), st.just(np.inf))] * 3),
)
def test_vtrace_equals_a_slow_reference(seed, shape, dtype, factors, bars):
    (gamma, lam), (rho_bar, c_bar, pg_rho_bar) = factors, bars
    c_bar = min(c_bar, 1.0)
    log_rhos, rewards, values, ends, last = random_rollout(seed, shape, dtype)
    options = {"lam": lam, "pg_rho_bar": pg_rho_bar}
    arrays = log_rhos, rewards, values
    got = rlox.compute_vtrace(
        *arrays, None, last, gamma, rho_bar, c_bar, **options, **keywords(ends)
    )
    wide = [np.asarray(x, np.float64) for x in arrays]
    expected = slow_vtrace(*wide, ends, last, gamma, rho_bar, c_bar, lam, pg_rho_bar)
    for result, wanted in zip(got, expected, strict=True):
        assert result.dtype == dtype
        # Ratios of float32 are two units in the last place from the exact ones at most.
        atol = 1e-10 if dtype == np.float64 else 1e-10 + 3e-6 * np.abs(wanted).max()
        np.testing.assert_allclose(result, wanted, rtol=1e-6, atol=atol)


@pytest.mark.parametrize("shape", [(300,), (40, 17)])
@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_on_policy_vtrace_equals_gae_and_lambda_returns(shape, lam):
    log_rhos, rewards, values, ends, last = random_rollout(1, shape)
    ends = keywords(ends)
    zeros = np.zeros_like(log_rhos)
    vs, pg_advantages = rlox.compute_vtrace(
        zeros, rewards, values, None, last, 0.99, lam=lam, **ends
    )
    advantages, returns = rlox.compute_gae(rewards, values, None, last, 0.99, lam, **ends)
    np.testing.assert_allclose(vs - values, advantages, rtol=1e-9, atol=1e-9)
    lambda_returns = rlox.compute_lambda_returns(rewards, values, None, last, 0.99, lam, **ends)
    np.testing.assert_allclose(lambda_returns, returns, rtol=1e-9, atol=1e-9)
    if lam == 1.0:
        np.testing.assert_allclose(pg_advantages, advantages, rtol=1e-9, atol=1e-9)
        discounted = rlox.compute_returns(rewards, None, last, 0.99, **ends)
        np.testing.assert_array_equal(discounted, lambda_returns)


def test_returns_equal_values_by_hand():
    rewards, dones = [1.0, 2.0, 4.0], [False, True, False]
    np.testing.assert_array_equal(rlox.compute_returns(rewards, dones, 8.0, 0.5), [2.0, 2.0, 8.0])
    cut = {"terminated": [0, 0, 0], "truncated": [0, 1, 0], "final_values": [0.0, 6.0, 0.0]}
    got = rlox.compute_returns(rewards, None, 8.0, 0.5, **cut)
    np.testing.assert_array_equal(got, [3.5, 5.0, 8.0])
    got = rlox.compute_lambda_returns(rewards, [9.0, 2.0, 4.0], None, 8.0, 0.5, 0.5, **cut)
    # 1 + 0.5 * (0.5 * 2 + 0.5 * 5); 2 + 0.5 * 6; 4 + 0.5 * 8.
    np.testing.assert_array_equal(got, [2.75, 5.0, 8.0])


def test_vtrace_accepts_everything_that_asarray_accepts():
    expected = rlox.compute_vtrace(
        np.zeros(4), np.ones(4), np.zeros(4), np.zeros(4, bool), 0.0, 0.9
    )
    wide = np.zeros((4, 2))
    wide[:, 0] = 1
    for rewards in ([1] * 4, np.ones(4, np.uint8), wide[:, 0], np.ones(4, ">f8"), np.ones(8)[::2]):
        got = rlox.compute_vtrace([0] * 4, rewards, (0,) * 4, [0] * 4, 0, 0.9)
        assert got[0].dtype == got[1].dtype == np.float64
        np.testing.assert_array_equal(got, expected)
        returns = rlox.compute_returns(rewards, [0] * 4, 0, 0.9)
        np.testing.assert_array_equal(returns, expected[0])
    ones = np.asfortranarray(np.ones((4, 2), np.float32))
    ones.flags.writeable = False
    vs, _ = rlox.compute_vtrace(ones * 0, ones, ones * 0, ones * 0, [0.0, 0.0], 0.9)
    assert vs.dtype == rlox.compute_returns(ones, ones * 0, [0, 0]).dtype == np.float32
    np.testing.assert_allclose(vs, np.stack([expected[0]] * 2, 1), rtol=1e-6)


def test_vtrace_accepts_torch_tensors():
    torch = pytest.importorskip("torch", reason="torch is an extra")
    ones, zeros = torch.ones(4), torch.zeros(4)
    flags = torch.zeros(4, dtype=torch.bool)
    vs, _ = rlox.compute_vtrace(zeros, ones, zeros, flags, torch.tensor(0.0), 0.9)
    assert vs.dtype == np.float32
    np.testing.assert_array_equal(vs, rlox.compute_returns(ones, flags, torch.tensor(0.0), 0.9))
    with pytest.raises(ValueError, match="log_rhos"):
        rlox.compute_vtrace(torch.zeros(4, requires_grad=True), ones, zeros, flags, 0.0, 0.9)


def test_ratios_may_be_zero_infinite_or_nan():
    ones, zeros, inf = np.ones(3), np.zeros(3), np.inf
    vs, pg_advantages = rlox.compute_vtrace([0.0, -inf, inf], ones, zeros, zeros, 0.0, 1.0)
    np.testing.assert_array_equal(vs, [1.0, 0.0, 1.0])
    np.testing.assert_array_equal(pg_advantages, [1.0, 0.0, 1.0])
    vs, pg_advantages = rlox.compute_vtrace([0.0, np.nan, 0.0], ones, zeros, zeros, 0.0, 1.0)
    np.testing.assert_array_equal(np.isnan([vs, pg_advantages]), [[True, True, False]] * 2)


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
    wrong = []

    def work():
        for _ in range(20):
            got = rlox.compute_vtrace(*arrays, dones, 0.0, 0.99)
            if not all(np.array_equal(x, y) for x, y in zip(got, expected, strict=True)):
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


ZEROS = np.zeros(4)


CUT = {"dones": None, "terminated": ZEROS, "truncated": ZEROS + 1}


SINGLE = (np.zeros(4, np.float32), ZEROS)


# The changed arguments, with the rejected one first, and words of the message.
REJECTED = [
    ({"values": np.zeros(3)}, ["3", "4"]),
    ({"dones": np.zeros(5)}, ["4"]),
    ({"rewards": np.zeros((2, 2, 2))}, ["(T,) or (T, N)"]),
    ({"rewards": 1.0}, ["(T,) or (T, N)"]),
    ({"last_value": [0.0, 1.0]}, ["one number"]),
    ({"gamma": 1.5}, ["1.5", "[0, 1]"]),
    ({"gamma": float("nan")}, ["NaN"]),
    ({"gamma": "much"}, ["number", "much"]),
    ({"lam": -0.1}, ["-0.1"]),
    ({"dones": np.full(4, 0.5)}, ["0 or 1", "0.5"]),
    ({"rewards": np.array([None] * 4)}, ["object"]),
    ({"rewards": np.ones(4, complex)}, ["complex"]),
    ({"values": ["a", "b", "c", "d"]}, []),
    ({"values": [[1.0], [1.0, 2.0]]}, []),
    ({"terminated": None, "dones": None}, ["neither"]),
    ({"dones": ZEROS, "terminated": ZEROS}, ["both"]),
    ({"final_values": None, **CUT}, []),
    ({"log_rhos": np.zeros((4, 1))}, ["4"]),
    ({"log_rhos": None}, []),
    ({"rho_bar": -1.0}, ["-1", "at least 0"]),
    ({"c_bar": float("nan")}, ["NaN"]),
    ({"pg_rho_bar": -0.5}, ["-0.5"]),
    ({"out": SINGLE}, ["float32"]),
    ({"out": (np.zeros(3), ZEROS)}, []),
]


RATIOS = {"log_rhos", "rho_bar", "c_bar", "pg_rho_bar"}


WITHOUT = {
    "compute_gae": RATIOS,
    "compute_vtrace": {"out"},
    "compute_returns": RATIOS | {"values", "lam", "out"},
    "compute_lambda_returns": RATIOS | {"out"},
}


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (name, change, words)
        for name, without in WITHOUT.items()
        for change, words in REJECTED
        if not without & change.keys()
    ],
)
def test_invalid_arguments_are_rejected_by_name(name, change, words):
    arguments = {"rewards": ZEROS + 1, "dones": ZEROS, "last_value": 0.0, "gamma": 0.9}
    if name != "compute_returns":
        arguments["values"] = ZEROS
    if name == "compute_vtrace":
        arguments["log_rhos"] = ZEROS
    arguments |= change
    rejected = next(iter(change))
    if name == "compute_vtrace":
        arguments["bootstrap_value"] = arguments.pop("last_value")
        rejected = rejected.replace("last_value", "bootstrap_value")
    with pytest.raises((ValueError, TypeError), match=rejected) as error:
        getattr(rlox, name)(**arguments)
    for word in words:
        assert word in str(error.value)


def test_nan_spreads_through_small_ratios_equally_in_rows_and_columns():
    rewards, zeros, dones = np.ones(300), np.zeros(300), np.zeros(300, bool)
    rewards[150] = np.nan
    log_rhos = np.full(300, -100.0)
    one = rlox.compute_vtrace(log_rhos, rewards, zeros, dones, 0.0, 0.99)[0]
    columns = (x[:, None] for x in (log_rhos, rewards, zeros, dones))
    column = rlox.compute_vtrace(*columns, np.zeros(1), 0.99)[0][:, 0]
    np.testing.assert_array_equal(np.isnan(one), np.isnan(column))
    assert np.isnan(one[:151]).all()
