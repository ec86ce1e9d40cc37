"""Wrong arguments of callbacks, loggers and evaluations: type, argument and hint of the error."""

import gymnasium as gym

from rlox import ArgumentError, ArgumentTypeError, VecEnv
from rlox.callbacks import (
    CheckpointCallback,
    EarlyStoppingCallback,
    EvalCallback,
    VideoRecordingCallback,
)
from rlox.evaluation import evaluate
from rlox.trainers import PPOTrainer
from support.cli_runs import SETTINGS
from support.refusals import expect_refusal, refusals


def trainer(env="CartPole-v1"):
    return PPOTrainer(env, 1, runs_dir=None, **SETTINGS)


def train(steps=64, env="CartPole-v1", **hooks):
    return trainer(env).train(steps, **hooks)


def return_text(trainer, metrics):
    metrics["mood"] = "good"


def stop_on_unknown_metric():
    train(640, callbacks=[EarlyStoppingCallback("eval/mean", patience=64)])


@refusals(
    (lambda: EvalCallback(every=0), ArgumentError, "every", "environment steps"),
    (lambda: CheckpointCallback(every=1e4), ArgumentTypeError, "every", "10000"),
    (lambda: CheckpointCallback(9, keep_last=0), ArgumentError, "keep_last", "None for all"),
    (lambda: train(callbacks=[CheckpointCallback(100)]), ArgumentError, "path", "runs_dir"),
    (lambda: VideoRecordingCallback(9, format="avi"), ArgumentError, "format"),
    (stop_on_unknown_metric, ArgumentError, "metric", "rollout/ep_rew_mean"),
    (lambda: EarlyStoppingCallback(mode="up"), ArgumentError, "mode"),
    (lambda: train(callbacks=[EvalCallback]), ArgumentTypeError, "callbacks", "an object"),
    (lambda: train(callbacks=EvalCallback(9)), ArgumentTypeError, "callbacks", "brackets"),
    (lambda: train(callbacks=[return_text]), ArgumentTypeError, "metrics"),
    (lambda: train(env=VecEnv(2), callbacks=[EvalCallback(32)]), ArgumentError, "env", "env="),
    (lambda: train(loggers=["tensorbord"]), ArgumentError, "loggers", "'tensorboard'"),
    (lambda: train(loggers="console"), ArgumentTypeError, "loggers", "brackets"),
    (lambda: train(loggers=["jsonl"]), ArgumentError, "loggers", "runs_dir"),
    (lambda: train(loggers=[3]), ArgumentTypeError, "loggers", "rlox.logger.Logger"),
    (lambda: trainer().evaluate(0), ArgumentError, "n_episodes", "one or more"),
    (lambda: trainer().evaluate(10.0), ArgumentTypeError, "n_episodes", "pass 10"),
    (lambda: trainer().evaluate(1, env="Pendulum-v1"), ArgumentError, "env", "the same spaces"),
    (lambda: evaluate(3, "CartPole-v1"), ArgumentTypeError, "policy", "a trainer"),
    (
        lambda: evaluate(trainer(), gym.make("CartPole-v1")),
        *(ArgumentTypeError, "env", "pass an id, a spec or a function"),
    ),
)
def test_wrong_argument_is_rejected_by_name(refusal):
    expect_refusal(refusal)
