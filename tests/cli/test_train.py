"""`rlox train`: settings from flags, files and presets, and what is told of a run."""

import json

import pytest

from cli_runs import SMALL
from rlox.cli.saved import trainers
from rlox.configs import setting_docs
from rlox.trainers import PPOTrainer

TRAIN = ("train", "ppo", "CartPole-v1", "--no-progress", "--total-timesteps", "64", "--seed", "1")


def config(folder):
    (file,) = folder.rglob("config.json")
    return json.loads(file.read_text())


def test_a_run_is_that_of_the_trainer(rlox, tmp_path):
    said = rlox(*TRAIN, *SMALL, "--json")
    small = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2}
    result = PPOTrainer("CartPole-v1", 1, runs_dir=None, **small).train(64)
    assert (said.code, said.err) == (0, "")
    same = ("timesteps", "episodes", "mean_reward", "mean_length")
    assert {name: said.json[name] for name in same} == {name: result[name] for name in same}
    assert said.json["algorithm"], said.json["env"] == ("ppo", "CartPole-v1")
    assert config(tmp_path)["sources"]["n_steps"] == "argument"
    assert config(tmp_path)["sources"]["gamma"] == "rl-zoo3"


def test_people_are_told_return_speed_and_folder(rlox):
    said = rlox(*TRAIN, *SMALL, "--backend", "native")
    lines = said.out.splitlines()
    assert lines[0] == "ppo CartPole-v1, seed 1, native"
    assert lines[1].startswith("64 steps, this time in ")
    assert lines[3].startswith("run folder runs/CartPole-v1/ppo/")


def test_progress_goes_to_stderr(rlox):
    words = [word for word in TRAIN if word != "--no-progress"]
    said = rlox(*words, *SMALL, "--json")
    assert said.json["timesteps"] == 64
    assert said.err.startswith("64/64 steps, return ")


@pytest.mark.parametrize("algorithm", trainers())
def test_every_setting_is_a_flag_with_its_meaning(algorithm, rlox, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    said = rlox("train", algorithm, "--help")
    for name, meaning in setting_docs(trainers()[algorithm].config_type).items():
        assert f"--{name.replace('_', '-')}" in said.out
        assert meaning in said.out


def test_help_shows_the_values_that_an_environment_is_trained_with(rlox, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert "discount factor (rl-zoo3: 0.98)" in rlox("train", "ppo", "CartPole-v1", "--help").out
    assert "discount factor (default: 0.99)" in rlox("train", "ppo", "--help").out


def test_flags_of_every_kind_reach_the_settings(rlox, tmp_path):
    flags = "--net-arch 8 4 --target-kl None --clip-coef-vf 0.3 --no-ortho-init --normalize-obs "
    flags += "--lr-schedule constant --activation relu --learning_rate 1e-3"
    assert rlox(*TRAIN, *SMALL, *flags.split()).code == 0
    settings = config(tmp_path)["settings"]
    assert (settings["net_arch"], settings["target_kl"], settings["clip_coef_vf"]) == (
        *([8, 4], None),
        0.3,
    )
    assert (settings["ortho_init"], settings["normalize_obs"]) == (False, True)
    assert (settings["lr_schedule"], settings["activation"]) == ("constant", "relu")
    assert settings["learning_rate"] == 1e-3


def noise(rlox, tmp_path, env, *flags):
    words = ["train", "td3", env, "--total-timesteps", "1", "--no-progress", "--net-arch", "4"]
    said = rlox(*words, "--buffer-size", "300", "--runs-dir", "runs-of-noise", *flags)
    assert said.code == 0, said.err
    (file,) = (tmp_path / "runs-of-noise").rglob("config.json")
    found = json.loads(file.read_text())["settings"]["action_noise"]
    file.rename(file.with_name("seen"))
    return found


def test_noise_is_chosen_and_changed_by_flags(rlox, tmp_path):
    tuned = noise(rlox, tmp_path, "Pendulum-v1", "--action-noise.sigma", "0.3")
    assert tuned == {"sigma": 0.3, "kind": "gaussian"}
    walk = noise(rlox, tmp_path, "Pendulum-v1", "--action-noise", "ornstein_uhlenbeck")
    assert walk == {"sigma": 0.1, "theta": 0.15, "dt": 0.01, "kind": "ornstein_uhlenbeck"}
    assert noise(rlox, tmp_path, "Pendulum-v1", "--action-noise", "none") is None
    tuned = noise(rlox, tmp_path, "MountainCarContinuous-v0", "--action-noise.theta=0.2")
    assert (tuned["sigma"], tuned["theta"]) == (0.5, 0.2)


def test_arguments_of_the_environment_are_dotted_flags(rlox, tmp_path):
    words = ("train", "ppo", "Pendulum-v1", "--total-timesteps", "1", "--no-progress", *SMALL)
    assert rlox(*words, "--env-kwargs.g", "9.81", "--env_kwargs.max_episode_steps=50").code == 0
    assert config(tmp_path)["env_kwargs"] == {"g": 9.81, "max_episode_steps": 50}


FILE = """
algorithm: ppo
env: Pendulum-v1
seed: 7
total-timesteps: 32
progress: false
env_kwargs: {g: 9.0}
num_envs: 2
settings:
  n-steps: 16
  batch_size: 16
  learning_rate: 1e-3
"""


def test_a_file_says_all_that_flags_can(rlox, tmp_path):
    (tmp_path / "run.yaml").write_text(FILE)
    said = rlox("train", "--config", "run.yaml", "--json")
    assert (said.code, said.err) == (0, "")
    assert (said.json["env"], said.json["seed"], said.json["timesteps"]) == ("Pendulum-v1", 7, 32)
    settings = config(tmp_path)["settings"]
    assert (settings["learning_rate"], settings["n_steps"], settings["num_envs"]) == (1e-3, 16, 2)
    assert config(tmp_path)["env_kwargs"] == {"g": 9.0}


def test_flags_win_over_the_file_dotted_or_not(rlox, tmp_path):
    (tmp_path / "run.yaml").write_text(FILE)
    flags = "--seed 8 --settings.n-steps 8 --env-kwargs.g 9.5 --learning-rate 2e-3"
    said = rlox("train", "--config=run.yaml", *flags.split(), "--runs-dir", "elsewhere", "--json")
    assert (said.code, said.json["seed"]) == (0, 8)
    there = config(tmp_path / "elsewhere")
    assert (there["settings"]["n_steps"], there["settings"]["learning_rate"]) == (8, 2e-3)
    assert there["env_kwargs"] == {"g": 9.5}


def test_a_flag_that_is_the_default_wins_over_the_file_too(rlox, tmp_path):
    (tmp_path / "run.yaml").write_text(FILE.replace("env_kwargs", "backend: torch\nenv_kwargs"))
    said = rlox("train", "--config=run.yaml", "--backend", "auto", "--json")
    assert (said.code, said.json["backend"]) == (0, "native")


def test_the_config_of_a_run_repeats_it(rlox, tmp_path):
    first = rlox(*TRAIN, *SMALL, "--json").json
    (file,) = tmp_path.rglob("config.json")
    words = ("train", "--config", file, "--total-timesteps", "64", "--no-progress", "--json")
    second = rlox(*words).json
    timed = {"seconds", "sps", "run_dir"}
    assert {k: x for k, x in second.items() if k not in timed} == {
        k: x for k, x in first.items() if k not in timed
    }


def test_a_preset_that_is_shown_is_a_file_that_trains_the_same(rlox, tmp_path):
    (tmp_path / "tuned.yaml").write_text(rlox("presets", "ppo", "CartPole-v1").out)
    words = ("--seed", "1", "--total-timesteps", "256", "--no-progress", "--runs-dir", "None")
    by_file = rlox("train", "--config", "tuned.yaml", *words, "--json").json
    by_name = rlox("train", "ppo", "CartPole-v1", *words, "--json").json
    assert by_file["mean_reward"] == by_name["mean_reward"]
    assert by_file["run_dir"] is None
