"""Small runs, pairs of learners, and callbacks and loggers that keep what they receive."""

import shutil

import numpy as np

from rlox import make_vec
from rlox._training.resume import resume_in
from rlox.algorithms import A2C, PPO, A2CConfig, PPOConfig
from rlox.callbacks import Callback
from rlox.learners.native_on_policy import NativeA2C, NativePPO
from rlox.trainers import PPOTrainer

SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2}


def small(env="CartPole-v1", seed=1, **kwargs):
    """A trainer whose iterations are 32 steps."""
    return PPOTrainer(env=env, seed=seed, **{"runs_dir": None, **SMALL, **kwargs})


class Noting(Callback):
    """Notes its calls in a list, under its name."""

    def __init__(self, name, notes, adds=None):
        self.name, self.notes, self.adds = name, notes, adds or {}

    def on_train_start(self, trainer):
        self.notes.append((self.name, "on_train_start"))

    def on_iteration(self, trainer, metrics):
        self.notes.append((self.name, "on_iteration"))
        metrics.update(self.adds)

    def on_row_logged(self, trainer, metrics):
        self.notes.append((self.name, "on_row_logged"))

    def on_train_end(self, trainer):
        self.notes.append((self.name, "on_train_end"))


class NotingLogger:
    """As `Noting`; `rows` has what it was given."""

    def __init__(self, name="logger", notes=None):
        self.name, self.notes = name, [] if notes is None else notes
        self.rows, self.results = [], []

    def start(self, trainer):
        self.notes.append((self.name, "start"))

    def log(self, metrics, timesteps):
        self.notes.append((self.name, "log"))
        self.rows.append((timesteps, dict(metrics)))

    def finish(self, result):
        self.notes.append((self.name, "finish"))
        self.results.append(result)


def fail(trainer, metrics):
    if trainer.seed in (1, 3):
        raise OSError(28, f"no room for {trainer.seed}")


def failing():
    """Return callbacks that fail for two seeds; other processes can import this function."""
    return [fail]


def pair(algorithm, env, backend="native", **settings):
    """Return a native and a torch learner with equal weights and equal rollouts."""
    make, other, config = {
        "ppo": (NativePPO, PPO, PPOConfig),
        "a2c": (NativeA2C, A2C, A2CConfig),
    }[algorithm]
    chosen = config(num_envs=3, n_steps=11, **settings)
    native = make(make_vec(env, 3), chosen, 5, backend)
    theirs = other(make_vec(env, 3), chosen, seed=5)
    theirs.policy.load_state_dict(native.to_torch().state_dict())
    with theirs.seeded():
        assert theirs.collect()
    assert native.collect()
    for name in ("obs", "actions", "log_probs", "values", "advantages", "returns", "valid"):
        getattr(native.buffer, name)[...] = getattr(theirs.buffer, name)
    # Noise, so that ratios and values are clipped.
    rng = np.random.default_rng(0)
    for name in ("log_probs", "values", "advantages", "returns"):
        noise = rng.normal(0, 0.3, (11, 3)).astype(np.float32)
        for learner in (native, theirs):
            getattr(learner.buffer, name)[...] += noise
    if algorithm == "a2c":  # whose torch learner computes the values from these two
        for learner in (native, theirs):
            learner.buffer.values[...] = learner.buffer.returns - learner.buffer.advantages
    return native, theirs


def train_half(folder, runs_dir, logger):
    """Train 128 steps, save `folder/half` after 64, and return the run folder."""
    half = folder / "half"
    save = lambda trainer, _: trainer.timesteps == 64 and trainer.save(half)  # noqa: E731
    trainer = small(runs_dir=runs_dir)
    trainer.train(128, callbacks=[save], loggers=[logger(every=1)])
    return trainer.run.path


def resumed(folder, run):
    """Return a trainer that resumes from `folder/half` in the folder of a run that was killed."""
    shutil.rmtree(run / "checkpoint")  # written at the end of a run that was not killed
    half = PPOTrainer.load(folder / "half", runs_dir=None)
    resume_in(half, run)
    return half
