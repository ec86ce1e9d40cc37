"""What IMPALA must reach, by evaluation in Gymnasium, and what it must not reach."""

import numpy as np
import pytest
import torch

from rlox.trainers import IMPALATrainer


def median_score(backend, steps=500_000, change=lambda learner: None, **settings):
    scores = []
    for seed in range(1, 6):
        how = {"seed": seed, "backend": backend, "runs_dir": None, **settings}
        with IMPALATrainer(env="CartPole-v1", **how) as trainer:
            change(trainer.learner)
            trainer.train(steps)
            scores.append(trainer.evaluate(30)["mean_reward"])
    print(backend, settings, [round(score, 1) for score in scores])
    return np.median(scores)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("actors", [1, 2])
def test_cartpole_is_solved(backend, actors):
    assert median_score(backend, num_actors=actors) >= 475


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lag", [0, 4])
def test_cartpole_is_solved_in_lockstep(lag):
    assert median_score("auto", lockstep=True, max_lag=lag) >= 475


def mislead(learner):
    """Advantages of other steps of an earlier rollout, in the place of those that were computed."""
    correct, rng, earlier = learner.correct, np.random.default_rng(0), []

    def exchanged(log_probs, values):
        vs, advantages = correct(log_probs, values)
        earlier.append(advantages)
        other = earlier.pop(0) if len(earlier) > 1 else torch.zeros_like(advantages)
        return [vs, other[torch.from_numpy(rng.permutation(len(other)))]]

    learner.correct = exchanged


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cartpole_is_not_solved_with_advantages_that_belong_to_other_steps():
    assert median_score("torch", change=mislead) < 200
