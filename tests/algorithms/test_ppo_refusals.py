"""PPO: what ends an iteration, and by which name."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlox import make_vec, torch_state
from rlox.algorithms import PPO, PPOConfig
from support.envs import Count
from toy_policies import Coin

SMALL = PPOConfig(num_envs=4, n_steps=32, batch_size=32, n_epochs=2)


def learner(env, config=SMALL, seed=0, policy=None):
    return PPO(make_vec(env, config.num_envs), config, seed, policy)


def test_weights_that_are_spoiled_end_the_run_by_name():
    ppo = learner("CartPole-v1", replace(SMALL, learning_rate=1e30))
    with pytest.raises(FloatingPointError, match=r"_loss: expected finite numbers, got"):
        ppo.iterate()


def test_values_that_are_not_finite_are_named_with_step_and_environment():
    class Unwell(Coin):
        def get_value(self, obs):
            value = super().get_value(obs)
            return torch.where(obs[:, 0] == 700, torch.nan, value)

    ppo = learner(Count, policy=Unwell)
    message = "values: expected finite numbers, got nan in environment 0 at step 7"
    with pytest.raises(FloatingPointError, match=message):
        ppo.iterate()


def spoil(ppo, name):
    with torch.no_grad():
        dict(ppo.policy.named_parameters())[name].view(-1)[0] = torch.nan


@pytest.mark.parametrize(
    ("env", "policy", "parameter", "tensor"),
    [
        ("Pendulum-v1", None, "actor.4.bias", "actions: .* in environment 0 at step 32"),
        ("Pendulum-v1", None, "log_std", "actions: .* in environment 0 at step 32"),
        ("CartPole-v1", None, "actor.4.bias", "log_probs: .* in environment 0 at step 32"),
        ("CartPole-v1", None, "critic.4.bias", "values: .* in environment 0 at step 32"),
        ("CartPole-v1", Coin, "actor.weight", "actor.weight: .* at step 32"),
    ],
)
def test_nan_in_a_parameter_is_named_where_it_comes_out(env, policy, parameter, tensor):
    ppo = learner(env, policy=policy)
    ppo.iterate()
    spoil(ppo, parameter)
    with pytest.raises(FloatingPointError, match=f"^{tensor}"):
        ppo.iterate()


@pytest.mark.parametrize(
    ("at", "name"),
    [(1000, "final_values: .* in environment 0 at step 9"), (200, "last_values: .* step 12")],
)
def test_bootstrap_values_that_are_not_finite_are_named(at, name):
    class Unwell(Coin):
        def get_value(self, obs):
            return torch.where(obs[:, 0] == at, torch.inf, super().get_value(obs))

        def act(self, obs):  # collecting sees nothing of it
            return *self.get_action_and_logprob(obs)[:2], super().get_value(obs)

    ppo = learner(Count, replace(SMALL, n_steps=12), policy=Unwell)
    with pytest.raises(FloatingPointError, match=name):
        ppo.iterate()


def test_what_an_environment_refuses_is_passed_on():
    ppo = learner("CartPole-v1")
    ppo.policy.act = lambda obs: (torch.full((4,), 7), torch.zeros(4), torch.zeros(4))
    with pytest.raises(ValueError, match="actions"):
        ppo.iterate()


@pytest.mark.parametrize("seed", ["abc", -1, None, True])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises((TypeError, ValueError), match="seed: expected an integer of at least 0"):
        learner("CartPole-v1", seed=seed)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": 0}, "n_steps: expected an integer of at least 1, got 0"),
        ({"batch_size": -2}, "batch_size: expected an integer"),
        ({"gamma": 1.5}, r"gamma: expected a finite number in \[0, 1\], got 1.5"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a finite number"),
        ({"target_kl": -1.0}, "target_kl"),
        ({"lr_schedule": "cosine"}, "lr_schedule: expected 'constant' or 'linear', got 'cosine'"),
        ({"activation": "sine"}, "activation: expected one of tanh"),
        ({"net_arch": 64}, "net_arch: expected a sequence of integers of at least 1, got 64"),
        ({"net_arch": (0,)}, "net_arch: expected a sequence"),
        ({"normalize_obs": "no"}, "normalize_obs: expected True or False, got 'no'"),
        ({"device": "abacus"}, "device: expected one that torch can use here, got 'abacus'"),
        ({"device": "cuda:99"}, "device: expected one that torch can use here, got 'cuda:99'"),
        ({"use_sde": True}, "use_sde: expected a Box action space"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        learner("CartPole-v1", replace(SMALL, **settings))


class Gpu:
    """As far as an update asks, a device that is not the CPU."""

    type = "cuda"


def test_where_nobody_looks_before_the_end_a_spoiled_gradient_moves_nothing(monkeypatch):
    ppo = learner("CartPole-v1")
    ppo.collect()
    loss, zeros, randperm = ppo.loss, torch.zeros, torch.randperm
    ppo.loss = lambda *args: (loss(*args)[0] * torch.nan, *loss(*args)[1:])
    before = torch_state.module_arrays(ppo.policy)
    ppo.device = Gpu()
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor)
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: zeros(*shape))
    monkeypatch.setattr(torch, "randperm", lambda n, generator, device: randperm(n))
    with pytest.raises(FloatingPointError, match="gradient"):
        ppo.update(1e-3, 0.2)
    after = torch_state.module_arrays(ppo.policy)
    assert all(np.array_equal(after[name], array) for name, array in before.items())
