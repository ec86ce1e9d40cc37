"""Runs that are killed, and go on, in processes of their own: `python resume_runs.py WHAT ...`."""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

from rlox import trainers
from rlox.restoring import go_on_in

ON_POLICY = {"num_envs": 2, "n_steps": 16, "normalize_obs": True, "normalize_reward": True}
OFF_POLICY = {"num_envs": 2, "learning_starts": 40, "buffer_size": 150, "batch_size": 16}
SETTINGS = {
    "ppo": ("CartPole-v1", {**ON_POLICY, "batch_size": 16, "n_epochs": 2, "lr_schedule": "linear"}),
    "a2c": ("Pendulum-v1", {**ON_POLICY, "lr_schedule": "linear"}),
    "impala": ("CartPole-v1", {**ON_POLICY, "lockstep": True, "max_lag": 0}),
    "dqn": ("CartPole-v1", {**OFF_POLICY, "train_freq": 4}),
    "sac": ("Pendulum-v1", {**OFF_POLICY, "net_arch": (16,), "normalize_obs": True}),
    "td3": ("Pendulum-v1", {**OFF_POLICY, "net_arch": (16,)}),
}
TOTAL, HALF = 384, 192
# What differs from one run to the next.
CLOCK = ("time/fps", "time/time_elapsed")


def kind(algorithm):
    return getattr(trainers, f"{algorithm.upper()}Trainer")


def made(algorithm, backend, folder):
    env, settings = SETTINGS[algorithm]
    return kind(algorithm)(env, 1, backend=backend, runs_dir=folder, **settings)


def digest(trainer):
    """What a trainer holds, as short as can be."""
    state = trainer.learner.state()
    members = ("networks", "optimizer", "normalizer", "environment", "replay")
    arrays = {f"{m}.{name}": x for m in members for name, x in getattr(state, m).items()}
    told = {
        name: [str(x.dtype), list(x.shape), hashlib.sha256(x.tobytes()).hexdigest()]
        for name, x in arrays.items()
    }
    return {"arrays": told, "counters": state.counters, "streams": state.streams}


def run_of(folder):
    (manifest,) = Path(folder).glob("*/*/*/config.json")
    return manifest.parent


def killed(algorithm, backend, folder):
    """Saves half way, and is killed later, in the middle of what follows."""

    def save(trainer, metrics):
        if trainer.timesteps == HALF:
            trainer.save(trainer.run.path / "checkpoint")
        if trainer.timesteps >= HALF + 64:
            trainer.run.flush()  # so that there are rows too many
            os.kill(os.getpid(), signal.SIGKILL)

    made(algorithm, backend, folder).train(TOTAL, callbacks=[save])


def interrupted(algorithm, backend, folder):
    """Gets Ctrl-C between two iterations, half way."""

    def press(trainer, metrics):
        if trainer.timesteps == HALF:
            os.kill(os.getpid(), signal.SIGINT)

    result = made(algorithm, backend, folder).train(TOTAL, callbacks=[press])
    assert result["interrupted"], result


def resumed(algorithm, backend, folder):
    """Goes on to where the run was to end, and tells what it holds then."""
    run = run_of(folder)
    trainer = kind(algorithm).load(run, runs_dir=None)
    assert trainer.learner.backend == backend
    go_on_in(trainer, run)
    trainer.train()
    (Path(folder) / "digest.json").write_text(json.dumps(digest(trainer)))


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    {"killed": killed, "interrupted": interrupted, "resumed": resumed}[what](*rest)
