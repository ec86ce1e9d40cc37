"""`TimingCallback` and `ProgressBar`: shares of the wall clock, speed and remaining time."""

import time

import numpy as np
import pytest

from rlox import _timing as phases
from rlox._registry import ALGORITHMS
from rlox._timing import PHASES
from rlox.callbacks import Callback, ProgressBar, TimingCallback
from rlox.trainers import load_trainer
from support.runs import NotingLogger, small

A2C = {"env_step", "inference", "gae_compute", "gradient_update"}
ON, OFF = A2C | {"buffer"}, {"env_step", "inference", "buffer", "gradient_update"}
PPO_SETTINGS = {"num_envs": 8, "n_steps": 64}
OFF_SETTINGS = {"num_envs": 1, "learning_starts": 50}
CASES = [
    ("ppo", "torch", "CartPole-v1", PPO_SETTINGS, ON),
    ("a2c", "torch", "CartPole-v1", {"num_envs": 8}, A2C),
    ("dqn", "torch", "CartPole-v1", OFF_SETTINGS, OFF),
    ("sac", "torch", "Pendulum-v1", OFF_SETTINGS, OFF),
    ("ppo", "native", "CartPole-v1", {"num_envs": 8}, ON),
    ("a2c", "native", "CartPole-v1", {"num_envs": 8}, ON),
    ("dqn", "native", "CartPole-v1", OFF_SETTINGS, OFF),
    ("sac", "native", "Pendulum-v1", OFF_SETTINGS, OFF),
    ("td3", "native", "Pendulum-v1", OFF_SETTINGS, OFF),
    # Python steps these environments.
    ("ppo", "native", "FrozenLake-v1", {**PPO_SETTINGS, "num_envs": 2, "batch_size": 64}, ON),
    ("dqn", "native", "FrozenLake-v1", OFF_SETTINGS, OFF),
]


def run_training(algorithm, backend, env, settings, *callbacks):
    """Return seconds, rows without times, rows with shares, and networks of a run."""
    logger = NotingLogger()
    trainer = load_trainer(ALGORITHMS[algorithm])(env, 1, backend=backend, runs_dir=None, **settings)
    start = time.perf_counter()
    trainer.train(512, callbacks=callbacks, loggers=[logger])
    seconds, rows = time.perf_counter() - start, [row for _, row in logger.rows]
    plain = [{n: x for n, x in r.items() if not n.startswith(("time/", "timing/"))} for r in rows]
    shares = [row for row in rows if "timing/other" in row]
    return seconds, plain, shares, trainer.learner.state().networks


@pytest.mark.parametrize(("algorithm", "backend", "env", "settings", "expected"), CASES)
def test_shares_sum_to_1_and_training_is_unchanged(algorithm, backend, env, settings, expected):
    run = algorithm, backend, env, settings
    timing = TimingCallback(every=256)
    seconds, rows, shares, networks = run_training(*run, timing)
    assert 0 < sum(timing.seconds.values()) <= seconds
    assert sum(timing.shares.values()) == pytest.approx(1, rel=0.02)
    assert {name for name, x in timing.seconds.items() if x > 0} - {"other"} == expected
    assert shares
    for row in shares:
        assert sum(row[f"timing/{name}"] for name in PHASES) == pytest.approx(1, rel=0.02)
    _, plain, _, expected_networks = run_training(*run)
    np.testing.assert_equal(rows, plain)
    np.testing.assert_equal(networks, expected_networks)


def test_time_of_callbacks_counts_as_other():
    timing = TimingCallback(every=32)
    small().train(128, callbacks=[timing, lambda *_: time.sleep(0.05)])
    assert timing.seconds["other"] >= 0.2


def test_time_outside_of_train_is_not_counted():
    timing, trainer = TimingCallback(), small()
    trainer.train(32)
    time.sleep(0.2)
    trainer.train(32, callbacks=[timing])
    time.sleep(0.2)
    assert sum(timing.seconds.values()) == pytest.approx(timing.wall_clock, rel=0.02, abs=0.001)
    assert timing.wall_clock < 0.2


def test_times_of_phases_sum_to_the_elapsed_time():
    start = time.perf_counter()
    phases.start()
    for phase, seconds in (("env_step", 0.01), ("inference", 0.02), ("env_step", 0.01)):
        phases.enter(phase)
        time.sleep(seconds)
    phases.enter("other")
    times, elapsed = phases.read(), time.perf_counter() - start
    phases.stop()
    assert times["env_step"] >= 0.02
    assert times["inference"] >= 0.02
    assert sum(times.values()) == pytest.approx(elapsed, abs=0.005)
    assert set(phases.read().values()) == {0.0}


def test_nested_runs_and_second_callbacks_do_not_change_the_times():
    class TrainOnStart(Callback):
        def on_train_start(self, run):
            small().train(32, callbacks=[TimingCallback()])

    timing, other = TimingCallback(), TimingCallback()
    small().train(512, callbacks=[timing, TrainOnStart(), other])
    for x in (timing, other):
        assert sum(x.seconds.values()) == pytest.approx(x.wall_clock, rel=0.02, abs=0.001)
    assert timing.wall_clock > other.wall_clock
    assert set(phases.read().values()) == {0.0}


def test_a_run_that_fails_stops_the_clock():
    def fail(run, metrics):
        raise OSError("mine")

    with pytest.raises(OSError) as raised:  # noqa: PT011
        small().train(128, callbacks=[TimingCallback(), fail])
    assert raised.value.args == ("mine",)
    assert set(phases.read().values()) == {0.0}


def test_the_last_row_of_a_short_run_has_shares():
    recorder = NotingLogger()
    small().train(64, callbacks=[TimingCallback()], loggers=[recorder])
    shares = [{n: x for n, x in row.items() if n.startswith("timing/")} for _, row in recorder.rows]
    assert [bool(row) for row in shares] == [False, True]
    assert sum(shares[-1].values()) == pytest.approx(1)


def test_terminal_shows_a_bar_with_return_speed_and_remaining_time(monkeypatch, capfd):
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)
    small().train(64, callbacks=[ProgressBar()])
    output = capfd.readouterr()
    assert output.out == ""
    for text in ("ppo CartPole-v1", "64/64 timesteps", "return", "/s", "0:00:00"):
        assert text in output.err


@pytest.mark.parametrize(("every", "lines"), [(0.0, 2), (1000.0, 1), (None, 1)])
def test_progress_without_a_terminal_is_printed_as_lines(capfd, every, lines):
    callbacks = [] if every is None else [ProgressBar(every)]
    small().train(64, callbacks=callbacks, progress_bar=every is None)
    output = capfd.readouterr()
    assert output.out == ""
    printed = output.err.splitlines()
    assert len(printed) == lines
    assert printed[-1].startswith("64/64 timesteps, return")
    assert printed[-1].endswith("/s, 0 s remaining")
