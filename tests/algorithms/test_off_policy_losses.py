"""DQN's, SAC's and TD3's targets, losses and gradients against ones written anew."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from rlox import make_vec
from rlox.algorithms import DQN, SAC, TD3, DQNConfig, SACConfig, TD3Config
from rlox.algorithms.dqn import dqn_loss, dqn_targets
from rlox.algorithms.sac import actor_loss as sac_actor_loss
from rlox.algorithms.sac import critic_loss as sac_critic_loss
from rlox.algorithms.sac import sac_targets
from rlox.algorithms.td3 import actor_loss as td3_actor_loss
from rlox.algorithms.td3 import critic_loss as td3_critic_loss
from rlox.algorithms.td3 import td3_targets
from rlox.native_off_policy import NativeDQN
from rlox.replaying import ReplayBatch

SMALL = {"learning_starts": 0, "batch_size": 8, "net_arch": (16, 16), "buffer_size": 200}


def batch_of(n=32, dim=3, discrete=None, seed=0):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

    actions = normal(n, 1).tanh()
    if discrete is not None:
        actions = torch.from_numpy(rng.integers(discrete, size=n))
    terminated = torch.from_numpy(rng.random(n) < 0.3)
    return ReplayBatch(
        normal(n, dim), actions, 3 * normal(n), normal(n, dim), terminated, torch.full((n,), 0.9)
    )


def trained(algorithm, config, env="Pendulum-v1"):
    one = algorithm(make_vec(env, 1), config, 3)
    for _ in range(20):
        one.iterate()
    return one


def weights_of(one):
    return {
        name: torch.from_numpy(x).double().requires_grad_() for name, x in one._networks().items()
    }


def net(weights, name, x):
    for i in (0, 2):
        x = torch.relu(x @ weights[f"{name}.{i}.weight"].T + weights[f"{name}.{i}.bias"])
    return x @ weights[f"{name}.4.weight"].T + weights[f"{name}.4.bias"]


def critics(weights, part, obs, actions):
    x = torch.cat([obs, actions], 1).double()
    return [net(weights, f"{part}.qf{i}", x)[:, 0] for i in (0, 1)]


def expect_gradients(optimizer, loss, weights, expected):
    """Those of a loss of ours are those of one written anew in float64, by name."""
    torch.testing.assert_close(loss.double().squeeze(), expected.squeeze(), rtol=1e-4, atol=1e-5)
    gradient = dict(optimizer._named_parts(optimizer.gradient(loss)))
    expected.backward()
    for name, got in gradient.items():
        want = weights[name].grad
        want = torch.zeros_like(weights[name]) if want is None else want
        # What cancels out is as exact as what it is the rest of.
        near = {"rtol": 1e-4, "atol": 1e-5 * float(want.abs().max()) + 1e-9}
        torch.testing.assert_close(got.double(), want, **near, msg=lambda m, n=name: f"{n}: {m}")


def squashed(weights, obs, drawn):
    """SAC's actions and log-probabilities, once more, with torch's distributions."""
    mean, log_std = net(weights, "actor", obs.double()).chunk(2, 1)
    normal = Normal(mean, log_std.clamp(-20, 2).exp())
    u = mean + normal.scale * drawn
    a = u.tanh()
    return a, (normal.log_prob(u) - torch.log1p(-(a**2))).sum(1)


def test_sacs_targets_losses_and_gradients_equal_ones_written_anew():
    one, batch, alpha = trained(SAC, SACConfig(**SMALL)), batch_of(), torch.tensor([0.3])
    weights, policy, generator = weights_of(one), one.policy, one.generator
    generator.manual_seed(1)
    targets = sac_targets(policy, one.critic_target, batch, alpha)
    actions, log_probs = policy.get_action_and_logprob(batch.obs)
    generator.manual_seed(1)
    drawn = [torch.empty(32, 1).normal_(generator=generator) for _ in range(2)]
    with torch.no_grad():
        following, density = squashed(weights, batch.next_obs, drawn[0])
        least = torch.min(*critics(weights, "critic_target", batch.next_obs, following))
        left = 1 - batch.terminated.double()
        expected = batch.rewards + 0.9 * left * (least - 0.3 * density)
    torch.testing.assert_close(targets.double(), expected, rtol=1e-4, atol=1e-4)

    loss = sac_critic_loss(policy.critic, batch, targets)
    said = critics(weights, "critic", batch.obs, batch.actions)
    expected = 0.5 * sum(((q - targets) ** 2).mean() for q in said)
    expect_gradients(one.critic_optimizer, loss, weights, expected)

    weights = weights_of(one)
    loss = sac_actor_loss(policy.critic, batch, actions, log_probs, alpha)
    a, density = squashed(weights, batch.obs, drawn[1])
    expected = (0.3 * density - torch.min(*critics(weights, "critic", batch.obs, a))).mean()
    expect_gradients(one.actor_optimizer, loss, weights, expected)


def test_gsdes_log_probabilities_and_gradients_equal_ones_written_anew():
    one, obs = trained(SAC, SACConfig(**SMALL, use_sde=True, log_std_init=-1.0)), batch_of().obs
    one.generator.manual_seed(1)
    actions, log_probs = one.policy.get_action_and_logprob(obs)
    one.generator.manual_seed(1)
    drawn = torch.empty(1, 16, 1).normal_(generator=one.generator)[0].double()
    weights = weights_of(one)
    x = obs.double()
    for i in (0, 2):
        x = torch.relu(x @ weights[f"actor.{i}.weight"].T + weights[f"actor.{i}.bias"])
    mean = (x @ weights["actor.4.weight"].T + weights["actor.4.bias"]).clamp(-2, 2)
    deviation, hidden = weights["log_std"].exp(), x
    normal = Normal(mean, ((hidden**2) @ deviation**2 + 1e-6).sqrt())
    u = mean + hidden @ (deviation * drawn)
    expected = (normal.log_prob(u) - torch.log1p(-(u.tanh() ** 2))).sum(1)
    torch.testing.assert_close(actions.double(), u.tanh(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(log_probs.double(), expected, rtol=1e-4, atol=1e-4)
    loss = (log_probs + actions.squeeze(1)).mean()
    expect_gradients(one.actor_optimizer, loss, weights, (expected + u.tanh()[:, 0]).mean())


def test_a_temperature_learns_towards_its_target():
    one = trained(SAC, SACConfig(**SMALL, ent_coef="auto_0.5", learning_rate=0.01))
    told = []
    one.tell = lambda **said: told.append(said)
    batch = one.replay.sample(np.random.default_rng(0), None)
    before = one.temperature.log_alpha.item()
    one.generator.manual_seed(2)
    _, log_probs = one.policy.get_action_and_logprob(batch.obs)
    one.generator.manual_seed(2)
    one.update(batch, 0.01)
    excess = log_probs.mean().item() - 1  # the target is -1, for one action
    loss = next(said["ent_coef_loss"] for said in told if "ent_coef_loss" in said)
    assert loss.item() == pytest.approx(-before * excess, rel=1e-4)
    assert next(said["ent_coef"] for said in told if "ent_coef" in said) == pytest.approx(
        np.exp(before)
    )
    fixed = trained(SAC, SACConfig(**SMALL, ent_coef=0.2))
    assert fixed.last["ent_coef"] == pytest.approx(0.2)
    assert np.isnan(fixed.last["ent_coef_loss"])
    assert "log_alpha" not in fixed._networks()


def test_td3s_targets_losses_and_gradients_equal_ones_written_anew():
    one, batch = trained(TD3, TD3Config(**SMALL)), batch_of()
    weights = weights_of(one)
    noise = torch.linspace(-0.5, 0.5, 32).unsqueeze(1)
    targets = td3_targets(one.actor_target, one.critic_target, batch, noise)
    with torch.no_grad():
        following = net(weights, "actor_target", batch.next_obs.double()).tanh() + noise
        following = following.clamp(-1, 1)
        least = torch.min(*critics(weights, "critic_target", batch.next_obs, following))
        expected = batch.rewards + 0.9 * (1 - batch.terminated.double()) * least
    torch.testing.assert_close(targets.double(), expected, rtol=1e-4, atol=1e-4)

    loss = td3_critic_loss(one.policy.critic, batch, targets)
    said = critics(weights, "critic", batch.obs, batch.actions)
    expected = sum(((q - targets) ** 2).mean() for q in said)
    expect_gradients(one.critic_optimizer, loss, weights, expected)

    weights = weights_of(one)
    loss = td3_actor_loss(one.policy, batch)
    a = net(weights, "actor", batch.obs.double()).tanh()
    expected = -critics(weights, "critic", batch.obs, a)[0].mean()
    expect_gradients(one.actor_optimizer, loss, weights, expected)


def test_td3s_actor_and_targets_move_every_other_minibatch():
    one = trained(TD3, TD3Config(**SMALL, tau=0.25))
    for moves in (False, True, False, True):
        before = one._networks()
        one.iterate()
        after = one._networks()
        for name, x in before.items():
            online = name.startswith("critic.")
            assert (x != after[name]).any() == (online or moves), name
            if "_target" in name and moves:
                source = after[name.replace("_target", "")]
                np.testing.assert_allclose(after[name], x + 0.25 * (source - x), atol=1e-6)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("extras", [False, True])
def test_dqns_targets_loss_and_gradients_equal_ones_written_anew(dueling, double, extras):
    one = trained(DQN, DQNConfig(**SMALL, dueling=dueling, target_update_interval=7), "CartPole-v1")
    batch, weights = batch_of(dim=4, discrete=2), weights_of(one)
    masks = torch.ones(32, 2, dtype=torch.bool)
    if extras:
        masks[::3, 0] = False
        batch = batch._replace(weights=torch.linspace(0.1, 1, 32), next_masks=masks)

    def values(part, obs):
        out = net(weights, part, obs.double())
        if not dueling:
            return out
        return out[:, 2:] + out[:, :2] - out[:, :2].mean(1, keepdim=True)

    targets = dqn_targets(one.policy, one.target, batch, double)
    with torch.no_grad():
        following = values("q_net_target", batch.next_obs)
        choices = values("q_net", batch.next_obs) if double else following
        choices = torch.where(masks, choices, -1e9).argmax(1)
        least = following[torch.arange(32), choices]
        expected = batch.rewards + 0.9 * (1 - batch.terminated.double()) * least
    torch.testing.assert_close(targets.double(), expected, rtol=1e-4, atol=1e-4)

    loss, errors = dqn_loss(one.policy, batch, targets)
    wrong = values("q_net", batch.obs)[torch.arange(32), batch.actions] - targets
    torch.testing.assert_close(errors.double(), -wrong, rtol=1e-4, atol=1e-4)
    huber = torch.where(wrong.abs() < 1, 0.5 * wrong**2, wrong.abs() - 0.5)
    expected = (huber * (batch.weights if extras else 1.0)).mean()
    expect_gradients(one.optimizer, loss, weights, expected)


def test_priorities_are_the_absolute_td_errors(monkeypatch):
    one = trained(DQN, replace(DQNConfig(**SMALL), prioritized=True), "CartPole-v1")
    seen = []
    monkeypatch.setattr(one.replay, "prioritize", seen.append)
    stream = one.streams["minibatches"]
    batch = one.replay.sample(stream, None, beta=0.4)
    assert batch.weights.max() <= 1
    targets = dqn_targets(one.policy, one.target, batch, False)
    errors = dqn_loss(one.policy, batch, targets)[1]
    one.update(batch, 1e-3)
    torch.testing.assert_close(seen[0], errors)


def test_the_exponent_of_importance_weights_rises_to_one():
    one = trained(DQN, DQNConfig(**SMALL, prioritized=True, priority_beta=0.2), "CartPole-v1")
    for progress, beta in ((0.0, 0.2), (0.5, 0.6), (1.0, 1.0)):
        one.iterate(progress)
        assert one.replay.buffer.beta == pytest.approx(beta)


def test_priorities_are_errors_to_which_the_buffer_alone_adds_its_floor():
    one = trained(DQN, DQNConfig(**SMALL, prioritized=True), "CartPole-v1")
    one.replay.sample(one.streams["minibatches"], None)
    errors = torch.tensor([0.0, -2.0, 1e-8, 1e-5, 0.0, 3.0, 0.5, 0.0])
    one.replay.prioritize(errors)
    told = one.replay.state()
    one.replay.buffer.update_priorities(one.replay._out["indices"], errors.abs().numpy())
    for name, array in one.replay.state().items():
        np.testing.assert_array_equal(told[name], array, err_msg=name)


def test_exploration_falls_to_its_end_and_the_target_moves_at_intervals():
    config = DQNConfig(**SMALL, exploration_fraction=0.5, exploration_final_eps=0.1, train_freq=5)
    one = DQN(make_vec("CartPole-v1", 1), replace(config, target_update_interval=10), 1)
    rates = [one.iterate(p)["rollout/exploration_rate"] for p in (0.0, 0.25, 0.5, 1.0)]
    assert rates == pytest.approx([1.0, 0.55, 0.1, 0.1])
    moved = []
    for _ in range(4):
        before = one.target.state_dict()["0.weight"].clone()
        one.iterate(1.0)
        moved.append(bool((one.target.state_dict()["0.weight"] != before).any()))
    assert moved == [False, True, False, True]


@pytest.mark.parametrize(("num_envs", "interval"), [(3, 10), (6, 10), (4, 2), (1, 5)])
@pytest.mark.parametrize("learner", [DQN, NativeDQN])
def test_a_target_moves_every_so_many_steps_of_all_environments(learner, num_envs, interval):
    how = {"net_arch": (8,), "learning_starts": 0, "learning_rate": 0.01, "batch_size": 8}
    how |= {"buffer_size": 100, "train_freq": 1, "num_envs": num_envs}
    config = DQNConfig(**how, target_update_interval=interval)
    one = learner(make_vec("CartPole-v1", num_envs), config, 1)
    moved = []
    for _ in range(12):
        before = one.state().networks["q_net_target.0.weight"]
        one.iterate()
        moved.append(bool((one.state().networks["q_net_target.0.weight"] != before).any()))
    passed = [t * num_envs // interval for t in range(13)]
    # A move in the first step is to where it is: nothing has been learned yet.
    assert moved[1:] == [passed[t] < passed[t + 1] for t in range(1, 12)]
