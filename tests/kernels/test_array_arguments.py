"""Results do not depend on the dtype and memory layout of array arguments."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import rlox
from rlox import RolloutBuffer

DTYPES = [
    *("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g"),
    *(">i2", ">i4", ">i8", ">u2", ">u4", ">u8", ">f2", ">f4", ">f8", ">g"),
]
FORMS = {
    "Fortran order": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "negative strides": lambda x: np.ascontiguousarray(np.flip(x))[(slice(None, None, -1),) * x.ndim],
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "broadcast": lambda x: np.broadcast_to(x[..., :1], x.shape),
}


def store(dtype, x):
    """Return the rows of a buffer with this dtype after a rollout observed `x`."""
    buffer = RolloutBuffer(1, len(x), x.shape[1:], obs_dtype=dtype)
    buffer.begin(x)
    return buffer.obs[0].copy()


def pack(_, x):
    """Return the packed tokens of the first row of `x`."""
    (row,) = rlox.pack_sequences([x[(0,) * (x.ndim - 1)]], x.shape[-1])
    return row["input_ids"]


INTEGERS = [dtype for dtype in DTYPES if dtype.lstrip(">")[0] in "iu"]
READERS = {
    "float32": (store, DTYPES),
    "float64": (store, DTYPES),
    "int64": (store, INTEGERS),
    "uint8": (store, INTEGERS),
    "bool": (store, ["?"]),
    "tokens": (pack, ["i4", "i8", "u4", ">i8"]),
}
SMALL = st.integers(0, 99)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", READERS)
@settings(max_examples=20)
@given(values=arrays("u1", array_shapes(min_dims=2, max_dims=4, max_side=5), elements=SMALL))
def test_results_do_not_depend_on_strides(target, form, values):
    read, dtypes = READERS[target]
    for dtype in dtypes:
        x = FORMS[form](values.astype(dtype))
        assert np.array_equal(read(target, x), read(target, x.copy(order="C"))), dtype


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", [*READERS][:5])
def test_results_of_long_arrays_do_not_depend_on_strides(target, form):
    values = np.arange(30_000).reshape(100, 20, 15) % 100
    for dtype in ["?"] if target == "bool" else ["u1", "i8", ">i4"]:
        x = FORMS[form](values.astype(dtype))
        assert np.array_equal(store(target, x), x.astype(target)), dtype


ROWS, TOKENS = 3, 8
# Functions of two arrays of numbers and a mask, all of shape (ROWS, TOKENS).
KERNELS = {
    "token_kl": lambda a, b, m: rlox.token_kl(a, b, m),
    "token_kl sum": lambda a, b, m: rlox.token_kl(a, b, m, "k2", "sum"),
    "compute_batch_token_kl": lambda a, b, m: rlox.compute_batch_token_kl(a, b, TOKENS, mask=m),
    "schulman_f32": lambda a, b, m: rlox.compute_batch_token_kl_schulman_f32(a, b, TOKENS, mask=m),
    "policy_ratios": lambda a, b, m: rlox.policy_ratios(a, b, m),
    "sequence ratios": lambda a, b, m: rlox.policy_ratios(a, b, m, level="sequence"),
    "policy_ratio_stats": lambda a, b, m: rlox.policy_ratio_stats(a, b, m, advantages=b),
    "group": lambda a, b, m: rlox.compute_group_advantages(a, weights=b[0], ddof=1),
    "batch of groups": lambda a, b, m: rlox.compute_batch_group_advantages(a, TOKENS),
    "compute_token_kl_f32": lambda a, b, m: rlox.compute_token_kl_f32(a[0], b[0]),
    "gae of one": lambda a, b, m: rlox.compute_gae(a[0], b[0], m[0], b[1][1]),
    "gae of final values": lambda a, b, m: rlox.compute_gae(
        a, b, None, b[0], terminated=m, truncated=m, final_values=a
    ),
    "gae_batched": lambda a, b, m: rlox.compute_gae_batched(a[0], b[0], m[0], b[1][:1], TOKENS),
    "compute_gae": lambda a, b, m: rlox.compute_gae(a, b, m, b[0]),
    "compute_vtrace": lambda a, b, m: rlox.compute_vtrace(a, a, b, m, b[0], 0.9),
    "compute_returns": lambda a, b, m: rlox.compute_returns(a, m, b[0], 0.9),
    "compute_lambda_returns": lambda a, b, m: rlox.compute_lambda_returns(a, b, m, b[0], 0.9),
}


def results(kernel, *arrays):
    got = KERNELS[kernel](*arrays)
    return np.array([*got.values()] if isinstance(got, dict) else got)


def as_read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def as_misaligned(array):
    raw = np.zeros(array.nbytes + 1, np.uint8)
    copy = raw[1:].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


LAYOUTS = {
    "list": lambda x: x.tolist(),
    "read-only": as_read_only,
    "Fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "misaligned": as_misaligned,
    "subclass": lambda x: x.view(np.ma.MaskedArray),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernel_results_do_not_depend_on_the_layout(kernel, layout):
    rng = np.random.default_rng(0)
    # All dtypes represent these small integers.
    arrays = [-rng.integers(0, 5, (ROWS, TOKENS)).astype(np.float64) for _ in "ab"]
    mask = rng.random((ROWS, TOKENS)) < 0.6
    change = LAYOUTS[layout]
    expected = results(kernel, *arrays, mask)
    np.testing.assert_array_equal(results(kernel, *map(change, arrays), change(mask)), expected)
    for dtype in ("i1", "i8", ">i4", ">f8", "g"):
        got = results(kernel, *(change(x.astype(dtype)) for x in (*arrays, mask)))
        np.testing.assert_array_equal(got, expected)
    single = results(kernel, *(x.astype(np.float32) for x in arrays), mask)
    for dtype in {"list": [], "byte-swapped": ["f2"]}.get(layout, ["f4", "f2"]):
        got = results(kernel, *(change(x.astype(dtype)) for x in arrays), change(mask))
        assert got.dtype == single.dtype
        np.testing.assert_array_equal(got, single)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_tensors_equal_float32(kernel, dtype):
    policy = torch.linspace(-3, 3, ROWS * TOKENS).reshape(ROWS, TOKENS).to(dtype)
    mask, reference = torch.arange(ROWS * TOKENS).reshape(ROWS, TOKENS) % 5 == 4, policy.flip(0) / 3
    got = results(kernel, policy, reference, mask)
    expected = results(kernel, policy.float(), reference.float(), mask)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("last", [0.5, 1, None])
def test_long_lists_equal_arrays(last):
    rewards = [0.5] * 299_999 + [last]
    group = rlox.compute_group_advantages(rewards, scale="none")
    policy = np.array(rewards, float)  # None becomes NaN, which is a missing reward
    np.testing.assert_array_equal(group, rlox.compute_group_advantages(policy, scale="none"))
