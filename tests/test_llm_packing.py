"""Packing: what the rows hold, how full they are, what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlox

KEYS = {
    "input_ids",
    "position_ids",
    "attention_mask",
    "sequence_starts",
    "cu_seqlens",
    "source_indices",
}


def check(rows, sequences, max_length):
    """Every sequence is in one row, whole, and the row's arrays belong together."""
    seen = []
    for row in rows:
        assert set(row) == KEYS
        ends, tokens = row["cu_seqlens"], row["input_ids"]
        assert ends.dtype == np.int32
        assert ends[0] == 0
        assert ends[-1] == len(tokens) <= max_length
        assert row["sequence_starts"].tolist() == ends[:-1].tolist()
        assert row["attention_mask"].tolist() == [1] * len(tokens)
        for source, start, end in zip(row["source_indices"], ends, ends[1:], strict=False):
            np.testing.assert_array_equal(tokens[start:end], sequences[source][:max_length])
            np.testing.assert_array_equal(row["position_ids"][start:end], np.arange(end - start))
            seen.append(int(source))
    assert sorted(seen) == [i for i, sequence in enumerate(sequences) if len(sequence)]


@given(
    lengths=st.lists(st.integers(0, 40), max_size=60),
    max_length=st.integers(1, 64),
    dtype=st.sampled_from([np.uint32, np.int32, np.int64]),
)
def test_rows_hold_every_sequence_once(lengths, max_length, dtype):
    sequences = [np.arange(100 * i, 100 * i + n, dtype=dtype) for i, n in enumerate(lengths)]
    rows = rlox.pack_sequences(sequences, max_length, overflow="truncate")
    assert type(rows) is list
    check(rows, sequences, max_length)
    assert all(row["input_ids"].dtype == dtype for row in rows)
    sources, starts = rlox.pack_lengths(lengths, max_length, overflow="truncate")
    assert len(starts) == len(rows) + 1
    for row, start, end in zip(rows, starts, starts[1:], strict=False):
        np.testing.assert_array_equal(row["source_indices"], sources[start:end])


def best_fit_decreasing(lengths, max_length):
    left = []
    for length in sorted(filter(None, lengths), reverse=True):
        fits = [i for i, space in enumerate(left) if space >= length]
        if fits:
            left[min(fits, key=lambda i: left[i])] -= length
        else:
            left.append(max_length - length)
    return sorted(left)


@given(lengths=st.lists(st.integers(1, 50), max_size=120), extra=st.integers(0, 70))
def test_rows_are_as_full_as_best_fit_decreasing(lengths, extra):
    max_length = max(lengths, default=1) + extra
    rows = rlox.pack_sequences([np.zeros(n, int) for n in lengths], max_length)
    left = sorted(max_length - len(row["input_ids"]) for row in rows)
    assert left == best_fit_decreasing(lengths, max_length)


def test_by_hand():
    rows = rlox.pack_sequences([[1, 2, 3], [4] * 5, [], [6, 7], [8] * 4], 8)
    assert [row["source_indices"].tolist() for row in rows] == [[1, 0], [4, 3]]
    assert rows[0]["input_ids"].tolist() == [4, 4, 4, 4, 4, 1, 2, 3]
    assert rows[0]["position_ids"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert rows[1]["cu_seqlens"].tolist() == [0, 4, 6]
    assert rows[1]["input_ids"].dtype == np.int64


def test_what_is_taken():
    assert rlox.pack_sequences([], 4) == []
    assert rlox.pack_sequences([[], []], 4) == []
    mixed = [np.arange(2, dtype=np.uint32), np.arange(3, dtype=np.int64), (5, 6)]
    check(rlox.pack_sequences(mixed, 4), mixed, 4)
    strided = [np.arange(10)[::2], np.arange(3, dtype=">i8")]
    check(rlox.pack_sequences(iter(strided), 8), strided, 8)
    torch = pytest.importorskip("torch", reason="torch is an extra")
    tensors = [torch.arange(3), torch.arange(2)]
    check(rlox.pack_sequences(tensors, 8), tensors, 8)


def test_rows_are_writeable_and_nobody_elses():
    sequences = [np.arange(3), np.arange(2)]
    rows = rlox.pack_sequences(sequences, 3)
    rows[0]["input_ids"][:] = 9
    assert sequences[0].tolist() == [0, 1, 2]
    assert rows[1]["input_ids"].tolist() == [0, 1]


def test_a_hundred_thousand_sequences():
    lengths = np.random.default_rng(0).integers(1, 700, 100_000)
    sources, starts = rlox.pack_lengths(lengths, 2048)
    sums = np.add.reduceat(lengths[sources], starts[:-1])
    assert sums.max() <= 2048
    assert sums.mean() > 0.99 * 2048
    np.testing.assert_array_equal(np.sort(sources), np.arange(100_000))


BAD = [
    (
        lambda: rlox.pack_sequences([[1] * 9], 8),
        ValueError,
        "^sequences: .*max_length = 8.*9 in seq",
    ),
    (lambda: rlox.pack_sequences([[1]], 0), ValueError, "max_length"),
    (lambda: rlox.pack_sequences([[1]], -1), ValueError, "max_length"),
    (lambda: rlox.pack_sequences([[1]], 2.0), TypeError, "max_length"),
    (lambda: rlox.pack_sequences([[1]], 2**70), MemoryError, "max_length"),
    (lambda: rlox.pack_sequences([[1.5]], 8), TypeError, "sequences: .*integers"),
    (lambda: rlox.pack_sequences([["a"]], 8), TypeError, "sequences"),
    (lambda: rlox.pack_sequences([[[1]]], 8), ValueError, "one-dimensional"),
    (lambda: rlox.pack_sequences([1, 2], 8), ValueError, "one-dimensional"),
    (lambda: rlox.pack_sequences(5, 8), TypeError, "sequences"),
    (lambda: rlox.pack_sequences([[1]], 8, overflow="split"), ValueError, "overflow"),
    (lambda: rlox.pack_lengths([9], 8), ValueError, "^lengths: .*max_length = 8.*9 in sequence 0"),
    (lambda: rlox.pack_lengths([-1], 8), ValueError, "lengths: .*-1"),
    (lambda: rlox.pack_lengths([[1]], 8), ValueError, "lengths"),
    (lambda: rlox.pack_lengths([1.5], 8), TypeError, "lengths"),
    (lambda: rlox.pack_lengths([2**62, 2**62], 2**62), MemoryError, "max_length"),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD)
def test_bad_input_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
