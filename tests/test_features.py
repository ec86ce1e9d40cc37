"""Feature extractors and layouts of observation spaces."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch import nn

from rlox import ArgumentError, ArgumentTypeError
from rlox._layout import Layout
from rlox._nn.runtime import torch_dtype
from rlox.features import Combined, Flatten, NatureCNN, make_features
from rlox.policies import MlpPolicy, SdePolicy
from rlox.trainers import PPOTrainer
from support.rejections import rejects

IMAGE = spaces.Box(0, 255, (40, 36, 3), np.uint8)


def test_nature_cnn_accepts_channels_first_and_channels_last():
    last = NatureCNN(IMAGE)
    first = NatureCNN(spaces.Box(0, 255, (3, 40, 36), np.uint8))
    assert (last.channels_last, first.channels_last) == (True, False)
    first.load_state_dict(last.state_dict())
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 40, 36, 3), np.uint8))
    assert torch.equal(last(images), first(images.permute(0, 3, 1, 2)))


def test_nature_cnn_merges_frame_stacks_and_grey_images():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 36, 40, 6), np.uint8))
    six = NatureCNN(spaces.Box(0, 255, (36, 40, 6), np.uint8))
    stack = NatureCNN(spaces.Box(0, 255, (2, 36, 40, 3), np.uint8))
    stack.load_state_dict(six.state_dict())
    stacked = torch.stack(images.split(3, -1), 1)
    assert stacked.shape == (5, 2, 36, 40, 3)
    torch.testing.assert_close(stack(stacked), six(images))
    first = NatureCNN(spaces.Box(0, 255, (2, 3, 36, 40), np.uint8))
    first.load_state_dict(six.state_dict())
    torch.testing.assert_close(first(stacked.movedim(-1, -3)), six(images))
    one_channel = NatureCNN(spaces.Box(0, 255, (36, 40, 1), np.uint8))
    grey = NatureCNN(spaces.Box(0, 255, (36, 40), np.uint8))
    grey.load_state_dict(one_channel.state_dict())
    torch.testing.assert_close(grey(images[..., 0]), one_channel(images[..., :1]))


def test_nature_cnn_has_the_layers_of_the_paper():
    sizes = [tuple(p.shape) for p in NatureCNN(spaces.Box(0, 255, (84, 84, 4), np.uint8)).parameters()]
    assert sizes[::2] == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 64 * 7 * 7)]


@pytest.mark.parametrize(
    ("space", "extractor_type", "width"),
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
def test_make_features_chooses_an_extractor_for_each_space(space, extractor_type, width):
    features = make_features(space)
    assert isinstance(features, extractor_type)
    assert features.features_dim == width


def test_images_are_scaled_and_other_bytes_are_not():
    cnn = NatureCNN(IMAGE)
    cnn.convolutions, cnn.head = nn.Flatten(), nn.Identity()
    small, memory = (spaces.Box(0, 255, shape, np.uint8) for shape in ((8, 8, 3), (128,)))
    for features, shape, value in (
        (cnn, IMAGE.shape, 1.0),
        (make_features(small), small.shape, 1.0),
        (make_features(memory), memory.shape, 255.0),
    ):
        bright = torch.full((1, *shape), 255, dtype=torch.uint8)
        assert features(bright).unique().tolist() == [value]
    with rejects(ArgumentError, "observation space", expected="images of at least 36 x 36 pixels"):
        NatureCNN(spaces.Box(0, 255, (35, 36, 3), np.uint8))


@pytest.mark.parametrize("cls", [MlpPolicy, SdePolicy])
def test_shared_trunk_serves_actor_and_critic(cls):
    space = spaces.Box(-1, 1, (2,))
    shared = cls(spaces.Box(-1, 1, (4,)), space, shared_trunk=True)
    separate = cls(spaces.Box(-1, 1, (4,)), space)
    count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    assert count(separate) - count(shared) == 4 * 64 + 64 + 64 * 64 + 64
    obs = torch.zeros(3, 4)
    shared.get_value(obs).sum().backward()
    assert next(shared.trunk.parameters()).grad is not None
    action, log_prob, entropy = shared.get_action_and_logprob(obs)
    evaluated = shared.evaluate_actions(obs, action)
    assert torch.allclose(evaluated[0], log_prob)
    assert torch.equal(evaluated[1], entropy)
    assert torch.equal(evaluated[2], shared.get_value(obs))


class Doubled(nn.Module):
    """Custom feature extractor that repeats each observation."""

    def __init__(self, space):
        super().__init__()
        self.features_dim = 2 * int(np.prod(space.shape))
        self.scale = nn.Parameter(torch.ones(self.features_dim))

    def forward(self, obs):
        return torch.cat([obs, obs], 1) * self.scale


def test_custom_features_are_trained_saved_and_required_to_load(tmp_path):
    settings = {"num_envs": 2, "n_steps": 16, "runs_dir": None}
    trainer = PPOTrainer("CartPole-v1", 1, features_extractor=Doubled, **settings)
    trainer.train(64)
    weights = trainer.learner.policy.features.scale
    assert not torch.equal(weights, torch.ones(8))
    trainer.save(tmp_path / "saved")
    with rejects(ArgumentError, "features_extractor", "pass features_extractor=", got="None"):
        PPOTrainer.load(tmp_path / "saved")
    loaded = PPOTrainer.load(tmp_path / "saved", features_extractor=Doubled, runs_dir=None)
    assert torch.equal(loaded.learner.policy.features.scale, weights)


def wrong_width_extractor(space):
    extractor = Flatten(space)
    extractor.features_dim = 9
    return extractor


@pytest.mark.parametrize(
    ("extractor", "settings", "error", "hint"),
    [
        (lambda space: nn.Linear(4, 4), {}, ArgumentTypeError, "rlox.features.NatureCNN"),
        (3, {}, ArgumentTypeError, "rlox.features.NatureCNN"),
        (wrong_width_extractor, {}, ArgumentError, "correct features_dim"),
        (Doubled, {"policy": MlpPolicy}, ArgumentTypeError, "omit features_extractor"),
    ],
    ids=["no features", "no function", "width", "policy"],
)
def test_invalid_feature_extractors_are_rejected(extractor, settings, error, hint):
    with rejects(error, "features_extractor", hint):
        PPOTrainer("CartPole-v1", 1, features_extractor=extractor, runs_dir=None, **settings)


SPACES = {
    "Box": spaces.Box(-1, 1, (2, 3)),
    "Box of float64": spaces.Box(-1, 1, (2,), np.float64),
    "Box of uint8": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "scalar Box": spaces.Box(-1, 1, ()),
    "Discrete": spaces.Discrete(5, start=-2),
    "MultiDiscrete": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 2], [3, 4]]),
    "MultiBinary": spaces.MultiBinary((2, 3)),
    "Dict": spaces.Dict({"z": spaces.Box(0, 255, (3,), np.uint8), "a": spaces.Box(-1, 1, (2,))}),
    "Tuple": spaces.Tuple((spaces.Discrete(3, start=4), spaces.MultiBinary(5))),
    "nested": spaces.Dict(
        {
            "eyes": spaces.Tuple([spaces.Box(0, 255, (2, 2, 1), np.uint8)] * 2),
            "body": spaces.Dict({"joints": spaces.Box(-1, 1, (3,)), "mood": spaces.Discrete(3)}),
        }
    ),
    "Dict of integers": spaces.Dict({1: spaces.Box(-1, 1, (2,)), 2: spaces.Discrete(2)}),
}


def expected_leaves(space, obs):
    """Return the leaves as rollouts store them, computed from the space alone."""
    match space:
        case spaces.Dict():
            return [x for key, part in space.spaces.items() for x in expected_leaves(part, obs[key])]
        case spaces.Tuple():
            return [x for part, o in zip(space.spaces, obs, strict=True) for x in expected_leaves(part, o)]
        case spaces.Discrete() | spaces.MultiDiscrete():
            return [np.asarray(obs, np.int64) - space.start]
    dtype = np.float32 if np.issubdtype(space.dtype, np.floating) else np.uint8
    return [np.asarray(obs, dtype)]


def leaves(obs):
    if isinstance(obs, dict):
        return [x for part in obs.values() for x in leaves(part)]
    if isinstance(obs, tuple):
        return [x for part in obs for x in leaves(part)]
    return [obs]


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_unpack_inverts_pack(space):
    layout, batched = Layout(space), batch_space(space, 6)
    batched.seed(3)
    obs = batched.sample()
    rows = layout.pack(obs)
    assert (rows.shape, rows.dtype) == ((6, *layout.shape), layout.dtype)
    expected = expected_leaves(space, obs)
    arrays, tensors = layout.unpack(rows), layout.unpack(torch.from_numpy(rows), torch_dtype)
    parts = map(leaves, (arrays, tensors, layout.unpack(rows.reshape(2, 3, *layout.shape))))
    for got, tensor, wide, want in zip(*parts, expected, strict=True):
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)
        assert np.array_equal(tensor.numpy(), want)
        assert np.array_equal(wide, want.reshape(2, 3, *want.shape[1:]))
    if rows.dtype == np.float32:
        assert np.shares_memory(leaves(arrays)[0], rows)
    single = next(iter(gym.vector.utils.iterate(batched, obs)))
    for got, want in zip(leaves(layout.unpack(layout.row(single)[None])), expected, strict=True):
        assert np.array_equal(got[0], want[0])
    empty = layout.pack(layout.decode(rows[:0]))
    assert (empty.shape, empty.dtype) == ((0, *layout.shape), layout.dtype)


PARTIAL = {"eyes": (np.zeros((1, 2, 2, 1)),) * 2, "body": {}}


@pytest.mark.parametrize(
    ("space", "obs", "argument", "expected", "row"),
    [
        (spaces.Discrete(3, start=2), [2, 5], "obs", "integers in [2, 5)", 1),
        (spaces.MultiDiscrete([2, 9]), [[0, 8], [2, 0]], "obs", "integers in [0, 2)", 1),
        (spaces.MultiBinary(2), [[0, 1], [1, 3]], "obs", "integers in [0, 2)", 1),
        (spaces.Dict(a=spaces.Discrete(2)), {"a": [9]}, "obs['a']", "integers in [0, 2)", 0),
        (SPACES["nested"], PARTIAL, "obs['body']['joints']", "a value in the observation", None),
        (spaces.Dict({}), {}, "observation space", "a space with parts", None),
    ],
    ids=["Discrete", "MultiDiscrete", "MultiBinary", "Dict", "missing part", "empty Dict"],
)
def test_observations_outside_of_a_space_are_rejected(space, obs, argument, expected, row):
    with rejects(ArgumentError, argument, expected=expected, row=row):
        Layout(space).pack(obs)


def test_layout_rejects_unsupported_spaces():
    for space, section in ((spaces.Text(3), None), (spaces.Sequence(IMAGE), "obs['a']")):
        with rejects(ArgumentTypeError, "observation space", section=section):
            Layout(space if section is None else spaces.Dict(a=space))
