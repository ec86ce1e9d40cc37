"""Settings, seeds, statistics and episodes of ranks, and merged states."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlox import ArgumentError, Normalizer
from rlox.configs import A2CConfig, PPOConfig, SACConfig
from rlox.distributed._ddp_state import flatten_statistics, merge_episodes, merge_statistics, rank_seed, shard_config
from rlox.learners import EpisodeStatistics
from support.rejections import rejects


def make_normalizer(state=None):
    result = Normalizer(1, (2,))
    if state is not None:
        result.load_state(state)
    return result


@settings(max_examples=20)
@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=4))
def test_merged_statistics_equal_statistics_of_a_single_normalizer(rounds):
    stream, single = np.random.default_rng(1), make_normalizer()
    ranks = [make_normalizer() for _ in range(3)]
    base = single.state()
    for counts in rounds:
        for rank, count in zip(ranks, counts, strict=True):
            if count:  # some ranks have no observations
                rows = stream.normal(100, 3, (count, 2)).astype(np.float32)
                rank.update_obs(rows)
                single.update_obs(rows)
        rows = np.stack([flatten_statistics(rank.state()) for rank in ranks])
        merged = merge_statistics(base, rows)
        ranks = [make_normalizer(rank.state() | merged) for rank in ranks]
        base = ranks[0].state()
    for name, expected in single.state().items():
        np.testing.assert_allclose(base[name], expected, rtol=1e-11)


def test_merged_episodes_are_the_last_episodes_of_every_rank():
    ranks = [EpisodeStatistics(), EpisodeStatistics()]
    for k, episodes in enumerate(ranks):
        episodes.add(np.arange(90.0) + 1000 * k, np.arange(90))
    merged = merge_episodes([episodes.state() for episodes in ranks])
    assert merged.count == 180
    assert len(merged.returns) == 100
    assert sum(x >= 1000 for x in merged.returns) == 50
    assert [*merged.returns][-2:] == [89.0, 1089.0]
    EpisodeStatistics().load_state(merged.state())


def test_settings_are_divided_by_the_number_of_ranks():
    config = SACConfig(num_envs=4, batch_size=64, buffer_size=1001, learning_starts=101, gradient_steps=-1)
    total, local = shard_config(config, 2, has_local_envs=False, device=None)
    assert total == config
    sizes = (local.num_envs, local.batch_size, local.buffer_size, local.learning_starts)
    assert sizes == (2, 32, 500, 51)
    # A minibatch per transition of two ranks is two minibatches per local transition.
    assert (local.utd_ratio, local.gradient_steps) == (2.0, 1)
    assert shard_config(A2CConfig(num_envs=3), 3, has_local_envs=False, device=None)[1].num_envs == 1
    total, local = shard_config(PPOConfig(num_envs=2), 2, has_local_envs=True, device=None)
    assert (total.num_envs, local.num_envs, local.batch_size) == (4, 2, 32)
    config = PPOConfig(num_envs=2, device="cuda")
    configs = shard_config(config, 2, has_local_envs=False, device="cuda:1")
    assert [x.device for x in configs] == ["cuda:1", "cuda:1"]
    with rejects(ArgumentError, "num_envs", "pass 2", got="1"):
        shard_config(PPOConfig(), 2, has_local_envs=False, device=None)


def test_ranks_have_different_seeds():
    seeds = {rank_seed(seed, rank) for seed in range(50) for rank in range(4)}
    assert len(seeds) == 200
    assert rank_seed(3, 0) == 3
