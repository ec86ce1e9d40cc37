"""Runs that are killed and resumed in child processes: `python resume_runs.py ACTION ...`."""

import csv
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

from rlox import trainers
from rlox._training.resume import resume_in
from rlox.callbacks import CheckpointCallback

ON_POLICY = {"num_envs": 2, "n_steps": 16, "normalize_obs": True, "normalize_reward": True}
OFF_POLICY = {"num_envs": 2, "learning_starts": 40, "buffer_size": 150, "batch_size": 16}
SETTINGS = {
    "ppo": ("CartPole-v1", {**ON_POLICY, "batch_size": 16, "n_epochs": 2, "lr_schedule": "linear"}),
    "a2c": ("Pendulum-v1", {**ON_POLICY, "lr_schedule": "linear"}),
    "impala": ("CartPole-v1", {**ON_POLICY, "deterministic": True, "max_staleness": 0}),
    "dqn": ("CartPole-v1", {**OFF_POLICY, "train_freq": 4}),
    "sac": ("Pendulum-v1", {**OFF_POLICY, "net_arch": (16,), "normalize_obs": True}),
    "td3": ("Pendulum-v1", {**OFF_POLICY, "net_arch": (16,)}),
}
TOTAL, HALF = 384, 192
# Metrics that differ between equal runs.
CLOCK = ("time/fps", "time/time_elapsed")


def trainer_class(algorithm):
    return getattr(trainers, f"{algorithm.upper()}Trainer")


def make_trainer(algorithm, backend, folder):
    env, settings = SETTINGS[algorithm]
    return trainer_class(algorithm)(env, 1, backend=backend, runs_dir=folder, **settings)


def digest(trainer):
    """Return checksums of the arrays, the counters and the streams of a trainer."""
    state = trainer.learner.state()
    members = ("networks", "optimizer", "normalizer", "environment", "replay")
    arrays = {f"{m}.{name}": x for m in members for name, x in getattr(state, m).items()}
    digests = {
        name: [str(x.dtype), list(x.shape), hashlib.sha256(x.tobytes()).hexdigest()] for name, x in arrays.items()
    }
    return {"arrays": digests, "counters": state.counters, "streams": state.streams}


def run_of(folder):
    (manifest,) = Path(folder).glob("*/*/*/config.json")
    return manifest.parent


def table(run):
    """Return the rows of a run's metrics, without clocks."""
    with open(run / "metrics.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    return [{name: x for name, x in row.items() if name not in CLOCK} for row in rows]


def run_until_killed(algorithm, backend, folder):
    """Save a checkpoint at HALF steps, and kill the process some iterations later."""

    def kill(run, metrics):
        if run.budget_used >= HALF + 64:
            run.folder.metrics.flush()  # rows of steps after the checkpoint
            os.kill(os.getpid(), signal.SIGKILL)

    callbacks = [CheckpointCallback(every=HALF), kill]
    make_trainer(algorithm, backend, folder).train(TOTAL, callbacks=callbacks)


def run_until_interrupted(algorithm, backend, folder):
    """Raise SIGINT between two iterations, at HALF steps."""

    def interrupt(run, metrics):
        if run.budget_used == HALF:
            os.kill(os.getpid(), signal.SIGINT)

    result = make_trainer(algorithm, backend, folder).train(TOTAL, callbacks=[interrupt])
    assert result["interrupted"], result


def resume(algorithm, backend, folder):
    """Resume to the end of the run, and write a digest of the final state."""
    run = run_of(folder)
    trainer = trainer_class(algorithm).load(run, runs_dir=None)
    assert trainer.learner.backend == backend
    resume_in(trainer.run, run)
    trainer.train()
    (Path(folder) / "digest.json").write_text(json.dumps(digest(trainer)))


if __name__ == "__main__":
    action, *arguments = sys.argv[1:]
    actions = {"killed": run_until_killed, "interrupted": run_until_interrupted, "resumed": resume}
    actions[action](*arguments)
