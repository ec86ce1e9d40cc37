"""Small runs, pairs of learners, and callbacks and loggers that record their calls."""

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
    """Return a trainer whose iterations have 32 steps."""
    return PPOTrainer(env=env, seed=seed, **{"runs_dir": None, **SMALL, **kwargs})


class Noting(Callback):
    """Callback that appends (name, method) to a list at each call."""

    def __init__(self, name, notes, adds=None):
        self.name, self.notes, self.adds = name, notes, adds or {}

    def on_train_start(self, run):
        self.notes.append((self.name, "on_train_start"))

    def on_iteration(self, run, metrics):
        self.notes.append((self.name, "on_iteration"))
        metrics.update(self.adds)

    def on_row_logged(self, run, metrics):
        self.notes.append((self.name, "on_row_logged"))

    def on_train_end(self, run):
        self.notes.append((self.name, "on_train_end"))


class NotingLogger:
    """Logger that records its calls as `Noting` does; `rows` has the logged metrics."""

    def __init__(self, name="logger", notes=None):
        self.name, self.notes = name, [] if notes is None else notes
        self.rows, self.results = [], []

    def start(self, info):
        self.notes.append((self.name, "start"))

    def log(self, metrics, timesteps):
        self.notes.append((self.name, "log"))
        self.rows.append((timesteps, dict(metrics)))

    def finish(self, result):
        self.notes.append((self.name, "finish"))
        self.results.append(result)


def fail(run, metrics):
    if run.seed in (1, 3):
        raise OSError(28, f"no space for {run.seed}")


def failing():
    """Return callbacks that fail for two seeds; other processes can import this function."""
    return [fail]


def pair(algorithm, env, backend="native", **settings):
    """Return a native and a torch learner with equal weights and equal rollouts."""
    native_class, torch_class, config_class = {"ppo": (NativePPO, PPO, PPOConfig), "a2c": (NativeA2C, A2C, A2CConfig)}[
        algorithm
    ]
    config = config_class(num_envs=3, n_steps=11, **settings)
    native = native_class(make_vec(env, 3), config, 5, backend)
    reference = torch_class(make_vec(env, 3), config, seed=5)
    reference.policy.load_state_dict(native.to_torch().state_dict())
    with reference.seeded():
        assert reference.collect()
    assert native.collect()
    for name in ("obs", "actions", "log_probs", "values", "advantages", "returns", "valid"):
        getattr(native.buffer, name)[...] = getattr(reference.buffer, name)
    # The noise makes ratios and values exceed the clip ranges.
    rng = np.random.default_rng(0)
    for name in ("log_probs", "values", "advantages", "returns"):
        noise = rng.normal(0, 0.3, (11, 3)).astype(np.float32)
        for learner in (native, reference):
            getattr(learner.buffer, name)[...] += noise
    if algorithm == "a2c":  # the torch learner computes the values from these fields
        for learner in (native, reference):
            learner.buffer.values[...] = learner.buffer.returns - learner.buffer.advantages
    return native, reference


def train_half(folder, runs_dir, logger):
    """Train 128 steps, save `folder/half` after 64, and return the run folder."""
    half = folder / "half"
    save = lambda run, _: run.budget_used == 64 and run.save(half)  # noqa: E731
    trainer = small(runs_dir=runs_dir)
    trainer.train(128, callbacks=[save], loggers=[logger(every=1)])
    return trainer.run.path


def load_half(folder, run):
    """Return a trainer that resumes from `folder/half` in the run folder, as after a kill."""
    shutil.rmtree(run / "checkpoint")  # a killed run has no final checkpoint
    half = PPOTrainer.load(folder / "half", runs_dir=None)
    resume_in(half.run, run)
    return half
