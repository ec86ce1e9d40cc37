"""Properties of IMPALA alone: V-trace targets, its loss, and A2C as its limit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal

from rlox import make_vec
from rlox.algorithms import A2C, IMPALA, A2CConfig, IMPALAConfig
from rlox.algorithms.impala import impala_loss
from rlox.native import NativeA2C, NativeIMPALA

IN_TURN = {"lockstep": True, "max_lag": 0}
SMALL = IMPALAConfig(num_envs=4, n_steps=8, net_arch=(16,), **IN_TURN)
BOTH = {"native": NativeIMPALA, "torch": IMPALA}


def learner(kind, env="CartPole-v1", config=SMALL, seed=0, **kwargs):
    return kind(make_vec(env, config.num_envs, **kwargs), config, seed)


def slow_vtrace(log_rhos, rewards, values, next_values, dones, config):
    """The sums of the paper's equation 1, one after another; terminations are followed by 0."""
    steps, envs = rewards.shape
    vs, advantages = np.zeros((2, steps, envs))
    rho, c = (np.minimum(bar, np.exp(log_rhos)) for bar in (config.rho_bar, config.c_bar))
    delta = rho * (rewards + config.gamma * next_values - values)
    for n in range(envs):
        for start in range(steps):
            weight, vs[start, n] = 1.0, values[start, n]
            for t in range(start, steps):
                vs[start, n] += weight * delta[t, n]
                if dones[t, n]:
                    break
                weight *= config.gamma * config.vtrace_lambda * c[t, n]
        for t in range(steps):
            after = next_values[t, n] if dones[t, n] or t == steps - 1 else vs[t + 1, n]
            advantages[t, n] = rho[t, n] * (rewards[t, n] + config.gamma * after - values[t, n])
    return vs, advantages


def move(impala):
    """Moves the weights away from those that acted."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in impala.policy.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize(("rho_bar", "c_bar", "vtrace_lambda"), [(1, 1, 1), (2, 0.5, 0.9)])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_targets_and_loss_equal_an_independent_computation(env, rho_bar, c_bar, vtrace_lambda):
    bars = {"rho_bar": rho_bar, "c_bar": c_bar, "vtrace_lambda": vtrace_lambda}
    config = replace(SMALL, n_steps=40, gamma=0.9, ent_coef=0.1, **bars)
    impala = learner(IMPALA, env, config, max_episode_steps=15)
    assert impala.collect()
    move(impala)
    buffer, policy = impala.buffer, impala.policy
    assert len(buffer.final_index)
    log_probs, entropy, values = impala.evaluate(impala.rows.obs, impala.rows.actions, None)
    vs, advantages = impala.correct(log_probs, values)

    shape, worth = buffer.rewards.shape, values.detach().numpy().reshape(buffer.rewards.shape)
    with torch.no_grad():
        last = policy.get_value(torch.from_numpy(buffer.last_obs)).numpy()
        cut = policy.get_value(torch.from_numpy(buffer.final_obs)).numpy()
    following = np.vstack((worth[1:], last[None])) * ~buffer.terminated
    following.flat[buffer.final_index] = cut
    log_rhos = log_probs.detach().numpy().reshape(shape) - buffer.log_probs
    assert log_rhos.min() < 0 < log_rhos.max()
    done = buffer.terminated | buffer.truncated
    expected = slow_vtrace(log_rhos, buffer.rewards, worth, following, done, config)
    for got, want in zip((vs, advantages), expected, strict=True):
        np.testing.assert_allclose(got.numpy().reshape(shape), want, rtol=2e-4, atol=2e-4)

    loss, parts = impala_loss(log_probs, entropy, values, vs, advantages, config)
    mean = policy.actor(impala.rows.obs)
    pi = Categorical(logits=mean) if env == "CartPole-v1" else Normal(mean, policy.log_std.exp())
    again, spread = pi.log_prob(impala.rows.actions), pi.entropy()
    if env != "CartPole-v1":
        again, spread = again.sum(1), spread.sum(1)
    want = -(advantages * again).mean() - 0.1 * spread.mean()
    want = want + config.vf_coef * ((values - vs) ** 2).mean()
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(parts[3], loss.detach())


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_both_backends_learn_the_same_from_an_older_policys_rollout(env, mode):
    config = replace(SMALL, n_steps=30, optimizer="adam", ent_coef=0.05)
    how = {"autoreset_mode": mode, "max_episode_steps": 12}
    torches, native = (learner(BOTH[b], env, config, **how) for b in ("torch", "native"))
    native.load_torch(torches.policy)
    native.collect()
    torches.buffer, torches.rows = native.buffer, torches._views(native.buffer)
    assert (mode == "NEXT_STEP") == (native.buffer.n_transitions < 120)
    move(torches)
    native.load_torch(torches.policy)
    mine, theirs = native.update(1.0), torches.update(config.learning_rate)
    for name in ("policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction"):
        key = f"train/{name}"
        assert theirs[key] == pytest.approx(mine[key], rel=1e-3, abs=1e-5), name
    assert theirs["train/approx_kl"] > 1e-4
    for name, weights in native.state().networks.items():
        torch_weights = torches.state().networks[name]
        np.testing.assert_allclose(weights, torch_weights, rtol=1e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize(("kind", "a2c"), [(IMPALA, A2C), (NativeIMPALA, NativeA2C)])
@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_impala_without_lag_is_a2c(kind, a2c, mode):
    shared = {"num_envs": 4, "n_steps": 8, "ent_coef": 0.02, "lr_schedule": "constant"}
    how = {"autoreset_mode": mode, "max_episode_steps": 20}
    one = learner(kind, config=IMPALAConfig(**shared, **IN_TURN), **how)
    other = learner(a2c, config=A2CConfig(**shared), **how)
    for _ in range(10):
        metrics = one.iterate()
        other.iterate()
        assert abs(metrics["train/approx_kl"]) < 1e-6
    for name, weights in one.state().networks.items():
        np.testing.assert_allclose(weights, other.state().networks[name], atol=2e-5, err_msg=name)
