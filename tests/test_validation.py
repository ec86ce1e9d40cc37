"""Settings: precedence of sources, conversion to plain values, documentation, and errors."""

import json
import math
from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from rlox import ArgumentError, ArgumentTypeError, configs
from rlox._registry import ALGORITHMS
from rlox._validation import (
    check_float,
    check_int,
    check_keywords,
    get_settings,
    hint,
    json_keywords,
    resolve,
    resolve_seed,
)
from rlox.algorithms import DQNConfig, PPOConfig, SACConfig, TD3Config
from rlox.trainers import PPOTrainer, SACTrainer
from support.rejections import Rejection, expect_rejection, rejections


def test_arguments_override_rl_zoo3_and_defaults():
    settings, sources = resolve({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2}, {"a": 3})
    assert settings == {"a": 3, "b": 2, "c": 1}
    assert sources == {"a": "argument", "b": "rl-zoo3", "c": "default"}


def test_resolve_ignores_presets_of_excluded_settings():
    settings, sources = resolve({"net": 1}, {"net": 2}, {}, exclude=["net"])
    assert (settings, sources) == ({"net": 1}, {"net": "default"})


def test_resolve_seed_returns_the_seed_or_draws_one():
    assert (resolve_seed(7), resolve_seed(np.int64(7)), resolve_seed(0)) == (7, 7, 0)
    assert resolve_seed(None) != resolve_seed(None)
    assert resolve_seed(2**200) == 2**200


def keywords(value):
    json_keywords("env_kwargs", value, reserved=("seed",))


class WithoutRepr:
    def __repr__(self):
        raise RuntimeError("not now")


@rejections(
    (lambda: resolve({"net": 1}, {}, {"net": 3}, exclude=["net"]), ArgumentTypeError, "net"),
    (lambda: resolve_seed(-1), ArgumentError, "seed"),
    (lambda: resolve_seed("abc"), ArgumentTypeError, "seed", "pass an integer"),
    (lambda: resolve_seed(np.bool_(True)), ArgumentTypeError, "seed", "pass an integer"),
    (lambda: resolve_seed(2.0), ArgumentTypeError, "seed", "pass an integer"),
    (lambda: PPOConfig(sde_sample_freq=0), ArgumentError, "sde_sample_freq"),
    (lambda: PPOConfig(sde_sample_freq="x"), ArgumentTypeError, "sde_sample_freq"),
    (lambda: PPOConfig(log_std_init=math.nan), ArgumentError, "log_std_init"),
    (lambda: PPOConfig(log_std_init="0"), ArgumentTypeError, "log_std_init"),
    (lambda: PPOConfig(n_steps=True), ArgumentTypeError, "n_steps"),
    (lambda: PPOConfig(n_epochs=None), ArgumentTypeError, "n_epochs"),
    (lambda: PPOConfig(gamma=True), ArgumentTypeError, "gamma"),
    (lambda: PPOConfig(learning_rate=10**400), ArgumentError, "learning_rate"),
    (lambda: PPOConfig(normalize_obs=1), ArgumentTypeError, "normalize_obs"),
    (lambda: PPOConfig(lr_schedule=3), ArgumentTypeError, "lr_schedule"),
    (lambda: PPOConfig(lr_schedule="cosine"), ArgumentError, "lr_schedule"),
    (lambda: PPOConfig(device=0), ArgumentTypeError, "device"),
    (lambda: PPOConfig(activation=None), ArgumentTypeError, "activation"),
    (lambda: PPOConfig(net_arch=(64, True)), ArgumentTypeError, "net_arch"),
    (lambda: PPOConfig(net_arch="64"), ArgumentTypeError, "net_arch"),
    (lambda: PPOConfig(num_envs=2, n_steps=8, batch_size=17), ArgumentError, "batch_size"),
    (lambda: check_int("n", 1e6, 1), ArgumentTypeError, "n", "pass 1000000"),
    (lambda: check_int("n", np.float32(8), 1), ArgumentTypeError, "n", "pass 8"),
    (lambda: check_int("n", 1.5, 1), ArgumentTypeError, "n", "pass an integer"),
    (lambda: check_float("x", 10**5000), ArgumentError, "x"),
    (lambda: check_float("x", WithoutRepr()), ArgumentTypeError, "x"),
    (lambda: keywords([1]), ArgumentTypeError, "env_kwargs"),
    (lambda: keywords({1: 2}), ArgumentTypeError, "env_kwargs", "rename the key"),
    (lambda: keywords({"seed": 1}), ArgumentTypeError, "env_kwargs", "leave 'seed'"),
    (lambda: keywords({"make": object()}), ArgumentTypeError, "env_kwargs['make']"),
    (lambda: keywords({"low": math.nan}), ArgumentTypeError, "env_kwargs['low']"),
    (lambda: keywords({"a": {"b": [0, {2}]}}), ArgumentTypeError, "env_kwargs['a']['b'][1]"),
)
def test_invalid_settings_are_rejected(rejection):
    expect_rejection(rejection)


def test_default_batch_size_is_at_most_one_iteration():
    assert PPOConfig(num_envs=2, n_steps=8, batch_size=16).batch_size == 16
    sizes = {n_steps: PPOConfig(num_envs=2, n_steps=n_steps).batch_size for n_steps in (8, 2048)}
    assert sizes == {8: 16, 2048: 64}


@pytest.mark.parametrize("config", [DQNConfig, SACConfig, TD3Config])
@pytest.mark.parametrize(("buffer_size", "num_envs", "capacity"), [(5, 1, 5), (10, 3, 9), (1, 3, 3)])
def test_batch_size_is_at_most_the_buffer_capacity(config, buffer_size, num_envs, capacity):
    sizes = {"buffer_size": buffer_size, "num_envs": num_envs}
    assert config(**sizes, batch_size=capacity).batch_size == capacity
    for batch_size in ({"batch_size": capacity + 1}, {}):  # {} selects the default
        rejection = Rejection(lambda x: config(**sizes, **x), ArgumentError, "batch_size")
        expect_rejection(rejection, batch_size)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_trainers_reject_batches_larger_than_the_buffer(backend):
    settings = {"buffer_size": 5, "batch_size": 64, "backend": backend, "runs_dir": None}
    call = lambda: SACTrainer("Pendulum-v1", **settings)  # noqa: E731
    expect_rejection(Rejection(call, ArgumentError, "batch_size", "lower"))


def test_preset_batch_size_is_at_most_one_iteration():
    preset = PPOTrainer("CartPole-v1", 0, runs_dir=None)
    small = PPOTrainer("CartPole-v1", 0, n_steps=4, runs_dir=None)
    assert (preset.learner.config.batch_size, small.learner.config.batch_size) == (256, 32)


def test_config_converts_settings_to_plain_types():
    settings = {
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
    config = asdict(PPOConfig(**settings))
    types = {name: type(value) for name, value in config.items() if name in settings}
    expected = (int, int, int, float, float, int, float, bool, tuple, str)
    assert types == dict(zip(settings, expected, strict=True))
    assert [type(width) for width in config["net_arch"]] == [int, int]
    assert json.loads(json.dumps(config)) == {**config, "net_arch": [32, 16]}
    assert (config["n_steps"], config["gamma"], config["use_sde"]) == (8, 0.5, True)
    assert config["target_kl"] is None  # None is the default


def test_checks_return_plain_types():
    assert check_int("n", 10**400, 1) == 10**400
    assert type(check_float("x", 1)) is float


@pytest.mark.parametrize("name", [name for name in configs.__all__ if name.endswith("Config")])
def test_every_setting_is_documented(name):
    config_type = getattr(configs, name)
    settings = get_settings(config_type)
    assert [*settings] == [field.name for field in fields(config_type)]
    assert all(setting.doc for setting in settings.values())


def test_hint_names_close_names_else_all():
    assert hint("nsteps", ["gamma", "n_steps"]) == "did you mean 'n_steps'?"
    assert hint("cartpole", ["CartPole-v0", "CartPole-v1"]) == "did you mean 'CartPole-v1'?"
    assert hint("zzz", ["gamma", "n_steps"]) == "choose from gamma, n_steps"
    assert hint("zzz", ["gamma", "n_steps"], "see the docs") == "see the docs"


@rejections(
    (lambda: check_keywords(["gama"], ["gamma"], "X"), ArgumentTypeError, "gama", "'gamma'"),
    (
        lambda: check_keywords(["lr"], ["gamma"], "X", {"lr": "pass learning_rate"}),
        *(ArgumentTypeError, "lr", "pass learning_rate"),
    ),
)
def test_unknown_names_are_rejected_with_a_hint(rejection):
    check_keywords(["gamma"], ["gamma"], "X")
    expect_rejection(rejection)


@pytest.mark.parametrize("spec", ALGORITHMS.values(), ids=ALGORITHMS)
def test_every_setting_rejects_values_outside_its_metadata(spec):
    for name, setting in get_settings(spec.config).items():
        wrong = [] if setting.default is None else [None]
        wrong += ["no choice"] if setting.choices else []
        wrong += [setting.low - 1, "1"] if setting.bounds else []
        wrong += [setting.high * 2] if setting.bounds and float in setting.kinds else []
        wrong += [1, "yes"] if bool in setting.kinds else []
        for value in wrong:
            with pytest.raises((ArgumentError, ArgumentTypeError)) as raised:
                spec.config(**{name: value})
            assert (raised.value.argument, raised.value.got) == (name, repr(value))


def test_settings_with_another_default_inherit_their_metadata():
    dqn, sac = (get_settings(config)["batch_size"] for config in (DQNConfig, SACConfig))
    assert dqn == replace(sac, default=32)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("n_steps", 0, "expected an integer of at least 1, got 0; pass 1 or more"),
        ("sde_sample_freq", 0, "expected -1 or an integer of at least 1, got 0; pass 1 or more"),
        ("gamma", 2, "expected a finite number in [0, 1], got 2; pass at most 1"),
        ("ent_coef", -1, "expected a finite number in [0, 1e+30], got -1; pass at least 0"),
        (
            "lr_schedule",
            "lin",
            "expected 'constant' or 'linear', got 'lin'; did you mean 'linear'?",
        ),
        ("activation", "x", "expected one of tanh, relu, elu, gelu, silu, got 'x'; pass 'tanh'"),
        ("use_sde", 1, "expected True or False, got 1; pass True or False"),
    ],
)
def test_errors_of_settings_name_the_accepted_values(name, value, text):
    with pytest.raises((ArgumentError, ArgumentTypeError)) as raised:
        PPOConfig(**{name: value})
    assert str(raised.value) == f"{name}: {text}"
