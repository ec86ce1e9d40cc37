"""What several processes have seen, and the settings they share, are those of one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlox import Normalizer
from rlox.configs import A2CConfig, PPOConfig, SACConfig
from rlox.distributed.merging import episodes_merged, flat, merge, rows_merged, since
from rlox.distributed.shares import rank_seed, share
from rlox.learner import EpisodeStatistics


def normalizer(state=None):
    made = Normalizer(1, (2,))
    if state is not None:
        made.load_state(state)
    return made


@given(st.lists(st.lists(st.integers(1, 5), min_size=3, max_size=3), min_size=1, max_size=4))
def test_merged_statistics_are_those_of_one_that_saw_everything(rounds):
    stream, one = np.random.default_rng(1), normalizer()
    ranks = [normalizer() for _ in range(3)]
    base = one.state()
    for counts in rounds:
        for rank, count in zip(ranks, counts, strict=True):
            rows = stream.normal(100, 3, (count, 2)).astype(np.float32)
            rank.update_obs(rows)
            one.update_obs(rows)
        merged = rows_merged(base, np.stack([flat(rank.state()) for rank in ranks]))
        ranks = [normalizer(rank.state() | merged) for rank in ranks]
        base = ranks[0].state()
    for name, expected in one.state().items():
        np.testing.assert_allclose(base[name], expected, rtol=1e-11)


def test_statistics_of_a_rank_that_saw_nothing_change_nothing():
    one, idle = normalizer(), normalizer()
    base = one.state()
    one.update_obs([[1.0, 2.0], [3.0, 5.0]])
    merged = rows_merged(base, np.stack([flat(one.state()), flat(idle.state())]))
    assert merged["obs_count"] == pytest.approx(one.state()["obs_count"], rel=1e-14)
    np.testing.assert_allclose(merged["obs_mean"], one.state()["obs_mean"], rtol=1e-14)


def test_what_came_since_is_what_merging_added():
    base = np.array([2.0]), np.array([3.0]), 10.0
    new = np.array([-1.0]), np.array([0.5]), 4.0
    mean, var, count = since(base, merge(base, new))
    np.testing.assert_allclose([mean[0], var[0], count], [-1.0, 0.5, 4.0])


def test_the_last_episodes_of_all_are_as_many_of_each():
    each = [EpisodeStatistics(), EpisodeStatistics()]
    for k, episodes in enumerate(each):
        episodes.add(np.arange(90.0) + 1000 * k, np.arange(90))
    merged = episodes_merged(each)
    assert merged.count == 180
    assert len(merged.returns) == 100
    assert sum(x >= 1000 for x in merged.returns) == 50
    assert [*merged.returns][-2:] == [89.0, 1089.0]
    EpisodeStatistics().load_state(merged.state())


def test_settings_are_shared_out():
    config = SACConfig(
        num_envs=4, batch_size=64, buffer_size=1001, learning_starts=101, gradient_steps=-1
    )
    whole, own = share(config, 2, own_envs=False, device=None)
    assert whole == config
    assert (own.num_envs, own.batch_size, own.buffer_size, own.learning_starts) == (2, 32, 500, 51)
    # A minibatch for each transition of all: two for each of a process's own.
    assert (own.utd_ratio, own.gradient_steps) == (2.0, 1)
    assert share(A2CConfig(num_envs=3), 3, own_envs=False, device=None)[1].num_envs == 1
    given_envs, own = share(PPOConfig(num_envs=2), 2, own_envs=True, device=None)
    assert (given_envs.num_envs, own.num_envs, own.batch_size) == (4, 2, 32)
    moved = share(PPOConfig(num_envs=2, device="cuda"), 2, own_envs=False, device="cuda:1")
    assert [one.device for one in moved] == ["cuda:1", "cuda:1"]
    with pytest.raises(ValueError, match=r"num_envs: expected a multiple .*, got 1; pass 2"):
        share(PPOConfig(), 2, own_envs=False, device=None)


def test_ranks_have_seeds_of_their_own():
    seeds = {rank_seed(seed, rank) for seed in range(50) for rank in range(4)}
    assert len(seeds) == 200
    assert rank_seed(3, 0) == 3
