"""`GymVecEnv`: rollouts of Gymnasium environments, and rejected results of environments."""

import threading
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from rlox import (
    ArgumentError,
    ArgumentTypeError,
    NonFiniteError,
    Normalizer,
    RolloutBuffer,
    VecEnv,
    collect_rollout,
    make_vec,
)
from rlox.envs import GymVecEnv
from rlox.evaluation import evaluate
from rlox.interchange import to_arrow
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer
from support.envs import Counter, fill
from support.rejections import Rejection, expect_rejection, rejections, rejects

SAME_STEP = AutoresetMode.SAME_STEP
ZERO = np.zeros(2, np.float32)


def counters(n=2, **kwargs):
    return make_vec(lambda: Counter(**kwargs), n)


FIELDS = ("obs", "last_obs", "actions", "rewards", "terminated", "truncated")
FIELDS += ("final_index", "final_obs")


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_rollouts_equal_rollouts_of_native_environments(env_id, normalize):
    ours = VecEnv(4, 3, env_id, max_episode_steps=18)
    make = lambda: gym.make(env_id, max_episode_steps=18)  # noqa: E731
    foreign = GymVecEnv(SyncVectorEnv([make] * 4, autoreset_mode=SAME_STEP), seed=3)
    rng = np.random.default_rng(0)
    shape = (60, 4, 1) if env_id == "Pendulum-v1" else (60, 4)
    obs_shape = ours.single_observation_space.shape
    normalizers = [Normalizer(4, obs_shape) if normalize else None for _ in range(2)]
    for _ in range(2):
        actions = rng.normal(0, 2, shape) if shape[2:] else rng.integers(0, 2, shape)
        a, b = (fill(env, 60, actions, x) for env, x in zip((ours, foreign), normalizers, strict=True))
        for name in FIELDS:
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
        assert len(a.final_index) >= 4
        for episodes, expected in zip(ours.pop_episodes(), foreign.pop_episodes(), strict=True):
            assert episodes.dtype == expected.dtype
            assert np.array_equal(episodes, expected)
            assert len(episodes) >= 8
    if normalize:
        for key, value in normalizers[0].state().items():
            assert np.array_equal(value, normalizers[1].state()[key]), key


def test_final_obs_are_stored_for_truncated_episodes_only():
    buffer = fill(counters(truncate_at=3), 7)
    assert buffer.obs[:, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert buffer.final_index.tolist() == [4, 5, 10, 11]
    assert buffer.final_obs[:, 0].tolist() == [3, 3, 3, 3]
    both = fill(counters(truncate_at=3, terminate_at=3), 7)
    assert both.terminated.sum() == both.truncated.sum() == 4
    assert len(both.final_index) == 0


def test_rollouts_continue_the_last_rollout():
    env = counters(truncate_at=5)
    assert fill(env, 3).last_obs[:, 0].tolist() == [3, 3]
    assert fill(env, 3).obs[:, 0, 0].tolist() == [3, 4, 0]
    assert fill(env, 1, seed=1).obs[0, 0, 0] == 0
    returns, lengths = env.pop_episodes()
    assert (returns.tolist(), lengths.tolist()) == ([15.0, 15.0], [5, 5])
    assert env.pop_episodes()[0].tolist() == []


@pytest.mark.parametrize(
    ("space", "stored", "sent"),
    [
        (spaces.Discrete(3, start=5), [0, 2], [5, 7]),
        (spaces.Box(0, 10, (2,), np.float32), [[-1, 3], [11, 0]], [[0, 3], [10, 0]]),
        (spaces.Box(-1, 1, (1,), np.float64), [[0.5], [-7]], [[0.5], [-1]]),
        (spaces.MultiDiscrete([2, 3], start=[1, 4]), [[0, 2], [1, 0]], [[1, 6], [2, 4]]),
        (spaces.MultiBinary(2), [[0, 1], [1, 1]], [[0, 1], [1, 1]]),
    ],
    ids=str,
)
def test_actions_are_stored_unchanged_and_sent_inside_the_space(space, stored, sent):
    env = counters(action_space=space)
    buffer = fill(env, 1, [np.array(stored)])
    assert np.array_equal(buffer.actions[0], stored)
    for single, expected in zip(env.unwrapped.envs, sent, strict=True):
        assert np.array_equal(single.actions[0], expected)


def begin_two_step_rollout():
    env = make_vec("CartPole-v1", 2, vectorization_mode="sync", seed=1)
    buffer = RolloutBuffer(2, 2, (4,))
    env.begin_rollout(buffer)
    return env, buffer


FLOATS = RolloutBuffer(2, 2, (4,), action_dtype="float32")
OBJECTS = np.array([0, 1], object)


@rejections(
    ({"normalizer": Normalizer(3, (4,))}, ArgumentError, "normalizer"),
    ({"buffer": "x"}, ArgumentTypeError, "buffer"),
    ({"buffer": RolloutBuffer(2, 3, (4,))}, ArgumentError, "buffer"),
    ({"buffer": RolloutBuffer(2, 2, (5,))}, ArgumentError, "buffer"),
    ({"buffer": FLOATS}, ArgumentError, "buffer"),
    ({"t": 1}, ArgumentError, "t"),
    ({"actions": [0, 2]}, ArgumentError, "actions"),
    ({"actions": [0.0, 1.0]}, ArgumentTypeError, "actions"),
    ({"log_probs": ["a", "b"]}, ArgumentTypeError, "log_probs"),
    ({"log_probs": [0.0]}, ArgumentError, "log_probs"),
    ({"log_probs": [0.0, np.nan]}, NonFiniteError, "log_probs"),
    ({"values": [[0.0], [0.0]]}, ArgumentError, "values"),
    ({"values": [np.inf, 0.0]}, NonFiniteError, "values"),
)
def test_step_rollout_rejects_bad_arguments_before_the_step(rejection):
    right = {"t": 0, "actions": [0, 1], "log_probs": ZERO, "values": ZERO, "normalizer": None}
    (env, buffer), (other, expected) = begin_two_step_rollout(), begin_two_step_rollout()
    wrong = {"buffer": buffer, **right, **rejection.call}
    expect_rejection(rejection._replace(call=lambda: env.step_rollout(**wrong)))
    env.step_rollout(buffer=buffer, **right)
    other.step_rollout(buffer=expected, **right)
    assert np.array_equal(buffer.obs[1], expected.obs[1])
    assert buffer.next_step == 1


DISCRETE, UNIT = spaces.Discrete(3, start=5), spaces.Box(0, 1, (1,))
PAIRS, DOUBLES = spaces.MultiDiscrete([2, 3]), spaces.Box(0, 1, (1,), np.float64)


@pytest.mark.parametrize(
    ("space", "actions", "error", "env"),
    [
        pytest.param(DISCRETE, [0, 3], ArgumentError, 1, id="Discrete too large"),
        pytest.param(DISCRETE, [-1, 0], ArgumentError, 0, id="Discrete negative"),
        pytest.param(DISCRETE, [0.5, 1], ArgumentTypeError, None, id="Discrete fraction"),
        pytest.param(DISCRETE, [0], ArgumentError, None, id="Discrete shape"),
        pytest.param(UNIT, [[0], [np.nan]], NonFiniteError, 1, id="Box NaN"),
        pytest.param(UNIT, [[np.inf], [0]], NonFiniteError, 0, id="Box infinite"),
        pytest.param(DOUBLES, [[1e300], [0]], ArgumentError, None, id="Box beyond float32"),
        pytest.param(UNIT, OBJECTS[:, None], ArgumentTypeError, None, id="Box of objects"),
        pytest.param(PAIRS, [[1, 1], [2, 0]], ArgumentError, 1, id="MultiDiscrete"),
        pytest.param(spaces.MultiBinary(2), [[0, 1], [1, 2]], ArgumentError, 1, id="MultiBinary"),
    ],
)
def test_bad_actions_are_rejected_before_the_step(space, actions, error, env):
    envs = counters(action_space=space)
    with rejects(error, "actions", env=env):
        fill(envs, 1, [np.asarray(actions)])
    assert all(single.unwrapped.actions == [] for single in envs.unwrapped.envs)


@pytest.mark.parametrize("other_buffer", [True, False])
def test_step_rollout_rejects_a_buffer_without_begin_rollout(other_buffer):
    env = counters()
    buffer, other = RolloutBuffer(2, 2, (1,)), RolloutBuffer(2, 2, (1,))
    env.begin_rollout(other) if other_buffer else env.reset()
    expect_rejection(Rejection(env.step_rollout, ArgumentError, "t"), buffer, 0, [0, 0], ZERO, ZERO)
    assert all(single.unwrapped.actions == [] for single in env.unwrapped.envs)


def test_buffers_and_normalizers_of_other_dtypes_are_rejected():
    env, floats, wrong = counters(dtype=np.uint8), counters(), Normalizer(2, (1,))
    buffer, integers = (RolloutBuffer(2, 2, (1,), obs_dtype=x) for x in ("uint8", "int64"))
    rejected = Rejection(env.begin_rollout, ArgumentError, "normalizer")
    expect_rejection(rejected, buffer, wrong)
    expect_rejection(Rejection(floats.begin_rollout, ArgumentError, "buffer"), integers)
    assert env._obs is floats._obs is None
    env.begin_rollout(buffer)
    expect_rejection(rejected._replace(call=env.step_rollout), buffer, 0, [0, 0], ZERO, ZERO, wrong)
    assert env.unwrapped.envs[0].unwrapped.actions == []
    env.step_rollout(buffer, 0, [0, 0], ZERO, ZERO, Normalizer(2, (1,), obs=False))
    assert buffer.next_step == 1


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (4, 5, 3)])
def test_observations_of_any_rank_are_stored(shape):
    buffer = fill(counters(shape=shape, dtype=np.uint8, truncate_at=2), 3)
    assert buffer.obs.shape == (3, 2, *shape)
    assert buffer.obs.dtype == np.float32
    assert [row.max() for row in buffer.obs[:, 1]] == [0, 1, 0]
    assert buffer.final_obs.shape == (2, *shape)


NOT_FINITE = {
    "NaN obs": ({"nan_obs_at": 2}, "obs", 2),
    "NaN obs at reset": ({"nan_obs_at": 0}, "obs", 0),
    "NaN final obs": ({"nan_obs_at": 3, "truncate_at": 3}, "final_obs", 3),
    "obs beyond float32": ({"huge_obs_at": 2, "dtype": np.float64}, "obs", 2),
    "NaN reward": ({"reward": float("nan")}, "rewards", 1),
}


@pytest.mark.parametrize("case", NOT_FINITE)
def test_non_finite_numbers_are_rejected_with_env_and_step(case):
    kwargs, argument, step = NOT_FINITE[case]
    with rejects(NonFiniteError, argument, env=0, step=step):
        fill(counters(**kwargs), 5)


def test_a_truncated_episode_without_final_obs_is_rejected():
    class NoInfos(SyncVectorEnv):
        def step(self, actions):
            return *super().step(actions)[:4], {}

    cut, both = (
        GymVecEnv(NoInfos([lambda x=x: Counter(**x)], autoreset_mode=SAME_STEP))
        for x in ({"truncate_at": 2}, {"truncate_at": 2, "terminate_at": 2})
    )
    with rejects(ArgumentError, "final_obs", env=0):
        fill(cut, 3)
    assert len(fill(both, 3).final_index) == 0, "a termination needs no final observation"


def test_reset_and_step_count_episodes():
    env = counters(truncate_at=3)
    obs, infos = env.reset(seed=1)
    assert obs.tolist() == [[0], [0]]
    assert infos == {}
    env.step(np.array([0, 1]))
    env.reset(options={"reset_mask": np.array([True, False])})
    for _ in range(3):
        *_, infos = env.step(np.array([0, 1]))
    assert infos["final_obs"][0].tolist() == [3]
    assert env.pop_episodes()[1].tolist() == [3, 3]
    assert fill(env, 1).obs[0, :, 0].tolist() == [0, 1]


class Locked(Counter):
    """Environment whose infos contain an object that cannot be copied."""

    def step(self, action):
        return *super().step(action)[:4], {"env": self, "lock": threading.Lock()}


class Reading(SyncVectorEnv):
    """Vector environment that reads an attribute of its environments in a step."""

    def step(self, actions):
        self.counts = [env.at for env in self.envs]
        return super().step(actions)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_infos_are_not_copied_and_attributes_are_readable_in_a_step(mode):
    env = GymVecEnv(Reading([partial(Locked, truncate_at=1)] * 2, autoreset_mode=mode))
    env.reset()
    assert env.step(np.array([0, 1]))[3].all()
    assert env.unwrapped.counts == [0, 0]


class Broken(SyncVectorEnv):
    """Vector environment whose `step` returns four values."""

    def step(self, actions):
        return super().step(actions)[:4]


def test_vector_environments_of_another_interface_are_rejected():
    env = GymVecEnv(Broken([Counter] * 2, autoreset_mode=SAME_STEP))
    env.reset()
    with rejects(ArgumentError, "env", got="4 values"):
        env.step(np.array([0, 1]))
    env = SyncVectorEnv([Counter], autoreset_mode=SAME_STEP)
    del env.num_envs
    with rejects(ArgumentError, "env", expected="SyncVectorEnv to have the attribute num_envs"):
        GymVecEnv(env)


def test_unsupported_spaces_are_rejected():
    env = Counter()
    env.observation_space = spaces.Dict(a=spaces.Sequence(spaces.Box(0, 1)))
    expect_rejection(Rejection(make_vec, ArgumentTypeError, "observation space"), env)
    call = lambda: counters(action_space=spaces.Tuple([spaces.Discrete(2)]))  # noqa: E731
    expect_rejection(Rejection(call, ArgumentTypeError, "action space"))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_infos_may_be_a_list(mode):
    make = lambda: gym.make("CartPole-v1")  # noqa: E731
    with_dict, with_list = (RecordEpisodeStatistics(SyncVectorEnv([make] * 2, autoreset_mode=mode)) for _ in "ab")
    envs = [make_vec(env, seed=0) for env in (with_dict, DictInfoToList(with_list))]
    batches = [collect_rollout(env, None, 60) for env in envs]
    for name in ("obs", "rewards", "truncated", "valid", "advantages"):
        assert np.array_equal(*(getattr(batch, name) for batch in batches)), name
    assert batches[0].terminated.any()
    assert isinstance(envs[1].reset()[1], list)


def test_final_obs_are_read_from_a_list_of_infos():
    env = SyncVectorEnv([lambda: Counter(truncate_at=3)] * 2, autoreset_mode=SAME_STEP)
    policy = lambda obs: (np.zeros(2, int), np.zeros(2), obs[:, 0])  # noqa: E731
    batch = collect_rollout(make_vec(DictInfoToList(env)), policy, 4)
    # The value of the final observation is 3, and the rewards are 1, 2, 3.
    assert np.allclose(batch.advantages[2], 3 + 0.99 * 3 - 2)


def test_random_actions_continue_in_the_next_rollout():
    env, twin = (make_vec("toy/Echo-v0", 2, seed=0) for _ in range(2))
    first, second = (collect_rollout(env, None, 40).actions for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(collect_rollout(twin, None, 40).actions, first)


class WrongTypes(VectorWrapper):
    """Wrapper that returns rewards and flags as lists, and the infos of the constructor."""

    def __init__(self, env, infos):
        super().__init__(env)
        self.infos = infos

    def step(self, actions):
        obs, *rest, _ = super().step(actions)
        return obs, *map(list, rest), self.infos


def test_infos_of_other_types_are_rejected():
    env = make_vec(WrongTypes(SyncVectorEnv([Counter] * 2), "infos"))
    env.reset()
    expect_rejection(Rejection(env.step, ArgumentTypeError, "infos"), [0, 1])


def test_rewards_and_flags_may_be_lists():
    env = make_vec(WrongTypes(SyncVectorEnv([Counter] * 2, autoreset_mode=SAME_STEP), {}))
    buffer = fill(env, 2)
    buffer.finish(ZERO, 0.9, 0.9)
    assert buffer.rewards.tolist() == [[1, 1], [2, 2]]


class Fixed(gym.Env):
    """Environment with a fixed result of `reset` and a fixed result of `step`."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, first_obs, next_obs, reward=0.0):
        self.observation_space = space
        self.first_obs = first_obs
        self.result = (next_obs, reward, False, False, {})

    def reset(self, *, seed=None, options=None):
        return self.first_obs, {}

    def step(self, action):
        return self.result


BOX = spaces.Box(-1, 1, (4,))
RIGHT, SHORT = np.zeros(4, np.float32), np.zeros(3, np.float32)
DICT, TUPLE = spaces.Dict(a=BOX), spaces.Tuple([BOX, spaces.Discrete(3)])
MISMATCHES = {
    "reset": (BOX, SHORT, RIGHT, "obs", "shape (4,)", "shape (3,)"),
    "step": (BOX, RIGHT, SHORT, "obs", "shape (4,)", "shape (3,)"),
    "rank": (BOX, RIGHT, np.zeros((4, 1)), "obs", "shape (4,)", "shape (4, 1)"),
    "ragged": (BOX, RIGHT, [[0.0], 0.0], "obs", "shape (4,)", "a list"),
    "Dict": (DICT, {"a": SHORT}, None, "obs['a']", "shape (4,)", "shape (3,)"),
    "Dict keys": (DICT, {"a": RIGHT}, {"b": RIGHT}, "obs", "a dict with the keys ['a']", "['b']"),
    "dtype": (BOX, RIGHT, RIGHT.astype(complex), "obs", "dtype float32", "dtype complex128"),
    "Discrete": (spaces.Discrete(3), 0, 1.5, "obs", "dtype int64", "dtype float64"),
    "Tuple": (TUPLE, (SHORT, 1), None, "obs[0]", "shape (4,)", "shape (3,)"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_observations_outside_their_space_are_rejected_with_the_env(case):
    space, first_obs, next_obs, argument, expected, got = MISMATCHES[case]
    with rejects(ArgumentError, argument, env=0) as raised:
        env = make_vec(Fixed, 2, space=space, first_obs=first_obs, next_obs=next_obs)
        collect_rollout(env, None, 2)
    assert raised.value.expected.startswith(expected)
    assert raised.value.got.startswith(got)
    assert raised.value.got.endswith("Fixed")


class Zeros:
    def predict(self, obs, deterministic=True):
        return np.zeros(len(obs), np.int64)


def test_trainers_and_evaluate_reject_observations_outside_their_space():
    make = lambda: Fixed(BOX, RIGHT, SHORT)  # noqa: E731
    train = PPOTrainer(make, 0, runs_dir=None).train
    for call in (lambda: train(10), lambda: evaluate(Zeros(), make, 1)):
        expect_rejection(Rejection(call, ArgumentError, "obs"))


def test_errors_of_an_environment_are_raised_unchanged():
    class Broken(Fixed):
        def step(self, action):
            raise self.error

    for error in (ValueError("no fuel"), TypeError("no fuel"), RuntimeError("no fuel")):
        env = make_vec(Broken, 2, space=BOX, first_obs=RIGHT, next_obs=RIGHT)
        for single in env.unwrapped.envs:
            single.unwrapped.error = error
        with pytest.raises(type(error), match=r"^no fuel$"):
            collect_rollout(env, None, 2)


class FourValues(gym.Env):
    """Environment with the `step` of Gym before version 0.26."""

    observation_space, action_space = BOX, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return RIGHT, {}

    def step(self, action):
        return RIGHT, 0.0, False, {}


class NotAnEnv:
    reset, step = FourValues.reset, FourValues.step


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's log of the worker's error
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_environments_with_the_old_api_of_gym_are_rejected(mode):
    env = make_vec(FourValues, 2, vectorization_mode=mode)
    try:
        expect_rejection(Rejection(collect_rollout, ArgumentError, "env", "shimmy"), env, None, 3)
    finally:
        env.close()


RESET, STEP = (RIGHT, {}), (RIGHT, 1.0, False, False, {})
# Results of `reset` and `step`, and the types in the error.
RESULTS = {
    "reset returns observations": (RIGHT, STEP, "a ndarray"),
    "reset returns None": (None, STEP, "a NoneType"),
    "reset returns three values": ((*RESET, 0), STEP, "(ndarray, dict, int)"),
    "reset returns no info": ((RIGHT, None), STEP, "(ndarray, NoneType)"),
    "reset returns no observation": ((None, {}), STEP, "(NoneType, dict)"),
    "step returns None": (RESET, None, "a NoneType"),
    "step returns six values": (RESET, (*STEP, 0), "(ndarray, float, bool, bool, dict, int)"),
    **{
        f"{got} as {name}": (
            RESET,
            (*STEP[:i], value, *STEP[i + 1 :]),
            f"({', '.join(got if k == i else type(x).__name__ for k, x in enumerate(STEP))})",
        )
        for name, i, got, value in (
            ("observation", 0, "NoneType", None),
            ("reward", 1, "NoneType", None),
            ("reward", 1, "str", "one"),
            ("reward", 1, "ndarray", np.ones(1)),
            ("reward", 1, "complex", 1j),
            ("terminated", 2, "ndarray", np.zeros(2, bool)),
            ("info", 4, "NoneType", None),
            ("info", 4, "list", []),
        )
    },
}


class Returning(gym.Env):
    """Environment that returns the results of the constructor, or valid results."""

    observation_space, action_space = BOX, spaces.Discrete(2)

    def __init__(self, results, is_valid):
        self.results = (RESET, STEP) if is_valid else results

    def reset(self, *, seed=None, options=None):
        return self.results[0]

    def step(self, action):
        return self.results[1]


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("case", RESULTS)
def test_results_of_other_types_are_rejected_with_the_env(case, mode):
    *results, got = RESULTS[case]
    makers = [lambda i=i: Returning(results, is_valid=i == 0) for i in range(2)]
    env = GymVecEnv(SyncVectorEnv(makers, autoreset_mode=mode))
    with rejects(ArgumentError, "env", "shimmy", got=got, env=1):
        collect_rollout(env, None, 2)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's log of the worker's error
def test_results_of_other_types_are_rejected_in_processes_and_evaluations():
    make = partial(Returning, (RESET, STEP[:4]), is_valid=False)
    env = make_vec(make, 1, vectorization_mode="async")
    got = "(ndarray, float, bool, bool)"
    for call in (lambda: collect_rollout(env, None, 2), lambda: evaluate(Zeros(), make, 1)):
        with rejects(ArgumentError, "env", "shimmy", got=got, env=0):
            call()
    env.close()


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.array(1.0)])
def test_rewards_of_any_real_type_are_accepted(reward):
    results = RESET, (RIGHT, reward, np.bool_(False), np.int64(0), {})
    rollout = collect_rollout(make_vec(lambda: Returning(results, is_valid=False)), None, 2)
    assert (rollout.rewards == 1.0).all()


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("observation_space", None, "set observation_space"),
        ("action_space", (3,), "set action_space"),
        ("reset", lambda self: RESET, "shimmy"),
        ("reset", lambda self, *, seed=None: RESET, "shimmy"),
    ],
)
def test_environments_without_spaces_or_arguments_of_reset_are_rejected(name, value, hint):
    cls = type("Other", (FourValues,), {name: value})
    for call in (
        lambda: make_vec(cls, 2),
        lambda: make_vec(cls, 2, vectorization_mode="async"),
        lambda: evaluate(Zeros(), cls, 1),
    ):
        with rejects(ArgumentTypeError, "env", hint):
            call()


def test_numbers_outside_a_discrete_space_are_rejected_with_the_env():
    class Four(Fixed):
        def reset(self, *, seed=None, options=None):
            return 3, {}

    env = make_vec(lambda: Four(spaces.Discrete(3), 0, 0), 1)
    with rejects(ArgumentError, "obs", got="3", env=0, row=None):
        env.reset()


def test_a_function_that_returns_no_environment_is_rejected():
    rejected = Rejection(make_vec, ArgumentTypeError, "env")
    for make in (NotAnEnv, lambda: VecEnv(1)):
        expect_rejection(rejected, make, 2)
        expect_rejection(rejected._replace(call=evaluate), Zeros(), make, 1)
    expect_rejection(rejected._replace(hint="shimmy"), NotAnEnv())


def test_a_wrapper_may_change_the_api_of_an_environment():
    class Modern(gym.Wrapper):
        def step(self, action):
            obs, reward, done, infos = self.env.step(action)
            return obs, reward, done, False, infos

    collect_rollout(make_vec(FourValues, 2, wrappers=[Modern]), None, 3)


class Reuse(gym.Env):
    """Environment that counts from 0 to 3 and returns the same array in each step."""

    action_space = spaces.Discrete(2)

    def __init__(self, nested=False):
        space = spaces.Box(-9, 9, (2,))
        self.nested = nested
        self.observation_space = spaces.Dict(inner=spaces.Dict(at=space)) if nested else space
        self.state = np.zeros(2, np.float32)

    def observe(self):
        return {"inner": {"at": self.state}} if self.nested else self.state

    def reset(self, *, seed=None, options=None):
        self.state[:] = 0
        return self.observe(), {}

    def step(self, action):
        self.state += 1
        return self.observe(), 1.0, False, bool(self.state[0] == 3), {}


gym.register("toy/Reuse-v0", entry_point=Reuse)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium warns in worker processes
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("source", ["sync", "async", "registered async", "vector env"])
def test_final_obs_survive_the_reset_of_an_environment_that_reuses_its_array(source, nested):
    env = "toy/Reuse-v0" if source.startswith("registered") else Reuse
    if source == "vector env":
        env = make_vec(SyncVectorEnv([lambda: Reuse(nested)] * 2, autoreset_mode=SAME_STEP))
    else:
        env = make_vec(env, 2, vectorization_mode=source.split()[-1], nested=nested)
    try:
        env.reset(seed=0)
        for t in range(1, 8):
            obs, _, _, truncated, infos = env.step(np.zeros(2, np.int64))
            assert truncated.tolist() == [t % 3 == 0] * 2
            assert (obs["inner"]["at"] if nested else obs).tolist() == [[t % 3] * 2] * 2
            if t % 3 == 0:
                final = [x["inner"]["at"] if nested else x for x in infos["final_obs"]]
                assert np.array_equal(final, np.full((2, 2), 3))
    finally:
        env.close()


@pytest.mark.parametrize("mode", [SAME_STEP, AutoresetMode.NEXT_STEP], ids=["same", "next"])
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_replay_stores_true_next_obs_of_an_environment_that_reuses_its_array(backend, copy, mode):
    env = SyncVectorEnv([Reuse] * 2, copy=copy, autoreset_mode=mode)
    settings = {"learning_starts": 1000, "num_envs": 2, "backend": backend, "runs_dir": None}
    trainer = DQNTrainer(env, 1, **settings)
    trainer.train(24)
    table = to_arrow(trainer.learner.replay.buffer)
    obs, next_obs, truncated = (np.array(table[name].to_pylist()) for name in ("obs", "next_obs", "truncated"))
    assert np.array_equal(next_obs, obs + 1)
    assert np.array_equal(truncated, next_obs[:, 0] == 3)
    assert (len(truncated), truncated.sum()) == (trainer.timesteps, trainer.timesteps // 3)


@pytest.mark.parametrize("cls", [A2CTrainer, PPOTrainer])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_rollouts_store_true_final_obs_of_an_environment_that_reuses_its_array(cls, backend):
    trainer = cls(Reuse, 1, num_envs=2, n_steps=6, backend=backend, runs_dir=None)
    trainer.train(12)
    assert trainer.learner.buffer.final_obs.tolist() == [[3, 3]] * 4


class Cameras(VectorEnv):
    """Vector environment with transposed (H, W, C) images whose brightness counts the steps."""

    metadata = {"autoreset_mode": SAME_STEP}  # noqa: RUF012  # as Gymnasium declares metadata
    num_envs = 2
    single_observation_space = spaces.Box(0, 255, (3, 36, 40), np.uint8)
    single_action_space = spaces.Discrete(2)
    observation_space = batch_space(single_observation_space, 2)
    action_space = batch_space(single_action_space, 2)

    def _images(self, t):
        images = np.full((2, 36, 40, 3), 10 * t, np.uint8)
        images[..., 1] = 1
        images[:, 0] = 2
        return images.transpose(0, 3, 1, 2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._images(0), {}

    def step(self, actions):
        self.t += 1
        obs, cut, infos = self._images(self.t), np.full(2, self.t == 5), {}
        if self.t == 5:
            infos = {"final_obs": np.array([*obs, None], object)[:2], "_final_obs": cut}
            obs, _ = self.reset()
        return obs, np.ones(2), np.zeros(2, bool), cut, infos


def test_transposed_images_of_a_vector_environment_are_collected():
    batch = collect_rollout(make_vec(Cameras()), lambda obs: np.zeros(2, np.int64), 7)
    assert batch.obs.dtype == np.uint8
    expected = np.stack([Cameras()._images(t % 5) for t in range(7)])
    assert np.array_equal(batch.obs, expected)


@pytest.mark.parametrize("make", [PPOTrainer, DQNTrainer])
def test_transposed_images_of_a_vector_environment_are_learned_from(make):
    more = {"n_steps": 8} if make is PPOTrainer else {"learning_starts": 4, "buffer_size": 100}
    trainer = make(Cameras(), 0, num_envs=2, batch_size=8, runs_dir=None, **more)
    trainer.train(16)
    assert trainer.learner.timesteps == 16
    assert trainer.predict(Cameras().reset()[0]).shape == (2,)
