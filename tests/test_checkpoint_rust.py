"""Checkpoints of the trainers in Rust alone: those in Python go on with them.

`cargo test --release -p rlox-nn --test it writes_the -- --ignored` writes the fixtures `rust-*`;
`make_checkpoint.py` beside them writes the others.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from rlox import CorruptFileError, make_vec
from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.learner import MEMBERS, LearnerState
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer

FIXTURES = Path(__file__).parents[1] / "crates/rlox-nn/tests/fixtures"


def test_a_native_learner_goes_on_with_a_checkpoint_from_rust():
    from rlox.native import NativePPO

    spec = importlib.util.spec_from_file_location("made", FIXTURES / "make_checkpoint.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    saved = read_checkpoint(FIXTURES / "checkpoint/rust-half")
    whole = read_checkpoint(FIXTURES / "checkpoint/python-whole")
    learner = NativePPO(make_vec("Pendulum-v1", 3), made.CONFIG, seed=2)
    arrays = {member: saved.members.get(member, {}) for member in MEMBERS}
    learner.load_state(
        LearnerState(
            **arrays, counters=saved.manifest["counters"], streams=saved.manifest["streams"]
        )
    )
    for iteration in range(14, 28):
        learner.iterate(iteration / 28)
    assert learner.state().counters["timesteps"] == whole.manifest["counters"]["timesteps"]
    for name, tensor in learner.policy.tensors().items():
        np.testing.assert_allclose(tensor, whole.members["networks"][name], atol=1e-3)


def test_what_rust_says_of_a_trainer_is_what_python_says():
    rust = read_checkpoint(FIXTURES / "checkpoint/rust-half").manifest
    python = read_checkpoint(FIXTURES / "checkpoint/python-half").manifest
    for key in ("algorithm", "backend", "env", "seed", "spaces", "run", "streams"):
        assert rust[key] == python[key], key
    assert rust["counters"]["episodes"]["count"] == python["counters"]["episodes"]["count"]
    common = {*rust["settings"]} & {*python["settings"]}
    assert {name: rust["settings"][name] for name in common} == {
        name: python["settings"][name] for name in common
    }
    assert {*rust["settings"]} - common == {
        *("optimizer", "optimizer_eps", "beta1", "beta2"),
        *("clip_obs", "clip_reward", "normalize_epsilon"),
    }
    # Of first weights, and of torch.
    assert {*python["settings"]} - common == {
        *("ortho_init", "log_std_init"),
        *("compile", "device", "full_std"),
    }


def test_a_trainer_goes_on_with_a_checkpoint_from_rust(tmp_path):
    whole = read_checkpoint(FIXTURES / "checkpoint/python-whole")
    trainer = PPOTrainer.load(FIXTURES / "checkpoint/rust-half", runs_dir=None)
    assert (trainer.env_id, trainer.seed, trainer.timesteps) == ("Pendulum-v1", 1, 672)
    assert (trainer.config.net_arch, trainer.config.use_sde) == ((4,), True)
    assert trainer.learner.backend == "native"
    unsaid = {"ortho_init", "log_std_init", "full_std", "compile", "device"}
    unsaid |= {"async_collect", "num_actors", "actors", "max_lag", "lockstep"}
    assert {name for name, source in trainer.sources.items() if source == "default"} == unsaid
    assert {*trainer.sources.values()} == {"checkpoint", "default"}
    trainer.save(tmp_path / "half")
    result = trainer.train()
    assert (result["timesteps"], trainer.timesteps) == (1344, 1344)
    for name, tensor in trainer.learner.policy.tensors().items():
        np.testing.assert_allclose(tensor, whole.members["networks"][name], atol=1e-3)
    assert np.isfinite(trainer.evaluate(2)["mean_reward"])
    # What it saves is a checkpoint like any other.
    again = PPOTrainer.load(tmp_path / "half", runs_dir=None)
    again.train()
    for name, tensor in again.learner.policy.tensors().items():
        np.testing.assert_array_equal(tensor, trainer.learner.policy.tensors()[name])


def test_a2c_from_rust_goes_on_too():
    saved = read_checkpoint(FIXTURES / "checkpoint/rust-a2c")
    trainer = A2CTrainer.load(FIXTURES / "checkpoint/rust-a2c", runs_dir=None)
    config = trainer.config
    assert (config.activation, config.shared_trunk, config.net_arch) == ("relu", True, (4, 3))
    assert (config.optimizer, config.num_envs, trainer.timesteps) == ("rmsprop", 2, 40)
    for name, tensor in trainer.learner.policy.tensors().items():
        np.testing.assert_array_equal(tensor, saved.members["networks"][name])
    assert trainer.train()["timesteps"] == 80


def forged(path, change, name="rust-half"):
    """A copy of a fixture with another manifest."""
    saved = read_checkpoint(FIXTURES / "checkpoint" / name)
    change(saved.manifest)
    write_checkpoint(path, saved.manifest, saved.members)
    return path


def test_a_trainer_whose_actors_were_in_rust_goes_on_with_actors_here(tmp_path):
    told = {"async_collect": True, "num_actors": 1, "max_lag": 1, "lockstep": False}

    def change(manifest):  # as `AsyncOnPolicy::save` writes it
        manifest["settings"].update(told)
        manifest["counters"]["rollouts"] = 4

    saved = read_checkpoint(forged(tmp_path / "whole", change, "rust-a2c"))
    members = {name: member for name, member in saved.members.items() if name != "environment"}
    write_checkpoint(tmp_path / "actors", saved.manifest, members)
    trainer = A2CTrainer.load(tmp_path / "actors", runs_dir=None)
    assert {name: getattr(trainer.config, name) for name in told} == told
    with pytest.warns(UserWarning, match="training goes on with new episodes"):
        assert trainer.train()["timesteps"] == 80
    assert trainer.learner.actors is not None
    trainer.close()


def test_a_trainer_says_what_a_checkpoint_from_rust_lacks(tmp_path):
    def forget(manifest):
        for name in ("activation", "net_arch", "shared_trunk", "use_sde"):
            del manifest["settings"][name]

    words = "got one of a trainer in Rust without activation, net_arch, shared_trunk, use_sde; make"
    with pytest.raises(ValueError, match=f"{words} a trainer .* have them, go on with it in Rust"):
        PPOTrainer.load(forged(tmp_path / "old", forget))
    with pytest.raises(ValueError, match="expected algorithm a2c, got a checkpoint of ppo"):
        A2CTrainer.load(FIXTURES / "checkpoint/rust-half")


@pytest.mark.parametrize("others", [(), ("activation",)])
def test_values_with_other_hidden_layers_than_the_policys_go_on_in_rust(tmp_path, others):
    def forget(manifest):
        for name in ("net_arch", *others):
            del manifest["settings"][name]

    words = "net_arch; go on with it in Rust, as policy and values have the same hidden layers here"
    with pytest.raises(ValueError, match=words):
        PPOTrainer.load(forged(tmp_path / "wide", forget))


@pytest.mark.parametrize(
    ("section", "name", "value", "error", "words"),
    [
        (
            "settings",
            "beta1",
            0.8,
            ValueError,
            r"expected beta1 = 0\.9, .* got 0\.8; go on with it in Rust",
        ),
        ("settings", "optimizer", "adamw", ValueError, "expected optimizer = adam, .* got adamw"),
        ("settings", "clip_obs", 5.0, ValueError, r"expected clip_obs = 10\.0, .* got 5\.0"),
        ("settings", "news", 1, CorruptFileError, "section settings: .* the unknown key 'news'"),
        ("settings", "activation", "relux", CorruptFileError, "section settings: .*activation"),
        ("settings", "net_arch", [5], CorruptFileError, "section networks"),
        ("spaces", "action", {"type": "Discrete"}, ValueError, "expected action space"),
        ("run", "start", -1, CorruptFileError, "section run"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused(tmp_path, section, name, value, error, words):
    change = lambda manifest: manifest[section].update({name: value})  # noqa: E731
    with pytest.raises(error, match=words):
        PPOTrainer.load(forged(tmp_path / "forged", change), runs_dir=None)


def test_the_limit_of_episodes_is_that_of_the_environments_in_rust(tmp_path):
    change = lambda manifest: manifest["env_kwargs"].update(max_episode_steps=77)  # noqa: E731
    trainer = PPOTrainer.load(forged(tmp_path / "limited", change), runs_dir=None)
    assert trainer.env_kwargs == {"max_episode_steps": 77}
    assert trainer.evaluate(2)["lengths"] == [77, 77]


def test_a_setting_that_is_missing_is_named(tmp_path):
    change = lambda manifest: manifest["settings"].pop("gamma")  # noqa: E731
    with pytest.raises(CorruptFileError, match=r"section settings: .* no key 'gamma'"):
        PPOTrainer.load(forged(tmp_path / "forged", change))


OFF_POLICY = {"dqn": DQNTrainer, "sac": SACTrainer, "td3": TD3Trainer}


@pytest.mark.parametrize("name", OFF_POLICY)
def test_off_policy_trainers_go_on_with_a_checkpoint_from_rust(tmp_path, name):
    path = FIXTURES / "checkpoint" / f"rust-{name}"
    saved = read_checkpoint(path)
    trainer = OFF_POLICY[name].load(path, runs_dir=None)
    assert (trainer.algorithm, trainer.seed, trainer.learner.backend) == (name, 1, "native")
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
    again = OFF_POLICY[name].load(tmp_path / "half", runs_dir=None)
    assert (
        trainer.train()["timesteps"] == again.train()["timesteps"] == 600 - trainer.start_timesteps
    )
    for array, tensor in trainer.learner.policy.tensors().items():
        np.testing.assert_array_equal(again.learner.policy.tensors()[array], tensor)


@pytest.mark.parametrize(
    ("name", "setting", "value", "error", "words"),
    [
        (
            "dqn",
            "loss",
            "squared_error",
            ValueError,
            "expected loss = huber, .* go on with it in Rust",
        ),
        ("dqn", "optimizer_eps", 1e-5, ValueError, "expected optimizer_eps = 1e-08"),
        ("dqn", "dueling", False, CorruptFileError, "section networks"),
        ("sac", "n_critics", 3, ValueError, "expected n_critics = 2, .* got 3"),
        ("sac", "optimizer", "adamw", ValueError, "expected optimizer = adam, .* got adamw"),
        ("sac", "ent_coef", "auto_x", CorruptFileError, "section settings: .*ent_coef"),
        ("td3", "policy_delay", 0, CorruptFileError, "section settings: .*policy_delay"),
        ("td3", "buffer_size", 255, CorruptFileError, "section replay"),
        ("td3", "news", 1, CorruptFileError, "section settings: .* the unknown key 'news'"),
    ],
)
def test_off_policy_settings_that_cannot_be_gone_on_with_are_refused(
    tmp_path, name, setting, value, error, words
):
    change = lambda manifest: manifest["settings"].update({setting: value})  # noqa: E731
    with pytest.raises(error, match=words):
        OFF_POLICY[name].load(forged(tmp_path / "forged", change, f"rust-{name}"), runs_dir=None)


def test_networks_that_do_not_tell_their_shape_are_for_rust_alone(tmp_path):
    def forget(manifest):
        for name in ("activation", "net_arch", "dueling"):
            del manifest["settings"][name]

    words = "got one of a trainer in Rust without activation, dueling, net_arch; make a trainer"
    with pytest.raises(ValueError, match=words):
        DQNTrainer.load(forged(tmp_path / "own", forget, "rust-dqn"))
