"""Where the time of a run goes: shares that add up to the wall clock, at next to no cost."""

import time

import pytest

from rlox.callbacks import Callback, TimingCallback
from rlox.phases import PHASES, Phases
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer
from toy_runs import NotingLogger, small

ON = {"env_step", "inference", "gae_compute", "gradient_update"}
OFF = {"env_step", "inference", "buffer", "gradient_update"}
CASES = [
    (PPOTrainer, "torch", "CartPole-v1", {"num_envs": 8, "n_steps": 64}, ON | {"buffer"}),
    (A2CTrainer, "torch", "CartPole-v1", {"num_envs": 8}, ON),
    (DQNTrainer, "torch", "CartPole-v1", {"num_envs": 1, "learning_starts": 50}, OFF),
    (SACTrainer, "torch", "Pendulum-v1", {"num_envs": 1, "learning_starts": 50}, OFF),
    (PPOTrainer, "native", "CartPole-v1", {"num_envs": 8}, ON | {"buffer"}),
    (A2CTrainer, "native", "CartPole-v1", {"num_envs": 8}, ON | {"buffer"}),
    (DQNTrainer, "native", "CartPole-v1", {"num_envs": 1, "learning_starts": 50}, OFF),
    (SACTrainer, "native", "Pendulum-v1", {"num_envs": 1, "learning_starts": 50}, OFF),
    (TD3Trainer, "native", "Pendulum-v1", {"num_envs": 1, "learning_starts": 50}, OFF),
    # Which is stepped one by one.
    (
        PPOTrainer,
        "native",
        "FrozenLake-v1",
        {"num_envs": 2, "n_steps": 64, "batch_size": 64},
        ON | {"buffer"},
    ),
    (DQNTrainer, "native", "FrozenLake-v1", {"num_envs": 1, "learning_starts": 50}, OFF),
]


@pytest.mark.parametrize(("kind", "backend", "env", "settings", "phases"), CASES)
def test_shares_add_up_to_the_wall_clock(kind, backend, env, settings, phases):
    if backend == "torch":
        pytest.importorskip("torch")
    for _ in range(3):  # other processes may come between these clocks and those
        trainer = kind(env, 1, backend=backend, runs_dir=None, **settings)
        timing, told = TimingCallback(every=256), NotingLogger()
        began = time.perf_counter()
        trainer.train(768, callbacks=[timing], loggers=[told])
        went_by = pytest.approx(time.perf_counter() - began, rel=0.02, abs=0.002)
        if sum(timing.seconds.values()) == went_by:
            break
    assert sum(timing.seconds.values()) == went_by
    assert sum(timing.shares.values()) == pytest.approx(1, rel=0.02)
    assert {name for name, x in timing.seconds.items() if x > 0} - {"other"} == phases
    rows = [row for _, row in told.rows if "timing/other" in row]
    assert len(rows) >= 1
    for row in rows:
        assert sum(row[f"timing/{name}"] for name in PHASES) == pytest.approx(1, rel=0.02)


class Sleeping(Callback):
    def on_iteration(self, trainer, metrics):
        time.sleep(0.05)


def test_what_callbacks_take_is_other():
    timing = TimingCallback(every=32)
    small().train(128, callbacks=[timing, Sleeping()])
    assert timing.seconds["other"] >= 0.2


def test_time_before_and_between_calls_of_train_does_not_count():
    timing, trainer = TimingCallback(), small()
    trainer.train(32)
    time.sleep(0.2)
    trainer.train(32, callbacks=[timing])
    time.sleep(0.2)
    assert sum(timing.seconds.values()) == pytest.approx(timing.wall_clock, rel=0.02, abs=0.001)
    assert timing.wall_clock < 0.2


def test_a_phase_is_what_went_by_in_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rlox.phases.perf_counter", lambda: now[0])
    phases = Phases()
    for phase, seconds in (
        ("env_step", 1.0),
        ("inference", 2.0),
        ("env_step", 4.0),
        ("other", 8.0),
    ):
        phases.enter(phase)
        now[0] += seconds
    assert {name: x for name, x in phases.read().items() if x} == {
        "env_step": 5.0,
        "inference": 2.0,
        "other": 8.0,
    }


def test_a_learner_without_phases_has_only_other():
    timing, trainer = TimingCallback(), small()
    trainer.learner.phases, clock = None, trainer.learner.phases
    timing.on_train_start(trainer)
    time.sleep(0.01)
    timing.on_train_end(trainer)
    trainer.learner.phases = clock
    assert timing.shares["other"] == pytest.approx(1, rel=0.02)
