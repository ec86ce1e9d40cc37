"""Exported policies compute the actions that `predict` returns."""

import numpy as np
import pytest
import safetensors.numpy
import torch
from gymnasium import spaces

import rlox
from rlox import ArgumentError, exporting, trainers
from support.envs import Answer, Echo, Samples
from support.masked_envs import Doors
from support.policies import Coin
from support.rejections import rejects
from support.saved_policies import ACTION_SPACES, ON, SETTINGS, train_small


@pytest.fixture
def runtime():
    pytest.importorskip("onnx", reason="needs onnx: pip install 'rlox[onnx]'")
    return pytest.importorskip("onnxruntime", reason="needs onnxruntime")


@pytest.fixture
def check_onnx(runtime, tmp_path):
    """Return a function that compares onnxruntime's actions with those of `predict`."""

    def check(policy, obs):
        file = tmp_path / "policy.onnx"
        exporting.save_onnx(policy, file)
        session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
        (got,) = session.run(["action"], {"obs": obs})
        expected = policy.predict(obs)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(got, expected, atol=2e-6, rtol=1e-5)
        else:
            np.testing.assert_array_equal(got, expected)

    return check


def normal(*shape, scale=1):
    return np.random.default_rng(0).normal(size=(40, *shape)).astype(np.float32) * scale


@pytest.mark.services
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", SETTINGS)
def test_onnx_predicts_as_the_loaded_policy(tmp_path, check_onnx, name, backend):
    train_small(name, backend).save(tmp_path / "saved")
    policy = rlox.load(tmp_path / "saved")
    check_onnx(policy, normal(*policy.observation_space.shape, scale=3))
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["policy.onnx", "saved"]


@pytest.mark.services
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "gelu", "silu"])
def test_onnx_supports_all_activations_and_a_shared_trunk(check_onnx, activation):
    settings = {"net_arch": (8, 6), "shared_trunk": True, "normalize_obs": True}
    check_onnx(train_small("ppo", "auto", activation=activation, **settings), normal(4))


@pytest.mark.services
def test_onnx_supports_dueling_networks(check_onnx):
    check_onnx(train_small("dqn", "native", dueling=True), normal(4))


@pytest.mark.services
@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([[2, 3]], start=[[1, 0]]),
        spaces.MultiBinary((2, 2)),
        spaces.Box(-1, 1, (2, 3)),
    ],
    ids=lambda space: type(space).__name__,
)
@pytest.mark.parametrize("normalize_reward", [False, True])
def test_onnx_accepts_raw_observations(check_onnx, space, normalize_reward):
    settings = {**SETTINGS["ppo"][1], "normalize_reward": normalize_reward}
    trainer = trainers.PPOTrainer(lambda: Samples(space), 1, runs_dir=None, **settings)
    trainer.train(64)
    space.seed(0)
    rows = np.stack([space.sample() for _ in range(30)])
    discrete = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    check_onnx(trainer, rows.astype(np.int64 if discrete else np.float32))


@pytest.mark.services
@pytest.mark.parametrize("space", ACTION_SPACES, ids=lambda space: type(space).__name__)
def test_onnx_returns_actions_of_the_space(check_onnx, space):
    trainer = trainers.A2CTrainer(lambda: Answer(space), 1, runs_dir=None, **ON)
    trainer.train(64)
    check_onnx(trainer, normal(*trainer.learner.spaces[0].shape, scale=0.5))


@pytest.mark.services
def test_save_onnx_rejects_unsupported_policies(tmp_path, runtime):
    custom = trainers.PPOTrainer(Echo, 1, policy=Coin, runs_dir=None, **ON, batch_size=16)
    images = spaces.Box(0, 255, (40, 40), np.uint8)
    image_trainer = trainers.PPOTrainer(lambda: Samples(images), 1, runs_dir=None, **ON, batch_size=16)
    masked = trainers.PPOTrainer(Doors, 1, runs_dir=None, **ON, batch_size=16, action_masks=True)
    for trainer in (custom, image_trainer, masked):
        with rejects(ArgumentError, "policy", "torch.onnx"):
            exporting.save_onnx(trainer, tmp_path / "policy.onnx")
    rounded = Answer(spaces.Box(0, 3, (2,), np.int64))
    trainer = trainers.PPOTrainer(lambda: rounded, 1, runs_dir=None, num_envs=1, n_steps=8)
    with rejects(ArgumentError, "action space", expected="a floating-point Box"):
        exporting.save_onnx(trainer, tmp_path / "policy.onnx")
    assert not any(tmp_path.iterdir())


def test_state_dict_loads_into_torch_modules(tmp_path):
    native = train_small("ppo", "native")
    tensors = exporting.state_dict(native)
    module = torch.nn.Sequential(
        *(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()), torch.nn.Linear(64, 2)
    )
    actor = {n.removeprefix("actor."): x for n, x in tensors.items() if n.startswith("actor.")}
    module.load_state_dict(actor)
    obs = normal(4)
    actions = module(torch.from_numpy(obs)).argmax(1).numpy()
    np.testing.assert_array_equal(actions, native.predict(obs))
    other = train_small("ppo", "torch")
    other.learner.policy.load_state_dict(exporting.state_dict(other))


def test_safetensors_have_networks_and_statistics(tmp_path):
    trainer = train_small("sac", "native")
    exporting.save_safetensors(trainer, tmp_path / "policy.safetensors")
    arrays = safetensors.numpy.load_file(tmp_path / "policy.safetensors")
    state = trainer.learner.state()
    np.testing.assert_array_equal(arrays["actor.0.weight"], state.networks["actor.0.weight"])
    np.testing.assert_array_equal(arrays["normalizer.obs_mean"], state.normalizer["obs_mean"])
    assert {*state.networks} < {*arrays}
