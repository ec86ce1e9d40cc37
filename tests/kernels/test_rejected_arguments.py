"""Advantage and language-model kernels reject invalid calls."""

import numpy as np
import pytest

import rlox
from rlox import ArgumentError, ArgumentTypeError, OutOfMemoryError
from support.rejections import Rejection, expect_rejection, rejections

TWO, THREE, DONES = np.ones(2), np.ones(3), np.zeros(3, bool)
HUGE = np.broadcast_to(np.float32(0), (2**46,))
HUGE_INTEGERS = HUGE.view(np.int32)
EMPTY = np.array([], "c8")
FINAL = {"final_values": TWO}


@rejections(
    (lambda: rlox.compute_gae(TWO, TWO, [0, 1], 0.0, **FINAL), ArgumentError, "truncated"),
    (lambda: rlox.compute_gae(TWO, TWO, None, 0.0, terminated=[0, 1], **FINAL), *(ArgumentError, "truncated")),
    (lambda: rlox.compute_vtrace(TWO, TWO, TWO, [0, 1], 0.0, 0.9, **FINAL), *(ArgumentError, "truncated")),
    (lambda: rlox.compute_returns(TWO, [0, 1], 0.0, **FINAL), ArgumentError, "truncated"),
    (lambda: rlox.compute_lambda_returns(TWO, TWO, [0, 1], 0.0, **FINAL), *(ArgumentError, "truncated")),
    (lambda: rlox.compute_returns([1.0], [True], 0.0, final_values=EMPTY), *(ArgumentTypeError, "final_values")),
    (lambda: rlox.compute_gae(TWO, [0], [0, 0], 0.0), ArgumentError, "values"),
    (lambda: rlox.compute_gae(TWO, TWO, [0, 0], 0.0, 1.5), ArgumentError, "gamma"),
    (lambda: rlox.compute_gae(TWO, TWO, [0, 0], 0.0, 10**400), ArgumentError, "gamma"),
    (lambda: rlox.compute_group_advantages([[1.0, 2.0]] * 270_000 + [[1.0]]), *(ArgumentError, "rewards")),
    (lambda: rlox.compute_batch_group_advantages([1.0, 2.0], 0), ArgumentError, "group_size"),
    (lambda: rlox.compute_gae_batched(THREE, THREE, DONES, [0.0], n_steps=0), *(ArgumentError, "n_steps")),
    (lambda: rlox.compute_batch_token_kl(THREE, THREE, seq_len=0), ArgumentError, "seq_len"),
    (lambda: rlox.token_kl(HUGE, HUGE), OutOfMemoryError, "log_probs"),
    (lambda: rlox.compute_group_advantages(HUGE), OutOfMemoryError, "rewards"),
    (lambda: rlox.pack_sequences([HUGE_INTEGERS], 2**62), OutOfMemoryError, "max_length"),
    (lambda: rlox.pack_sequences([HUGE_INTEGERS], 4, overflow="truncate"), *(OutOfMemoryError, "sequences")),
    (lambda: rlox.pack_lengths(HUGE_INTEGERS, 4), OutOfMemoryError, "lengths"),
    (lambda: rlox.pack_lengths([2**62, 2**62], 2**63 - 1), OutOfMemoryError, "max_length"),
    (lambda: rlox.policy_ratio_stats(THREE, THREE, advantages=huge("f8")), *(ArgumentError, "advantages")),
    (lambda: rlox.compute_group_advantages(np.ones((3, 2)), weights=huge("f4")), *(ArgumentError, "weights")),
)
def test_kernel_rejects_invalid_arguments(rejection):
    expect_rejection(rejection)


def huge(dtype):
    """Return an array whose copy does not fit into memory."""
    return np.broadcast_to(np.zeros((), dtype), 2**48)


NO_LIMITS = {"terminated": DONES, "truncated": DONES}
SHAPES = (
    ("values", lambda x: rlox.compute_gae(THREE, x, DONES, 0.0)),
    ("last_value", lambda x: rlox.compute_gae(THREE, THREE, DONES, x)),
    ("dones", lambda x: rlox.compute_gae(THREE, THREE, x, 0.0)),
    ("final_values", lambda x: rlox.compute_gae(THREE, THREE, None, 0.0, **NO_LIMITS, final_values=x)),
    ("truncated", lambda x: rlox.compute_returns(THREE, None, 0.0, **(NO_LIMITS | {"truncated": x}))),
    ("log_rhos", lambda x: rlox.compute_vtrace(x, THREE, THREE, DONES, 0.0, 0.9)),
    ("bootstrap_value", lambda x: rlox.compute_vtrace(THREE, THREE, THREE, DONES, x, 0.9)),
    ("ref_log_probs", lambda x: rlox.token_kl(THREE, x)),
    ("mask", lambda x: rlox.token_kl(THREE, THREE, mask=x)),
    ("old_log_probs", lambda x: rlox.policy_ratios(THREE, x)),
    ("values", lambda x: rlox.compute_lambda_returns(THREE, x, DONES, 0.0)),
    ("values", lambda x: rlox.compute_gae_batched(THREE, x, DONES, THREE[:1], 3)),
)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "?"])
@pytest.mark.parametrize(("argument", "call"), SHAPES, ids=[f"{i}-{row[0]}" for i, row in enumerate(SHAPES)])
def test_wrong_shape_is_rejected_before_a_copy(argument, call, dtype):
    with pytest.raises((ArgumentError, ArgumentTypeError)) as raised:
        call(huge(dtype))
    assert raised.value.argument == argument


@rejections(
    (lambda env: env.step(huge("f8")), OutOfMemoryError, "actions"),
    (lambda env: rlox.pack_lengths(huge("u8"), 8), OutOfMemoryError, "lengths"),
)
def test_array_too_large_to_copy_is_rejected(rejection):
    env = rlox._rlox.NativeVectorEnv("Pendulum-v1", 3, 0)
    env.reset()
    expect_rejection(rejection, env)


DEEP_CALLS = {
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
@pytest.mark.parametrize("dtype", ["f8", "f4", "u1", "O"])
def test_array_of_more_than_32_axes_is_rejected(dtype, rows):
    deep = np.zeros((rows, *[1] * 40), dtype)
    for name, calls in DEEP_CALLS.items():
        for call in calls:
            if isinstance(call, str):
                env = rlox._rlox.NativeVectorEnv(call, 1, 0)
                env.reset()
                call = env.step
            expect_rejection(Rejection(call, ArgumentError, name), deep)


class ArrayLike:
    """Call a function when NumPy converts the object to an array."""

    def __init__(self, numbers, act):
        self.numbers, self.act = numbers, act

    def __array__(self, dtype=None, copy=None):
        self.act()
        return self.numbers


def fail():
    raise RuntimeError("no numbers today")


NO_ARRAYS = (
    ("log_probs", lambda x: rlox.token_kl(x, [0.0])),
    ("mask", lambda x: rlox.token_kl([0.0], [0.0], x)),
    ("log_probs_ref", lambda x: rlox.compute_batch_token_kl_f32([0.0], x, 1)),
    ("old_log_probs", lambda x: rlox.policy_ratios([0.0], x)),
    ("rewards", lambda x: rlox.compute_group_advantages(x)),
    ("sequences", lambda x: rlox.pack_sequences([[1], x], 4)),
    ("lengths", lambda x: rlox.pack_lengths(x, 4)),
)


@pytest.mark.parametrize(("name", "call"), NO_ARRAYS, ids=[name for name, _ in NO_ARRAYS])
def test_kernel_rejects_objects_that_are_not_arrays(name, call):
    none = [] if name == "rewards" else [[None]]  # a missing reward
    broken = [ArrayLike(None, fail), ArrayLike(7, lambda: None)]
    for wrong in (*broken, {}, "abc", *none, [object()], 1j, np.array(["x"])):
        with pytest.raises((ArgumentError, ArgumentTypeError)) as raised:
            call(wrong)
        assert raised.value.argument == name


class NotANumber:
    def __float__(self):
        raise ValueError("not today")

    __index__ = __float__


@rejections(
    (lambda x: rlox.compute_group_advantages([0.0], eps=x), ArgumentTypeError, "eps"),
    (lambda x: rlox.compute_batch_group_advantages([0.0], x), ArgumentTypeError, "group_size"),
    (lambda x: rlox.policy_ratio_stats([0.0], [0.0], clip_high=x), ArgumentTypeError, "clip_high"),
)
def test_kernel_rejects_objects_that_are_not_numbers(rejection):
    for wrong in (NotANumber(), "1", [1], 1j):
        expect_rejection(rejection, wrong)


@pytest.mark.parametrize("error_type", [KeyboardInterrupt, SystemExit, MemoryError])
def test_interrupts_and_memory_errors_are_raised_unchanged(error_type):
    def fail(self, *args, **kwargs):
        raise error_type

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
        with pytest.raises(error_type):
            call()
