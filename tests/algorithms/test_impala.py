"""Properties of IMPALA alone: V-trace targets, its loss and its actors."""

import threading
import time
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal

from rlox import make_vec
from rlox.algorithms import A2C, IMPALA, A2CConfig, IMPALAConfig
from rlox.algorithms.impala import impala_loss
from rlox.native import NativeA2C, NativeIMPALA
from rlox.trainers import IMPALATrainer

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
    said = torches.update(config.learning_rate), native.update(1.0)
    for name in ("policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction"):
        key = f"train/{name}"
        assert said[0][key] == pytest.approx(said[1][key], rel=1e-3, abs=1e-5), name
    assert said[0]["train/approx_kl"] > 1e-4
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


def rows(trainer, steps):
    """All metrics of a run but those of time."""
    told = []
    trainer.train(steps, callbacks=[lambda _, metrics: told.append(dict(metrics))])
    return [{n: x for n, x in row.items() if not n.startswith("time/")} for row in told]


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("actors", [1, 2])
def test_lockstep_runs_are_repeatable(backend, actors):
    def trained(seed):
        how = {"num_actors": actors, "lockstep": True, "backend": backend, "runs_dir": None}
        with IMPALATrainer(env="CartPole-v1", seed=seed, **how) as trainer:
            told = rows(trainer, 2_000)
            return told, trainer.learner.state().networks

    (one, networks), (other, same) = trained(1), trained(1)
    np.testing.assert_equal(one, other)
    np.testing.assert_equal(networks, same)
    assert {row["train/policy_lag"] for row in one[actors:]} == {actors}
    assert trained(2)[0] != one


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_actors_stay_within_max_lag_and_every_step_is_counted(backend, env):
    how = {"backend": backend, "runs_dir": None, "num_actors": 2, "max_lag": 3}
    with IMPALATrainer(env=env, seed=1, **how) as trainer:
        told = rows(trainer, 4_000)
        assert all(0 <= row["train/policy_lag"] <= 3 for row in told)
        assert (trainer.timesteps, len(told)) == (4_000, 4_000 // (4 * 5))
        assert trainer.train(1_000)["timesteps"] == 5_000
        waited = trainer.learner.actors.metrics()
        assert waited.keys() == {"time/learner_waited", "time/actors_waited"}


@pytest.mark.parametrize("backend", BOTH)
def test_one_actor_and_predictions_normalise(backend):
    how = {"backend": backend, "runs_dir": None, "normalize_obs": True, "normalize_reward": True}
    with IMPALATrainer(env="Pendulum-v1", seed=1, lockstep=True, **how) as trainer:
        trainer.train(4_000)
        seen = trainer.learner.normalizer.state()
        assert seen["obs_count"] >= 4_000
        assert trainer.predict(np.ones(3)).shape == (1,)


@pytest.mark.parametrize("backend", BOTH)
def test_a_resumed_run_warns_about_lost_rollouts(backend, tmp_path):
    how = {"backend": backend, "runs_dir": None}
    with IMPALATrainer(env="CartPole-v1", seed=1, **how) as trainer:
        trainer.train(2_000)
        trainer.save(tmp_path / "saved")
        networks = trainer.learner.state().networks
    with IMPALATrainer.load(tmp_path / "saved", runs_dir=None) as again:
        np.testing.assert_equal(again.learner.state().networks, networks)
        assert again.timesteps == 2_000
        with pytest.warns(UserWarning, match="rollouts under way are not saved"):
            again.train(1_000)
        assert again.timesteps == 3_000


@pytest.mark.parametrize("backend", BOTH)
def test_a_stopped_run_can_be_continued(backend):
    with IMPALATrainer(env="CartPole-v1", seed=1, backend=backend, runs_dir=None) as trainer:
        threading.Timer(0.3, trainer.stop).start()
        start = time.monotonic()
        trainer.train(10**9)
        assert time.monotonic() - start < 10
        made = trainer.timesteps
        assert made > 0
        trainer.train(1_000)
        assert trainer.timesteps >= made + 1_000


def test_settings_are_those_of_the_config():
    trainer = IMPALATrainer(env="Pendulum-v1", seed=0, num_envs=6, num_actors=3, runs_dir=None)
    assert asdict(trainer.config)["num_actors"] == 3
    assert trainer.config.max_lag is None
    trainer.train(300)
    assert len(trainer.learner.actors.buffers) == 4
    trainer.close()
    assert trainer.learner.actors is None
