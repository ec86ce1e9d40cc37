"""Streams and episode statistics survive being written as JSON."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from rlox import VecEnv
from rlox.learner import (
    EpisodeStatistics,
    counts_from_state,
    explained_variance,
    make_normalizer,
    stream_from_state,
    stream_state,
    streams_from_states,
)


def test_a_stream_goes_on_after_json():
    stream = np.random.default_rng(3)
    stream.integers(10, dtype=np.uint32)  # leaves half of a 64-bit number for the next call
    state = json.loads(json.dumps(stream_state(stream)))
    assert all(isinstance(number, str) for number in state["state"].values())
    again = stream_from_state(state)
    for dtype in (np.uint32, np.uint64):
        np.testing.assert_array_equal(
            stream.integers(10**6, size=9, dtype=dtype), again.integers(10**6, size=9, dtype=dtype)
        )


def test_the_last_hundred_episodes_count():
    episodes = EpisodeStatistics()
    episodes.add(np.arange(150.0), np.arange(150))
    assert (episodes.count, len(episodes.returns)) == (150, 100)
    assert (episodes.mean_return, episodes.mean_length) == (99.5, 99.5)
    again = EpisodeStatistics()
    again.load_state(json.loads(json.dumps(episodes.state())))
    assert again == episodes
    again.add(np.array([1e6]), np.array([1]))
    assert len(again.returns) == 100


def test_closed_environments_have_no_episodes_left():
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
    "episodes",
    [
        {},
        [],
        None,
        {**GOOD, "count": "x"},
        {**GOOD, "count": 3},
        {**GOOD, "returns": 5},
        {**GOOD, "returns": [1.0, None]},
        {**GOOD, "lengths": [3]},
        {**GOOD, "lengths": [3, float("inf")]},
    ],
)
def test_damaged_episodes_change_nothing(episodes):
    statistics = EpisodeStatistics()
    statistics.load_state(GOOD)
    with pytest.raises(ValueError, match="counters: expected the"):
        statistics.load_state(episodes)
    assert statistics.state() == GOOD


@pytest.mark.parametrize("count", [None, -1, True, 1.0, "7"])
def test_a_counter_that_counts_nothing_is_refused(count):
    with pytest.raises(ValueError, match="counters: expected counts of timesteps"):
        counts_from_state({"timesteps": count, "episodes": GOOD}, ["timesteps"])


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.pop("state"),
        lambda s: s.update(state=7),
        lambda s: s.update(state={}),
        lambda s: s["state"].update(state="x"),
        lambda s: s["state"].update(inc=str(2**200)),
        lambda s: s.update(bit_generator="MT19937"),
        lambda s: s.update(has_uint32="no"),
        lambda s: s.update(uinteger=2**70),
    ],
)
def test_a_damaged_stream_is_refused(change):
    state = stream_state(np.random.default_rng(0))
    change(state)
    with pytest.raises(ValueError, match="streams: expected a PCG64's state"):
        stream_from_state(state)


def test_streams_must_be_those_of_the_learner():
    state = stream_state(np.random.default_rng(0))
    assert [*streams_from_states({"a": state}, ["a"])] == ["a"]
    for states in ({}, {"b": state}, {"a": state, "b": state}):
        with pytest.raises(ValueError, match="streams: expected those of a, got"):
            streams_from_states(states, ["a"])
    with pytest.raises(ValueError, match="streams: expected a PCG64's state, got 3"):
        streams_from_states({"a": 3}, ["a"])


def test_statistics_must_fit_the_normalizer():
    from rlox.algorithms import PPOConfig

    space = VecEnv(n=2).single_observation_space
    assert make_normalizer(PPOConfig(), space) is None
    with pytest.raises(ValueError, match="normalizer: expected nothing"):
        make_normalizer(PPOConfig(), space, {"obs_mean": np.zeros(4)})
    config = PPOConfig(num_envs=2, normalize_obs=True)
    made = make_normalizer(config, space)
    made.update_obs(np.ones((2, 4)))
    again = make_normalizer(config, space, made.state())
    np.testing.assert_array_equal(again.state()["obs_mean"], made.state()["obs_mean"])
    for wrong in ({}, {**made.state(), "obs_mean": np.zeros(3)}):
        with pytest.raises(ValueError, match="normalizer: "):
            make_normalizer(config, space, wrong)


def test_explained_variance():
    returns = np.array([1.0, 2.0, 6.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(3, 9.0), returns) == 0.0
    assert np.isnan(explained_variance(returns, np.ones(3)))


def test_episode_statistics_count_every_episode():
    """Statistics hold 16,384 episodes between two calls of `drain`, but count all of them."""
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
