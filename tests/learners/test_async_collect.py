"""PPO, A2C and IMPALA with rollouts from actor threads, and the targets of IMPALA."""

import threading
import time

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal

from rlox import ArgumentError, make_vec
from rlox.algorithms import A2C, IMPALA, PPO
from rlox.algorithms._on_policy import Batch
from rlox.algorithms.impala import impala_loss
from rlox.configs import A2CConfig, IMPALAConfig, PPOConfig
from rlox.learners.native_on_policy import NativeA2C, NativeIMPALA, NativePPO
from rlox.trainers import A2CTrainer, IMPALATrainer, PPOTrainer
from support.rejections import rejects

SMALL = {"num_envs": 4, "n_steps": 16, "net_arch": (16,)}
SETTINGS = {
    "ppo": {**SMALL, "batch_size": 32, "n_epochs": 2, "async_collect": True},
    "a2c": {**SMALL, "async_collect": True},
    "impala": SMALL,
}
TRAINERS = {"ppo": PPOTrainer, "a2c": A2CTrainer, "impala": IMPALATrainer}
CONFIGS = {"ppo": PPOConfig, "a2c": A2CConfig, "impala": IMPALAConfig}
CLASSES = {"native": (NativePPO, NativeA2C, NativeIMPALA), "torch": (PPO, A2C, IMPALA)}
LEARNERS = {(n, b): cls for b in CLASSES for n, cls in zip(SETTINGS, CLASSES[b], strict=True)}
BOTH = pytest.mark.parametrize("backend", ["native", "torch"])
PAIR = pytest.mark.parametrize("name", ["ppo", "a2c"])
ALL = pytest.mark.parametrize(("name", "backend"), LEARNERS)


def make_trainer(name, backend="native", env="CartPole-v1", seed=1, **settings):
    kwargs = SETTINGS[name] | settings
    return TRAINERS[name](env=env, seed=seed, backend=backend, runs_dir=None, **kwargs)


def metrics_of_run(trainer, steps):
    """Train and return all metrics except the times."""
    all_metrics = []
    trainer.train(steps, callbacks=[lambda _, metrics: all_metrics.append(dict(metrics))])
    return [{n: x for n, x in row.items() if not n.startswith("time/")} for row in all_metrics]


@BOTH
@PAIR
def test_synchronous_actors_change_nothing(name, backend):
    with make_trainer(name, backend, deterministic=True, max_staleness=0) as asynchronous:
        asynchronous.train(640)
    with make_trainer(name, backend, async_collect=False) as synchronous:
        synchronous.train(640)
    np.testing.assert_equal(asynchronous.learner.state().networks, synchronous.learner.state().networks)


@ALL
def test_deterministic_runs_are_repeatable(name, backend):
    def train_and_record(seed):
        with make_trainer(name, backend, seed=seed, deterministic=True, num_actors=2) as trainer:
            return metrics_of_run(trainer, 1_280), trainer.learner.state().networks

    first, second = train_and_record(1), train_and_record(1)
    np.testing.assert_equal(first, second)
    assert {row["train/policy_staleness"] for row in first[0][2:]} == {2}
    assert train_and_record(2)[0] != first[0]


@BOTH
@PAIR
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_rollouts_are_collected_by_the_policy_of_their_lag(name, backend, env):
    settings = SETTINGS[name] | {"deterministic": True, "max_staleness": 3, "gamma": 0.9}
    config = CONFIGS[name](**settings, gae_lambda=0.8, learning_rate=0.01)
    vec = make_vec(env, 4, max_episode_steps=11)
    learner = LEARNERS[name, backend](vec, config, 1)
    # Policy of the actors. The weights change much at this learning rate.
    policy, all_staleness, differences = PPO(vec, PPOConfig(**SMALL), 0).policy, [], []
    history = [learner.state().networks]
    update = learner.update

    def check_rollout(*args):
        buffer, staleness = learner.buffer, learner.staleness
        all_staleness.append(staleness)
        obs, actions = (torch.from_numpy(x.copy()).flatten(0, 1) for x in (buffer.obs, buffer.actions))
        last, final = torch.from_numpy(buffer.last_obs), torch.from_numpy(buffer.final_obs)
        for age, networks in ((staleness, history[-1 - staleness]), (0, history[-1])):
            policy.load_state_dict({n: torch.from_numpy(x) for n, x in networks.items()})
            with torch.no_grad():
                _, log_probs, _ = policy.get_action_and_logprob(obs, action=actions)
                values, last_values, final_values = map(policy.get_value, (obs, last, final))
            difference = np.abs(log_probs.numpy() - buffer.log_probs.ravel()).max()
            if age == staleness:
                assert difference < 1e-4
                values = values.numpy().reshape(buffer.values.shape)
                np.testing.assert_allclose(values, buffer.values, rtol=1e-4, atol=1e-4)
                following = np.vstack((values[1:], last_values.numpy()[None])) * ~buffer.terminated
                following.flat[buffer.final_index] = final_values.numpy()
                ended = buffer.terminated | buffer.truncated
                expected, after = np.zeros_like(values), np.zeros(4)
                for t in reversed(range(16)):
                    delta = buffer.rewards[t] + 0.9 * following[t] - values[t]
                    after = expected[t] = delta + 0.9 * 0.8 * ~ended[t] * after
                np.testing.assert_allclose(buffer.advantages, expected, rtol=1e-3, atol=1e-3)
            else:
                differences.append(difference)
        return update(*args)

    learner.update = check_rollout
    for _ in range(8):
        learner.iterate()
        history.append(learner.state().networks)
    assert all_staleness == [0, 1, 2, 3, 3, 3, 3, 3]
    assert min(differences) > 1e-3
    learner.stop_actors()


@ALL
def test_lag_stays_within_the_bound_and_every_step_counts(name, backend):
    with make_trainer(name, backend, num_actors=2, max_staleness=3) as trainer:
        metrics = metrics_of_run(trainer, 2_560)
        assert all(0 <= row["train/policy_staleness"] <= 3 for row in metrics)
        assert (trainer.timesteps, len(metrics)) == (2_560, 2_560 // (2 * 16))
        assert trainer.train(640)["timesteps"] == 3_200
        waits = trainer.learner.actors.metrics()
        assert waits.keys() == {"time/learner_wait_seconds", "time/actor_wait_seconds"}


@ALL
def test_actors_and_predictions_normalize_observations(name, backend):
    settings = {"normalize_obs": True, "normalize_reward": True, "env": "Pendulum-v1"}
    with make_trainer(name, backend, deterministic=True, **settings) as trainer:
        trainer.train(1_280)
        assert trainer.learner.normalizer.state()["obs_count"] >= 1_280
        assert trainer.predict(np.ones(3)).shape == (1,)


@ALL
def test_loaded_run_warns_that_unfinished_rollouts_are_lost(name, backend, tmp_path):
    with make_trainer(name, backend) as saved:
        saved.train(640)
        saved.save(tmp_path / "saved")
        networks = saved.learner.state().networks
    with TRAINERS[name].load(tmp_path / "saved", runs_dir=None) as loaded:
        assert loaded.config == saved.config
        np.testing.assert_equal(loaded.learner.state().networks, networks)
        with pytest.warns(UserWarning, match="rollouts under way are not saved"):
            loaded.train(640)
        assert loaded.timesteps == 1_280
        loaded.learner.stop_actors()
        assert loaded.learner.state().unrestorable_reason is not None


LARGE = {"num_envs": 64, "n_steps": 200_000 // 64, "batch_size": 200_000 // 64 * 64, "n_epochs": 1}


@BOTH
@pytest.mark.parametrize(("name", "settings"), [("ppo", LARGE), ("impala", {})])
def test_stop_interrupts_the_wait_for_actors(name, settings, backend):
    with make_trainer(name, backend, env="Acrobot-v1", **settings) as trainer:
        threading.Timer(0.2, trainer.stop).start()
        start = time.monotonic()
        trainer.train(10**9)
        assert time.monotonic() - start < 5
        if name == "impala":  # IMPALA has short iterations
            before = trainer.timesteps
            trainer.train(640)
            assert trainer.timesteps >= before + 640 > 640


@PAIR
@pytest.mark.parametrize("setting", [{"num_actors": 2}, {"max_staleness": 2}, {"deterministic": True}])
def test_settings_of_actors_need_async_collect(name, setting):
    with rejects(ArgumentError, next(iter(setting))):
        make_trainer(name, async_collect=False, **setting)


def synchronous_learner(name, backend, env="CartPole-v1", vec=None, **settings):
    """Return a learner whose actors, if any, are synchronous."""
    synchronous = {"deterministic": True, "max_staleness": 0} if name == "impala" else {}
    config = CONFIGS[name](**{**SMALL, "n_steps": 8, **synchronous, **settings})
    return LEARNERS[name, backend](make_vec(env, 4, **(vec or {})), config, 0)


def slow_vtrace(log_rhos, rewards, values, next_values, dones, config):
    """Return equation 1 of the paper as explicit sums. The value after a termination is 0."""
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


def perturb(impala):
    """Move the weights away from the weights of the actors."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in impala.policy.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize(("rho_bar", "c_bar", "vtrace_lambda"), [(1, 1, 1), (2, 0.5, 0.9)])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_impala_targets_and_loss_equal_an_independent_computation(env, rho_bar, c_bar, vtrace_lambda):
    bars = {"rho_bar": rho_bar, "c_bar": c_bar, "vtrace_lambda": vtrace_lambda}
    settings = {"n_steps": 40, "gamma": 0.9, "ent_coef": 0.1, **bars}
    impala = synchronous_learner("impala", "torch", env, {"max_episode_steps": 15}, **settings)
    config = impala.config
    assert impala.collect()
    perturb(impala)
    buffer, policy = impala.buffer, impala.policy
    assert len(buffer.final_index)
    log_probs, entropy, values = impala.evaluate(impala.rows.obs, impala.rows.actions, None)
    vs, advantages = impala.correct(log_probs, values)

    shape, old_values = buffer.rewards.shape, values.detach().numpy().reshape(buffer.rewards.shape)
    with torch.no_grad():
        last = policy.get_value(torch.from_numpy(buffer.last_obs)).numpy()
        final = policy.get_value(torch.from_numpy(buffer.final_obs)).numpy()
    following = np.vstack((old_values[1:], last[None])) * ~buffer.terminated
    following.flat[buffer.final_index] = final
    log_rhos = log_probs.detach().numpy().reshape(shape) - buffer.log_probs
    assert log_rhos.min() < 0 < log_rhos.max()
    done = buffer.terminated | buffer.truncated
    expected = slow_vtrace(log_rhos, buffer.rewards, old_values, following, done, config)
    for got, want in zip((vs, advantages), expected, strict=True):
        np.testing.assert_allclose(got.numpy().reshape(shape), want, rtol=2e-4, atol=2e-4)

    loss, parts = impala_loss(log_probs, entropy, values, vs, advantages, config)
    mean = policy.actor(impala.rows.obs)
    pi = Categorical(logits=mean) if env == "CartPole-v1" else Normal(mean, policy.log_std.exp())
    new_log_probs, new_entropy = pi.log_prob(impala.rows.actions), pi.entropy()
    if env != "CartPole-v1":
        new_log_probs, new_entropy = new_log_probs.sum(1), new_entropy.sum(1)
    want = -(advantages * new_log_probs).mean() - 0.1 * new_entropy.mean()
    want = want + config.vf_coef * ((values - vs) ** 2).mean()
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(parts[3], loss.detach())


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_both_backends_update_equally_from_an_older_policys_rollout(env, mode):
    limits = {"autoreset_mode": mode, "max_episode_steps": 12}
    settings = {"n_steps": 30, "optimizer": "adam", "ent_coef": 0.05}
    native, torch_learner = (synchronous_learner("impala", b, env, limits, **settings) for b in ("native", "torch"))
    native.load_torch(torch_learner.policy)
    native.collect()
    torch_learner.buffer, torch_learner.rows = native.buffer, Batch.views_of(native.buffer, masked=False)
    assert (mode == "NEXT_STEP") == (native.buffer.n_transitions < 120)
    perturb(torch_learner)
    native.load_torch(torch_learner.policy)
    native_metrics, torch_metrics = native.update(progress=0.0), torch_learner.update(progress=0.0)
    for name in ("policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction"):
        key = f"train/{name}"
        assert torch_metrics[key] == pytest.approx(native_metrics[key], rel=1e-3, abs=1e-5), name
    assert torch_metrics["train/approx_kl"] > 1e-4
    for name, weights in native.state().networks.items():
        torch_weights = torch_learner.state().networks[name]
        np.testing.assert_allclose(weights, torch_weights, rtol=1e-3, atol=2e-4, err_msg=name)


@BOTH
@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_impala_without_lag_is_a2c(mode, backend):
    limits = {"autoreset_mode": mode, "max_episode_steps": 20}
    settings = {"ent_coef": 0.02, "lr_schedule": "constant", "net_arch": (64, 64)}
    impala, a2c = (synchronous_learner(name, backend, vec=limits, **settings) for name in ("impala", "a2c"))
    for _ in range(10):
        metrics = impala.iterate()
        a2c.iterate()
        assert abs(metrics["train/approx_kl"]) < 1e-6
    for name, weights in impala.state().networks.items():
        np.testing.assert_allclose(weights, a2c.state().networks[name], atol=2e-5, err_msg=name)
