"""`RolloutBuffer`: dtypes, non-finite numbers and invalid arguments."""

import numpy as np
import pytest

from rlox import ArgumentError, ArgumentTypeError, NonFiniteError, Normalizer, OutOfMemoryError, RolloutBuffer, VecEnv
from support.rejections import Rejection, expect_rejection, rejections, rejects

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("num_envs", [1, 8, 16, 64])
@pytest.mark.parametrize("byte", [1, 2, 128, 255])
def test_flags_with_any_nonzero_byte_are_true(num_envs, byte):
    buffer, ones = RolloutBuffer(3, num_envs, (4,)), np.ones(num_envs)
    obs, off = np.zeros((num_envs, 4)), np.zeros(num_envs, bool)
    buffer.begin(obs)
    for t in range(3):
        buffer.record(t, off.astype(int), ones, ones / 2, obs, ones, off, off)
    for name, step in (("terminated", 0), ("truncated", 1)):
        flags = buffer.field(name)
        flags.view(np.uint8)[step] = byte
        buffer.finish(ones, 0.9, 0.9)
        # The episode ends with this step, without a final value: 1 - 0.5.
        assert np.array_equal(buffer.advantages[step], np.full(num_envs, 0.5, np.float32))
        flags[step] = False
        buffer.finish(ones, 0.9, 0.9)
        assert (buffer.advantages[step] > 0.5).all()


@pytest.mark.parametrize("num_envs", [1, 70])
def test_step_into_overwrites_flags_with_zeros_and_ones(num_envs):
    env, twin = (VecEnv(num_envs, 0) for _ in "ab")
    env.reset(), twin.reset()
    flags = [np.full(num_envs, 7, np.uint8).view(bool) for _ in "ab"]
    out = np.empty((num_envs, 4), np.float32), np.empty(num_envs)
    actions = np.ones(num_envs, np.int64)
    for _ in range(12):
        env.step_into(actions, *out, *flags)
        _, _, *expected, _ = twin.step(actions)
        assert all(np.array_equal(a, b) for a, b in zip(flags, expected, strict=True))
        assert all(array.view(np.uint8).max() <= 1 for array in flags)


def record(buffer, t, **replaced):
    """Record a step of two environments; the second episode is truncated."""
    right = {
        "actions": [0, 1],
        "log_probs": [-1.0, -2.0],
        "values": [0.5, 0.25],
        "next_obs": np.ones((2, 4)),
        "rewards": [1.0, 2.0],
        "terminated": [False, False],
        "truncated": [False, True],
        "final_obs": np.full((2, 4), 3.0),
    }
    buffer.record(t, **right | replaced)


def check_location(call, argument, env, row):
    with rejects(NonFiniteError, argument, env=env, row=row):
        call()


def ones_except(row, column, value):
    array = np.ones((2, 4))
    array[row, column] = value
    return array


@pytest.mark.parametrize(
    ("argument", "value", "env"),
    [
        pytest.param("log_probs", [0.0, NAN], 1, id="NaN log_probs"),
        pytest.param("log_probs", [-INF, 0.0], 0, id="infinite log_probs"),
        pytest.param("values", [0.0, INF], 1, id="values"),
        pytest.param("next_obs", ones_except(1, 2, NAN), 1, id="next_obs"),
        pytest.param("rewards", [NAN, 0.0], 0, id="NaN rewards"),
        pytest.param("rewards", [0.0, 1e300], 1, id="rewards beyond float32"),
        pytest.param("final_obs", ones_except(1, 0, NAN), 1, id="final_obs"),
    ],
)
def test_non_finite_numbers_are_rejected_with_environment_and_row(argument, value, env):
    buffer, twin = RolloutBuffer(2, 2, (4,)), RolloutBuffer(2, 2, (4,))
    for x in (buffer, twin):
        x.begin(np.zeros((2, 4)))
        record(x, 0)
    check_location(lambda: record(buffer, 1, **{argument: value}), argument, env, 1)
    assert buffer.next_step == 1
    for x in (buffer, twin):
        record(x, 1, final_obs=ones_except(0, 0, NAN))  # only row 1 is read
        x.finish([0.0, 1.0], 0.9, 0.9, [1.0, 2.0])
    assert np.array_equal(buffer.advantages, twin.advantages)
    assert np.array_equal(buffer.final_obs, twin.final_obs)


def test_continuous_actions_and_values_after_the_rollout_must_be_finite():
    buffer = RolloutBuffer(1, 2, (4,), (3,), action_dtype="float32")
    buffer.begin(np.zeros((2, 4)))
    actions = np.zeros((2, 3))
    actions[1, 0] = INF
    check_location(lambda: record(buffer, 0, actions=actions), "actions", 1, 0)
    record(buffer, 0, actions=np.zeros((2, 3)))
    finish = buffer.finish
    check_location(lambda: finish([0.0, NAN], 0.9, 0.9, [0.0]), "last_values", 1, None)
    check_location(lambda: finish([0.0, 0.0], 0.9, 0.9, [NAN]), "final_values", 1, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
def test_observations_of_every_dtype_are_stored(dtype):
    rng, shape = np.random.default_rng(0), (2, 6, 6, 3)
    frames = [rng.integers(0, 2 if dtype == "bool" else 256, shape).astype(dtype) for _ in "abcde"]
    if dtype.startswith("float"):
        frames = [frame + np.dtype(dtype).type(0.1) for frame in frames]
    buffer = RolloutBuffer(3, 2, shape[1:], obs_dtype=dtype)
    for _ in range(2):
        buffer.begin(frames[0])
        for t in range(3):
            final_obs = frames[4] if t == 1 else None
            record(buffer, t, next_obs=frames[t + 1], truncated=[0, t == 1], final_obs=final_obs)
        buffer.finish([0.0, 0.0], 0.9, 0.9, [4.0])
    assert buffer.obs.dtype == buffer.last_obs.dtype == buffer.final_obs.dtype == np.dtype(dtype)
    assert np.array_equal(buffer.obs, frames[:3])
    assert np.array_equal(buffer.last_obs, frames[3])
    assert np.array_equal(buffer.final_obs, frames[4][1:])
    assert np.allclose(buffer.returns[1, 1], 2 + 0.9 * 4)


HUGE = np.array([[2**63, 0]], np.uint64)


@pytest.mark.parametrize(
    ("dtype", "obs", "error"),
    [
        pytest.param("uint8", [[256, 0]], ArgumentError, id="too large"),
        pytest.param("uint8", [[0, -1]], ArgumentError, id="negative"),
        pytest.param("uint8", [[0.5, 0.0]], ArgumentTypeError, id="floats for uint8"),
        pytest.param("int64", [[0.0, 0.0]], ArgumentTypeError, id="floats for int64"),
        pytest.param("int64", HUGE, ArgumentError, id="uint64 for int64"),
        pytest.param("bool", [[0, 1]], ArgumentTypeError, id="integers for bool"),
        pytest.param("float64", [[NAN, 0.0]], NonFiniteError, id="NaN"),
    ],
)
def test_observations_outside_the_dtype_are_rejected(dtype, obs, error):
    buffer = RolloutBuffer(1, 1, (2,), obs_dtype=dtype)
    expect_rejection(Rejection(buffer.begin, error, "obs"), obs)
    buffer.begin(np.ones((1, 2), dtype))
    arguments = (0, [0], [0.0], [0.0], obs, [0.0], [False], [False])
    expect_rejection(Rejection(buffer.record, error, "next_obs"), *arguments)
    assert buffer.next_step == 0
    assert buffer.obs.all()


def test_integers_within_uint8_are_accepted_and_not_normalised():
    buffer = RolloutBuffer(1, 1, (3,), obs_dtype="uint8")
    buffer.begin([[0, 7, 255]])
    assert buffer.obs.tolist() == [[[0, 7, 255]]]
    buffer.begin(np.array([[0, 7, 9]], np.int8)[:, ::-1])
    assert buffer.obs.tolist() == [[[9, 7, 0]]]
    begin = lambda: buffer.begin([[0, 7, 255]], normalizer=Normalizer(1, (3,)))  # noqa: E731
    expect_rejection(Rejection(begin, ArgumentError, "normalizer"))
    normalizer = Normalizer(1, (3,), obs=False)
    buffer.begin([[0, 7, 255]], normalizer=normalizer)
    buffer.record(0, [0], [0.0], [0.0], [[1, 2, 3]], [5.0], [False], [False], None, normalizer)
    assert buffer.last_obs.tolist() == [[1, 2, 3]]
    assert buffer.rewards[0, 0] != 5.0


def test_advantages_require_a_finished_rollout():
    buffer, obs = RolloutBuffer(2, 1, (4,)), np.zeros((1, 4))

    def check_unfinished():
        for name in ("advantages", "returns"):
            expect_rejection(Rejection(getattr, ArgumentError, name, "call finish first"), buffer, name)

    check_unfinished()
    for _ in range(2):
        buffer.begin(obs)
        for t in range(2):
            buffer.record(t, [0], [0.0], [0.5], obs, [1.0], [False], [False])
        check_unfinished()
        buffer.finish([0.0], 1.0, 1.0)
        assert buffer.returns[:, 0].tolist() == [2, 1]
        assert np.array_equal(buffer.field("advantages"), buffer.advantages)
        with rejects(NonFiniteError, "last_values"):
            buffer.finish([NAN], 1.0, 1.0)
        assert buffer.advantages[:, 0].tolist() == [1.5, 0.5]  # a rejected call changes nothing
    buffer.begin(obs)
    check_unfinished()


def step(env_id="CartPole-v1", num_envs=3, **replaced):
    env, buffer = VecEnv(3, 0, env_id), RolloutBuffer(2, num_envs, (4,))
    env.begin_rollout(buffer)
    zeros = {"actions": [0] * 3, "log_probs": [0.0] * 3, "values": [0.0] * 3}
    env.step_rollout(buffer, **{"t": 0, **zeros, **replaced})


def begin(buffer, *args, **kwargs):
    VecEnv(3, 0).begin_rollout(buffer, *args, **kwargs)


def make_buffer(obs_dtype="float32"):
    return RolloutBuffer(2, 3, (4,), obs_dtype=obs_dtype)


WRONG_NORMALIZER = Normalizer(3, (3,))


@rejections(
    (lambda: step(num_envs=4), ArgumentError, "buffer"),
    (lambda: step("Pendulum-v1"), ArgumentError, "buffer"),
    (lambda: step(t=1), ArgumentError, "t"),
    (lambda: step(actions=[0, 0]), ArgumentError, "actions"),
    (lambda: step(actions=[0, 0, 2]), ArgumentError, "actions"),
    (lambda: step(actions=[0.5] * 3), ArgumentTypeError, "actions"),
    (lambda: step(log_probs=[0.0]), ArgumentError, "log_probs"),
    (lambda: step(values="abc"), ArgumentTypeError, "values"),
    (lambda: begin(None), ArgumentTypeError, "buffer"),
    (lambda: begin(make_buffer(), seed=-1), ArgumentError, "seed"),
    (lambda: begin(make_buffer(), WRONG_NORMALIZER), ArgumentError, "normalizer's obs_shape"),
    (lambda: begin(make_buffer("uint8")), ArgumentError, "obs dtype"),
    (lambda: make_buffer().begin(np.zeros((3, 3))), ArgumentError, "obs"),
    (lambda: make_buffer().begin(np.full((3, 4), NAN)), NonFiniteError, "obs"),
    (lambda: WRONG_NORMALIZER.normalize_obs(np.zeros((4, 4))), ArgumentError, "obs"),
    (lambda: make_buffer().finish([0.0] * 3, 0.9, 0.9), ArgumentError, "finish"),
    (lambda: make_buffer().field("rewads"), ArgumentError, "name"),
    (lambda: make_buffer().rewads, AttributeError, "rewads"),
    (lambda: RolloutBuffer(1000, 100, (4,), extra={"frames": ((2**20, 2), "float64")}), OutOfMemoryError, "extra"),
    (lambda: VecEnv(2, 0, "Pendulum-v1").reset(options={"y_init": 1e300}), ArgumentError, "options"),
)
def test_invalid_rollouts_are_rejected(rejection):
    expect_rejection(rejection)


def test_rejected_steps_do_not_change_environments():
    env, twin, zeros = VecEnv(3, 0), VecEnv(3, 0), np.zeros(3)
    buffers = make_buffer(), make_buffer()
    env.begin_rollout(buffers[0]), twin.begin_rollout(buffers[1])
    for wrong in ([0, 0, 2], [0.5] * 3, [0]):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            env.step_rollout(buffers[0], 0, wrong, zeros, zeros)
    for t in range(2):
        env.step_rollout(buffers[0], t, [0, 1, 0], zeros, zeros)
        twin.step_rollout(buffers[1], t, [0, 1, 0], zeros, zeros)
    assert np.array_equal(buffers[0].obs, buffers[1].obs)
    assert np.array_equal(buffers[0].last_obs, buffers[1].last_obs)
