"""The LLM kernels under arguments that nobody would pass on purpose."""

import _thread
import inspect
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlox

ROWS, TOKENS = 3, 8
# Each takes two arrays of numbers and a mask, all of shape (ROWS, TOKENS), and gives an array.
KERNELS = {
    "token_kl": lambda a, b, m: rlox.token_kl(a, b, m),
    "token_kl sum": lambda a, b, m: rlox.token_kl(a, b, m, "k2", "sum"),
    "compute_batch_token_kl": lambda a, b, m: rlox.compute_batch_token_kl(a, b, TOKENS, mask=m),
    "schulman_f32": lambda a, b, m: rlox.compute_batch_token_kl_schulman_f32(a, b, TOKENS, mask=m),
    "policy_ratios": lambda a, b, m: rlox.policy_ratios(a, b, m),
    "sequence ratios": lambda a, b, m: rlox.policy_ratios(a, b, m, level="sequence"),
    "policy_ratio_stats": lambda a, b, m: np.array(
        list(rlox.policy_ratio_stats(a, b, m, advantages=b).values())
    ),
    "compute_group_advantages": lambda a, b, m: rlox.compute_group_advantages(
        a, weights=np.asarray(b)[0], ddof=1
    ),
    "compute_batch_group_advantages": lambda a, b, m: rlox.compute_batch_group_advantages(
        a, TOKENS
    ),
}


def frozen(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def misaligned(array):
    raw = np.zeros(array.nbytes + 1, np.uint8)
    copy = raw[1:].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


LAYOUTS = {
    "list": lambda x: x.tolist(),
    "read-only": frozen,
    "Fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "misaligned": misaligned,
    "subclass": lambda x: x.view(np.ma.MaskedArray),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_counts_as_its_values(kernel, layout):
    rng = np.random.default_rng(0)
    # Small integers, so that every dtype holds them.
    arrays = [-rng.integers(0, 5, (ROWS, TOKENS)).astype(np.float64) for _ in "ab"]
    mask = rng.random((ROWS, TOKENS)) < 0.6
    call, change = KERNELS[kernel], LAYOUTS[layout]
    expected = call(*arrays, mask)
    np.testing.assert_array_equal(call(*map(change, arrays), change(mask)), expected)
    for dtype in ("i1", "i8", ">i4", ">f8", "g"):
        got = call(*(change(x.astype(dtype)) for x in arrays), change(mask.astype(dtype)))
        np.testing.assert_array_equal(got, expected)
    single = [x.astype(np.float32) for x in arrays]
    if layout not in ("list", "byte-swapped"):
        got = call(*map(change, single), change(mask))
        np.testing.assert_array_equal(got, call(*single, mask))
    if layout != "list":
        got = call(*(change(x.astype(np.float16)) for x in arrays), change(mask))
        assert got.dtype == call(*single, mask).dtype
        np.testing.assert_array_equal(got, call(*single, mask))


class Meddler:
    """Does something else when it is asked for its numbers."""

    def __init__(self, numbers, act):
        self.numbers, self.act = numbers, act

    def __array__(self, dtype=None, copy=None):
        self.act()
        return self.numbers


TWO_ARRAYS = [
    lambda a, b: rlox.token_kl(a, b),
    lambda a, b: rlox.token_kl(a, a.copy(), b),
    lambda a, b: rlox.compute_token_kl(a, b),
    lambda a, b: rlox.compute_token_kl_schulman(a, a.copy(), mask=b),
    lambda a, b: rlox.compute_batch_token_kl(a, b, 500),
    lambda a, b: rlox.policy_ratios(a, b),
    lambda a, b: rlox.policy_ratio_stats(a, a.copy(), advantages=b),
    lambda a, b: rlox.compute_batch_group_advantages(a, 500, weights=b),
]


@pytest.mark.parametrize("call", TWO_ARRAYS)
@pytest.mark.parametrize("dtype", [np.int8, "V8"])
@pytest.mark.parametrize("n", [1000, 100_000])
def test_an_argument_that_changes_another_while_it_is_read_does_no_harm(call, dtype, n):
    first = np.zeros(n)

    def meddle():
        first.dtype = dtype

    with pytest.raises((TypeError, ValueError), match=r"^\w+: expected"):
        call(first, Meddler(np.ones(n), meddle))


@pytest.mark.parametrize("change", ["dtype", "shape", "resize"])
def test_a_sequence_that_changes_another_while_it_is_read_does_no_harm(change):
    sequences = [np.arange(1000) for _ in range(5)]

    def meddle():
        if change == "dtype":
            sequences[0].dtype = np.int8
        elif change == "shape":
            sequences[0].shape = (10, 100)
        else:
            sequences[0].resize(3, refcheck=False)

    sequences.insert(2, Meddler(np.arange(4), meddle))
    if change == "shape":
        with pytest.raises(ValueError, match=r"sequences: .*\[10, 100\] in sequence 0"):
            rlox.pack_sequences(sequences, 8000)
        return
    rows = rlox.pack_sequences(sequences, 8000)
    sources = np.concatenate([row["source_indices"] for row in rows]).tolist()
    lengths = np.concatenate([np.diff(row["cu_seqlens"]) for row in rows]).tolist()
    sizes = dict(zip(sources, lengths, strict=True))
    assert sizes == {0: 8000 if change == "dtype" else 3, 1: 1000, 2: 4, 3: 1000, 4: 1000, 5: 1000}


def outcome(call, *args, **kwargs):
    """What a call gives, or the text of an error that a caller expects."""
    try:
        return call(*args, **kwargs)
    except (TypeError, ValueError, MemoryError) as error:
        return str(error)


def test_threads_that_change_sequences_meanwhile_do_no_harm():
    sequences = [np.arange(64) for _ in range(20_000)]
    done = threading.Event()

    def meddle():
        rng = np.random.default_rng(0)
        while not done.is_set():
            sequence = sequences[rng.integers(len(sequences))]
            sequence.shape = (8, 8)
            sequence.shape = (64,)

    thread = threading.Thread(target=meddle)
    thread.start()
    try:
        for _ in range(5):
            got = outcome(rlox.pack_sequences, sequences, 256)
            if isinstance(got, str):
                assert got.startswith("sequences: expected")
            else:
                assert sum(len(row["input_ids"]) for row in got) == 64 * 20_000
    finally:
        done.set()
        thread.join()


def test_ctrl_c_ends_a_long_call():
    sequences = [np.arange(4)] * 250_000

    def seconds(times):
        start = time.perf_counter()
        rlox.pack_sequences(sequences * times, 4096)
        return time.perf_counter() - start

    # Sixteen times as long as what is waited for, however busy the machine is.
    timer = threading.Timer(seconds(1) / 10, _thread.interrupt_main)
    start = time.perf_counter()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        seconds(16)
    stopped = time.perf_counter()
    timer.join()
    assert stopped - start < seconds(16) / 2


def refuse():
    raise RuntimeError("no numbers today")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: rlox.token_kl(x, [0.0]), "log_probs"),
        (lambda x: rlox.token_kl([0.0], x), "ref_log_probs"),
        (lambda x: rlox.token_kl([0.0], [0.0], x), "mask"),
        (lambda x: rlox.compute_token_kl(x, [0.0]), "log_probs_policy"),
        (lambda x: rlox.compute_batch_token_kl_f32([0.0], x, 1), "log_probs_ref"),
        (lambda x: rlox.policy_ratios([0.0], x), "old_log_probs"),
        (lambda x: rlox.policy_ratio_stats([0.0], [0.0], advantages=x), "advantages"),
        (lambda x: rlox.compute_group_advantages(x), "rewards"),
        (lambda x: rlox.compute_group_advantages([[0.0]], weights=x), "weights"),
        (lambda x: rlox.pack_sequences([[1], x], 4), "sequences"),
        (lambda x: rlox.pack_lengths(x, 4), "lengths"),
    ],
)
def test_what_has_no_numbers_is_named(call, name):
    with pytest.raises(ValueError, match=f"^{name}: .*no numbers today"):
        call(Meddler(None, refuse))
    none = [] if name == "rewards" else [[None]]  # a missing reward
    for wrong in (Meddler(7, lambda: None), {}, "abc", *none, [object()], 1j, np.array(["x"])):
        with pytest.raises((TypeError, ValueError), match=f"^{name}: expected"):
            call(wrong)


class NoNumber:
    def __float__(self):
        raise ValueError("not today")

    __index__ = __float__


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: rlox.compute_group_advantages([0.0], eps=x), "eps"),
        (lambda x: rlox.compute_group_advantages([0.0], ddof=x), "ddof"),
        (lambda x: rlox.compute_batch_group_advantages([0.0], x), "group_size"),
        (lambda x: rlox.policy_ratio_stats([0.0], [0.0], clip_low=x), "clip_low"),
        (lambda x: rlox.policy_ratio_stats([0.0], [0.0], clip_high=x), "clip_high"),
        (lambda x: rlox.compute_batch_token_kl([0.0], [0.0], x), "seq_len"),
        (lambda x: rlox.pack_sequences([[0]], x), "max_length"),
        (lambda x: rlox.pack_lengths([0], x), "max_length"),
    ],
)
def test_numbers_that_are_none_are_named(call, name):
    for wrong in (NoNumber(), "1", [1], 1j):
        with pytest.raises(TypeError, match=f"^{name}: expected"):
            call(wrong)


def test_what_no_memory_holds_is_refused():
    huge = np.broadcast_to(np.float32(0), (2**46,))
    for call in (
        lambda: rlox.token_kl(huge, huge),
        lambda: rlox.compute_group_advantages(huge),
        lambda: rlox.pack_sequences([huge.view(np.int32)], 2**62),
        lambda: rlox.pack_sequences([huge.view(np.int32)], 4, overflow="truncate"),
        lambda: rlox.pack_lengths(huge.view(np.int32), 4),
        lambda: rlox.pack_lengths([2**62, 2**62], 2**63 - 1),
    ):
        with pytest.raises(MemoryError):
            call()


LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["k3", "none", "", 2**62, -1, 2**64, b"x", 1j, np.float32, object()])
    | st.builds(
        np.zeros,
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
        st.sampled_from(["f4", "f8", ">f8", "f2", "i8", "u1", "?", "c8", "O", "U3", "M8[s]"]),
    )
)
HOSTILE = LEAF | st.lists(LEAF | st.lists(LEAF, max_size=3), max_size=4)
PREFIXES = ("compute_group", "compute_batch_group", "compute_token", "compute_batch_token")
NAMES = [
    name
    for name in rlox.__all__
    if name.startswith((*PREFIXES, "token_kl", "policy_ratio", "pack_"))
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@settings(max_examples=60)
@given(data=st.data())
def test_any_arguments_give_a_result_or_an_error_that_callers_expect(name, data):
    function = getattr(rlox, name)
    keywords = {
        parameter: data.draw(HOSTILE, label=parameter)
        for parameter, about in inspect.signature(function).parameters.items()
        if about.default is about.empty or data.draw(st.booleans())
    }
    got = outcome(function, **keywords)
    assert not isinstance(got, str) or any(parameter in got for parameter in keywords), got
