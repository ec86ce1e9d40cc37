"""`rlox.load`: a policy predicts like the saved trainer, without any environment."""

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox import ArgumentError, CorruptFileError, trainers
from rlox.checkpoint import write_checkpoint
from rlox.evaluation import evaluate
from support.checkpoints import rewrite
from support.envs import Answer, Echo
from support.policies import Coin
from support.rejections import rejects
from support.saved_policies import ACTION_SPACES, ON, SETTINGS, train_small


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", SETTINGS)
def test_loaded_policy_predicts_like_the_trainer(tmp_path, name, backend):
    trainer = train_small(name, backend)
    trainer.save(tmp_path / "saved")
    policy = rlox.load(tmp_path / "saved")
    space = trainer.env.single_observation_space
    obs = np.random.default_rng(0).normal(size=(30, *space.shape)).astype(np.float32)
    np.testing.assert_array_equal(policy.predict(obs), trainer.predict(obs))
    np.testing.assert_array_equal(policy.predict(obs[0]), trainer.predict(obs[0]))
    samples = [x.predict(obs, deterministic=False) for x in (policy, trainer)]
    np.testing.assert_array_equal(*samples)
    assert (policy.observation_space, policy.action_space) == trainer.learner.spaces
    assert (policy.algorithm, policy.env) == (trainer.spec.name, trainer.run.env_source.id)
    assert policy.timesteps == trainer.timesteps
    result = evaluate(policy, policy.env, 2, seed=0)
    assert result == trainer.evaluate(2, seed=0)


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn", "sac", "td3"])
def test_native_backend_predicts_with_torch_networks(tmp_path, name):
    trainer = train_small(name, "torch")
    trainer.save(tmp_path / "saved")
    policy = rlox.load(tmp_path / "saved", backend="native")
    obs = np.random.default_rng(0).normal(size=(30, *trainer.env.single_observation_space.shape))
    np.testing.assert_allclose(policy.predict(obs), trainer.predict(obs), atol=1e-5)


@pytest.mark.parametrize("space", ACTION_SPACES, ids=lambda space: type(space).__name__)
def test_loaded_policy_returns_actions_of_the_action_space(tmp_path, space):
    trainer = trainers.PPOTrainer(lambda: Answer(space), 1, runs_dir=None, **SETTINGS["ppo"][1])
    trainer.train(32)
    trainer.save(tmp_path / "saved")
    obs = np.random.default_rng(0).uniform(-1, 1, size=(9, *trainer.learner.spaces[0].shape))
    policy = rlox.load(tmp_path / "saved")
    np.testing.assert_array_equal(policy.predict(obs), trainer.predict(obs))
    assert all(map(space.contains, policy.predict(obs)))


def test_load_accepts_run_folders_and_creates_no_environment(tmp_path, monkeypatch):
    trainer = trainers.A2CTrainer("CartPole-v1", 1, runs_dir=tmp_path / "runs")
    trainer.train(100)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gym, "make", pytest.fail)
    monkeypatch.setattr(gym, "make_vec", pytest.fail)
    policy = rlox.load(trainer.run.path)
    assert policy.predict(np.zeros(4)) in (0, 1)
    assert [x.name for x in tmp_path.iterdir()] == ["runs"]
    assert repr(policy) == f"Policy(a2c, CartPole-v1, {trainer.timesteps} steps)"


def test_custom_policy_is_required_to_load(tmp_path):
    trainer = trainers.PPOTrainer(Echo, 1, policy=Coin, runs_dir=None, **ON, batch_size=16)
    trainer.save(tmp_path / "saved")
    with rejects(ArgumentError, "policy", "pass policy="):
        rlox.load(tmp_path / "saved")
    policy = rlox.load(tmp_path / "saved", policy=Coin)
    actions = [x.predict(np.eye(3), deterministic=False) for x in (policy, trainer)]
    np.testing.assert_array_equal(*actions)


def test_checkpoint_of_an_unknown_algorithm_is_rejected(tmp_path):
    write_checkpoint(tmp_path / "other", {"algorithm": "sarsa"}, {})
    with pytest.raises(ArgumentError) as raised:
        rlox.load(tmp_path / "other")
    assert raised.value.got == "a checkpoint of 'sarsa'"


@pytest.mark.parametrize(
    ("change", "section"),
    [
        (lambda m, _: m["spaces"].update(observation={}), "spaces"),
        (lambda m, _: m["spaces"].update(observation={"type": "Text"}), "spaces"),
        (lambda m, _: m["spaces"]["observation"].update(low=[1.0]), "spaces"),
        (lambda m, _: m["spaces"]["observation"].update(shape=[2**16, 2**16]), "spaces"),
        (lambda _, members: members.update(networks={}), "networks"),
    ],
    ids=["empty", "type", "bounds", "huge", "networks"],
)
def test_load_rejects_inconsistent_spaces_and_networks(tmp_path, change, section):
    train_small("ppo", "native").save(tmp_path / "saved")
    rewrite(tmp_path / "saved", change)
    with pytest.raises(CorruptFileError) as raised:
        rlox.load(tmp_path / "saved")
    assert raised.value.section.split(", ")[0] == section


def test_run_without_a_checkpoint_is_rejected_with_the_command_that_restarts_it(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with rejects(FileNotFoundError, "path: ", f"rlox train --config {tmp_path / 'config.json'}"):
        rlox.load(tmp_path)
