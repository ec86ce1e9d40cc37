"""`rlox resume`: continues a run in its folder, with callbacks and loggers."""

import csv
import json
import shutil

import pytest

from rlox.trainers import PPOTrainer
from support.checkpoints import assert_networks_equal
from support.cli_runs import SETTINGS, SMALL
from support.envs import cartpole

COMMON = ("--no-progress", "--json")
HOOKS = "--eval-every 32 --eval-episodes 2 --checkpoint-every 32 --keep-last 1 --loggers jsonl"


@pytest.fixture
def run(rlox, tmp_path):
    arguments = ("train", "ppo", "CartPole-v1", "--seed", "1", "--total-timesteps", "64")
    result = rlox(*arguments, *SMALL, *HOOKS.split(), "--timing", *COMMON)
    return tmp_path / result.json["run_dir"]


def last_row(run):
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def checkpoints(run):
    return sorted(folder.name for folder in (run / "checkpoints").glob("step-*"))


def contents(run):
    return {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}


def eval_states(run):
    manifest = json.loads((run / "checkpoint" / "manifest.json").read_text())
    return [x["state"] for x in manifest["callbacks"] if x["name"] == "EvalCallback"]


def test_a_run_continues_with_callbacks_and_loggers(rlox, run):
    result = rlox("resume", run, "--total-timesteps", "64", *COMMON)
    assert (result.code, result.json["timesteps"]) == (0, 128)
    assert result.json["run_dir"] == str(run)
    assert last_row(run)["time/total_timesteps"] == 128
    assert "eval/mean_reward" in last_row(run)
    assert checkpoints(run) == ["step-000000128"]


def test_flags_override_saved_options_and_are_saved(rlox, run):
    flags = ("--eval-every", "None", "--keep-last", "2", "--loggers", "--no-timing")
    assert rlox("resume", run, "--total-timesteps", "64", *flags, *COMMON).code == 0
    assert rlox("resume", run / "checkpoint", "--total-timesteps", "32", *COMMON).code == 0
    assert last_row(run)["time/total_timesteps"] == 64
    assert checkpoints(run) == ["step-000000128", "step-000000160"]
    saved = json.loads((run / "run_options.json").read_text())
    active = {name: value for name, value in saved.items() if value not in (None, False, [])}
    assert active == {"checkpoint_every": 32, "keep_last": 2}


def test_the_best_score_survives_a_run_without_evaluations(rlox, run):
    before = eval_states(run)
    assert len(before) == 1
    assert rlox("resume", run, "--eval-every", "None", "--total-timesteps", "32", *COMMON).code == 0
    assert eval_states(run) == before
    with PPOTrainer.load(run, runs_dir=None) as trainer:
        trainer.train(32)
        trainer.save(run / "saved")
    with PPOTrainer.load(run / "saved", runs_dir=None) as trainer:
        assert before == [x["state"] for x in trainer.run.callback_states if x["name"] == "EvalCallback"]


@pytest.mark.parametrize("content", ["", "3", "{", '{"eval_every": "often"}'])
def test_damaged_options_are_rejected_without_change(content, rlox, run):
    (run / "run_options.json").write_text(content)
    before = contents(run)
    result = rlox("resume", run, "--total-timesteps", "1", *COMMON)
    assert result.code == 1
    assert ("eval_every" if "often" in content else "run_options.json") in result.err
    assert contents(run) == before


@pytest.mark.parametrize("flags", [("--total-timesteps", "0", "--backend", "torch"), ("--loggers", "jsnl")])
def test_wrong_options_do_not_change_the_run(flags, rlox, copied):
    last = (copied / "metrics.csv").read_text().splitlines()[-1]
    with open(copied / "metrics.csv", "a") as file:
        file.write(last.replace("64", "96") + "\n")
    before = contents(copied)
    assert rlox("resume", copied, "--total-timesteps", "9", *flags).code == 2
    assert contents(copied) == before


def test_flags_add_callbacks_to_a_run_without_callbacks(rlox, copied):
    flags = "--total-timesteps 64 --checkpoint-every 32 --eval-every 64 --eval-episodes 1"
    assert rlox("resume", copied, *flags.split(), *COMMON).code == 0
    folders = sorted(path.name for path in (copied / "checkpoints").iterdir() if path.is_dir())
    assert folders == ["best", "step-000000096", "step-000000128"]
    with open(copied / "metrics.csv", newline="") as file:
        assert [*csv.DictReader(file)][-1]["eval/mean_reward"]


def test_damaged_checkpoints_are_rejected_without_change(rlox, copied):
    networks = copied / "checkpoint" / "networks.safetensors"
    networks.write_bytes(networks.read_bytes()[:-1])
    before = contents(copied)
    result = rlox("resume", copied, "--total-timesteps", "1", *COMMON)
    assert (result.code, "networks.safetensors" in result.err) == (1, True)
    assert contents(copied) == before


@pytest.mark.filterwarnings("ignore:environments could not be restored:UserWarning")
def test_resume_may_change_the_actors(rlox, tmp_path):
    argv = "train impala CartPole-v1 --seed 1 --total-timesteps 80"
    run = tmp_path / rlox(*argv.split(), *COMMON).json["run_dir"]
    result = rlox("resume", run, "--total-timesteps", "40", "--actors", "processes", *COMMON)
    assert (result.code, result.json["timesteps"]) == (0, 120)
    assert json.loads((run / "config.json").read_text())["settings"]["actors"] == "processes"
    assert rlox("resume", run, "--actors", "grpc://", *COMMON).code == 2


def test_a_stopped_run_continues_as_an_uninterrupted_run(rlox, tmp_path):
    stopped = PPOTrainer("CartPole-v1", 1, runs_dir=tmp_path, **SETTINGS)
    stopped.train(128, callbacks=[lambda run, metrics: run.stop()])
    uninterrupted = PPOTrainer("CartPole-v1", 1, runs_dir=None, **SETTINGS)
    uninterrupted.train(128)
    run = stopped.run.path
    rows = len((run / "metrics.csv").read_text().splitlines())
    result = rlox("resume", run, *COMMON)
    assert (result.code, result.json["timesteps"]) == (0, 128)
    assert len((run / "metrics.csv").read_text().splitlines()) == rows + 3
    assert json.loads((run / "summary.json").read_text())["timesteps"] == 128
    assert_networks_equal(PPOTrainer.load(run, runs_dir=None), uninterrupted)


def test_checkpoints_older_than_the_newest_of_the_run_are_rejected(rlox, copied):
    shutil.copytree(copied / "checkpoint", copied / "checkpoints/step-000000064")
    assert rlox("resume", copied, "--total-timesteps", "32", *COMMON).code == 0
    before = contents(copied)
    older = copied / "checkpoints/step-000000064"
    assert rlox("resume", older, "--total-timesteps", "32", *COMMON).code == 1
    assert contents(copied) == before


@pytest.mark.parametrize("name", ["checkpoint", "checkpoints/step-000000064"])
def test_checkpoints_of_a_run_continue_in_the_run_folder(name, rlox, copied):
    if not (copied / name).exists():
        shutil.copytree(copied / "checkpoint", copied / name)
    result = rlox("resume", copied / name, "--total-timesteps", "1", *COMMON)
    assert result.json["run_dir"] == str(copied)


@pytest.mark.parametrize(
    "config", [{"name": "foreign"}, {"algorithm": "ppo", "seed": 3}, {"versions": {"rlox": "0"}, "seed": 4}]
)
@pytest.mark.parametrize("name", ["models/saved", "models/checkpoint", "checkpoints/saved"])
def test_folders_of_other_programs_are_not_changed(config, name, rlox, trained, tmp_path):
    folder = tmp_path / "foreign"
    shutil.copytree(trained / "checkpoint", folder / name)
    rows = "time/total_timesteps,rollout/ep_rew_mean\n96,1.0\n"
    files = {"config.json": json.dumps(config), "summary.json": "{}", "metrics.csv": rows}
    files |= {f"models/{file}": content for file, content in files.items()}
    (folder / "models").mkdir(exist_ok=True)
    for file, content in files.items():
        (folder / file).write_text(content)
    result = rlox("resume", folder / name, "--total-timesteps", "1", *COMMON)
    assert result.json["run_dir"].startswith("runs/CartPole-v1/ppo/")
    assert {file: (folder / file).read_text() for file in files} == files


def test_checkpoints_outside_of_a_run_get_a_new_run_folder(rlox, copied, tmp_path):
    shutil.copytree(copied / "checkpoint", tmp_path / "single" / "checkpoint")
    result = rlox("resume", tmp_path / "single", "--total-timesteps", "1", *COMMON)
    assert result.json["run_dir"].startswith("runs/CartPole-v1/ppo/")


@pytest.fixture
def run_of_a_function(tmp_path):
    """Return the run folder of a trainer whose environment is made by a function."""
    trainer = PPOTrainer(cartpole, 1, runs_dir=tmp_path / "other", **SETTINGS)
    trainer.train(64)
    return trainer.run.path


def test_runs_without_an_env_id_use_the_option_env(rlox, run_of_a_function):
    arguments = (run_of_a_function, "--episodes", "2", "--json", "--env", "CartPole-v1")
    result = rlox("eval", *arguments)
    assert (result.code, len(result.json["returns"])) == (0, 2), result.err
    pytest.importorskip("pygame")
    result = rlox("enjoy", *arguments, "--render-mode", "rgb_array")
    assert (result.code, len(result.json["returns"])) == (0, 2)


def test_runs_without_an_env_id_need_the_option_env(rlox, run_of_a_function):
    for command in ("eval", "enjoy", "resume"):
        result = rlox(command, run_of_a_function)
        assert result.code == 1
        assert result.err.startswith("rlox: env: expected ")


def test_config_describes_the_resumed_run(rlox, run_of_a_function):
    run = run_of_a_function
    before = json.loads((run / "config.json").read_text())
    flags = ("--backend", "torch", "--env", "CartPole-v1", "--total-timesteps", "1")
    with pytest.warns(UserWarning, match="^environments could not be restored: "):
        result = rlox("resume", run, *flags, *COMMON)
    assert (result.code, result.json["backend"]) == (0, "torch")
    after = json.loads((run / "config.json").read_text())
    assert (before["backend"], before["env"]) == ("native", None)
    assert (after["backend"], after["env"]) == ("torch", "CartPole-v1")
    assert after["sources"] == before["sources"]
    assert rlox("resume", run, "--total-timesteps", "1", *COMMON).json["run_dir"] == str(run)
