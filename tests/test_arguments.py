"""Arguments that were taken for something else: each is refused by its name."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import rlox
from rlox import Normalizer, RolloutBuffer, VecEnv
from rlox.learner import EpisodeStatistics

TWO = np.ones(2)
NAN = float("nan")


def aliased():
    r = np.ones(2)
    return rlox.compute_gae(r, TWO, [0, 0], 0.0, out=(r, np.empty(2)))


def begin(**kwargs):
    RolloutBuffer(2, 1, (4,)).begin(np.zeros((1, 4)), **kwargs)


def steps(actions, env_id="CartPole-v1"):
    env = VecEnv(2, 0, env_id)
    env.reset()
    env.step(actions)


def record(t):
    RolloutBuffer(2, 2, (4,)).record(t, TWO, TWO, TWO, np.ones((2, 4)), TWO, TWO, TWO)


def unsigned(order="="):
    env = VecEnv(2, 0)
    env.reset()
    env.step(np.array([1, 2**64 - 1], f"{order}u8"))


TRUNCATED = "truncated: expected flags beside final_values"


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: rlox.compute_gae(TWO, TWO, [0, 1], 0.0, final_values=TWO), ValueError, TRUNCATED),
        (
            lambda: rlox.compute_gae(TWO, TWO, None, 0.0, terminated=[0, 1], final_values=TWO),
            ValueError,
            TRUNCATED,
        ),
        (
            lambda: rlox.compute_vtrace(TWO, TWO, TWO, [0, 1], 0.0, 0.9, final_values=TWO),
            ValueError,
            TRUNCATED,
        ),
        (lambda: rlox.compute_returns(TWO, [0, 1], 0.0, final_values=TWO), ValueError, TRUNCATED),
        (
            lambda: rlox.compute_lambda_returns(TWO, TWO, [0, 1], 0.0, final_values=TWO),
            ValueError,
            TRUNCATED,
        ),
        (aliased, ValueError, r"out\[0\]: .*of its own.*memory that rewards shares"),
        (lambda: begin(fresh=1), TypeError, "fresh: expected True or False, got 1; "),
        (lambda: Normalizer(1, (4,), obs=1), TypeError, "obs: expected True or False, got 1; "),
        (
            lambda: Normalizer(1, (4,), reward="no"),
            TypeError,
            "reward: expected True or False, got 'no'; ",
        ),
        (unsigned, ValueError, r"actions: expected integers in .*got 18446744073709551615; "),
        (lambda: unsigned(">"), ValueError, r"actions: .*got 18446744073709551615; "),
        (
            lambda: steps([0, 2**63]),
            ValueError,
            r"actions: expected integers in .*got 9223372036854775808; ",
        ),
        (lambda: steps([0, 2**70]), ValueError, r"actions: .*got 1180591620717411303424; "),
        (lambda: steps([0.0, 1.0]), TypeError, "actions: expected an array of integers, got dtype"),
        (
            lambda: steps([[1e39], [0]], "Pendulum-v1"),
            ValueError,
            "actions: expected numbers that float32 can hold, got 1e39; ",
        ),
        (
            lambda: VecEnv(1, env_id="Pendulum-v1", g=10**400),
            ValueError,
            "g: expected a number that a float can hold, got 1000.*; pass a smaller one",
        ),
        (
            lambda: rlox.compute_gae(TWO, TWO, [0, 1], 0.0, 10**400),
            ValueError,
            "gamma: expected a number that a float can hold",
        ),
        (
            lambda: VecEnv(1, max_episode_steps="3"),
            TypeError,
            "max_episode_steps: expected a positive integer below .*, got '3'; pass an int",
        ),
        (lambda: VecEnv(1).get_state(), ValueError, "get_state: expected environments that have"),
        (lambda: record(2**70), ValueError, "t: expected an integer below .*, got 1180591620717"),
        (
            lambda: VecEnv(2).reset(options={"reset_masks": np.ones(2, bool)}),
            ValueError,
            'options: .*"reset_masks".* did you mean "reset_mask"',
        ),
        (lambda: RolloutBuffer(True, 1, (4,)), TypeError, "n_steps: expected an integer, got True"),
        (lambda: RolloutBuffer(1, 1, (True,)), TypeError, "obs_shape: .*got True"),
        (lambda: VecEnv(1, max_episode_steps=True), (TypeError, ValueError), "max_episode.*True"),
        (
            lambda: rlox._rlox.NativeVectorEnv("CartPole-v1", 1, max_episode_steps=True),
            TypeError,
            "max_episode_steps: .*True",
        ),
    ],
)
def test_what_an_argument_is_not_is_said_by_its_name(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_unsigned_actions_that_are_in_the_space_are_taken():
    env, twin = VecEnv(3, 0), VecEnv(3, 0)
    env.reset(), twin.reset()
    for order in "=><":
        got = env.step(np.array([1, 0, 1], f"{order}u8"))
        assert np.array_equal(got[0], twin.step([1, 0, 1])[0])


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("returns", [0.0, NAN]),
        ("returns", [float("inf"), 0.0]),
        ("returns", [[0.0, 0.0]]),
        ("obs_mean", np.zeros((2, 2))),
        ("obs_var", np.ones((1, 4))),
        ("obs_count", np.ones((1, 1))),
        ("return_mean", 0.0),
        ("return_var", [[1.0]]),
    ],
)
def test_statistics_of_other_shapes_or_not_finite_are_refused(name, bad):
    normalizer = Normalizer(2, (4,))
    normalizer.update_obs(np.arange(8).reshape(2, 4))
    good = normalizer.state()
    with pytest.raises(ValueError, match=f"{name}: expected"):
        normalizer.load_state(good | {name: bad})
    for key, array in normalizer.state().items():
        assert np.array_equal(array, good[key])


def test_no_finished_episode_goes_uncounted():
    """Only the newest 16,384 are kept between two looks; all of them count."""
    n, episodes = 8192, EpisodeStatistics()
    env = VecEnv(n, 0, max_episode_steps=1)
    env.reset()
    for rounds in (3, 1, 0, 2):
        for _ in range(rounds):
            env.step(np.zeros(n, int))
        before = episodes.count
        episodes.drain(env)
        assert episodes.count - before == rounds * n
    assert len(episodes.returns) == 100
    episodes.drain(SimpleNamespace(drain_episodes=lambda: (np.ones(3), np.ones(3, int))))
    assert episodes.count == 6 * n + 3


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_no_argument_is_to_blame_for_passes_through(raised):
    class Raising:
        def __array__(self, *args, **kwargs):
            raise raised

        def __index__(self):
            raise raised

        def __float__(self):
            raise raised

        def __len__(self):
            raise raised

        def __getitem__(self, key):
            raise raised

    env = rlox.VecEnv(2, 0)
    env.reset()
    zeros, native = np.zeros(2), env._native
    calls = [
        lambda: env.step(Raising()),
        lambda: rlox.compute_gae(Raising(), zeros, zeros, 0.0),
        lambda: rlox.compute_gae(zeros, zeros, [Raising(), 0], 0.0),
        lambda: rlox.compute_gae(zeros, zeros, zeros, 0.0, Raising()),
        lambda: rlox.RolloutBuffer(Raising(), 2, (4,)),
        lambda: rlox.RunningMeanStd(2).update(Raising()),
        lambda: rlox.RunningMeanStd([Raising()]),
        lambda: rlox.compute_gae(zeros, zeros, zeros, 0.0, out=Raising()),
        lambda: native.reset(Raising()),
        lambda: native.reset([Raising(), 0]),
        lambda: native.reset(options={"low": Raising()}),
        lambda: rlox._rlox.NativeVectorEnv("CartPole-v1", 2, Raising()),
        lambda: rlox.VecEnv(2, max_episode_steps=Raising()),
        lambda: rlox.VecEnv(2, env_id="Pendulum-v1", g=Raising()),
        lambda: native.set_rng_states(Raising()),
        lambda: rlox.compute_group_advantages([None, Raising()]),
    ]
    for call in calls:
        with pytest.raises(raised):
            call()


@pytest.mark.parametrize("dtype", ["c8", "U1", "O"])
def test_nothing_is_of_a_kind_too(dtype):
    empty = np.array([], dtype)
    with pytest.raises(TypeError, match="final_values: expected an array of"):
        rlox.compute_returns([1.0], [True], 0.0, 0.9, final_values=empty)
    assert rlox.compute_group_advantages([]).shape == (0,)


DEEP = (1,) * 40


@pytest.mark.parametrize("long", [1, 10_000], ids=["short", "long"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "u1", "?", "f2", "O"])
def test_arrays_of_more_axes_than_32_are_refused_by_name(dtype, long):
    deep = np.zeros((long, *DEEP), dtype)
    torques, poles = VecEnv(1, 0, "Pendulum-v1")._native, VecEnv(1, 0)._native
    torques.reset(), poles.reset()
    calls = {
        "actions": [torques.step, poles.step],
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
    for name, some in calls.items():
        for call in some:
            with pytest.raises(
                ValueError, match=rf"^{name}: expected .* at most 32 axes, got 41 axes"
            ):
                call(deep)


def test_shapes_of_more_axes_than_30_are_refused_by_name():
    for make in (
        rlox.RunningMeanStd,
        lambda obs_shape: rlox.Normalizer(1, obs_shape),
        lambda obs_shape: rlox.RolloutBuffer(1, 1, obs_shape),
        lambda action_shape: rlox.RolloutBuffer(1, 1, (), action_shape),
    ):
        for axes in (31, 70, 20_000):
            with pytest.raises(ValueError, match=rf"shape: expected at most 30 axes, got {axes};"):
                make((1,) * axes)
    assert rlox.RolloutBuffer(1, 1, (1,) * 30).obs.ndim == 32
    assert rlox.RunningMeanStd((1,) * 30).mean.ndim == 30


DTYPES = [
    *("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g"),
    *(">i2", ">i4", ">i8", ">u2", ">u4", ">u8", ">f2", ">f4", ">f8", ">g"),
]
FORMS = {
    "Fortran order": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "negative strides": lambda x: np.ascontiguousarray(np.flip(x))[
        (slice(None, None, -1),) * x.ndim
    ],
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "broadcast": lambda x: np.broadcast_to(x[..., :1], x.shape),
}


def stored(dtype, x):
    """The rows that a buffer of a dtype holds after a rollout observed `x`, (N, ...)."""
    buffer = RolloutBuffer(1, len(x), x.shape[1:], obs_dtype=dtype)
    buffer.begin(x)
    return buffer.obs[0].copy()


def packed(_, x):
    """The tokens of `x`'s first line, packed."""
    (row,) = rlox.pack_sequences([x[(0,) * (x.ndim - 1)]], x.shape[-1])
    return row["input_ids"]


INTEGERS = [dtype for dtype in DTYPES if dtype.lstrip(">")[0] in "iu"]
READ = {
    "float32": (stored, DTYPES),
    "float64": (stored, DTYPES),
    "int64": (stored, INTEGERS),
    "uint8": (stored, INTEGERS),
    "bool": (stored, ["?"]),
    "tokens": (packed, ["i4", "i8", "u4", ">i8"]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", READ)
@settings(max_examples=20)
@given(
    values=arrays(
        "u1", array_shapes(min_dims=2, max_dims=4, max_side=5), elements=st.integers(0, 99)
    )
)
def test_arrays_of_any_strides_have_equal_values(target, form, values):
    read, sources = READ[target]
    for dtype in sources:
        x = FORMS[form](values.astype(dtype))
        assert np.array_equal(read(target, x), read(target, x.copy(order="C"))), dtype


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", [*READ][:5])
def test_long_arrays_of_any_strides_have_equal_values(target, form):
    values = np.arange(30_000).reshape(100, 20, 15) % 100
    for dtype in ["?"] if target == "bool" else ["u1", "i8", ">i4"]:
        x = FORMS[form](values.astype(dtype))
        assert np.array_equal(stored(target, x), x.astype(target)), dtype
