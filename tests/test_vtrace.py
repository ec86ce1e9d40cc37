"""`compute_vtrace`, `compute_returns` and `compute_lambda_returns`: formulas, input, errors."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlox


def slow_vtrace(log_rhos, rewards, values, ends, last, gamma, rho_bar, c_bar, lam, pg_rho_bar):
    """Espeholt et al.'s equations with `compute_gae`'s time limits, step by step in float64."""
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


def random_rollout(seed, shape, dtype=np.float64):
    """Log ratios, rewards, values, (terminated, truncated, final values), last values."""
    rng = np.random.default_rng(seed)
    log_rhos, rewards, values, final_values = rng.normal(size=(4, *shape)).astype(dtype)
    terminated, truncated = rng.random((2, *shape)) < 0.1
    last = rng.normal(size=shape[1:]).astype(dtype)
    return log_rhos, rewards, values, (terminated, truncated, final_values), last


def keywords(ends):
    return dict(zip(("terminated", "truncated", "final_values"), ends, strict=True))


def test_by_hand():
    # Ratios 1/2, 4, 4; temporal differences -0.5, 2, 3, all with gamma 0.5.
    arguments = np.log([0.5, 4.0, 4.0]), [1.0, 2.0, 3.0], [2.0, 1.0, 2.0], [0, 0, 0], 4.0, 0.5
    vs, pg_advantages = rlox.compute_vtrace(*arguments, 2.0, 1.0, pg_rho_bar=3.0)
    # 2 * 3 = 6; 2 * 2 + 0.5 * 6 = 7; 0.5 * -0.5 + 0.5 * 0.5 * 7 = 1.5, each on its value.
    np.testing.assert_array_equal(vs, [3.5, 8.0, 8.0])
    # 3 * 3; 3 * (2 + 0.5 * 8 - 1); 0.5 * (1 + 0.5 * 8 - 2).
    np.testing.assert_array_equal(pg_advantages, [1.5, 15.0, 9.0])


def test_time_limits_by_hand():
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


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    shape=st.one_of(
        st.tuples(st.integers(1, 300)), st.tuples(st.integers(1, 30), st.integers(1, 90))
    ),
    dtype=st.sampled_from([np.float32, np.float64]),
    factors=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    bars=st.tuples(*[st.one_of(st.floats(0, 4), st.just(np.inf))] * 3),
)
def test_equals_the_slow_form(seed, shape, dtype, factors, bars):
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
def test_on_policy_it_is_gae_and_lambda_returns(shape, lam):
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


def test_returns_by_hand():
    rewards, dones = [1.0, 2.0, 4.0], [False, True, False]
    np.testing.assert_array_equal(rlox.compute_returns(rewards, dones, 8.0, 0.5), [2.0, 2.0, 8.0])
    cut = {"terminated": [0, 0, 0], "truncated": [0, 1, 0], "final_values": [0.0, 6.0, 0.0]}
    got = rlox.compute_returns(rewards, None, 8.0, 0.5, **cut)
    np.testing.assert_array_equal(got, [3.5, 5.0, 8.0])
    got = rlox.compute_lambda_returns(rewards, [9.0, 2.0, 4.0], None, 8.0, 0.5, 0.5, **cut)
    # 1 + 0.5 * (0.5 * 2 + 0.5 * 5); 2 + 0.5 * 6; 4 + 0.5 * 8.
    np.testing.assert_array_equal(got, [2.75, 5.0, 8.0])


def test_what_asarray_takes_is_taken_and_dtypes_follow_the_rewards():
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


def test_torch_tensors_are_taken():
    torch = pytest.importorskip("torch", reason="torch is an extra")
    ones, zeros = torch.ones(4), torch.zeros(4)
    flags = torch.zeros(4, dtype=torch.bool)
    vs, _ = rlox.compute_vtrace(zeros, ones, zeros, flags, torch.tensor(0.0), 0.9)
    assert vs.dtype == np.float32
    np.testing.assert_array_equal(vs, rlox.compute_returns(ones, flags, torch.tensor(0.0), 0.9))
    with pytest.raises(ValueError, match="log_rhos"):
        rlox.compute_vtrace(torch.zeros(4, requires_grad=True), ones, zeros, flags, 0.0, 0.9)


def test_ratios_of_nothing_too_much_and_nan():
    ones, zeros, inf = np.ones(3), np.zeros(3), np.inf
    vs, pg_advantages = rlox.compute_vtrace([0.0, -inf, inf], ones, zeros, zeros, 0.0, 1.0)
    np.testing.assert_array_equal(vs, [1.0, 0.0, 1.0])
    np.testing.assert_array_equal(pg_advantages, [1.0, 0.0, 1.0])
    vs, pg_advantages = rlox.compute_vtrace([0.0, np.nan, 0.0], ones, zeros, zeros, 0.0, 1.0)
    np.testing.assert_array_equal(np.isnan([vs, pg_advantages]), [[True, True, False]] * 2)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing_in_nothing_out(shape):
    empty, last = np.zeros(shape), np.zeros(shape[1:])
    for got in rlox.compute_vtrace(empty, empty, empty, empty, last, 0.9):
        assert got.shape == shape
    assert rlox.compute_returns(empty, empty, last).shape == shape
    assert rlox.compute_lambda_returns(empty, empty, empty, last).shape == shape


def test_long_calls_run_beside_each_other():
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
BAD = [
    (ValueError, ["values", "3", "4"], {"values": np.zeros(3)}),
    (ValueError, ["dones", "4"], {"dones": np.zeros(5)}),
    (ValueError, ["rewards", "(T,) or (T, N)"], {"rewards": np.zeros((2, 2, 2))}),
    (ValueError, ["rewards", "(T,) or (T, N)"], {"rewards": 1.0}),
    (ValueError, ["last_value", "one number"], {"last_value": [0.0, 1.0]}),
    (ValueError, ["gamma", "1.5", "[0, 1]"], {"gamma": 1.5}),
    (ValueError, ["gamma", "NaN"], {"gamma": float("nan")}),
    (TypeError, ["gamma", "number", "much"], {"gamma": "much"}),
    (ValueError, ["lam", "-0.1"], {"lam": -0.1}),
    (ValueError, ["dones", "0 or 1", "0.5"], {"dones": np.full(4, 0.5)}),
    (TypeError, ["rewards", "object"], {"rewards": np.array([None] * 4)}),
    (TypeError, ["rewards", "complex"], {"rewards": np.ones(4, complex)}),
    (TypeError, ["values"], {"values": ["a", "b", "c", "d"]}),
    (ValueError, ["values"], {"values": [[1.0], [1.0, 2.0]]}),
    (TypeError, ["terminated", "neither"], {"dones": None}),
    (TypeError, ["dones", "both"], {"terminated": ZEROS}),
    (ValueError, ["final_values"], {"dones": None, "terminated": ZEROS, "truncated": ZEROS + 1}),
    (ValueError, ["log_rhos", "4"], {"log_rhos": np.zeros((4, 1))}),
    (TypeError, ["log_rhos"], {"log_rhos": None}),
    (ValueError, ["rho_bar", "-1", "at least 0"], {"rho_bar": -1.0}),
    (ValueError, ["c_bar", "NaN"], {"c_bar": float("nan")}),
    (ValueError, ["pg_rho_bar", "-0.5"], {"pg_rho_bar": -0.5}),
]


FOREIGN = {
    "compute_vtrace": set(),
    "compute_returns": {"log_rhos", "rho_bar", "c_bar", "pg_rho_bar", "values", "lam"},
    "compute_lambda_returns": {"log_rhos", "rho_bar", "c_bar", "pg_rho_bar"},
}


@pytest.mark.parametrize(
    ("name", "kind", "words", "change"),
    [(name, *bad) for name in FOREIGN for bad in BAD if not FOREIGN[name] & bad[2].keys()],
)
def test_bad_input_names_the_argument(name, kind, words, change):
    arguments = {"rewards": ZEROS + 1, "dones": ZEROS, "last_value": 0.0, "gamma": 0.9}
    if name != "compute_returns":
        arguments["values"] = ZEROS
    if name == "compute_vtrace":
        arguments["log_rhos"] = ZEROS
    arguments |= change
    if name == "compute_vtrace":
        arguments["bootstrap_value"] = arguments.pop("last_value")
        words = [word.replace("last_value", "bootstrap_value") for word in words]
    with pytest.raises(kind) as caught:
        getattr(rlox, name)(**arguments)
    for word in words:
        assert word in str(caught.value)


def test_nan_reaches_as_far_through_vanishing_ratios_in_one_trajectory_as_in_a_column():
    rewards, zeros, dones = np.ones(300), np.zeros(300), np.zeros(300, bool)
    rewards[150] = np.nan
    log_rhos = np.full(300, -100.0)
    one = rlox.compute_vtrace(log_rhos, rewards, zeros, dones, 0.0, 0.99)[0]
    columns = (x[:, None] for x in (log_rhos, rewards, zeros, dones))
    column = rlox.compute_vtrace(*columns, np.zeros(1), 0.99)[0][:, 0]
    np.testing.assert_array_equal(np.isnan(one), np.isnan(column))
    assert np.isnan(one[:151]).all()
