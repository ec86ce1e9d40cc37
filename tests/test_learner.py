"""Streams and episode statistics survive being written as JSON."""

import json

import numpy as np

from rlox.learner import EpisodeStatistics, stream_from_state, stream_state


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
