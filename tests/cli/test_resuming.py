"""`rlox resume`: what surrounded a run surrounds it again."""

import json

import pytest

from cli_runs import SMALL
from rlox.trainers import PPOTrainer

WORDS = ("--no-progress", "--json")
AROUND = "--eval-every 32 --eval-episodes 2 --checkpoint-every 32 --keep-last 1 --loggers jsonl"


@pytest.fixture
def run(rlox, tmp_path):
    words = ("train", "ppo", "CartPole-v1", "--seed", "1", "--total-timesteps", "64")
    said = rlox(*words, *SMALL, *AROUND.split(), "--timing", *WORDS)
    return tmp_path / said.json["run_dir"]


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def checkpoints(run):
    return sorted(one.name for one in (run / "checkpoints").glob("step-*"))


def best(run):
    manifest = json.loads((run / "checkpoint" / "manifest.json").read_text())
    return [one["state"] for one in manifest["callbacks"] if one["name"] == "EvalCallback"]


def test_a_run_goes_on_with_what_surrounded_it(rlox, run):
    said = rlox("resume", run, "--total-timesteps", "64", *WORDS)
    assert (said.code, said.json["timesteps"]) == (0, 128)
    last = rows(run)[-1]
    assert last["time/total_timesteps"] == 128
    assert "eval/mean_reward" in last
    assert checkpoints(run) == ["step-000000128"]


def test_flags_win_and_are_kept(rlox, run):
    flags = ("--eval-every", "None", "--keep-last", "2", "--loggers", "--no-timing")
    assert rlox("resume", run, "--total-timesteps", "64", *flags, *WORDS).code == 0
    assert rlox("resume", run / "checkpoint", "--total-timesteps", "32", *WORDS).code == 0
    assert rows(run)[-1]["time/total_timesteps"] == 64
    assert checkpoints(run) == ["step-000000128", "step-000000160"]
    kept = json.loads((run / "around.json").read_text())
    said = {name: value for name, value in kept.items() if value not in (None, False, [])}
    assert said == {"checkpoint_every": 32, "keep_last": 2}


def test_a_score_is_not_forgotten_by_a_run_without_evaluations(rlox, run):
    before = best(run)
    assert len(before) == 1
    words = ("--total-timesteps", "32", *WORDS)
    assert rlox("resume", run, "--eval-every", "None", *words).code == 0
    assert best(run) == before
    with PPOTrainer.load(run, runs_dir=None) as trainer:
        trainer.train(32)
        trainer.save(run / "elsewhere")
    with PPOTrainer.load(run / "elsewhere", runs_dir=None) as trainer:
        assert before == [x["state"] for x in trainer.remembered if x["name"] == "EvalCallback"]


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_what_was_kept_and_is_damaged_is_told_before_anything_changes(content, rlox, run):
    (run / "around.json").write_text(content)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    said = rlox("resume", run, "--total-timesteps", "1", *WORDS)
    assert said.code == 1
    assert "around.json: expected what surrounds a run by names, got other; remove it" in said.err
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_what_was_kept_of_another_kind_is_told(rlox, run):
    (run / "around.json").write_text(json.dumps({"eval_every": "often"}))
    said = rlox("resume", run, "--total-timesteps", "1", *WORDS)
    assert "eval_every: expected an integer of at least 1, got 'often'" in said.err


@pytest.mark.filterwarnings("ignore:environment. expected environments that go on:UserWarning")
def test_actors_may_work_elsewhere_from_there_on(rlox, tmp_path):
    words = ("train", "impala", "CartPole-v1", "--seed", "1", "--total-timesteps", "80", *WORDS)
    run = tmp_path / rlox(*words).json["run_dir"]
    said = rlox("resume", run, "--total-timesteps", "40", "--actors", "processes", *WORDS)
    assert (said.code, said.json["timesteps"]) == (0, 120)
    assert json.loads((run / "config.json").read_text())["settings"]["actors"] == "processes"
    said = rlox("resume", run, "--total-timesteps", "40", "--actors", "grpc://", *WORDS)
    assert said.code != 0
    assert "actors: expected 'auto', 'threads', 'processes', 'ray'" in said.err


def test_actors_are_for_runs_that_have_some(rlox, run):
    said = rlox("resume", run, "--total-timesteps", "64", "--actors", "threads", *WORDS)
    assert said.code != 0
    assert "actors: expected a checkpoint of a run with actors, got one in which async" in said.err
