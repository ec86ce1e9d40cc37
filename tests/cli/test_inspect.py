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


def test_score_is_that_of_the_trainers_evaluation(rlox, trained):
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
    words = ("eval", trained, "--episodes", "3", "--json", "--seed", "5")
    greedy, samples = rlox(*words).json, rlox(*words, "--stochastic").json
    assert greedy["returns"] != samples["returns"]
    assert samples["returns"] == rlox(*words, "--stochastic").json["returns"]


def test_policy_is_scored_in_another_environment_and_on_another_backend(rlox, trained):
    words = ("eval", trained, "--episodes", "3", "--json")
    result = rlox(*words, "--env", "rlox/CartPole-v1")
    assert (result.code, result.json["env"]) == (0, "rlox/CartPole-v1")
    assert rlox(*words, "--backend", "torch").json["returns"] == rlox(*words).json["returns"]


@pytest.mark.parametrize("mode", ["rgb_array", "human"])
def test_every_step_is_rendered(mode, rlox, trained):
    pytest.importorskip("pygame")
    words = ("enjoy", trained, "--episodes", "1", "--render-mode", mode)
    result = rlox(*words, "--json")
    assert result.code == 0
    # The first observation, each step, and the first observation of the next episode.
    assert result.json["frames"] == result.json["lengths"][0] + 2
    assert rlox(*words).out.startswith("episode 1: return ")


def test_missing_screen_is_reported_with_the_other_mode(rlox, trained, monkeypatch):
    class error(Exception):  # noqa: N801, N818  # as pygame calls it
        pass

    error.__module__ = "pygame"

    def fail(*args, **kwargs):
        raise error("No available video device")

    monkeypatch.setattr("gymnasium.make", fail)
    result = rlox("enjoy", trained)
    assert result.code == 1
    assert result.err.startswith("rlox: --render-mode: expected rgb_array on a machine without")


@pytest.mark.parametrize(
    ("file", "kind", "words"),
    [
        ("a.safetensors", "safetensors", ()),
        ("a.pt", "torch", ()),
        ("a.bin", "torch", ("--format", "torch")),
    ],
)
def test_exported_file_holds_the_networks(file, kind, words, rlox, trained, tmp_path):
    words = ("export", trained, "--out", file, *words)
    assert rlox(*words).out.startswith(f"ppo CartPole-v1 as {kind}, ")
    assert rlox(*words, "--json").json["format"] == kind
    if kind == "torch":
        tensors = torch.load(tmp_path / file, weights_only=True)
        arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
    else:
        arrays = safetensors.numpy.load_file(tmp_path / file)
    np.testing.assert_equal(arrays, package.load(trained).learner.state(replay=False).networks)
    assert [path.name for path in tmp_path.iterdir()] == [file]


@pytest.mark.services
def test_onnx_gives_the_same_actions(rlox, trained, tmp_path):
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


def test_runs_that_differ_in_their_seed_are_one_line(rlox, runs, tmp_path):
    make_run(runs / "a-0" / "diagnosis", ["", 1.0, 2.0], gamma=0.9)  # which is not a run
    result = rlox("plot", runs / "b", runs, "--json")
    assert (result.code, result.err) == (0, "")
    assert sorted(result.json["lines"]) == [
        "ppo CartPole-v1 native, gamma 0.8",
        "ppo CartPole-v1 native, gamma 0.9 (3 runs)",
    ]
    assert len(result.json["runs"]) == 4  # b only once
    assert result.json["image"] == "curves.png"
    assert (tmp_path / "curves.png").read_bytes()[1:4] == b"PNG"
    assert len(rlox("plot", runs, "--no-bands", "--json").json["lines"]) == 4


def test_plot_of_one_run_lies_in_its_folder_and_names_decide_formats(rlox, runs, copied, tmp_path):
    result = rlox("plot", runs / "b", "--x", "time", "--smooth", "2")
    lines = ["ppo CartPole-v1 native", f"image {runs / 'b'}/curve.png"]
    assert result.out.splitlines() == lines
    assert (runs / "b" / "curve.png").exists()
    assert rlox("plot", runs, "--out", "a.svg", "--title", "Ours").code == 0
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
    others = {"id": "CartPole-v1", "max_episode_steps": 500, "presets": ["a2c", "dqn", "ppo"]}
    assert cartpole == {**spaces, **others}


def test_presets_are_listed_by_algorithm(rlox):
    lines = [line.split() for line in rlox("presets").out.splitlines()]
    assert lines == [[name, env] for name, envs in presets.names().items() for env in envs]
    assert {line.split()[0] for line in rlox("presets", "sac").out.splitlines()} == {"sac"}
    assert rlox("presets", "sac", "--json").json == {"sac": presets.names()["sac"]}


@pytest.mark.parametrize("algorithm", ["a2c", "dqn", "sac", "td3"])
def test_runs_of_every_algorithm_are_evaluated(algorithm, rlox):
    env = "CartPole-v1" if algorithm in ("a2c", "dqn") else "Pendulum-v1"
    buffer = [] if algorithm == "a2c" else ["--buffer-size", "300", "--train-freq", "1"]
    words = ["--total-timesteps", "4", "--num-envs", "1", "--net-arch", "4", *buffer]
    run = rlox("train", algorithm, env, *words, "--no-progress", "--json").json["run_dir"]
    result = rlox("eval", run, "--episodes", "1", "--json")
    assert (result.code, result.json["algorithm"]) == (0, algorithm)


def test_printed_preset_trains_as_the_preset_does(rlox, tmp_path):
    (tmp_path / "a.yaml").write_text(rlox("presets", "ppo", "CartPole-v1").out)
    words = "--seed 1 --total-timesteps 256 --runs-dir None --no-progress --json"
    by_file = rlox("train", "--config", "a.yaml", *words.split()).json
    by_name = rlox("train", "ppo", "CartPole-v1", *words.split()).json
    assert (by_file["mean_reward"], by_file["run_dir"]) == (by_name["mean_reward"], None)


@pytest.mark.parametrize(("algorithm", "env"), [("td3", "Pendulum-v1"), ("ppo", "Hopper-v4")])
def test_printed_preset_is_yaml_of_its_settings(algorithm, env, rlox):
    shown = read_yaml(rlox("presets", algorithm, env).out, "here")
    assert (shown["algorithm"], shown["env"]) == (algorithm, env)
    assert shown["settings"] == rlox("presets", algorithm, env, "--json").json
    assert shown["settings"].keys() == presets.preset(algorithm, env).keys()
