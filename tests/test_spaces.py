"""JSON descriptions of spaces, and conversion of actions between rollouts and environments."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlox import ArgumentError, ArgumentTypeError, collect_rollout, make_vec
from rlox._spaces import check_actions, from_json, random_actions, to_env_actions, to_json, uniform_log_prob
from rlox.trainers import A2CTrainer
from support.envs import Counter, Samples
from support.rejections import expect_rejection, rejections, rejects

BOX = spaces.Box(*(np.array([s * 1.5, s * np.inf], np.float32) for s in (-1, 1)))
WIDE = spaces.Box(0, np.arange(1, 101, dtype=np.float32))
I64, U64 = np.iinfo(np.int64), np.iinfo(np.uint64)
F32 = {"dtype": "float32", "type": "Box"}
DESCRIPTIONS = [
    (spaces.Discrete(4, start=-1), {"type": "Discrete", "n": 4, "start": -1, "dtype": "int64"}),
    (
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]),
        {"nvec": [2, 3, 4, 5], "start": [0, 1, 2, 3], "shape": [2, 2]} | {"type": "MultiDiscrete", "dtype": "int64"},
    ),
    (spaces.MultiBinary(3), {"type": "MultiBinary", "shape": [3], "dtype": "int8"}),
    (spaces.MultiBinary((2, 3)), {"type": "MultiBinary", "shape": [2, 3], "dtype": "int8"}),
    (spaces.Box(-1, 1, (3, 2)), F32 | {"low": -1.0, "high": 1.0, "shape": [3, 2]}),
    (BOX, F32 | {"low": [-1.5, "-inf"], "high": [1.5, "inf"], "shape": [2]}),
    (spaces.Box(-1.0, 1.0, ()), F32 | {"low": -1.0, "high": 1.0, "shape": []}),
    (spaces.Box(0, 1, (0,)), F32 | {"low": [], "high": [], "shape": [0]}),
    (WIDE, F32 | {"low": 0.0, "high": WIDE.high.tolist(), "shape": [100]}),
    (
        spaces.Box(I64.min, I64.max, (2,), np.int64),
        {"type": "Box", "low": I64.min, "high": I64.max, "shape": [2], "dtype": "int64"},
    ),
    (
        spaces.Dict([("b", spaces.Tuple([spaces.Discrete(2)])), ("a", spaces.MultiBinary(2))]),
        {
            "type": "Dict",
            "spaces": [
                ["b", {"type": "Tuple", "spaces": [{"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"}]}],
                ["a", {"type": "MultiBinary", "shape": [2], "dtype": "int8"}],
            ],
        },
    ),
]


@pytest.mark.parametrize(("space", "description"), DESCRIPTIONS, ids=lambda x: type(x).__name__)
def test_json_descriptions_round_trip(space, description):
    assert to_json(space) == description
    loaded = from_json(json.loads(json.dumps(description)))
    assert loaded == space
    assert to_json(loaded) == description  # Dict spaces keep the order of their keys


@pytest.mark.parametrize("wrong", [None, "Discrete(2)", {}, {"type": "Text", "dtype": "int8"}])
def test_from_json_rejects_other_values(wrong):
    with rejects(ArgumentError, "spaces"):
        from_json(wrong)


LARGE_BOUNDS = [
    (np.int64, 2**53 + 1, 2**53 + 1),
    (np.int64, 2**62 + 1, 2**62 + 3),
    (np.int64, I64.min, I64.max),
    (np.uint64, 2**63 + 1, U64.max - 1),
    (np.uint64, 0, U64.max),
    (np.int32, -5, 2**31 - 1),
    (np.int8, -128, 127),
]
EXTREMES = [0.0, -0.5, 2.5, -3e38, 3e38, 2.0**53, 2.0**62, -(2.0**62), 2.0**63, 2.0**64]


@pytest.mark.parametrize(("dtype", "low", "high"), LARGE_BOUNDS)
@pytest.mark.parametrize(
    "values",
    [
        np.array(EXTREMES, np.float32),
        np.array([*EXTREMES, 1e300, -1e300, np.nextafter(2.0**63, 0), np.nextafter(2.0**64, 0)]),
        np.array([0, -1, I64.min, I64.max, 2**53 + 2, 2**62 + 2]),
        np.array([0, 1, 2**53 + 2, 2**63, U64.max], np.uint64),
        np.array([-128, 127], np.int8),
        np.array([True, False]),
        np.array([2**70, -1.5], object),
    ],
    ids=lambda x: str(x.dtype),
)
def test_integer_box_actions_are_rounded_and_clipped_exactly(dtype, low, high, values):
    space = spaces.Box(low, high, (len(values),), dtype)
    (env_actions,) = to_env_actions(space, values[None], num_envs=1)
    assert env_actions.dtype == dtype
    expected = [min(max(round(x), low), high) for x in values.tolist()]
    assert [int(x) for x in env_actions] == expected
    assert space.contains(env_actions)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.float16])
def test_fractions_are_rounded_for_integer_boxes_only(dtype):
    values = np.linspace(-2.5, 2.5, 5001)[None]
    (env_actions,) = to_env_actions(spaces.Box(-2, 2, (5001,), dtype), values, num_envs=1)
    if dtype is np.float16:
        np.testing.assert_array_equal(env_actions, values[0].clip(-2, 2).astype(dtype))
        return
    counts = np.bincount(env_actions.astype(int) + 2)
    assert np.abs(counts - 1000).max() <= 2


def test_boolean_box_actions_are_true_above_one_half():
    values = [[-3.0, 0.0, 0.4, 0.6, 1.0, 7.0]]
    (env_actions,) = to_env_actions(spaces.Box(0, 1, (6,), np.bool_), values, num_envs=1)
    assert env_actions.tolist() == [False, False, False, True, True, True]


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.uint64])
def test_random_integers_are_uniform_and_include_the_bounds(dtype):
    low = 0 if np.dtype(dtype).kind == "u" else -1
    space = spaces.Box(low, np.array([3, low + 1]), (2,), dtype)
    drawn = random_actions(space, np.random.default_rng(0), (30_000,))
    assert drawn.dtype == np.float32
    env_actions = to_env_actions(space, drawn, 30_000).astype(int)
    for column, count in zip(env_actions.T - low, (4 - low, 2), strict=True):
        counts = np.bincount(column, minlength=count)
        assert len(counts) == count
        # Standard deviation of a count: at most sqrt(30,000 / 4) = 87.
        assert np.abs(counts - 30_000 / count).max() < 400
    assert np.isclose(uniform_log_prob(space), -np.log((4 - low) * 2))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint8])
def test_random_actions_cover_the_range_of_an_integer_dtype(dtype):
    info = np.iinfo(dtype)
    space = spaces.Box(info.min, info.max, (1,), dtype)
    env_actions = to_env_actions(space, random_actions(space, np.random.default_rng(0), (4000,)), 4000)
    share = (env_actions.astype(float) - info.min) / (float(info.max) - info.min)
    assert share.min() < 0.01
    assert share.max() > 0.99
    assert np.isclose(share.mean(), 0.5, atol=0.03)


F32_MAX, F64_MAX = (float(np.finfo(dtype).max) for dtype in (np.float32, np.float64))


@pytest.mark.parametrize("largest", [F64_MAX, 1e300, F32_MAX])
def test_random_actions_cover_the_range_of_float32(largest):
    space = spaces.Box(-largest, largest, (2,), np.float64)
    drawn = random_actions(space, np.random.default_rng(0), (4000,))
    assert drawn.dtype == np.float32
    assert np.isclose(np.abs(drawn).max(), F32_MAX, rtol=0.01)
    assert np.abs(drawn.astype(float).mean() / F32_MAX) < 0.03
    assert np.isclose(uniform_log_prob(space), -2 * np.log(2 * F32_MAX))


@pytest.mark.parametrize(
    "space",
    [spaces.Box(2**62 + 1, 2**62 + 3, (1,), np.int64), spaces.Box(0.1, np.nextafter(0.1, 1), (1,), np.float64)],
    ids=["int64", "float64"],
)
def test_random_actions_stay_inside_narrow_bounds(space):
    drawn = random_actions(space, np.random.default_rng(0), (100,))
    assert drawn.dtype == np.float32
    assert all(space.contains(row) for row in to_env_actions(space, drawn, 100))


def test_component_with_one_possible_value_has_probability_1():
    space = spaces.Box(np.array([0, 3], np.float32), np.array([2, 3], np.float32))
    assert uniform_log_prob(space) == -np.log(2)
    batch = collect_rollout(make_vec(Counter, 2, seed=0, action_space=space), None, 4)
    assert np.allclose(batch.log_probs, -np.log(2))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("value", [1e300, 10**6, 2**100])
def test_values_beyond_a_dtype_are_clipped_to_its_maximum(dtype, value):
    space, largest = spaces.Box(-np.inf, np.inf, (2,), dtype), float(np.finfo(dtype).max)
    (env_actions,) = to_env_actions(space, [[value, -value]], num_envs=1)
    assert env_actions.dtype == dtype
    assert env_actions.tolist() == [min(value, largest), -min(value, largest)]


def test_unsigned_actions_support_a_large_start():
    space = spaces.Discrete(3, start=2**53)
    assert to_env_actions(space, np.array([1], np.uint64), 1).tolist() == [2**53 + 1]


OPEN, MINUS = spaces.Box(-1, np.inf, (1,)), spaces.Discrete(3, start=-1)
UINT64 = np.array([0, 2**64 - 1], np.uint64)


@rejections(
    (lambda: to_json(spaces.Text(3)), ArgumentTypeError, "space"),
    (lambda: random_actions(OPEN, np.random, (2,)), ArgumentError, "policy"),
    (lambda: to_env_actions(BOX, [["a", "b"]], 1), ArgumentTypeError, "actions"),
    (lambda: to_env_actions(BOX, [[object()] * 2], 1), ArgumentTypeError, "actions"),
    (lambda: check_actions(MINUS, UINT64, 2), ArgumentError, "actions"),
)
def test_spaces_reject_invalid_arguments(rejection):
    expect_rejection(rejection)


PAIR = spaces.MultiDiscrete([2, 3], start=[1, -4])
OBS_SPACES = {
    "Discrete": spaces.Discrete(3, start=5),
    "MultiDiscrete": PAIR,
    "MultiBinary": spaces.MultiBinary(2),
    "Dict": spaces.Dict(at=spaces.Discrete(3, start=5), of=spaces.Tuple([PAIR])),
}
ACTION_SPACES = {"Discrete": spaces.Discrete(3, start=1), "MultiDiscrete": PAIR}


@pytest.mark.parametrize("action_space", ACTION_SPACES.values(), ids=ACTION_SPACES)
@pytest.mark.parametrize("obs_space", OBS_SPACES.values(), ids=OBS_SPACES)
def test_policy_functions_use_the_values_of_the_spaces(obs_space, action_space):
    env, actions = make_vec(lambda: Samples(obs_space, action_space), 2, seed=0), []

    def policy(obs):
        batch_space = gym.vector.utils.batch_space(obs_space, 2)
        rows = [*gym.vector.utils.iterate(batch_space, obs)]
        assert all(obs_space.contains(row) for row in rows)
        actions.append(np.stack([action_space.sample() for _ in rows]))
        return actions[-1], np.zeros(len(rows)), np.zeros(len(rows))

    batch = collect_rollout(env, policy, 8)
    applied = [[each.unwrapped.actions[t] for each in env.unwrapped.envs] for t in range(8)]
    assert applied == np.stack(actions[:8]).tolist()
    assert (batch.actions + action_space.start).tolist() == applied


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("action_space", ACTION_SPACES.values(), ids=ACTION_SPACES)
@pytest.mark.parametrize("obs_space", ["Discrete", "MultiDiscrete"])
def test_predict_can_collect_rollouts(obs_space, action_space, backend):
    make_env, predicted = (lambda: Samples(OBS_SPACES[obs_space], action_space)), []
    trainer = A2CTrainer(make_env, 0, backend=backend, num_envs=2, runs_dir=None)
    env = make_vec(make_env, 2, seed=0)

    def policy(obs):
        predicted.append(trainer.predict(obs, deterministic=False))
        return predicted[-1]

    batch = collect_rollout(env, policy, 20)
    assert (batch.actions + action_space.start).tolist() == np.stack(predicted[:20]).tolist()
    assert collect_rollout(env, trainer.predict, 4).actions.min() >= 0


def test_collect_rollout_rejects_actions_outside_the_action_space():
    env = make_vec(lambda: Samples(OBS_SPACES["Discrete"], ACTION_SPACES["Discrete"]), 2, seed=0)
    with rejects(ArgumentError, "actions", env=1) as raised:
        collect_rollout(env, lambda obs: [1, 0] if len(obs) else None, 2)
    assert "[1, 4)" in raised.value.expected
    assert [each.unwrapped.actions for each in env.unwrapped.envs] == [[], []]


def test_custom_policies_receive_and_return_zero_based_values():
    torch = pytest.importorskip("torch")

    class EchoPolicy(torch.nn.Module):
        """Return the observations as actions."""

        def get_action_and_logprob(self, obs):
            assert obs.dtype == torch.int64
            return obs, torch.zeros(len(obs))

        def get_value(self, obs):
            return torch.zeros(len(obs))

    env = make_vec(lambda: Samples(OBS_SPACES["Discrete"], ACTION_SPACES["Discrete"]), 2, seed=0)
    batch = collect_rollout(env, EchoPolicy(), 12)
    assert np.array_equal(batch.actions, batch.obs)
    assert set(batch.obs.ravel()) == {0, 1, 2}
