"""Whole runs of DQN, SAC and TD3 as users start them: run folders, settings, autoreset modes."""

import csv
import math

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode

import rlox
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer

CASES = [(DQNTrainer, "CartPole-v1"), (SACTrainer, "Pendulum-v1"), (TD3Trainer, "Pendulum-v1")]
SMALL = {"net_arch": (8,), "batch_size": 8, "learning_starts": 20, "train_freq": 1}
SMALL |= {"gradient_steps": 1}


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(("trainer", "env"), CASES)
def test_a_run_folder_has_rows_from_before_the_first_update(trainer, env, backend, tmp_path):
    if backend == "torch":
        pytest.importorskip("torch")
    made = trainer(env, seed=1, backend=backend, runs_dir=tmp_path, **SMALL)
    result = made.train(40)
    assert result["timesteps"] == 40
    with open(made.run.path / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["time/total_timesteps"]) for row in rows] == list(range(1, 41))
    loss = "train/loss" if trainer is DQNTrainer else "train/critic_loss"
    learned = [not math.isnan(float(row[loss])) for row in rows]
    assert learned == [False] * 20 + [True] * 20
    assert (made.run.path / "checkpoint").is_dir()


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("ours", [True, False])
def test_a_run_makes_all_its_steps_where_environments_reset_in_steps(ours, num_envs, backend):
    if backend == "torch":
        pytest.importorskip("torch")
    if ours:
        env = rlox.VecEnv(num_envs, env_id="Pendulum-v1", autoreset_mode=AutoresetMode.NEXT_STEP)
    else:
        env = gym.make_vec("Pendulum-v1", num_envs)
    settings = SMALL | {"learning_starts": 10**6}
    trainer = SACTrainer(env, seed=1, backend=backend, runs_dir=None, **settings)
    result = trainer.train(900)
    assert (result["timesteps"], result["interrupted"]) == (900, False)
    env.close()


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0"])
def test_an_update_to_data_ratio_takes_the_place_of_a_presets_gradient_steps(env):
    trainer = DQNTrainer(env, seed=1, utd_ratio=0.5, runs_dir=None)
    assert (trainer.config.utd_ratio, trainer.config.gradient_steps) == (0.5, 1)
    assert trainer.sources["gradient_steps"] == "default"
    with pytest.raises(ValueError, match="utd_ratio: expected None beside gradient_steps = 4"):
        DQNTrainer(env, utd_ratio=0.5, gradient_steps=4, runs_dir=None)
