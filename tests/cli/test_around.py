"""Flags of what surrounds training: loggers, scores, checkpoints, videos, and when to end."""

import csv
import json

import pytest

from cli_runs import SMALL

TRAIN = ("train", "ppo", "CartPole-v1", "--no-progress", "--seed", "1", *SMALL)
FILE = """
algorithm: ppo
env: CartPole-v1
seed: 1
total_timesteps: 96
progress: false
loggers: [jsonl]
eval_every: 32
eval_episodes: 2
checkpoint_every: 32
keep_last: 1
timing: true
settings: {num_envs: 2, n_steps: 16, batch_size: 16, n_epochs: 1}
"""


def the_run(folder):
    (file,) = folder.rglob("summary.json")
    return file.parent


def rows(run):
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def checkpoints(run):
    return sorted(x.name for x in (run / "checkpoints").iterdir() if x.is_dir())


def test_scores_and_checkpoints_come_as_often_as_asked_for(rlox, tmp_path):
    words = "--eval-every 32 --eval-episodes 2 --checkpoint-every 32 --keep-last 2"
    assert rlox(*TRAIN, "--total-timesteps", "128", *words.split()).code == 0
    run = the_run(tmp_path)
    assert all(row["eval/mean_reward"] for row in rows(run))
    assert checkpoints(run) == ["best", "step-000000096", "step-000000128"]


def test_a_reward_that_is_reached_ends_the_run_and_is_no_interruption(rlox, tmp_path):
    words = "--total-timesteps 3200 --eval-every 32 --eval-episodes 1 --stop-at-reward 1"
    said = rlox(*TRAIN, *words.split())
    assert said.code == 0
    assert "ended by EvalCallback: mean reward " in said.out
    assert len(rows(the_run(tmp_path))) == 1


def test_a_run_that_gets_no_better_ends_after_the_patience(rlox, tmp_path):
    words = "--total-timesteps 3200 --learning-rate 0 --eval-every 32 --eval-episodes 2"
    assert rlox(*TRAIN, *words.split(), "--patience", "96").code == 0
    assert len(rows(the_run(tmp_path))) == 4  # the first is the best, three do not beat it


def test_a_file_holds_them_too_and_flags_win(rlox, tmp_path):
    (tmp_path / "run.yaml").write_text(FILE)
    assert rlox("train", "--config", "run.yaml", "--keep-last", "2").code == 0
    run = the_run(tmp_path)
    assert checkpoints(run) == ["best", "step-000000064", "step-000000096"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["eval/mean_reward"] > 0


def test_a_flag_that_says_no_wins_over_the_file(rlox, tmp_path):
    (tmp_path / "run.yaml").write_text(FILE.replace("progress: false", "progress: true"))
    said = rlox("train", "--config", "run.yaml", "--no-progress", "--no-timing")
    assert (said.code, said.err) == (0, "")


def test_the_console_gets_a_table(rlox):
    said = rlox(*TRAIN, "--total-timesteps", "32", "--loggers", "console", "csv")
    assert said.code == 0
    assert "| time/total_timesteps " in said.out


def test_shares_of_the_time_are_in_the_rows(rlox, tmp_path):
    words = ("--total-timesteps", "10_000", "--timing", "--n-steps", "512", "--batch-size", "1024")
    assert rlox(*TRAIN, *words).code == 0
    told = rows(the_run(tmp_path))[-1]
    shares = [float(x) for name, x in told.items() if name.startswith("timing/")]
    assert sum(shares) == pytest.approx(1, abs=0.02)


def test_a_resumed_run_has_them_as_well(rlox, copied):
    words = "--total-timesteps 64 --no-progress --checkpoint-every 32 --eval-every 64"
    assert rlox("resume", copied, *words.split(), "--eval-episodes", "1").code == 0
    assert checkpoints(copied) == ["best", "step-000000096", "step-000000128"]
    assert rows(copied)[-1]["eval/mean_reward"]


def test_videos_are_recorded(rlox, tmp_path):
    pytest.importorskip("moviepy", reason="needs moviepy: pip install 'rlox[video]'")
    pytest.importorskip("pygame")
    assert rlox(*TRAIN, "--total-timesteps", "32", "--video-every", "32").code == 0
    assert [x.name for x in tmp_path.rglob("*.mp4")] == ["step-000000032.mp4"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            "--loggers consol",
            2,
            "--loggers: expected names of loggers, got 'consol'; did you mean 'console'?",
        ),
        ("--loggers consol", 2, "got 'consol'; did you mean 'console'?"),
        ("--eval-episodes 3", 2, "--eval-episodes: expected --eval-every beside it, got none"),
        ("--stop-at-reward 3", 2, "--stop-at-reward: expected --eval-every beside it, got none"),
        ("--keep-last 3", 2, "--keep-last: expected --checkpoint-every beside it, got none"),
        ("--eval-every 0", 2, "eval_every: expected an integer of at least 1, got 0; pass a"),
        ("--eval-every 1 --eval-episodes 0", 2, "eval_episodes: expected an integer of at least"),
        ("--patience 0", 2, "patience: expected an integer of at least 1, got 0"),
        ("--checkpoint-every -1", 2, "checkpoint_every: expected an integer of at least 1, got -1"),
        ("--checkpoint-every 9 --keep-last 0", 2, "keep_last: expected an integer of at least 1"),
        ("--checkpoint-every 9 --runs-dir None", 1, "path: expected where checkpoints shall lie"),
        ("--eval-every 1e4", 2, "expected an integer, got '1e4'; write 10000"),
        ("--loggers jsonl --runs-dir None", 2, "loggers: expected a run folder for JSONLines"),
        ("--config loggers.yaml", 2, "--loggers: expected names (console, csv"),
        ("--config every.yaml", 2, "eval_every: expected an integer of at least 1, got 'often'"),
        ("--config unknown.yaml", 2, "ppo has no setting 'eval_evry'; did you mean 'eval_every'"),
    ],
)
def test_mistakes_are_told_and_nothing_begins(words, code, message, rlox, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "loggers.yaml").write_text("loggers: console\n")
    (tmp_path / "every.yaml").write_text("eval_every: often\n")
    (tmp_path / "unknown.yaml").write_text("eval_evry: 3\n")
    said = rlox(*TRAIN, "--total-timesteps", "32", *words.split())
    assert said.code == code, said.err
    assert message in said.err
    assert not list(tmp_path.rglob("metrics.csv"))


def test_a_logger_that_is_named_twice_is_refused(rlox):
    said = rlox(*TRAIN, "--total-timesteps", "32", "--loggers", "jsonl", "csv", "jsonl")
    assert said.code == 2
    assert "--loggers: expected each name once, got 'jsonl' twice; leave one of them" in said.err
