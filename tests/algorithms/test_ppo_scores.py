"""What PPO must reach, by evaluation in Gymnasium, and what it must not reach."""

import numpy as np
import pytest

from rlox._rlox import network_backends
from rlox.trainers import PPOTrainer

# Those that the extension may be built without.
OPTIONAL = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name not in network_backends(), reason=f"rlox was built without the feature {name}"
        ),
    )
    for name in ("candle", "burn")
]


def median_score(env, total, backend, change=lambda learner: None):
    scores = []
    for seed in range(1, 6):
        trainer = PPOTrainer(env=env, seed=seed, backend=backend, runs_dir=None)
        change(trainer.learner)
        trainer.train(total)
        scores.append(trainer.evaluate(30)["mean_reward"])
    return np.median(scores)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["auto", "torch", *OPTIONAL])
def test_cartpole_is_solved(backend):
    assert median_score("CartPole-v1", 100_000, backend) >= 475


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_pendulum_is_solved(backend):
    assert median_score("Pendulum-v1", 100_000, backend) >= -200


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_acrobot_is_solved(backend):
    assert median_score("Acrobot-v1", 500_000, backend) >= -95


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_cartpole_is_not_solved_with_advantages_that_belong_to_other_steps(backend):
    def permute_advantages(ppo):
        collect, rng = ppo.collect, np.random.default_rng(0)

        def collect_and_permute():
            whole = collect()
            ppo.buffer.advantages[:] = rng.permutation(ppo.buffer.advantages.ravel()).reshape(
                ppo.buffer.advantages.shape
            )
            return whole

        ppo.collect = collect_and_permute

    assert median_score("CartPole-v1", 100_000, backend, permute_advantages) < 200
