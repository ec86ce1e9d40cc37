"""What A2C must reach, by evaluation in Gymnasium, and what it must not reach."""

import numpy as np
import pytest

from rlox.trainers import A2CTrainer


def median_score(env, total, backend, change=lambda learner: None):
    scores = []
    for seed in range(1, 6):
        trainer = A2CTrainer(env=env, seed=seed, backend=backend, runs_dir=None)
        change(trainer.learner)
        trainer.train(total)
        scores.append(trainer.evaluate(30)["mean_reward"])
    return np.median(scores)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_cartpole_is_solved(backend):
    assert median_score("CartPole-v1", 500_000, backend) >= 475


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_cartpole_is_not_solved_with_advantages_that_belong_to_other_steps(backend):
    # Shuffling those of the same iteration is not enough: their mean belongs to its 40 actions, and
    # that is a gradient, only a noisier one, from which CartPole is still learned.
    def take_earlier_advantages(a2c):
        collect, rng = a2c.collect, np.random.default_rng(0)
        earlier = np.zeros_like(a2c.buffer.field("advantages"))

        def collect_and_exchange():
            whole = collect()
            now = a2c.buffer.advantages.copy()
            shuffled = rng.permutation(earlier.ravel()).reshape(earlier.shape)
            a2c.buffer.advantages[:], earlier[:] = shuffled, now
            return whole

        a2c.collect = collect_and_exchange

    assert median_score("CartPole-v1", 500_000, backend, take_earlier_advantages) < 200
