"""Policies for other programs: what these compute is what the policy predicts."""

import sys

import gymnasium as gym
import numpy as np
import pytest
import safetensors.numpy
import torch
from gymnasium import spaces

import rlox
from rlox import exporting, trainers
from rlox.evaluation import evaluate
from support.envs import Answer, Echo
from support.policies import Coin
from test_loading import ON, SETTINGS, trained

NO_ONNX = "needs onnx and onnxruntime: pip install 'rlox[onnx]'"


@pytest.fixture
def runtime():
    pytest.importorskip("onnx", reason=NO_ONNX)
    return pytest.importorskip("onnxruntime", reason=NO_ONNX)


def ran(runtime, path, obs):
    """What onnxruntime makes of observations."""
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["action"], {"obs": obs})[0]


def expect_equal(got, expected):
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(got, expected, atol=2e-6, rtol=1e-5)
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", SETTINGS)
def test_onnx_predicts_as_the_policy_that_was_loaded(tmp_path, runtime, name, backend):
    trained(name, backend).save(tmp_path / "saved")
    policy = rlox.load(tmp_path / "saved")
    exporting.save_onnx(policy, tmp_path / "policy.onnx")
    obs = np.random.default_rng(0).normal(size=(40, *policy.observation_space.shape))
    obs = obs.astype(np.float32) * 3
    expect_equal(ran(runtime, tmp_path / "policy.onnx", obs), policy.predict(obs))
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["policy.onnx", "saved"]


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "gelu", "silu"])
def test_onnx_has_all_activations_and_a_common_trunk(tmp_path, runtime, activation):
    how = {"net_arch": (8, 6), "shared_trunk": True, "normalize_obs": True}
    trainer = trained("ppo", "auto", activation=activation, **how)
    exporting.save_onnx(trainer, tmp_path / "policy.onnx")
    obs = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    expect_equal(ran(runtime, tmp_path / "policy.onnx", obs), trainer.predict(obs))


class Seen(gym.Env):
    """Observations are of any space, drawn from it."""

    action_space = spaces.Discrete(3)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, self.np_random.random() < 0.1, {}


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([[2, 3]], start=[[1, 0]]),
        spaces.MultiBinary((2, 2)),
        spaces.Box(-1, 1, (2, 3)),
    ],
)
@pytest.mark.parametrize("normalize_reward", [False, True])
def test_onnx_takes_observations_as_they_are(tmp_path, runtime, space, normalize_reward):
    how = {**SETTINGS["ppo"][1], "normalize_reward": normalize_reward}
    trainer = trainers.PPOTrainer(lambda: Seen(space), 1, runs_dir=None, **how)
    trainer.train(64)
    exporting.save_onnx(trainer, tmp_path / "policy.onnx")
    space.seed(0)
    rows = np.stack([space.sample() for _ in range(30)])
    discrete = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    rows = rows.astype(np.int64 if discrete else np.float32)
    expect_equal(ran(runtime, tmp_path / "policy.onnx", rows), trainer.predict(rows))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Box(-2, np.array([[1, 3]], np.float64), dtype=np.float64),
    ],
)
def test_onnx_gives_actions_as_environments_take_them(tmp_path, runtime, space):
    trainer = trainers.A2CTrainer(lambda: Answer(space), 1, runs_dir=None, **ON)
    trainer.train(64)
    exporting.save_onnx(trainer, tmp_path / "policy.onnx")
    rows = np.random.default_rng(0).uniform(-1, 1, (30, *trainer.learner.spaces[0].shape))
    rows = rows.astype(np.float32)
    expect_equal(ran(runtime, tmp_path / "policy.onnx", rows), trainer.predict(rows))


def test_a_dueling_network_gives_the_best_action(tmp_path, runtime):
    trainer = trained("dqn", "native", dueling=True)
    exporting.save_onnx(trainer, tmp_path / "policy.onnx")
    obs = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    expect_equal(ran(runtime, tmp_path / "policy.onnx", obs), trainer.predict(obs))


def test_an_episode_with_onnx_alone_is_an_episode(tmp_path, runtime):
    trainer = trained("ppo", "native", steps=2000)
    exporting.save_onnx(trainer, tmp_path / "policy.onnx")
    session = runtime.InferenceSession(tmp_path / "policy.onnx")

    class Served:
        def predict(self, obs, deterministic=True):
            return session.run(None, {"obs": obs})[0]

    assert evaluate(Served(), "CartPole-v1", 3, seed=0) == trainer.evaluate(3, seed=0)


def test_what_onnx_cannot_hold_is_refused(tmp_path, runtime):
    own = trainers.PPOTrainer(Echo, 1, policy=Coin, runs_dir=None, **ON, batch_size=16)
    images = spaces.Box(0, 255, (40, 40), np.uint8)
    pictures = trainers.PPOTrainer(lambda: Seen(images), 1, runs_dir=None, **ON, batch_size=16)
    for trainer in (own, pictures):
        with pytest.raises(ValueError, match=r"torch\.onnx"):
            exporting.save_onnx(trainer, tmp_path / "policy.onnx")
    rounded = Answer(spaces.Box(0, 3, (2,), np.int64))
    trainer = trainers.PPOTrainer(lambda: rounded, 1, runs_dir=None, num_envs=1, n_steps=8)
    with pytest.raises(ValueError, match="expected a Box of real numbers"):
        exporting.save_onnx(trainer, tmp_path / "policy.onnx")
    assert not any(tmp_path.iterdir())


def test_without_onnx_the_pip_line_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rlox\[onnx\]'"):
        exporting.save_onnx(trained("ppo", "native"), tmp_path / "policy.onnx")
    for call in (exporting.state_dict, lambda x: exporting.save_safetensors(x, tmp_path / "a")):
        with pytest.raises(TypeError, match=r"policy: expected what rlox\.load gives"):
            call("saved")


def test_a_state_dict_is_that_of_torch(tmp_path):
    native = trained("ppo", "native")
    tensors = exporting.state_dict(native)
    module = torch.nn.Sequential(
        *(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()),
        torch.nn.Linear(64, 2),
    )
    prefix = "actor."
    actor = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}
    module.load_state_dict(actor)
    obs = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    said = module(torch.from_numpy(obs)).argmax(1).numpy()
    np.testing.assert_array_equal(said, native.predict(obs))
    other = trained("ppo", "torch")
    other.learner.policy.load_state_dict(exporting.state_dict(other))


def test_safetensors_have_networks_and_statistics(tmp_path):
    trainer = trained("sac", "native")
    exporting.save_safetensors(trainer, tmp_path / "policy.safetensors")
    arrays = safetensors.numpy.load_file(tmp_path / "policy.safetensors")
    state = trainer.learner.state()
    np.testing.assert_array_equal(arrays["actor.0.weight"], state.networks["actor.0.weight"])
    np.testing.assert_array_equal(arrays["normalizer.obs_mean"], state.normalizer["obs_mean"])
    assert {*state.networks} < {*arrays}
