"""Calls of advantage and language-model kernels that are rejected."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlox
from rlox import ArgumentError, ArgumentTypeError, OutOfMemoryError
from support.refusals import Refusal, expect_refusal, refusals

TWO, THREE, ENDS = np.ones(2), np.ones(3), np.zeros(3, bool)
HUGE = np.broadcast_to(np.float32(0), (2**46,))


@refusals(
    (
        "GAE final_values without truncated",
        lambda: rlox.compute_gae(TWO, TWO, [0, 1], 0.0, final_values=TWO),
        ArgumentError,
        "truncated",
    ),
    (
        "GAE final_values with terminated only",
        lambda: rlox.compute_gae(TWO, TWO, None, 0.0, terminated=[0, 1], final_values=TWO),
        ArgumentError,
        "truncated",
    ),
    (
        "V-trace final_values without truncated",
        lambda: rlox.compute_vtrace(TWO, TWO, TWO, [0, 1], 0.0, 0.9, final_values=TWO),
        ArgumentError,
        "truncated",
    ),
    (
        "returns final_values without truncated",
        lambda: rlox.compute_returns(TWO, [0, 1], 0.0, final_values=TWO),
        ArgumentError,
        "truncated",
    ),
    (
        "lambda returns final_values without truncated",
        lambda: rlox.compute_lambda_returns(TWO, TWO, [0, 1], 0.0, final_values=TWO),
        ArgumentError,
        "truncated",
    ),
    (
        "values",
        lambda: rlox.compute_gae(TWO, [0], [0, 0], 0.0, 0.99, 0.95),
        ArgumentError,
        "values",
    ),
    ("gamma=1.5", lambda: rlox.compute_gae(TWO, TWO, [0, 0], 0.0, 1.5), ArgumentError, "gamma"),
    (
        "gamma=10**400",
        lambda: rlox.compute_gae(TWO, TWO, [0, 0], 0.0, 10**400),
        ArgumentError,
        "gamma",
    ),
    (
        "ragged rewards",
        lambda: rlox.compute_group_advantages([[1.0, 2.0]] * 270_000 + [[1.0]]),
        ArgumentError,
        "rewards",
    ),
    (
        "group_size=0",
        lambda: rlox.compute_batch_group_advantages([1.0, 2.0], 0),
        ArgumentError,
        "group_size",
    ),
    (
        "n_steps=0",
        lambda: rlox.compute_gae_batched(THREE, THREE, ENDS, [0.0], n_steps=0),
        ArgumentError,
        "n_steps",
    ),
    (
        "seq_len=0",
        lambda: rlox.compute_batch_token_kl(THREE, THREE, seq_len=0),
        ArgumentError,
        "seq_len",
    ),
    ("token_kl", lambda: rlox.token_kl(HUGE, HUGE), OutOfMemoryError, "log_probs"),
    ("group", lambda: rlox.compute_group_advantages(HUGE), OutOfMemoryError, "rewards"),
    (
        "pack_sequences",
        lambda: rlox.pack_sequences([HUGE.view(np.int32)], 2**62),
        OutOfMemoryError,
        "max_length",
    ),
    (
        "pack_sequences truncated",
        lambda: rlox.pack_sequences([HUGE.view(np.int32)], 4, overflow="truncate"),
        OutOfMemoryError,
        "sequences",
    ),
    (
        "pack_lengths",
        lambda: rlox.pack_lengths(HUGE.view(np.int32), 4),
        OutOfMemoryError,
        "lengths",
    ),
    (
        "sum of lengths",
        lambda: rlox.pack_lengths([2**62, 2**62], 2**63 - 1),
        OutOfMemoryError,
        "max_length",
    ),
)
def test_kernel_rejects_invalid_arguments(refusal):
    expect_refusal(refusal)


@pytest.mark.parametrize("dtype", ["c8", "U1", "O"])
def test_empty_arrays_of_other_kinds_are_rejected(dtype):
    call = lambda: rlox.compute_returns([1.0], [True], 0.0, 0.9, final_values=np.array([], dtype))  # noqa: E731
    expect_refusal(Refusal("", call, ArgumentTypeError, "final_values"))
    assert rlox.compute_group_advantages([]).shape == (0,)


def endless(dtype):
    """Return an array of which no copy fits into memory."""
    return np.broadcast_to(np.zeros((), dtype), 2**48)


CUT = {"terminated": ENDS, "truncated": ENDS}
SHAPES = {
    "GAE values": lambda x: rlox.compute_gae(THREE, x, ENDS, 0.0),
    "GAE last_value": lambda x: rlox.compute_gae(THREE, THREE, ENDS, x),
    "GAE dones": lambda x: rlox.compute_gae(THREE, THREE, x, 0.0),
    "GAE final_values": lambda x: rlox.compute_gae(THREE, THREE, None, 0.0, **CUT, final_values=x),
    "returns truncated": lambda x: rlox.compute_returns(
        THREE, None, 0.0, **(CUT | {"truncated": x})
    ),
    "V-trace log_rhos": lambda x: rlox.compute_vtrace(x, THREE, THREE, ENDS, 0.0, 0.9),
    "V-trace bootstrap_value": lambda x: rlox.compute_vtrace(THREE, THREE, THREE, ENDS, x, 0.9),
    "group weights": lambda x: rlox.compute_group_advantages(np.ones((3, 2)), weights=x),
    "KL ref_log_probs": lambda x: rlox.token_kl(THREE, x),
    "KL mask": lambda x: rlox.token_kl(THREE, THREE, mask=x),
    "ratios old_log_probs": lambda x: rlox.policy_ratios(THREE, x),
    "lambda returns values": lambda x: rlox.compute_lambda_returns(THREE, x, ENDS, 0.0),
    "lambda returns dones": lambda x: rlox.compute_lambda_returns(THREE, THREE, x, 0.0),
    "lambda returns last_value": lambda x: rlox.compute_lambda_returns(THREE, THREE, ENDS, x),
    "flat GAE values": lambda x: rlox.compute_gae_batched(THREE, x, ENDS, THREE[:1], 3),
    "flat GAE dones": lambda x: rlox.compute_gae_batched(THREE, THREE, x, THREE[:1], 3),
}


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "u8", "?"])
@pytest.mark.parametrize("name", SHAPES)
def test_wrong_shape_is_rejected_before_a_copy_is_made(name, dtype):
    with pytest.raises((ArgumentError, ArgumentTypeError)) as raised:
        SHAPES[name](endless(dtype))
    assert raised.value.argument.partition("/")[0] in (name.split()[-1], "rewards")


def test_advantages_of_a_wrong_shape_are_rejected_before_a_copy_is_made():
    call = lambda: rlox.policy_ratio_stats(THREE, THREE, advantages=endless("f8"))  # noqa: E731
    expect_refusal(Refusal("", call, ArgumentError, "advantages"))


@refusals(
    ("actions", lambda env: env.step(endless("f8")), OutOfMemoryError, "actions"),
    ("lengths", lambda env: rlox.pack_lengths(endless("u8"), 8), OutOfMemoryError, "lengths"),
)
def test_array_of_which_no_copy_fits_is_rejected(refusal):
    env = rlox._rlox.NativeVectorEnv("Pendulum-v1", 3, 0)
    env.reset()
    expect_refusal(refusal, env)


DEEP = {
    "actions": ["Pendulum-v1", "CartPole-v1"],
    "rewards": [
        lambda x: rlox.compute_gae(x, x, x, 0.0),
        lambda x: rlox.compute_vtrace(x, x, x, x, 0.0, 0.9),
        rlox.compute_group_advantages,
    ],
    "mask": [lambda x: rlox.token_kl([0.0], [0.0], mask=x)],
    "log_probs": [lambda x: rlox.policy_ratios(x, x), lambda x: rlox.policy_ratios(x[::-1], x)],
    "x": [rlox.RunningMeanStd(()).update],
    "obs": [rlox.Normalizer(1, (1,)).normalize_obs],
}


@pytest.mark.parametrize("rows", [1, 10_000])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "u1", "?", "f2", "O"])
def test_array_of_more_than_32_axes_is_rejected(dtype, rows):
    deep = np.zeros((rows, *[1] * 40), dtype)
    for name, calls in DEEP.items():
        for call in calls:
            if isinstance(call, str):
                env = rlox._rlox.NativeVectorEnv(call, 1, 0)
                env.reset()
                call = env.step
            expect_refusal(Refusal("", call, ArgumentError, name), deep)


class Numbers:
    """Calls a function when an array is made of it."""

    def __init__(self, numbers, act):
        self.numbers, self.act = numbers, act

    def __array__(self, dtype=None, copy=None):
        self.act()
        return self.numbers


def fail():
    raise RuntimeError("no numbers today")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        pytest.param(call, name, id=f"{number}-{name}")
        for number, (call, name) in enumerate(
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
            ]
        )
    ],
)
def test_object_that_is_no_array_is_rejected(call, name):
    none = [] if name == "rewards" else [[None]]  # a missing reward
    broken = [Numbers(None, fail), Numbers(7, lambda: None)]
    for wrong in (*broken, {}, "abc", *none, [object()], 1j, np.array(["x"])):
        with pytest.raises((ArgumentError, ArgumentTypeError)) as raised:
            call(wrong)
        assert raised.value.argument == name


class NoNumber:
    def __float__(self):
        raise ValueError("not today")

    __index__ = __float__


@refusals(
    *(
        (f"{name} of {row}", call, ArgumentTypeError, name)
        for row, (name, call) in enumerate(
            [
                ("eps", lambda x: rlox.compute_group_advantages([0.0], eps=x)),
                ("ddof", lambda x: rlox.compute_group_advantages([0.0], ddof=x)),
                ("group_size", lambda x: rlox.compute_batch_group_advantages([0.0], x)),
                ("clip_low", lambda x: rlox.policy_ratio_stats([0.0], [0.0], clip_low=x)),
                ("clip_high", lambda x: rlox.policy_ratio_stats([0.0], [0.0], clip_high=x)),
                ("seq_len", lambda x: rlox.compute_batch_token_kl([0.0], [0.0], x)),
                ("max_length", lambda x: rlox.pack_sequences([[0]], x)),
                ("max_length", lambda x: rlox.pack_lengths([0], x)),
            ]
        )
    ),
)
def test_object_that_is_no_number_is_rejected(refusal):
    for wrong in (NoNumber(), "1", [1], 1j):
        expect_refusal(refusal, wrong)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, MemoryError])
def test_error_that_no_argument_causes_is_raised_unchanged(raised):
    def fail(self, *args, **kwargs):
        raise raised

    special = ("__array__", "__index__", "__float__", "__len__", "__getitem__")
    wrong = type("Raising", (), dict.fromkeys(special, fail))()
    env = rlox.VecEnv(2, 0)
    env.reset()
    zeros, native = np.zeros(2), env._native
    calls = [
        lambda: env.step(wrong),
        lambda: rlox.compute_gae(wrong, zeros, zeros, 0.0),
        lambda: rlox.compute_gae(zeros, zeros, [wrong, 0], 0.0),
        lambda: rlox.compute_gae(zeros, zeros, zeros, 0.0, wrong),
        lambda: rlox.RolloutBuffer(wrong, 2, (4,)),
        lambda: rlox.RunningMeanStd(2).update(wrong),
        lambda: rlox.RunningMeanStd([wrong]),
        lambda: rlox.compute_gae(zeros, zeros, zeros, 0.0, out=wrong),
        lambda: native.reset(wrong),
        lambda: native.reset([wrong, 0]),
        lambda: native.reset(options={"low": wrong}),
        lambda: rlox._rlox.NativeVectorEnv("CartPole-v1", 2, wrong),
        lambda: rlox.VecEnv(2, max_episode_steps=wrong),
        lambda: rlox.VecEnv(2, env_id="Pendulum-v1", g=wrong),
        lambda: native.set_rng_states(wrong),
        lambda: rlox.compute_group_advantages([None, wrong]),
    ]
    for call in calls:
        with pytest.raises(raised):
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
PREFIXES += ("token_kl", "policy_ratio", "pack_")
KERNELS = [name for name in rlox.__all__ if name.startswith(PREFIXES)]


def expect_result_or_error(name, data):
    """Call a kernel with arbitrary arguments, and check that an error names one of them."""
    function = getattr(rlox, name)
    keywords = {
        parameter: data.draw(HOSTILE, label=parameter)
        for parameter, about in inspect.signature(function).parameters.items()
        if about.default is about.empty or data.draw(st.booleans())
    }
    text = ""
    try:
        function(**keywords)
    except (TypeError, ValueError, MemoryError) as error:
        text = str(error)
    assert not text or any(parameter in text for parameter in keywords), text


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@settings(max_examples=5)
@given(data=st.data())
def test_arbitrary_arguments_give_a_result_or_a_documented_error(name, data):
    expect_result_or_error(name, data)


@pytest.mark.hostile
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@settings(max_examples=60)
@given(data=st.data())
def test_many_arbitrary_arguments_give_a_result_or_a_documented_error(name, data):
    expect_result_or_error(name, data)
