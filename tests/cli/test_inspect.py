"""`rlox eval`, `enjoy`, `export`, `plot`, `presets` and `envs`."""

import json

import numpy as np
import pytest
import safetensors.numpy
import torch

import rlox as package
from rlox import presets
from rlox.cli._args import read_yaml
from rlox.envs._ids import native_ids
from rlox.scores import score
from rlox.trainers import PPOTrainer


def test_eval_returns_the_scores_of_trainer_evaluate(rlox, trained):
    result = rlox("eval", trained, "--episodes", "8", "--json")
    expected = PPOTrainer.load(trained, runs_dir=None).evaluate(8)
    assert (result.code, result.err) == (0, "")
    assert result.json["returns"] == expected["returns"]
    assert result.json["lengths"] == expected["lengths"]
    total = score(expected["returns"])
    assert result.json["iqm_interval"] == list(total["iqm_interval"])
    assert (result.json["mean"], result.json["std"]) == (total["mean"], total["std"])
    lines = rlox("eval", trained / "checkpoint", "--episodes", "4").out.splitlines()
    assert lines[0] == "ppo CartPole-v1, 4 episodes"
    assert lines[1].startswith("mean ")
    assert ", 95% interval [" in lines[2]


def test_episodes_depend_on_seed_and_sampling(rlox, trained):
    arguments = ("eval", trained, "--episodes", "3", "--json", "--seed", "5")
    greedy, samples = rlox(*arguments).json, rlox(*arguments, "--stochastic").json
    assert greedy["returns"] != samples["returns"]
    assert samples["returns"] == rlox(*arguments, "--stochastic").json["returns"]


def test_eval_accepts_another_environment_and_backend(rlox, trained):
    arguments = ("eval", trained, "--episodes", "3", "--json")
    result = rlox(*arguments, "--env", "rlox/CartPole-v1")
    assert (result.code, result.json["env"]) == (0, "rlox/CartPole-v1")
    assert rlox(*arguments, "--backend", "torch").json["returns"] == rlox(*arguments).json["returns"]


@pytest.mark.parametrize("mode", ["rgb_array", "human"])
def test_enjoy_renders_every_step(mode, rlox, trained):
    pytest.importorskip("pygame")
    arguments = ("enjoy", trained, "--episodes", "1", "--render-mode", mode)
    result = rlox(*arguments, "--json")
    assert result.code == 0
    # A frame for each step, and for the resets before and after the episode.
    assert result.json["frames"] == result.json["lengths"][0] + 2
    assert rlox(*arguments).out.startswith("episode 1: return ")


def test_enjoy_replaces_the_render_mode_of_training(rlox, tmp_path):
    pytest.importorskip("pygame")
    PPOTrainer("CartPole-v1", 1, runs_dir=None, env_kwargs={"render_mode": "rgb_array"}).save(tmp_path / "saved")
    result = rlox("enjoy", tmp_path / "saved", "--episodes", "1", "--render-mode", "rgb_array")
    assert (result.code, result.err) == (0, "")


def test_errors_of_missing_screens_name_the_other_render_mode(rlox, trained, monkeypatch):
    class error(Exception):  # noqa: N801, N818  # the name in pygame
        pass

    error.__module__ = "pygame"

    def fail(*args, **kwargs):
        raise error("No available video device")

    monkeypatch.setattr("gymnasium.make", fail)
    result = rlox("enjoy", trained)
    assert result.code == 1
    assert result.err.startswith("rlox: --render-mode: expected rgb_array on a machine without")


@pytest.mark.parametrize(
    ("file", "file_format", "arguments"),
    [("a.safetensors", "safetensors", ()), ("a.pt", "torch", ()), ("a.bin", "torch", ("--format", "torch"))],
)
def test_exported_files_contain_the_networks(file, file_format, arguments, rlox, trained, tmp_path):
    arguments = ("export", trained, "--out", file, *arguments)
    assert rlox(*arguments).out.startswith(f"ppo CartPole-v1 as {file_format}, ")
    assert rlox(*arguments, "--json").json["format"] == file_format
    if file_format == "torch":
        tensors = torch.load(tmp_path / file, weights_only=True)
        arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
    else:
        arrays = safetensors.numpy.load_file(tmp_path / file)
    np.testing.assert_equal(arrays, package.load(trained).learner.state(replay=False).networks)
    assert [path.name for path in tmp_path.iterdir()] == [file]


@pytest.mark.services
def test_onnx_model_gives_the_same_actions(rlox, trained, tmp_path):
    pytest.importorskip("onnx", reason="needs onnx: pip install 'rlox[onnx]'")
    runtime = pytest.importorskip("onnxruntime")
    assert rlox("export", trained, "--format", "onnx", "--out", "policy.onnx").code == 0
    session = runtime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    obs = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    actions = session.run(["action"], {"obs": obs})[0]
    np.testing.assert_array_equal(actions, package.load(trained).predict(obs))


def make_run(folder, values, **settings):
    folder.mkdir(parents=True)
    config = {"algorithm": "ppo", "env": "CartPole-v1", "backend": "native", "env_kwargs": {}}
    (folder / "config.json").write_text(json.dumps({**config, "settings": settings}))
    rows = ["time/total_timesteps,time/time_elapsed,rollout/ep_rew_mean"]
    rows += [f"{64 * i},{i},{x}" for i, x in enumerate(values, 1)]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")


@pytest.fixture
def runs(tmp_path):
    for seed in range(3):
        make_run(tmp_path / "runs" / f"a-{seed}", ["", 1.0 + seed, 2.0 + seed], gamma=0.9)
    make_run(tmp_path / "runs" / "b", [5.0, 6.0], gamma=0.8)
    return tmp_path / "runs"


def test_runs_with_different_seeds_are_a_single_line(rlox, runs, tmp_path):
    result = rlox("plot", runs / "b", runs, "--json")
    assert (result.code, result.err) == (0, "")
    assert sorted(result.json["lines"]) == [
        "ppo CartPole-v1 native, gamma 0.8",
        "ppo CartPole-v1 native, gamma 0.9 (3 runs)",
    ]
    assert len(result.json["runs"]) == 4  # b is counted once
    assert result.json["image"] == "curves.png"
    assert (tmp_path / "curves.png").read_bytes()[1:4] == b"PNG"
    assert len(rlox("plot", runs, "--no-bands", "--json").json["lines"]) == 4


def test_plots_of_a_run_are_saved_in_the_run_folder(rlox, runs, copied, tmp_path):
    result = rlox("plot", runs / "b", "--x", "time", "--smooth", "2")
    lines = ["ppo CartPole-v1 native", f"image {runs / 'b'}/curve.png"]
    assert result.out.splitlines() == lines
    assert (runs / "b" / "curve.png").exists()
    assert rlox("plot", runs, "--out", "a.svg", "--title", "Title").code == 0
    assert "<svg" in (tmp_path / "a.svg").read_text()
    assert rlox("plot", copied, "--metric", "time/fps").code == 0


def test_native_environments_are_listed_with_their_spaces(rlox):
    head, *lines = rlox("envs").out.splitlines()
    assert head.split() == ["id", "observations", "actions", "steps", "presets"]
    assert [line.split()[0] for line in lines] == native_ids()
    (pendulum,) = (line for line in lines if line.startswith("Pendulum-v1"))
    assert "Box(3)" in pendulum
    assert "Box(1), -2 to 2  200    a2c ppo sac td3" in pendulum
    (cartpole,) = (env for env in rlox("envs", "--json").json if env["id"] == "CartPole-v1")
    spaces = {"observation_space": "Box(4)", "action_space": "Discrete(2)"}
    values = {"id": "CartPole-v1", "max_episode_steps": 500, "presets": ["a2c", "dqn", "ppo"]}
    assert cartpole == {**spaces, **values}


def test_presets_are_listed_by_algorithm(rlox):
    lines = [line.split() for line in rlox("presets").out.splitlines()]
    assert lines == [[name, env] for name, envs in presets.names().items() for env in envs]
    assert {line.split()[0] for line in rlox("presets", "sac").out.splitlines()} == {"sac"}
    assert rlox("presets", "sac", "--json").json == {"sac": presets.names()["sac"]}


@pytest.mark.parametrize("algorithm", ["a2c", "dqn", "sac", "td3"])
def test_runs_of_every_algorithm_are_evaluated(algorithm, rlox):
    env = "CartPole-v1" if algorithm in ("a2c", "dqn") else "Pendulum-v1"
    buffer = [] if algorithm == "a2c" else ["--buffer-size", "300", "--train-freq", "1"]
    arguments = ["--total-timesteps", "4", "--num-envs", "1", "--net-arch", "4", *buffer]
    run = rlox("train", algorithm, env, *arguments, "--no-progress", "--json").json["run_dir"]
    result = rlox("eval", run, "--episodes", "1", "--json")
    assert (result.code, result.json["algorithm"]) == (0, algorithm)


def test_printed_presets_train_as_the_preset(rlox, tmp_path):
    (tmp_path / "a.yaml").write_text(rlox("presets", "ppo", "CartPole-v1").out)
    arguments = "--seed 1 --total-timesteps 256 --runs-dir None --no-progress --json"
    by_file = rlox("train", "--config", "a.yaml", *arguments.split()).json
    by_name = rlox("train", "ppo", "CartPole-v1", *arguments.split()).json
    assert (by_file["mean_reward"], by_file["run_dir"]) == (by_name["mean_reward"], None)


@pytest.mark.parametrize(("algorithm", "env"), [("td3", "Pendulum-v1"), ("ppo", "Hopper-v4")])
def test_printed_presets_are_yaml_of_the_settings(algorithm, env, rlox):
    printed = read_yaml(rlox("presets", algorithm, env).out, "here")
    assert (printed["algorithm"], printed["env"]) == (algorithm, env)
    assert printed["settings"] == rlox("presets", algorithm, env, "--json").json
    assert printed["settings"].keys() == presets.preset(algorithm, env).keys()
