"""`rlox train --seeds`: a run for each seed, told one by one, and what all came to."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from cli_runs import SMALL
from rlox.cli.many import seeds_of
from rlox.cli.mistakes import UsageError
from rlox.scores import score
from rlox.trainers import PPOTrainer

TRAIN = ("train", "ppo", "CartPole-v1", "--total-timesteps", "64", *SMALL)


def test_runs_are_those_of_the_trainer_with_a_folder_each(rlox, tmp_path):
    said = rlox(*TRAIN, "--seeds", "3-5", "--json", "--no-progress")
    assert (said.code, said.err) == (0, "")
    small = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2}
    for run, seed in zip(said.json["runs"], (3, 4, 5), strict=True):
        result = PPOTrainer("CartPole-v1", seed, runs_dir=None, **small).train(64)
        assert (run["seed"], run["mean_reward"]) == (seed, result["mean_reward"])
        told = json.loads((tmp_path / run["run_dir"] / "config.json").read_text())
        assert told["seed"] == seed
    means = [run["mean_reward"] for run in said.json["runs"]]
    assert said.json["mean_reward"]["iqm"] == score(means)["iqm"]
    assert said.json["mean_reward"]["runs"] == 3


def test_people_are_told_each_run_and_their_interquartile_mean(rlox):
    said = rlox(*TRAIN, "--seeds", "0,7", "--runs-dir", "None")
    *lines, all_of, score_of_all = said.out.splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["seed 0", "seed 7"]
    assert "64 steps in" in lines[0]
    assert all_of == "ppo CartPole-v1: 2 runs"
    assert "interquartile mean" in score_of_all


def test_what_surrounds_training_does_so_for_each(rlox, tmp_path):
    said = rlox(*TRAIN, "--seeds", "0-1", "--eval-every", "32", "--loggers", "jsonl")
    assert said.code == 0
    assert len([*tmp_path.rglob("metrics.jsonl")]) == 2
    assert len([*tmp_path.rglob("checkpoints/best")]) == 2


def test_seeds_stand_in_files_too(rlox, tmp_path):
    (tmp_path / "a.yaml").write_text("algorithm: ppo\nenv: CartPole-v1\nseeds: [1, 4]\n")
    words = ("--total-timesteps", "64", *SMALL, "--json", "--runs-dir", "None")
    said = rlox("train", "--config", "a.yaml", *words)
    assert [run["seed"] for run in said.json["runs"]] == [1, 4]


def test_a_run_that_fails_is_told_and_the_others_go_on(rlox, monkeypatch):
    usual = PPOTrainer.train

    def train(self, *args, **kwargs):
        if self.seed == 1:
            raise OSError("no room")
        return usual(self, *args, **kwargs)

    monkeypatch.setattr(PPOTrainer, "train", train)
    said = rlox(*TRAIN, "--seeds", "0-2", "--runs-dir", "None")
    assert said.code == 1
    assert said.err == "seed 1: failed: no room\n"
    assert "3 runs, 1 failed" in said.out
    told = rlox(*TRAIN, "--seeds", "0-2", "--runs-dir", "None", "--json").json["runs"]
    assert [("error" in run, run["seed"]) for run in told] == [(False, 0), (True, 1), (False, 2)]


@pytest.mark.parametrize(
    "given", ["", "a", "3-1", "1,1", "0-5,3", "-1", "1.5", "0-99999999", [], [1, 1], ["1"], True]
)
def test_what_are_no_seeds_is_refused(given):
    with pytest.raises(UsageError, match=r"--seeds: expected .* write --seeds 0-9"):
        seeds_of(given)


def test_seeds_are_numbers_and_ranges():
    assert seeds_of("7, 0-2") == [7, 0, 1, 2]
    assert seeds_of(4) == [4]


def test_a_seed_beside_seeds_is_refused(rlox):
    said = rlox(*TRAIN, "--seeds", "0-2", "--seed", "1")
    assert said.code == 2
    assert said.err.startswith("rlox: --seeds: expected no --seed beside it")


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_ends_all_with_checkpoints_and_130(tmp_path):
    words = ["train", "ppo", "CartPole-v1", "--total-timesteps", "1_000_000_000", "--seeds", "0-5"]
    program = [sys.executable, "-m", "rlox", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(program, cwd=tmp_path, **pipes) as run:
        try:
            until = time.monotonic() + 60
            while not [*tmp_path.rglob("metrics.csv")] and time.monotonic() < until:
                time.sleep(0.05)
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 130, err
    assert "6 runs, 6 interrupted" in out
    folders = [file.parent for file in tmp_path.rglob("config.json")]
    assert folders
    for folder in folders:
        assert (folder / "summary.json").is_file()
        assert (folder / "checkpoint" / "manifest.json").is_file()
