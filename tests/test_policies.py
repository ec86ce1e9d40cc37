"""Built-in policies, the policy contract and action distributions."""

import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import distributions, nn

from rlox import ArgumentError, ArgumentTypeError
from rlox import _spaces as spaces
from rlox._nn.custom import check_policy
from rlox._nn.distributions import Bernoulli, Categorical, Gaussian, MultiCategorical, apply_mask
from rlox._nn.networks import fuse_mlps
from rlox.policies import MlpPolicy, SdePolicy, get_act_fn, greedy_actions, make_policy
from rlox.trainers import PPOTrainer
from support.rejections import expect_rejection, rejections, rejects

OBS = Box(-1.0, 1.0, (5,))
PARAMETERS = ("weight", "bias")


def test_policies_have_torch_parameter_names_and_configurable_networks():
    names = [f"{x}.{i}.{y}" for x in ("actor", "critic") for i in (0, 2, 4) for y in PARAMETERS]
    assert [*MlpPolicy(OBS, Discrete(3)).state_dict()] == names
    assert set(MlpPolicy(OBS, Box(-1, 1, (2,))).state_dict()) == {*names, "log_std"}
    settings = {"use_sde": False, "net_arch": (16,), "activation": "relu", "log_std_init": -0.5}
    settings |= {"ortho_init": True, "full_std": True}
    policy = make_policy(None, OBS, Box(-1, 1, (2,)), settings)
    assert [type(layer).__name__ for layer in policy.actor] == ["Linear", "ReLU", "Linear"]
    assert policy.actor[0].weight.shape == (16, 5)
    assert policy.log_std.tolist() == [-0.5, -0.5]


@pytest.mark.parametrize("space", [Discrete(3), Box(-1, 1, (2,))])
def test_orthogonal_weights_have_the_gains_of_stable_baselines3(space):
    policy = MlpPolicy(OBS, space)
    gains = {"actor": (math.sqrt(2), math.sqrt(2), 0.01), "critic": (math.sqrt(2), math.sqrt(2), 1)}
    for name, expected in gains.items():
        linear = [layer for layer in getattr(policy, name) if isinstance(layer, nn.Linear)]
        for layer, gain in zip(linear, expected, strict=True):
            singular = torch.linalg.svdvals(layer.weight.detach())
            torch.testing.assert_close(singular, torch.full_like(singular, gain))
            assert not layer.bias.any()
    plain = MlpPolicy(OBS, space, ortho_init=False)
    assert plain.actor[0].bias.any()


@pytest.mark.parametrize("ortho_init", [True, False])
@pytest.mark.parametrize("shape", [(), (4, 3, 2), (0,)])
@pytest.mark.filterwarnings("error")
def test_observations_of_any_rank_are_flattened_and_may_be_empty(shape, ortho_init):
    policy = MlpPolicy(Box(-1, 1, shape), Discrete(2), ortho_init=ortho_init)
    action, log_prob, value = policy.act(torch.zeros(7, *shape))
    assert action.shape == log_prob.shape == value.shape == (7,)
    assert log_prob.isfinite().all()
    assert value.isfinite().all()


@pytest.mark.parametrize(
    ("space", "outputs"),
    [
        (Discrete(3, start=-7), 3),
        (MultiDiscrete([2, 5, 1]), 8),
        (MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [2, 2]]), 14),
        (MultiBinary(4), 4),
        (MultiBinary((2, 3)), 6),
        (Box(-1, 1, ()), 1),
        (Box(0, 9, (2, 3)), 6),
    ],
)
def test_actions_have_the_shape_of_their_space(space, outputs):
    policy, obs = MlpPolicy(OBS, space, log_std_init=-3.0), torch.randn(40, 5)
    assert policy.actor[-1].out_features == outputs
    check_policy(policy, OBS, space)
    action, log_prob, value = policy.act(obs)
    _, recomputed, entropy = policy.get_action_and_logprob(obs, action=action)
    torch.testing.assert_close(log_prob, recomputed)
    assert log_prob.shape == value.shape == entropy.shape == (40,)
    for action_rows in (action, policy.mode(obs)):
        sent = spaces.to_env_actions(space, action_rows.detach().numpy(), 40)
        assert all(space.contains(np.asarray(x)) for x in sent)
        assert sent.shape == (40, *space.shape)


@pytest.mark.parametrize("full_std", [True, False])
def test_gsde_noise_is_linear_in_the_last_hidden_layer(full_std):
    policy = SdePolicy(OBS, Box(-1, 1, (2,)), full_std=full_std, log_std_init=-1.0)
    assert policy.log_std.shape == (64, 2 if full_std else 1)
    policy.reset_noise(3)
    obs = torch.randn(3, 5)
    with torch.no_grad():
        noise = policy.act(obs)[0] - policy.mode(obs)
        latent = policy.actor[:4](obs)
        want = torch.stack([latent[i] @ policy.exploration[i] for i in range(3)])
        torch.testing.assert_close(noise, want)
        torch.testing.assert_close(policy.act(obs)[0] - policy.mode(obs), noise)  # until reset
        policy.reset_noise(3)
        assert not torch.allclose(policy.act(obs)[0] - policy.mode(obs), noise)


def test_gsde_noise_has_the_deviation_of_its_distribution():
    policy = SdePolicy(OBS, Box(-1, 1, (1,)), log_std_init=-1.0)
    rows = 20_000
    obs = torch.randn(1, 5).expand(rows, 5)
    policy.reset_noise(rows)
    with torch.no_grad():
        noise = policy.act(obs)[0] - policy.mode(obs)
        expected = policy.distribution(obs[:1]).std.item()
    assert noise.std().item() == pytest.approx(expected, rel=0.03)


def test_gsde_std_has_no_gradient_in_the_hidden_layers():
    policy = SdePolicy(OBS, Box(-1, 1, (1,)))
    policy.distribution(torch.randn(4, 5)).std.sum().backward()
    assert policy.actor[0].weight.grad is None
    assert policy.log_std.grad.abs().sum() > 0


@rejections(
    (lambda: MlpPolicy(OBS, Tuple([Discrete(2)])), ArgumentError, "action space"),
    (lambda: SdePolicy(OBS, MultiBinary(2)), ArgumentError, "action space"),
    (lambda: MlpPolicy(OBS, Discrete(2), activation="sin"), ArgumentError, "activation"),
)
def test_built_in_policies_reject_invalid_settings(rejection):
    expect_rejection(rejection)


class ColumnValues(nn.Module):
    """Policy whose values are a column, which would broadcast against (N,) to (N, N)."""

    def get_action_and_logprob(self, obs, mask=None, action=None):
        zeros = torch.zeros(len(obs))
        return zeros.long() if action is None else action, zeros, zeros

    def get_value(self, obs):
        return torch.zeros(len(obs), 1)


METHODS = "get_action_and_logprob and get_value"


class FloatActions(ColumnValues):
    def get_action_and_logprob(self, obs, mask=None, action=None):
        zeros = torch.zeros(len(obs))
        return zeros, zeros, zeros


@pytest.mark.parametrize(
    ("policy", "error", "expected"),
    [
        (ColumnValues(), ArgumentError, "value of shape (2,) and torch.float32 for 2 observations"),
        (FloatActions(), ArgumentError, "action of shape (2,) and torch.int64 for 2 observations"),
        (nn.Linear(5, 2), ArgumentTypeError, f"a torch module with {METHODS}"),
        (np.zeros(3), ArgumentTypeError, f"a torch module with {METHODS}"),
    ],
)
def test_check_policy_rejects_policies_that_break_the_contract(policy, error, expected):
    with rejects(error, "policy", expected=expected):
        check_policy(policy, OBS, Discrete(2))


def test_greedy_actions_require_a_mode():
    with rejects(ArgumentTypeError, "policy", "add it or pass deterministic=False"):
        greedy_actions(ColumnValues(), torch.zeros(1, 5))


@pytest.mark.parametrize("net_arch", [(16,), (16, 8), (8, 8, 8)])
@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu"])
def test_fused_act_equals_the_separate_methods(net_arch, activation):
    policy = MlpPolicy(OBS, MultiBinary(3), net_arch=net_arch, activation=activation)
    obs, samples = torch.randn(7, 5), []
    for act in (policy.frozen_act(), policy.act, policy.get_action_and_logprob):
        policy.generator.manual_seed(1)
        samples.append(act(obs))
    action, log_prob, value = samples[0]
    assert torch.equal(action, samples[1][0])
    assert torch.equal(action, samples[2][0])
    for expected in (samples[1], (action, samples[2][1], policy.get_value(obs))):
        torch.testing.assert_close(log_prob, expected[1])
        torch.testing.assert_close(value, expected[2])


def test_changed_or_hooked_networks_are_not_fused():
    def add_hook(policy):
        policy.critic.register_forward_hook(lambda *_: None)

    def add_dropout(policy):
        policy.actor.insert(1, torch.nn.Dropout())

    def replace_layer(policy):
        policy.actor[0] = torch.nn.Linear(5, 16, bias=False)

    def replace_activation(policy):
        policy.critic[1] = torch.nn.ReLU()

    for change in (add_hook, add_dropout, replace_layer, replace_activation):
        policy = MlpPolicy(OBS, Discrete(2), net_arch=(16,))
        assert fuse_mlps(policy.actor, policy.critic) is not None
        change(policy)
        assert fuse_mlps(policy.actor, policy.critic) is None
        assert policy.frozen_act() == policy.act

    class CustomDistribution(MlpPolicy):
        def distribution(self, obs, mask=None):
            return super().distribution(2 * obs, mask)

    policy = CustomDistribution(OBS, Discrete(2), net_arch=(16,))
    assert get_act_fn(policy) == policy.act


def assert_close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def test_categorical_distributions_equal_torch(generator):
    logits = torch.randn(50, 9, generator=generator) * 3
    for counts in ([9], [2, 4, 3]):
        distribution = Categorical(logits) if counts == [9] else MultiCategorical(logits, counts)
        references = [distributions.Categorical(logits=part) for part in logits.split(counts, -1)]
        actions = distribution.sample(generator)
        assert actions.dtype == torch.int64
        assert tuple(actions.shape) == ((50,) if len(counts) == 1 else (50, 3))
        columns = actions.reshape(50, -1)
        assert (columns.amax(0) < torch.tensor(counts)).all()
        expected = sum(t.log_prob(columns[:, i]) for i, t in enumerate(references))
        assert_close(distribution.log_prob(actions), expected)
        assert_close(distribution.entropy(), sum(t.entropy() for t in references))
        modes = torch.stack([t.probs.argmax(-1) for t in references], -1)
        assert_close(distribution.mode(), modes.reshape(actions.shape))


def test_bernoulli_and_gaussian_equal_torch(generator):
    logits = torch.randn(50, 3, generator=generator) * 3
    std = torch.rand(50, 3, generator=generator) + 0.1
    bernoulli = distributions.Bernoulli(logits=logits)
    for distribution, reference, dtype, mode in (
        (Bernoulli(logits), bernoulli, torch.int64, (bernoulli.probs > 0.5).long()),
        (Gaussian(logits, std), distributions.Normal(logits, std), torch.float32, logits),
        (Gaussian(logits, std[0]), distributions.Normal(logits, std[0]), torch.float32, logits),
    ):
        actions = distribution.sample(generator)
        assert (actions.dtype, tuple(actions.shape)) == (dtype, (50, 3))
        assert_close(distribution.log_prob(actions), reference.log_prob(actions.float()).sum(-1))
        assert_close(distribution.entropy(), reference.entropy().sum(-1))
        assert_close(distribution.mode(), mode)
    certain = Bernoulli(torch.tensor([[200.0, -200.0]]))
    assert certain.entropy().isfinite().all()
    assert certain.log_prob(torch.tensor([[0, 0]])).isfinite().all()


def test_masked_components_are_certain_and_have_no_gradient(generator):
    logits = torch.randn(1000, 3, generator=generator, requires_grad=True)
    both, never, always = [True, True], [True, False], [False, True]
    flags = torch.tensor([both + never + always]).expand(1000, 6)
    chances, unmasked = Bernoulli(apply_mask(logits, flags)), Bernoulli(logits[:, :1])
    actions = chances.sample(generator)
    assert 300 < actions[:, 0].sum() < 700
    assert (actions[:, 1:] == torch.tensor([0, 1])).all()
    assert (chances.mode()[:, 1:] == torch.tensor([0, 1])).all()
    assert_close(chances.log_prob(actions), unmasked.log_prob(actions[:, :1]))
    assert_close(chances.entropy(), unmasked.entropy())
    assert (chances.log_prob(1 - actions) < -1e30).all()
    (chances.log_prob(actions).sum() + chances.entropy().sum()).backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[:, 1:] == 0).all()


def test_samples_have_the_moments_of_their_distribution(generator):
    n, chances = 40_000, torch.tensor([0.05, 0.25, 0.7])
    samples = Categorical(chances.log().expand(n, 3)).sample(generator)
    assert (samples.bincount() / n - chances).abs().max() < 0.01
    samples = Bernoulli(chances.logit().expand(n, 3)).sample(generator)
    assert (samples.float().mean(0) - chances).abs().max() < 0.01
    samples = MultiCategorical(torch.zeros(n, 4), [2, 2]).sample(generator)
    assert ((samples[:, 0] == samples[:, 1]).float().mean() - 0.5).abs() < 0.01
    mean, std = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    samples = Gaussian(mean.expand(n, 2), std).sample(generator)
    assert ((samples.mean(0) - mean) / std).abs().max() < 0.02
    assert (samples.std(0) / std - 1).abs().max() < 0.02
    noise = torch.ones(3, 1)
    assert_close(Gaussian(torch.zeros(3, 1), noise, noise).sample(generator), noise)


def test_samples_use_only_the_generator_argument(generator):
    before = torch.get_rng_state()
    for distribution in (Categorical(torch.zeros(9, 3)), Gaussian(torch.zeros(9, 3), torch.ones(3))):
        first = distribution.sample(generator.manual_seed(1))
        assert_close(distribution.sample(generator.manual_seed(1)), first)
    assert torch.equal(torch.get_rng_state(), before)


class NoEntropyPolicy(nn.Module):
    """Policy without `action` argument and without entropy."""

    def __init__(self, *_):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def get_action_and_logprob(self, obs, mask=None):
        distribution = distributions.Categorical(logits=self.layer(obs))
        action = distribution.sample()
        return action, distribution.log_prob(action)

    def get_value(self, obs):
        return self.layer(obs)[:, 0]


def test_policies_without_entropy_are_rejected():
    with rejects(ArgumentError, "policy", "rlox.policies.ActorCritic"):
        PPOTrainer("CartPole-v1", 1, policy=NoEntropyPolicy, num_envs=4, n_steps=16, runs_dir=None, backend="torch")
