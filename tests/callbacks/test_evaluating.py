"""Scores while a run goes on, and what becomes of the best."""

import csv
import json
import math

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox.callbacks import EvalCallback
from rlox.evaluation import evaluation_seed
from rlox.trainers import DQNTrainer, PPOTrainer
from support.runs import NotingLogger, small


def columns(run, *names):
    with open(run / "metrics.csv") as file:
        return [tuple(row[name] for name in names) for row in csv.DictReader(file)]


def test_the_row_after_every_so_many_steps_has_the_scores(tmp_path):
    trainer, told = small(runs_dir=tmp_path), NotingLogger()
    callback = EvalCallback(every=100, n_episodes=3)
    trainer.train(320, callbacks=[callback], loggers=[told])
    rows = columns(trainer.run.path, "time/total_timesteps", "eval/mean_reward")
    assert [int(steps) for steps, score in rows if score] == [128, 224, 320]
    score = trainer.evaluate(3, seed=evaluation_seed(trainer.seed, training=True))
    last = told.rows[-1][1]
    assert (last["eval/mean_reward"], last["eval/std_reward"], last["eval/mean_ep_length"]) == (
        score["mean_reward"],
        score["std_reward"],
        np.mean(score["lengths"]),
    )
    assert callback.last == score


def test_off_policy_iterations_of_a_few_steps_are_evaluated_as_often():
    trainer, told = (
        DQNTrainer("CartPole-v1", 0, num_envs=1, train_freq=4, runs_dir=None),
        NotingLogger(),
    )
    trainer.train(400, callbacks=[EvalCallback(every=150, n_episodes=1)], loggers=[told])
    assert [steps for steps, row in told.rows if "eval/mean_reward" in row] == [152, 300]


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_training_goes_on_as_without(backend):
    if backend == "torch":
        pytest.importorskip("torch")
    runs = []
    for callbacks in ([], [EvalCallback(every=32, n_episodes=2, deterministic=False)]):
        trainer = small(backend=backend)
        trainer.train(128, callbacks=callbacks)
        runs.append(trainer.learner.state())
    for name, array in runs[0].networks.items():
        np.testing.assert_array_equal(array, runs[1].networks[name])
    assert runs[0].streams == runs[1].streams


def test_the_same_episodes_are_played_each_time():
    seen = []

    class Noted(gym.Wrapper):
        def reset(self, *, seed=None, options=None):
            seen.append(seed)
            return self.env.reset(seed=seed, options=options)

    def make(**kwargs):
        return Noted(gym.make("CartPole-v1", **kwargs))

    trainer = small()
    trainer.train(96, callbacks=[EvalCallback(every=32, n_episodes=1, env=make)])
    first = evaluation_seed(trainer.seed, training=True)
    assert first != evaluation_seed(trainer.seed)
    assert [seed for seed in seen if seed is not None] == [first] * 3


def test_the_best_is_in_the_run_folder_and_a_resumed_run_knows_how_good_it_was(tmp_path):
    trainer, scores = small(runs_dir=tmp_path), iter([10.0, 30.0, 20.0, 25.0, 31.0])

    def evaluate(*args, **kwargs):
        return {"mean_reward": next(scores), "std_reward": 0.0, "returns": [], "lengths": [1]}

    trainer.evaluate = evaluate
    trainer.train(96, callbacks=[EvalCallback(every=32)])
    best = trainer.run.path / "checkpoints/best"
    assert PPOTrainer.load(best, runs_dir=None).timesteps == 64
    trainer.train(32, callbacks=[callback := EvalCallback(every=32)])
    assert (callback.best_mean_reward, callback.last["mean_reward"]) == (30.0, 25.0)
    assert PPOTrainer.load(best, runs_dir=None).timesteps == 64
    trainer.train(32, callbacks=[EvalCallback(every=32)])
    assert PPOTrainer.load(best, runs_dir=None).timesteps == 160
    assert json.loads((best.parent / "scores.json").read_text()) == {"best": 31.0}


def test_without_a_run_folder_or_wish_nothing_is_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small().train(32, callbacks=[EvalCallback(every=32, n_episodes=1)])
    assert list(tmp_path.iterdir()) == []
    trainer = small(runs_dir=tmp_path)
    trainer.train(32, callbacks=[EvalCallback(every=32, n_episodes=1, save_best=False)])
    assert not (trainer.run.path / "checkpoints").exists()


def test_the_run_ends_at_the_threshold():
    callback = EvalCallback(every=64, n_episodes=2, reward_threshold=1.0)
    result = small().train(10_000, callbacks=[callback])
    assert (result["timesteps"], result["interrupted"]) == (64, False)
    assert result["stopped_by"].endswith("reached reward_threshold 1")


def test_environments_already_made_need_others_to_evaluate_in():
    trainer = PPOTrainer(rlox.VecEnv(n=2, env_id="CartPole-v1"), 0, runs_dir=None)
    with pytest.raises(ValueError, match="env: expected an id or a function, as the trainer was"):
        trainer.train(64, callbacks=[EvalCallback(every=32)])
    assert trainer.timesteps == 0
    callback = EvalCallback(every=32, n_episodes=1, env="CartPole-v1")
    trainer.train(64, callbacks=[callback])
    assert callback.best_mean_reward > 0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"every": 0}, ValueError, "every: expected an integer of at least 1, got 0"),
        ({"every": 1e4}, TypeError, "pass 10000"),
        (
            {"every": 9, "n_episodes": 0},
            ValueError,
            "n_episodes: expected an integer of at least 1",
        ),
        (
            {"every": 9, "reward_threshold": math.nan},
            ValueError,
            "reward_threshold: expected a finite number",
        ),
        ({"every": 9, "deterministic": 1}, ValueError, "deterministic: expected True or False"),
        ({"every": 9, "save_best": "no"}, ValueError, "save_best: expected True or False"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, words):
    with pytest.raises(error, match=words):
        EvalCallback(**arguments)
