"""Around a run: its folder, callbacks, what a terminal sees, and Ctrl-C."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

import rlox
from rlox.callbacks import Callback
from rlox.logger import RunFolder
from rlox.trainers import PPOTrainer

SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2}


def small(env="CartPole-v1", seed=1, **kwargs):
    return PPOTrainer(env=env, seed=seed, **{"runs_dir": None, **SMALL, **kwargs})


def test_the_run_folder_has_everything(tmp_path):
    trainer = small(runs_dir=tmp_path, seed=5)
    result = trainer.train(100)
    run = trainer.run.path
    assert str(run) == result["run_dir"]
    assert run.parent == tmp_path / "CartPole-v1" / "ppo"
    assert run.name.endswith("-5")
    assert sorted(os.listdir(run)) == [
        "checkpoint",
        "config.json",
        "curve.png",
        "metrics.csv",
        "summary.json",
    ]
    config = json.loads((run / "config.json").read_text())
    assert config["settings"]["n_steps"] == 16
    assert (config["sources"]["n_steps"], config["sources"]["gamma"]) == ("argument", "rl-zoo3")
    assert (config["env"], config["seed"], config["versions"]["rlox"]) == (
        "CartPole-v1",
        5,
        rlox.__version__,
    )
    assert json.loads((run / "summary.json").read_text()) == {
        **result,
        "mean_reward": pytest.approx(result["mean_reward"], nan_ok=True),
        "mean_length": pytest.approx(result["mean_length"], nan_ok=True),
    }
    with open(run / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["time/total_timesteps"]) for row in rows] == [32, 64, 96, 128]
    assert float(rows[-1]["time/fps"]) > 0
    assert (run / "curve.png").read_bytes()[1:4] == b"PNG"
    assert PPOTrainer.load(run / "checkpoint").timesteps == 128

    trainer.train(1)
    assert len((run / "metrics.csv").read_text().splitlines()) == 6  # the same run goes on


def test_runs_of_the_same_second_have_their_own_folders(tmp_path):
    folders = {small(runs_dir=tmp_path).train(1)["run_dir"] for _ in range(3)}
    assert len(folders) == 3


def test_an_interrupt_before_a_run_leaves_no_folder(tmp_path):
    def interrupted(*args):
        raise KeyboardInterrupt

    for made in (
        lambda: small(runs_dir=tmp_path, env=interrupted),
        lambda: small(runs_dir=tmp_path).train(1, callbacks=Interrupting()),
    ):
        with pytest.raises(KeyboardInterrupt):
            made()
    assert os.listdir(tmp_path) == []


class Interrupting(list):
    def __iter__(self):
        raise KeyboardInterrupt


def test_an_interrupt_while_the_folder_is_made_ends_the_run_in_order(tmp_path, monkeypatch):
    make = RunFolder.make

    def interrupted(*args):
        signal.raise_signal(signal.SIGINT)
        return make(*args)

    monkeypatch.setattr(RunFolder, "make", interrupted)
    result = small(runs_dir=tmp_path).train(100)
    assert (result["interrupted"], result["timesteps"]) == (True, 0)
    there = os.listdir(result["run_dir"])
    assert {"config.json", "summary.json", "checkpoint"} <= {*there}
    assert PPOTrainer.load(result["run_dir"], runs_dir=None).train()["timesteps"] >= 100


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path):
    trainer = small(runs_dir=tmp_path / "runs")
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(OSError, match=r"runs_dir: expected where run folders can be made, got .*"):
        trainer.train(1)


def test_without_a_runs_dir_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert small().train(1)["run_dir"] is None
    assert os.listdir(tmp_path) == []


class Diary(Callback):
    def __init__(self):
        self.entries = []

    def on_train_start(self, trainer):
        self.entries.append("start")

    def on_iteration(self, trainer, metrics):
        self.entries.append(metrics["time/total_timesteps"])

    def on_train_end(self, trainer):
        self.entries.append("end")


def test_callbacks_are_called_around_iterations():
    diary, seen = Diary(), []
    small().train(64, callbacks=[diary, lambda trainer, metrics: seen.append(trainer.timesteps)])
    assert diary.entries == ["start", 32, 64, "end"]
    assert seen == [32, 64]


def test_callbacks_hear_of_the_end_after_an_error():
    def fail(trainer, metrics):
        raise RuntimeError("enough")

    diary = Diary()
    with pytest.raises(RuntimeError, match="enough"):
        small().train(64, callbacks=[diary, fail])
    assert diary.entries == ["start", 32, "end"]


def test_what_is_no_callback_is_refused():
    with pytest.raises(TypeError, match="callbacks: expected"):
        small().train(1, callbacks=[3])


def test_a_callback_can_stop_the_run_and_it_can_go_on():
    trainer = small()
    result = trainer.train(320, callbacks=[lambda trainer, metrics: trainer.stop()])
    assert (result["timesteps"], result["interrupted"]) == (32, True)
    result = trainer.train()
    assert (result["timesteps"], result["interrupted"]) == (320, False)


def test_a_run_that_made_all_its_steps_was_not_interrupted():
    trainer = small()
    result = trainer.train(32, callbacks=[lambda trainer, metrics: trainer.stop()])
    said = result["timesteps"], result["interrupted"], result["stopped_by"]
    assert said == (32, False, None)
    with pytest.raises(ValueError, match="no run to go on with"):
        trainer.train()


def test_a_run_that_is_stopped_for_a_reason_has_come_to_its_end(tmp_path):
    def solved(trainer, metrics):
        if trainer.timesteps == 64:
            trainer.stop("solved")
            trainer.stop("too late")

    trainer = small(runs_dir=tmp_path)
    result = trainer.train(320, callbacks=[solved])
    assert (result["timesteps"], result["interrupted"], result["stopped_by"]) == (
        64,
        False,
        "solved",
    )
    summary = json.loads((trainer.run.path / "summary.json").read_text())
    assert (summary["interrupted"], summary["stopped_by"]) == (False, "solved")
    for one in (trainer, PPOTrainer.load(trainer.run.path, runs_dir=None)):
        with pytest.raises(ValueError, match="no run to go on with"):
            one.train()
        result = one.train(32)
        assert (result["timesteps"], result["stopped_by"]) == (96, None)


def test_who_stops_a_run_is_told():
    trainer = small()
    press = lambda *_: signal.raise_signal(signal.SIGINT)  # noqa: E731
    assert trainer.train(320, callbacks=[press])["stopped_by"] == "Ctrl-C"
    result = trainer.train(callbacks=[lambda trainer, metrics: trainer.stop()])
    assert (result["interrupted"], result["stopped_by"]) == (True, "stop()")
    assert trainer.train()["stopped_by"] is None
    with pytest.raises(TypeError, match="reason: expected a str, got 3"):
        trainer.stop(3)


def test_progress_is_told_in_plain_lines_where_there_is_no_terminal(capfd):
    small().train(64, progress_bar=True)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("64/64 steps, return ")
    assert said.err.count("\n") == 1


INTERRUPTED = """
import sys, time
from rlox.trainers import PPOTrainer
trainer = PPOTrainer(env="CartPole-v1", seed=0, runs_dir=sys.argv[1])
say = lambda trainer, metrics: print("going", flush=True) if trainer.timesteps == 512 else None
try:
    result = trainer.train(10**9, callbacks=[say])
    print("interrupted", result["interrupted"], result["timesteps"] >= 512, flush=True)
    print(PPOTrainer.load(trainer.run.path / "checkpoint").timesteps == result["timesteps"])
    trainer.train(10**9, callbacks=[lambda *_: (print("again", flush=True), time.sleep(60))])
except KeyboardInterrupt:
    print("at once")
"""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_stops_in_order_and_a_second_one_at_once(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as run, ExitStack() as ends:
        ends.callback(run.kill)  # leaving waits for it, also when the test's time is up
        assert run.stdout.readline() == "going\n"
        run.send_signal(signal.SIGINT)
        assert run.stdout.readline() == "interrupted True True\n"
        assert run.stdout.readline() == "True\n"
        assert run.stdout.readline() == "again\n"
        run.send_signal(signal.SIGINT)
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert out == "at once\n"
    assert "stopping after the current step" in err


@pytest.mark.parametrize(
    ("package", "use", "extra"),
    [
        ("rich", "ProgressBar()", "rlox[progress]"),
        ("matplotlib.figure", "plot_curve('x', 'y')", "rlox[plot]"),
    ],
)
def test_a_missing_extra_is_named(package, use, extra, monkeypatch):
    from rlox import callbacks, plotting

    monkeypatch.setitem(sys.modules, package, None)
    if package == "rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ModuleNotFoundError) as error:
        eval(use, {"ProgressBar": callbacks.ProgressBar, "plot_curve": plotting.plot_curve})
    assert f"pip install '{extra}'" in str(error.value)


def test_without_matplotlib_a_run_says_so_and_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = small(runs_dir=tmp_path).train(1)
    assert "curve.png" not in os.listdir(result["run_dir"])
    assert "rlox[plot]" in caplog.text


def test_a_curve_that_cannot_be_drawn_ends_no_run(tmp_path, monkeypatch, caplog):
    def plot_curve(*args):
        raise ImportError("ft2font.so: failed to map segment from shared object")

    monkeypatch.setattr("rlox.logger.run_folder.plot_curve", plot_curve)
    result = small(runs_dir=tmp_path).train(1)
    assert "summary.json" in os.listdir(result["run_dir"])
    assert "no curve.png: ft2font.so: failed to map" in caplog.text
