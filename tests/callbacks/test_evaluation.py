"""`EvalCallback`: scores of a run, and the best checkpoint."""

import json

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox import ArgumentError, ArgumentTypeError
from rlox._training.metrics_files import read_metrics
from rlox.callbacks import CheckpointCallback, EvalCallback
from rlox.evaluation import evaluation_seed
from rlox.trainers import DQNTrainer, PPOTrainer
from support.checkpoints import assert_states_equal
from support.rejections import rejects
from support.runs import NotingLogger, small


def test_logged_rows_have_scores_at_the_configured_interval(tmp_path):
    trainer, recorder = small(runs_dir=tmp_path), NotingLogger()
    callback = EvalCallback(every=100, n_episodes=3)
    trainer.train(320, callbacks=[callback], loggers=[recorder])
    rows = read_metrics(trainer.run.path / "metrics.csv")
    pairs = zip(rows["time/total_timesteps"], rows["eval/mean_reward"], strict=True)
    assert [int(steps) for steps, score in pairs if score] == [128, 224, 320]
    score = trainer.evaluate(3, seed=evaluation_seed(trainer.seed, training=True))
    last = recorder.rows[-1][1]
    for name in ("mean_reward", "std_reward"):
        assert last[f"eval/{name}"] == score[name]
    assert last["eval/mean_ep_length"] == np.mean(score["lengths"])
    assert callback.last == score


def test_off_policy_runs_are_evaluated_at_the_configured_interval():
    trainer = DQNTrainer("CartPole-v1", 0, num_envs=1, train_freq=4, runs_dir=None)
    recorder = NotingLogger()
    trainer.train(400, callbacks=[EvalCallback(every=150, n_episodes=1)], loggers=[recorder])
    assert [steps for steps, row in recorder.rows if "eval/mean_reward" in row] == [152, 300]


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_evaluations_do_not_change_training(backend):
    runs = []
    for callbacks in ([], [EvalCallback(every=32, n_episodes=2, deterministic=False)]):
        trainer = small(backend=backend)
        trainer.train(128, callbacks=callbacks)
        runs.append(trainer.learner.state())
    assert_states_equal(*runs)


def test_every_evaluation_uses_the_same_seed():
    seeds = []

    class RecordSeeds(gym.Wrapper):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return self.env.reset(seed=seed, options=options)

    def make(**kwargs):
        return RecordSeeds(gym.make("CartPole-v1", **kwargs))

    trainer = small()
    trainer.train(96, callbacks=[EvalCallback(every=32, n_episodes=1, env=make)])
    first = evaluation_seed(trainer.seed, training=True)
    assert first != evaluation_seed(trainer.seed)
    assert [seed for seed in seeds if seed is not None] == [first] * 3


def make_score(mean):
    return {"mean_reward": mean, "std_reward": 0.0, "returns": [], "lengths": [1]}


def test_the_best_checkpoint_and_score_are_restored_in_a_resumed_run(tmp_path):
    trainer, scores = small(runs_dir=tmp_path), iter([10.0, 30.0, 20.0, 25.0, 31.0])

    trainer.run.evaluate = lambda *args, **kwargs: make_score(next(scores))
    trainer.train(96, callbacks=[EvalCallback(every=32)])
    best = trainer.run.path / "checkpoints/best"
    assert PPOTrainer.load(best, runs_dir=None).timesteps == 64
    trainer.train(32, callbacks=[callback := EvalCallback(every=32)])
    assert (callback.best_mean_reward, callback.last["mean_reward"]) == (30.0, 25.0)
    assert PPOTrainer.load(best, runs_dir=None).timesteps == 64
    trainer.train(32, callbacks=[EvalCallback(every=32)])
    assert PPOTrainer.load(best, runs_dir=None).timesteps == 160
    assert json.loads((best.parent / "scores.json").read_text()) == {"best": 31.0}


def test_a_run_resumed_from_an_older_checkpoint_does_not_replace_a_better_one(tmp_path):
    trainer = small(runs_dir=tmp_path)
    scores = iter([10.0, 30.0])
    trainer.run.evaluate = lambda *args, **kwargs: make_score(next(scores))
    trainer.train(64, callbacks=[EvalCallback(every=32), CheckpointCallback(every=32)])
    folder = trainer.run.path / "checkpoints"
    loaded = PPOTrainer.load(folder / "step-000000032", runs_dir=None)
    loaded.run.evaluate = lambda *args, **kwargs: make_score(20.0)
    loaded.train(32, callbacks=[callback := EvalCallback(every=32, path=folder)])
    assert callback.best_mean_reward == 30.0
    assert PPOTrainer.load(folder / "best", runs_dir=None).timesteps == 64


@pytest.mark.parametrize("other", [{"seed": 2}, {"gamma": 0.9}, {"env": "Acrobot-v1"}])
def test_the_best_checkpoint_of_another_run_is_rejected_at_the_start(tmp_path, other):
    callbacks = [EvalCallback(every=32, n_episodes=1, path=tmp_path)]
    small().train(32, callbacks=callbacks)
    trainer = small(**other)
    with rejects(ArgumentError, "path", "another folder", got=str(tmp_path / "best")):
        trainer.train(32, callbacks=callbacks)
    assert trainer.timesteps == 0


def test_a_resumed_run_on_another_device_or_backend_keeps_its_best_checkpoint(tmp_path):
    trainer = small(backend="torch", net_arch=(8,))
    trainer.train(32, callbacks=[EvalCallback(every=32, n_episodes=1, path=tmp_path)])
    resumed = PPOTrainer.load(tmp_path / "best", backend="native", runs_dir=None)
    resumed.run.evaluate = lambda *args, **kwargs: make_score(-1.0)
    resumed.train(32, callbacks=[callback := EvalCallback(every=32, path=tmp_path)])
    assert callback.best_mean_reward > 0
    assert PPOTrainer.load(tmp_path / "best", runs_dir=None).timesteps == 32


def test_a_best_score_without__a_checkpoint_does_not_count_after_an_error(tmp_path):
    def fail(run, metrics):
        if run.budget_used == 32:
            raise RuntimeError("mine")

    trainer, scores = small(runs_dir=tmp_path), iter([30.0, 20.0])
    trainer.run.evaluate = lambda *args, **kwargs: make_score(next(scores))
    callbacks = [EvalCallback(every=32), fail]
    with pytest.raises(RuntimeError, match="mine"):
        trainer.train(64, callbacks=callbacks)
    trainer.train(32, callbacks=callbacks)
    best = trainer.run.path / "checkpoints"
    assert PPOTrainer.load(best / "best", runs_dir=None).timesteps == 64
    assert json.loads((best / "scores.json").read_text()) == {"best": 20.0}


def test_eval_callback_writes_no_checkpoint_without_a_run_folder_or_with_save_best_false(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small().train(32, callbacks=[EvalCallback(every=32, n_episodes=1)])
    assert list(tmp_path.iterdir()) == []
    trainer = small(runs_dir=tmp_path)
    trainer.train(32, callbacks=[EvalCallback(every=32, n_episodes=1, save_best=False)])
    assert not (trainer.run.path / "checkpoints").exists()


def test_reward_threshold_stops_the_run():
    callback = EvalCallback(every=64, n_episodes=2, reward_threshold=1.0)
    result = small().train(10_000, callbacks=[callback])
    assert (result["timesteps"], result["interrupted"]) == (64, False)
    assert result["stopped_by"].endswith("reached reward_threshold 1")


@pytest.mark.parametrize(
    ("env", "error"), [(lambda: rlox.VecEnv(2), ArgumentTypeError), ("CartPoll-v1", ArgumentError)]
)
def test_environments_that_cannot_be_evaluated_are_rejected_at_the_start(env, error):
    trainer = small()
    with rejects(error, "env"):
        trainer.train(64, callbacks=[EvalCallback(every=64, env=env)])
    assert trainer.timesteps == 0


def test_runs_on_existing_environments_are_evaluated_in_the_env_argument():
    trainer = PPOTrainer(rlox.VecEnv(n=2, env_id="CartPole-v1"), 0, runs_dir=None)
    callback = EvalCallback(every=32, n_episodes=1, env="CartPole-v1")
    trainer.train(64, callbacks=[callback])
    assert callback.best_mean_reward > 0
