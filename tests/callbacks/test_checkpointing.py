"""`CheckpointCallback`: saved, removed and newest checkpoints of a run."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlox import ArgumentError
from rlox._training.run import Run
from rlox.callbacks import Callback, CheckpointCallback, EvalCallback
from rlox.callbacks.checkpointing import prune, read_scores
from rlox.checkpoint import list_step_checkpoints, newest, read_checkpoint, step_name
from rlox.trainers import DQNTrainer, PPOTrainer
from support.runs import NotingLogger, small


def checkpoint_names(run):
    return [path.name for path in list_step_checkpoints(run / "checkpoints")]


@pytest.mark.parametrize(("keep_last", "steps"), [(2, [256, 320]), (None, range(64, 321, 64))])
def test_older_checkpoints_are_removed_and_latest_names_the_last(tmp_path, keep_last, steps):
    folder = tmp_path / "mine"
    callback = CheckpointCallback(every=64, keep_last=keep_last, path=folder)
    small().train(320, callbacks=[callback])
    assert (folder / "latest").read_text() == "step-000000320\n"
    assert PPOTrainer.load(folder / "step-000000256", runs_dir=None).timesteps == 256
    assert sorted(os.listdir(folder)) == ["latest", *map(step_name, steps)]


class Scores(Callback):
    def __init__(self, *scores):
        self.scores = iter(scores)

    def on_iteration(self, run, metrics):
        metrics["eval/mean_reward"] = next(self.scores)


def test_the_best_and_the_newest_checkpoints_remain_after_a_resume(tmp_path):
    trainer, nan = small(runs_dir=tmp_path), float("nan")
    settings = {"every": 32, "keep_last": 1, "best": "eval/mean_reward"}
    trainer.train(128, callbacks=[Scores(1.0, 5.0, nan, 2.0), CheckpointCallback(**settings)])
    assert checkpoint_names(trainer.run.path) == [step_name(64), step_name(128)]
    trainer.train(32, callbacks=[Scores(4.0), CheckpointCallback(**settings)])
    assert checkpoint_names(trainer.run.path) == [step_name(64), step_name(160)]
    trainer.train(64, callbacks=[Scores(6.0, 3.0), CheckpointCallback(**settings)])
    assert checkpoint_names(trainer.run.path) == [step_name(192), step_name(224)]


def test_a_run_resumes_from_the_newest_checkpoint(tmp_path):
    trainer = small(runs_dir=tmp_path)
    trainer.train(128, callbacks=[CheckpointCallback(every=64)])
    run = trainer.run.path
    assert newest(run) == run / "checkpoint"
    shutil.rmtree(run / "checkpoint")
    assert newest(run) == run / "checkpoints" / step_name(128)
    assert PPOTrainer.load(run, runs_dir=None).timesteps == 128
    trainer.save(run / "checkpoint")
    os.rename(run / "checkpoint", run / ".checkpoint.previous")  # as after a kill
    shutil.rmtree(run / "checkpoints" / step_name(128))
    assert PPOTrainer.load(run, runs_dir=None).timesteps == 128


def test_a_resumed_run_saves_at_the_same_steps(tmp_path):
    trainer = small(runs_dir=tmp_path)
    trainer.train(96, callbacks=[CheckpointCallback(every=64, keep_last=None)])
    trainer.train(160, callbacks=[CheckpointCallback(every=64, keep_last=None)])
    assert checkpoint_names(trainer.run.path) == [step_name(n) for n in (64, 128, 192, 256)]


def test_checkpoints_are_saved_after_the_row_is_logged(tmp_path, monkeypatch):
    trainer, logger, save = small(runs_dir=tmp_path), NotingLogger(), Run.save

    def record_and_save(self, path, **kwargs):
        logger.notes.append(("save", Path(path).name))
        save(self, path, **kwargs)

    monkeypatch.setattr(Run, "save", record_and_save)
    callbacks = [CheckpointCallback(every=32), EvalCallback(every=32, n_episodes=1)]
    trainer.train(32, callbacks=callbacks, loggers=[logger])
    calls = ["start", "log", "step-000000032", "best", "checkpoint", "finish"]
    assert [name for _, name in logger.notes] == calls


@pytest.mark.parametrize("replay", [True, False])
def test_replay_buffer_is_optional(tmp_path, replay):
    trainer = DQNTrainer("CartPole-v1", 0, num_envs=1, runs_dir=None, buffer_size=512)
    trainer.train(64, callbacks=[CheckpointCallback(every=64, replay=replay, path=tmp_path)])
    (saved,) = list_step_checkpoints(tmp_path)
    assert (saved / "replay.safetensors").exists() == replay


def test_a_full_disk_warns_and_training_continues(tmp_path, monkeypatch):
    trainer, save, tries = small(runs_dir=tmp_path), Run.save, []

    def fail_once(self, path, **kwargs):
        if "checkpoints" in str(path) and len(tries) < 1:
            tries.append(path)
            raise OSError(28, "No space left on device")
        save(self, path, **kwargs)

    monkeypatch.setattr(Run, "save", fail_once)
    with pytest.warns(UserWarning, match="checkpoint after 64 steps was not written .* multiple of 64"):
        trainer.train(192, callbacks=[CheckpointCallback(every=64)])
    assert checkpoint_names(trainer.run.path) == [step_name(128), step_name(192)]


def test_other_folders_are_not_removed(tmp_path):
    for name in (step_name(1), step_name(2), "step-mine", "best"):
        (tmp_path / name).mkdir()
    prune(tmp_path, step_name(2), keep_last=1, keep_best=True)
    assert sorted(os.listdir(tmp_path)) == ["best", step_name(2), "step-mine"]


def test_folder_with_checkpoints_of_a_longer_run_is_rejected(tmp_path):
    small().train(128, callbacks=[CheckpointCallback(64, path=tmp_path)])
    other = small(seed=2)
    with pytest.raises(ArgumentError) as raised:
        other.train(64, callbacks=[CheckpointCallback(64, path=tmp_path)])
    assert (raised.value.argument, raised.value.got) == ("path", str(tmp_path / step_name(128)))
    assert other.timesteps == 0


def test_incomplete_checkpoints_of_a_killed_run_are_removed(tmp_path):
    trainer = small(runs_dir=None)
    trainer.save(tmp_path / ".step-000000000.previous")
    for name in (".step-000000032.partial", ".step-000000064.going"):
        (tmp_path / name).mkdir()
    trainer.train(32, callbacks=[CheckpointCallback(64, path=tmp_path)])
    assert os.listdir(tmp_path) == [step_name(0)]


SAVING = """
import sys
from rlox.callbacks import CheckpointCallback
from rlox.trainers import PPOTrainer
trainer = PPOTrainer.load(sys.argv[1], runs_dir=None)
report = lambda run, metrics: print(run.budget_used, flush=True)
trainer.train(10**6, callbacks=[CheckpointCallback(32, keep_last=1, path=sys.argv[2]), report])
"""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("times", [5, pytest.param(60, marks=pytest.mark.kills)])
@pytest.mark.timeout(900)
def test_a_kill_while_checkpoints_rotate_leaves_complete_checkpoints(tmp_path, times):
    rng, saved = random.Random(times), [tmp_path / step_name(0)]
    small().save(saved[0])
    for _ in range(times):
        command = [sys.executable, "-c", SAVING, str(saved[-1]), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            for _ in range(3):
                assert child.stdout.readline(), "the child exited before the kill"
            time.sleep(rng.uniform(0.0, 0.1))
            child.send_signal(signal.SIGKILL)
            child.stdout.read()
        saved = list_step_checkpoints(tmp_path)
        assert len(saved) in (1, 2)  # the kill may precede the removal of the older checkpoint
        for path in saved:
            assert step_name(read_checkpoint(path).manifest["counters"]["timesteps"]) == path.name
        assert (tmp_path / "latest").read_text().strip() in [path.name for path in saved]
        for path in saved[:-1]:
            shutil.rmtree(path)


def test_the_last_value_of_an_infrequent_metric_is_the_score(tmp_path):
    trainer = small(runs_dir=tmp_path)
    callbacks = [EvalCallback(96, n_episodes=1), CheckpointCallback(64, best="eval/mean_reward")]
    trainer.train(192, callbacks=callbacks)
    scores = read_scores(trainer.run.path / "checkpoints")
    assert {*scores} == {"best", step_name(128), step_name(192)}  # no score after 64 steps


@pytest.mark.parametrize(
    ("best", "message", "counts"),
    [
        ("rollout/ep_rew_men", "did you mean 'rollout/ep_rew_mean'", [0, 1, 1]),
        ("eval/men", "best: expected a metric of the logged rows, got 'eval/men'", [0, 0, 0]),
    ],
    ids=["at the first checkpoint", "at the end"],
)
def test_unknown_metric_warns_once(tmp_path, best, message, counts):
    before, saving = [], CheckpointCallback(32, best=best, path=tmp_path)
    with pytest.warns(UserWarning, match=message) as record:
        small().train(96, callbacks=[saving, lambda *_: before.append(len(record))])
    assert (before, len(record)) == (counts, 1)
