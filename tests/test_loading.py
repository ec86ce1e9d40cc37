"""`rlox.load`: a policy predicts as at the moment of saving, without any environment."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import rlox
from rlox import CorruptFileError, trainers
from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.evaluation import evaluate
from support.envs import Answer, Echo
from support.policies import Coin

OFF = {"learning_starts": 20, "buffer_size": 60, "batch_size": 8, "num_envs": 2}
ON = {"n_steps": 16, "num_envs": 2}
SETTINGS = {
    "ppo": ("CartPole-v1", {**ON, "batch_size": 16}),
    "ppo, gSDE": ("Pendulum-v1", {**ON, "batch_size": 16, "use_sde": True, "normalize_obs": True}),
    "ppo, actors": ("CartPole-v1", {**ON, "batch_size": 16, "async_collect": True}),
    "a2c": ("Pendulum-v1", {**ON, "normalize_obs": True}),
    "impala": ("CartPole-v1", {**ON, "actors": "threads", "num_actors": 2}),
    "dqn": ("CartPole-v1", OFF),
    "sac": ("Pendulum-v1", {**OFF, "net_arch": (8,), "normalize_obs": True}),
    "td3": ("Pendulum-v1", {**OFF, "net_arch": (8,)}),
}


def trained(name, backend, steps=100, **more):
    env, settings = SETTINGS[name]
    kind = getattr(trainers, f"{name.split(',')[0].upper()}Trainer")
    trainer = kind(env, 1, backend=backend, runs_dir=None, **settings, **more)
    trainer.train(steps)
    return trainer


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", SETTINGS)
def test_it_predicts_as_the_trainer_did(tmp_path, name, backend):
    trainer = trained(name, backend)
    trainer.save(tmp_path / "saved")
    policy = rlox.load(tmp_path / "saved")
    space = trainer.env.single_observation_space
    obs = np.random.default_rng(0).normal(size=(30, *space.shape)).astype(np.float32)
    np.testing.assert_array_equal(policy.predict(obs), trainer.predict(obs))
    np.testing.assert_array_equal(policy.predict(obs[0]), trainer.predict(obs[0]))
    samples = [x.predict(obs, deterministic=False) for x in (policy, trainer)]
    np.testing.assert_array_equal(*samples)
    assert (policy.observation_space, policy.action_space) == trainer.learner.spaces
    assert (policy.algorithm, policy.env) == (trainer.algorithm, trainer.env_id)
    assert policy.timesteps == trainer.timesteps
    result = evaluate(policy, policy.env, 2, seed=0)
    assert result == trainer.evaluate(2, seed=0)


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn", "sac", "td3"])
def test_networks_of_torch_predict_natively_too(tmp_path, name):
    trainer = trained(name, "torch")
    trainer.save(tmp_path / "saved")
    policy = rlox.load(tmp_path / "saved", backend="native")
    obs = np.random.default_rng(0).normal(size=(30, *trainer.env.single_observation_space.shape))
    np.testing.assert_allclose(policy.predict(obs), trainer.predict(obs), atol=1e-5)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Box(-2, np.array([1, 3], np.float32)),
    ],
)
def test_actions_of_any_space_come_out_as_the_environment_takes_them(tmp_path, space):
    trainer = trainers.PPOTrainer(lambda: Answer(space), 1, runs_dir=None, **SETTINGS["ppo"][1])
    trainer.train(32)
    trainer.save(tmp_path / "saved")
    obs = np.random.default_rng(0).uniform(-1, 1, size=(9, *trainer.learner.spaces[0].shape))
    policy = rlox.load(tmp_path / "saved")
    np.testing.assert_array_equal(policy.predict(obs), trainer.predict(obs))
    assert all(map(space.contains, policy.predict(obs)))


SERVE = """
import sys
sys.modules["torch"] = None
import numpy as np
import rlox
np.save(sys.argv[2], rlox.load(sys.argv[1]).predict(np.load(sys.argv[2])))
"""


@pytest.mark.parametrize("name", ["ppo, gSDE", "sac"])
def test_another_process_without_torch_predicts_the_same(tmp_path, name):
    trainer = trained(name, "native")
    trainer.save(tmp_path / "saved")
    obs, file = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32), tmp_path / "o.npy"
    np.save(file, obs)
    command = [sys.executable, "-c", SERVE, str(tmp_path / "saved"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(file), trainer.predict(obs))


def test_a_run_folder_will_do_and_loading_makes_nothing(tmp_path, monkeypatch):
    trainer = trainers.A2CTrainer("CartPole-v1", 1, runs_dir=tmp_path / "runs")
    trainer.train(100)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gym, "make", pytest.fail)
    monkeypatch.setattr(gym, "make_vec", pytest.fail)
    policy = rlox.load(trainer.run.path)
    assert policy.predict(np.zeros(4)) in (0, 1)
    assert [x.name for x in tmp_path.iterdir()] == ["runs"]
    assert repr(policy) == f"Policy(a2c, CartPole-v1, {trainer.timesteps} steps)"


def test_a_policy_of_ones_own_is_asked_for(tmp_path):
    trainer = trainers.PPOTrainer(Echo, 1, policy=Coin, runs_dir=None, **ON, batch_size=16)
    trainer.save(tmp_path / "saved")
    with pytest.raises(
        ValueError, match=r"policy: expected what the trainer was made with.*policy="
    ):
        rlox.load(tmp_path / "saved")
    policy = rlox.load(tmp_path / "saved", policy=Coin)
    np.testing.assert_array_equal(
        policy.predict(np.eye(3), False), trainer.predict(np.eye(3), False)
    )


def test_what_is_no_policy_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        rlox.load(tmp_path / "nowhere")
    write_checkpoint(tmp_path / "other", {"algorithm": "sarsa"}, {})
    with pytest.raises(ValueError, match=r"expected a checkpoint of a2c, .* got one of 'sarsa'"):
        rlox.load(tmp_path / "other")
    trained("ppo", "native").save(tmp_path / "saved")
    saved = read_checkpoint(tmp_path / "saved")
    about = {k: x for k, x in saved.manifest.items() if k not in ("format", "rlox", "members")}
    box = about["spaces"]["observation"]
    for wrong in ({}, {"type": "Text"}, box | {"low": [1.0]}, box | {"shape": [2**16, 2**16]}):
        changed = about | {"spaces": about["spaces"] | {"observation": wrong}}
        write_checkpoint(tmp_path / "saved", changed, saved.members)
        with pytest.raises(CorruptFileError, match="section spaces"):
            rlox.load(tmp_path / "saved")
    write_checkpoint(tmp_path / "saved", about, saved.members | {"networks": {}})
    with pytest.raises(CorruptFileError, match="section networks"):
        rlox.load(tmp_path / "saved")


def test_what_is_no_checkpoint_is_told_so(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for path, said in (
        (tmp_path, r"has no manifest\.json; pass where one is"),
        (tmp_path / "file", "is a file; pass the folder of a checkpoint"),
        (run, r"is a run that ended before its first one; begin it again with rlox train --config"),
    ):
        (tmp_path / "file").write_text("x")
        (run / "config.json").write_text("{}")
        with pytest.raises(FileNotFoundError, match=f"path: expected a checkpoint, .* {said}"):
            rlox.load(path)
