"""A2C: its loss against one written anew, what it must learn, what it must not do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Normal

import rlox.learner
from rlox import checkpoint, make_vec
from rlox.adam import Adam
from rlox.algorithms import A2C, A2CConfig
from rlox.algorithms.a2c import a2c_loss
from rlox.rmsprop import RMSprop
from rlox.trainers import A2CTrainer
from support.envs import Count, Echo, Imitate

SMALL = A2CConfig(num_envs=4)
KINDS = {
    "Discrete": ("CartPole-v1", SMALL),
    "Box": ("Pendulum-v1", SMALL),
    "gSDE": ("Pendulum-v1", replace(SMALL, use_sde=True, sde_sample_freq=2)),
    "gSDE, one deviation a unit": ("Pendulum-v1", replace(SMALL, use_sde=True, full_std=False)),
}


def learner(env, config=SMALL, seed=0, policy=None):
    return A2C(make_vec(env, config.num_envs), config, seed, policy)


def vector_of(a2c):
    return a2c.optimizer.vector.clone()


def reference_loss(weights, batch, kind, config):
    """A2C's loss once more, from the paper, in float64 and with torch's distributions."""

    def net(name, x, layers):
        for i in layers:
            x = torch.tanh(x @ weights[f"{name}.{i}.weight"].T + weights[f"{name}.{i}.bias"])
        return x

    obs, actions, *_, advantage, target = (
        x if x.dtype == torch.int64 else x.double() for x in batch[:6]
    )
    latent = net("actor", obs, (0, 2))
    out = latent @ weights["actor.4.weight"].T + weights["actor.4.bias"]
    value = net("critic", obs, (0, 2)) @ weights["critic.4.weight"].T + weights["critic.4.bias"]
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
    if config.normalize_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    error = ((value[:, 0] - target) ** 2).mean()
    gain = (advantage * log_prob).mean() + config.ent_coef * entropy.mean()
    return config.vf_coef * error - gain


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("ent_coef", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_equal_an_independent_computation(kind, ent_coef, normalize):
    env, config = KINDS[kind]
    config = replace(config, ent_coef=ent_coef, normalize_advantage=normalize, vf_coef=0.7)
    a2c = learner(env, config, seed=3)
    a2c.iterate()
    a2c.collect()
    loss, parts = a2c_loss(a2c.evaluate, a2c.rows, config)
    loss.backward()

    weights = {
        name: p.detach().double().requires_grad_() for name, p in a2c.policy.named_parameters()
    }
    expected = reference_loss(weights, a2c.rows, kind, config)
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(parts[3], loss.detach())
    for name, parameter in a2c.policy.named_parameters():
        want = weights[name].grad
        torch.testing.assert_close(parameter.grad.double(), want, rtol=1e-3, atol=1e-4, msg=name)


def test_advantages_of_a_single_step_are_not_normalized():
    a2c = learner("CartPole-v1", replace(SMALL, normalize_advantage=True))
    a2c.collect()
    one = a2c.rows.at(torch.tensor([0]))
    assert a2c_loss(a2c.evaluate, one, a2c.config)[0].isfinite()


def test_an_iteration_is_one_step_of_rmsprop_on_the_clipped_gradient_of_all_steps():
    a2c = learner("CartPole-v1", replace(SMALL, max_grad_norm=0.05))
    a2c.collect()
    before = vector_of(a2c)
    gradient = a2c.optimizer.gradient(a2c_loss(a2c.evaluate, a2c.rows, a2c.config)[0])
    assert gradient.norm() > 0.05
    gradient *= 0.05 / gradient.norm()
    a2c.update(7e-4)
    moved = 7e-4 * gradient / ((0.01 * gradient**2).sqrt() + 1e-5)
    torch.testing.assert_close(before - vector_of(a2c), moved, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "kind", "tf_like"),
    [("rmsprop", RMSprop, False), ("rmsprop_tf", RMSprop, True), ("adam", Adam, None)],
)
def test_the_optimizer_is_the_one_asked_for(name, kind, tf_like):
    optimizer = learner("CartPole-v1", replace(SMALL, optimizer=name, optimizer_eps=0.5)).optimizer
    assert type(optimizer) is kind
    assert optimizer.eps == 0.5
    assert getattr(optimizer, "tf_like", None) is tf_like


def test_a_discrete_identity_is_learned():
    how = {"num_envs": 8, "gamma": 0.0, "learning_rate": 2e-3, "runs_dir": None}
    trainer = A2CTrainer(env=Echo, seed=0, backend="torch", **how)
    trainer.train(5_000)
    assert trainer.evaluate(10)["mean_reward"] == 10.0


@pytest.mark.parametrize("sde", [False, True])
def test_a_continuous_identity_is_learned(sde):
    trainer = A2CTrainer(
        env=Imitate,
        seed=0,
        backend="torch",
        num_envs=8,
        learning_rate=2e-3,
        lr_schedule="linear",
        gamma=0.0,
        log_std_init=-2.0,
        use_sde=sde,
        runs_dir=None,
    )
    trainer.train(5_000)
    assert trainer.evaluate(10)["mean_reward"] > -0.2  # 10 steps; doing nothing gives -3.3


def value_of_a_constant_reward(terminate):
    rate = {"learning_rate": 8e-3, "lr_schedule": "linear"}
    config = A2CConfig(num_envs=4, n_steps=20, gamma=0.9, net_arch=(8,), **rate)
    env = lambda: Count(limit=10, terminate=terminate, scale=0.0)  # noqa: E731
    a2c = learner(env, config)
    for i in range(150):
        a2c.iterate(i / 150)
    return float(a2c.values(np.zeros((1, 1), np.float32))[0])


def test_what_follows_a_time_limit_is_worth_something():
    assert value_of_a_constant_reward(terminate=False) == pytest.approx(1 / (1 - 0.9), rel=0.03)


def test_nothing_follows_a_termination():
    # The mean over the 10 places in an episode of the discounted rewards that are left.
    expected = np.mean([(1 - 0.9**left) / (1 - 0.9) for left in range(1, 11)])
    assert value_of_a_constant_reward(terminate=True) == pytest.approx(expected, rel=0.1)


def test_with_lambda_one_returns_are_discounted_rewards_and_the_last_value():
    a2c = learner("Pendulum-v1")
    a2c.collect()
    buffer = a2c.buffer
    returns = a2c.values(buffer.last_obs).astype(np.float64)
    for t in reversed(range(5)):  # no episode ends within 5 steps
        returns = buffer.rewards[t] + 0.99 * returns
        np.testing.assert_allclose(buffer.returns[t], returns, rtol=1e-5)


def test_the_learning_rate_goes_from_the_setting_to_zero():
    a2c = learner("CartPole-v1", replace(SMALL, lr_schedule="linear"))
    used = []
    step = a2c.optimizer.step
    a2c.optimizer.step = lambda gradient, rate: (used.append(rate), step(gradient, rate))
    for progress in (0.0, 0.25, 0.75):
        metrics = a2c.iterate(progress)
        assert used[-1] == metrics["train/learning_rate"]
        assert metrics["train/learning_rate"] == pytest.approx(7e-4 * (1 - progress))
    assert learner("CartPole-v1").iterate(0.5)["train/learning_rate"] == 7e-4


def test_the_explained_variance_is_of_the_values_that_the_policy_said(monkeypatch):
    asked, a2c = [], learner("CartPole-v1")
    explained = rlox.learner.explained_variance
    monkeypatch.setattr(
        rlox.learner, "explained_variance", lambda *said: [asked.append(said), explained(*said)][1]
    )
    a2c.iterate()
    ((values, returns),) = asked
    assert np.array_equal(values, a2c.buffer.values.ravel())
    assert np.array_equal(returns, a2c.buffer.returns.ravel())


def test_metrics_have_stable_baselines3s_names():
    names = set(learner("Pendulum-v1").iterate())
    assert names == {
        "rollout/ep_rew_mean",
        "rollout/ep_len_mean",
        "time/total_timesteps",
        "train/entropy_loss",
        "train/explained_variance",
        "train/learning_rate",
        "train/loss",
        "train/n_updates",
        "train/policy_loss",
        "train/std",
        "train/value_loss",
    }


@pytest.mark.parametrize(("freq", "times"), [(-1, 1), (2, 3)])
def test_gsde_draws_a_new_matrix_every_so_many_steps(freq, times):
    a2c = learner("Pendulum-v1", replace(SMALL, use_sde=True, sde_sample_freq=freq))
    drawn = []
    reset_noise = a2c.policy.reset_noise
    a2c.policy.reset_noise = lambda rows: (drawn.append(rows), reset_noise(rows))
    a2c.iterate()
    assert drawn == [4] * times


@pytest.mark.parametrize("kind", KINDS)
def test_two_runs_are_equal_and_another_seed_is_not(kind):
    def run(seed):
        a2c = learner(*KINDS[kind], seed=seed)
        metrics = [a2c.iterate() for _ in range(30)]
        return vector_of(a2c), [m["train/loss"] for m in metrics]

    (first, losses), (again, same), (other, _) = run(1), run(1), run(2)
    assert torch.equal(first, again)
    assert losses == same
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"optimizer": "rmsprop_tf"}),
        ("CartPole-v1", {"optimizer": "adam"}),
        ("Pendulum-v1", {}),  # rl-zoo3's: gSDE, both normalised, a schedule
    ],
)
def test_a_run_in_two_parts_is_the_run_in_one_byte_for_byte(tmp_path, env, settings):
    def start():
        return A2CTrainer(env=env, seed=5, backend="torch", runs_dir=None, **settings)

    whole, part = start(), start()
    whole.train(6_400)
    part.train(6_400, callbacks=[lambda t, m: t.stop() if t.timesteps >= 3_200 else None])
    assert part.timesteps == 3_200
    part.save(tmp_path / "half")
    resumed = A2CTrainer.load(tmp_path / "half", runs_dir=None)
    resumed.train()
    whole.save(tmp_path / "whole")
    resumed.save(tmp_path / "resumed")
    a, b = (checkpoint.read_checkpoint(tmp_path / name) for name in ("whole", "resumed"))
    assert {*a.members} >= {"networks", "optimizer", "environment"}
    for name, member in a.members.items():
        assert {*member} == {*b.members[name]}
        for key, array in member.items():
            assert array.tobytes() == b.members[name][key].tobytes(), f"{name}: {key}"
    assert a.manifest["counters"] == b.manifest["counters"]
    assert a.manifest["streams"] == b.manifest["streams"]
    obs = resumed.env.single_observation_space.sample()
    np.testing.assert_array_equal(whole.predict(obs), resumed.predict(obs))


def test_a_checkpoint_of_another_optimizer_is_refused():
    a2c, other = learner("CartPole-v1"), learner("CartPole-v1", replace(SMALL, optimizer="adam"))
    a2c.iterate()
    before = vector_of(other)
    with pytest.raises(ValueError, match="optimizer: expected means of gradients beside"):
        other.load_state(a2c.state())
    assert torch.equal(vector_of(other), before)
    other.iterate()
    with pytest.raises(ValueError, match="optimizer: expected zeros, which this optimiser keeps"):
        a2c.load_state(other.state())


def test_stopping_while_collecting_learns_nothing_and_counts_nothing():
    a2c = learner("CartPole-v1")
    before = vector_of(a2c)
    a2c.stopping = True
    assert a2c.iterate() == {}
    assert a2c.timesteps == 0
    assert torch.equal(vector_of(a2c), before)
    a2c.stopping = False
    assert a2c.iterate()["time/total_timesteps"] == 20


@pytest.mark.parametrize(
    ("env", "parameter", "tensor"),
    [
        ("Pendulum-v1", "actor.4.bias", "actions: .* in environment 0 at step 5"),
        ("CartPole-v1", "actor.4.bias", "log_probs: .* in environment 0 at step 5"),
        ("CartPole-v1", "critic.4.bias", "values: .* in environment 0 at step 5"),
    ],
)
def test_nan_in_a_parameter_is_named_where_it_comes_out(env, parameter, tensor):
    a2c = learner(env)
    a2c.iterate()
    with torch.no_grad():
        dict(a2c.policy.named_parameters())[parameter][0] = torch.nan
    with pytest.raises(FloatingPointError, match=f"^{tensor}"):
        a2c.iterate()


def test_a_loss_that_is_not_finite_moves_nothing():
    a2c = learner("CartPole-v1")
    a2c.collect()
    a2c.buffer.advantages[2, 1] = np.inf
    before = vector_of(a2c)
    with pytest.raises(FloatingPointError, match="policy_loss: expected finite numbers"):
        a2c.update(7e-4)
    assert torch.equal(vector_of(a2c), before)


def test_prediction_normalizes_and_changes_no_statistics():
    a2c = learner("Pendulum-v1", replace(SMALL, normalize_obs=True, normalize_reward=True))
    a2c.iterate()
    before = {name: x.copy() for name, x in a2c.normalizer.state().items()}
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    normalized = torch.from_numpy(a2c.normalizer.normalize_obs(obs))
    expected = a2c.policy.mode(normalized).detach().numpy().clip(-2, 2)
    np.testing.assert_allclose(a2c.predict(obs), expected, atol=1e-6)
    np.testing.assert_allclose(a2c.predict(obs[0]), expected[0], atol=1e-6)
    for name, x in before.items():
        np.testing.assert_array_equal(a2c.normalizer.state()[name], x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": 0}, "n_steps: expected an integer of at least 1, got 0"),
        ({"gamma": 1.5}, r"gamma: expected a finite number in \[0, 1\], got 1.5"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a finite number"),
        ({"optimizer": "sgd"}, "optimizer: expected one of rmsprop, rmsprop_tf, adam, got 'sgd'"),
        ({"optimizer_eps": -1.0}, r"optimizer_eps: expected a finite number in \[0"),
        ({"lr_schedule": "cosine"}, "lr_schedule: expected 'constant' or 'linear', got 'cosine'"),
        ({"use_sde": True}, "use_sde: expected a Box action space"),
        ({"num_envs": 3}, "num_envs: expected 4, .*got 3"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        A2C(make_vec("CartPole-v1", 4), replace(SMALL, **settings), 0)
