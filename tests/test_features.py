"""Features of built-in policies."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rlox.features import Combined, Flatten, NatureCNN, make_features
from rlox.policies import MlpPolicy, SdePolicy
from rlox.trainers import PPOTrainer
from support.envs import Echo

IMAGE = spaces.Box(0, 255, (40, 36, 3), np.uint8)


def test_pictures_of_either_order_of_channels_are_the_same_pictures():
    last = NatureCNN(IMAGE)
    first = NatureCNN(spaces.Box(0, 255, (3, 40, 36), np.uint8))
    assert (last.channels_last, first.channels_last) == (True, False)
    first.load_state_dict(last.state_dict())
    pictures = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 40, 36, 3), np.uint8))
    assert torch.equal(last(pictures), first(pictures.permute(0, 3, 1, 2)))


def test_stacks_and_pictures_without_channels_are_seen_whole():
    pictures = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 36, 40, 6), np.uint8))
    six = NatureCNN(spaces.Box(0, 255, (36, 40, 6), np.uint8))
    stack = NatureCNN(spaces.Box(0, 255, (2, 36, 40, 3), np.uint8))
    stack.load_state_dict(six.state_dict())
    stacked = torch.stack(pictures.split(3, -1), 1)
    assert stacked.shape == (5, 2, 36, 40, 3)
    torch.testing.assert_close(stack(stacked), six(pictures))
    first = NatureCNN(spaces.Box(0, 255, (2, 3, 36, 40), np.uint8))
    first.load_state_dict(six.state_dict())
    torch.testing.assert_close(first(stacked.movedim(-1, -3)), six(pictures))
    one = NatureCNN(spaces.Box(0, 255, (36, 40, 1), np.uint8))
    grey = NatureCNN(spaces.Box(0, 255, (36, 40), np.uint8))
    grey.load_state_dict(one.state_dict())
    torch.testing.assert_close(grey(pictures[..., 0]), one(pictures[..., :1]))


def test_pictures_are_scaled_to_one():
    cnn = NatureCNN(IMAGE)
    cnn.convolutions = nn.Flatten()
    cnn.head = nn.Identity()
    assert cnn(torch.full((1, 40, 36, 3), 255, dtype=torch.uint8)).unique().tolist() == [1.0]


def test_the_convolutions_are_those_of_the_paper():
    sizes = [
        tuple(p.shape) for p in NatureCNN(spaces.Box(0, 255, (84, 84, 4), np.uint8)).parameters()
    ]
    assert sizes[::2] == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 64 * 7 * 7)]


@pytest.mark.parametrize(
    ("space", "kind", "width"),
    [
        (spaces.Box(-1, 1, (2, 3)), Flatten, 6),
        (spaces.Box(0, 255, (128,), np.uint8), Flatten, 128),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), Flatten, 192),
        (IMAGE, NatureCNN, 512),
        (spaces.Box(0, 255, (40, 36), np.uint8), NatureCNN, 512),
        (spaces.Box(0, 255, (4, 40, 36, 3), np.uint8), NatureCNN, 512),
        (spaces.Discrete(5, start=3), Flatten, 5),
        (spaces.MultiDiscrete([2, 3]), Flatten, 5),
        (spaces.MultiBinary((2, 2)), Flatten, 4),
        (spaces.Dict(a=IMAGE, b=spaces.Discrete(3)), Combined, 259),
        (spaces.Tuple([spaces.Dict(a=spaces.Discrete(3)), spaces.Box(-1, 1, (2,))]), Combined, 5),
    ],
)
def test_every_space_has_its_features(space, kind, width):
    features = make_features(space)
    assert isinstance(features, kind)
    assert features.features_dim == width


def test_small_pictures_are_flattened_and_scaled_and_other_bytes_are_not():
    picture = torch.full((1, 8, 8, 3), 255, dtype=torch.uint8)
    assert make_features(spaces.Box(0, 255, (8, 8, 3), np.uint8))(picture).unique().tolist() == [
        1.0
    ]
    memory = torch.full((1, 128), 255, dtype=torch.uint8)
    assert make_features(spaces.Box(0, 255, (128,), np.uint8))(memory).unique().tolist() == [255.0]


def test_pictures_too_small_for_convolutions_are_refused_where_asked_for():
    with pytest.raises(ValueError, match="sides of at least 36"):
        NatureCNN(spaces.Box(0, 255, (35, 36, 3), np.uint8))


@pytest.mark.parametrize("kind", [MlpPolicy, SdePolicy])
def test_a_shared_trunk_is_one(kind):
    space = spaces.Box(-1, 1, (2,))
    shared = kind(spaces.Box(-1, 1, (4,)), space, shared_trunk=True)
    apart = kind(spaces.Box(-1, 1, (4,)), space)
    count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    assert count(apart) - count(shared) == 4 * 64 + 64 + 64 * 64 + 64
    obs = torch.zeros(3, 4)
    shared.get_value(obs).sum().backward()
    assert next(shared.trunk.parameters()).grad is not None
    action, log_prob, entropy = shared.get_action_and_logprob(obs)
    again = shared.evaluate_actions(obs, action)
    assert torch.allclose(again[0], log_prob)
    assert torch.equal(again[1], entropy)
    assert torch.equal(again[2], shared.get_value(obs))


class Doubled(nn.Module):
    """Features of one's own."""

    def __init__(self, space):
        super().__init__()
        self.features_dim = 2 * int(np.prod(space.shape))
        self.scale = nn.Parameter(torch.ones(self.features_dim))

    def forward(self, obs):
        return torch.cat([obs, obs], 1) * self.scale


def test_features_of_ones_own_are_learned_saved_and_needed_to_load(tmp_path):
    settings = {"num_envs": 2, "n_steps": 16, "runs_dir": None}
    trainer = PPOTrainer("CartPole-v1", 1, features_extractor=Doubled, **settings)
    trainer.train(64)
    scale = trainer.learner.policy.features.scale
    assert not torch.equal(scale, torch.ones(8))
    trainer.save(tmp_path / "saved")
    with pytest.raises(ValueError, match="features_extractor: expected what the trainer was made"):
        PPOTrainer.load(tmp_path / "saved")
    loaded = PPOTrainer.load(tmp_path / "saved", features_extractor=Doubled, runs_dir=None)
    assert torch.equal(loaded.learner.policy.features.scale, scale)


@pytest.mark.parametrize("wrong", [lambda space: nn.Linear(4, 4), lambda space: None, 3])
def test_features_that_are_none_are_refused(wrong):
    with pytest.raises(TypeError, match="features_extractor: expected a function"):
        PPOTrainer("CartPole-v1", 1, features_extractor=wrong, runs_dir=None)


def test_features_of_another_width_than_they_say_are_refused():
    def wide(space):
        made = Flatten(space)
        made.features_dim = 9
        return made

    with pytest.raises(ValueError, match=r"gives \(n, features_dim\) = \(2, 9\) .*shape \(2, 4\)"):
        PPOTrainer("CartPole-v1", 1, features_extractor=wide, runs_dir=None)


def test_features_beside_a_policy_of_ones_own_are_refused():
    with pytest.raises(TypeError, match="features_extractor: expected none beside"):
        PPOTrainer(Echo, 1, policy=MlpPolicy, features_extractor=Doubled, runs_dir=None)
