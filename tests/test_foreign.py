"""`ForeignVecEnv` and `make_vec`: other people's environments in rollouts."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorWrapper,
)
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

import toy_envs  # noqa: F401  # registers an id
from counters import Counter, fill
from rlox import Normalizer, RolloutBuffer, VecEnv, collect_rollout, make_vec
from rlox.trainers import DQNTrainer, PPOTrainer
from rlox.vector import ForeignVecEnv

SAME_STEP = AutoresetMode.SAME_STEP


def counters(n=2, **kwargs):
    return make_vec(lambda: Counter(**kwargs), n)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_rollout_of_gymnasiums_environment_is_the_native_one(env_id, normalize):
    """Two rollouts each; every field equal, normalisation and final observations included."""
    ours = VecEnv(4, 3, env_id, max_episode_steps=18)
    foreign = ForeignVecEnv(
        SyncVectorEnv(
            [lambda: gym.make(env_id, max_episode_steps=18)] * 4, autoreset_mode=SAME_STEP
        ),
        seed=3,
    )
    rng = np.random.default_rng(0)
    shape = (60, 4, 1) if env_id == "Pendulum-v1" else (60, 4)
    obs_shape = ours.single_observation_space.shape
    normalizers = [Normalizer(4, obs_shape) if normalize else None for _ in range(2)]
    for _ in range(2):
        actions = rng.normal(0, 2, shape) if shape[2:] else rng.integers(0, 2, shape)
        a, b = (
            fill(env, 60, actions, normalizer)
            for env, normalizer in zip((ours, foreign), normalizers, strict=True)
        )
        for name in ("obs", "last_obs", "actions", "rewards", "terminated", "truncated"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
        assert np.array_equal(a.final_index, b.final_index)
        assert np.array_equal(a.final_obs, b.final_obs)
        assert len(a.final_index) >= 4
        for drained, expected in zip(ours.drain_episodes(), foreign.drain_episodes(), strict=True):
            assert drained.dtype == expected.dtype
            assert np.array_equal(drained, expected)
            assert len(drained) >= 8
    if normalize:
        for key, value in normalizers[0].state().items():
            assert np.array_equal(value, normalizers[1].state()[key]), key


def test_final_observations_are_those_before_the_reset_and_only_of_cut_episodes():
    buffer = fill(counters(truncate_at=3), 7)
    assert buffer.obs[:, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert buffer.final_index.tolist() == [4, 5, 10, 11]
    assert buffer.final_obs[:, 0].tolist() == [3, 3, 3, 3]
    both = fill(counters(truncate_at=3, terminate_at=3), 7)
    assert both.terminated.sum() == both.truncated.sum() == 4
    assert len(both.final_index) == 0


def test_the_next_rollout_goes_on_where_the_last_stopped_also_in_another_buffer():
    env = counters(truncate_at=5)
    assert fill(env, 3).last_obs[:, 0].tolist() == [3, 3]
    assert fill(env, 3).obs[:, 0, 0].tolist() == [3, 4, 0]
    assert fill(env, 1, seed=1).obs[0, 0, 0] == 0
    returns, lengths = env.drain_episodes()
    assert (returns.tolist(), lengths.tolist()) == ([15.0, 15.0], [5, 5])
    assert env.drain_episodes()[0].tolist() == []


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
def test_actions_are_stored_as_given_and_sent_inside_the_space(space, stored, sent):
    env = counters(action_space=space)
    buffer = fill(env, 1, [np.array(stored)])
    assert np.array_equal(buffer.actions[0], stored)
    for single, expected in zip(env.unwrapped.envs, sent, strict=True):
        assert np.array_equal(single.actions[0], expected)


@pytest.mark.parametrize(
    ("space", "stored", "error", "words"),
    [
        (spaces.Discrete(3, start=5), [0, 3], ValueError, r"\[0, 3\).*3 for environment 1"),
        (spaces.Discrete(3, start=5), [-1, 0], ValueError, "-1 for environment 0"),
        (spaces.Discrete(3), [0.5, 1], TypeError, "integers.*float64"),
        (spaces.Discrete(3), [0], ValueError, r"\(2,\).*\(1,\)"),
        (spaces.Box(0, 1, (1,)), [[0], [np.nan]], ValueError, "finite.*nan for environment 1"),
        (spaces.Box(0, 1, (1,)), [[np.inf], [0]], ValueError, "finite.*inf for environment 0"),
        (spaces.Box(0, 1, (1,)), [0, 1], ValueError, r"\(2, 1\)"),
        (spaces.MultiDiscrete([2, 3]), [[1, 1], [2, 0]], ValueError, "2 for environment 1"),
        (spaces.MultiBinary(2), [[0, 1], [1, 2]], ValueError, "2 for environment 1"),
    ],
    ids=str,
)
def test_wrong_actions_are_refused_before_the_environment_moves(space, stored, error, words):
    env = counters(action_space=space)
    with pytest.raises(error, match=f"actions: .*{words}"):
        fill(env, 1, [np.array(stored)])
    assert all(single.actions == [] for single in env.unwrapped.envs)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"t": 1}, r"t: .*0, got 1"),
        ({"t": -1}, r"t: .*0, got -1"),
        ({"log_probs": [0.0]}, r"log_probs: .*\(2,\), got \(1,\)"),
        ({"values": 0.0}, r"values: .*\(2,\), got \(\)"),
    ],
)
def test_a_wrong_turn_is_refused_before_the_environment_moves(wrong, words):
    env = counters()
    buffer = RolloutBuffer(1, 2, (1,))
    env.begin_rollout(buffer)
    right = {"t": 0, "actions": [0, 0], "log_probs": [0.0, 0.0], "values": [0.0, 0.0]}
    with pytest.raises(ValueError, match=words):
        env.step_rollout(buffer, **{**right, **wrong})
    assert all(single.actions == [] for single in env.unwrapped.envs)
    env.step_rollout(buffer, **right)
    with pytest.raises(ValueError, match=r"t: .*of 1 steps"):
        env.step_rollout(buffer, **{**right, "t": 1})


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (4, 5, 3)])
def test_observations_may_have_any_rank(shape):
    buffer = fill(counters(shape=shape, dtype=np.uint8, truncate_at=2), 3)
    assert buffer.obs.shape == (3, 2, *shape)
    assert buffer.obs.dtype == np.float32
    assert [row.max() for row in buffer.obs[:, 1]] == [0, 1, 0]
    assert buffer.final_obs.shape == (2, *shape)


@pytest.mark.parametrize("make", [np.asfortranarray, np.float64, lambda obs: obs[:, ::-1, ::-1]])
def test_observations_are_taken_in_their_own_order_whatever_their_layout(make):
    obs = make(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    buffer = RolloutBuffer(1, 2, (3, 4))
    buffer.begin(obs)
    zeros = np.zeros(2)
    cut = np.array([True, True])
    buffer.record(0, [0, 0], zeros, zeros, obs + 1, zeros, ~cut, cut, make(np.asarray(obs)) * 2)
    assert np.array_equal(buffer.obs[0], obs)
    assert np.array_equal(buffer.last_obs, obs + 1)
    assert np.array_equal(buffer.final_obs, make(np.asarray(obs)) * 2)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"nan_obs_at": 2}, "obs: .*nan from environment 0 at step 2"),
        ({"nan_obs_at": 0}, "obs: .*nan from environment 0 at step 0"),
        ({"nan_obs_at": 3, "truncate_at": 3}, "final_obs: .*environment 0 at step 3"),
        (
            {"huge_obs_at": 2, "dtype": np.float64},
            r"obs: .*float32 holds, got -1e\+300 from environment 0 at step 2",
        ),
        ({"reward": float("nan")}, "rewards: .*nan from environment 0 at step 1"),
        ({"reward": float("inf")}, "rewards: .*inf from environment 0 at step 1"),
    ],
)
def test_numbers_that_are_not_finite_stop_with_environment_and_step(kwargs, words):
    with pytest.raises(ValueError, match=words):
        fill(counters(**kwargs), 5)


def test_a_truncated_episode_without_its_final_observation_is_an_error():
    class Forgetful(SyncVectorEnv):
        def step(self, actions):
            return *super().step(actions)[:4], {}

    env = ForeignVecEnv(Forgetful([lambda: Counter(truncate_at=2)], autoreset_mode=SAME_STEP))
    with pytest.raises(
        ValueError, match=r"final_obs: .*environment 0, whose episode ended at step 2"
    ):
        fill(env, 3)
    both = Forgetful([lambda: Counter(truncate_at=2, terminate_at=2)], autoreset_mode=SAME_STEP)
    assert len(fill(ForeignVecEnv(both), 3).final_index) == 0, "a terminated state has no value"


def test_reset_and_step_are_the_environments_and_keep_the_books():
    env = counters(truncate_at=3)
    obs, infos = env.reset(seed=1)
    assert obs.tolist() == [[0], [0]]
    assert infos == {}
    env.step(np.array([0, 1]))
    env.reset(options={"reset_mask": np.array([True, False])})
    for _ in range(3):
        *_, infos = env.step(np.array([0, 1]))
    assert infos["final_obs"][0].tolist() == [3]
    assert env.drain_episodes()[1].tolist() == [3, 3]
    assert fill(env, 1).obs[0, :, 0].tolist() == [0, 1]


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Dict(a=spaces.Sequence(spaces.Box(0, 1)))], ids=str
)
def test_other_observations_are_refused_with_what_to_do(space):
    class Other(Counter):
        def __init__(self):
            super().__init__()
            self.observation_space = space

    with pytest.raises(TypeError, match=r"observation space: expected Box.*in a wrapper"):
        make_vec(Other, 1)


def test_other_actions_are_refused_with_what_to_do():
    with pytest.raises(TypeError, match=r"action space: expected Discrete.*Tuple"):
        counters(action_space=spaces.Tuple([spaces.Discrete(2)]))


def test_asynchronous_environments_work_too():
    made = AsyncVectorEnv([lambda: Counter(truncate_at=2)] * 2, autoreset_mode=SAME_STEP)
    env = make_vec(made)
    try:
        assert fill(env, 3).final_obs.tolist() == [[2], [2]]
    finally:
        env.close()


class Shouting(VectorWrapper):
    def step(self, actions):
        return (*super().step(actions)[:4], "infos")


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_infos_may_be_a_list(mode):
    def made():
        env = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2, autoreset_mode=mode)
        return RecordEpisodeStatistics(env)

    batches = [
        collect_rollout(make_vec(e, seed=0), None, 60) for e in (made(), DictInfoToList(made()))
    ]
    for name in ("obs", "rewards", "truncated", "valid", "advantages"):
        assert np.array_equal(*(getattr(batch, name) for batch in batches)), name
    assert batches[0].terminated.any()
    assert isinstance(make_vec(DictInfoToList(made())).reset()[1], list)


def test_the_last_observations_of_cut_episodes_come_from_listed_infos():
    same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
    env = SyncVectorEnv([lambda: Counter(truncate_at=3)] * 2, **same_step)
    batch = collect_rollout(
        make_vec(DictInfoToList(env)), lambda obs: (np.zeros(2, int), np.zeros(2), obs[:, 0]), 4
    )
    # The value of the last observation is 3: rewards are 1, 2, 3.
    assert np.allclose(batch.advantages[2], 3 + 0.99 * 3 - 2)


def test_random_actions_go_on_from_one_rollout_to_the_next():
    env, twin = (make_vec("toy/Echo-v0", 2, seed=0) for _ in range(2))
    first, second = (collect_rollout(env, None, 40).actions for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(collect_rollout(twin, None, 40).actions, first)


def test_infos_that_are_neither_are_refused():
    env = make_vec(Shouting(SyncVectorEnv([Counter] * 2)))
    env.reset()
    with pytest.raises(TypeError, match="infos: expected a dict of arrays, or a list of 2 dicts"):
        env.step([0, 1])


class Cameras(VectorEnv):
    """Two cameras whose images, (H, W, C), are transposed; their brightness counts the steps."""

    metadata = {"autoreset_mode": SAME_STEP}  # noqa: RUF012  # Gymnasium's declaration
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
