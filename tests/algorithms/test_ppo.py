"""PPO: its loss against one written anew, what it must learn, what it must not do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal

from rlox import make_vec, torch_state
from rlox.algorithms import PPO, PPOConfig
from rlox.algorithms.ppo import ppo_loss
from rlox.trainers import PPOTrainer
from support.envs import Count, Echo, Imitate

SMALL = PPOConfig(num_envs=4, n_steps=32, batch_size=32, n_epochs=2)
KINDS = {
    "Discrete": ("CartPole-v1", SMALL),
    "Box": ("Pendulum-v1", SMALL),
    "gSDE": ("Pendulum-v1", replace(SMALL, use_sde=True, sde_sample_freq=4)),
    "gSDE, one deviation a unit": ("Pendulum-v1", replace(SMALL, use_sde=True, full_std=False)),
}


def learner(env, config=SMALL, seed=0, policy=None):
    return PPO(make_vec(env, config.num_envs), config, seed, policy)


def recorded(kind):
    """A batch, and the policy a few updates later, so that its ratios are not 1."""
    ppo = learner(*KINDS[kind], seed=3)
    ppo.collect()
    batch = ppo.rows.at(torch.arange(len(ppo.rows.obs)))  # a copy
    ppo.update(1e-3, 0.2)
    return ppo, batch


def reference_loss(weights, batch, kind, clip, clip_vf, ent_coef, vf_coef):
    """PPO's loss once more, from the papers, in float64 and with torch's distributions."""

    def net(name, x, layers):
        for i in layers:
            x = torch.tanh(x @ weights[f"{name}.{i}.weight"].T + weights[f"{name}.{i}.bias"])
        return x

    obs, actions, old_log_prob, old_value, advantage, target = (
        x if x.dtype == torch.int64 else x.double() for x in batch[:6]
    )
    latent = net("actor", obs, (0, 2))
    out = latent @ weights["actor.4.weight"].T + weights["actor.4.bias"]
    value = net("critic", obs, (0, 2)) @ weights["critic.4.weight"].T + weights["critic.4.bias"]
    value = value[:, 0]
    if kind == "Discrete":
        pi = Categorical(logits=out)
        log_prob, entropy = pi.log_prob(actions), pi.entropy()
    else:
        deviation = weights["log_std"].exp()
        if kind.startswith("gSDE"):
            deviation = deviation * torch.ones(64, 1, dtype=torch.float64)
            deviation = ((latent.detach() ** 2) @ (deviation**2) + 1e-6).sqrt()
        pi = Normal(out, deviation)
        log_prob, entropy = pi.log_prob(actions).sum(1), pi.entropy().sum(1)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = torch.exp(log_prob - old_log_prob)
    gain = torch.min(ratio * advantage, torch.clamp(ratio, 1 - clip, 1 + clip) * advantage)
    if clip_vf is not None:
        value = old_value + torch.clamp(value - old_value, -clip_vf, clip_vf)
    error = ((value - target) ** 2).mean()
    return -gain.mean() + vf_coef * error - ent_coef * entropy.mean()


@pytest.mark.parametrize("clip_vf", [None, 0.01])
@pytest.mark.parametrize("ent_coef", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_equal_an_independent_computation(kind, clip_vf, ent_coef):
    ppo, batch = recorded(kind)
    config = replace(ppo.config, clip_coef_vf=clip_vf, ent_coef=ent_coef, vf_coef=0.7)
    ppo.policy.zero_grad()
    loss, log_ratio, _ = ppo_loss(ppo.evaluate, batch, config, 0.01)
    loss.backward()
    assert (log_ratio.abs() > 0.01).any()
    assert (log_ratio.abs() < 0.01).any()

    weights = {
        name: p.detach().double().requires_grad_() for name, p in ppo.policy.named_parameters()
    }
    expected = reference_loss(weights, batch, kind, 0.01, clip_vf, ent_coef, 0.7)
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    for name, parameter in ppo.policy.named_parameters():
        want = weights[name].grad
        got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        want = torch.zeros_like(weights[name]) if want is None else want
        torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-5, msg=name)


def test_advantages_of_a_single_step_are_not_normalized():
    ppo, batch = recorded("Discrete")
    one = batch.at(torch.tensor([0]))
    assert ppo_loss(ppo.evaluate, one, ppo.config, 0.2)[0].isfinite()


def test_a_discrete_identity_is_learned():
    trainer = PPOTrainer(
        env=Echo,
        seed=0,
        backend="torch",
        num_envs=4,
        n_steps=64,
        learning_rate=3e-3,
        gamma=0.0,
        runs_dir=None,
    )
    trainer.train(3_000)
    assert trainer.evaluate(10)["mean_reward"] == 10.0


@pytest.mark.parametrize("sde", [False, True])
def test_a_continuous_identity_is_learned(sde):
    trainer = PPOTrainer(
        env=Imitate,
        seed=0,
        backend="torch",
        num_envs=4,
        n_steps=64,
        n_epochs=5,
        learning_rate=3e-3,
        gamma=0.0,
        log_std_init=-1.0,
        use_sde=sde,
        runs_dir=None,
    )
    trainer.train(6_000)
    assert trainer.evaluate(10)["mean_reward"] > -0.2  # 10 steps; doing nothing gives -3.3


def value_of_a_constant_reward(terminate):
    config = PPOConfig(
        num_envs=4,
        n_steps=20,
        batch_size=80,
        n_epochs=10,
        gamma=0.9,
        learning_rate=2e-2,
        net_arch=(8,),
    )
    env = lambda: Count(limit=10, terminate=terminate, scale=0.0)  # noqa: E731
    ppo = learner(env, config)
    for _ in range(40):
        ppo.iterate()
    return float(ppo.values(np.zeros((1, 1), np.float32))[0])


def test_what_follows_a_time_limit_is_worth_something():
    assert value_of_a_constant_reward(terminate=False) == pytest.approx(1 / (1 - 0.9), rel=0.03)


def test_nothing_follows_a_termination():
    # The mean over the 10 places in an episode of the discounted rewards that are left.
    expected = np.mean([(1 - 0.9**left) / (1 - 0.9) for left in range(1, 11)])
    assert value_of_a_constant_reward(terminate=True) == pytest.approx(expected, rel=0.1)


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


def test_schedules_go_from_the_setting_to_zero():
    config = replace(SMALL, lr_schedule="linear", clip_schedule="linear", clip_coef=0.4)
    ppo = learner("CartPole-v1", config)
    used = []
    step = ppo.optimizer.step
    ppo.optimizer.step = lambda gradient, rate: (used.append(rate), step(gradient, rate))
    for progress in (0.0, 0.25, 0.75):
        metrics = ppo.iterate(progress)
        assert used[-1] == metrics["train/learning_rate"]
        assert metrics["train/learning_rate"] == pytest.approx(3e-4 * (1 - progress))
        assert metrics["train/clip_range"] == pytest.approx(0.4 * (1 - progress))
    constant = learner("CartPole-v1").iterate(0.5)
    assert (constant["train/learning_rate"], constant["train/clip_range"]) == (3e-4, 0.2)


def test_target_kl_ends_the_updates_of_an_iteration():
    eager = replace(SMALL, learning_rate=0.1, n_epochs=10)
    assert learner("CartPole-v1", eager).iterate()["train/n_updates"] == 10
    bounded = learner("CartPole-v1", replace(eager, target_kl=0.01)).iterate()
    assert bounded["train/n_updates"] < 10
    assert bounded["train/approx_kl"] > 0.015


def test_gradients_are_cut_to_their_joint_norm(monkeypatch):
    norms = []
    ppo = learner("CartPole-v1", replace(SMALL, max_grad_norm=1e-3))
    step = ppo.optimizer.step

    def watched(gradient, learning_rate):
        norms.append(gradient.norm().item())
        step(gradient, learning_rate)

    monkeypatch.setattr(ppo.optimizer, "step", watched)
    ppo.iterate()
    assert norms == pytest.approx([1e-3] * 8, rel=1e-2)


def test_every_step_is_learned_from_once_in_each_epoch(monkeypatch):
    ppo = learner("CartPole-v1", replace(SMALL, batch_size=50))
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


@pytest.mark.parametrize(("freq", "times"), [(-1, 1), (4, 8)])
def test_gsde_draws_a_new_matrix_every_so_many_steps(freq, times):
    ppo = learner("Pendulum-v1", replace(SMALL, use_sde=True, sde_sample_freq=freq))
    drawn = []
    reset_noise = ppo.policy.reset_noise
    ppo.policy.reset_noise = lambda rows: (drawn.append(rows), reset_noise(rows))
    ppo.iterate()
    assert drawn == [4] * times


def test_metrics_have_stable_baselines3s_names():
    names = set(learner("Pendulum-v1").iterate())
    assert names == {
        "rollout/ep_rew_mean",
        "rollout/ep_len_mean",
        "time/total_timesteps",
        "train/approx_kl",
        "train/clip_fraction",
        "train/clip_range",
        "train/entropy_loss",
        "train/explained_variance",
        "train/learning_rate",
        "train/loss",
        "train/n_updates",
        "train/policy_gradient_loss",
        "train/std",
        "train/value_loss",
    }
    clipped = learner("Pendulum-v1", replace(SMALL, clip_coef_vf=0.1)).iterate()
    assert {*clipped} - names == {"train/clip_range_vf"}
    assert clipped["train/clip_range_vf"] == 0.1


def test_metrics_mean_what_they_say():
    ppo = learner("CartPole-v1", replace(SMALL, batch_size=128, n_epochs=1))
    metrics = ppo.iterate()
    assert metrics["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)  # nothing had changed yet
    assert metrics["train/clip_fraction"] == 0.0
    assert metrics["train/entropy_loss"] == pytest.approx(-np.log(2), abs=0.01)
    values, returns = ppo.buffer.values, ppo.buffer.returns
    assert metrics["train/value_loss"] == pytest.approx(
        np.square(values - returns).mean(), rel=1e-4
    )
    explained = 1 - np.var(returns - values) / np.var(returns)
    assert metrics["train/explained_variance"] == pytest.approx(explained, rel=1e-4)


def test_losses_are_means_but_the_last_one_as_stable_baselines3s():
    ppo = learner("CartPole-v1", replace(SMALL, learning_rate=0.01))
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


def test_the_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ppo = learner("CartPole-v1")
        inside = []
        loss = ppo.loss
        ppo.loss = lambda *args: (inside.append(torch.get_num_threads()), loss(*args))[1]
        ppo.iterate()
        assert (set(inside), torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


def test_stopping_while_collecting_learns_nothing_and_counts_nothing():
    ppo = learner("CartPole-v1")
    before = torch_state.module_arrays(ppo.policy)
    ppo.stopping = True
    assert ppo.iterate() == {}
    assert ppo.timesteps == 0
    after = torch_state.module_arrays(ppo.policy)
    assert all(np.array_equal(after[name], array) for name, array in before.items())
    ppo.stopping = False
    assert ppo.iterate()["time/total_timesteps"] == 128


def test_prediction_normalizes_and_changes_no_statistics():
    ppo = learner("Pendulum-v1", replace(SMALL, normalize_obs=True, normalize_reward=True))
    ppo.iterate()
    before = {name: x.copy() for name, x in ppo.normalizer.state().items()}
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    normalized = torch.from_numpy(ppo.normalizer.normalize_obs(obs))
    expected = ppo.policy.mode(normalized).detach().numpy().clip(-2, 2)
    np.testing.assert_allclose(ppo.predict(obs), expected, atol=1e-6)
    np.testing.assert_allclose(ppo.predict(obs[0]), expected[0], atol=1e-6)
    after = ppo.normalizer.state()
    for name, x in before.items():
        np.testing.assert_array_equal(after[name], x)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Discrete", "gSDE"])
def test_the_compiled_loss_is_the_same(kind):
    env, config = KINDS[kind]
    plain, compiled = learner(env, config), learner(env, replace(config, compile=True))
    for progress in (0.0, 0.5):
        a, b = plain.iterate(progress), compiled.iterate(progress)
        assert a["train/loss"] == pytest.approx(b["train/loss"], rel=1e-4)
