"""Random streams, episode statistics, non-finite values and concurrent use of learners."""

import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from rlox import ArgumentError, ClosedError, NonFiniteError, RolloutBuffer, VecEnv
from rlox._finite import check_finite, check_finite_array, check_finite_policy, check_finite_rollout
from rlox._rng import stream_from_state, stream_state, streams_from_states
from rlox.learners import EpisodeStatistics, counts_from_state, explained_variance, make_normalizer
from rlox.trainers import A2CTrainer, PPOTrainer
from support.rejections import rejects
from support.thread_runs import join, start_threads

SMALL = {"num_envs": 4, "n_steps": 16, "runs_dir": None, "backend": "torch"}


def test_random_stream_continues_after_json():
    stream = np.random.default_rng(3)
    stream.integers(10, dtype=np.uint32)  # leaves half of a 64-bit number for the next call
    state = json.loads(json.dumps(stream_state(stream)))
    assert all(isinstance(word, str) for word in state["state"].values())
    restored = stream_from_state(state)
    for dtype in (np.uint32, np.uint64):
        np.testing.assert_array_equal(
            stream.integers(10**6, size=9, dtype=dtype), restored.integers(10**6, size=9, dtype=dtype)
        )


def test_episode_statistics_average_the_last_hundred_episodes():
    episodes = EpisodeStatistics()
    episodes.add(np.arange(150.0), np.arange(150))
    assert (episodes.count, len(episodes.returns)) == (150, 100)
    assert (episodes.mean_return, episodes.mean_length) == (99.5, 99.5)
    restored = EpisodeStatistics()
    restored.load_state(json.loads(json.dumps(episodes.state())))
    assert restored == episodes
    restored.add(np.array([1e6]), np.array([1]))
    assert len(restored.returns) == 100


def test_closed_environments_have_no_pending_episodes():
    env, episodes = VecEnv(n=2, seed=0), EpisodeStatistics()
    env.collect_n_steps(200)
    episodes.drain(env)
    count = episodes.count
    assert count > 0
    env.collect_n_steps(200)
    env.close()
    episodes.drain(env)
    assert episodes.count == count


GOOD = {"count": 2, "returns": [1.0, 2.0], "lengths": [3, 4]}


@pytest.mark.parametrize(
    "episodes", [None, {}, *({**GOOD, **x} for x in ({"count": "x"}, {"count": 3}, {"returns": [1.0, None]}))], ids=str
)
def test_invalid_episode_state_changes_nothing(episodes):
    statistics = EpisodeStatistics()
    statistics.load_state(GOOD)
    with rejects(ArgumentError, "counters", got=repr(episodes)):
        statistics.load_state(episodes)
    assert statistics.state() == GOOD


@pytest.mark.parametrize("count", [None, -1, True, 1.0, "7"])
def test_invalid_counters_are_rejected(count):
    with rejects(ArgumentError, "counters", expected="counts of timesteps"):
        counts_from_state({"timesteps": count, "episodes": GOOD}, ["timesteps"])


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.pop("state"),
        lambda s: s["state"].update(state="x"),
        lambda s: s["state"].update(inc=str(2**200)),
        lambda s: s.update(bit_generator="MT19937"),
        lambda s: s.update(has_uint32="no"),
    ],
    ids=["missing", "text", "range", "kind", "flag"],
)
def test_incomplete_or_unknown_streams_are_rejected(change):
    state = stream_state(np.random.default_rng(0))
    assert [*streams_from_states({"a": state}, ["a"])] == ["a"]
    for states in ({}, {"b": state}, {"a": state, "b": state}):
        with rejects(ArgumentError, "streams", expected="the streams a"):
            streams_from_states(states, ["a"])
    change(state)
    with rejects(ArgumentError, "streams", expected="a PCG64 state"):
        stream_from_state(state)


def test_statistics_must_match_the_normalizer():
    from rlox.algorithms import PPOConfig

    space = VecEnv(n=2).single_observation_space
    assert make_normalizer(PPOConfig(), space) is None
    with rejects(ArgumentError, "normalizer", got="['obs_mean']"):
        make_normalizer(PPOConfig(), space, {"obs_mean": np.zeros(4)})
    config = PPOConfig(num_envs=2, normalize_obs=True)
    normalizer = make_normalizer(config, space)
    normalizer.update_obs(np.ones((2, 4)))
    loaded = make_normalizer(config, space, normalizer.state())
    np.testing.assert_array_equal(loaded.state()["obs_mean"], normalizer.state()["obs_mean"])
    for argument, wrong in (("state", {}), ("obs_var", {**normalizer.state(), "obs_mean": np.zeros(3)})):
        with rejects(ArgumentError, argument, section="normalizer"):
            make_normalizer(config, space, wrong)


def test_explained_variance_equals_values_computed_by_hand():
    returns = np.array([1.0, 2.0, 6.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(3, 9.0), returns) == 0.0
    assert np.isnan(explained_variance(returns, np.ones(3)))


def test_episode_statistics_count_every_episode():
    """Count more episodes than the environment stores between two calls of `drain` (16,384)."""
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
    episodes.drain(SimpleNamespace(pop_episodes=lambda: (np.ones(3), np.ones(3, int)), dropped_episodes=0))
    assert episodes.count == 6 * n + 3


def make_rollout():
    """Return three steps of two environments. The second step truncates the first environment."""
    buffer, zeros = RolloutBuffer(3, 2, (1,)), np.zeros(2, np.float32)
    obs, no_flags = np.zeros((2, 1), np.float32), np.zeros(2, bool)
    buffer.begin(obs)
    for t in range(3):
        truncated = np.array([t == 1, False])
        buffer.record(t, [0, 1], zeros, zeros, obs, zeros, no_flags, truncated, obs + 1)
    return buffer


@pytest.mark.parametrize(
    ("name", "index", "env", "step", "hint"),
    [
        ("obs", (2, 1), 1, 12, "check the environment"),
        ("rewards", (0, 1), 1, 10, "check the environment"),
        ("log_probs", (1, 0), 0, 11, "resume from a checkpoint"),
        ("values", (2, 1), 1, 12, "resume from a checkpoint"),
        ("last_values", (1,), 1, 13, "resume from a checkpoint"),
        ("final_values", (0,), 0, 11, "resume from a checkpoint"),
    ],
)
def test_check_finite_rollout_locates_non_finite_values(name, index, env, step, hint):
    buffer = make_rollout()
    arrays = {"last_values": np.zeros(2, np.float32), "final_values": np.zeros(1, np.float32)}
    check_finite_rollout(buffer, **arrays, steps_before=10)
    arrays.get(name, getattr(buffer, name, None))[index] = np.inf
    with rejects(NonFiniteError, name, hint, env=env, step=step):
        check_finite_rollout(buffer, **arrays, steps_before=10)


def test_check_finite_array_locates_values_in_multi_dimensional_rows():
    array = np.zeros((2, 3, 4))
    array[1, 2, 3] = np.nan
    with rejects(NonFiniteError, "obs", got="nan", env=2, step=1) as raised:
        check_finite_array("obs", array, 0)
    assert type(raised.value.step) is int


def test_check_finite_policy_names_outputs_before_parameters():
    good, bad = np.zeros(2), np.array([0.0, np.nan])
    check_finite_policy([good, good, good], {"w": good}, 5)
    check_finite_policy([], {}, 5)
    with rejects(NonFiniteError, "log_probs", env=1, step=5):
        check_finite_policy([good, bad], {"w": bad}, 5)
    with rejects(NonFiniteError, "w", env=None, step=5):
        check_finite_policy([], {"v": good, "w": bad}, 5)
    check_finite_rollout(RolloutBuffer(1, 1, (1,)), np.zeros(1, np.float32), None, steps_before=0)
    check_finite({"loss": 1.0}, 3)
    with rejects(NonFiniteError, "loss", timesteps=3):
        check_finite({"value_loss": 1.0, "loss": float("inf")}, 3)


@pytest.mark.parametrize("progress", [float("nan"), -0.1, 2.0])
@pytest.mark.parametrize("trainer_cls", [PPOTrainer, A2CTrainer])
def test_iterate_rejects_progress_outside_0_to_1(trainer_cls, progress):
    trainer = trainer_cls("CartPole-v1", 1, **SMALL)
    before = trainer.learner.state().networks
    with rejects(ArgumentError, "progress", expected="a finite number in [0, 1]"):
        trainer.learner.iterate(progress)
    np.testing.assert_equal(trainer.learner.state().networks, before)
    assert trainer.timesteps == 0


def test_a_learner_in_use_by_another_thread_is_rejected():
    trainer = PPOTrainer("CartPole-v1", 1, **SMALL)
    inside, leave = threading.Event(), threading.Event()
    act = trainer.learner.policy.act

    def wait(*args):
        inside.set()
        leave.wait(30)
        return act(*args)

    trainer.learner.policy.act = wait  # within an iteration
    threads, errors = start_threads(lambda: trainer.train(64))
    inside.wait(30)
    with rejects(ClosedError, "learner", "create one trainer per thread"):
        trainer.learner.iterate()
    leave.set()
    join(threads)
    assert (errors, trainer.timesteps) == ([], 64)
