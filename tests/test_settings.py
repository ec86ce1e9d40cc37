"""Settings: where they come from, and what is said of wrong ones."""

import json
import math
from dataclasses import asdict, fields

import numpy as np
import pytest

from rlox import configs
from rlox.algorithms import DQNConfig, PPOConfig, SACConfig, TD3Config
from rlox.settings import chosen_seed, json_keywords, number, resolve, shown, whole
from rlox.trainers import PPOTrainer, SACTrainer


def test_arguments_come_before_rl_zoo3_before_defaults():
    settings, sources = resolve({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2}, {"a": 3})
    assert settings == {"a": 3, "b": 2, "c": 1}
    assert sources == {"a": "argument", "b": "rl-zoo3", "c": "default"}


def test_a_policy_of_ones_own_takes_the_place_of_settings():
    settings, sources = resolve({"net": 1}, {"net": 2}, {}, without=["net"])
    assert (settings, sources) == ({"net": 1}, {"net": "default"})
    with pytest.raises(TypeError, match="net: expected no settings of the built-in policy"):
        resolve({"net": 1}, {}, {"net": 3}, without=["net"])


def test_a_seed_is_kept_or_chosen():
    assert (chosen_seed(7), chosen_seed(np.int64(7)), chosen_seed(0)) == (7, 7, 0)
    assert chosen_seed(None) != chosen_seed(None)
    assert chosen_seed(2**200) == 2**200
    for wrong in (-1, np.int64(-1), -(2**70)):
        with pytest.raises(ValueError, match="seed: expected None or an integer of at least 0"):
            chosen_seed(wrong)
    for wrong in ("abc", [1], True, np.bool_(True), 1j, 1.5, 2.0, math.nan, np.float64("inf")):
        with pytest.raises(TypeError, match=r"seed: expected None or .* pass an integer"):
            chosen_seed(wrong)


@pytest.mark.parametrize(
    ("settings", "error", "expected"),
    [
        ({"sde_sample_freq": 0}, ValueError, "-1 or an integer of at least 1, got 0; change"),
        ({"sde_sample_freq": -2}, ValueError, "-1 or an integer of at least 1, got -2"),
        ({"sde_sample_freq": "x"}, TypeError, "-1 or an integer of at least 1, got 'x'"),
        ({"log_std_init": math.nan}, ValueError, r"a finite number in .*, got nan"),
        ({"log_std_init": "0"}, TypeError, r"a finite number in .*, got '0'"),
        ({"n_steps": True}, TypeError, "an integer of at least 1, got True"),
        ({"n_steps": np.bool_(True)}, TypeError, "an integer of at least 1"),
        ({"n_epochs": None}, TypeError, "an integer of at least 1, got None"),
        ({"batch_size": math.inf}, TypeError, "an integer of at least 1, got inf"),
        ({"gamma": True}, TypeError, r"a finite number in \[0, 1\], got True"),
        ({"learning_rate": 10**400}, ValueError, r"a finite number in \[0, 1e\+30\], got 1000"),
        ({"learning_rate": 1j}, TypeError, r"a finite number in \[0, 1e\+30\], got 1j"),
        ({"normalize_obs": 1}, ValueError, "True or False, got 1"),
        ({"lr_schedule": 3}, TypeError, "'constant' or 'linear', got 3"),
        ({"device": 0}, TypeError, "a str, got 0"),
        ({"activation": None}, TypeError, "one of tanh, relu, elu, gelu, silu, got None"),
        ({"activation": ["tanh"]}, TypeError, "one of tanh"),
        ({"net_arch": (64, True)}, ValueError, "a sequence of integers of at least 1"),
        ({"net_arch": "64"}, ValueError, "a sequence of integers of at least 1, got '64'"),
        ({"net_arch": ""}, ValueError, "a sequence of integers of at least 1, got ''"),
    ],
)
def test_a_wrong_setting_is_refused_by_the_config(settings, error, expected):
    with pytest.raises(error, match=f"{next(iter(settings))}: expected {expected}"):
        PPOConfig(**settings)


def test_a_minibatch_is_no_larger_than_an_iteration():
    with pytest.raises(ValueError, match=r"batch_size: expected at most num_envs \* n_steps = 16"):
        PPOConfig(num_envs=2, n_steps=8, batch_size=17)
    assert PPOConfig(num_envs=2, n_steps=8, batch_size=16).batch_size == 16
    sizes = {n_steps: PPOConfig(num_envs=2, n_steps=n_steps).batch_size for n_steps in (8, 2048)}
    assert sizes == {8: 16, 2048: 64}


@pytest.mark.parametrize("config", [DQNConfig, SACConfig, TD3Config])
@pytest.mark.parametrize(
    ("buffer_size", "num_envs", "kept"), [(5, 1, 5), (10, 3, 9), (1, 3, 3), (9, 3, 9)]
)
def test_a_minibatch_is_no_larger_than_the_replay_buffer(config, buffer_size, num_envs, kept):
    how = {"buffer_size": buffer_size, "num_envs": num_envs}
    assert config(**how, batch_size=kept).batch_size == kept
    words = rf"^batch_size: expected at most {kept}, the capacity of buffer_size = {buffer_size} "
    with pytest.raises(ValueError, match=words):
        config(**how, batch_size=kept + 1)
    with pytest.raises(ValueError, match=words):  # the default
        config(**how)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_trainers_refuse_minibatches_larger_than_the_buffer(backend):
    with pytest.raises(ValueError, match=r"^batch_size: expected at most 5, .* got 64; lower"):
        SACTrainer("Pendulum-v1", buffer_size=5, batch_size=64, backend=backend, runs_dir=None)


def test_a_presets_minibatch_is_cut_to_the_iterations_that_are_asked_for():
    kept = PPOTrainer("CartPole-v1", 0, runs_dir=None)
    small = PPOTrainer("CartPole-v1", 0, n_steps=4, runs_dir=None)
    assert (kept.learner.config.batch_size, small.learner.config.batch_size) == (256, 32)
    with pytest.raises(ValueError, match=r"batch_size: .*n_steps = 32 steps, got 33"):
        PPOTrainer("CartPole-v1", 0, n_steps=4, batch_size=33, runs_dir=None)


def test_settings_become_plain_numbers():
    given = {
        "n_steps": np.int64(8),
        "num_envs": np.uint8(2),
        "batch_size": np.int16(16),
        "gamma": np.float32(0.5),
        "gae_lambda": 1,
        "sde_sample_freq": np.int32(-1),
        "clip_coef_vf": np.float64(0.25),
        "use_sde": np.bool_(True),
        "net_arch": np.array([32, 16]),
        "activation": np.str_("relu"),
    }
    config = asdict(PPOConfig(**given))
    types = {name: type(value) for name, value in config.items() if name in given}
    plain = (int, int, int, float, float, int, float, bool, tuple, str)
    assert types == dict(zip(given, plain, strict=True))
    assert [type(width) for width in config["net_arch"]] == [int, int]
    assert json.loads(json.dumps(config)) == {**config, "net_arch": [32, 16]}
    assert (config["n_steps"], config["gamma"], config["use_sde"]) == (8, 0.5, True)
    assert config["target_kl"] is None  # None stays where it is the default


def test_counts_are_integers():
    assert whole("n", 10**400, 1) == 10**400
    for wrong, fix in ((1e6, "pass 1000000"), (np.float32(8), "pass 8"), (1.5, "change the set")):
        with pytest.raises(TypeError, match=f"n: expected an integer of at least 1, got .*; {fix}"):
            whole("n", wrong, 1)
    assert type(number("x", 1)) is float


def test_what_cannot_be_shown_does_not_hide_what_is_wrong():
    class Shy:
        def __repr__(self):
            raise RuntimeError("not now")

    assert "Shy" in shown(Shy())
    with pytest.raises(ValueError, match=r"x: expected a finite number, got a <class 'int'>"):
        number("x", 10**5000)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ([1], r"env_kwargs: expected a dict of keywords, got \[1\]"),
        ("g=1", "env_kwargs: expected a dict"),
        ({1: 2}, "env_kwargs: expected keys that are str, got 1"),
        ({"a": 1, "make": object()}, r"env_kwargs\['make'\]: expected what JSON can hold"),
        ({"low": math.nan}, r"env_kwargs\['low'\]: expected what JSON can hold .* got nan"),
        ({"a": {"b": [0, {2}]}}, r"env_kwargs\['a'\]\['b'\]\[1\]: expected .* got \{2\}"),
        ({"a": {3: 1}}, r"env_kwargs\['a'\]: expected keys that are str, got 3"),
        ({"seed": 1}, "env_kwargs: expected no 'seed'"),
    ],
)
def test_keywords_that_json_cannot_hold_are_named(keywords, message):
    with pytest.raises(TypeError, match=message):
        json_keywords("env_kwargs", keywords, taken=("seed",))


@pytest.mark.parametrize("name", [name for name in configs.__all__ if name.endswith("Config")])
def test_every_setting_is_documented(name):
    config_type = getattr(configs, name)
    docs = configs.setting_docs(config_type)
    assert [*docs] == [field.name for field in fields(config_type)]
    assert all(docs.values())


def test_settings_with_another_default_inherit_their_documentation():
    docs = configs.setting_docs(DQNConfig)
    assert docs["batch_size"] == configs.setting_docs(SACConfig)["batch_size"]
