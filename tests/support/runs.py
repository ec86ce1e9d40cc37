"""Small runs, and callbacks and loggers that note what they are told."""

from rlox.callbacks import Callback
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


class Fails(Callback):
    """Fails with two of the seeds."""

    def on_iteration(self, trainer, metrics):
        if trainer.seed in (1, 3):
            raise OSError(28, f"no room for {trainer.seed}")


def failing():
    """What other processes, too, can import."""
    return [Fails()]
