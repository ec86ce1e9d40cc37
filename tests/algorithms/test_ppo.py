"""Properties of PPO alone: minibatches, metrics, non-finite numbers and generators."""

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rlox import NonFiniteError, make_vec, torch_state
from rlox.algorithms import PPO, PPOConfig
from rlox.networks import layer
from support.envs import Count, Echo
from support.policies import Coin

SMALL = PPOConfig(num_envs=4, n_steps=32, batch_size=32, n_epochs=2)


def learner(env="CartPole-v1", config=SMALL, seed=0, policy=None):
    return PPO(make_vec(env, config.num_envs), config, seed, policy)


def test_the_bootstrap_at_a_truncation_is_normalized_like_observations():
    config = replace(SMALL, n_steps=10, normalize_obs=True)
    ppo = learner(lambda: Count(limit=10), config)
    ppo.collect()
    buffer = ppo.buffer
    assert buffer.final_index.tolist() == [36, 37, 38, 39]  # the last of the 10 steps of each
    normalized = ppo.normalizer.normalize_obs(np.full((4, 1), 1000.0))
    np.testing.assert_array_equal(buffer.final_obs, normalized)
    np.testing.assert_array_equal(buffer.final_values[9], ppo.values(normalized))
    delta = buffer.rewards[9] + 0.99 * buffer.final_values[9] - buffer.values[9]
    np.testing.assert_allclose(buffer.advantages[9], delta, rtol=1e-5)


def test_target_kl_ends_the_updates_of_an_iteration():
    eager = replace(SMALL, learning_rate=0.1, n_epochs=10)
    assert learner(config=eager).iterate()["train/n_updates"] == 10
    bounded = learner(config=replace(eager, target_kl=0.01)).iterate()
    assert bounded["train/n_updates"] < 10
    assert bounded["train/approx_kl"] > 0.015


def test_gradients_are_cut_to_their_joint_norm(monkeypatch):
    norms = []
    ppo = learner(config=replace(SMALL, max_grad_norm=1e-3))
    step = ppo.optimizer.step

    def watched(gradient, learning_rate):
        norms.append(gradient.norm().item())
        step(gradient, learning_rate)

    monkeypatch.setattr(ppo.optimizer, "step", watched)
    ppo.iterate()
    assert norms == pytest.approx([1e-3] * 8, rel=1e-2)


def test_every_step_is_learned_from_once_in_each_epoch(monkeypatch):
    ppo = learner(config=replace(SMALL, batch_size=50))
    seen = []
    loss = ppo.loss

    def watched(policy, batch, *rest):
        seen.append(batch)
        return loss(policy, batch, *rest)

    ppo.loss = watched
    ppo.iterate()
    assert [len(batch.obs) for batch in seen] == [50, 50, 28] * 2
    advantages = torch.cat([batch.advantages for batch in seen[:3]]).sort().values
    np.testing.assert_array_equal(advantages, np.sort(ppo.buffer.advantages, axis=None))


def test_losses_are_means_except_the_last_as_in_stable_baselines3():
    ppo = learner(config=replace(SMALL, learning_rate=0.01))
    seen = []
    loss = ppo.loss
    ppo.loss = lambda *args: (seen.append(loss(*args)), seen[-1])[1]
    metrics = ppo.iterate()
    parts = np.array([part.numpy() for _, _, part in seen])  # 2 epochs of 4 minibatches
    for i, name in enumerate(("policy_gradient_loss", "value_loss", "entropy_loss")):
        assert metrics[f"train/{name}"] == pytest.approx(parts[:, i].mean(), rel=1e-4, abs=1e-7)
    assert metrics["train/loss"] == pytest.approx(parts[-1, 3], rel=1e-6)
    ratios = [log_ratio.double() for _, log_ratio, _ in seen]
    kl = [(r.exp() - 1 - r).mean().item() for r in ratios[4:]]  # the last epoch's
    assert metrics["train/approx_kl"] == pytest.approx(np.mean(kl), rel=1e-2)
    clipped = [((r.exp() - 1).abs() > 0.2).double().mean().item() for r in ratios]
    assert metrics["train/clip_fraction"] == pytest.approx(np.mean(clipped), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Discrete", "gSDE"])
def test_the_compiled_loss_is_the_same(kind):
    env = "CartPole-v1" if kind == "Discrete" else "Pendulum-v1"
    config = replace(SMALL, use_sde=kind == "gSDE")
    plain, compiled = learner(env, config), learner(env, replace(config, compile=True))
    for progress in (0.0, 0.5):
        a, b = plain.iterate(progress), compiled.iterate(progress)
        assert a["train/loss"] == pytest.approx(b["train/loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("at", "location"),
    [(700, ("values", 0, 7)), (1000, ("final_values", 0, 9)), (200, ("last_values", 0, 12))],
)
def test_values_that_are_not_finite_are_named_with_environment_and_step(at, location):
    class Faulty(Coin):
        def get_value(self, obs):
            return torch.where(obs[:, 0] == at, torch.inf, super().get_value(obs))

        def act(self, obs):  # bootstrap values are not computed here
            value = self.get_value(obs) if at == 700 else super().get_value(obs)
            return *self.get_action_and_logprob(obs)[:2], value

    ppo = learner(Count, replace(SMALL, n_steps=12), policy=Faulty)
    with pytest.raises(NonFiniteError) as error:
        ppo.iterate()
    assert (error.value.argument, error.value.env, error.value.step) == location


def test_errors_of_environments_are_passed_on():
    ppo = learner()
    ppo.policy.act = lambda obs: (torch.full((4,), 7), torch.zeros(4), torch.zeros(4))
    with pytest.raises(ValueError, match="actions"):
        ppo.iterate()


def test_a_gradient_that_is_not_finite_moves_nothing_on_a_gpu(monkeypatch):
    ppo = learner()
    ppo.collect()
    loss, zeros, randperm = ppo.loss, torch.zeros, torch.randperm
    ppo.loss = lambda *args: (loss(*args)[0] * torch.nan, *loss(*args)[1:])
    before = torch_state.module_arrays(ppo.policy)
    ppo.device = SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor)
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: zeros(*shape))
    monkeypatch.setattr(torch, "randperm", lambda n, generator, device: randperm(n))
    with pytest.raises(FloatingPointError, match="gradient"):
        ppo.update(1e-3, 0.2)
    np.testing.assert_equal(torch_state.module_arrays(ppo.policy), before)


@pytest.mark.parametrize("policy", [None, Coin])
def test_runs_neither_depend_on_the_global_generators_nor_change_them(policy):
    runs = []
    for outside in (1, 2):
        random.seed(outside)
        np.random.seed(outside)  # noqa: NPY002
        torch.manual_seed(outside)
        before = torch.get_rng_state()
        ppo = learner(policy=policy)
        for _ in range(3):
            ppo.iterate()
        assert torch.equal(before, torch.get_rng_state())
        runs.append(torch_state.module_arrays(ppo.policy))
    np.testing.assert_equal(*runs)


def test_a_custom_policy_learns():
    ppo = learner(Echo, replace(SMALL, gamma=0.0, learning_rate=0.05, n_epochs=10), policy=Coin)
    for _ in range(20):
        metrics = ppo.iterate()
    assert metrics["rollout/ep_rew_mean"] > 8  # 3.3 at first
    with pytest.raises(TypeError, match="mode"):
        ppo.predict(np.zeros(3))
    assert 0 <= ppo.predict(np.zeros(3), deterministic=False) < 3


PIXELS = spaces.Dict(a=spaces.Box(0, 255, (36, 36, 3), np.uint8), b=spaces.Box(-1, 1, (2,)))


@pytest.mark.parametrize("ortho_init", [True, False])
@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (4,)), PIXELS], ids=["numbers", "pixels"])
def test_built_in_networks_draw_nothing_from_the_global_generator(space, ortho_init, monkeypatch):
    def drawn(*args):
        raise AssertionError("the global generator was used")

    class Seen(Echo):
        observation_space = space

    config = replace(SMALL, ortho_init=ortho_init, shared_trunk=True)
    before = torch.get_rng_state()
    monkeypatch.setattr(torch.random, "fork_rng", drawn)
    made = [learner(Seen, config, seed).policy.state_dict() for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    names = [name for name in made[0] if name.endswith("weight")]
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
    assert not any(torch.equal(made[0][name], made[2][name]) for name in names)


def test_layers_are_initialised_as_in_torch():
    for kind, sizes, how in ((nn.Linear, (5, 3), {}), (nn.Conv2d, (3, 4), {"kernel_size": 2})):
        torch.manual_seed(3)
        theirs = kind(*sizes, **how).state_dict()
        ours = layer(kind, *sizes, generator=torch.Generator().manual_seed(3), **how).state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
