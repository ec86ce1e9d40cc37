"""Properties of A2C alone: one RMSprop step per rollout, its optimizers, its returns."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import rlox.learner
from rlox import checkpoint, make_vec
from rlox.adam import Adam
from rlox.algorithms import A2C, A2CConfig
from rlox.algorithms.a2c import a2c_loss
from rlox.rmsprop import RMSprop
from rlox.trainers import A2CTrainer

SMALL = A2CConfig(num_envs=4)


def learner(env, config=SMALL, seed=0, policy=None):
    return A2C(make_vec(env, config.num_envs), config, seed, policy)


def vector_of(a2c):
    return a2c.optimizer.vector.clone()


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
def test_the_optimizer_is_the_configured_one(name, kind, tf_like):
    optimizer = learner("CartPole-v1", replace(SMALL, optimizer=name, optimizer_eps=0.5)).optimizer
    assert type(optimizer) is kind
    assert optimizer.eps == 0.5
    assert getattr(optimizer, "tf_like", None) is tf_like


def test_with_lambda_one_returns_are_discounted_rewards_and_the_last_value():
    a2c = learner("Pendulum-v1")
    a2c.collect()
    buffer = a2c.buffer
    returns = a2c.values(buffer.last_obs).astype(np.float64)
    for t in reversed(range(5)):  # no episode ends within 5 steps
        returns = buffer.rewards[t] + 0.99 * returns
        np.testing.assert_allclose(buffer.returns[t], returns, rtol=1e-5)


def test_the_explained_variance_is_of_the_values_of_the_rollout(monkeypatch):
    asked, a2c = [], learner("CartPole-v1")
    explained = rlox.learner.explained_variance
    monkeypatch.setattr(
        rlox.learner, "explained_variance", lambda *said: [asked.append(said), explained(*said)][1]
    )
    a2c.iterate()
    ((values, returns),) = asked
    assert np.array_equal(values, a2c.buffer.values.ravel())
    assert np.array_equal(returns, a2c.buffer.returns.ravel())


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"optimizer": "rmsprop_tf"}),
        ("CartPole-v1", {"optimizer": "adam"}),
        ("Pendulum-v1", {}),  # rl-zoo3's: gSDE, both normalised, a schedule
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, env, settings):
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


def test_a_checkpoint_of_another_optimizer_is_rejected():
    a2c, other = learner("CartPole-v1"), learner("CartPole-v1", replace(SMALL, optimizer="adam"))
    a2c.iterate()
    before = vector_of(other)
    with pytest.raises(ValueError, match="optimizer: expected means of gradients beside"):
        other.load_state(a2c.state())
    assert torch.equal(vector_of(other), before)
    other.iterate()
    with pytest.raises(ValueError, match="optimizer: expected zeros, which this optimiser keeps"):
        a2c.load_state(other.state())


def test_a_loss_that_is_not_finite_moves_nothing():
    a2c = learner("CartPole-v1")
    a2c.collect()
    a2c.buffer.advantages[2, 1] = np.inf
    before = vector_of(a2c)
    with pytest.raises(FloatingPointError, match="policy_loss: expected finite numbers"):
        a2c.update(7e-4)
    assert torch.equal(vector_of(a2c), before)
