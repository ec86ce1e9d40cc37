"""Where the time of a run goes: shares that add up to the wall clock, at next to no cost."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from rlox import phases
from rlox.callbacks import Callback, TimingCallback
from rlox.phases import PHASES
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer
from support.runs import NotingLogger, small

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


@pytest.mark.parametrize(("kind", "backend", "env", "settings", "expected"), CASES)
def test_shares_add_up_to_the_wall_clock(kind, backend, env, settings, expected):
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
    assert {name for name, x in timing.seconds.items() if x > 0} - {"other"} == expected
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


def test_phases_add_up_to_what_went_by():
    began = time.perf_counter()
    phases.start()
    for phase, seconds in (("env_step", 0.01), ("inference", 0.02), ("env_step", 0.01)):
        phases.enter(phase)
        time.sleep(seconds)
    phases.enter("other")
    spent, went_by = phases.read(), time.perf_counter() - began
    phases.stop()
    assert spent["env_step"] >= 0.02
    assert spent["inference"] >= 0.02
    assert sum(spent.values()) == pytest.approx(went_by, abs=0.005)
    assert set(phases.read().values()) == {0.0}


def test_another_callback_and_a_run_within_do_not_disturb():
    class Trains(Callback):
        def on_train_start(self, trainer):
            small().train(32, callbacks=[TimingCallback()])

    timing, other = TimingCallback(), TimingCallback()
    small().train(512, callbacks=[timing, Trains(), other])
    for it in (timing, other):
        assert sum(it.seconds.values()) == pytest.approx(it.wall_clock, rel=0.02, abs=0.001)
    assert timing.wall_clock > other.wall_clock
    assert set(phases.read().values()) == {0.0}


def test_a_run_that_fails_stops_the_clock():
    class Failing(Callback):
        def on_iteration(self, trainer, metrics):
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        small().train(128, callbacks=[TimingCallback(), Failing()])
    assert set(phases.read().values()) == {0.0}


def test_a_learner_without_phases_has_only_other():
    timing = TimingCallback()
    trainer = SimpleNamespace(timesteps=0, target_timesteps=0)
    timing.on_train_start(trainer)
    time.sleep(0.01)
    timing.on_train_end(trainer)
    assert timing.shares["other"] == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(("kind", "backend", "env", "settings", "_phases"), CASES)
def test_results_are_the_same_with_it(kind, backend, env, settings, _phases):
    if backend == "torch":
        pytest.importorskip("torch")

    def trained(*callbacks):
        trainer, told = kind(env, 1, backend=backend, runs_dir=None, **settings), NotingLogger()
        trainer.train(256, callbacks=callbacks, loggers=[told])
        rows = [
            {name: x for name, x in row.items() if not name.startswith(("time/", "timing/"))}
            for _, row in told.rows
        ]
        return rows, trainer.learner.state().networks

    (rows, networks), (plain, expected) = trained(TimingCallback(every=1)), trained()
    np.testing.assert_equal(rows, plain)
    np.testing.assert_equal(networks, expected)


def test_a_short_run_is_told_in_its_last_row(tmp_path):
    trainer, told = small(runs_dir=tmp_path), NotingLogger()
    trainer.train(64, callbacks=[TimingCallback()], loggers=[told])
    shares = [{n: x for n, x in row.items() if n.startswith("timing/")} for _, row in told.rows]
    assert [bool(row) for row in shares] == [False, True]
    assert sum(shares[-1].values()) == pytest.approx(1)
