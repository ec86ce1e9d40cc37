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


class Ending(Callback):
    def __init__(self, name, ended, error=None):
        self.name, self.ended, self.error = name, ended, error

    def on_train_end(self, trainer):
        self.ended.append(self.name)
        if self.error is not None:
            raise self.error


def test_an_error_at_the_end_keeps_no_callback_from_ending_and_loses_nothing(tmp_path):
    ended = []
    callbacks = [Ending("a", ended), Ending("b", ended, RuntimeError("b")), Ending("c", ended)]
    trainer = PPOTrainer(env="CartPole-v1", seed=0, n_steps=4, batch_size=32, runs_dir=tmp_path)
    with pytest.raises(RuntimeError, match="b"):
        trainer.train(64, callbacks=callbacks)
    assert ended == ["c", "b", "a"]
    assert PPOTrainer.load(trainer.run.path / "checkpoint", runs_dir=None).timesteps == 64


def test_only_callbacks_that_started_are_ended():
    class Late(Callback):
        def on_train_start(self, trainer):
            raise RuntimeError("not today")

        def on_train_end(self, trainer):
            pytest.fail("never started")

    ended = []
    trainer = PPOTrainer(env="CartPole-v1", seed=0, runs_dir=None)
    with pytest.raises(RuntimeError, match="not today"):
        trainer.train(64, callbacks=[Ending("a", ended), Late(), Ending("b", ended)])
    assert ended == ["a"]


@pytest.mark.parametrize(
    ("callbacks", "got"),
    [(3, "got int"), (print, "got builtin_function_or_method"), ([ProgressBar], "the class Pro")],
)
def test_what_is_no_list_of_callbacks_changes_nothing(callbacks, got):
    trainer = PPOTrainer(env="CartPole-v1", seed=0, runs_dir=None)
    with pytest.raises(TypeError, match=f"callbacks: expected a list.*{got}"):
        trainer.train(64, callbacks=callbacks)
    assert trainer.target_timesteps == 0


def test_a_function_of_other_arguments_is_refused_before_training():
    trainer = PPOTrainer(env="CartPole-v1", seed=0, runs_dir=None)
    with pytest.raises(TypeError, match=r"callbacks: expected a function of \(trainer, metrics\)"):
        trainer.train(64, callbacks=[lambda trainer: None])
    assert trainer.timesteps == 0
