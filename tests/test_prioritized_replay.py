"""`PrioritizedReplayBuffer`: priorities decide what is drawn and how much it weighs."""

import numpy as np
import pytest

import rlox
from replay_rows import check, transition


def filled(count, capacity=10, **keywords):
    buffer = rlox.PrioritizedReplayBuffer(capacity, 2, 1, **keywords)
    for i in range(count):
        buffer.push(*transition(i, truncated=True))
    return buffer


def test_frequencies_and_weights_follow_the_priorities():
    buffer = filled(5, alpha=0.5, beta=0.3, seed=0)
    priorities = np.array([1.0, 4.0, 9.0, 0.25, 100.0])
    buffer.update_priorities(np.arange(5), priorities)
    drawn, weights = np.zeros(5), np.zeros(5)
    for _ in range(2000):
        batch = buffer.sample(5)
        assert np.array_equal(check(batch), batch["indices"])
        drawn += np.bincount(batch["indices"], minlength=5)
        weights[batch["indices"]] = batch["weights"]
    chances = np.sqrt(priorities) / np.sqrt(priorities).sum()
    assert ((drawn - 10_000 * chances) ** 2 / (10_000 * chances)).sum() < 24  # p = 0.0001
    expected = (5 * chances) ** -0.3
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-4)


def test_new_transitions_come_with_the_largest_priority_there_was():
    buffer = filled(3, alpha=1.0, beta=0.0)
    buffer.update_priorities([0, 1, 2], [1.0, 50.0, 1.0])
    buffer.update_priorities([1], [1.0])
    buffer.push(*transition(3, truncated=True))
    drawn = np.concatenate([buffer.sample(4, seed=seed)["indices"] for seed in range(500)])
    share = (drawn == 3).mean()
    assert 0.9 < share < 0.97  # 50 / 53


def test_priorities_that_come_late_meet_no_other_transition():
    buffer = filled(10, alpha=1.0)
    batch = buffer.sample(5, seed=0)
    for i in range(10, 20):
        buffer.push(*transition(i, truncated=True))
    before = [buffer.sample(5, seed=seed)["indices"].tolist() for seed in range(10)]
    buffer.update_priorities(batch["indices"], np.full(5, 1e6))
    after = [buffer.sample(5, seed=seed)["indices"].tolist() for seed in range(10)]
    assert before == after
    assert min(map(min, after)) >= 10


def test_alpha_and_beta_are_told_as_they_were_given(tmp_path):
    buffer = filled(4, alpha=0.7, beta=1 / 3)
    assert (buffer.alpha, buffer.beta) == (0.7, 1 / 3)
    buffer.sample(2, beta=0.4)
    assert buffer.beta == 0.4
    with pytest.raises(ValueError, match="batch_size"):
        buffer.sample(9, beta=0.5)
    assert buffer.beta == 0.4
    buffer.save(tmp_path / "replay")
    again = rlox.PrioritizedReplayBuffer.load(tmp_path / "replay")
    assert (again.alpha, again.beta) == (0.7, 0.4)
    state = buffer.state()
    buffer.sample(2, beta=0.9)
    buffer.load_state(state)
    assert buffer.beta == 0.4
    assert filled(1).alpha == 0.6


def test_beta_is_raised_and_told():
    buffer = filled(4, alpha=1.0, beta=0.0)
    buffer.update_priorities([0, 1, 2, 3], [1.0, 1.0, 1.0, 3.0])
    assert buffer.sample(4, seed=0)["weights"].tolist() == [1.0] * 4
    batch = buffer.sample(4, seed=0, beta=1.0)
    assert (buffer.alpha, buffer.beta) == (1.0, 1.0)
    expected = np.where(batch["indices"] == 3, 1 / 3, 1.0)
    np.testing.assert_allclose(batch["weights"], expected, rtol=1e-5)
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="beta: expected a number in"):
            buffer.sample(4, beta=wrong)
    assert buffer.beta == 1.0


def test_seeds_repeat_and_it_is_a_replay_buffer():
    first, second = (filled(8, seed=3, n_step=2) for _ in "ab")
    for _ in range(3):
        one, other = first.sample(6), second.sample(6)
        assert list(one) == list(other)
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert isinstance(first, rlox.ReplayBuffer)
    assert {"discounts", "weights", "indices"} <= set(one)


def test_memory_can_be_used_again():
    buffer = filled(8, alpha=1.0, beta=1.0)
    buffer.update_priorities(range(8), range(1, 9))
    out = buffer.sample(4, seed=0)
    weights, indices = out["weights"], out["indices"]
    expected = buffer.sample(4, seed=5)
    assert buffer.sample(4, seed=5, out=out) is out
    assert out["weights"] is weights
    assert out["indices"] is indices
    assert np.array_equal(weights, expected["weights"])
    assert np.array_equal(indices, expected["indices"])
    with pytest.raises(ValueError, match='out: expected the key "weights"'):
        buffer.sample(4, out={name: out[name] for name in out if name != "weights"})


@pytest.mark.parametrize(
    ("indices", "priorities", "said"),
    [
        (
            [0, 1],
            [1.0],
            r"priorities: expected shape \[2\], got shape \[1\]; pass one for each of the indices",
        ),
        ([0, 8], [1.0, 1.0], "indices: expected numbers of stored transitions, 0 to 7, got 8"),
        ([-1], [1.0], "indices: expected numbers of transitions, got -1"),
        ([[0]], [1.0], "indices: expected shape .* pass them in one axis"),
        ([0], [-1.0], "priorities: expected finite numbers, at least 0, got -1 in row 0"),
        (
            [0, 1],
            [1.0, np.nan],
            "priorities: expected finite numbers, at least 0, got NaN in row 1",
        ),
        ([0], [np.inf], "priorities: expected finite numbers, at least 0, got inf"),
        (
            [0, 1],
            [1.0, 1e300],
            r"priorities: expected numbers of at most 3.4028235e38, got 1e300 in row 1; clip them",
        ),
    ],
)
def test_priorities_that_make_no_sense_are_refused(indices, priorities, said):
    buffer = filled(8, seed=0)
    buffer.update_priorities([3], [9.0])
    before = buffer.sample(8, seed=1)["indices"].tolist()
    with pytest.raises(ValueError, match=said):
        buffer.update_priorities(indices, priorities)
    assert buffer.sample(8, seed=1)["indices"].tolist() == before


@pytest.mark.parametrize("keywords", [{"alpha": 1.5}, {"alpha": -1}, {"beta": float("nan")}])
def test_settings_that_make_no_sense_are_refused(keywords):
    name = next(iter(keywords))
    with pytest.raises(ValueError, match=rf"{name}: expected a number in \[0, 1\]"):
        rlox.PrioritizedReplayBuffer(10, 2, 1, **keywords)


def test_a_million_pushes_and_updates_leave_the_frequencies_right():
    """The ring goes around a thousand times; nothing drifts."""
    buffer = rlox.PrioritizedReplayBuffer(1000, 1, 1, alpha=1.0, beta=1.0, seed=0)
    rng = np.random.default_rng(0)
    obs, never = np.zeros((1000, 1), np.float32), np.zeros(1000, bool)
    for i in range(1000):
        buffer.push_batch(obs, obs, obs, never, never, never)
        chosen = 1000 * i + rng.integers(0, 1000, 256)
        buffer.update_priorities(chosen, rng.uniform(0, 1e3, 256))
    priorities = np.arange(1.0, 1001.0)
    buffer.update_priorities(999_000 + np.arange(1000), priorities)
    drawn = np.zeros(1000)
    for _ in range(400):
        drawn += np.bincount(buffer.sample(1000)["indices"] - 999_000, minlength=1000)
    expected = 400_000 * priorities / priorities.sum()
    assert ((drawn - expected) ** 2 / expected).sum() < 1200  # stratified: less than 999 are likely
