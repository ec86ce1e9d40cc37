"""Properties of PPO, A2C and IMPALA."""

import random
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.distributions import Categorical, Normal

from rlox import ArgumentError, ArgumentTypeError, NonFiniteError, make_vec
from rlox._nn import runtime as torch_state
from rlox._nn.networks import make_layer
from rlox._nn.optim import Adam, RMSprop
from rlox.algorithms import A2C, PPO, A2CConfig, PPOConfig
from rlox.algorithms.a2c import a2c_loss
from rlox.algorithms.ppo import ppo_loss
from rlox.learners import explained_variance
from rlox.trainers import A2CTrainer, IMPALATrainer, PPOTrainer
from support.envs import Count, Echo, Imitate
from support.off_policy import assert_learners_equal
from support.policies import Coin
from support.rejections import rejects

ALGORITHMS = {
    "PPO": (PPO, PPOConfig(num_envs=4, n_steps=32, batch_size=32, n_epochs=2)),
    "A2C": (A2C, A2CConfig(num_envs=4)),
}
CASES = {
    "Discrete": ("CartPole-v1", {}),
    "Box": ("Pendulum-v1", {}),
    "gSDE": ("Pendulum-v1", {"use_sde": True, "sde_sample_freq": 2}),
    "gSDE, full_std=False": ("Pendulum-v1", {"use_sde": True, "full_std": False}),
}
BOTH = pytest.mark.parametrize("name", ALGORITHMS)


def make_learner(name, env="CartPole-v1", seed=0, policy=None, **settings):
    algorithm, config = ALGORITHMS[name]
    config = replace(config, **settings)
    return algorithm(make_vec(env, config.num_envs), config, seed, policy)


def reference_outputs(weights, obs, actions, case):
    """Return log probabilities, entropies and values from torch's distributions in float64."""

    def net(name, x):
        for i in (0, 2):
            x = torch.tanh(x @ weights[f"{name}.{i}.weight"].T + weights[f"{name}.{i}.bias"])
        return x, x @ weights[f"{name}.4.weight"].T + weights[f"{name}.4.bias"]

    latent, out = net("actor", obs.double())
    value = net("critic", obs.double())[1][:, 0]
    if case == "Discrete":
        pi = Categorical(logits=out)
        return pi.log_prob(actions), pi.entropy(), value
    deviation = weights["log_std"].exp()
    if case.startswith("gSDE"):
        deviation = deviation * torch.ones(64, 1, dtype=torch.float64)
        deviation = ((latent.detach() ** 2) @ (deviation**2) + 1e-6).sqrt()
    pi = Normal(out, deviation)
    return pi.log_prob(actions.double()).sum(1), pi.entropy().sum(1), value


def normalize(advantages):
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def reference_ppo_loss(outputs, batch, config, clip):
    log_prob, entropy, value = outputs
    old_log_prob, old_value, advantages, returns = (x.double() for x in batch[2:6])
    advantages = normalize(advantages)
    ratio = torch.exp(log_prob - old_log_prob)
    gain = torch.min(ratio * advantages, torch.clamp(ratio, 1 - clip, 1 + clip) * advantages)
    if config.clip_coef_vf is not None:
        bound = config.clip_coef_vf
        value = old_value + torch.clamp(value - old_value, -bound, bound)
    error = ((value - returns) ** 2).mean()
    return -gain.mean() + config.vf_coef * error - config.ent_coef * entropy.mean()


def reference_a2c_loss(outputs, batch, config):
    log_prob, entropy, value = outputs
    advantages, returns = (x.double() for x in batch[4:6])
    if config.normalize_advantage:
        advantages = normalize(advantages)
    error = ((value - returns) ** 2).mean()
    gain = (advantages * log_prob).mean() + config.ent_coef * entropy.mean()
    return config.vf_coef * error - gain


@pytest.mark.parametrize("option", [False, True])
@pytest.mark.parametrize("ent_coef", [0.0, 0.1])
@pytest.mark.parametrize("case", CASES)
@BOTH
def test_loss_and_gradients_equal_an_independent_computation(name, case, ent_coef, option):
    env, settings = CASES[case]
    learner = make_learner(name, env, seed=3, learning_rate=1e-3, **settings)
    learner.collect()
    batch = learner.rows.at(torch.arange(len(learner.rows.obs)))  # a copy
    learner.iterate()  # after the update, the ratios of the batch differ from 1
    learner.policy.zero_grad()
    weights = {n: p.detach().double().requires_grad_() for n, p in learner.policy.named_parameters()}
    outputs = reference_outputs(weights, batch.obs, batch.actions, case)
    config = replace(learner.config, ent_coef=ent_coef, vf_coef=0.7)
    if name == "PPO":
        config = replace(config, clip_coef_vf=0.01 if option else None)
        loss, log_ratio, _ = ppo_loss(learner.evaluate, batch, config, 0.01)
        assert (log_ratio.abs() > 0.01).any()
        assert (log_ratio.abs() < 0.01).any()
        expected = reference_ppo_loss(outputs, batch, config, 0.01)
    else:
        config = replace(config, normalize_advantage=option)
        loss, parts = a2c_loss(learner.evaluate, batch, config)
        torch.testing.assert_close(parts[3], loss.detach())
        expected = reference_a2c_loss(outputs, batch, config)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    for key, parameter in learner.policy.named_parameters():
        want = weights[key].grad
        got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        want = torch.zeros_like(weights[key]) if want is None else want
        torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-4, msg=key)


def test_advantages_of_a_single_step_are_not_normalized():
    ppo, a2c = make_learner("PPO"), make_learner("A2C", normalize_advantage=True)
    for learner in (ppo, a2c):
        learner.collect()
    row = torch.tensor([0])
    assert ppo_loss(ppo.evaluate, ppo.rows.at(row), ppo.config, 0.2)[0].isfinite()
    assert a2c_loss(a2c.evaluate, a2c.rows.at(row), a2c.config)[0].isfinite()


IDENTITY = {"gamma": 0.0, "runs_dir": None, "learning_rate": 2e-3}
TRAINERS = {
    "PPO": (PPOTrainer, {"num_envs": 4, "n_steps": 64, "n_epochs": 5, "learning_rate": 3e-3}, -1.0),
    "A2C": (A2CTrainer, {"num_envs": 8}, -2.0),
    "IMPALA": (IMPALATrainer, {"num_envs": 8, "deterministic": True, "max_staleness": 0}, -2.0),
}


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", TRAINERS)
def test_a_discrete_identity_is_learned(name, backend):
    cls, settings, _ = TRAINERS[name]
    with cls(Echo, 0, backend=backend, **{**IDENTITY, **settings}) as trainer:
        trainer.train(5_000)
        assert trainer.evaluate(10)["mean_reward"] == 10.0


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(
    ("name", "use_sde"), [("PPO", False), ("PPO", True), ("A2C", False), ("A2C", True), ("IMPALA", False)]
)
def test_a_continuous_identity_is_learned(name, use_sde, backend):
    cls, settings, log_std = TRAINERS[name]
    settings = {**IDENTITY, **settings, "ent_coef": 0.0, "lr_schedule": "linear"}
    settings |= {"log_std_init": log_std, "use_sde": use_sde}
    with cls(Imitate, 0, backend=backend, **settings) as trainer:
        trainer.train(5_000)
        assert trainer.evaluate(10)["mean_reward"] > -0.2  # zero actions give -3.3


VALUES = {
    "PPO": (40, {"n_steps": 20, "batch_size": 80, "n_epochs": 10, "learning_rate": 2e-2}),
    "A2C": (150, {"n_steps": 20, "learning_rate": 8e-3, "lr_schedule": "linear"}),
}


@BOTH
@pytest.mark.parametrize("terminate", [False, True])
def test_truncations_bootstrap_and_terminations_do_not(terminate, name):
    iterations, settings = VALUES[name]
    env = lambda: Count(limit=10, terminate=terminate, scale=0.0)  # noqa: E731
    learner = make_learner(name, env, gamma=0.9, net_arch=(8,), **settings)
    for i in range(iterations):
        learner.iterate(i / iterations)
    value = float(learner.values(np.zeros((1, 1), np.float32))[0])
    if terminate:  # the mean of the discounted remaining rewards of the 10 steps
        expected = np.mean([(1 - 0.9**remaining) / (1 - 0.9) for remaining in range(1, 11)])
        assert value == pytest.approx(expected, rel=0.1)
    else:
        assert value == pytest.approx(1 / (1 - 0.9), rel=0.03)


@BOTH
def test_schedules_decrease_from_the_setting_to_zero(name):
    clip = {"clip_schedule": "linear", "clip_coef": 0.4} if name == "PPO" else {}
    learner = make_learner(name, lr_schedule="linear", **clip)
    learner.optimizer.step = mock.Mock(wraps=learner.optimizer.step)
    rate = learner.config.learning_rate
    for progress in (0.0, 0.25, 0.75):
        metrics = learner.iterate(progress)
        used = learner.optimizer.step.call_args.args[1]
        assert used == metrics["train/learning_rate"] == pytest.approx(rate * (1 - progress))
        if name == "PPO":
            assert metrics["train/clip_range"] == pytest.approx(0.4 * (1 - progress))
    constant = make_learner(name).iterate(0.5)
    assert constant["train/learning_rate"] == rate
    assert constant.get("train/clip_range", 0.2) == 0.2


@pytest.mark.parametrize(("name", "freq", "times"), [("PPO", -1, 1), ("PPO", 4, 8), ("A2C", -1, 1), ("A2C", 2, 3)])
def test_gsde_draws_a_new_matrix_every_sde_sample_freq_steps(name, freq, times):
    learner = make_learner(name, "Pendulum-v1", use_sde=True, sde_sample_freq=freq)
    calls, reset_noise = [], learner.policy.reset_noise
    learner.policy.reset_noise = lambda rows: (calls.append(rows), reset_noise(rows))
    learner.iterate()
    assert calls == [4] * times


TRAIN = ("entropy_loss", "explained_variance", "learning_rate", "loss", "n_updates", "std")
COMMON_METRICS = {f"train/{name}" for name in (*TRAIN, "value_loss")}
COMMON_METRICS |= {"rollout/ep_rew_mean", "rollout/ep_len_mean", "time/total_timesteps"}


def test_metrics_have_the_names_of_stable_baselines3():
    assert {*make_learner("A2C", "Pendulum-v1").iterate()} == COMMON_METRICS | {"train/policy_loss"}
    names = {*make_learner("PPO", "Pendulum-v1").iterate()}
    special = ("approx_kl", "clip_fraction", "clip_range", "policy_gradient_loss")
    assert names == COMMON_METRICS | {f"train/{name}" for name in special}
    clipped = make_learner("PPO", "Pendulum-v1", clip_coef_vf=0.1).iterate()
    assert {*clipped} - names == {"train/clip_range_vf"}
    assert clipped["train/clip_range_vf"] == 0.1


@BOTH
def test_a_stop_while_collecting_discards_the_iteration(name):
    learner = make_learner(name)
    before = torch_state.module_arrays(learner.policy)
    learner.stop_requested = True
    assert learner.iterate() == {}
    assert learner.timesteps == 0
    np.testing.assert_equal(torch_state.module_arrays(learner.policy), before)
    learner.stop_requested = False
    assert learner.iterate()["time/total_timesteps"] == 4 * learner.config.n_steps


def test_a_stop_before_the_first_update_discards_the_iteration():
    ppo = make_learner("PPO")
    before, collect = torch_state.module_arrays(ppo.policy), ppo.collect

    def collect_and_stop():
        is_complete = collect()
        ppo.stop_requested = True
        return is_complete

    ppo.collect = collect_and_stop
    ppo.iterate()
    assert (ppo.timesteps, ppo.updates) == (0, 0)
    np.testing.assert_equal(torch_state.module_arrays(ppo.policy), before)


@BOTH
def test_predictions_normalize_without_updating_statistics(name):
    learner = make_learner(name, "Pendulum-v1", normalize_obs=True, normalize_reward=True)
    learner.iterate()
    before = {key: x.copy() for key, x in learner.normalizer.state().items()}
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    rows = torch.from_numpy(learner.normalizer.normalize_obs(obs))
    expected = learner.policy.mode(rows).detach().numpy().clip(-2, 2)
    np.testing.assert_allclose(learner.predict(obs), expected, atol=1e-6)
    np.testing.assert_allclose(learner.predict(obs[0]), expected[0], atol=1e-6)
    np.testing.assert_equal(learner.normalizer.state(), before)


@BOTH
@pytest.mark.parametrize("case", CASES)
def test_two_runs_are_equal_and_another_seed_differs(case, name):
    env, settings = CASES[case]

    def run(seed):
        learner = make_learner(name, env, seed, **settings)
        losses = [learner.iterate()["train/loss"] for _ in range(10)]
        return learner.optimizer.vector.clone(), losses

    (first, losses), (again, same), (other, _) = run(1), run(1), run(2)
    assert torch.equal(first, again)
    assert losses == same
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("name", "env", "policy", "parameter", "output"),
    [
        ("PPO", "Pendulum-v1", None, "actor.4.bias", ("actions", 0, 32)),
        ("PPO", "Pendulum-v1", None, "log_std", ("actions", 0, 32)),
        ("PPO", "CartPole-v1", None, "actor.4.bias", ("log_probs", 0, 32)),
        ("PPO", "CartPole-v1", None, "critic.4.bias", ("values", 0, 32)),
        ("PPO", "CartPole-v1", Coin, "actor.weight", ("actor.weight", None, 32)),
        ("A2C", "CartPole-v1", None, "actor.4.bias", ("log_probs", 0, 5)),
    ],
)
def test_nan_in_a_parameter_raises_with_the_affected_output(name, env, policy, parameter, output):
    learner = make_learner(name, env, policy=policy)
    learner.iterate()
    with torch.no_grad():
        dict(learner.policy.named_parameters())[parameter].view(-1)[0] = torch.nan
    with pytest.raises(NonFiniteError) as error:
        learner.iterate()
    assert (error.value.argument, error.value.env, error.value.step) == output


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("PPO", {"use_sde": True}),  # with a Discrete action space
        ("PPO", {"device": "cuda:99"}),
        ("PPO", {"num_envs": 3}),
        ("A2C", {"optimizer": "sgd"}),
        ("A2C", {"optimizer_eps": -1.0}),
    ],
)
def test_invalid_settings_are_rejected(name, settings):
    algorithm, config = ALGORITHMS[name]
    with rejects(ArgumentError, next(iter(settings))):
        algorithm(make_vec("CartPole-v1", 4), replace(config, **settings), 0)


@pytest.mark.parametrize(("name", "loss"), [("PPO", "policy_gradient_loss"), ("A2C", "policy_loss")])
def test_a_non_finite_loss_raises_without_an_update(name, loss):
    learner = make_learner(name, **({"batch_size": 128} if name == "PPO" else {}))
    learner.collect()
    learner.buffer.advantages[2, 1] = np.inf
    before = learner.optimizer.vector.clone()
    with rejects(NonFiniteError, loss):
        learner.update(progress=0.0)
    assert torch.equal(learner.optimizer.vector, before)


@BOTH
def test_the_explained_variance_is_computed_from_rollout_values(name):
    learner = make_learner(name)
    metrics = learner.iterate()
    expected = explained_variance(learner.buffer.values, learner.buffer.returns)
    assert metrics["train/explained_variance"] == pytest.approx(expected, rel=1e-4)


def test_an_iteration_of_a2c_is_a_single_rmsprop_step_on_the_clipped_gradient():
    a2c = make_learner("A2C", max_grad_norm=0.05)
    a2c.collect()
    before = a2c.optimizer.vector.clone()
    gradient = a2c.optimizer.gradient(a2c_loss(a2c.evaluate, a2c.rows, a2c.config)[0])
    assert gradient.norm() > 0.05
    gradient *= 0.05 / gradient.norm()
    a2c.update(progress=0.0)
    change = 7e-4 * gradient / ((0.01 * gradient**2).sqrt() + 1e-5)
    torch.testing.assert_close(before - a2c.optimizer.vector, change, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "cls", "tf_like"), [("rmsprop", RMSprop, False), ("rmsprop_tf", RMSprop, True), ("adam", Adam, None)]
)
def test_a2c_uses_the_configured_optimizer(name, cls, tf_like):
    optimizer = make_learner("A2C", optimizer=name, optimizer_eps=0.5).optimizer
    assert type(optimizer) is cls
    assert optimizer.eps == 0.5
    assert getattr(optimizer, "tf_like", None) is tf_like


@pytest.mark.parametrize(
    ("env", "backend", "settings"),
    [
        ("CartPole-v1", "torch", {}),
        ("CartPole-v1", "torch", {"optimizer": "rmsprop_tf"}),
        ("CartPole-v1", "torch", {"optimizer": "adam"}),
        ("Pendulum-v1", "torch", {}),  # the preset sets gSDE, both normalizations and a schedule
        ("Pendulum-v1", "native", {}),
    ],
)
def test_a_resumed_run_of_a2c_equals_an_uninterrupted_one(tmp_path, env, backend, settings):
    kwargs = {"backend": backend, "runs_dir": None, **settings}
    uninterrupted, stopped = (A2CTrainer(env, 5, **kwargs) for _ in "ab")
    uninterrupted.train(6_400)
    stopped.train(6_400, callbacks=[lambda run, _: run.stop() if run.budget_used >= 3_200 else None])
    assert stopped.timesteps == 3_200
    stopped.save(tmp_path / "half")
    resumed = A2CTrainer.load(tmp_path / "half", runs_dir=None)
    resumed.train()
    assert_learners_equal(uninterrupted.learner, resumed.learner)
    state = uninterrupted.learner.state()
    assert all((state.networks, state.optimizer, state.environment))
    obs = resumed.env.single_observation_space.sample()
    np.testing.assert_array_equal(uninterrupted.predict(obs), resumed.predict(obs))


def test_a_checkpoint_of_another_optimizer_is_rejected():
    a2c, other = make_learner("A2C"), make_learner("A2C", optimizer="adam")
    a2c.iterate()
    before = other.optimizer.vector.clone()
    with rejects(ArgumentError, "optimizer"):
        other.load_state(a2c.state())
    assert torch.equal(other.optimizer.vector, before)
    other.iterate()
    with rejects(ArgumentError, "optimizer"):
        a2c.load_state(other.state())


def test_the_bootstrap_at_a_truncation_is_normalized_like_observations():
    ppo = make_learner("PPO", lambda: Count(limit=10), n_steps=10, normalize_obs=True)
    ppo.collect()
    buffer = ppo.buffer
    assert buffer.final_index.tolist() == [36, 37, 38, 39]  # the last step of each environment
    normalized = ppo.normalizer.normalize_obs(np.full((4, 1), 1000.0))
    np.testing.assert_array_equal(buffer.final_obs, normalized)
    np.testing.assert_array_equal(buffer.final_values[9], ppo.values(normalized))
    delta = buffer.rewards[9] + 0.99 * buffer.final_values[9] - buffer.values[9]
    np.testing.assert_allclose(buffer.advantages[9], delta, rtol=1e-5)


def test_target_kl_limits_the_epochs_of_an_iteration():
    settings = {"learning_rate": 0.1, "n_epochs": 10}
    assert make_learner("PPO", **settings).iterate()["train/n_updates"] == 10
    bounded = make_learner("PPO", **settings, target_kl=0.01).iterate()
    assert bounded["train/n_updates"] < 10
    assert bounded["train/approx_kl"] > 0.015


def test_gradients_are_clipped_to_max_grad_norm():
    ppo, norms = make_learner("PPO", max_grad_norm=1e-3), []
    step = ppo.optimizer.step
    ppo.optimizer.step = lambda g, lr: (norms.append(g.norm().item()), step(g, lr))
    ppo.iterate()
    assert norms == pytest.approx([1e-3] * 8, rel=1e-2)


def test_every_step_is_used_once_in_each_epoch():
    ppo = make_learner("PPO", batch_size=50)
    ppo.loss = mock.Mock(wraps=ppo.loss)
    ppo.iterate()
    batches = [call.args[1] for call in ppo.loss.call_args_list]
    assert [len(batch.obs) for batch in batches] == [50, 50, 28] * 2
    advantages = torch.cat([batch.advantages for batch in batches[:3]]).sort().values
    np.testing.assert_array_equal(advantages, np.sort(ppo.buffer.advantages, axis=None))


def test_logged_losses_are_averaged_as_in_stable_baselines3():
    ppo, results = make_learner("PPO", learning_rate=0.01), []
    loss = ppo.loss
    ppo.loss = lambda *args: (results.append(loss(*args)), results[-1])[1]
    metrics = ppo.iterate()
    parts = np.array([part.numpy() for _, _, part in results])  # 2 epochs of 4 minibatches
    for i, name in enumerate(("policy_gradient_loss", "value_loss", "entropy_loss")):
        assert metrics[f"train/{name}"] == pytest.approx(parts[:, i].mean(), rel=1e-4, abs=1e-7)
    assert metrics["train/loss"] == pytest.approx(parts[-1, 3], rel=1e-6)
    ratios = [log_ratio.double() for _, log_ratio, _ in results]
    kl = [(r.exp() - 1 - r).mean().item() for r in ratios[4:]]  # the last epoch
    assert metrics["train/approx_kl"] == pytest.approx(np.mean(kl), rel=1e-2)
    clipped = [((r.exp() - 1).abs() > 0.2).double().mean().item() for r in ratios]
    assert metrics["train/clip_fraction"] == pytest.approx(np.mean(clipped), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["Discrete", "gSDE"])
def test_the_compiled_loss_equals_the_eager_loss(case):
    env, settings = CASES[case]
    settings = {**settings, "clip_schedule": "linear"}
    plain, compiled = (make_learner("PPO", env, compile=x, **settings) for x in (False, True))
    for progress in (0.0, 0.5, 0.75):
        with torch.compiler.set_stance("fail_on_recompile" if progress else "default"):
            a, b = plain.iterate(progress), compiled.iterate(progress)
        assert a["train/loss"] == pytest.approx(b["train/loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("at", "location"), [(700, ("values", 0, 7)), (1000, ("final_values", 0, 9)), (200, ("last_values", 0, 12))]
)
def test_non_finite_values_raise_with_environment_and_step(at, location):
    class Faulty(Coin):
        def get_value(self, obs):
            return torch.where(obs[:, 0] == at, torch.inf, super().get_value(obs))

        def act(self, obs):  # the loop computes bootstrap values with get_value
            value = self.get_value(obs) if at == 700 else super().get_value(obs)
            return *self.get_action_and_logprob(obs)[:2], value

    ppo = make_learner("PPO", Count, policy=Faulty, n_steps=12)
    with pytest.raises(NonFiniteError) as error:
        ppo.iterate()
    assert (error.value.argument, error.value.env, error.value.step) == location


def test_errors_of_environments_are_raised_by_iterate():
    ppo = make_learner("PPO")
    ppo.policy.act = lambda obs: (torch.full((4,), 7), torch.zeros(4), torch.zeros(4))
    with rejects(ArgumentError, "actions"):
        ppo.iterate()


def test_a_non_finite_gradient_raises_without_an_update_on_a_gpu(monkeypatch):
    ppo = make_learner("PPO")
    ppo.collect()
    loss, zeros, randperm = ppo.loss, torch.zeros, torch.randperm
    ppo.loss = lambda *args: (loss(*args)[0] * torch.nan, *loss(*args)[1:])
    before = torch_state.module_arrays(ppo.policy)
    ppo.device = SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor)
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: zeros(*shape))
    monkeypatch.setattr(torch, "randperm", lambda n, generator, device: randperm(n))
    with rejects(NonFiniteError, "gradient"):
        ppo.update(progress=0.0)
    np.testing.assert_equal(torch_state.module_arrays(ppo.policy), before)


@pytest.mark.parametrize("policy", [None, Coin])
def test_runs_neither_use_nor_change_global_generators(policy):
    runs = []
    for global_seed in (1, 2):
        random.seed(global_seed)
        np.random.seed(global_seed)  # noqa: NPY002
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        ppo = make_learner("PPO", policy=policy)
        for _ in range(3):
            ppo.iterate()
        assert torch.equal(before, torch.get_rng_state())
        runs.append(torch_state.module_arrays(ppo.policy))
    np.testing.assert_equal(*runs)


def test_a_custom_policy_learns():
    ppo = make_learner("PPO", Echo, policy=Coin, gamma=0.0, learning_rate=0.05, n_epochs=10)
    for _ in range(20):
        metrics = ppo.iterate()
    assert metrics["rollout/ep_rew_mean"] > 8  # 3.3 before training
    with rejects(ArgumentTypeError, "policy", got="Coin without mode()"):
        ppo.predict(np.zeros(3))
    assert 0 <= ppo.predict(np.zeros(3), deterministic=False) < 3


PIXELS = spaces.Dict(a=spaces.Box(0, 255, (36, 36, 3), np.uint8), b=spaces.Box(-1, 1, (2,)))


@pytest.mark.parametrize("ortho_init", [True, False])
@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (4,)), PIXELS], ids=["numbers", "pixels"])
def test_built_in_networks_do_not_use_the_global_generator(space, ortho_init, monkeypatch):
    def fail(*args):
        raise AssertionError("the global generator was used")

    class EchoInSpace(Echo):
        observation_space = space

    settings = {"ortho_init": ortho_init, "shared_trunk": True}
    before = torch.get_rng_state()
    monkeypatch.setattr(torch.random, "fork_rng", fail)
    states = [make_learner("PPO", EchoInSpace, seed, **settings).policy.state_dict() for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    names = [name for name in states[0] if name.endswith("weight")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not any(torch.equal(states[0][name], states[2][name]) for name in names)


def test_layers_are_initialised_as_in_torch():
    for cls, sizes, kwargs in ((nn.Linear, (5, 3), {}), (nn.Conv2d, (3, 4), {"kernel_size": 2})):
        torch.manual_seed(3)
        expected = cls(*sizes, **kwargs).state_dict()
        generator = torch.Generator().manual_seed(3)
        state = make_layer(cls, *sizes, generator=generator, **kwargs).state_dict()
        assert all(torch.equal(state[name], expected[name]) for name in expected)
