"""Files of rl-zoo3 become settings. Tags and expressions in the files are read but never run."""

import sys
from dataclasses import fields

import pytest

from rlox import ArgumentError, ArgumentTypeError
from rlox._registry import ALGORITHMS
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from rlox.sb3.zoo import main, read_expression, zoo_settings
from rlox.trainers import PPOTrainer, TD3Trainer
from support.rejections import rejects

pytest.importorskip("yaml")

PPO = """
shared: &shared
  normalize: true
  n_timesteps: !!float 1e6
  policy: 'MlpPolicy'

CartPole-v1:
  n_envs: 8
  n_timesteps: !!float 1e5
  policy: 'MlpPolicy'
  n_steps: 32
  batch_size: 256
  gae_lambda: 0.8
  gamma: 0.98
  n_epochs: 20
  ent_coef: 0.0
  learning_rate: lin_0.001
  clip_range: lin_0.2

Pendulum-v1:
  <<: *shared
  n_steps: 1024
  learning_rate: !!float 1e-3
  clip_range: 2e-1
  use_sde: True
  sde_sample_freq: 4
  policy_kwargs: "dict(
                    log_std_init=-2,
                    ortho_init=False,
                    activation_fn=nn.ReLU,
                    net_arch=dict(pi=[256, 256], vf=[256, 256])
                  )"

default:
  n_timesteps: 1e4
"""


@pytest.fixture
def ppo_file(tmp_path):
    (tmp_path / "ppo.yml").write_text(PPO)
    return tmp_path / "ppo.yml"


def read_zoo_text(tmp_path, text, algorithm="ppo"):
    (tmp_path / "file.yml").write_text(f"CartPole-v1:\n  {text}\n")
    return zoo_settings(tmp_path / "file.yml", "CartPole-v1", algorithm)


def test_settings_and_schedules_are_read(ppo_file):
    settings = zoo_settings(ppo_file, "CartPole-v1")
    assert settings.pop("total_timesteps") == 100_000
    # The settings are complete, so that no preset decides a setting.
    names = {field.name for field in fields(ALGORITHMS["ppo"].config)}
    assert names - {*settings} == {"device", "compile"}
    config = PPOTrainer("CartPole-v1", runs_dir=None, **settings).config
    assert (config.num_envs, config.n_steps, config.n_epochs) == (8, 32, 20)
    assert (config.learning_rate, config.lr_schedule) == (1e-3, "linear")
    assert (config.clip_coef, config.clip_schedule) == (0.2, "linear")
    assert zoo_settings(ppo_file, "Mine-v0")["total_timesteps"] == 10_000


def test_merge_keys_expressions_and_numbers_are_read(ppo_file):
    settings = zoo_settings(ppo_file, "Pendulum-v1")
    assert settings["normalize_obs"]
    assert settings["normalize_reward"]
    assert settings["total_timesteps"] == 1_000_000
    assert (settings["learning_rate"], settings["clip_coef"]) == (1e-3, 0.2)
    assert (settings["net_arch"], settings["activation"]) == ([256, 256], "relu")
    assert (settings["log_std_init"], settings["ortho_init"]) == (-2, False)
    source = "dict(a=[1, -2.5, (True, None)], b={'c': 'd'}, e=th.nn.ReLU)"
    expected = {"a": [1, -2.5, (True, None)], "b": {"c": "d"}, "e": "ReLU"}
    assert read_expression("x", source) == expected


def test_noise_is_read(tmp_path):
    settings = read_zoo_text(tmp_path, "noise_type: 'normal'\n  noise_std: 0.1\n  buffer_size: 1e3", "td3")
    trainer = TD3Trainer("Pendulum-v1", runs_dir=None, **settings)
    assert trainer.config.action_noise == GaussianNoise(0.1)
    settings = read_zoo_text(tmp_path, "noise_type: 'ornstein-uhlenbeck'\n  noise_std: 5e-1", "td3")
    noise = TD3Trainer("Pendulum-v1", runs_dir=None, **settings | {"buffer_size": 300}).config
    assert noise.action_noise == OrnsteinUhlenbeckNoise(0.5)


def test_partial_normalization_and_optimizers_are_read(tmp_path):
    settings = read_zoo_text(tmp_path, 'normalize: "dict(norm_obs=True, norm_reward=False)"')
    assert (settings["normalize_obs"], settings["normalize_reward"]) == (True, False)
    text = 'policy_kwargs: "dict(optimizer_class=RMSpropTFLike, optimizer_kwargs=dict(eps=1e-5))"'
    settings = read_zoo_text(tmp_path, text, "a2c")
    assert (settings["optimizer"], settings["optimizer_eps"]) == ("rmsprop_tf", 1e-5)


FOREIGN = "learning_rate: !!python/object/apply:os.system ['true']"
IMPORT = "policy_kwargs: \"dict(net_arch=__import__('os').getcwd())\""


@pytest.mark.parametrize(
    ("text", "error", "argument", "hint"),
    [
        (FOREIGN, ArgumentError, "path", "YAML"),
        (IMPORT, ArgumentError, "policy_kwargs", "remove other syntax"),
        *(
            (f'policy_kwargs: "{x}"', ArgumentError, "policy_kwargs", "remove other syntax")
            for x in ("dict(net_arch=[2**9])", "dict(**other)", "(lambda: 1)()")
        ),
        ('policy_kwargs: "dict(activation_fn=nn.Mish)"', ArgumentError, "activation_fn", "classes"),
        ("learning_rate: exp_0.1", ArgumentError, "learning_rate", "lin_"),
        ("learning_rate: lin_many", ArgumentError, "learning_rate", "lin_"),
        ("policy: CnnPolicy", ArgumentError, "policy", "NatureCNN"),
        ("env_wrapper: [gymnasium.wrappers.X]", ArgumentError, "env_wrapper", "wrap"),
        ("frame_stack: 4", ArgumentError, "frame_stack", "wrap"),
        ("normalize: {clip_obs: 5.0}", ArgumentError, "normalize", "wrapper"),
        ("n_step: 3", ArgumentTypeError, "n_step", "did you mean 'n_steps'"),
        ("buffer_size: 3", ArgumentTypeError, "buffer_size", "belongs to"),
        ("n_envs: 0", ArgumentError, "n_envs", "pass 1 or more"),
        ("gamma: [1]", ArgumentTypeError, "gamma", "pass a number"),
        ("clip_range: -1", ArgumentError, "clip_range", "pass at least 0"),
        ("a: [", ArgumentError, "path", "YAML"),
    ],
)
def test_unsupported_values_are_rejected(text, error, argument, hint, tmp_path):
    with rejects(error, argument, hint):
        read_zoo_text(tmp_path, text)


LAYERS = ["a0: &a0 [1, 1]"]
LAYERS += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]


@pytest.mark.parametrize("text", ["{n_steps: *a11}", "{? *a11 : 1}", "&me {n_steps: *me}"])
def test_alias_expansion_is_limited(text, tmp_path):
    (tmp_path / "ppo.yml").write_text("\n".join([*LAYERS, f"CartPole-v1: {text}"]))
    with rejects(ArgumentError, "path"):
        zoo_settings(tmp_path / "ppo.yml", "CartPole-v1")


@pytest.mark.parametrize(
    ("name", "content", "error", "argument", "hint"),
    [
        ("ppo.yml", "CartPole-v1: {}", ArgumentError, "env_id", "that the file contains"),
        ("ppo.yml", None, FileNotFoundError, "ppo.yml", ""),
        ("qrdqn.yml", "", ArgumentError, "algorithm", "'dqn'"),
        ("impala.yml", "", ArgumentError, "algorithm", "'ppo'"),
        ("ppo.yml", "- 1", ArgumentError, "path", "correct"),
        ("ppo.yml", "#" * ((1 << 20) + 1), ArgumentError, "path", "pass a smaller file"),
    ],
)
def test_invalid_files_are_rejected(name, content, error, argument, hint, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with rejects(error, argument, hint):
        zoo_settings(tmp_path / name, "Mine-v0")


def test_command_writes_yaml(ppo_file, capsys):
    import yaml

    assert main([str(ppo_file), "CartPole-v1"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == zoo_settings(ppo_file, "CartPole-v1")
    assert main([str(ppo_file), "CartPole-v1", "--algorithm", "dqn"]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_missing_pyyaml_is_named_with_its_extra(ppo_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with rejects(ModuleNotFoundError, "yaml", "rlox[cli]"):
        zoo_settings(ppo_file, "CartPole-v1")
