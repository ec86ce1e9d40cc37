"""What DQN, SAC and TD3 must reach, by evaluation in Gymnasium, and what they must not reach."""

import numpy as np
import pytest

from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer


def median_score(trainer, env, total, backend, change=lambda learner: None):
    scores = []
    for seed in range(1, 6):
        made = trainer(env=env, seed=seed, backend=backend, runs_dir=None)
        change(made.learner)
        made.train(total)
        scores.append(made.evaluate(30)["mean_reward"])
    return np.median(scores)


def reward_with_noise(learner):
    """Rewards become numbers that have nothing to do with what was done."""
    step, rng = learner.stepper.step, np.random.default_rng(0)

    def step_for_noise(actions):
        came = step(actions)
        return came._replace(rewards=rng.normal(size=came.rewards.shape))

    learner.fused = False  # native learners would step in Rust
    learner.stepper.step = step_for_noise


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_dqn_solves_acrobot(backend):
    assert median_score(DQNTrainer, "Acrobot-v1", 100_000, backend) >= -90


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("trainer", [SACTrainer, TD3Trainer])
def test_pendulum_is_solved(trainer, backend):
    assert median_score(trainer, "Pendulum-v1", 20_000, backend) >= -180


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_sac_solves_mountain_car_continuous_with_gsde(backend):
    assert median_score(SACTrainer, "MountainCarContinuous-v0", 50_000, backend) >= 90


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_dqn_does_not_solve_acrobot_with_noise_for_rewards(backend):
    assert median_score(DQNTrainer, "Acrobot-v1", 100_000, backend, reward_with_noise) < -120


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("trainer", [SACTrainer, TD3Trainer])
def test_pendulum_is_not_solved_with_noise_for_rewards(trainer, backend):
    assert median_score(trainer, "Pendulum-v1", 20_000, backend, reward_with_noise) < -500
