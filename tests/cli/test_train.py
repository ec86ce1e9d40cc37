"""`rlox train`: settings from flags, files and presets, callbacks, loggers and seeds."""

import csv
import json
import sys

import pytest

from rlox._registry import ALGORITHMS
from rlox._validation import get_settings
from rlox.cli import UsageError
from rlox.cli._args import read_yaml
from rlox.cli.train import parse_seeds
from rlox.scores import score
from rlox.trainers import PPOTrainer
from support.cli_runs import SETTINGS, SMALL
from support.rejections import rejects

PPO = ("train", "ppo", "CartPole-v1", "--no-progress", "--seed", "1", *SMALL)
TRAIN = (*PPO, "--total-timesteps", "64")
SEEDS = ("train", "ppo", "CartPole-v1", "--total-timesteps", "64", *SMALL)


def config(folder):
    (file,) = folder.rglob("config.json")
    return json.loads(file.read_text())


def run_of(folder):
    (file,) = folder.rglob("summary.json")
    return file.parent


def rows(run):
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def checkpoints(run):
    return sorted(x.name for x in (run / "checkpoints").iterdir() if x.is_dir())


def test_train_gives_the_result_of_the_trainer(rlox, tmp_path):
    run = rlox(*TRAIN, "--json")
    result = PPOTrainer("CartPole-v1", 1, runs_dir=None, **SETTINGS).train(64)
    assert (run.code, run.err) == (0, "")
    names = ("timesteps", "episodes", "mean_reward", "mean_length")
    assert {name: run.json[name] for name in names} == {name: result[name] for name in names}
    assert (run.json["algorithm"], run.json["env"]) == ("ppo", "CartPole-v1")
    assert config(tmp_path)["sources"]["n_steps"] == "argument"
    assert config(tmp_path)["sources"]["gamma"] == "rl-zoo3"


def test_the_report_goes_to_stdout_and_progress_to_stderr(rlox):
    run = rlox(*(word for word in TRAIN if word != "--no-progress"), "--backend", "native")
    lines = run.out.splitlines()
    assert lines[0] == "ppo CartPole-v1, seed 1, native"
    assert lines[1].startswith("64 steps in total; this call took ")
    assert lines[3].startswith("run folder runs/CartPole-v1/ppo/")
    assert run.err.startswith("64/64 timesteps, return ")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_help_lists_every_setting(algorithm, rlox, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    help_page = rlox("train", algorithm, "--help").out
    for name, setting in get_settings(ALGORITHMS[algorithm].config).items():
        assert f"--{name.replace('_', '-')}" in help_page
        assert setting.doc in help_page
        assert ",".join(setting.choices) in help_page
    assert "discount factor (default: 0.99; in [0, 1])" in help_page
    if algorithm == "ppo":
        help_page = rlox("train", "ppo", "CartPole-v1", "--help").out
        assert "discount factor (rl-zoo3: 0.98; in [0, 1])" in help_page


def test_flags_of_every_type_reach_the_settings(rlox, tmp_path):
    flags = "--net-arch 8 4 --target-kl None --clip-coef-vf 0.3 --no-ortho-init --normalize-obs "
    flags += "--lr-schedule constant --activation relu --learning_rate 1e-3"
    assert rlox(*TRAIN, *flags.split()).code == 0
    expected = {"net_arch": [8, 4], "target_kl": None, "clip_coef_vf": 0.3, "ortho_init": False}
    expected |= {"normalize_obs": True, "lr_schedule": "constant", "activation": "relu"}
    settings = config(tmp_path)["settings"]
    assert {name: settings[name] for name in expected} == expected
    assert settings["learning_rate"] == 1e-3


PENDULUM, CAR = "Pendulum-v1", "MountainCarContinuous-v0"  # the presets set sigma to 0.1 and 0.5
ORNSTEIN = {"theta": 0.15, "dt": 0.01, "kind": "ornstein_uhlenbeck"}


@pytest.mark.parametrize(
    ("env", "flags", "noise"),
    [
        (PENDULUM, "--action-noise.sigma 0.3", {"sigma": 0.3, "kind": "gaussian"}),
        (PENDULUM, "--action-noise ornstein_uhlenbeck", {"sigma": 0.1, **ORNSTEIN}),
        (PENDULUM, "--action-noise none", None),
        (CAR, "--action-noise.theta=0.2", {"sigma": 0.5, **ORNSTEIN, "theta": 0.2}),
    ],
)
def test_flags_select_and_change_action_noise(env, flags, noise, rlox, tmp_path):
    arguments = ["train", "td3", env, "--total-timesteps", "1", "--no-progress", "--net-arch", "4"]
    assert rlox(*arguments, "--buffer-size", "300", *flags.split()).code == 0
    assert config(tmp_path)["settings"]["action_noise"] == noise


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


def test_config_files_set_options_and_settings(rlox, tmp_path):
    (tmp_path / "run.yaml").write_text(FILE)
    run = rlox("train", "--config", "run.yaml", "--json")
    assert (run.code, run.err) == (0, "")
    assert (run.json["env"], run.json["seed"], run.json["timesteps"]) == ("Pendulum-v1", 7, 32)
    settings = config(tmp_path)["settings"]
    assert (settings["learning_rate"], settings["n_steps"], settings["num_envs"]) == (1e-3, 16, 2)
    assert config(tmp_path)["env_kwargs"] == {"g": 9.0}


def test_flags_override_the_config_file(rlox, tmp_path):
    (tmp_path / "run.yaml").write_text(FILE.replace("env_kwargs", "backend: torch\nenv_kwargs"))
    flags = "--seed 8 --n-steps 8 --env-kwargs.g 9.5 --env_kwargs.max_episode_steps=50 "
    flags += "--batch-size 16 --backend auto"  # auto is the default, and overrides the file too
    run = rlox("train", "--config=run.yaml", *flags.split(), "--json")
    assert (run.code, run.json["seed"], run.json["backend"]) == (0, 8, "native")
    assert config(tmp_path)["settings"]["n_steps"] == 8
    assert config(tmp_path)["env_kwargs"] == {"g": 9.5, "max_episode_steps": 50}


def test_the_config_of_a_run_repeats_the_run(rlox, tmp_path):
    first = rlox(*TRAIN, "--json").json
    (file,) = tmp_path.rglob("config.json")
    arguments = ("train", "--config", file, "--total-timesteps", "64", "--no-progress", "--json")
    second = rlox(*arguments).json
    for name in ("seconds", "sps", "run_dir"):
        del first[name], second[name]
    assert second == first


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return the name of a module that is not imported yet."""
    (tmp_path / "unimported_module.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield "unimported_module"
    sys.modules.pop("unimported_module", None)


def test_ids_with_modules_are_accepted_on_the_command_line_only(rlox, module, tmp_path):
    env = f"{module}:CartPole-v1"
    (tmp_path / "a.yaml").write_text(f'algorithm: ppo\nenv: "{env}"\n')
    for command in ("train", "sweep"):
        result = rlox(command, "--config", "a.yaml", "--total-timesteps", "64", "--no-progress")
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith("rlox: --config, env: expected an id without a module, got ")
    assert module not in sys.modules
    result = rlox("train", "ppo", env, "--config", "a.yaml", *TRAIN[3:], "--json")
    assert (result.code, result.json["env"]) == (0, "CartPole-v1")
    assert module in sys.modules


def test_yaml_values_are_parsed_by_type():
    values = {"1e-3": 1e-3, "1E5": 1e5, "100_000": 100_000, "true": True, "": None}
    values |= {"'1e-3'": "1e-3", "{a: 1, b: [x]}": {"a": 1, "b": ["x"]}}
    merged = {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}}
    values |= {"x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}": merged}
    for text, value in values.items():
        result = read_yaml(text, "here")
        assert (result, type(result)) == (value, type(value)), text


def test_yaml_with_tags_or_duplicate_keys_is_rejected():
    plain = ("a: 1\na: 2", "b: {a: 1, a: 2}", "[1]: 2", "a: [1", "a: b: c", "a: 1\n---\nb: 2", "\0")
    tag = "a: !!python/object/apply:os.system ['x']"
    tags = ("!!int", "!!bool x", "!!timestamp x")
    for text in (*plain, *tags, tag, "[" * 100_000, "a: &a [*a]"):
        with pytest.raises(UsageError) as raised:
            read_yaml(text, "here")
        assert raised.value.__cause__.argument == "here"


def test_options_set_the_intervals_of_scores_and_checkpoints(rlox, tmp_path):
    arguments = "--eval-every 32 --eval-episodes 2 --checkpoint-every 32 --keep-last 2"
    assert rlox(*PPO, "--total-timesteps", "128", *arguments.split()).code == 0
    run = run_of(tmp_path)
    assert all(row["eval/mean_reward"] for row in rows(run))
    assert checkpoints(run) == ["best", "step-000000096", "step-000000128"]


@pytest.mark.parametrize(
    ("arguments", "steps", "report"),
    [
        ("--eval-episodes 1 --stop-at-reward 1", 32, "stopped by EvalCallback: mean reward "),
        ("--eval-episodes 2 --patience 96 --learning-rate 0", 128, "stopped by EarlyStoppingCallback"),
    ],
    ids=["reward", "patience"],
)
def test_evaluations_may_stop_a_run(arguments, steps, report, rlox, tmp_path):
    result = rlox(*PPO, *arguments.split(), "--total-timesteps", "3200", "--eval-every", "32")
    assert (result.code, len(rows(run_of(tmp_path)))) == (0, steps // 32)
    assert report in result.out


def test_flags_override_callbacks_and_loggers_of_the_config_file(rlox, tmp_path):
    (tmp_path / "run.yaml").write_text(
        "algorithm: ppo\nenv: CartPole-v1\nseed: 1\ntotal_timesteps: 96\nprogress: true\n"
        "loggers: [jsonl]\neval_every: 32\neval_episodes: 2\ncheckpoint_every: 32\n"
        "keep_last: 1\ntiming: true\n"
        "settings: {num_envs: 2, n_steps: 16, batch_size: 16, n_epochs: 1}\n"
    )
    result = rlox("train", "--config", "run.yaml", "--keep-last=2", "--no-progress", "--no-timing")
    assert (result.code, result.err) == (0, "")
    run = run_of(tmp_path)
    assert checkpoints(run) == ["best", "step-000000064", "step-000000096"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["eval/mean_reward"] > 0
    assert not [name for name in lines[-1] if name.startswith("timing/")]


def test_console_logger_prints_rows_and_timing_adds_shares(rlox, tmp_path):
    argv = "--total-timesteps 10_000 --timing --n-steps 512 --batch-size 1024 --loggers console csv"
    result = rlox(*PPO, *argv.split())
    assert result.code == 0
    assert "| time/total_timesteps " in result.out
    last = rows(run_of(tmp_path))[-1]
    shares = [float(x) for name, x in last.items() if name.startswith("timing/")]
    assert sum(shares) == pytest.approx(1, abs=0.02)


@pytest.mark.services
def test_videos_are_recorded(rlox, tmp_path):
    pytest.importorskip("moviepy", reason="needs moviepy: pip install 'rlox[video]'")
    pytest.importorskip("pygame")
    assert rlox(*PPO, "--total-timesteps", "32", "--video-every", "32").code == 0
    assert [x.name for x in tmp_path.rglob("*.mp4")] == ["step-000000032.mp4"]


def test_runs_of_several_seeds_equal_single_runs(rlox, tmp_path):
    result = rlox(*SEEDS, "--seeds", "3-5", "--json", "--no-progress")
    assert (result.code, result.err) == (0, "")
    for run, seed in zip(result.json["runs"], (3, 4, 5), strict=True):
        expected = PPOTrainer("CartPole-v1", seed, runs_dir=None, **SETTINGS).train(64)
        assert (run["seed"], run["mean_reward"]) == (seed, expected["mean_reward"])
        saved = json.loads((tmp_path / run["run_dir"] / "config.json").read_text())
        assert saved["seed"] == seed
    means = [run["mean_reward"] for run in result.json["runs"]]
    assert result.json["mean_reward"]["iqm"] == score(means)["iqm"]
    assert result.json["mean_reward"]["runs"] == 3


def test_the_report_of_several_seeds_has_runs_and_a_score(rlox, tmp_path):
    result = rlox(*SEEDS, "--seeds", "0,7", "--eval-every", "32", "--loggers", "jsonl")
    *lines, total, mean = result.out.splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["seed 0", "seed 7"]
    assert "64 steps in" in lines[0]
    assert total == "ppo CartPole-v1: 2 runs"
    assert "interquartile mean" in mean
    assert len([*tmp_path.rglob("metrics.jsonl")]) == 2
    assert len([*tmp_path.rglob("checkpoints/best")]) == 2


def test_seed_flags_replace_seeds_of_the_config_file(rlox, tmp_path):
    arguments = ("train", "--config", "a.yaml", *SEEDS[3:], "--json", "--runs-dir", "None")
    (tmp_path / "a.yaml").write_text("algorithm: ppo\nenv: CartPole-v1\nseeds: [1, 4]\n")
    assert [run["seed"] for run in rlox(*arguments).json["runs"]] == [1, 4]
    assert rlox(*arguments, "--seed", "5").json["seed"] == 5
    (tmp_path / "a.yaml").write_text("algorithm: ppo\nenv: CartPole-v1\nseed: 7\n")
    assert [run["seed"] for run in rlox(*arguments, "--seeds", "0-1").json["runs"]] == [0, 1]


def test_failed_runs_are_reported_and_other_runs_continue(rlox, monkeypatch):
    train = PPOTrainer.train

    def fail_for_seed_1(self, *args, **kwargs):
        if self.seed == 1:
            raise OSError("disk is full")
        return train(self, *args, **kwargs)

    monkeypatch.setattr(PPOTrainer, "train", fail_for_seed_1)
    result = rlox(*SEEDS, "--seeds", "0-2", "--runs-dir", "None")
    assert (result.code, result.err) == (1, "seed 1: failed: disk is full\n")
    assert "3 runs, 1 failed" in result.out
    runs = rlox(*SEEDS, "--seeds", "0-2", "--runs-dir", "None", "--json").json["runs"]
    assert [("error" in run, run["seed"]) for run in runs] == [(False, 0), (True, 1), (False, 2)]


def test_parse_seeds_accepts_numbers_and_ranges():
    assert parse_seeds("7, 0-2") == [7, 0, 1, 2]
    assert parse_seeds(4) == [4]
    for text in ("", "a", "3-1", "-1", "1.5", "0-99999999"):
        with rejects(UsageError, "--seeds", "write --seeds 0-9"):
            parse_seeds(text)
