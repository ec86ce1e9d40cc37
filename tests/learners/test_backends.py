"""Backends: settings choose the backend, and errors name the fix for a missing backend."""

import itertools
import json
import sys

import numpy as np
import pytest
from gymnasium import spaces

from rlox import ArgumentError, ArgumentTypeError, CorruptFileError, checkpoint
from rlox._registry import ALGORITHMS
from rlox._rlox import network_backends
from rlox.configs import ACTIVATIONS, A2CConfig, PPOConfig
from rlox.learners import _backends as backends
from rlox.learners._backends import BACKENDS, check_backend, choose_backend, resolve_backend, torch_reasons
from rlox.trainers import A2CTrainer, PPOTrainer
from support.masked_envs import Doors
from support.rejections import rejects

BOX = spaces.Box(-1, 1, (4,))
IMAGE = spaces.Box(0, 255, (40, 40, 3), np.uint8)


def first_torch_reason(config=None, space=BOX, policy=None, features_extractor=None):
    resolved_config = PPOConfig() if config is None else config
    return next(torch_reasons(resolved_config, space, policy, features_extractor), None)


ONLY_TORCH = {
    "policy": {"policy": object()},
    "features_extractor": {"features_extractor": object},
    "images": {"space": IMAGE},
    "Dict": {"space": spaces.Dict(a=BOX)},
    "Tuple": {"space": spaces.Tuple([BOX])},
    "device": {"config": A2CConfig(device="cuda:1")},
    "compile": {"config": PPOConfig(compile=True)},
    "elu": {"config": PPOConfig(activation="elu")},
    "rmsprop_tf": {"config": A2CConfig(optimizer="rmsprop_tf")},
    "full_std": {"config": A2CConfig(use_sde=True, full_std=False)},
    "gSDE without a hidden layer": {"config": PPOConfig(use_sde=True, net_arch=())},
}
NATIVE = {
    "PPO": {},
    "A2C": {"config": A2CConfig()},
    "adam": {"config": A2CConfig(optimizer="adam")},
    "gSDE": {"config": PPOConfig(use_sde=True)},
    "a shared trunk": {"config": PPOConfig(shared_trunk=True)},
    "no hidden layer": {"config": PPOConfig(net_arch=())},
    "masks and statistics": {"config": PPOConfig(action_masks=True, normalize_obs=True)},
    "bytes": {"space": spaces.Box(0, 255, (128,), np.uint8)},
    "numbers of three axes": {"space": spaces.Box(0, 1, (8, 8, 3))},
    "Discrete": {"space": spaces.Discrete(16)},
    "MultiDiscrete": {"space": spaces.MultiDiscrete([2, 3])},
    "MultiBinary": {"space": spaces.MultiBinary(3)},
    **{name: {"config": PPOConfig(activation=name)} for name in ACTIVATIONS if name != "elu"},
}


@pytest.mark.parametrize("name", ONLY_TORCH)
def test_settings_that_only_torch_supports_select_torch(name):
    reason = first_torch_reason(**ONLY_TORCH[name])
    assert resolve_backend("auto", reason) == "torch"
    assert resolve_backend("torch", reason) == "torch"
    for backend in ("native", "candle", "burn"):
        expected = f"{reason.expected} on the {backend} backend"
        with rejects(ArgumentError, reason.name, 'pass backend="torch"', expected=expected):
            resolve_backend(backend, reason)


@pytest.mark.parametrize("name", NATIVE)
def test_all_other_settings_select_the_native_backend(name):
    reason = first_torch_reason(**NATIVE[name])
    assert resolve_backend("auto", reason) == "native"
    assert [resolve_backend(name, reason) for name in BACKENDS[1:]] == [*BACKENDS[1:]]


@pytest.mark.parametrize(
    ("settings", "expected", "got"),
    [
        ({"activation": "elu"}, "one of tanh, relu, gelu, silu", "'elu'"),
        ({"device": "cuda"}, "'cpu'", "'cuda'"),
        ({"policy": Doors}, "None (the built-in MLP)", "Doors"),
        ({"full_std": False}, "True", "False"),
    ],
)
@pytest.mark.parametrize("trainer_cls", [PPOTrainer, A2CTrainer])
def test_native_trainers_reject_settings_that_only_torch_supports(trainer_cls, settings, expected, got):
    with rejects(ArgumentError, next(iter(settings))) as raised:
        trainer_cls("CartPole-v1", 0, backend="native", runs_dir=None, **settings)
    assert raised.value.expected.startswith(f"{expected} on the native")
    assert raised.value.got.startswith(got)


@pytest.mark.parametrize(
    ("wrong", "error"), [("Native", ArgumentError), ("jax", ArgumentError), (3, ArgumentTypeError)]
)
def test_unknown_backends_are_rejected(wrong, error, tmp_path):
    with rejects(error, "backend", expected="one of auto, native, candle, burn, torch"):
        PPOTrainer("CartPole-v1", 0, backend=wrong, runs_dir=None)
    PPOTrainer("CartPole-v1", 1, runs_dir=None).save(tmp_path / "saved")
    for name in (wrong, "auto"):
        load_error = error if name == wrong else ArgumentError
        with rejects(load_error, "backend", expected="one of native, candle, burn, torch"):
            PPOTrainer.load(tmp_path / "saved", backend=name)


@pytest.mark.parametrize("backend", ["candle", "burn"])
def test_missing_backend_names_the_build_command(backend, monkeypatch):
    monkeypatch.setattr(backends, "network_backends", lambda: ["native"])
    command = f"pip install . --config-settings=build-args='--features pyo3/abi3-py310,{backend}'"
    with rejects(ArgumentError, "backend", command, got=repr(backend)):
        PPOTrainer("CartPole-v1", 0, backend=backend, runs_dir=None)
    monkeypatch.setattr(backends, "network_backends", lambda: ["native", "other"])
    with rejects(ArgumentError, "backend", f"abi3-py310,other,{backend}'"):
        check_backend(backend, None)
    monkeypatch.setattr(backends, "network_backends", lambda: ["native", backend])
    check_backend(backend, None)


def test_backend_choice_does_not_depend_on_installed_packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for settings in ({"device": "cuda"}, {"activation": "elu"}):
        ((name, value),) = settings.items()
        with rejects(ModuleNotFoundError, f"{name} is {value!r}", "rlox[torch]", name="torch"):
            choose_backend(ALGORITHMS["ppo"], "auto", PPOConfig(**settings), BOX, None, None)


@pytest.mark.parametrize("trainer_cls", [PPOTrainer, A2CTrainer])
def test_load_uses_the_backend_of_the_checkpoint(trainer_cls, tmp_path):
    trainer = trainer_cls("CartPole-v1", 1, backend="torch", n_steps=8, runs_dir=tmp_path / "runs")
    trainer.train(1)
    config = json.loads((trainer.run.path / "config.json").read_text())
    assert config["backend"] == trainer.learner.backend == "torch"
    folder = trainer.run.path / "checkpoint"
    assert trainer_cls.load(folder, runs_dir=None).learner.backend == "torch"

    for wrong in ("auto", "jax"):
        copy_checkpoint(folder, folder, wrong)
        file, got = folder / "manifest.json", f"{wrong!r} as 'backend'"
        with rejects(CorruptFileError, str(file), got=got, section="manifest"):
            trainer_cls.load(folder)


def copy_checkpoint(path, target, backend=None, **settings):
    """Copy a checkpoint with another backend and other settings."""
    read = checkpoint.read_checkpoint(path)
    manifest = {k: v for k, v in read.manifest.items() if k not in ("format", "rlox", "members")}
    manifest |= {"backend": backend or manifest["backend"], "settings": manifest["settings"] | settings}
    checkpoint.write_checkpoint(target, manifest, read.members)
    return target


AVAILABLE = (*network_backends(), "torch")
RUNS = {
    "ppo": (PPOTrainer, "CartPole-v1", {"n_steps": 16, "batch_size": 16, "n_epochs": 2}),
    "gSDE": (PPOTrainer, "Pendulum-v1", {"n_steps": 16, "use_sde": True, "normalize_reward": True}),
    "trunk": (PPOTrainer, "Pendulum-v1", {"n_steps": 16, "shared_trunk": True, "net_arch": (8,)}),
    "a2c": (A2CTrainer, "CartPole-v1", {"normalize_obs": True}),
}


@pytest.mark.parametrize(("saved", "requested"), [*itertools.permutations(AVAILABLE, 2)])
@pytest.mark.parametrize("run", RUNS)
def test_load_resumes_on_the_requested_backend(run, saved, requested, tmp_path):
    trainer_cls, env, settings = RUNS[run]
    trainer = trainer_cls(env, 1, backend=saved, num_envs=2, runs_dir=None, **settings)
    trainer.train(128)
    trainer.save(tmp_path / "saved")
    loaded = trainer_cls.load(tmp_path / "saved", backend=requested, runs_dir=None)
    assert loaded.learner.backend == requested
    assert (loaded.config, loaded.config_sources) == (trainer.config, trainer.config_sources)
    loaded_state, saved_state = loaded.learner.state(), trainer.learner.state()
    assert (loaded_state.counters, loaded_state.streams) == (saved_state.counters, saved_state.streams)
    for part in ("networks", "optimizer", "normalizer", "environment"):
        loaded_arrays, saved_arrays = getattr(loaded_state, part), getattr(saved_state, part)
        assert {*loaded_arrays} == {*saved_arrays}
        for name, array in saved_arrays.items():
            np.testing.assert_array_equal(loaded_arrays[name], array, err_msg=name)
    obs = np.random.default_rng(0).normal(size=(20, *trainer.env.single_observation_space.shape))
    np.testing.assert_allclose(loaded.predict(obs), trainer.predict(obs), rtol=1e-4, atol=1e-5)
    assert loaded.train(32)["timesteps"] >= 32


@pytest.mark.parametrize("backend", ["candle", "burn"])
def test_load_names_backends_for_a_checkpoint_of_a_missing_backend(backend, tmp_path, monkeypatch):
    trainer = PPOTrainer("CartPole-v1", 1, n_steps=8, batch_size=8, runs_dir=None)
    trainer.train(8)
    trainer.save(tmp_path / "saved")
    folder = copy_checkpoint(tmp_path / "saved", tmp_path / "other", backend)
    monkeypatch.setattr(backends, "network_backends", lambda: ["native"])
    got = f"a checkpoint of {backend}"
    with rejects(ArgumentError, "backend", 'pass backend="native"', got=got):
        PPOTrainer.load(folder, runs_dir=None)
    for requested in ("native", "torch"):
        loaded = PPOTrainer.load(folder, backend=requested, runs_dir=None)
        assert (loaded.learner.backend, loaded.timesteps) == (requested, trainer.timesteps)
    with rejects(ArgumentError, "backend", "build rlox from source"):
        PPOTrainer.load(folder, backend=backend, runs_dir=None)


def test_load_on_a_rust_backend_moves_a_checkpoint_to_the_cpu(tmp_path):
    trainer = PPOTrainer("CartPole-v1", 1, backend="torch", n_steps=8, batch_size=8, runs_dir=None)
    trainer.save(tmp_path / "saved")
    folder = copy_checkpoint(tmp_path / "saved", tmp_path / "other", device="cuda")
    loaded = PPOTrainer.load(folder, backend="native", runs_dir=None)
    assert (loaded.learner.backend, loaded.config.device) == ("native", "cpu")
    expected = "'cpu' on the native backend"
    with rejects(ArgumentError, "device", 'or pass backend="torch"', expected=expected):
        PPOTrainer.load(folder, backend="native", device="cuda", runs_dir=None)
    folder = copy_checkpoint(tmp_path / "saved", tmp_path / "elu", activation="elu")
    with rejects(ArgumentError, "activation", 'pass backend="torch"'):
        PPOTrainer.load(folder, backend="native", runs_dir=None)


def test_settings_and_networks_have_the_same_activations():
    networks = pytest.importorskip("rlox._nn.networks")
    assert {*ACTIVATIONS} == {*networks.ACTIVATIONS}
