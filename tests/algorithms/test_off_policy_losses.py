"""Targets, losses, gradients and target networks of DQN, SAC and TD3 against references."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal

from rlox import NonFiniteError, make_vec
from rlox.algorithms import SAC, TD3, SACConfig, TD3Config
from rlox.algorithms._replay import ReplayBatch
from rlox.algorithms.dqn import dqn_loss, dqn_targets
from rlox.algorithms.sac import actor_loss as sac_actor_loss
from rlox.algorithms.sac import critic_loss as sac_critic_loss
from rlox.algorithms.sac import sac_targets
from rlox.algorithms.td3 import actor_loss as td3_actor_loss
from rlox.algorithms.td3 import critic_loss as td3_critic_loss
from rlox.algorithms.td3 import td3_targets
from support.envs import Sampled
from support.off_policy import BACKENDS, make_learner, run_iterations
from support.rejections import rejects

SMALL = {"learning_starts": 0, "batch_size": 8, "net_arch": (16, 16), "buffer_size": 200}


def batch_of(n=32, dim=3, discrete=None, seed=0):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    actions = normal(n, 1).tanh()
    if discrete is not None:
        actions = torch.from_numpy(rng.integers(discrete, size=n))
    terminated = torch.from_numpy(rng.random(n) < 0.3)
    return ReplayBatch(normal(n, dim), actions, 3 * normal(n), normal(n, dim), terminated, torch.full((n,), 0.9))


def make_trained(algorithm, backend="torch", **settings):
    learner = make_learner(algorithm, backend, 3, **{**SMALL, **settings})
    run_iterations(learner, 20)
    return learner


def weights_of(learner):
    networks = learner.state().networks
    return {name: torch.from_numpy(x).double().requires_grad_() for name, x in networks.items()}


def hidden_layers(weights, name, x):
    x = x.double()
    for i in (0, 2):
        x = torch.relu(x @ weights[f"{name}.{i}.weight"].T + weights[f"{name}.{i}.bias"])
    return x


def net(weights, name, x):
    x = hidden_layers(weights, name, x)
    return x @ weights[f"{name}.4.weight"].T + weights[f"{name}.4.bias"]


def critics(weights, part, obs, actions):
    x = torch.cat([obs, actions], 1)
    return [net(weights, f"{part}.qf{i}", x)[:, 0] for i in (0, 1)]


def assert_equal_gradients(optimizer, loss, weights, expected):
    """Compare a loss and gradients with an independent loss in float64."""
    torch.testing.assert_close(loss.double().squeeze(), expected.squeeze(), rtol=1e-4, atol=1e-5)
    gradient = dict(optimizer._named_parts(optimizer.gradient(loss)))
    expected.backward()
    for name, got in gradient.items():
        want = weights[name].grad
        want = torch.zeros_like(weights[name]) if want is None else want
        # The rounding error of a difference depends on the largest terms.
        close = {"rtol": 1e-4, "atol": 1e-5 * float(want.abs().max()) + 1e-9}
        torch.testing.assert_close(got.double(), want, **close, msg=lambda m, n=name: f"{n}: {m}")


def squashed_actions(weights, obs, noise):
    """Return SAC's actions and log probabilities, computed with torch's distributions."""
    mean, log_std = net(weights, "actor", obs).chunk(2, 1)
    normal = Normal(mean, log_std.clamp(-20, 2).exp())
    u = mean + normal.scale * noise
    a = u.tanh()
    return a, (normal.log_prob(u) - torch.log1p(-(a**2))).sum(1)


def test_sac_targets_losses_and_gradients_equal_an_independent_computation():
    learner, batch, alpha = make_trained("SAC"), batch_of(), torch.tensor([0.3])
    weights, policy, generator = weights_of(learner), learner.policy, learner.generator
    generator.manual_seed(1)
    targets = sac_targets(policy, learner.critic_target, batch, alpha)
    actions, log_probs = policy.get_action_and_logprob(batch.obs)
    generator.manual_seed(1)
    noise = [torch.empty(32, 1).normal_(generator=generator) for _ in range(2)]
    with torch.no_grad():
        next_actions, density = squashed_actions(weights, batch.next_obs, noise[0])
        least = torch.min(*critics(weights, "critic_target", batch.next_obs, next_actions))
        continues = 1 - batch.terminated.double()
        expected = batch.rewards + 0.9 * continues * (least - 0.3 * density)
    torch.testing.assert_close(targets.double(), expected, rtol=1e-4, atol=1e-4)

    loss = sac_critic_loss(policy.critic, batch, targets)
    values = critics(weights, "critic", batch.obs, batch.actions)
    expected = 0.5 * sum(((q - targets) ** 2).mean() for q in values)
    assert_equal_gradients(learner.critic_optimizer, loss, weights, expected)

    weights = weights_of(learner)
    loss = sac_actor_loss(policy.critic, batch, actions, log_probs, alpha)
    a, density = squashed_actions(weights, batch.obs, noise[1])
    expected = (0.3 * density - torch.min(*critics(weights, "critic", batch.obs, a))).mean()
    assert_equal_gradients(learner.actor_optimizer, loss, weights, expected)


def test_gsde_log_probabilities_and_gradients_equal_an_independent_computation():
    learner, obs = make_trained("SAC", use_sde=True, log_std_init=-1.0), batch_of().obs
    learner.generator.manual_seed(1)
    actions, log_probs = learner.policy.get_action_and_logprob(obs)
    learner.generator.manual_seed(1)
    noise = torch.empty(1, 16, 1).normal_(generator=learner.generator)[0].double()
    weights = weights_of(learner)
    mean, hidden = net(weights, "actor", obs).clamp(-2, 2), hidden_layers(weights, "actor", obs)
    deviation = weights["log_std"].exp()
    normal = Normal(mean, ((hidden**2) @ deviation**2 + 1e-6).sqrt())
    u = mean + hidden @ (deviation * noise)
    expected = (normal.log_prob(u) - torch.log1p(-(u.tanh() ** 2))).sum(1)
    torch.testing.assert_close(actions.double(), u.tanh(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(log_probs.double(), expected, rtol=1e-4, atol=1e-4)
    loss = (log_probs + actions.squeeze(1)).mean()
    assert_equal_gradients(learner.actor_optimizer, loss, weights, (expected + u.tanh()[:, 0]).mean())


def test_the_temperature_moves_towards_its_target():
    learner = make_trained("SAC", ent_coef="auto_0.5", learning_rate=0.01)
    calls = []
    learner.record = lambda **metrics: calls.append(metrics)
    batch = learner.replay.sample(np.random.default_rng(0), None)
    before = learner.temperature.log_alpha.item()
    learner.generator.manual_seed(2)
    _, log_probs = learner.policy.get_action_and_logprob(batch.obs)
    learner.generator.manual_seed(2)
    learner.update(batch, 0.01)
    excess = log_probs.mean().item() - 1  # the target entropy is -1 for one action component
    metrics = {name: value for call in reversed(calls) for name, value in call.items()}
    assert metrics["ent_coef_loss"].item() == pytest.approx(-before * excess, rel=1e-4)
    assert metrics["ent_coef"] == pytest.approx(np.exp(before))
    fixed = make_trained("SAC", ent_coef=0.2)
    assert fixed.last["ent_coef"] == pytest.approx(0.2)
    assert np.isnan(fixed.last["ent_coef_loss"])
    assert "log_alpha" not in fixed._networks()


def test_td3_targets_losses_and_gradients_equal_an_independent_computation():
    learner, batch = make_trained("TD3"), batch_of()
    weights = weights_of(learner)
    noise = torch.linspace(-0.5, 0.5, 32).unsqueeze(1)
    targets = td3_targets(learner.actor_target, learner.critic_target, batch, noise)
    with torch.no_grad():
        next_actions = net(weights, "actor_target", batch.next_obs.double()).tanh() + noise
        next_actions = next_actions.clamp(-1, 1)
        least = torch.min(*critics(weights, "critic_target", batch.next_obs, next_actions))
        expected = batch.rewards + 0.9 * (1 - batch.terminated.double()) * least
    torch.testing.assert_close(targets.double(), expected, rtol=1e-4, atol=1e-4)

    loss = td3_critic_loss(learner.policy.critic, batch, targets)
    values = critics(weights, "critic", batch.obs, batch.actions)
    expected = sum(((q - targets) ** 2).mean() for q in values)
    assert_equal_gradients(learner.critic_optimizer, loss, weights, expected)

    weights = weights_of(learner)
    loss = td3_actor_loss(learner.policy, batch)
    a = net(weights, "actor", batch.obs.double()).tanh()
    expected = -critics(weights, "critic", batch.obs, a)[0].mean()
    assert_equal_gradients(learner.actor_optimizer, loss, weights, expected)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("extras", [False, True])
def test_dqn_targets_loss_and_gradients_equal_an_independent_computation(dueling, double, extras):
    learner = make_trained("DQN", dueling=dueling, target_update_interval=7)
    batch, weights = batch_of(dim=4, discrete=2), weights_of(learner)
    masks = torch.ones(32, 2, dtype=torch.bool)
    if extras:
        masks[::3, 0] = False
        batch = batch._replace(weights=torch.linspace(0.1, 1, 32), next_masks=masks)

    def values(part, obs):
        out = net(weights, part, obs.double())
        if not dueling:
            return out
        return out[:, 2:] + out[:, :2] - out[:, :2].mean(1, keepdim=True)

    targets = dqn_targets(learner.policy, learner.target, batch, double)
    with torch.no_grad():
        next_values = values("q_net_target", batch.next_obs)
        choices = values("q_net", batch.next_obs) if double else next_values
        choices = torch.where(masks, choices, -1e9).argmax(1)
        chosen = next_values[torch.arange(32), choices]
        expected = batch.rewards + 0.9 * (1 - batch.terminated.double()) * chosen
    torch.testing.assert_close(targets.double(), expected, rtol=1e-4, atol=1e-4)

    loss, errors = dqn_loss(learner.policy, batch, targets)
    error = values("q_net", batch.obs)[torch.arange(32), batch.actions] - targets
    torch.testing.assert_close(errors.double(), -error, rtol=1e-4, atol=1e-4)
    huber = torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5)
    expected = (huber * (batch.weights if extras else 1.0)).mean()
    assert_equal_gradients(learner.optimizer, loss, weights, expected)


def test_priorities_are_the_absolute_td_errors(monkeypatch):
    learner = make_trained("DQN", prioritized=True)
    priorities = []
    monkeypatch.setattr(learner.replay, "prioritize", priorities.append)
    stream = learner.streams["minibatches"]
    batch = learner.replay.sample(stream, None, beta=0.4)
    assert batch.weights.max() <= 1
    targets = dqn_targets(learner.policy, learner.target, batch, False)
    errors = dqn_loss(learner.policy, batch, targets)[1]
    learner.update(batch, 1e-3)
    torch.testing.assert_close(priorities[0], errors)


def test_the_exponent_of_importance_weights_increases_to_one():
    learner = make_trained("DQN", prioritized=True, priority_beta=0.2)
    for progress, beta in ((0.0, 0.2), (0.5, 0.6), (1.0, 1.0)):
        learner.iterate(progress)
        assert learner.replay.buffer.beta == pytest.approx(beta)


def test_prioritize_passes_absolute_errors_to_the_buffer():
    learner = make_trained("DQN", prioritized=True)
    learner.replay.sample(learner.streams["minibatches"], None)
    errors = torch.tensor([0.0, -2.0, 1e-8, 1e-5, 0.0, 3.0, 0.5, 0.0])
    learner.replay.prioritize(errors)
    state = learner.replay.state()
    learner.replay.buffer.update_priorities(learner.replay._out["indices"], errors.abs().numpy())
    np.testing.assert_equal(learner.replay.state(), state)


@pytest.mark.parametrize(("num_envs", "interval"), [(3, 10), (6, 10), (4, 2), (1, 5)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_target_interval_counts_steps_of_all_environments(backend, num_envs, interval):
    settings = {"learning_rate": 0.01, "train_freq": 1, "target_update_interval": interval}
    learner = make_learner("DQN", backend, 1, **SMALL, num_envs=num_envs, **settings)
    changed = []
    for _ in range(12):
        before = learner.state().networks["q_net_target.0.weight"]
        learner.iterate()
        changed.append(bool((learner.state().networks["q_net_target.0.weight"] != before).any()))
    passed = [t * num_envs // interval for t in range(13)]
    # Before the first update, the target equals the network.
    assert changed[1:] == [passed[t] < passed[t + 1] for t in range(1, 12)]


ROWS, BATCH = 40, 16
OBS, ACTION = torch.tensor([[0.6, -0.8, 1.5]]), torch.tensor([[0.25]])


def make_constant_replay(backend, rewards, **settings):
    """Return a TD3 learner whose replay buffer repeats a transition with these rewards."""
    small = {**SMALL, "batch_size": BATCH, "buffer_size": 100}
    learner = make_learner("TD3", backend, 1, **small, action_noise=None, **settings)
    while learner.timesteps < ROWS:
        learner.iterate()
    state = learner.state()
    for name, value in (("obs", OBS.numpy()), ("actions", ACTION.numpy()), ("rewards", rewards)):
        state.replay[f"step.{name}"][:] = value
    state.replay["next_row.obs"][:] = OBS.numpy()
    learner.load_state(state)
    return learner


def next_loss(learner, backend):
    """Return the critic loss of the next minibatch."""
    if backend == "native":
        learner._start()
        learner.policy.begin(0.0)
        assert learner.policy.learn(learner.normalizer)
        return learner.policy.metrics()["critic_loss"]
    with learner.seeded():
        learner.learn(1, 1e-3, 0.0)
    return learner.last["critic_loss"]


def critic_values(weights, part, action):
    return torch.cat(critics(weights, part, OBS, action)).detach().numpy()


@pytest.mark.parametrize("reward", [1e6, -1e6])
@pytest.mark.parametrize("backend", BACKENDS)
def test_critics_learn_from_rewards_clipped_to_ten(backend, reward):
    learner = make_constant_replay(backend, reward, normalize_reward=True, gamma=0.0)
    values = critic_values(weights_of(learner), "critic", ACTION)
    expected = ((values - 10 * np.sign(reward)) ** 2).sum()
    assert next_loss(learner, backend) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("clip", [0.0, 0.125])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_noise_of_target_actions_is_clipped(backend, clip):
    # The noise exceeds the bound, so each row has the lower or the upper bound.
    settings = {"target_policy_noise": 1e6, "target_noise_clip": clip}
    learner = make_constant_replay(backend, 1.5, **settings, gamma=0.9)
    weights = weights_of(learner)
    action = torch.tanh(net(weights, "actor_target", OBS)).detach()
    assert abs(action.item()) < 0.8
    values = critic_values(weights, "critic", ACTION)
    losses = [
        ((values - 1.5 - 0.9 * critic_values(weights, "critic_target", action + noise).min()) ** 2)
        for noise in (-clip, clip)
    ]
    low, high = (loss.sum() for loss in losses)
    loss = next_loss(learner, backend)
    if clip == 0:
        assert loss == pytest.approx(low, rel=1e-4)
        return
    above = BATCH * (loss - low) / (high - low)  # rows with the upper bound
    assert 0 < round(above) < BATCH
    assert above == pytest.approx(round(above), abs=0.05)


# SAC updates the targets in the first minibatch of two, TD3 in the second.
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("algorithm", "setting", "first"), [("SAC", {"target_update_interval": 2}, 0), ("TD3", {"policy_delay": 2}, 1)]
)
def test_targets_and_the_actor_of_td3_are_updated_every_second_minibatch(algorithm, setting, first, backend):
    learner = make_learner(algorithm, backend, 1, **SMALL, tau=0.25, **setting)
    for update in range(6):
        before = learner.state().networks
        learner.iterate()
        assert learner.updates == update + 1
        after, is_updated = learner.state().networks, update % 2 == first
        for name, x in before.items():
            is_delayed = "_target" in name or (algorithm == "TD3" and name.startswith("actor."))
            assert (x != after[name]).any() == (is_updated or not is_delayed), name
            if "_target" in name and is_updated:
                source = after[name.replace("_target", "")]
                np.testing.assert_allclose(after[name], x + 0.25 * (source - x), atol=1e-6)


class Dropping(nn.Sequential):
    """Q-network with dropout."""

    def __init__(self, *spaces):
        super().__init__(nn.Linear(4, 32), nn.Dropout(), nn.Linear(32, 2))


class Noisy(nn.Module):
    """Q-network that draws noise in every call."""

    def __init__(self, *spaces):
        super().__init__()
        self.net, self.generator = nn.Linear(4, 2), None

    def forward(self, obs):
        values = self.net(obs)
        return values + torch.empty_like(values).normal_(generator=self.generator)


def test_target_networks_apply_no_dropout():
    learner = make_learner("DQN", policy=Dropping, **SMALL)
    run_iterations(learner, 5)
    obs = torch.ones(3, 4)
    assert torch.equal(learner.target(obs), learner.target(obs))
    assert not torch.equal(learner.policy(obs), learner.policy(obs))


def test_target_networks_draw_from_the_learners_generator():
    learner, other = (make_learner("DQN", seed=seed, policy=Noisy, **SMALL) for seed in (1, 2))
    assert learner.target.generator is learner.policy.generator is learner.generator
    run_iterations(learner, 5)
    run_iterations(other, 3)
    other.load_state(learner.state())
    assert str(run_iterations(learner, 5)) == str(run_iterations(other, 5))


def test_layers_after_images_have_the_sizes_of_stable_baselines3():
    images, actions = gym.spaces.Box(0, 255, (3, 36, 36), np.uint8), gym.spaces.Box(-1, 1, (1,))
    env = make_vec(lambda: Sampled(images, actions), 1)
    for learner in (SAC(env, SACConfig(), 1), TD3(env, TD3Config(), 1)):
        weights = learner._networks()
        assert weights["actor.2.weight"].shape == (256, 256)
        assert weights["critic.qf0.2.weight"].shape == (256, 256)
    custom = TD3(env, TD3Config(net_arch=(7,)), 1)
    assert custom._networks()["actor.2.weight"].shape == (1, 7)


@pytest.mark.parametrize("prioritized", [False, True])
def test_nan_in_a_parameter_raises_on_a_gpu(prioritized):
    learner = make_learner("DQN", **SMALL, prioritized=prioritized)
    run_iterations(learner, 4)
    with torch.no_grad():
        next(learner.policy.parameters())[0, 0] = np.nan
    learner.device = SimpleNamespace(type="cuda")  # on GPUs, losses are checked at the end of the iteration
    with rejects(NonFiniteError, "loss", got="nan"):
        learner.learn(2, 1e-3, 0.0)
