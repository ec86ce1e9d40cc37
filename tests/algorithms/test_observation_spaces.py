"""Observation spaces of all algorithms: learning, predictions, normalisation and errors."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import create_empty_array
from gymnasium.wrappers import TransformAction

import rlox
from rlox import ArgumentError, collect_rollout, exporting, make_vec
from rlox._rlox import network_backends
from rlox.callbacks import EvalCallback
from rlox.evaluation import SeededPredictor, evaluate, evaluation_seed
from rlox.features import NatureCNN
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer, SACTrainer, TD3Trainer
from support.envs import Sampled
from support.rejections import rejects

CAMERA = spaces.Box(0, 255, (36, 36, 1), np.uint8)


class Reveal(gym.Env):
    """Environment whose observation parts encode the rewarded values of action components."""

    def __init__(self, space):
        parts = getattr(space, "spaces", [space])
        self.observation_space = space
        self.action_space = spaces.MultiDiscrete([3] * len(parts))

    def _part(self, space, answer):
        match space:
            case spaces.Discrete():
                return answer + space.start
            case spaces.MultiDiscrete():
                return np.full(space.shape, answer, np.int64)
            case spaces.MultiBinary():
                return (np.arange(space.n) == answer).astype(np.int8)
        low, high = float(space.low.flat[0]), float(space.high.flat[0])
        shade = np.full(space.shape, low, space.dtype)
        along = np.moveaxis(shade, int(np.argmax(space.shape)), 0)
        third = len(along) // 3
        along[answer * third : (answer + 1) * third] = high
        return shade

    def _obs(self):
        self.answers = self.np_random.integers(3, size=len(self.action_space.nvec))
        match self.observation_space:
            case spaces.Dict():
                parts = zip(self.observation_space.spaces.items(), self.answers, strict=True)
                return {key: self._part(part, answer) for (key, part), answer in parts}
            case spaces.Tuple():
                parts = zip(self.observation_space.spaces, self.answers, strict=True)
                return tuple(self._part(part, answer) for part, answer in parts)
        return self._part(self.observation_space, self.answers[0])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        reward = float(np.mean(action == self.answers))
        self.steps += 1
        return self._obs(), reward, False, self.steps == 10, {}


SPACES = {
    "Box of two dimensions": spaces.Box(-1, 1, (3, 2)),
    "bytes": spaces.Box(0, 1, (3,), np.uint8),
    "picture": CAMERA,
    "picture, channels first": spaces.Box(0, 255, (1, 36, 36), np.uint8),
    "Discrete": spaces.Discrete(3, start=-4),
    "MultiDiscrete": spaces.MultiDiscrete([3, 4]),
    "MultiBinary": spaces.MultiBinary(3),
    "Dict": spaces.Dict(a=spaces.Box(-1, 1, (3,)), b=spaces.Discrete(3)),
    "Dict with a picture": spaces.Dict(eye=CAMERA, word=spaces.Discrete(3)),
    "Tuple": spaces.Tuple([spaces.MultiBinary(3), spaces.Discrete(3, start=2)]),
}
COMMON = {"gamma": 0.0, "lr_schedule": "linear", "ent_coef": 0.01, "runs_dir": None}
PPO = {**COMMON, "num_envs": 4, "n_steps": 64, "n_epochs": 5, "learning_rate": 5e-3}
A2C = {**COMMON, "num_envs": 8, "learning_rate": 5e-3}
TRAINERS = {"PPO": (PPOTrainer, 5_000, PPO), "A2C": (A2CTrainer, 5_000, A2C)}
IMAGE_SETTINGS = {"PPO": (4_000, {"num_envs": 8, "n_epochs": 4}), "A2C": (50_000, {"num_envs": 32})}
TORCH_ONLY = ("picture", "picture, channels first", "Dict", "Dict with a picture", "Tuple")
BACKENDS = ("native", "torch", *network_backends()[1:])
# Each algorithm with each space, on alternating backends. Convolutions take seconds.
CASES = [
    pytest.param(
        name,
        space_name,
        "torch" if space_name in TORCH_ONLY else BACKENDS[(i + j) % len(BACKENDS)],
        marks=pytest.mark.slow if "picture" in space_name and (i, space_name[:4]) != (0, "Dict") else (),
    )
    for i, name in enumerate(TRAINERS)
    for j, space_name in enumerate(SPACES)
]


@pytest.mark.parametrize(("name", "space_name", "backend"), CASES)
def test_policies_learn_from_every_observation_space(name, space_name, backend):
    cls, steps, settings = TRAINERS[name]
    if "picture" in space_name:
        steps, image_settings = IMAGE_SETTINGS[name]
        settings = {**settings, "learning_rate": 1e-3, **image_settings}
    trainer = cls(lambda: Reveal(SPACES[space_name]), 0, backend=backend, **settings)
    trainer.train(steps)
    assert trainer.evaluate(20)["mean_reward"] >= 9.0


def test_the_task_is_not_learned_from_a_part_of_the_observation():
    class Blind(gym.ObservationWrapper):
        def observation(self, observation):
            return {**observation, "b": 0}

    env = lambda: Blind(Reveal(SPACES["Dict"]))  # noqa: E731
    trainer = PPOTrainer(env=env, seed=0, **PPO)
    trainer.train(5_000)
    assert trainer.evaluate(20)["mean_reward"] < 7.5


NESTED = spaces.Dict(
    eye=spaces.Tuple([spaces.Box(0, 255, (3, 3, 1), np.uint8), spaces.Discrete(3)]),
    word=spaces.Box(-1, 1, (3,), np.float64),
)


class Nested(gym.Env):
    """Environment whose nested observation has the step number in every part."""

    observation_space, action_space = NESTED, spaces.Discrete(2)

    def _obs(self):
        picture = np.full((3, 3, 1), self.at, np.uint8)
        return {"eye": (picture, self.at % 3), "word": np.full(3, self.at / 10)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._obs(), {}

    def step(self, action):
        self.at += 1
        return self._obs(), 1.0, False, self.at == 3, {}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_nested_observations_have_their_dtypes_in_every_autoreset_mode(mode):
    inputs = []

    def policy(obs):
        inputs.append(obs)
        return np.zeros(len(obs["word"]), np.int64)

    batch = collect_rollout(make_vec(Nested, 2, autoreset_mode=mode), policy, 7)
    picture, side = batch.obs["eye"]
    assert (picture.shape, picture.dtype) == ((7, 2, 3, 3, 1), np.uint8)
    assert (side.shape, side.dtype) == ((7, 2), np.int64)
    assert batch.obs["word"].dtype == np.float32
    at = picture[:, 0, 0, 0, 0]
    expected = [0, 1, 2, 3, 0, 1, 2] if mode is AutoresetMode.NEXT_STEP else [0, 1, 2, 0, 1, 2, 0]
    assert at.tolist() == expected
    assert np.array_equal(side[:, 0], at % 3)
    assert np.allclose(batch.obs["word"][:, 0, 0], at / 10)
    assert inputs[0]["eye"][0].dtype == np.uint8


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_truncated_episodes_bootstrap_from_the_final_nested_observation(mode):
    def policy(obs):
        n = len(obs["word"])
        return np.zeros(n, np.int64), np.zeros(n), obs["eye"][0][:, 0, 0, 0].astype(np.float32)

    env = make_vec(Nested, 1, autoreset_mode=mode)
    batch = collect_rollout(env, policy, 3, gamma=0.5, gae_lambda=0.0)
    # r + gamma * V(next) - V, where V is the step number and the episode ends at 3.
    assert batch.advantages[:, 0].tolist() == [1 + 0.5, 1 + 1.0 - 1, 1 + 1.5 - 2]


@pytest.mark.parametrize("space", [SPACES["Dict"], SPACES["picture"], SPACES["Discrete"]])
def test_predictions_accept_single_and_batched_observations(space):
    trainer = PPOTrainer(env=lambda: Reveal(space), seed=0, **PPO)
    obs = trainer.env.env.envs[0].reset(seed=1)[0]
    batch = trainer.env.reset(seed=1)[0]
    parts = len(getattr(space, "spaces", [space]))
    assert trainer.predict(obs).shape == (parts,)
    assert trainer.predict(batch).shape == (4, parts)
    assert np.array_equal(trainer.predict(obs), trainer.predict(batch)[0])


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_predictions_for_empty_batches_are_empty(space, backend):
    trainer = A2CTrainer(lambda: Reveal(space), 0, num_envs=2, backend=backend, runs_dir=None)
    parts = len(getattr(space, "spaces", [space]))
    for deterministic in (True, False):
        actions = trainer.predict(create_empty_array(space, 0), deterministic)
        assert (actions.shape, actions.dtype) == ((0, parts), np.int64)


def test_policies_of_dict_observations_with_normalised_rewards_are_loaded(tmp_path):
    env = lambda: Reveal(SPACES["Dict with a picture"])  # noqa: E731
    small = {"num_envs": 2, "n_steps": 8, "n_epochs": 1, "normalize_reward": True}
    trainer = PPOTrainer(env, 0, runs_dir=None, **small)
    trainer.train(16)
    trainer.save(tmp_path / "saved")
    loaded = PPOTrainer.load(tmp_path / "saved", env=env, runs_dir=None)
    obs = trainer.env.reset(seed=1)[0]
    for deterministic in (True, False):
        actions = [x.predict(obs, deterministic) for x in (trainer, loaded)]
        np.testing.assert_array_equal(*actions)


@pytest.mark.parametrize("empty", [spaces.Dict(), spaces.Tuple(()), spaces.Dict(a=spaces.Dict())])
@pytest.mark.parametrize("cls", [PPOTrainer, A2CTrainer])
def test_empty_parts_have_no_features(cls, empty):
    space = spaces.Dict(eye=CAMERA, nothing=empty, side=spaces.Discrete(3))
    env = lambda: Sampled(space, spaces.Discrete(2))  # noqa: E731
    trainer = cls(env, 0, num_envs=2, n_steps=4, runs_dir=None)
    assert trainer.train(16)["timesteps"] == 16
    assert trainer.learner.policy.features.features_dim == 256 + 3
    assert trainer.predict(space.sample()).shape == ()


def test_errors_of_wrong_observations_name_the_part():
    trainer = PPOTrainer(env=lambda: Reveal(SPACES["Dict"]), seed=0, **PPO)
    with rejects(ArgumentError, "obs['b']"):
        trainer.predict({"a": np.zeros(3)})
    with rejects(ArgumentError, "obs['a']", got="shape (4,)"):
        trainer.predict({"a": np.zeros(4), "b": 1})
    with rejects(ArgumentError, "obs"):
        trainer.predict({"a": np.zeros((2, 3)), "b": [1]})
    for env in (lambda: Reveal(SPACES["Dict"]), "FrozenLake-v1"):
        with rejects(ArgumentError, "normalize_obs"):
            PPOTrainer(env, 0, normalize_obs=True, runs_dir=None)


def make_reveal(space, algorithm):
    """Return a `Reveal` environment with actions that the algorithm supports."""
    env = Reveal(space)
    n = len(env.action_space.nvec)
    if algorithm == "DQN":
        return TransformAction(env, lambda a: np.full(n, a), spaces.Discrete(3))
    if algorithm in ("SAC", "TD3"):
        box = spaces.Box(0, 2, (n,))
        return TransformAction(env, lambda a: np.round(a).astype(int), box)
    return env


OFF_POLICY = {"batch_size": 8, "buffer_size": 100, "learning_starts": 4}
TINY = {
    "PPO": (PPOTrainer, {"n_steps": 8, "batch_size": 8}),
    "A2C": (A2CTrainer, {}),
    "DQN": (DQNTrainer, OFF_POLICY),
    "SAC": (SACTrainer, OFF_POLICY),
    "TD3": (TD3Trainer, OFF_POLICY),
}


@pytest.mark.parametrize(
    ("algorithm", "space_name", "backend"),
    [
        *(("PPO", space_name, "torch") for space_name in SPACES),
        *(("PPO", space_name, "native") for space_name in SPACES if space_name not in TORCH_ONLY),
        ("A2C", "Discrete", "native"),
        ("DQN", "MultiDiscrete", "native"),
        ("DQN", "picture", "torch"),
        ("SAC", "Discrete", "native"),
        ("SAC", "Dict", "torch"),
        ("TD3", "MultiBinary", "native"),
    ],
)
def test_normalized_rewards_do_not_change_predictions(tmp_path, algorithm, space_name, backend):
    cls, settings = TINY[algorithm]
    env = lambda: make_reveal(SPACES[space_name], algorithm)  # noqa: E731
    settings = {"num_envs": 2, "backend": backend, "learning_rate": 0.0, **settings}
    plain, trainer = (cls(env, 0, normalize_reward=normalize, runs_dir=None, **settings) for normalize in (False, True))
    scores = EvalCallback(every=16, n_episodes=2)
    plain.train(32)
    trainer.train(32, callbacks=[scores])
    trainer.save(tmp_path / "saved")
    loaded = cls.load(tmp_path / "saved", env=env, runs_dir=None)
    obs = trainer.env.reset(seed=1)[0]

    def predictions(policy):
        samples = SeededPredictor(policy.learner, 3)
        return [policy.predict(obs), *(samples.predict(obs, False) for _ in range(9))]

    expected = predictions(plain)
    for policy in (trainer, loaded, rlox.load(tmp_path / "saved")):
        assert np.array_equal(predictions(policy), expected)
        assert evaluate(policy, env, 3, seed=0) == evaluate(plain, env, 3, seed=0)
    assert trainer.evaluate(3) == plain.evaluate(3)
    assert scores.last == plain.evaluate(2, seed=evaluation_seed(0, training=True))
    for name, tensor in exporting.state_dict(plain).items():
        assert torch.equal(exporting.state_dict(trainer)[name], tensor), name


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_images_are_scaled_equally_in_training_and_prediction(algorithm):
    cls, settings = TINY[algorithm]
    env = lambda: make_reveal(CAMERA, algorithm)  # noqa: E731
    trainer = cls(env, 0, num_envs=2, normalize_reward=True, runs_dir=None, **settings)
    inputs = set()
    for module in trainer.learner.policy.modules():
        if isinstance(module, torch.nn.Conv2d) and module.in_channels == 1:
            module.register_forward_pre_hook(lambda _, x: inputs.update(x[0].unique().tolist()))
    trainer.train(32)
    assert inputs == {0.0, 1.0}
    inputs.clear()
    trainer.predict(trainer.env.reset(seed=1)[0])
    assert inputs == {0.0, 1.0}


def test_float_images_are_not_scaled_again():
    network = NatureCNN(spaces.Box(0, 255, (36, 36, 1), np.uint8))
    pictures = torch.randint(0, 255, (2, 36, 36, 1), dtype=torch.uint8)
    assert torch.equal(network(pictures), network(pictures.float() / 255))
