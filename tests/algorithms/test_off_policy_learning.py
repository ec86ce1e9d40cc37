"""DQN, SAC and TD3 solve small environments and explore as configured."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import nn

from rlox import ArgumentError, ArgumentTypeError, make_vec
from rlox._rlox import network_backends
from rlox.configs import PPOConfig
from rlox.interchange import to_arrow
from rlox.learners.native_on_policy import NativePPO
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer
from support.envs import Count, Echo, Imitate
from support.off_policy import (
    BACKENDS,
    NORMALIZED,
    ImitateDict,
    Numbered,
    make_learner,
    run_iterations,
    vector,
)
from support.refusals import refuses

EVERY_BACKEND = [*network_backends(), "torch"]
BOTH = pytest.mark.parametrize("backend", BACKENDS)
SMALL = {"learning_starts": 0, "batch_size": 8, "buffer_size": 200, "net_arch": (8,)}
FAST = {"learning_rate": 3e-3, "gamma": 0.0, "learning_starts": 100, "runs_dir": None}


def discrete_identity(backend, steps=1_000, **settings):
    """Return the mean return after training: 10 at best, a third of it by chance."""
    given = {**FAST, "train_freq": 1, "target_update_interval": 50, **settings}
    trainer = DQNTrainer(lambda: Echo(start=3), 0, backend=backend, **given)
    trainer.train(steps)
    assert trainer.learner.backend == backend
    return trainer.evaluate(10)["mean_reward"]


@pytest.mark.parametrize(
    ("settings", "backend"),
    [
        *(({}, backend) for backend in EVERY_BACKEND),
        ({"double": True, "dueling": True}, "native"),
        ({"prioritized": True, "num_envs": 4, "gradient_steps": -1}, "torch"),
        (NORMALIZED, "native"),
    ],
)
def test_a_discrete_identity_is_learned(settings, backend):
    assert discrete_identity(backend, **settings) == 10.0


@BOTH
def test_a_discrete_identity_is_not_reached_without_learning(backend):
    assert discrete_identity(backend, 200, learning_rate=0.0) < 7


def continuous_identity(trainer, backend, steps=1_000, env=Imitate, **settings):
    """Return the mean return after training: 0 at best, -3.3 for doing nothing."""
    how = {**FAST, "net_arch": (32, 32), "batch_size": 64, **settings}
    one = trainer(env, 0, backend=backend, **how)
    one.train(steps)
    assert one.learner.backend == backend
    return one.evaluate(10)["mean_reward"]


@pytest.mark.parametrize(
    ("trainer", "settings", "backend"),
    [
        *((SACTrainer, {"ent_coef": 0.01}, backend) for backend in EVERY_BACKEND),
        (SACTrainer, {"ent_coef": "auto_0.1", "num_envs": 2, "utd_ratio": 1.0}, "native"),
        (SACTrainer, {"ent_coef": 0.01, "use_sde": True, "log_std_init": -1.0}, "native"),
        *((TD3Trainer, {}, backend) for backend in EVERY_BACKEND),
        (TD3Trainer, NORMALIZED, "native"),
        (TD3Trainer, {"env": ImitateDict}, "torch"),
    ],
)
def test_a_continuous_identity_is_learned(trainer, settings, backend):
    assert continuous_identity(trainer, backend, **settings) > (-0.3 if "env" in settings else -0.5)


@BOTH
@pytest.mark.parametrize("trainer", [SACTrainer, TD3Trainer])
def test_a_continuous_identity_is_not_reached_without_learning(trainer, backend):
    assert continuous_identity(trainer, backend, 200, learning_rate=0.0) < -2


class Bars(Echo):
    """Observe an image of a bar, whose direction is the rewarded action."""

    def __init__(self):
        super().__init__(2)
        self.observation_space = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)

    def _observe(self):
        self.place = int(self.np_random.integers(2))
        image = np.zeros((1, 36, 36), np.uint8)
        image[0, 16:20] = 255
        return image if self.place else image.transpose(0, 2, 1)


def test_images_are_stored_as_bytes_and_learned_from():
    given = {**FAST, "learning_rate": 1e-3, "train_freq": 4, "buffer_size": 1000}
    trainer = DQNTrainer(Bars, 0, **given, target_update_interval=50)
    trainer.train(500)
    assert trainer.evaluate(5)["mean_reward"] == 10.0
    assert trainer.learner.replay.buffer.sample(1)["obs"].dtype == np.uint8


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, obs, actions):
        return self.net(torch.cat([obs, actions], 1)).T


class Own(nn.Module):
    """An actor and one critic, for SAC and TD3."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh())
        self.actor, self.critic = net, Critic()

    def mode(self, obs):
        return self.actor(obs)

    def get_action_and_logprob(self, obs):
        mean = self.actor(obs)
        action = (mean + 0.1 * torch.randn_like(mean)).clamp(-1, 1)
        return action, torch.zeros(len(obs))


@pytest.mark.parametrize("trainer", [SACTrainer, TD3Trainer])
def test_a_custom_policy_learns_and_is_saved(trainer, tmp_path):
    settings = {"ent_coef": 0.0} if trainer is SACTrainer else {}
    made = trainer(Imitate, 0, policy=Own, batch_size=64, **FAST, **settings)
    made.train(1_000)
    assert made.evaluate(10)["mean_reward"] > -0.5
    made.save(tmp_path / "own")
    again = trainer.load(tmp_path / "own", env=Imitate, policy=Own, runs_dir=None)
    assert again.evaluate(3)["returns"] == made.evaluate(3)["returns"]


def test_gsde_methods_are_not_called_without_use_sde():
    class Exploring(Own):
        def explore(self, obs):
            raise AssertionError("called without use_sde")

        one_matrix = explore

    SACTrainer(Imitate, 0, policy=Exploring, batch_size=8, **FAST).train(120)


def test_a_custom_q_network_learns():
    def network(observation_space, action_space):
        return nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, int(action_space.n)))

    trainer = DQNTrainer(Echo, 0, policy=network, train_freq=1, target_update_interval=50, **FAST)
    trainer.train(1_000)
    assert trainer.evaluate(10)["mean_reward"] == 10.0


def test_custom_feature_extractors_are_trained():
    class Squares(nn.Module):
        def __init__(self, space):
            super().__init__()
            self.layer, self.features_dim = nn.Linear(2, 8), 8

        def forward(self, obs):
            return self.layer(torch.cat([obs, obs**2], 1)).relu()

    for trainer in (SACTrainer, TD3Trainer):
        made = trainer(Imitate, 0, features_extractor=Squares, net_arch=(8,), **FAST)
        before = made.learner._networks()
        made.train(110)
        after = made.learner._networks()
        for name in ("critic.features.layer.weight", "critic_target.features.layer.weight"):
            assert (before[name] != after[name]).any()


@pytest.mark.parametrize(
    ("trainer", "policy", "error", "got"),
    [
        (SACTrainer, nn.Linear(1, 1), ArgumentTypeError, "Linear"),
        (TD3Trainer, lambda *_: nn.Linear(1, 1), ArgumentTypeError, "Linear"),
        (DQNTrainer, nn.Linear(3, 2), ArgumentError, "(2, 2) and torch.float32"),
        (DQNTrainer, nn.Linear(4, 3), ArgumentError, "Linear, which failed with RuntimeError"),
    ],
)
def test_incomplete_policies_are_rejected(trainer, policy, error, got):
    with refuses(error, "policy") as raised:
        trainer(Echo if trainer is DQNTrainer else Imitate, policy=policy, runs_dir=None)
    assert raised.value.got.startswith(got)


@BOTH
def test_the_value_continues_beyond_a_truncation(backend):
    def value(terminate):
        env = lambda: Count(limit=10, terminate=terminate, scale=0.0)  # noqa: E731
        settings = {"learning_starts": 100, "gamma": 0.8, "learning_rate": 1e-2, "batch_size": 32}
        settings |= {"target_update_interval": 20, "train_freq": 1, "exploration_fraction": 0.0}
        one = make_learner("DQN", backend, 1, env, **settings)
        run_iterations(one, 700)
        return one

    def best(one):
        networks = one.state().networks
        hidden = np.maximum(networks["q_net.0.bias"], 0)
        return (networks["q_net.2.weight"] @ hidden + networks["q_net.2.bias"]).max()

    assert best(value(terminate=False)) == pytest.approx(1 / (1 - 0.8), rel=0.05)
    # Huber's gradients sum to 0: 0.9 (1 + 0.8 v - v) for steps, -0.1 for the last of ten.
    assert best(value(terminate=True)) == pytest.approx((1 - 0.1 / 0.9) / 0.2, rel=0.05)


@pytest.mark.parametrize("env", [Imitate, ImitateDict])
def test_a_gsde_matrix_stays_until_the_next_one(env):
    one = make_learner("SAC", env=env, **SMALL, num_envs=3, use_sde=True)
    one.iterate()
    rows = one.stepper.obs
    first, second = (one.explore(rows, None) for _ in "ab")
    np.testing.assert_array_equal(first, second)
    one.begin()
    assert (one.explore(rows, None) != first).all()


@pytest.mark.parametrize("use_sde", [False, True])
def test_an_update_samples_with_one_gsde_matrix(use_sde):
    one = make_learner("SAC", env=Imitate, **SMALL, use_sde=use_sde, log_std_init=0.0)
    run_iterations(one, 8)
    sample, sampled = one.policy.get_action_and_logprob, []
    one.policy.get_action_and_logprob = lambda obs: sampled.append(sample(obs)) or sampled[-1]
    batch = one.replay.sample(np.random.default_rng(0), None)
    for _ in range(2):
        one.update(batch._replace(next_obs=batch.obs.clone()), 0.0)
    now, following, later, _ = (actions.detach() for actions, _ in sampled)
    assert torch.equal(now, following) == use_sde
    assert not torch.equal(now, later)
    assert sampled[0][1].requires_grad
    assert not torch.equal(sample(batch.obs)[0], sample(batch.obs)[0])


class Constant(Numbered):
    """`Numbered` with a constant observation."""

    obs = np.float32([0.5, -0.5])

    def reset(self, *, seed=None, options=None):
        return self.obs, super().reset()[1]

    def step(self, action):
        return self.obs, *super().step(np.array(action))[1:]


WARMUP = {"use_sde": True, "use_sde_at_warmup": True, "learning_starts": 1000, "train_freq": 8}
WARMUP |= {"log_std_init": 0.0, "sde_sample_freq": 3}


@BOTH
def test_sde_sample_freq_does_not_count_steps_that_only_reset(backend):
    env = Constant(limit=5)
    one = make_learner("SAC", backend, 1, vector(AutoresetMode.NEXT_STEP, env), **WARMUP)
    run_iterations(one, 5)
    # The same observation and matrix give the same action, as nothing is learned.
    lengths = [len(list(same)) for _, same in itertools.groupby(a.item() for a in env.sent)]
    assert lengths == [3, 3, 2] * 5


def native_sac(env):
    return make_learner("SAC", "native", 1, env, **WARMUP)


def native_ppo(env):
    settings = {"num_envs": 1, "n_steps": 8, "batch_size": 8}
    return NativePPO(make_vec(env), PPOConfig(**settings, use_sde=True, log_std_init=-1.0), 1)


@pytest.mark.parametrize("make", [native_sac, native_ppo])
def test_predictions_of_a_native_learner_do_not_change_its_exploration(make):
    class Asking(Constant):
        def step(self, action):
            self.prediction = self.learner.predict(self.obs, deterministic=False)
            return super().step(action)

    alone, asking = Constant(limit=5), Asking(limit=5)
    for env in (alone, asking):
        env.learner = make(vector(AutoresetMode.NEXT_STEP, env))
        run_iterations(env.learner, 3)
    assert asking.prediction.shape == (1,)
    np.testing.assert_array_equal(asking.sent, alone.sent)


@BOTH
@pytest.mark.parametrize("use_sde", [False, True])
def test_samples_depend_only_on_the_seed_and_the_weights(use_sde, backend, tmp_path):
    how = {"backend": backend, "use_sde": use_sde, "runs_dir": None, **SMALL}
    trainer = SACTrainer(Imitate, 1, **how)
    trainer.train(10)
    trainer.save(tmp_path / "saved")
    again = SACTrainer.load(tmp_path / "saved", env=Imitate, runs_dir=None)
    runs = [x.evaluate(1, seed=5, deterministic=False)["returns"] for x in (trainer, again, again)]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0] != trainer.evaluate(1, seed=5)["returns"]


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("train_freq", [1, 8])
def test_exploration_decreases_with_every_step(train_freq, num_envs):
    how = {"train_freq": train_freq, "num_envs": num_envs, "exploration_fraction": 0.5}
    how |= {"exploration_final_eps": 0.05, "gradient_steps": 1}
    trainer = DQNTrainer("CartPole-v1", 1, backend="torch", runs_dir=None, **SMALL, **how)
    one, rates = trainer.learner, []
    explored = one.explore_actions
    one.explore_actions = lambda *args: (
        rates.append(one.exploration_rate(one.progress)) or explored(*args)
    )
    for _ in range(2):  # schedules begin again in each call of train
        rates.clear()
        trainer.train(64)
        # From 1 to 0.05 in the first 32 steps of all environments.
        done = np.arange(0, 64, num_envs) / 32
        np.testing.assert_allclose(rates, 1 - 0.95 * done.clip(max=1), rtol=1e-6)


def test_exploration_is_constant_in_an_iteration_without_growth():
    exploration = {"exploration_fraction": 0.5, "exploration_final_eps": 0.1}
    one, progress = make_learner("DQN", **SMALL, train_freq=5, **exploration), []
    explored = one.explore_actions
    one.explore_actions = lambda *args: progress.append(one.progress) or explored(*args)
    rates = [one.iterate(p)["rollout/exploration_rate"] for p in (0.0, 0.25, 0.5, 1.0)]
    assert rates == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert progress[5:10] == [0.25] * 5
    one.progress_per_step = 0.5
    one.iterate(0.25)
    assert progress[20:] == [0.25, 0.75, 1, 1, 1]


@BOTH
@pytest.mark.parametrize("env", ["CartPole-v1", lambda: gym.make("CartPole-v1")])
def test_exploration_ends_within_an_iteration(env, backend):
    how = {**SMALL, "buffer_size": 1000, "train_freq": 800, "exploration_fraction": 0.5}
    how |= {"exploration_final_eps": 0.0, "runs_dir": None, "backend": backend}
    how |= {"gradient_steps": 1}
    trainer, fresh = (DQNTrainer(env, 1, **how) for _ in "ab")
    trainer.train(800)
    table = to_arrow(trainer.learner.replay.buffer)
    obs, actions = (np.array(table[name].to_pylist()) for name in ("obs", "actions"))
    # The first weights acted, as learning comes after the steps.
    greedy = fresh.predict(obs.astype(np.float32)) == actions
    assert greedy[400:].all()
    assert not greedy[:200].all()


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_correlated_noise_begins_at_zero_in_every_episode(mode, num_envs):
    envs, noise = [Numbered(terminate=True) for _ in range(num_envs)], OrnsteinUhlenbeckNoise(0.5)
    how = {"num_envs": num_envs, "action_noise": noise}
    one = make_learner("TD3", env=vector(mode, *envs), **SMALL, **how)
    add, episode_counts, states = one.noise.add, [-num_envs], []

    def noting(actions, stream):
        episode_counts.append(sum(env.episode for env in envs))
        states.append(one.noise.state.copy())
        return add(actions, stream)

    one.noise.add = noting
    run_iterations(one, 12)
    first = np.diff(episode_counts) > 0
    assert first.sum() >= 3
    assert not np.array(states)[first].any()
    assert np.array(states)[~first].any()


def test_native_correlated_noise_is_zero_where_an_environment_only_resets():
    env = vector(AutoresetMode.NEXT_STEP, *(Numbered(limit=n, terminate=True) for n in (3, 2)))
    noise = OrnsteinUhlenbeckNoise(0.5)
    one = make_learner("TD3", "native", 1, env, **SMALL, num_envs=2, action_noise=noise)
    step, came = one.stepper.step, []

    def noting(actions):
        came.append(step(actions))
        return came[-1]

    one.stepper.step = noting
    reset = 0
    for _ in range(12):
        one.iterate()
        ended, valid = came[-1].terminated, came[-1].valid
        valid = np.ones(2, bool) if valid is None else valid
        at_0 = one.policy.progress_state()[0].reshape(2) == 0
        np.testing.assert_array_equal(at_0, ended | ~valid)
        reset += (~valid).sum()
    assert reset >= 4


def test_metrics_of_a_failed_iteration_are_discarded():
    one, other = (make_learner("SAC", seed=1, **SMALL) for _ in "ab")
    for each in (one, other):
        run_iterations(each, 5)
    state, update = one.state(), other.update

    def failing(*args):
        update(*args)
        other.record(critic_loss=torch.tensor(1e9))
        raise FloatingPointError("here")

    other.update = failing
    with pytest.raises(FloatingPointError) as raised:
        other.iterate()
    assert raised.value.args == ("here",)
    other.update = update
    other.load_state(state)
    assert str(one.iterate()) == str(other.iterate())


def test_noise_is_added_to_random_actions():
    def first(noise):
        settings = {**SMALL, "learning_starts": 50, "action_noise": noise}
        one = make_learner("TD3", seed=1, **settings)
        one.iterate()
        return one.replay.state()["step.actions"].ravel()

    assert first(None) != first(GaussianNoise(0.3))
    assert abs(first(GaussianNoise(100.0))) == 1


def sent_in_one_iteration(algorithm, backend, space, progress=0.0, **settings):
    """Return what a learner sends to two environments, (steps, 2, ...), and the learner."""
    envs = [Constant(space, limit=0) for _ in range(2)]
    env = vector(AutoresetMode.SAME_STEP, *envs)
    settings = {"num_envs": 2, "buffer_size": 10**5, **settings}
    one = make_learner(algorithm, backend, 1, env, **settings)
    one.iterate(progress)
    return np.stack([each.sent for each in envs], 1), one


@BOTH
@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_random_actions_are_uniform_and_independent(algorithm, backend):
    low, high = np.float32([-2, 0, 5]), np.float32([1, 0.5, 9])
    settings = {"learning_starts": 4000, "train_freq": 2000, "action_noise": None}
    space = gym.spaces.Box(low, high)
    sent, _ = sent_in_one_iteration(algorithm, backend, space, **settings)
    shares = ((sent - low) / (high - low)).reshape(2000, 6)  # of the way between the bounds
    for column in shares.T:
        steps = np.arange(2001) / 2000
        above = np.maximum(steps[1:] - np.sort(column), np.sort(column) - steps[:-1])
        assert above.max() < 2.2 / np.sqrt(2000)  # Kolmogorov and Smirnov: p = 0.0001
    # Each component of each environment, and each step, has draws of its own.
    both = np.corrcoef(np.hstack([shares[1:], shares[:-1]]).T) - np.eye(12)
    assert np.abs(both).max() < 0.1


def chi_squared(counts, expected):
    return ((counts - expected) ** 2 / expected).sum()


@BOTH
@pytest.mark.parametrize("starts", [0, 8000])
def test_random_actions_of_dqn_are_uniform_and_have_the_configured_share(backend, starts):
    settings = {"train_freq": 4000, "learning_starts": starts}
    settings |= {"exploration_fraction": 1.0, "exploration_final_eps": 0.0}
    space = gym.spaces.Discrete(5, start=-2)
    for progress in (0.0, 0.5):
        sent, one = sent_in_one_iteration("DQN", backend, space, progress, **settings)
        share = 1.0 if starts else 1.0 - progress  # of actions that are random
        expected = np.full(5, 4000 * share / 5)
        if share < 1:
            fresh = type(one)(one.env, one.config, 1)  # with the weights of before learning
            expected[fresh.predict(Constant.obs) + 2] += 4000 * (1 - share)
        for column in sent.T:
            counts = np.bincount(column + 2, minlength=5)
            assert chi_squared(counts, expected) < 23.5  # 4 degrees of freedom: p = 0.0001
        # Random actions of environments and of steps are independent.
        if share == 1:
            for pair in ((sent[:, 0], sent[:, 1]), (sent[1:, 0], sent[:-1, 0])):
                counts = np.bincount(5 * (pair[0] + 2) + pair[1] + 2, minlength=25)
                assert chi_squared(counts, len(pair[0]) / 25) < 60  # 24 degrees: p = 0.0001
