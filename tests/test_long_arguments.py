"""Long arguments: what has a wrong shape is refused before it is read."""

import numpy as np
import pytest

import rlox

DTYPES = ["f8", "f4", "f2", "i8", "u8", "?"]
THREE, ENDS = np.ones(3), np.zeros(3, bool)


def endless(dtype):
    """So many numbers that no copy of them fits into memory."""
    return np.broadcast_to(np.zeros((), dtype), 2**48)


KERNELS = {
    "values": lambda x: rlox.compute_gae(THREE, x, ENDS, 0.0),
    "last_value": lambda x: rlox.compute_gae(THREE, THREE, ENDS, x),
    "dones": lambda x: rlox.compute_gae(THREE, THREE, x, 0.0),
    "final_values": lambda x: rlox.compute_gae(
        THREE, THREE, None, 0.0, terminated=ENDS, truncated=ENDS, final_values=x
    ),
    "truncated": lambda x: rlox.compute_returns(THREE, None, 0.0, terminated=ENDS, truncated=x),
    "log_rhos": lambda x: rlox.compute_vtrace(x, THREE, THREE, ENDS, 0.0, 0.9),
    "bootstrap_value": lambda x: rlox.compute_vtrace(THREE, THREE, THREE, ENDS, x, 0.9),
    "weights": lambda x: rlox.compute_group_advantages(np.ones((3, 2)), weights=x),
    "ref_log_probs": lambda x: rlox.token_kl(THREE, x),
    "mask": lambda x: rlox.token_kl(THREE, THREE, mask=x),
    "old_log_probs": lambda x: rlox.policy_ratios(THREE, x),
}
KERNELS |= {
    f"{name} of lambda returns": lambda x, at=at: rlox.compute_lambda_returns(
        *(x if i == at else y for i, y in enumerate((THREE, THREE, ENDS, 0.0)))
    )
    for at, name in enumerate(("rewards", "values", "dones", "last_value"))
    if at
}
KERNELS |= {
    f"{name} of flat GAE": lambda x, at=at: rlox.compute_gae_batched(
        *(x if i == at else y for i, y in enumerate((THREE, THREE, ENDS, THREE[:1]))), 3
    )
    for at, name in enumerate(("rewards", "values", "dones"))
    if at
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_wrong_shape_is_refused_before_a_copy_is_made(name, dtype):
    with pytest.raises(ValueError, match=rf"^({name.split()[0]}|rewards).*: expected "):
        KERNELS[name](endless(dtype))


def test_advantages_of_a_wrong_shape_are_refused_before_a_copy_is_made():
    with pytest.raises(ValueError, match=r"^advantages: expected one for each sequence"):
        rlox.policy_ratio_stats(THREE, THREE, advantages=endless("f8"))


def test_numbers_of_which_no_copy_fits_are_not_looked_at():
    env = rlox._rlox.NativeVectorEnv("Pendulum-v1", 3, 0)
    env.reset()
    with pytest.raises(MemoryError, match=r"^actions: expected .* fits into memory"):
        env.step(endless("f8"))
    with pytest.raises(MemoryError, match=r"^lengths: expected .* fits into memory"):
        rlox.pack_lengths(endless("u8"), 8)


@pytest.mark.parametrize("make", [lambda n: [0.5] * n, lambda n: [1] * (n - 1) + [2.5]])
def test_long_lists_are_what_numpy_makes_of_them(make):
    rewards = make(300_000)
    group = rlox.compute_group_advantages(rewards, scale="none")
    np.testing.assert_array_equal(
        group, rlox.compute_group_advantages(np.array(rewards), scale="none")
    )


def test_long_lists_of_unequal_rows_are_refused():
    with pytest.raises(ValueError, match="rewards: expected an array, got <class 'list'>"):
        rlox.compute_group_advantages([[1.0, 2.0]] * 270_000 + [[1.0]])
    missing = [1.0] * 299_999 + [None]
    assert rlox.compute_group_advantages(missing)[-1] == 0.0


def test_sizes_of_nothing_are_named():
    for call, name in (
        (lambda: rlox.compute_batch_group_advantages([1.0, 2.0], 0), "group_size"),
        (lambda: rlox.compute_gae_batched(THREE, THREE, ENDS, [0.0], n_steps=0), "n_steps"),
        (lambda: rlox.compute_batch_token_kl(THREE, THREE, seq_len=0), "seq_len"),
    ):
        with pytest.raises(ValueError, match=f"{name}: expected at least 1, got 0"):
            call()
