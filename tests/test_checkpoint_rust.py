"""Trainers in Python load the checkpoints of trainers in Rust.

`RLOX_REGENERATE=1 cargo test --release -p rlox-nn --test it writes_the -- --ignored` writes the
fixtures `rust-*`. `make_checkpoint.py` in the same folder writes the other fixtures.
"""

from pathlib import Path

import numpy as np
import pytest

from rlox import ArgumentError, CorruptFileError
from rlox._registry import ALGORITHMS
from rlox.checkpoint import read_checkpoint
from rlox.trainers import A2CTrainer, PPOTrainer, load_trainer
from support.checkpoints import rewrite

FIXTURES = Path(__file__).parents[1] / "crates/rlox-nn/tests/fixtures/checkpoint"


def test_manifests_of_rust_and_python_are_equal():
    rust = read_checkpoint(FIXTURES / "rust-half").manifest
    python = read_checkpoint(FIXTURES / "python-half").manifest
    for key in ("algorithm", "backend", "env", "seed", "spaces", "run", "streams"):
        assert rust[key] == python[key], key
    assert rust["counters"]["episodes"]["count"] == python["counters"]["episodes"]["count"]
    rust, python = rust["settings"], python["settings"]
    common = {*rust} & {*python}
    assert {name: rust[name] for name in common} == {name: python[name] for name in common}
    only_rust = "optimizer optimizer_eps beta1 beta2 clip_obs clip_reward normalize_epsilon"
    only_python = "ortho_init log_std_init compile device full_std"  # initial weights and torch
    assert {*rust} - common == {*only_rust.split()}
    assert {*python} - common == {*only_python.split()}


def test_ppo_resumes_a_checkpoint_from_rust(tmp_path):
    expected = read_checkpoint(FIXTURES / "python-whole").members["networks"]
    trainer = PPOTrainer.load(FIXTURES / "rust-half", runs_dir=None)
    assert (trainer.run.env_source.id, trainer.seed, trainer.timesteps) == ("Pendulum-v1", 1, 672)
    assert (trainer.config.net_arch, trainer.config.use_sde) == ((4,), True)
    assert trainer.learner.backend == "native"
    defaults = "ortho_init log_std_init full_std compile device"
    defaults += " async_collect num_actors actors max_staleness deterministic"
    defaulted = {name for name, source in trainer.config_sources.items() if source == "default"}
    assert defaulted == {*defaults.split()}
    assert {*trainer.config_sources.values()} == {"checkpoint", "default"}
    trainer.save(tmp_path / "half")
    result = trainer.train()
    assert (result["timesteps"], trainer.timesteps) == (1344, 1344)
    tensors = trainer.learner.policy.tensors()
    for name, tensor in tensors.items():
        np.testing.assert_allclose(tensor, expected[name], atol=1e-3)
    assert np.isfinite(trainer.evaluate(2)["mean_reward"])
    resumed = PPOTrainer.load(tmp_path / "half", runs_dir=None)
    resumed.train()
    np.testing.assert_equal(resumed.learner.policy.tensors(), tensors)


def test_a2c_resumes_a_checkpoint_from_rust():
    saved = read_checkpoint(FIXTURES / "rust-a2c")
    trainer = A2CTrainer.load(FIXTURES / "rust-a2c", runs_dir=None)
    config = trainer.config
    assert (config.activation, config.shared_trunk, config.net_arch) == ("relu", True, (4, 3))
    assert (config.optimizer, config.num_envs, trainer.timesteps) == ("rmsprop", 2, 40)
    for name, tensor in trainer.learner.policy.tensors().items():
        np.testing.assert_array_equal(tensor, saved.members["networks"][name])
    assert trainer.train()["timesteps"] == 80


def test_a2c_resumes_asynchronous_actors_from_rust(tmp_path):
    settings = {"async_collect": True, "num_actors": 1, "max_staleness": 1, "deterministic": False}

    def change(manifest, members):  # as `AsyncOnPolicy::save` writes it
        manifest["settings"].update(settings)
        manifest["counters"]["rollouts"] = 4
        del members["environment"]

    path = rewrite(FIXTURES / "rust-a2c", change, tmp_path / "actors")
    trainer = A2CTrainer.load(path, runs_dir=None)
    assert {name: getattr(trainer.config, name) for name in settings} == settings
    with pytest.warns(UserWarning, match="training resumes with new episodes"):
        assert trainer.train()["timesteps"] == 80
    assert trainer.learner.actors is not None
    trainer.close()


@pytest.mark.parametrize("name", ["dqn", "sac", "td3"])
def test_off_policy_trainers_resume_a_checkpoint_from_rust(tmp_path, name):
    path = FIXTURES / f"rust-{name}"
    saved = read_checkpoint(path)
    trainer = load_trainer(ALGORITHMS[name]).load(path, runs_dir=None)
    assert (trainer.spec.name, trainer.seed, trainer.learner.backend) == (name, 1, "native")
    assert (trainer.config.net_arch, trainer.config.num_envs) == ((8,), 2)
    assert trainer.timesteps == saved.manifest["counters"]["timesteps"] >= 300
    assert trainer.learner.updates == saved.manifest["counters"]["updates"] > 50
    state = trainer.learner.state()
    for member, arrays in saved.members.items():
        for array in arrays:
            np.testing.assert_array_equal(getattr(state, member)[array], arrays[array])
    assert state.counters["noise"] == saved.manifest["counters"]["noise"]
    assert state.streams == saved.manifest["streams"]
    space = trainer.env.single_observation_space
    actions = trainer.predict(np.zeros((3, *space.shape), np.float32))
    assert len(actions) == 3
    assert all(map(trainer.env.single_action_space.contains, actions))
    trainer.save(tmp_path / "half")
    resumed = load_trainer(ALGORITHMS[name]).load(tmp_path / "half", runs_dir=None)
    steps = 600 - trainer.run.budget_start
    assert trainer.train()["timesteps"] == resumed.train()["timesteps"] == steps
    np.testing.assert_equal(resumed.learner.policy.tensors(), trainer.learner.policy.tensors())


def load_changed(name, target, change):
    path = rewrite(FIXTURES / name, lambda manifest, _: change(manifest), target)
    spec = ALGORITHMS[read_checkpoint(path).manifest["algorithm"]]
    return load_trainer(spec).load(path, runs_dir=None)


def test_trainer_uses_the_episode_limit_of_a_rust_checkpoint(tmp_path):
    change = lambda manifest: manifest["env_kwargs"].update(max_episode_steps=77)  # noqa: E731
    trainer = load_changed("rust-half", tmp_path / "limited", change)
    assert trainer.run.env_source.json_kwargs == {"max_episode_steps": 77}
    assert trainer.evaluate(2)["lengths"] == [77, 77]


@pytest.mark.parametrize(
    ("fixture", "names", "hint"),
    [
        ("rust-half", "activation net_arch shared_trunk use_sde", "create a trainer with the same networks"),
        ("rust-half", "net_arch", "Python has the same hidden layers for policy and values"),
        ("rust-half", "activation net_arch", "Python has the same hidden layers for policy and values"),
        ("rust-dqn", "activation dueling net_arch", "create a trainer with the same networks"),
    ],
)
def test_checkpoints_without_network_settings_are_rejected(tmp_path, fixture, names, hint):
    def change(manifest):
        for name in names.split():
            del manifest["settings"][name]

    with pytest.raises(ArgumentError) as raised:
        load_changed(fixture, tmp_path / "changed", change)
    assert raised.value.got.endswith(" without " + ", ".join(names.split()))
    assert hint in raised.value.hint
    assert "continue in Rust" in raised.value.hint


REMOVED = object()
DISCRETE = {"type": "Discrete", "n": 9, "start": 0, "dtype": "int64"}


# Fixture, manifest section, key, value, expected value and section of the damaged file.
@pytest.mark.parametrize(
    ("fixture", "section", "key", "value", "expected", "damaged"),
    [
        ("rust-half", "settings", "beta1", 0.8, "beta1 = 0.9,", None),
        ("rust-half", "settings", "optimizer", "adamw", "optimizer = adam,", None),
        ("rust-half", "settings", "clip_obs", 5.0, "clip_obs = 10.0,", None),
        ("rust-half", "spaces", "action", DISCRETE, "action space", None),
        ("rust-half", "spaces", "action", {"type": "Discrete"}, "", "spaces"),
        ("rust-dqn", "settings", "loss", "squared_error", "loss = huber,", None),
        ("rust-dqn", "settings", "optimizer_eps", 1e-5, "optimizer_eps = 1e-08,", None),
        ("rust-sac", "settings", "n_critics", 3, "n_critics = 2,", None),
        ("rust-half", "settings", "news", 1, "", "settings"),
        ("rust-half", "settings", "gamma", REMOVED, "", "settings"),
        ("rust-half", "settings", "activation", "relux", "", "settings"),
        ("rust-half", "settings", "net_arch", [5], "", "networks"),
        ("rust-half", "run", "start", -1, "", "run"),
        ("rust-dqn", "settings", "dueling", False, "", "networks"),
        ("rust-sac", "settings", "ent_coef", "auto_x", "", "settings"),
        ("rust-td3", "settings", "policy_delay", 0, "", "settings"),
        ("rust-td3", "settings", "buffer_size", 255, "", "replay"),
    ],
)
def test_unsupported_settings_and_damaged_sections_are_rejected(
    tmp_path, fixture, section, key, value, expected, damaged
):
    def change(manifest):
        manifest[section][key] = value
        if value is REMOVED:
            del manifest[section][key]

    with pytest.raises(CorruptFileError if damaged else ArgumentError) as raised:
        load_changed(fixture, tmp_path / "changed", change)
    if damaged:
        assert raised.value.section.split(",")[0] == damaged
    else:
        assert raised.value.expected.startswith(expected)
