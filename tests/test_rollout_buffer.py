"""`RolloutBuffer`: flags, dtypes, non-finite numbers and invalid arguments."""

import numpy as np
import pytest

from rlox import Normalizer, RolloutBuffer, VecEnv

NAN, INF = float("nan"), float("inf")


def filled(buffer, n_envs, obs_shape=(4,)):
    """Begun and filled with rewards of 1 and values of 0.5, nothing ended."""
    steps, zeros, obs = buffer.n_steps, np.zeros(n_envs), np.zeros((n_envs, *obs_shape), np.float32)
    buffer.begin(obs)
    for t in range(steps):
        never = np.zeros(n_envs, bool)
        buffer.record(t, zeros.astype(int), zeros, zeros + 0.5, obs, zeros + 1, never, never)
    return buffer


@pytest.mark.parametrize("n_envs", [1, 8, 16, 64])
@pytest.mark.parametrize("byte", [1, 2, 3, 128, 255])
def test_flags_of_any_byte_but_zero_are_true(n_envs, byte):
    buffer = filled(RolloutBuffer(3, n_envs, (4,)), n_envs)
    buffer.terminated.view(np.uint8)[0] = byte
    buffer.finish(np.ones(n_envs), 0.9, 0.9)
    # The episode ends with the first step: 1 - 0.5, whatever follows.
    assert np.array_equal(buffer.advantages[0], np.full(n_envs, 0.5, np.float32))
    buffer.terminated[0] = False
    buffer.finish(np.ones(n_envs), 0.0, 0.9)
    went_on = buffer.advantages.copy()
    buffer.truncated.view(np.uint8)[1] = byte
    buffer.finish(np.ones(n_envs), 0.0, 0.9)
    assert np.array_equal(buffer.advantages, went_on)
    buffer.finish(np.ones(n_envs), 0.9, 0.9)
    # Cut after the second step, and nothing was said of a final value: 1 - 0.5 there.
    assert np.array_equal(buffer.advantages[1], np.full(n_envs, 0.5, np.float32))


@pytest.mark.parametrize("n_envs", [1, 70])
def test_arrays_for_flags_are_overwritten_with_zeros_and_ones(n_envs):
    env, twin = (VecEnv(n_envs, 0) for _ in "ab")
    env.reset(), twin.reset()
    flags = [np.full(n_envs, 7, np.uint8).view(bool) for _ in "ab"]
    out = np.empty((n_envs, 4), np.float32), np.empty(n_envs)
    actions = np.ones(n_envs, np.int64)
    for _ in range(12):
        env.step_into(actions, *out, *flags)
        _, _, *expected, _ = twin.step(actions)
        assert all(np.array_equal(a, b) for a, b in zip(flags, expected, strict=True))
        assert all(flag.view(np.uint8).max() <= 1 for flag in flags)


def answer(**replaced):
    """Arguments of `record` for two environments, right but for those replaced."""
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
    return {**right, **replaced}


def spoilt(row, column, number):
    array = np.ones((2, 4))
    array[row, column] = number
    return array


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"log_probs": [0.0, NAN]}, "log_probs: .*finite.*NaN in environment 1 at step 1"),
        ({"log_probs": [-INF, 0.0]}, "log_probs: .*finite.*-inf in environment 0 at step 1"),
        ({"values": [0.0, INF]}, "values: .*finite.*inf in environment 1 at step 1"),
        ({"next_obs": spoilt(1, 2, NAN)}, "next_obs: .*finite.*NaN in environment 1 at step 1"),
        ({"rewards": [NAN, 0.0]}, "rewards: .*finite.*NaN in environment 0 at step 1"),
        ({"rewards": [0.0, 1e300]}, "rewards: .*finite in f32.*in environment 1 at step 1"),
        ({"final_obs": spoilt(1, 0, NAN)}, "final_obs: .*finite.*NaN in environment 1 at step 1"),
    ],
)
def test_non_finite_numbers_are_rejected_by_name_environment_and_step(wrong, words):
    buffer, twin = RolloutBuffer(2, 2, (4,)), RolloutBuffer(2, 2, (4,))
    for each in (buffer, twin):
        each.begin(np.zeros((2, 4)))
        each.record(0, **answer())
    with pytest.raises(ValueError, match=words):
        buffer.record(1, **answer(**wrong))
    assert buffer.next_step == 1
    for each in (buffer, twin):
        each.record(1, **answer(final_obs=spoilt(0, 0, NAN)))  # a row that is not read
        each.finish([0.0, 1.0], 0.9, 0.9, [1.0, 2.0])
    assert np.array_equal(buffer.advantages, twin.advantages)
    assert np.array_equal(buffer.final_obs, twin.final_obs)


def test_continuous_actions_and_values_behind_the_end_must_be_finite():
    buffer = RolloutBuffer(1, 2, (4,), (3,), action_dtype="float32")
    buffer.begin(np.zeros((2, 4)))
    actions = np.zeros((2, 3))
    actions[1, 0] = INF
    with pytest.raises(ValueError, match=r"actions: .*inf in environment 1 at step 0"):
        buffer.record(0, **answer(actions=actions))
    buffer.record(0, **answer(actions=np.zeros((2, 3))))
    with pytest.raises(ValueError, match=r"last_values: .*NaN in environment 1"):
        buffer.finish([0.0, NAN], 0.9, 0.9, [0.0])
    with pytest.raises(ValueError, match=r"final_values: .*NaN in environment 1 at step 0"):
        buffer.finish([0.0, 0.0], 0.9, 0.9, [NAN])


def test_initial_states_beyond_float32_are_rejected():
    env = VecEnv(2, 0, "Pendulum-v1")
    with pytest.raises(ValueError, match=r"options: .*finite in f32.*y_init 1"):
        env.reset(options={"y_init": 1e300})


KINDS = ["float32", "float64", "int64", "uint8", "bool"]


@pytest.mark.parametrize("dtype", KINDS)
def test_observations_of_every_dtype_are_stored(dtype):
    rng, shape = np.random.default_rng(0), (2, 6, 6, 3)
    frames = [rng.integers(0, 2 if dtype == "bool" else 256, shape).astype(dtype) for _ in "abcde"]
    if dtype.startswith("float"):
        frames = [frame + np.dtype(dtype).type(0.1) for frame in frames]
    buffer = RolloutBuffer(3, 2, shape[1:], obs_dtype=dtype)
    for _ in range(2):
        buffer.begin(frames[0])
        for t in range(3):
            cut = [False, t == 1]
            said = [0, 1], [-1.0, -2.0], [0.5, 0.25]
            finals = frames[4] if t == 1 else None
            buffer.record(t, *said, frames[t + 1], [1.0, 2.0], [False] * 2, cut, finals)
        buffer.finish([0.0, 0.0], 0.9, 0.9, [4.0])
    assert buffer.obs.dtype == buffer.last_obs.dtype == buffer.final_obs.dtype == np.dtype(dtype)
    assert np.array_equal(buffer.obs, frames[:3])
    assert np.array_equal(buffer.last_obs, frames[3])
    assert np.array_equal(buffer.final_obs, frames[4][1:])
    assert np.allclose(buffer.returns[1, 1], 2 + 0.9 * 4)


@pytest.mark.parametrize(
    ("dtype", "obs", "error", "words"),
    [
        ("uint8", [[256, 0]], ValueError, r"obs: expected integers in \[0, 255\], got 256"),
        ("uint8", [[0, -1]], ValueError, r"obs: expected integers in \[0, 255\], got -1"),
        ("uint8", [[0.5, 0.0]], TypeError, "obs: .*integers.*float64"),
        ("uint8", np.array([[2**63, 0]], np.uint64), ValueError, "obs: .*9223372036854775808"),
        ("int64", [[0.0, 0.0]], TypeError, "obs: .*integers.*float64"),
        ("int64", np.array([[2**63, 0]], np.uint64), ValueError, "obs: .*9223372036854775808"),
        ("bool", [[0, 1]], TypeError, "obs: .*booleans.*int64"),
        ("float64", [[NAN, 0.0]], ValueError, "obs: .*NaN in environment 0"),
    ],
)
def test_observations_that_do_not_fit_the_dtype_are_rejected(dtype, obs, error, words):
    buffer = RolloutBuffer(1, 1, (2,), obs_dtype=dtype)
    with pytest.raises(error, match=words):
        buffer.begin(obs)
    buffer.begin(np.ones((1, 2), dtype))
    said = [0], [0.0], [0.0]
    with pytest.raises(error, match="next_" + words):
        buffer.record(0, *said, obs, [0.0], [False], [False])
    assert buffer.next_step == 0
    assert buffer.obs.all()


def test_integers_within_uint8_are_accepted_and_not_normalised():
    buffer = RolloutBuffer(1, 1, (3,), obs_dtype="uint8")
    buffer.begin([[0, 7, 255]])
    assert buffer.obs.tolist() == [[[0, 7, 255]]]
    buffer.begin(np.array([[0, 7, 9]], np.int8)[:, ::-1])
    assert buffer.obs.tolist() == [[[9, 7, 0]]]
    with pytest.raises(ValueError, match="normalizer: expected F32 observations"):
        buffer.begin([[0, 7, 255]], normalizer=Normalizer(1, (3,)))
    normalizer = Normalizer(1, (3,), obs=False)
    buffer.begin([[0, 7, 255]], normalizer=normalizer)
    said = [0], [0.0], [0.0]
    buffer.record(0, *said, [[1, 2, 3]], [5.0], [False], [False], None, normalizer)
    assert buffer.last_obs.tolist() == [[1, 2, 3]]
    assert buffer.rewards[0, 0] != 5.0


def test_advantages_need_a_finished_rollout():
    buffer = RolloutBuffer(2, 1, (4,))
    refused = pytest.raises(ValueError, match=r"(advantages|returns): .*call finish first")
    for name in ("advantages", "returns"):
        with refused:
            getattr(buffer, name)
    for _ in range(2):
        filled(buffer, 1)
        with refused:
            buffer.advantages  # noqa: B018
        buffer.finish([0.0], 1.0, 1.0)
        assert buffer.returns[:, 0].tolist() == [2, 1]
        assert np.array_equal(buffer.field("advantages"), buffer.advantages)
        with pytest.raises(ValueError, match="last_values"):
            buffer.finish([NAN], 1.0, 1.0)
        assert buffer.advantages[:, 0].tolist() == [1.5, 0.5]  # what was refused changed nothing
    buffer.begin(np.zeros((1, 4)))
    with refused:
        buffer.returns  # noqa: B018


N = 3


def cart(**kwargs):
    return VecEnv(N, 0, "CartPole-v1", **kwargs)


def pendulum(**kwargs):
    return VecEnv(N, 0, "Pendulum-v1", **kwargs)


def buffer(obs_dtype="float32"):
    return RolloutBuffer(2, N, (4,), obs_dtype=obs_dtype)


def normalize(obs):
    return Normalizer(N, (4,)).normalize_obs(obs)


def rollout(env, n=N, **replaced):
    buffer = RolloutBuffer(2, n, (4,))
    env.begin_rollout(buffer)
    said = {"t": 0, "actions": [0] * N, "log_probs": [0.0] * N, "values": [0.0] * N, **replaced}
    env.step_rollout(buffer, **said)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: rollout(cart(), n=4), ValueError, "buffer: .*for 3 env.*for 4 env"),
        (lambda: rollout(pendulum()), ValueError, "buffer: .*observations of 3"),
        (lambda: rollout(cart(), t=1), ValueError, "t: .*0, the next step.*1"),
        (lambda: rollout(cart(), t=-1), ValueError, "t: .*-1"),
        (lambda: rollout(cart(), actions=[0, 0]), ValueError, "actions: "),
        (lambda: rollout(cart(), actions=[0, 0, 2]), ValueError, "actions: .*environment 2"),
        (lambda: rollout(cart(), actions=[0.5] * 3), TypeError, "actions: .*integers"),
        (lambda: rollout(cart(), log_probs=[0.0]), ValueError, "log_probs: .*3.*1"),
        (lambda: rollout(cart(), values=[0.0] * 4), ValueError, "values: .*3.*4"),
        (lambda: rollout(cart(), values="abc"), TypeError, "values: "),
        (lambda: cart().begin_rollout(None), TypeError, "buffer"),
        (lambda: cart().begin_rollout(buffer(), seed=-1), ValueError, "seed: .*-1"),
        (lambda: cart().begin_rollout(buffer(), Normalizer(N, (3,))), ValueError, "obs"),
        (lambda: cart().begin_rollout(buffer("uint8")), ValueError, "obs dtype: .*F32"),
        (lambda: buffer().begin(np.zeros((N, 3))), ValueError, r"obs: .*\[3, 4\].*\[3, 3\]"),
        (
            lambda: buffer().begin(np.full((N, 4), np.nan)),
            ValueError,
            "obs: .*NaN in environment 0",
        ),
        (lambda: normalize(np.zeros((4, N))), ValueError, r"obs: .*\[4\].*\[4, 3\]"),
        (lambda: buffer().finish([0.0] * N, 0.9, 0.9), ValueError, "finish: .*0 of 2"),
        (lambda: buffer().field("rewads"), ValueError, "field: .*rewards.*rewads"),
        (lambda: buffer().rewads, AttributeError, "rewads"),
    ],
)
def test_invalid_rollouts_are_rejected(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


def test_a_rejected_step_does_not_move_environments():
    env, twin = cart(), cart()
    buffers = [RolloutBuffer(2, N, (4,)) for _ in "ab"]
    env.begin_rollout(buffers[0]), twin.begin_rollout(buffers[1])
    zeros = np.zeros(N)
    for wrong in ([0, 0, 2], [0.5] * 3, [0]):
        with pytest.raises((TypeError, ValueError)):
            env.step_rollout(buffers[0], 0, wrong, zeros, zeros)
    for t in range(2):
        env.step_rollout(buffers[0], t, [0, 1, 0], zeros, zeros)
        twin.step_rollout(buffers[1], t, [0, 1, 0], zeros, zeros)
    assert np.array_equal(buffers[0].obs, buffers[1].obs)
    assert np.array_equal(buffers[0].last_obs, buffers[1].last_obs)
