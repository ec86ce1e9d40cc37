"""Action noise: values computed by hand, parameters per component, and rejected parameters."""

import json
from dataclasses import asdict

import gymnasium as gym
import numpy as np
import pytest

from rlox import ArgumentError, ArgumentTypeError, make_vec
from rlox.configs import SACConfig, TD3Config
from rlox.learners.native_off_policy import NativeSAC, NativeTD3
from rlox.noise import GaussianNoise, NoiseProcess, OrnsteinUhlenbeckNoise, as_noise, noise_to_dict
from rlox.trainers import SACTrainer, TD3Trainer
from support.envs import Answer
from support.rejections import rejects

SMALL = {"learning_starts": 4, "batch_size": 8, "buffer_size": 100, "net_arch": (8,)}
TWO = gym.spaces.Box(-1, 1, (2,), np.float32)


def test_each_component_has_its_own_deviation_and_mean():
    process = NoiseProcess(GaussianNoise([0.0, 0.2], mean=[0.5, -0.1]), num_envs=4000, dim=2)
    actions = process.add(np.zeros((4000, 2), np.float32), np.random.default_rng(0))
    np.testing.assert_array_equal(actions[:, 0], np.float32(0.5))
    assert actions[:, 1].mean() == pytest.approx(-0.1, abs=0.01)
    assert actions[:, 1].std() == pytest.approx(0.2, rel=0.05)


def test_ornstein_uhlenbeck_noise_reverts_to_its_mean_from_initial_noise():
    settings = {"theta": 0.5, "dt": 0.1, "mean": [0.4, -0.2], "initial_noise": [0.8, 0.1]}
    noise = OrnsteinUhlenbeckNoise([0.0, 0.3], **settings)
    process, stream, reference = NoiseProcess(noise, 2, 2), *map(np.random.default_rng, (7, 7))
    x = np.array([[0.8, 0.1]] * 2)
    for _ in range(5):
        actions = process.add(np.zeros((2, 2), np.float32), stream)
        drawn = reference.standard_normal((2, 2))
        x = x + 0.5 * (np.array([0.4, -0.2]) - x) * 0.1 + np.array([0, 0.3]) * 0.1**0.5 * drawn
        np.testing.assert_allclose(actions, x, rtol=1e-6)
    process.end_episodes(np.array([True, False]))
    np.testing.assert_array_equal(process.state[0], [0.8, 0.1])
    np.testing.assert_allclose(process.state[1], x[1])
    process.begin()
    np.testing.assert_array_equal(process.state, [[0.8, 0.1]] * 2)


@pytest.mark.filterwarnings("ignore:environment:UserWarning")  # new episodes
@pytest.mark.parametrize(
    ("trainer_cls", "noise"),
    [
        (TD3Trainer, GaussianNoise([0.1, 0.3], mean=0.1)),
        (SACTrainer, OrnsteinUhlenbeckNoise((0.1, 0.3), mean=(0.1, 0.2), initial_noise=0.5)),
    ],
)
def test_torch_trainers_accept_noise_arrays_and_resume_noise(trainer_cls, noise, tmp_path):
    saved = trainer_cls(lambda: Answer(TWO), 1, action_noise=noise, runs_dir=None, **SMALL)
    assert saved.learner.backend == "torch"
    saved.train(20)
    saved.save(tmp_path / "saved")
    loaded = trainer_cls.load(tmp_path / "saved", env=lambda: Answer(TWO), runs_dir=None)
    assert loaded.config == saved.config
    for trainer in (saved, loaded):
        trainer.train(10)
    pair = (trainer.learner.noise.state for trainer in (saved, loaded))
    np.testing.assert_array_equal(*pair)


@pytest.mark.parametrize(
    ("learner", "config", "noise"),
    [(NativeTD3, TD3Config, GaussianNoise(0.3)), (NativeSAC, SACConfig, OrnsteinUhlenbeckNoise(0.3))],
)
def test_equal_components_become_one_number_in_rust(learner, config, noise):
    same = type(noise)(np.full(2, 0.3), mean=np.zeros(2))

    def walk(noise):
        env = make_vec(lambda: Answer(TWO), 1)
        native = learner(env, config(**SMALL, action_noise=noise), 3)
        for _ in range(3):
            native.iterate()
        return native.policy.progress_state()[0]

    np.testing.assert_array_equal(walk(noise), walk(same))
    assert walk(noise).any()


@pytest.mark.parametrize("trainer", [SACTrainer, TD3Trainer])
@pytest.mark.parametrize(
    "noise", [GaussianNoise([0.1, 0.2]), GaussianNoise(mean=0.1), OrnsteinUhlenbeckNoise(initial_noise=0.1)]
)
def test_native_trainers_reject_noise_that_only_torch_supports(trainer, noise):
    with rejects(ArgumentError, "action_noise", 'pass backend="torch"', got=repr(noise)):
        trainer(lambda: Answer(TWO), 1, action_noise=noise, backend="native", runs_dir=None)
    native = {SACTrainer: (NativeSAC, SACConfig), TD3Trainer: (NativeTD3, TD3Config)}
    learner, config = native[trainer]
    with rejects(ArgumentError, "action_noise", 'pass backend="torch"', got=repr(noise)):
        learner(make_vec(lambda: Answer(TWO), 1), config(action_noise=noise), 1)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(
    ("noise", "name"),
    [
        (GaussianNoise([0.1] * 3), "sigma"),
        (GaussianNoise(mean=[0.0]), "mean"),
        (OrnsteinUhlenbeckNoise(initial_noise=[0.0] * 3), "initial_noise"),
    ],
)
def test_noise_of_another_length_than_actions_is_rejected(noise, name, backend):
    expected = f"{name} as a number or an array of length 2"
    with rejects(ArgumentError, "action_noise", expected=expected):
        TD3Trainer(lambda: Answer(TWO), 1, action_noise=noise, backend=backend, runs_dir=None)


@pytest.mark.parametrize("noise_cls", [GaussianNoise, OrnsteinUhlenbeckNoise])
@pytest.mark.parametrize(
    ("arguments", "error", "argument"),
    [
        ({"sigma": [0.1, -0.1]}, ArgumentError, "sigma[1]"),
        ({"sigma": []}, ArgumentError, "sigma"),
        ({"sigma": [[0.1], [0.1, 0.2]]}, ArgumentError, "sigma"),
        ({"sigma": ["a"]}, ArgumentTypeError, "sigma[0]"),
        ({"sigma": None}, ArgumentTypeError, "sigma"),
        ({"mean": np.array([0.0, np.nan])}, ArgumentError, "mean[1]"),
        ({"mean": np.array([True])}, ArgumentTypeError, "mean[0]"),
    ],
)
def test_noise_rejects_parameters_that_are_no_numbers(noise_cls, arguments, error, argument):
    with rejects(error, argument):
        noise_cls(**arguments)


def test_noise_rejects_an_array_of_means_as_the_first_argument():
    with rejects(TypeError, "positional"):
        GaussianNoise(np.zeros(2), 0.1 * np.ones(2))
    with rejects(ArgumentTypeError, "theta"):
        OrnsteinUhlenbeckNoise(np.zeros(2), 0.1 * np.ones(2))


@pytest.mark.parametrize(
    "noise",
    [
        GaussianNoise(np.array([0.1, 0.2]), mean=np.float32(0.5)),
        GaussianNoise(np.array(0.25)),
        OrnsteinUhlenbeckNoise(0.3, initial_noise=[0.0, 0.1]),
    ],
)
def test_noise_is_restored_from_json(noise):
    assert as_noise("x", json.loads(json.dumps(noise_to_dict(noise)))) == noise
    assert as_noise("x", json.loads(json.dumps(asdict(noise)))) == noise


def test_scalar_noise_is_described_as_native_trainers_read_it():
    numbers = {"sigma": 0.3, "theta": 0.15, "dt": 0.01}
    assert noise_to_dict(OrnsteinUhlenbeckNoise(0.3)) == {**numbers, "kind": "ornstein_uhlenbeck"}
