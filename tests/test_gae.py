"""`compute_gae` and `compute_gae_batched`: the formula, what they take, the errors they give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlox


def slow_gae(rewards, values, terminated, truncated, final_values, last_value, gamma, lam):
    """Schulman et al.'s eq. 16 with time limits for one trajectory, step by step in float64."""
    advantages = np.zeros(len(rewards))
    advantage, next_value = 0.0, last_value
    for t in reversed(range(len(rewards))):
        after = final_values[t] if truncated[t] else next_value
        delta = rewards[t] + (0.0 if terminated[t] else gamma * after) - values[t]
        done = terminated[t] or truncated[t]
        advantage = delta + (0.0 if done else gamma * lam * advantage)
        advantages[t], next_value = advantage, values[t]
    return advantages, advantages + values


def random_rollout(seed, shape):
    rng = np.random.default_rng(seed)
    flags = rng.random((2, *shape)) < 0.1
    return (
        rng.normal(size=shape),
        rng.normal(size=shape),
        flags[0],
        flags[1],
        rng.normal(size=shape),
        rng.normal(size=shape[1:]),
    )


def test_by_hand():
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


def test_an_end_of_both_kinds_in_one_step_is_a_termination():
    advantages, _ = rlox.compute_gae(
        [1.0], [0.5], None, 9.0, terminated=[True], truncated=[True], final_values=[9.0]
    )
    np.testing.assert_array_equal(advantages, [0.5])


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 70),
    envs=st.integers(1, 40),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_equals_the_slow_form(seed, steps, envs, gamma, lam):
    rewards, values, terminated, truncated, final_values, last = random_rollout(seed, (steps, envs))
    advantages, returns = rlox.compute_gae(
        rewards,
        values,
        None,
        last,
        gamma,
        lam,
        terminated=terminated,
        truncated=truncated,
        final_values=final_values,
    )
    for n in range(envs):
        column = [x[:, n] for x in (rewards, values, terminated, truncated, final_values)]
        expected = slow_gae(*column, last[n], gamma, lam)
        np.testing.assert_allclose(advantages[:, n], expected[0], rtol=1e-6, atol=1e-10)
        np.testing.assert_allclose(returns[:, n], expected[1], rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batched_equals_each_environment_alone(dtype):
    rewards, values, dones, _, _, last = (np.asarray(x, dtype) for x in random_rollout(3, (50, 7)))
    flat = [np.ascontiguousarray(x.T).ravel() for x in (rewards, values, dones)]
    advantages, returns = rlox.compute_gae_batched(*flat, last, 50, 0.99, 0.95)
    assert advantages.dtype == returns.dtype == dtype
    for n in range(7):
        alone = rlox.compute_gae(rewards[:, n], values[:, n], dones[:, n], last[n], 0.99, 0.95)
        np.testing.assert_array_equal(advantages[n * 50 : (n + 1) * 50], alone[0])
        np.testing.assert_array_equal(returns[n * 50 : (n + 1) * 50], alone[1])


def test_what_asarray_takes_is_taken():
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
def test_results_are_fresh_and_inputs_stay(steps):
    rewards, zeros = np.ones(steps), np.zeros(steps)
    first = rlox.compute_gae(rewards, zeros, zeros, 0.0)[0]
    kept = first.copy()
    second = rlox.compute_gae(rewards * 7, zeros, zeros, 0.0)[0]
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_allclose(second, kept * 7)
    np.testing.assert_array_equal(rewards, np.ones(steps))


def test_memory_given_back_is_used_again_only_then():
    rewards, zeros = np.ones(100_000), np.zeros(100_000)
    expected = rlox.compute_gae(rewards, zeros, zeros, 0.0)[0].copy()
    held = [rlox.compute_gae(rewards, zeros, zeros, 0.0)[0][::2] for _ in range(5)]
    for _ in range(5):
        rlox.compute_gae(rewards * 3, zeros, zeros, 0.0)
    for view in held:
        np.testing.assert_array_equal(view, expected[::2])


def test_nothing_in_nothing_out():
    advantages, returns = rlox.compute_gae([], [], [], 0.0)
    assert advantages.shape == returns.shape == (0,)


@pytest.mark.parametrize(
    ("kind", "words", "change"),
    [
        (ValueError, ["values", "3", "4"], {"values": np.zeros(3)}),
        (ValueError, ["dones", "4"], {"dones": np.zeros(5)}),
        (ValueError, ["rewards", "(T,) or (T, N)"], {"rewards": np.zeros((2, 2, 2))}),
        (ValueError, ["last_value"], {"last_value": [0.0, 1.0]}),
        (ValueError, ["gamma", "1.5", "[0, 1]"], {"gamma": 1.5}),
        (ValueError, ["gamma"], {"gamma": float("nan")}),
        (ValueError, ["lam", "-0.1"], {"lam": -0.1}),
        (ValueError, ["dones", "0 or 1", "0.5"], {"dones": np.full(4, 0.5)}),
        (TypeError, ["rewards", "object"], {"rewards": np.array([None] * 4)}),
        (TypeError, ["rewards", "complex"], {"rewards": np.ones(4, complex)}),
        (TypeError, ["rewards"], {"rewards": ["a", "b", "c", "d"]}),
        (TypeError, ["terminated", "neither"], {"dones": None}),
        (TypeError, ["dones", "both"], {"terminated": np.zeros(4)}),
        (
            ValueError,
            ["final_values"],
            {"dones": None, "terminated": np.zeros(4), "truncated": np.ones(4)},
        ),
        (ValueError, ["out[0]", "float32"], {"out": (np.zeros(4, np.float32), np.zeros(4))}),
        (ValueError, ["out[0]"], {"out": (np.zeros(3), np.zeros(4))}),
    ],
)
def test_bad_input_names_the_argument(kind, words, change):
    zeros = np.zeros(4)
    arguments = {"rewards": np.ones(4), "values": zeros, "dones": zeros, "last_value": 0.0}
    with pytest.raises((ValueError, TypeError)) as caught:
        rlox.compute_gae(**(arguments | change))
    assert issubclass(caught.type, (kind, TypeError) if "out" in change else kind)
    for word in words:
        assert word in str(caught.value)


def test_batched_refuses_lengths_that_do_not_fit():
    with pytest.raises(ValueError, match="rewards"):
        rlox.compute_gae_batched(np.ones(7), np.ones(7), np.zeros(7), np.ones(2), 4, 0.9, 0.9)
    with pytest.raises(ValueError, match="last_values"):
        rlox.compute_gae_batched(np.ones(8), np.ones(8), np.zeros(8), np.ones((2, 1)), 4, 0.9, 0.9)


def test_an_argument_that_changes_another_while_it_is_read_does_no_harm():
    """An `__array__` runs between the look at one argument and the next."""
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
def test_numbers_of_every_kind_and_layout_count_as_their_value(dtype, n):
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


def test_booleans_of_other_bytes_are_true_as_numpy_has_it():
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
def test_flat_trajectories_know_time_limits_as_those_in_rows_do(dtype):
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
