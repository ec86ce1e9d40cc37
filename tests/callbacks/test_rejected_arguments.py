"""Wrong arguments of callbacks, loggers and evaluations: type, argument and hint of the error."""

import gymnasium as gym
import pytest

from cli_runs import SETTINGS
from rlox import VecEnv
from rlox.callbacks import (
    CheckpointCallback,
    EarlyStoppingCallback,
    EvalCallback,
    VideoRecordingCallback,
)
from rlox.evaluation import evaluate
from rlox.trainers import PPOTrainer


def trainer(env="CartPole-v1"):
    return PPOTrainer(env, 1, runs_dir=None, **SETTINGS)


def train(steps=64, env="CartPole-v1", **hooks):
    return trainer(env).train(steps, **hooks)


def return_text(trainer, metrics):
    metrics["mood"] = "good"


def stop_on_unknown_metric():
    train(640, callbacks=[EarlyStoppingCallback("eval/mean", patience=64)])


# Name, call, type of the error, argument, hint.
CASES = [
    ("every=0", lambda: EvalCallback(every=0), ValueError, "every", "environment steps"),
    ("every=1e4", lambda: CheckpointCallback(every=1e4), TypeError, "every", "10000"),
    (
        "keep_last=0",
        lambda: CheckpointCallback(every=9, keep_last=0),
        ValueError,
        *("keep_last", "None for all"),
    ),
    (
        "checkpoints without a folder",
        lambda: train(callbacks=[CheckpointCallback(100)]),
        *(ValueError, "path", "runs_dir"),
    ),
    ("format", lambda: VideoRecordingCallback(9, format="avi"), ValueError, "format", "'gif'"),
    ("metric", stop_on_unknown_metric, ValueError, "metric", "rollout/ep_rew_mean"),
    ("mode", lambda: EarlyStoppingCallback(mode="up"), ValueError, "mode", "'min'"),
    ("class", lambda: train(callbacks=[EvalCallback]), TypeError, "callbacks", "an object"),
    ("no list", lambda: train(callbacks=EvalCallback(9)), TypeError, "callbacks", "brackets"),
    ("text metric", lambda: train(callbacks=[return_text]), TypeError, "metrics", "no number"),
    (
        "EvalCallback of a ready environment",
        lambda: train(env=VecEnv(2), callbacks=[EvalCallback(32)]),
        *(ValueError, "env", "env="),
    ),
    ("logger", lambda: train(loggers=["tensorbord"]), ValueError, "loggers", "'tensorboard'"),
    ("no list of loggers", lambda: train(loggers="console"), TypeError, "loggers", "brackets"),
    ("no folder", lambda: train(loggers=["jsonl"]), ValueError, "loggers", "runs_dir"),
    ("number as logger", lambda: train(loggers=[3]), TypeError, "loggers", "rlox.logger.Logger"),
    ("no episodes", lambda: trainer().evaluate(0), ValueError, "n_episodes", "one or more"),
    ("float episodes", lambda: trainer().evaluate(10.0), TypeError, "n_episodes", "pass 10"),
    (
        "evaluate in a ready environment",
        lambda: evaluate(trainer(), gym.make("CartPole-v1")),
        *(TypeError, "env", "pass what makes it"),
    ),
    ("no policy", lambda: evaluate(3, "CartPole-v1"), TypeError, "policy", "a trainer"),
    (
        "other spaces",
        lambda: trainer().evaluate(1, env="Pendulum-v1"),
        *(ValueError, "env", "the same spaces"),
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "argument", "hint"), [x[1:] for x in CASES], ids=[x[0] for x in CASES]
)
def test_wrong_argument_is_rejected_by_name(call, error, argument, hint):
    with pytest.raises(error, match=f"^{argument}") as raised:
        call()
    assert hint in str(raised.value)
