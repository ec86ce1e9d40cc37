"""Run folders, `stop()` and Ctrl-C."""

import errno
import json
import os
import signal
import sys

import pytest

import rlox
from rlox import ArgumentError, ArgumentTypeError
from rlox._training.metrics_files import read_metrics
from rlox._training.run_folder import RunFolder
from rlox.trainers import PPOTrainer
from support.rejections import rejects
from support.runs import small


def raise_error(error):
    raise error


def test_run_folder_contains_settings_metrics_summary_and_checkpoint(tmp_path):
    trainer = small(runs_dir=tmp_path, seed=5)
    result = trainer.train(100)
    run = trainer.run.path
    assert str(run) == result["run_dir"]
    assert run.parent == tmp_path / "CartPole-v1" / "ppo"
    assert run.name.endswith("-5")
    files = ["checkpoint", "config.json", "curve.png", "metrics.csv", "summary.json"]
    assert sorted(os.listdir(run)) == files
    config = json.loads((run / "config.json").read_text())
    assert config["settings"]["n_steps"] == 16
    assert (config["sources"]["n_steps"], config["sources"]["gamma"]) == ("argument", "rl-zoo3")
    assert (config["env"], config["seed"]) == ("CartPole-v1", 5)
    assert config["versions"]["rlox"] == rlox.__version__
    means = {x: pytest.approx(result[x], nan_ok=True) for x in ("mean_reward", "mean_length")}
    assert json.loads((run / "summary.json").read_text()) == {**result, **means}
    rows = read_metrics(run / "metrics.csv")
    assert rows["time/total_timesteps"] == ["32", "64", "96", "128"]
    assert float(rows["time/fps"][-1]) > 0
    assert (run / "curve.png").read_bytes()[1:4] == b"PNG"
    assert PPOTrainer.load(run / "checkpoint").timesteps == 128
    trainer.train(1)  # continues in the same folder
    assert len((run / "metrics.csv").read_text().splitlines()) == 6


def test_runs_started_in_the_same_second_have_separate_folders(tmp_path):
    folders = {small(runs_dir=tmp_path).train(1)["run_dir"] for _ in range(3)}
    assert len(folders) == 3


def raise_interrupt(*args):
    raise KeyboardInterrupt


class InterruptingList(list):
    __iter__ = raise_interrupt


def test_interrupt_before_a_run_creates_no_folder(tmp_path):
    for run in (
        lambda: small(runs_dir=tmp_path, env=raise_interrupt),
        lambda: small(runs_dir=tmp_path).train(1, callbacks=InterruptingList()),
    ):
        with pytest.raises(KeyboardInterrupt):
            run()
    assert os.listdir(tmp_path) == []


def test_interrupt_during_folder_creation_saves_the_run(tmp_path, monkeypatch):
    make = RunFolder.make

    def make_with_interrupt(*args):
        signal.raise_signal(signal.SIGINT)
        return make(*args)

    monkeypatch.setattr(RunFolder, "make", make_with_interrupt)
    result = small(runs_dir=tmp_path).train(100)
    assert (result["interrupted"], result["timesteps"]) == (True, 0)
    files = os.listdir(result["run_dir"])
    assert {"config.json", "summary.json", "checkpoint"} <= {*files}
    assert PPOTrainer.load(result["run_dir"], runs_dir=None).train()["timesteps"] >= 100


def test_error_names_a_folder_that_cannot_be_created(tmp_path):
    trainer = small(runs_dir=tmp_path / "runs")
    (tmp_path / "runs").write_text("in the way")
    with rejects(NotADirectoryError, "runs_dir: ", errno=errno.ENOTDIR):
        trainer.train(1)


def test_runs_dir_none_writes_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert small().train(1)["run_dir"] is None
    assert os.listdir(tmp_path) == []


def stop_run(run, metrics):
    run.stop()


def check_run_has_ended(trainer):
    """Check that the run of a trainer has ended and cannot be continued."""
    with rejects(ArgumentError, "total_timesteps"):
        trainer.train()


def test_stopped_runs_can_be_continued(caplog):
    trainer = small()
    result = trainer.train(320, callbacks=[lambda *_: signal.raise_signal(signal.SIGINT)])
    assert (result["timesteps"], result["stopped_by"]) == (32, "Ctrl-C")
    assert "stopping after the current step" in caplog.text
    result = trainer.train(callbacks=[stop_run])
    assert (result["timesteps"], result["stopped_by"], result["interrupted"]) == (64, "stop()", True)
    result = trainer.train()
    assert (result["timesteps"], result["stopped_by"], result["interrupted"]) == (320, None, False)
    with rejects(ArgumentTypeError, "reason", got="3"):
        trainer.stop(3)


def test_stop_after_the_last_step_does_not_interrupt():
    trainer = small()
    result = trainer.train(32, callbacks=[stop_run])
    assert (result["timesteps"], result["stopped_by"], result["interrupted"]) == (32, None, False)
    check_run_has_ended(trainer)


def test_stop_with_a_reason_ends_the_run(tmp_path):
    def stop_at_64(run, metrics):
        if run.budget_used == 64:
            run.stop("solved")
            run.stop("too late")

    trainer = small(runs_dir=tmp_path)
    result = trainer.train(320, callbacks=[stop_at_64])
    assert result["timesteps"] == 64
    for saved in (result, json.loads((trainer.run.path / "summary.json").read_text())):
        assert (saved["interrupted"], saved["stopped_by"]) == (False, "solved")
    for each in (trainer, PPOTrainer.load(trainer.run.path, runs_dir=None)):
        check_run_has_ended(each)
        result = each.train(32)
        assert (result["timesteps"], result["stopped_by"]) == (96, None)


def test_second_ctrl_c_raises_immediately():
    def press_twice(run, metrics):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second signal must raise")

    with pytest.raises(KeyboardInterrupt):
        small().train(320, callbacks=[press_twice])


def test_failing_plot_does_not_end_a_run(tmp_path, monkeypatch, caplog):
    def fail(*args):
        raise ImportError("ft2font.so: failed to map segment from shared object")

    monkeypatch.setattr("rlox.trainers.plot_curve", fail)
    assert "summary.json" in os.listdir(small(runs_dir=tmp_path).train(1)["run_dir"])
    assert "curve.png was not written: ft2font.so: failed to map" in caplog.text


def test_missing_matplotlib_does_not_end_a_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = small(runs_dir=tmp_path).train(1)
    assert {"summary.json", "curve.png"} & {*os.listdir(result["run_dir"])} == {"summary.json"}
    assert not caplog.text  # matplotlib is optional


def test_a_folder_without_config_is_not_used_by_the_next_call(tmp_path, monkeypatch):
    trainer = small(runs_dir=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write", lambda *_: raise_error(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            trainer.train(32)
    trainer.train(32)
    assert (trainer.run.path / "config.json").is_file()
