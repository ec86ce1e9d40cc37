"""Exit codes and messages of wrong command lines (2) and failed commands (1)."""

import shutil
import sys

import gymnasium as gym
import numpy as np
import pytest

from rlox.cli import main
from support.cli_runs import SMALL

TRAIN = "train ppo CartPole-v1 --total-timesteps 32 --no-progress "
NOISE = "train td3 Pendulum-v1 --total-timesteps 1 "
SWEEP = "sweep ppo CartPole-v1 --total-timesteps 256 --trials 1 "

# Command, exit code, and parts of the message: the option, the value and the fix.
# RUN is replaced by the folder of a run.
ERRORS = [
    # Commands.
    ("", 2, ["usage: rlox COMMAND"]),
    ("trian", 2, ["expected a command", "'trian'", "did you mean 'train'?"]),
    ("--seed 1 train", 2, ["expected a command before any option", "'--seed'"]),
    # Algorithm, environment and number of steps.
    ("train", 2, ["ALGORITHM: expected an algorithm", "none", "rlox train ppo CartPole-v1"]),
    ("train ppp CartPole-v1", 2, ["ALGORITHM: expected", "ppp", "did you mean 'ppo'?"]),
    ("train ppo --total-timesteps 9", 2, ["ENV: expected", "None", "rlox train ppo CartPole-v1"]),
    ("train ppo CartPole-v1", 2, ["--total-timesteps: expected", "add --total-timesteps 100_000"]),
    ("train ppo CartPol-v1 --total-timesteps 9", 2, ["env: expected", "'CartPol-v1'", "CartPole"]),
    ("train dqn Pendulum-v1 --total-timesteps 9", 1, ["Discrete", "got Box"]),
    ("train ppo CartPole-v1 Pendulum-v1", 2, ["Unrecognized options: Pendulum-v1", "--help"]),
    (TRAIN + "--total-timesteps 1e5", 2, ["--total-timesteps", "'1e5'"]),
    (TRAIN + "--total-timesteps -5", 2, ["total_timesteps: expected", "-5"]),
    # Settings.
    (TRAIN + "--gama 0.9", 2, ["Unrecognized options: --gama", "Perhaps you meant", "--gamma"]),
    (TRAIN + "--gamma x", 2, ["--gamma", "'x'"]),
    (TRAIN + "--gamma 1.5", 2, ["gamma: expected", "1.5"]),
    (TRAIN + "--lr-schedule cosine", 2, ["'cosine'", "'--lr-schedule'", "constant", "linear"]),
    (TRAIN + "--normalize-obs maybe", 2, ["Unrecognized options: maybe"]),
    (TRAIN + "--num-envs 1000000000000", 1, ["num_envs"]),
    (NOISE + "--action-noise pink", 2, ["'pink'", "gaussian"]),
    (NOISE + "--action-noise.theta 1", 2, ["--action-noise.theta: expected", "sigma"]),
    (NOISE + "--action-noise.sigma -1", 2, ["sigma: expected", "-1.0"]),
    (NOISE + "--action-noise none --action-noise.sigma 1", 2, ["--action-noise.sigma: expected"]),
    ("train sac Pendulum-v1 --total-timesteps 1 --action-noise.sigma 1", *(2, ["--action-noise.sigma: expected"])),
    # Backends, seeds, folders.
    (TRAIN + "--backend jax", 2, ["'jax'", "'--backend'", "native", "torch"]),
    (TRAIN + "--backend native --device cuda", 2, ["device: expected 'cpu'"]),
    (TRAIN + "--seed -1", 2, ["seed: expected None or", "-1"]),
    (TRAIN + "--seed 1 --seeds 0-1", 2, ["--seeds: expected no --seed"]),
    (TRAIN + "--seeds 1,1", 2, ["seeds: expected each seed once"]),
    (TRAIN + "--seeds 3-1", 2, ["--seeds: expected", "'3-1'"]),
    (TRAIN + "--runs-dir file/runs", 2, ["runs_dir: expected a folder"]),
    # Callbacks and loggers.
    (TRAIN + "--loggers consol", 2, ["loggers: expected", "'consol'", "did you mean 'console'?"]),
    (TRAIN + "--loggers jsonl csv jsonl", 2, ["loggers: expected", "'jsonl' twice"]),
    (TRAIN + "--loggers jsonl --runs-dir None", 2, ["loggers: expected a run folder"]),
    (TRAIN + "--eval-episodes 3", 2, ["--eval-episodes: expected --eval-every"]),
    (TRAIN + "--stop-at-reward 3", 2, ["--stop-at-reward: expected --eval-every"]),
    (TRAIN + "--patience 0", 2, ["patience: expected", "0"]),
    (TRAIN + "--keep-last 3", 2, ["--keep-last: expected --checkpoint-every"]),
    (TRAIN + "--checkpoint-every -1", 2, ["checkpoint_every: expected", "-1"]),
    (TRAIN + "--checkpoint-every 9 --keep-last 0", 2, ["keep_last: expected", "0"]),
    (TRAIN + "--eval-every 0", 2, ["eval_every: expected", "0"]),
    (TRAIN + "--checkpoint-every 9 --runs-dir None", 1, ["path: expected"]),
    # Arguments of environments.
    (TRAIN + "--env-kwargs.q 1", 2, ["env_kwargs", '"q"']),
    (TRAIN + "--env-kwargs.num_envs 1", 2, ["env_kwargs: expected no 'num_envs'"]),
    (TRAIN + "--env-kwargs.g", 2, ["--env-kwargs.g: expected a value"]),
    (TRAIN + "--env-kwargs g=1", 2, ["Unrecognized options: --env-kwargs, g=1"]),
    (TRAIN + "--env-kwargs.g !!python/name:os.system", 2, ["--env-kwargs.g: expected YAML"]),
    # Files.
    ("train --config", 2, ["--config: expected a value"]),
    ("train --config none.yaml", 2, ["--config: expected a YAML file", "'none.yaml'"]),
    ("train --config rum.yaml", 2, ["'rum.yaml'", "did you mean 'run.yaml'"]),
    ("train --config empty", 2, ["--config: expected a YAML file"]),
    ("train --config bytes.yaml", 2, ["--config bytes.yaml: expected YAML", "invalid start byte"]),
    ("train --config large.yaml", 2, ["--config: expected a YAML file", "1,048,576 bytes"]),
    ("train --config unknown.yaml", 2, ["--config", "gama:", "did you mean 'gamma'?"]),
    ("train --config option.yaml", 2, ["--config", "eval_evry:", "did you mean 'eval_every'"]),
    ("train --config inner.yaml", 2, ["--config: seed:"]),
    ("train --config tag.yaml", 2, ["--config tag.yaml: expected YAML", "line 2"]),
    ("train --config twice.yaml", 2, ["--config twice.yaml: expected YAML", "key 'seed'"]),
    ("train --config dashes.yaml", 2, ["--config dashes.yaml: expected each key once"]),
    ("train --config places.yaml", 2, ["--config: expected 'n_steps' once"]),
    ("train --config list.yaml", 2, ["--config list.yaml: expected keys and values", "a list"]),
    ("train --config inner_twice.yaml", 2, ["--config, settings: expected each key once"]),
    ("train --config often.yaml", 2, ["eval_every: expected", "'often'"]),
    ("train --config word.yaml", 2, ["gamma: expected", "'much'"]),
    ("train --config steps.yaml", 2, ["total_timesteps: expected an integer", "pass 100000"]),
    ("train --config loggers.yaml", 2, ["loggers: expected a list"]),
    ("train --config loggers.yaml --seeds 0-1", 2, ["loggers: expected a list"]),
    ("train --config flag.yaml", 2, ["json: expected True or False"]),
    ("train --config seeds.yaml", 2, ["--seeds: expected no --seed"]),
    ("train --config number.yaml", 2, ["ENV: expected the id of an environment", "3"]),
    ("train --config custom.yaml", 2, ["--config, custom_policy: expected", "train it in Python"]),
    ("train --config kwargs.yaml", 2, ["--config, env_kwargs: expected keys and values", "3"]),
    # Runs.
    ("eval", 2, ["Missing", "RUN"]),
    ("eval nowhere", 1, ["path: expected a checkpoint", "does not exist"]),
    ("eval damaged", 1, ["manifest.json"]),
    ("eval RUN --episodes 0", 2, ["episodes: expected", "0"]),
    ("eval RUN --env Pendulum-v1", 2, ["env: expected"]),
    ("enjoy RUN --episodes 0", 2, ["episodes: expected", "0"]),
    ("enjoy RUN --render-mode ascii", 2, ["'ascii'", "human", "rgb_array"]),
    ("resume nowhere", 1, ["path: expected a checkpoint"]),
    ("resume RUN", 1, ["RUN: expected a run that was stopped", "add --total-timesteps"]),
    ("resume RUN --env Pendulum-v1 --total-timesteps 1", 2, ["observation space", "same env"]),
    ("resume RUN --actors threads --total-timesteps 1", 2, ["actors: expected"]),
    ("export RUN", 2, ["--out"]),
    ("export RUN --out policy", 2, ["--format: expected torch, safetensors or onnx", "'policy'"]),
    ("export RUN --out a.pt --format onnx", 2, ["--out: expected", "'a.pt'"]),
    ("export RUN --out none/a.pt", 2, ["--out: expected a file in an existing folder"]),
    ("export nowhere --out a.pt", 1, ["path: expected a checkpoint, "]),
    ("plot", 2, ["RUN...: expected at least one run folder"]),
    ("plot nowhere", 1, ["RUN: expected a run folder", "'nowhere'"]),
    ("plot RUN --metric rollout/reward", 1, ["'rollout/reward'", "did you mean"]),
    ("plot RUN --smooth 0", 2, ["smooth: expected", "0"]),
    ("plot RUN --out picture.xyz", 1, ["xyz", "png"]),
    ("plot torn", 1, ["rollout/ep_rew_mean", "damaged"]),
    # Sweeps.
    ("sweep", 2, ["ALGORITHM: expected", "rlox sweep ppo CartPole-v1"]),
    ("sweep ppo CartPole-v1", 2, ["--total-timesteps: expected"]),
    ("sweep ppo CartPol-v1 --total-timesteps 9", 2, ["env: expected", "'CartPol-v1'"]),
    (SWEEP + "--trials 0", 2, ["trials: expected", "0"]),
    (SWEEP + "--jobs 0", 2, ["jobs: expected", "0"]),
    (SWEEP + "--eval-episodes 0", 2, ["eval_episodes: expected", "0"]),
    (SWEEP + "--config every.yaml", 2, ["eval_every: expected", "'8'"]),
    (SWEEP + "--eval-every 512", 2, ["eval_every: expected at most total_timesteps", "512"]),
    (SWEEP + "--config num_envs.yaml", 2, ["num_envs: expected", "'8'"]),
    (SWEEP + "--storage none/a.db", 1, ["storage: expected a writable SQLite file"]),
    (SWEEP + "--space absent.yaml", 2, ["--space: expected a YAML file", "'absent.yaml'"]),
    (SWEEP + "--space half.yaml", 2, ["space, gamma: expected low and high"]),
    (SWEEP + "--space log.yaml", 2, ["space, gamma: expected low above 0"]),
    (SWEEP + "--space gama.yaml", 2, ["--space", "gama:", "did you mean 'gamma'"]),
    (SWEEP + "--space much.yaml", 2, ["space, gamma: expected a range"]),
    (SWEEP + "--space order.yaml", 2, ["space, gamma: expected low below high"]),
    (SWEEP + "--space choices.yaml", 2, ["space, gamma: expected choices, each once"]),
    (SWEEP + "--space key.yaml", 2, ["hi:", "space, gamma", "did you mean 'high'?"]),
    (SWEEP + "--space none.json", 2, ["space: expected settings"]),
    # Lists.
    ("presets ppp", 2, ["ALGORITHM: expected an algorithm with presets", "did you mean 'ppo'?"]),
    ("presets ppo CartPole", 2, ["env_id: expected an environment with a preset", "'CartPole-v1'"]),
    ("envs CartPole-v1", 2, ["Unrecognized options: CartPole-v1"]),
]

PPO = "algorithm: ppo\nenv: CartPole-v1\ntotal_timesteps: 9\nprogress: false\n"
FILES = {
    "file": "a file",
    "run.yaml": "algorithm: ppo\n",
    "large.yaml": "#" * ((1 << 20) + 1),
    "unknown.yaml": PPO + "gama: 0.9\n",
    "option.yaml": PPO + "eval_evry: 3\n",
    "inner.yaml": PPO + "settings: {seed: 3}\n",
    "tag.yaml": "algorithm: ppo\nenv: !!python/name:os.system\n",
    "twice.yaml": PPO + "seed: 1\nseed: 2\n",
    "dashes.yaml": PPO + "n-steps: 8\nn_steps: 16\n",
    "places.yaml": PPO + "n-steps: 8\nsettings: {n_steps: 16}\n",
    "list.yaml": "- ppo\n",
    "inner_twice.yaml": PPO + "settings: {n_steps: 8, n-steps: 8}\n",
    "often.yaml": PPO + "eval_every: often\n",
    "word.yaml": PPO + "gamma: much\n",
    "steps.yaml": PPO.replace("9", "1e5"),
    "loggers.yaml": PPO + "loggers: console\n",
    "flag.yaml": PPO + "json: 'no'\n",
    "seeds.yaml": PPO + "seed: 1\nseeds: 0-1\n",
    "number.yaml": PPO.replace("CartPole-v1", "3"),
    "custom.yaml": PPO + "custom_policy: true\n",
    "kwargs.yaml": PPO + "env_kwargs: 3\n",
    "num_envs.yaml": 'num_envs: "8"\n',
    "every.yaml": 'eval_every: "8"\n',
    "half.yaml": "gamma: {low: 1}",
    "log.yaml": "gamma: {low: 0, high: 1, log: true}",
    "gama.yaml": "gama: [1]",
    "much.yaml": "gamma: much",
    "order.yaml": "gamma: {low: 1, high: 0.5}",
    "choices.yaml": "gamma: [0.9, 0.9]",
    "key.yaml": "gamma: {low: 0, hi: 1}",
    "none.json": "{}",
    "damaged/manifest.json": "{",
    "torn/metrics.csv": "time/total_timesteps,rollout/ep_rew_mean\n64,ni\n",
}


@pytest.fixture
def files(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff")
    (tmp_path / "empty").mkdir()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("command", "code", "parts"), ERRORS, ids=[row[0] for row in ERRORS])
def test_errors_name_the_option_before_any_training(command, code, parts, rlox, trained, monkeypatch, tmp_path):
    if command.startswith("sweep"):
        pytest.importorskip("optuna", reason="needs optuna: pip install 'rlox[sweep]'")
    monkeypatch.setenv("COLUMNS", "300")
    result = rlox(*(str(trained) if word == "RUN" else word for word in command.split()))
    message = result.err if command else result.out
    assert command == "" or result.out == ""
    assert result.code == code, message
    assert [part for part in parts if part not in message] == []
    assert "Traceback" not in message
    if code == 1:
        assert message.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_wrong_setting_leaves_no_files(rlox, tmp_path):
    assert rlox(*TRAIN.split(), *SMALL, "--gamma", "2").code == 2
    assert list(tmp_path.iterdir()) == []


STRINGS = ["\0", "\udc80", "", "-", "--", "=", "--=", "-1", "None", "[", "a" * 100_000, "--\u202e"]


@pytest.mark.parametrize("argument", STRINGS, ids=range(len(STRINGS)))
@pytest.mark.parametrize("before", ["", "train", "train ppo", TRAIN + "--gamma", TRAIN, "eval", "plot", "presets"])
def test_any_argument_gives_an_exit_code(before, argument, rlox):
    assert rlox(*before.split(), argument).code in (0, 1, 2)


@pytest.mark.parametrize(
    ("package", "command", "extra"),
    [
        ("yaml", "train --config run.yaml", "cli"),
        ("optuna", SWEEP, "sweep"),
        ("onnx", "export RUN --out policy.onnx", "onnx"),
    ],
)
def test_errors_of_missing_packages_name_the_extra(package, command, extra, rlox, trained, tmp_path, monkeypatch):
    (tmp_path / "run.yaml").write_text("algorithm: ppo\n")
    monkeypatch.setitem(sys.modules, package, None)
    result = rlox(*(str(trained) if word == "RUN" else word for word in command.split()))
    assert result.code == 1
    assert f"expected the package {package}, got none; pip install 'rlox[{extra}]'" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_rejected_options_of_resume_do_not_change_the_run(tmp_path, monkeypatch):
    arguments = "--n-steps 64 --num-envs 1 --batch-size 64 --seed 1 --no-progress"
    command = f"train ppo CartPole-v1 --total-timesteps 192 --runs-dir {tmp_path} {arguments}"
    assert main([*command.split(), "--checkpoint-every", "64", "--backend", "native"]) == 0
    (config,) = tmp_path.glob("**/config.json")
    run = config.parent
    saved = run / "checkpoints" / "step-000000064"
    assert saved.is_dir()
    for folder in [run / "checkpoint", *(run / "checkpoints").glob("step-*")]:
        if folder != saved:
            shutil.rmtree(folder)
    before = (run / "metrics.csv").read_bytes(), config.stat().st_mtime_ns
    monkeypatch.setitem(sys.modules, "moviepy", None)
    assert main(["resume", str(run), "--video-every", "100", "--no-progress"]) == 1
    assert before == ((run / "metrics.csv").read_bytes(), config.stat().st_mtime_ns)


class OldStep(gym.Env):
    """Environment whose 70th step returns four values."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def __init__(self, render_mode=None):
        pass

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, "f4"), {}

    def step(self, action):
        self.steps += 1
        step = np.zeros(1, "f4"), 1.0, False, False, {}
        return step if self.steps < 70 else step[:4]


def test_errors_of_environments_during_training_are_failures(monkeypatch, capsys):
    monkeypatch.setitem(gym.registry, "OldStep-v0", gym.envs.registration.EnvSpec("OldStep-v0", OldStep))
    command = "train ppo OldStep-v0 --total-timesteps 1000 --n-steps 64 --num-envs 1"
    assert main([*command.split(), "--batch-size", "64", "--no-progress", "--runs-dir", "None"]) == 1
    assert "OldStep.step()" in capsys.readouterr().err
