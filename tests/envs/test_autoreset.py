"""Rollouts in the three autoreset modes: resetting rows never become transitions."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as vector_wrappers

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
from rlox.trainers import A2CTrainer, PPOTrainer
from support.envs import Count
from support.rejections import rejects
from support.scripts import Script, column, make_rollout

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode


def make_scripts(mode, n=1, **kwargs):
    return make_vec(Script, n, autoreset_mode=mode, **kwargs)


def test_targets_of_a_termination_equal_hand_computed_values():
    """Check two episodes with the observations 0, 1, 2 and 10, 11, and a reset between them."""
    buffer = make_rollout(make_scripts(NEXT_STEP, terminate=True), 5)
    assert column("obs", buffer) == [0, 1, 2, 10, 11]
    assert column("valid", buffer) == [True, True, False, True, True]
    assert column("rewards", buffer) == [1, 1, 0, 1, 1]
    assert column("terminated", buffer) == [False, True, False, False, True]
    # t = 1: 1 - 2; t = 0: 1 + 0.5 * 2 - 1 + 0.25 * -1; t = 4: 1 - 12; t = 3: 1 + 6 - 11 - 0.25 * 11
    assert column("advantages", buffer) == [0.75, -1, 0, -6.75, -11]
    assert column("returns", buffer) == [1.75, 1, 3, 4.25, 1]
    assert buffer.n_transitions == 4
    assert len(buffer.final_index) == 0


def test_targets_of_a_truncation_use_the_value_of_the_final_obs():
    buffer = make_rollout(make_scripts(NEXT_STEP), 5)
    assert column("truncated", buffer) == [False, True, False, False, True]
    assert buffer.final_index.tolist() == [1, 4]
    assert buffer.final_obs.ravel().tolist() == [2, 12]
    # t = 1: 1 + 0.5 * 3 - 2 = 0.5; t = 0: 1 + 1 - 1 + 0.25 * 0.5; t = 4: 1 + 6.5 - 12 = -4.5;
    # t = 3: 1 + 6 - 11 - 0.25 * 4.5
    assert column("advantages", buffer) == [1.125, 0.5, 0, -5.125, -4.5]
    assert column("final_values", buffer) == [0, 3, 0, 0, 13]


def test_a_resetting_row_may_be_the_first_of_a_rollout():
    for same in (True, False):
        env = make_scripts(NEXT_STEP)
        first = make_rollout(env, 2)
        assert column("valid", first) == [True, True]
        assert column("advantages", first) == [1.125, 0.5]
        assert first.last_obs.tolist() == [[2]]
        second = make_rollout(env, 2, buffer=first if same else None)
        assert column("valid", second) == [False, True]
        assert column("obs", second) == [2, 10]
        # 1 + 0.5 * 12 - 11, since the rollout ends before the episode.
        assert column("advantages", second) == [0, -4]
        assert second.n_transitions == 1
        third = make_rollout(env, 1, buffer=None)
        assert column("valid", third) == [True]
        assert column("valid", make_rollout(env, 1)) == [False]
        again = make_rollout(env, 2, buffer=second)
        assert column("valid", again) == [True, True], "begin_rollout clears the marks"


def transitions(batches):
    """Return a dict of the transitions of each environment."""
    names = ("obs", "actions", "rewards", "terminated", "truncated", "advantages", "returns")
    rows = []
    for env in range(batches[0].obs.shape[1]):
        columns = [[getattr(b, name)[:, env][b.valid[:, env]] for b in batches] for name in names]
        rows.append({n: np.concatenate(x) for n, x in zip(names, columns, strict=True)})
    return rows


def balance(obs):
    """Return actions, log probabilities and values that depend on the observation only."""
    obs = np.asarray(obs)
    return (obs[:, -1] > 0.1).astype(int), np.zeros(len(obs)), obs.sum(1).astype(np.float32)


def make_cartpoles(source, mode):
    limit = {"max_episode_steps": 13}
    if source == "native":
        return VecEnv(3, 5, "CartPole-v1", autoreset_mode=mode, **limit)
    return make_vec(lambda: gym.make("CartPole-v1", **limit), 3, seed=5, vectorization_mode=source, autoreset_mode=mode)


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
@pytest.mark.parametrize("source", ["native", "sync", "async"])
def test_transitions_equal_transitions_of_same_step_mode(source, mode):
    env, other_env = make_cartpoles("native", SAME_STEP), make_cartpoles(source, mode)
    try:
        expected, batch = (collect_rollout(x, balance, 60) for x in (env, other_env))
        assert expected.valid.all()
        assert batch.valid.all() == (mode is DISABLED)
        for a, b in zip(transitions([expected]), transitions([batch]), strict=True):
            count = len(b["obs"])
            last_steps = np.flatnonzero(b["terminated"] | b["truncated"])
            assert len(last_steps) >= 3
            assert b["terminated"].any() or b["truncated"].any()
            for name in ("obs", "actions", "rewards", "terminated", "truncated"):
                assert np.array_equal(a[name][:count], b[name]), name
            complete = last_steps[-1] + 1 if mode is NEXT_STEP else count
            for name in ("advantages", "returns"):
                assert np.array_equal(a[name][:complete], b[name][:complete]), name
        assert (batch.rewards[~batch.valid] == 0).all()
        assert (batch.advantages[~batch.valid] == 0).all()
        assert not (batch.terminated | batch.truncated)[~batch.valid].any()
    finally:
        other_env.close()


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("source", ["native", "sync"])
def test_episode_statistics_count_transitions_in_all_modes(source, mode):
    env = make_cartpoles(source, mode)
    batches = [collect_rollout(env, balance, 7) for _ in range(15)]
    returns, lengths = env.pop_episodes()
    assert len(returns) >= 15
    per_env = [
        np.diff(np.flatnonzero(rows["terminated"] | rows["truncated"]), prepend=-1) for rows in transitions(batches)
    ]
    # Environments end their episodes in any order.
    assert sorted(np.concatenate(per_env)) == sorted(lengths)
    assert np.array_equal(returns, lengths), "the reward is 1 per step, and a reset is not a step"


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
def test_native_and_gymnasium_rollouts_are_equal(mode):
    native, foreign = make_cartpoles("native", mode), make_cartpoles("sync", mode)
    normalizers = [Normalizer(3, (4,)) for _ in "ab"]
    for _ in range(4):
        a, b = (
            make_rollout(env, 15, normalizer) for env, normalizer in zip((native, foreign), normalizers, strict=True)
        )
        for name in ("obs", "last_obs", "rewards", "valid", "terminated", "truncated", "final_obs"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
        assert np.array_equal(a.advantages, b.advantages)
    for key, value in normalizers[0].state().items():
        assert np.array_equal(value, normalizers[1].state()[key]), key


@pytest.mark.parametrize("mode", [NEXT_STEP, DISABLED])
@pytest.mark.parametrize("terminate", [False, True])
def test_normalisation_counts_transitions_only(mode, terminate):
    states = []
    for m, rows in ((SAME_STEP, 5), (mode, 7 if mode is NEXT_STEP else 5)):
        env = make_scripts(m, lengths=(3, 2), terminate=terminate)
        normalizer = Normalizer(1, (1,), gamma=0.9)
        count = sum(make_rollout(env, rows, normalizer).n_transitions for _ in "ab")
        assert count == 10
        states.append(normalizer.state())
    for key, value in states[0].items():
        assert np.allclose(value, states[1][key], rtol=1e-12), key
    assert states[0]["obs_count"] == pytest.approx(11.0001)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(("cls", "n_steps"), [(PPOTrainer, 1), (PPOTrainer, 5), (PPOTrainer, 64), (A2CTrainer, 5)])
def test_trainers_learn_from_transitions_only(mode, cls, n_steps):
    env, batches = SyncVectorEnv([lambda: Count(limit=2)] * 2, autoreset_mode=mode), []
    settings = {"n_steps": n_steps, "normalize_reward": True, "backend": "torch", "runs_dir": None}
    if cls is PPOTrainer:
        settings |= {"batch_size": 2 * n_steps, "n_epochs": 1}
    with cls(env, 1, **settings) as trainer:
        loss = trainer.learner.loss
        trainer.learner.loss = lambda policy, batch, *rest: batches.append(batch) or loss(policy, batch, *rest)
        result = trainer.train(40)
    assert sum(len(batch.obs) for batch in batches) == result["timesteps"] >= 40
    # The value network alone reads the final observations, 200.
    assert {float(x) for batch in batches for x in batch.obs.unique()} <= {0, 100}
    # The last rollout may have one more row.
    assert result["episodes"] == pytest.approx(result["timesteps"] / 2, abs=1)
    assert (result["mean_reward"], result["mean_length"]) == (2, 2)


def test_a_native_run_in_next_step_mode_resumes(tmp_path):
    settings = {"n_steps": 13, "num_envs": 2, "batch_size": 8, "runs_dir": None}
    settings["backend"] = "torch"
    settings["env_kwargs"] = {"autoreset_mode": "NextStep", "max_episode_steps": 6}
    straight, half = (PPOTrainer("CartPole-v1", 1, **settings) for _ in range(2))
    per_iteration = straight.train(1)["timesteps"]
    assert 13 < per_iteration < 26
    half.train(1)
    half.save(tmp_path / "half")
    resumed = PPOTrainer.load(tmp_path / "half", runs_dir=None)
    results = [trainer.train(60)["mean_reward"] for trainer in (straight, resumed)]
    assert results[0] == results[1]
    assert np.array_equal(straight.learner.buffer.valid, resumed.learner.buffer.valid)
    assert not straight.learner.buffer.valid.all()
    assert np.array_equal(straight.learner.buffer.obs, resumed.learner.buffer.obs)


@pytest.mark.parametrize("source", ["native", "sync"])
def test_begin_rollout_resets_finished_environments(source):
    env = make_cartpoles(source, DISABLED)
    env.reset(seed=0)
    for _ in range(20):
        obs, _, terminated, truncated, _ = env.step(np.ones(3, np.int64))
        if (over := terminated | truncated).any():
            break
    buffer = RolloutBuffer(2, 3, (4,))
    env.begin_rollout(buffer)
    assert ((buffer.obs[0] != obs).any(1) == over).all()
    env.step_rollout(buffer, 0, [0, 0, 0], np.zeros(3), np.zeros(3))


def test_vector_entry_points_are_accepted():
    env = make_vec("CartPole-v1", 3, seed=1, vectorization_mode="vector_entry_point")
    assert isinstance(env, GymVecEnv)
    batch = collect_rollout(env, None, 100)
    ended = batch.terminated | batch.truncated
    assert (batch.valid[1:] == ~ended[:-1]).all()
    assert not batch.valid.all()


def test_wrappers_are_applied_in_order():
    twice = lambda env: gym.wrappers.TransformReward(env, lambda reward: 2 * reward)  # noqa: E731
    plus = lambda env: gym.wrappers.TransformReward(env, lambda reward: reward + 1)  # noqa: E731
    for env in (Script, "CartPole-v1", "rlox/CartPole-v1", Script()):
        wrapped = make_vec(env, 1, seed=0, wrappers=[twice, plus])
        assert isinstance(wrapped, GymVecEnv)
        assert collect_rollout(wrapped, None, 1).rewards.tolist() == [[3]]


def test_a_buffer_marks_resetting_rows():
    buffer, zeros = RolloutBuffer(3, 2, (1,)), np.zeros(2)
    buffer.begin([[5], [0]], ended=[True, False])
    cut = np.array([False, True])
    # The reward and the flags of a resetting row are ignored.
    buffer.record(0, [0, 0], zeros, zeros, [[0], [1]], [9, 1], ~cut, cut)
    buffer.record(1, [0, 0], zeros, zeros, [[1], [0]], [1, 0], zeros > 0, zeros > 0)
    assert buffer.n_transitions == 2
    buffer.record(2, [0, 0], zeros, zeros, [[2], [1]], [1, 1], zeros > 0, zeros > 0)
    assert buffer.valid.tolist() == [[False, True], [True, False], [True, True]]
    assert buffer.rewards.tolist() == [[0, 1], [1, 0], [1, 1]]
    assert not buffer.terminated.any()
    assert (buffer.final_index.tolist(), buffer.final_obs.tolist()) == ([1], [[1]])
    buffer.finish(zeros, 1, 1, [4])
    assert buffer.advantages.tolist() == [[0, 5], [2, 0], [1, 1]]
    buffer.begin([[5], [0]])
    buffer.record(0, [0, 0], zeros, zeros, [[0], [1]], [9, 1], ~cut, ~cut)
    assert buffer.rewards[0].tolist() == [9, 1]
    assert buffer.valid.all(), "the next rollout may have no resetting rows"


@pytest.mark.parametrize(
    ("ended", "error"), [([True], ArgumentError), ([[True, False]], ArgumentError), (["a", "b"], ArgumentTypeError)]
)
def test_begin_rejects_wrong_flags_of_ended_episodes(ended, error):
    buffer = RolloutBuffer(3, 2, (1,))
    with rejects(error, "ended"):
        buffer.begin([[5], [0]], ended=ended)
    assert buffer.obs[0].tolist() == [[0], [0]]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_returns_exclude_the_wrapped_reward_of_a_reset(mode):
    envs = SyncVectorEnv([Script] * 2, autoreset_mode=mode)
    wrapped = vector_wrappers.RecordEpisodeStatistics(envs)
    env = make_vec(vector_wrappers.TransformReward(wrapped, lambda rewards: rewards - 5))
    assert isinstance(env, GymVecEnv)
    buffer = make_rollout(env, 6)
    assert column("rewards", buffer)[:2] == [-4, -4]
    assert buffer.n_transitions == (8 if mode is NEXT_STEP else 12)
    returns, lengths = env.pop_episodes()
    assert returns.tolist() == [-8] * (4 if mode is NEXT_STEP else 6)
    assert set(lengths) == {2}


def test_a_resetting_step_accepts_any_action():
    env = make_vec(lambda: Count(limit=1), 2, autoreset_mode=NEXT_STEP)
    env.reset()
    env.step([0, 1])
    assert env.step([-1, 5])[0].tolist() == [[0.0], [0.0]]
    with rejects(ArgumentError, "actions", got="-1", env=0):
        env.step([-1, 5])
    floats = Script()
    floats.action_space = gym.spaces.Box(-1, 1, (1,))
    env = make_vec(floats, autoreset_mode=NEXT_STEP)
    env.reset()
    while not np.any(env.step([[0.0]])[2:4]):
        pass
    env.step([[np.nan]])
    with rejects(NonFiniteError, "actions", got="nan", env=0):
        env.step([[np.nan]])


class Mislabelled(SyncVectorEnv):
    """Vector environment that reports a wrong autoreset mode, or none."""

    def __init__(self, reported, mode):
        super().__init__([Script] * 2, autoreset_mode=mode)
        self.metadata = dict(self.metadata, autoreset_mode=reported)
        if reported is None:
            del self.metadata["autoreset_mode"]


def test_environments_without_a_mode_default_to_next_step_with_a_warning():
    with pytest.warns(UserWarning, match=r"no metadata\['autoreset_mode'\].*NEXT_STEP"):
        env = make_vec(Mislabelled(None, NEXT_STEP))
    assert column("valid", make_rollout(env, 5)) == [True, True, False, True, True]
    env = make_vec(Mislabelled("NextStep", NEXT_STEP))
    assert column("valid", make_rollout(env, 3))[2] is False


def test_environments_that_violate_their_mode_are_rejected():
    with rejects(ArgumentError, "env", got="'sometimes'"):
        make_vec(Mislabelled("sometimes", NEXT_STEP))
    with rejects(ArgumentError, "env", "metadata['autoreset_mode']", env=0, step=3):
        make_rollout(make_vec(Mislabelled(NEXT_STEP, SAME_STEP)), 5)
    with rejects(ArgumentError, "final_obs", env=0, step=2):
        make_rollout(make_vec(Mislabelled(SAME_STEP, NEXT_STEP)), 5)


class Unmasked(VectorEnv):
    """Vector environment that ignores the reset mask in DISABLED mode, or rejects options."""

    num_envs = 2
    single_observation_space, single_action_space = Script.observation_space, Script.action_space
    metadata = {"autoreset_mode": DISABLED}  # noqa: RUF012

    def __init__(self, accepts_options):
        self.accepts_options, self.at = accepts_options, None

    def reset(self, *, seed=None, **kwargs):
        if not self.accepts_options and kwargs["options"] is not None:
            raise TypeError("unknown option")
        self.at = np.zeros(2)
        return self.at[:, None].astype(np.float32), {}

    def step(self, actions):
        self.at += 1
        over = self.at >= [2, 5]
        return self.at[:, None].astype(np.float32), np.ones(2), over, np.zeros(2, bool), {}


def test_disabled_environments_that_ignore_the_reset_mask_are_rejected():
    with rejects(ArgumentError, "env", got="changed observations of other environments"):
        make_rollout(make_vec(Unmasked(accepts_options=True)), 3)
    with pytest.raises(TypeError, match=r"^unknown option$"):
        make_rollout(make_vec(Unmasked(accepts_options=False)), 3)
