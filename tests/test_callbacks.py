"""The progress bar, and what counts as a callback."""

import pytest

from rlox.callbacks import Callback, ProgressBar, as_callback
from rlox.trainers import PPOTrainer


def train(callback, total=64):
    trainer = PPOTrainer(env="CartPole-v1", seed=0, n_steps=4, batch_size=32, runs_dir=None)
    return trainer.train(total, callbacks=[callback])


def test_a_terminal_gets_a_bar_with_return_speed_and_time_left(monkeypatch, capfd):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    train(ProgressBar())
    said = capfd.readouterr()
    assert said.out == ""
    assert "ppo CartPole-v1" in said.err
    assert "64/64 steps" in said.err
    for word in ("return", "steps/s", "0:00:00"):
        assert word in said.err


@pytest.mark.parametrize(("every", "lines"), [(0.0, 2), (1000.0, 1)])
def test_without_a_terminal_lines_come_now_and_then_and_at_the_end(capfd, every, lines):
    train(ProgressBar(every))
    said = capfd.readouterr().err.splitlines()
    assert len(said) == lines
    assert said[-1].startswith("64/64 steps, return")
    assert said[-1].endswith("steps/s, 0 s left")


def test_a_function_is_a_callback():
    seen = []
    callback = as_callback(lambda trainer, metrics: seen.append(metrics["train/n_updates"]))
    assert isinstance(callback, Callback)
    train(callback)
    assert seen == [20, 40]
