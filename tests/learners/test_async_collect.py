"""PPO, A2C and IMPALA whose rollouts come from actors in threads, and the targets of IMPALA."""

import threading
import time

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal

from rlox import ArgumentError, make_vec
from rlox.algorithms import A2C, IMPALA, PPO
from rlox.algorithms.impala import impala_loss
from rlox.configs import A2CConfig, IMPALAConfig, PPOConfig
from rlox.learners.native_on_policy import NativeA2C, NativeIMPALA, NativePPO
from rlox.trainers import A2CTrainer, IMPALATrainer, PPOTrainer
from support.refusals import refuses

SMALL = {"num_envs": 4, "n_steps": 16, "net_arch": (16,)}
SETTINGS = {
    "ppo": {**SMALL, "batch_size": 32, "n_epochs": 2, "async_collect": True},
    "a2c": {**SMALL, "async_collect": True},
    "impala": SMALL,
}
TRAINERS = {"ppo": PPOTrainer, "a2c": A2CTrainer, "impala": IMPALATrainer}
CONFIGS = {"ppo": PPOConfig, "a2c": A2CConfig, "impala": IMPALAConfig}
CLASSES = {"native": (NativePPO, NativeA2C, NativeIMPALA), "torch": (PPO, A2C, IMPALA)}
LEARNERS = {(n, b): kind for b in CLASSES for n, kind in zip(SETTINGS, CLASSES[b], strict=True)}
BOTH = pytest.mark.parametrize("backend", ["native", "torch"])
PAIR = pytest.mark.parametrize("name", ["ppo", "a2c"])
ALL = pytest.mark.parametrize(("name", "backend"), LEARNERS)


def trainer(name, backend="native", env="CartPole-v1", seed=1, **settings):
    how = SETTINGS[name] | settings
    return TRAINERS[name](env=env, seed=seed, backend=backend, runs_dir=None, **how)


def rows(trainer, steps):
    """Return all metrics of a run except the times."""
    metrics_of_all = []
    trainer.train(steps, callbacks=[lambda _, metrics: metrics_of_all.append(dict(metrics))])
    return [{n: x for n, x in row.items() if not n.startswith("time/")} for row in metrics_of_all]


@BOTH
@PAIR
def test_actors_that_take_turns_change_nothing(name, backend):
    with trainer(name, backend, deterministic=True, max_staleness=0) as one:
        one.train(640)
    with trainer(name, backend, async_collect=False) as other:
        other.train(640)
    np.testing.assert_equal(one.learner.state().networks, other.learner.state().networks)


@ALL
def test_lockstep_runs_are_repeatable(name, backend):
    def trained(seed):
        with trainer(name, backend, seed=seed, deterministic=True, num_actors=2) as one:
            return rows(one, 1_280), one.learner.state().networks

    first, again = trained(1), trained(1)
    np.testing.assert_equal(first, again)
    assert {row["train/policy_staleness"] for row in first[0][2:]} == {2}
    assert trained(2)[0] != first[0]


@BOTH
@PAIR
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_rollouts_are_collected_by_the_policy_of_their_lag(name, backend, env):
    how = SETTINGS[name] | {"deterministic": True, "max_staleness": 3, "gamma": 0.9}
    config = CONFIGS[name](**how, gae_lambda=0.8, learning_rate=0.01)
    vec = make_vec(env, 4, max_episode_steps=11)
    learner = LEARNERS[name, backend](vec, config, 1)
    # The policy that acted; weights move far at this learning rate.
    judge, lags, moved = PPO(vec, PPOConfig(**SMALL), 0).policy, [], []
    history = [learner.state().networks]
    update = learner.update

    def looking(*args):
        buffer, lag = learner.buffer, learner.lag
        lags.append(lag)
        obs, actions = (
            torch.from_numpy(x.copy()).flatten(0, 1) for x in (buffer.obs, buffer.actions)
        )
        last, cut = torch.from_numpy(buffer.last_obs), torch.from_numpy(buffer.final_obs)
        for age, networks in ((lag, history[-1 - lag]), (0, history[-1])):
            judge.load_state_dict({n: torch.from_numpy(x) for n, x in networks.items()})
            with torch.no_grad():
                _, log_probs, _ = judge.get_action_and_logprob(obs, action=actions)
                values, last_values, final_values = map(judge.get_value, (obs, last, cut))
            off = np.abs(log_probs.numpy() - buffer.log_probs.ravel()).max()
            if age == lag:
                assert off < 1e-4
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
                moved.append(off)
        return update(*args)

    learner.update = looking
    for _ in range(8):
        learner.iterate()
        history.append(learner.state().networks)
    assert lags == [0, 1, 2, 3, 3, 3, 3, 3]
    assert min(moved) > 1e-3
    learner.stop_actors()


@ALL
def test_lag_stays_within_the_bound_and_every_step_counts(name, backend):
    with trainer(name, backend, num_actors=2, max_staleness=3) as one:
        metrics = rows(one, 2_560)
        assert all(0 <= row["train/policy_staleness"] <= 3 for row in metrics)
        assert (one.timesteps, len(metrics)) == (2_560, 2_560 // (2 * 16))
        assert one.train(640)["timesteps"] == 3_200
        waits = one.learner.actors.metrics()
        assert waits.keys() == {"time/learner_wait_seconds", "time/actor_wait_seconds"}


@ALL
def test_one_actor_and_predictions_normalize(name, backend):
    how = {"normalize_obs": True, "normalize_reward": True, "env": "Pendulum-v1"}
    with trainer(name, backend, deterministic=True, **how) as one:
        one.train(1_280)
        assert one.learner.normalizer.state()["obs_count"] >= 1_280
        assert one.predict(np.ones(3)).shape == (1,)


@ALL
def test_loaded_run_warns_that_rollouts_under_way_are_lost(name, backend, tmp_path):
    with trainer(name, backend) as one:
        one.train(640)
        one.save(tmp_path / "saved")
        networks = one.learner.state().networks
    with TRAINERS[name].load(tmp_path / "saved", runs_dir=None) as again:
        assert again.config == one.config
        np.testing.assert_equal(again.learner.state().networks, networks)
        with pytest.warns(UserWarning, match="rollouts under way are not saved"):
            again.train(640)
        assert again.timesteps == 1_280
        again.learner.stop_actors()
        assert again.learner.state().unrestorable_reason is not None


LARGE = {"num_envs": 64, "n_steps": 200_000 // 64, "batch_size": 200_000 // 64 * 64, "n_epochs": 1}


@BOTH
@pytest.mark.parametrize(("name", "settings"), [("ppo", LARGE), ("impala", {})])
def test_stop_ends_the_wait_for_actors(name, settings, backend):
    with trainer(name, backend, env="Acrobot-v1", **settings) as one:
        threading.Timer(0.2, one.stop).start()
        start = time.monotonic()
        one.train(10**9)
        assert time.monotonic() - start < 5
        if name == "impala":  # whose iterations are short
            before = one.timesteps
            one.train(640)
            assert one.timesteps >= before + 640 > 640


@PAIR
@pytest.mark.parametrize(
    "setting", [{"num_actors": 2}, {"max_staleness": 2}, {"deterministic": True}]
)
def test_settings_of_actors_need_async_collect(name, setting):
    with refuses(ArgumentError, next(iter(setting))):
        trainer(name, async_collect=False, **setting)


def in_turn(name, backend, env="CartPole-v1", vec=None, **settings):
    """Return a learner whose actors, if any, take turns with it."""
    turns = {"deterministic": True, "max_staleness": 0} if name == "impala" else {}
    config = CONFIGS[name](**{**SMALL, "n_steps": 8, **turns, **settings})
    return LEARNERS[name, backend](make_vec(env, 4, **(vec or {})), config, 0)


def slow_vtrace(log_rhos, rewards, values, next_values, dones, config):
    """Compute equation 1 of the paper, sum after sum; the value after a termination is 0."""
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
    """Move the weights away from those that acted."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in impala.policy.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize(("rho_bar", "c_bar", "vtrace_lambda"), [(1, 1, 1), (2, 0.5, 0.9)])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_targets_and_loss_equal_an_independent_computation(env, rho_bar, c_bar, vtrace_lambda):
    bars = {"rho_bar": rho_bar, "c_bar": c_bar, "vtrace_lambda": vtrace_lambda}
    how = {"n_steps": 40, "gamma": 0.9, "ent_coef": 0.1, **bars}
    impala = in_turn("impala", "torch", env, {"max_episode_steps": 15}, **how)
    config = impala.config
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
    limits = {"autoreset_mode": mode, "max_episode_steps": 12}
    how = {"n_steps": 30, "optimizer": "adam", "ent_coef": 0.05}
    native, torches = (in_turn("impala", b, env, limits, **how) for b in ("native", "torch"))
    native.load_torch(torches.policy)
    native.collect()
    torches.buffer, torches.rows = native.buffer, torches._views(native.buffer)
    assert (mode == "NEXT_STEP") == (native.buffer.n_transitions < 120)
    move(torches)
    native.load_torch(torches.policy)
    mine, theirs = native.update(progress=0.0), torches.update(progress=0.0)
    for name in ("policy_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction"):
        key = f"train/{name}"
        assert theirs[key] == pytest.approx(mine[key], rel=1e-3, abs=1e-5), name
    assert theirs["train/approx_kl"] > 1e-4
    for name, weights in native.state().networks.items():
        torch_weights = torches.state().networks[name]
        np.testing.assert_allclose(weights, torch_weights, rtol=1e-3, atol=2e-4, err_msg=name)


@BOTH
@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP"])
def test_impala_without_lag_is_a2c(mode, backend):
    limits = {"autoreset_mode": mode, "max_episode_steps": 20}
    how = {"ent_coef": 0.02, "lr_schedule": "constant", "net_arch": (64, 64)}
    one, other = (in_turn(name, backend, vec=limits, **how) for name in ("impala", "a2c"))
    for _ in range(10):
        metrics = one.iterate()
        other.iterate()
        assert abs(metrics["train/approx_kl"]) < 1e-6
    for name, weights in one.state().networks.items():
        np.testing.assert_allclose(weights, other.state().networks[name], atol=2e-5, err_msg=name)
