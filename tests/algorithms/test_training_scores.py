"""Scores that training must reach in Gymnasium's environments, and controls that must fail.

More than half of the seeds must reach the score. RLOX_TEST_SEEDS sets the seeds. The default is
five seeds, or three for off-policy learners in torch, which take minutes per seed.
"""

import os

import numpy as np
import pytest
import torch

from rlox._rlox import network_backends
from rlox.trainers import A2CTrainer, DQNTrainer, IMPALATrainer, PPOTrainer, SACTrainer, TD3Trainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
CARTPOLE, PENDULUM, ACROBOT = "CartPole-v1", "Pendulum-v1", "Acrobot-v1"
MOUNTAIN_CAR = "MountainCarContinuous-v0"


SEEDS = [int(seed) for seed in os.environ.get("RLOX_TEST_SEEDS", "1 2 3 4 5").split()]
FEWER_SEEDS = SEEDS if "RLOX_TEST_SEEDS" in os.environ else SEEDS[:3]


def most_seeds_reach(score, cls, env, total, backend, change=None, seeds=None, **settings):
    """Return whether more than half of the seeds reach a score."""
    if seeds is None:
        is_slow = backend == "torch" and cls in (DQNTrainer, SACTrainer, TD3Trainer)
        seeds = FEWER_SEEDS if is_slow else SEEDS
    reached = missed = 0
    for seed in seeds:
        with cls(env, seed, backend=backend, runs_dir=None, **settings) as trainer:
            if change is not None:
                change(trainer.learner)
            trainer.train(total)
            mean = trainer.evaluate(30)["mean_reward"]
        print(f"{cls.__name__} on {env}, seed {seed}: {mean:.1f}")
        reached, missed = reached + (mean >= score), missed + (mean < score)
        if max(reached, missed) > len(seeds) / 2:
            break
    return reached > len(seeds) / 2


SOLVED = {
    "PPO, CartPole": (PPOTrainer, CARTPOLE, 100_000, 475, {}),
    # The scores differ by more than 50 between seeds.
    "PPO, Pendulum": (PPOTrainer, PENDULUM, 100_000, -200, {"seeds": range(1, 10)}),
    "PPO, Acrobot": (PPOTrainer, ACROBOT, 500_000, -95, {}),
    "PPO, actors": (PPOTrainer, CARTPOLE, 100_000, 475, {"async_collect": True}),
    "A2C, CartPole": (A2CTrainer, CARTPOLE, 500_000, 475, {}),
    "A2C, actors": (A2CTrainer, CARTPOLE, 500_000, 475, {"async_collect": True}),
    "IMPALA, 1 actor": (IMPALATrainer, CARTPOLE, 500_000, 475, {"num_actors": 1}),
    "IMPALA, 2 actors": (IMPALATrainer, CARTPOLE, 500_000, 475, {"num_actors": 2}),
    "DQN, Acrobot": (DQNTrainer, ACROBOT, 100_000, -90, {}),
    "SAC, Pendulum": (SACTrainer, PENDULUM, 20_000, -180, {}),
    "SAC with gSDE, MountainCar": (SACTrainer, MOUNTAIN_CAR, 50_000, 90, {}),
    "TD3, Pendulum": (TD3Trainer, PENDULUM, 20_000, -180, {}),
}


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("case", SOLVED)
def test_environments_are_solved(case, backend):
    trainer, env, total, score, settings = SOLVED[case]
    assert most_seeds_reach(score, trainer, env, total, backend, **settings)


@pytest.mark.parametrize("backend", ["candle", "burn"])
def test_ppo_solves_cartpole_on_optional_backends(backend):
    if backend not in network_backends():
        pytest.skip(f"rlox was built without the feature {backend}")
    assert most_seeds_reach(475, PPOTrainer, CARTPOLE, 100_000, backend)


@pytest.mark.parametrize("staleness", [0, 4])
def test_deterministic_impala_solves_cartpole(staleness):
    settings = {"deterministic": True, "max_staleness": staleness}
    assert most_seeds_reach(475, IMPALATrainer, CARTPOLE, 500_000, "auto", **settings)


def permute_advantages(ppo):
    """Permute the advantages of each iteration among the actions."""
    collect, rng = ppo.collect, np.random.default_rng(0)

    def collect_and_permute():
        is_complete = collect()
        advantages = ppo.buffer.advantages
        advantages[:] = rng.permutation(advantages.ravel()).reshape(advantages.shape)
        return is_complete

    ppo.collect = collect_and_permute


def replace_advantages(learner):
    """Replace the advantages by permuted advantages of the previous iteration.

    A2C still learns CartPole if the advantages are permuted within an iteration.
    """
    collect, rng = learner.collect, np.random.default_rng(0)
    earlier = np.zeros_like(learner.buffer.field("advantages"))

    def collect_and_replace():
        is_complete = collect()
        current = learner.buffer.advantages.copy()
        shuffled = rng.permutation(earlier.ravel()).reshape(earlier.shape)
        learner.buffer.advantages[:], earlier[:] = shuffled, current
        return is_complete

    learner.collect = collect_and_replace


def replace_corrected_advantages(impala):
    """Replace the corrected advantages by permuted advantages of an earlier rollout."""
    correct, rng, earlier = impala.correct, np.random.default_rng(0), []

    def correct_and_replace(log_probs, values):
        vs, advantages = correct(log_probs, values)
        earlier.append(advantages)
        other = earlier.pop(0) if len(earlier) > 1 else torch.zeros_like(advantages)
        return [vs, other[torch.from_numpy(rng.permutation(len(other)))]]

    impala.correct = correct_and_replace


def reward_with_noise(learner):
    """Replace the rewards by random numbers that do not depend on the actions."""
    step, rng = learner.stepper.step, np.random.default_rng(0)

    def step_with_noise(actions):
        result = step(actions)
        return result._replace(rewards=rng.normal(size=result.rewards.shape))

    learner.fused = None  # native learners would step in Rust
    learner.stepper.step = step_with_noise


CONTROLS = {
    "PPO": (PPOTrainer, CARTPOLE, 100_000, 200, permute_advantages),
    "A2C": (A2CTrainer, CARTPOLE, 500_000, 200, replace_advantages),
    "IMPALA": (IMPALATrainer, CARTPOLE, 500_000, 200, replace_corrected_advantages),
    "DQN": (DQNTrainer, ACROBOT, 100_000, -120, reward_with_noise),
    "SAC": (SACTrainer, PENDULUM, 20_000, -500, reward_with_noise),
    "TD3": (TD3Trainer, PENDULUM, 20_000, -500, reward_with_noise),
}


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("case", CONTROLS)
def test_environments_are_not_solved_without_a_learning_signal(case, backend):
    trainer, env, total, score, change = CONTROLS[case]
    if case == "IMPALA" and backend == "native":
        pytest.skip("the native learner corrects advantages in Rust")
    # A run of an off-policy learner in torch takes minutes, and one that learns nothing is enough.
    is_slow = backend == "torch" and trainer in (DQNTrainer, SACTrainer, TD3Trainer)
    seeds = FEWER_SEEDS[:1] if is_slow and FEWER_SEEDS != SEEDS else None
    assert not most_seeds_reach(score, trainer, env, total, backend, change, seeds)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("case", ["PPO, actors", "A2C, actors"])
def test_actors_do_not_solve_cartpole_without_learning(case, backend):
    trainer, env, total, _, settings = SOLVED[case]
    frozen = {"seeds": SEEDS[:3], "learning_rate": 0.0}
    assert not most_seeds_reach(200, trainer, env, total, backend, **settings, **frozen)
