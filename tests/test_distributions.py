"""Distributions of actions against torch's, which the library does without."""

import pytest
import torch
from torch import distributions

from rlox.distributions import Bernoulli, Categorical, Gaussian, MultiCategorical, masked


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def test_categorical_equals_torchs(generator):
    logits = torch.randn(50, 4, generator=generator) * 3
    ours, torchs = Categorical(logits), distributions.Categorical(logits=logits)
    actions = ours.sample(generator)
    assert (actions.dtype, tuple(actions.shape)) == (torch.int64, (50,))
    close(ours.log_prob(actions), torchs.log_prob(actions))
    close(ours.entropy(), torchs.entropy())
    close(ours.mode(), logits.argmax(-1))


def test_categorical_samples_have_their_probabilities(generator):
    probabilities = torch.tensor([0.05, 0.25, 0.7])
    samples = Categorical(probabilities.log().expand(40_000, 3)).sample(generator)
    assert (samples.bincount() / 40_000 - probabilities).abs().max() < 0.01


def test_several_categoricals_equal_torchs(generator):
    logits = torch.randn(50, 9, generator=generator) * 3
    ours = MultiCategorical(logits, [2, 4, 3])
    torchs = [distributions.Categorical(logits=part) for part in logits.split([2, 4, 3], -1)]
    actions = ours.sample(generator)
    assert (actions.dtype, tuple(actions.shape)) == (torch.int64, (50, 3))
    assert (actions.amax(0) < torch.tensor([2, 4, 3])).all()
    close(ours.log_prob(actions), sum(t.log_prob(actions[:, i]) for i, t in enumerate(torchs)))
    close(ours.entropy(), sum(t.entropy() for t in torchs))
    close(ours.mode(), torch.stack([t.probs.argmax(-1) for t in torchs], -1))


def test_components_of_several_categoricals_are_drawn_apart(generator):
    samples = MultiCategorical(torch.zeros(40_000, 4), [2, 2]).sample(generator)
    assert ((samples[:, 0] == samples[:, 1]).float().mean() - 0.5).abs() < 0.01


def test_bernoulli_equals_torchs(generator):
    logits = torch.randn(50, 3, generator=generator) * 3
    ours, torchs = Bernoulli(logits), distributions.Bernoulli(logits=logits)
    actions = ours.sample(generator)
    assert (actions.dtype, tuple(actions.shape)) == (torch.int64, (50, 3))
    close(ours.log_prob(actions), torchs.log_prob(actions.float()).sum(-1))
    close(ours.entropy(), torchs.entropy().sum(-1))
    close(ours.mode(), (torchs.probs > 0.5).long())
    certain = Bernoulli(torch.tensor([[200.0, -200.0]]))
    assert certain.entropy().isfinite().all()
    assert certain.log_prob(torch.tensor([[0, 0]])).isfinite().all()


def test_masked_components_are_what_is_allowed_and_certain(generator):
    logits = torch.randn(1000, 3, generator=generator, requires_grad=True)
    free, never, always = [True, True], [True, False], [False, True]
    flags = torch.tensor([free + never + always]).expand(1000, 6)
    chances, alone = Bernoulli(masked(logits, flags)), Bernoulli(logits[:, :1])
    actions = chances.sample(generator)
    assert 300 < actions[:, 0].sum() < 700
    assert (actions[:, 1:] == torch.tensor([0, 1])).all()
    assert (chances.mode()[:, 1:] == torch.tensor([0, 1])).all()
    close(chances.log_prob(actions), alone.log_prob(actions[:, :1]))
    close(chances.entropy(), alone.entropy())
    assert (chances.log_prob(1 - actions) < -1e30).all()
    (chances.log_prob(actions).sum() + chances.entropy().sum()).backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[:, 1:] == 0).all()


def test_bernoulli_samples_have_their_probabilities(generator):
    probabilities = torch.tensor([0.05, 0.3, 0.9])
    samples = Bernoulli(probabilities.logit().expand(40_000, 3)).sample(generator)
    assert (samples.float().mean(0) - probabilities).abs().max() < 0.01


@pytest.mark.parametrize("shape", [(2,), (50, 2)])
def test_gaussian_equals_torchs(generator, shape):
    mean = torch.randn(50, 2, generator=generator)
    std = torch.rand(shape, generator=generator) + 0.1
    ours, torchs = Gaussian(mean, std), distributions.Normal(mean, std)
    actions = ours.sample(generator)
    close(ours.log_prob(actions), torchs.log_prob(actions).sum(-1))
    close(ours.entropy(), torchs.entropy().sum(-1))
    assert ours.mode() is mean


def test_gaussian_samples_have_their_moments(generator):
    mean, std = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    samples = Gaussian(mean.expand(40_000, 2), std).sample(generator)
    assert ((samples.mean(0) - mean) / std).abs().max() < 0.02
    assert (samples.std(0) / std - 1).abs().max() < 0.02


def test_noise_decided_elsewhere_is_what_a_sample_adds(generator):
    mean, noise = torch.zeros(3, 1), torch.ones(3, 1)
    close(Gaussian(mean, torch.ones(1), noise).sample(generator), noise)


def test_samples_come_from_the_generator_given_and_no_other(generator):
    before = torch.get_rng_state()
    for chances in (Categorical(torch.zeros(9, 3)), Gaussian(torch.zeros(9, 3), torch.ones(3))):
        first = chances.sample(generator.manual_seed(1))
        close(chances.sample(generator.manual_seed(1)), first)
    assert torch.equal(torch.get_rng_state(), before)
