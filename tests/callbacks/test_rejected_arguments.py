"""Rejected arguments of callbacks, loggers and evaluations."""

import gymnasium as gym

from rlox import ArgumentError, ArgumentTypeError, VecEnv
from rlox.callbacks import CheckpointCallback, EarlyStoppingCallback, EvalCallback, VideoRecordingCallback
from rlox.evaluation import evaluate
from rlox.trainers import PPOTrainer
from support.cli_runs import SETTINGS
from support.rejections import expect_rejection, rejections


def make_trainer(env="CartPole-v1"):
    return PPOTrainer(env, 1, runs_dir=None, **SETTINGS)


def train(steps=64, env="CartPole-v1", **hooks):
    return make_trainer(env).train(steps, **hooks)


def add_str_metric(run, metrics):
    metrics["mood"] = "good"


def stop_on_unknown_metric():
    train(640, callbacks=[EarlyStoppingCallback("eval/mean", patience=64)])


@rejections(
    (lambda: EvalCallback(every=0), ArgumentError, "every", "environment steps"),
    (lambda: CheckpointCallback(every=1e4), ArgumentTypeError, "every", "10000"),
    (lambda: CheckpointCallback(9, keep_last=0), ArgumentError, "keep_last", "None for all"),
    (lambda: train(callbacks=[CheckpointCallback(100)]), ArgumentError, "path", "runs_dir"),
    (lambda: VideoRecordingCallback(9, format="avi"), ArgumentError, "format"),
    (stop_on_unknown_metric, ArgumentError, "metric", "rollout/ep_rew_mean"),
    (lambda: EarlyStoppingCallback(mode="up"), ArgumentError, "mode"),
    (lambda: train(callbacks=[EvalCallback]), ArgumentTypeError, "callbacks", "an object"),
    (lambda: train(callbacks=EvalCallback(9)), ArgumentTypeError, "callbacks", "brackets"),
    (lambda: train(callbacks=[add_str_metric]), ArgumentTypeError, "metrics"),
    (lambda: train(env=VecEnv(2), callbacks=[EvalCallback(32)]), ArgumentError, "env", "env="),
    (lambda: train(loggers=["tensorbord"]), ArgumentError, "loggers", "'tensorboard'"),
    (lambda: train(loggers="console"), ArgumentTypeError, "loggers", "brackets"),
    (lambda: train(loggers=["jsonl"]), ArgumentError, "loggers", "runs_dir"),
    (lambda: train(loggers=[3]), ArgumentTypeError, "loggers", "rlox.logger.Logger"),
    (lambda: make_trainer().evaluate(0), ArgumentError, "n_episodes", "one or more"),
    (lambda: make_trainer().evaluate(10.0), ArgumentTypeError, "n_episodes", "pass 10"),
    (lambda: make_trainer().evaluate(1, env="Pendulum-v1"), ArgumentError, "env", "the same spaces"),
    (lambda: evaluate(3, "CartPole-v1"), ArgumentTypeError, "policy", "a trainer"),
    (
        lambda: evaluate(make_trainer(), gym.make("CartPole-v1")),
        *(ArgumentTypeError, "env", "pass an id, a spec or a function"),
    ),
)
def test_invalid_arguments_are_rejected(rejection):
    expect_rejection(rejection)
