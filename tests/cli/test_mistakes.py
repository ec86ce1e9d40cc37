"""Mistakes of users: each is told what was wrong, what was expected and what to do about it."""

import json

import pytest

from cli_runs import SMALL

TRAIN = "train ppo CartPole-v1 --total-timesteps 32 --no-progress "

# The command, its exit code, and pieces of what it says; RUN is the folder of a run.
MISTAKES = [
    # What there is to call.
    ("", 2, ["usage: rlox COMMAND"]),
    ("trian", 2, ["expected a command, got 'trian'", "did you mean 'train'?"]),
    ("evaluate", 2, ["got 'evaluate'", "did you mean 'eval'?"]),
    ("Train", 2, ["got 'Train'", "did you mean 'train'?"]),
    ("xyz", 2, ["got 'xyz'", "there are train, resume, eval"]),
    ("--seed 1 train", 2, ["expected a command before any flag, got '--seed'"]),
    # Which algorithm, on what, for how long.
    ("train", 2, ["ALGORITHM: expected an algorithm", "got none", "rlox train ppo CartPole-v1"]),
    ("train ppp CartPole-v1", 2, ["ALGORITHM: expected", "got ppp", "did you mean 'ppo'?"]),
    ("train PPO CartPole-v1", 2, ["got PPO", "did you mean 'ppo'?"]),
    ("train CartPole-v1", 2, ["ALGORITHM: expected", "got CartPole-v1", "a2c, dqn, impala, ppo"]),
    ("train ppo", 2, ["ENV: expected an environment's id", "rlox train ppo CartPole-v1"]),
    ("train ppo --total-timesteps 9", 2, ["ENV: expected an environment's id"]),
    ("train ppo CartPole-v1", 2, ["--total-timesteps: expected", "add --total-timesteps 100_000"]),
    ("train ppo CartPol-v1 --total-timesteps 9", 2, ["got 'CartPol-v1'", "CartPole-v1"]),
    ("train ppo Nothing --total-timesteps 9", 2, ["env: expected", "got 'Nothing'"]),
    ("train ppo MlpPolicy --total-timesteps 9", 2, ["env: expected", "got 'MlpPolicy'"]),
    ("train dqn Pendulum-v1 --total-timesteps 9", 1, ["expected", "Discrete", "got Box"]),
    ("train sac CartPole-v1 --total-timesteps 9", 1, ["expected", "Box", "got Discrete"]),
    ("train ppo CartPole-v1 Pendulum-v1", 2, ["Unrecognized options: Pendulum-v1", "--help"]),
    (TRAIN + "--total-timesteps 1e5", 2, ["expected an integer, got '1e5'; write 100000"]),
    (TRAIN + "--total-timesteps 1.5", 2, ["expected an integer, got '1.5'"]),
    (TRAIN + "--total-timesteps many", 2, ["--total-timesteps", "an integer, got 'many'"]),
    (TRAIN + "--total-timesteps 0", 2, ["total_timesteps: expected", "at least 1, got 0"]),
    (TRAIN + "--total-timesteps -5", 2, ["total_timesteps: expected", "at least 1, got -5"]),
    (TRAIN + "--total-timesteps", 2, ["Missing value for argument '--total-timesteps'"]),
    # Settings.
    (TRAIN + "--gama 0.9", 2, ["Unrecognized options: --gama", "Perhaps you meant", "--gamma"]),
    (TRAIN + "--lr 0.1", 2, ["Unrecognized options: --lr"]),
    (TRAIN + "--gamma x", 2, ["--gamma", "expected a number, got 'x'"]),
    (TRAIN + "--gamma nan", 2, ["--gamma", "expected a number, got 'nan'"]),
    (TRAIN + "--gamma 1.5", 2, ["gamma: expected a finite number in [0, 1], got 1.5"]),
    (TRAIN + "--gamma", 2, ["Missing value for argument '--gamma'"]),
    (TRAIN + "--n-steps 0", 2, ["n_steps: expected an integer of at least 1, got 0"]),
    (TRAIN + "--n-steps 0.5", 2, ["--n-steps", "expected an integer, got '0.5'"]),
    (TRAIN + "--batch-size 100000", 2, ["batch_size: expected at most", "got 100000", "lower it"]),
    (TRAIN + "--lr-schedule cosine", 2, ["'cosine'", "'--lr-schedule'", "constant", "linear"]),
    (TRAIN + "--activation sine", 2, ["activation: expected one of tanh, relu", "got 'sine'"]),
    (TRAIN + "--net-arch 64 x", 2, ["--net-arch", "'x'"]),
    (TRAIN + "--net-arch 0", 2, ["net_arch: expected", "at least 1"]),
    (TRAIN + "--normalize-obs maybe", 2, ["Unrecognized options: maybe"]),
    (TRAIN + "--utd-ratio 1", 2, ["Unrecognized options: --utd-ratio"]),
    (TRAIN + "--num-envs 1000000000000", 1, ["num_envs", "memory"]),
    ("train td3 Pendulum-v1 --total-timesteps 1 --action-noise pink", 2, ["'pink'", "gaussian"]),
    (
        "train td3 Pendulum-v1 --total-timesteps 1 --action-noise.theta 1",
        *(2, ["--action-noise.theta: expected mean or sigma of gaussian noise", "leave it out"]),
    ),
    (
        "train sac Pendulum-v1 --total-timesteps 1 --action-noise.sigma 1",
        *(2, ["--action-noise: expected gaussian or ornstein_uhlenbeck", "got none; say which"]),
    ),
    (
        "train td3 Pendulum-v1 --total-timesteps 1 --action-noise.sigma -1",
        *(1, ["sigma: expected a finite number in [0,", "got -1.0"]),
    ),
    # Backends, seeds, places.
    (TRAIN + "--backend jax", 2, ["'jax'", "'--backend'", "native", "torch"]),
    (TRAIN + "--backend native --device cuda", 2, ["device: expected 'cpu' on the native"]),
    (TRAIN + "--device tpu", 2, ["device"]),
    (TRAIN + "--seed -1", 2, ["seed: expected None or an integer of at least 0, got -1"]),
    (TRAIN + "--seed one", 2, ["--seed", "expected an integer, got 'one'"]),
    (TRAIN + "--seed 1.0", 2, ["expected an integer, got '1.0'; write 1"]),
    (TRAIN + "--runs-dir taken", 2, ["runs_dir: expected a folder", "is no folder"]),
    (TRAIN + "--runs-dir taken/runs", 2, ["runs_dir: expected a folder", "is no folder"]),
    ("train ppo ALE/None-v5 --total-timesteps 9", 2, ["import the module that registers it"]),
    # Arguments of environments.
    (TRAIN + "--env-kwargs.q 1", 1, ["env arguments", '"q"']),
    (TRAIN + "--env-kwargs.num_envs 1", 1, ["env_kwargs: expected no 'num_envs'"]),
    (TRAIN + "--env-kwargs.g", 2, ["--env-kwargs.g: expected a value, got none"]),
    (TRAIN + "--env-kwargs g=1", 2, ["--env-kwargs: expected a name behind a dot"]),
    (TRAIN + "--env-kwargs.g !!int", 2, ["--env-kwargs.g, line 1: expected no tag"]),
    # Files.
    ("train --config", 2, ["--config: expected a file, got ''"]),
    ("train --config none.yaml", 2, ["--config: expected a file, got 'none.yaml'", "not there"]),
    ("train --config rum.yaml", 2, ["got 'rum.yaml'", "did you mean 'run.yaml'"]),
    ("train --config unknown.yaml", 2, ["ppo has no setting 'gama'; did you mean 'gamma'?"]),
    ("train --config inner.yaml", 2, ["ppo has no setting 'seed'"]),
    ("train --config list.yaml", 2, ["list.yaml: expected keys and values, got a list"]),
    ("train --config tag.yaml", 2, ["tag.yaml, line 2: expected no tag, got tag:yaml.org"]),
    ("train --config twice.yaml", 2, ["twice.yaml, line 4: expected 'seed' once, got it twice"]),
    ("train --config broken.yaml", 2, ["broken.yaml, line ", "expected YAML, got other"]),
    ("train --config word.yaml", 2, ["gamma: expected a finite number", "got 'much'"]),
    ("train --config steps.yaml", 2, ["total_timesteps: expected an integer", "pass 100000"]),
    ("train --config number.yaml", 2, ["ENV: expected an environment's id, got 3"]),
    ("train --config own.yaml", 2, ["own_policy: expected settings", "train it in Python"]),
    ("train --config kwargs.yaml", 2, ["--config, env_kwargs: expected keys and values, got 3"]),
    # Runs.
    ("eval", 2, ["Missing from rlox eval", "RUN"]),
    ("eval nowhere", 1, ["path: expected a checkpoint", "does not exist; pass where one is"]),
    ("eval empty", 1, ["path: expected a checkpoint", "is empty"]),
    ("eval damaged", 1, ["manifest.json, section manifest: expected what rlox wrote"]),
    ("eval other", 1, ["manifest.json"]),
    ("eval RUN --episodes 0", 2, ["episodes: expected an integer of at least 1, got 0"]),
    ("eval RUN --episodes all", 2, ["--episodes", "expected an integer, got 'all'"]),
    ("eval RUN --seed -1", 2, ["seed: expected None or an integer of at least 0, got -1"]),
    ("eval RUN --env Pendulum-v1", 2, ["expected"]),
    ("eval RUN --env Nothing-v0", 2, ["env: expected an id in Gymnasium's registry"]),
    ("eval RUN --backend jax", 2, ["backend: expected one of native", "got 'jax'"]),
    ("enjoy RUN --render-mode ascii", 2, ["'ascii'", "human", "rgb_array"]),
    ("enjoy nowhere", 1, ["path: expected a checkpoint"]),
    ("resume nowhere", 1, ["path: expected a checkpoint"]),
    ("resume RUN", 1, ["expected a run that was stopped", "add --total-timesteps"]),
    ("resume RUN --env Pendulum-v1 --total-timesteps 1", 1, ["observation space", "same env"]),
    ("resume RUN --total-timesteps 0", 2, ["total_timesteps: expected an integer of at least 1"]),
    ("resume RUN --gamma 0.9 --total-timesteps 1", 2, ["Unrecognized options: --gamma"]),
    # Pictures.
    ("plot", 2, ["RUN...: expected at least one run folder, got none"]),
    ("plot nowhere", 1, ["RUN: expected a run folder, nowhere is none"]),
    ("plot empty", 1, ["RUN: expected a run folder or one above, empty has no metrics.csv"]),
    ("plot RUN --metric rollout/reward", 1, ["got 'rollout/reward'", "did you mean"]),
    ("plot RUN --smooth 0", 2, ["--smooth: expected at least 1 row, got 0"]),
    ("plot RUN --x wall", 2, ["'wall'", "steps", "time"]),
    ("plot RUN --out picture.xyz", 1, ["xyz", "png"]),
    ("plot torn", 1, ["expected numbers as rollout/ep_rew_mean, got other", "damaged"]),
    # Lists.
    ("presets ppp", 2, ["ALGORITHM: expected one that has presets", "did you mean 'ppo'?"]),
    ("presets ppo CartPole", 2, ["ENV: expected one that has a preset of ppo", "'CartPole-v1'"]),
    ("envs CartPole-v1", 2, ["Unrecognized options: CartPole-v1"]),
    ("doctor --fix", 2, ["Unrecognized options: --fix"]),
]

FILES = {
    "taken": "a file",
    "run.yaml": "algorithm: ppo\n",
    "unknown.yaml": "algorithm: ppo\nenv: CartPole-v1\ngama: 0.9\n",
    "inner.yaml": "algorithm: ppo\nenv: CartPole-v1\nsettings: {seed: 3}\n",
    "list.yaml": "- ppo\n",
    "tag.yaml": "algorithm: ppo\nenv: !!python/name:os.system\n",
    "twice.yaml": "algorithm: ppo\nenv: CartPole-v1\nseed: 1\nseed: 2\n",
    "broken.yaml": "algorithm: [ppo\nenv: }",
    "word.yaml": "algorithm: ppo\nenv: CartPole-v1\ntotal_timesteps: 1\ngamma: much\n",
    "steps.yaml": "algorithm: ppo\nenv: CartPole-v1\ntotal_timesteps: 1e5\nprogress: false\n",
    "number.yaml": "algorithm: ppo\nenv: 3\ntotal_timesteps: 1\n",
    "own.yaml": "algorithm: ppo\nenv: CartPole-v1\nown_policy: true\ntotal_timesteps: 1\n",
    "kwargs.yaml": "algorithm: ppo\nenv: CartPole-v1\ntotal_timesteps: 1\nenv_kwargs: 3\n",
    "empty/.keep": "",
    "damaged/manifest.json": "{",
    "other/manifest.json": json.dumps({"algorithm": "reinforce"}),
    "torn/metrics.csv": "time/total_timesteps,rollout/ep_rew_mean\n64,ni\n",
}


@pytest.fixture
def files(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "empty/.keep").unlink()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("words", "code", "pieces"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_told(words, code, pieces, rlox, trained, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    said = rlox(*(str(trained) if word == "RUN" else word for word in words.split()))
    told = said.err or said.out
    assert said.code == code, told
    assert [piece for piece in pieces if piece not in told] == []
    assert "Traceback" not in told
    if code == 1:
        assert told.count("\n") == 1


def test_there_are_enough_of_them():
    assert len(MISTAKES) >= 60


def test_a_mistake_leaves_nothing_behind(rlox, tmp_path):
    assert rlox(*TRAIN.split(), *SMALL, "--gamma", "2").code == 2
    assert list(tmp_path.iterdir()) == []


WORDS = ["\0", "\udc80", "", "-", "--", "=", "--=", "-1", "None", "[", "a" * 100_000, "--\u202e"]


@pytest.mark.parametrize("word", WORDS, ids=range(len(WORDS)))
@pytest.mark.parametrize(
    "before", ["", "train", "train ppo", TRAIN + "--gamma", TRAIN, "eval", "plot", "presets"]
)
def test_words_of_any_kind_end_with_an_exit_code(before, word, rlox):
    assert rlox(*before.split(), word).code in (0, 1, 2)
