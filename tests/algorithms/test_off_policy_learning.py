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
from support.off_policy import BACKENDS, NORMALIZED, ImitateDict, Numbered, make_learner, run_iterations, vector
from support.rejections import rejects

EVERY_BACKEND = [*network_backends(), "torch"]
BOTH = pytest.mark.parametrize("backend", BACKENDS)
SMALL = {"learning_starts": 0, "batch_size": 8, "buffer_size": 200, "net_arch": (8,)}
FAST = {"learning_rate": 3e-3, "gamma": 0.0, "learning_starts": 100, "runs_dir": None}


def train_discrete_identity(backend, steps=1_000, **settings):
    """Return the mean return after training: 10 at best, 3.3 at random."""
    settings = {**FAST, "train_freq": 1, "target_update_interval": 50, **settings}
    trainer = DQNTrainer(lambda: Echo(start=3), 0, backend=backend, **settings)
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
    assert train_discrete_identity(backend, **settings) == 10.0


@BOTH
def test_a_discrete_identity_is_not_reached_without_learning(backend):
    assert train_discrete_identity(backend, 200, learning_rate=0.0) < 7


def train_continuous_identity(cls, backend, steps=1_000, env=Imitate, **settings):
    """Return the mean return after training: 0 at best, -3.3 with zero actions."""
    settings = {**FAST, "net_arch": (32, 32), "batch_size": 64, **settings}
    trainer = cls(env, 0, backend=backend, **settings)
    trainer.train(steps)
    assert trainer.learner.backend == backend
    return trainer.evaluate(10)["mean_reward"]


@pytest.mark.parametrize(
    ("cls", "settings", "backend"),
    [
        *((SACTrainer, {"ent_coef": 0.01}, backend) for backend in EVERY_BACKEND),
        (SACTrainer, {"ent_coef": "auto_0.1", "num_envs": 2, "utd_ratio": 1.0}, "native"),
        (SACTrainer, {"ent_coef": 0.01, "use_sde": True, "log_std_init": -1.0}, "native"),
        *((TD3Trainer, {}, backend) for backend in EVERY_BACKEND),
        (TD3Trainer, NORMALIZED, "native"),
        (TD3Trainer, {"env": ImitateDict}, "torch"),
    ],
)
def test_a_continuous_identity_is_learned(cls, settings, backend):
    score = train_continuous_identity(cls, backend, **settings)
    assert score > (-0.3 if "env" in settings else -0.5)


@BOTH
@pytest.mark.parametrize("cls", [SACTrainer, TD3Trainer])
def test_a_continuous_identity_is_not_reached_without_learning(cls, backend):
    assert train_continuous_identity(cls, backend, 200, learning_rate=0.0) < -2


class Bars(Echo):
    """`Echo` that observes an image of a bar, whose direction is the rewarded action."""

    def __init__(self):
        super().__init__(2)
        self.observation_space = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)

    def _observe(self):
        self.index = int(self.np_random.integers(2))
        image = np.zeros((1, 36, 36), np.uint8)
        image[0, 16:20] = 255
        return image if self.index else image.transpose(0, 2, 1)


def test_images_are_stored_as_bytes_and_learned_from():
    settings = {**FAST, "learning_rate": 1e-3, "train_freq": 4, "buffer_size": 1000}
    trainer = DQNTrainer(Bars, 0, **settings, target_update_interval=50)
    trainer.train(500)
    assert trainer.evaluate(5)["mean_reward"] == 10.0
    assert trainer.learner.replay.buffer.sample(1)["obs"].dtype == np.uint8


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, obs, actions):
        return self.net(torch.cat([obs, actions], 1)).T


class CustomPolicy(nn.Module):
    """Custom policy for SAC and TD3 with an actor and a single critic."""

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


@pytest.mark.parametrize("cls", [SACTrainer, TD3Trainer])
def test_a_custom_policy_learns_and_is_saved(cls, tmp_path):
    settings = {"ent_coef": 0.0} if cls is SACTrainer else {}
    trainer = cls(Imitate, 0, policy=CustomPolicy, batch_size=64, **FAST, **settings)
    trainer.train(1_000)
    assert trainer.evaluate(10)["mean_reward"] > -0.5
    trainer.save(tmp_path / "saved")
    loaded = cls.load(tmp_path / "saved", env=Imitate, policy=CustomPolicy, runs_dir=None)
    assert loaded.evaluate(3)["returns"] == trainer.evaluate(3)["returns"]


def test_gsde_methods_are_not_called_without_use_sde():
    class Exploring(CustomPolicy):
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

    for cls in (SACTrainer, TD3Trainer):
        trainer = cls(Imitate, 0, features_extractor=Squares, net_arch=(8,), **FAST)
        before = trainer.learner._networks()
        trainer.train(110)
        after = trainer.learner._networks()
        for name in ("critic.features.layer.weight", "critic_target.features.layer.weight"):
            assert (before[name] != after[name]).any()


@pytest.mark.parametrize(
    ("cls", "policy", "error", "got"),
    [
        (SACTrainer, nn.Linear(1, 1), ArgumentTypeError, "Linear"),
        (TD3Trainer, lambda *_: nn.Linear(1, 1), ArgumentTypeError, "Linear"),
        (DQNTrainer, nn.Linear(3, 2), ArgumentError, "(2, 2) and torch.float32"),
        (DQNTrainer, nn.Linear(4, 3), ArgumentError, "Linear, which failed with RuntimeError"),
    ],
)
def test_incomplete_policies_are_rejected(cls, policy, error, got):
    with rejects(error, "policy") as raised:
        cls(Echo if cls is DQNTrainer else Imitate, policy=policy, runs_dir=None)
    assert raised.value.got.startswith(got)


@BOTH
def test_truncations_bootstrap_and_terminations_do_not(backend):
    def train(terminate):
        env = lambda: Count(limit=10, terminate=terminate, scale=0.0)  # noqa: E731
        settings = {"learning_starts": 100, "gamma": 0.8, "learning_rate": 1e-2, "batch_size": 32}
        settings |= {"target_update_interval": 20, "train_freq": 1, "exploration_fraction": 0.0}
        learner = make_learner("DQN", backend, 1, env, **settings)
        run_iterations(learner, 700)
        return learner

    def best_value(learner):
        networks = learner.state().networks
        hidden = np.maximum(networks["q_net.0.bias"], 0)
        return (networks["q_net.2.weight"] @ hidden + networks["q_net.2.bias"]).max()

    assert best_value(train(terminate=False)) == pytest.approx(1 / (1 - 0.8), rel=0.05)
    # The Huber gradients sum to 0: 0.9 (1 + 0.8 v - v) for nine steps, -0.1 for the last step.
    assert best_value(train(terminate=True)) == pytest.approx((1 - 0.1 / 0.9) / 0.2, rel=0.05)


@pytest.mark.parametrize("env", [Imitate, ImitateDict])
def test_a_gsde_matrix_is_constant_until_the_next_draw(env):
    learner = make_learner("SAC", env=env, **SMALL, num_envs=3, use_sde=True)
    learner.iterate()
    rows = learner.stepper.obs
    first, second = (learner.explore(rows, None) for _ in "ab")
    np.testing.assert_array_equal(first, second)
    learner.begin()
    assert (learner.explore(rows, None) != first).all()


@pytest.mark.parametrize("use_sde", [False, True])
def test_an_update_samples_with_a_single_gsde_matrix(use_sde):
    learner = make_learner("SAC", env=Imitate, **SMALL, use_sde=use_sde, log_std_init=0.0)
    run_iterations(learner, 8)
    sample, sampled = learner.policy.get_action_and_logprob, []
    learner.policy.get_action_and_logprob = lambda obs: sampled.append(sample(obs)) or sampled[-1]
    batch = learner.replay.sample(np.random.default_rng(0), None)
    for _ in range(2):
        learner.update(batch._replace(next_obs=batch.obs.clone()), 0.0)
    first, second, third, _ = (actions.detach() for actions, _ in sampled)
    assert torch.equal(first, second) == use_sde
    assert not torch.equal(first, third)
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
def test_sde_sample_freq_does_not_count_resetting_steps(backend):
    env = Constant(limit=5)
    learner = make_learner("SAC", backend, 1, vector(AutoresetMode.NEXT_STEP, env), **WARMUP)
    run_iterations(learner, 5)
    # Nothing is learned, so equal observations and matrices give equal actions.
    lengths = [len(list(same)) for _, same in itertools.groupby(a.item() for a in env.sent)]
    assert lengths == [3, 3, 2] * 5


def native_sac(env):
    return make_learner("SAC", "native", 1, env, **WARMUP)


def native_ppo(env):
    settings = {"num_envs": 1, "n_steps": 8, "batch_size": 8}
    return NativePPO(make_vec(env), PPOConfig(**settings, use_sde=True, log_std_init=-1.0), 1)


@pytest.mark.parametrize("make", [native_sac, native_ppo])
def test_predictions_of_a_native_learner_do_not_change_its_exploration(make):
    class Predicting(Constant):
        def step(self, action):
            self.prediction = self.learner.predict(self.obs, deterministic=False)
            return super().step(action)

    expected, env_with_predictions = Constant(limit=5), Predicting(limit=5)
    for env in (expected, env_with_predictions):
        env.learner = make(vector(AutoresetMode.NEXT_STEP, env))
        run_iterations(env.learner, 3)
    assert env_with_predictions.prediction.shape == (1,)
    np.testing.assert_array_equal(env_with_predictions.sent, expected.sent)


@BOTH
@pytest.mark.parametrize("use_sde", [False, True])
def test_samples_depend_only_on_the_seed_and_the_weights(use_sde, backend, tmp_path):
    kwargs = {"backend": backend, "use_sde": use_sde, "runs_dir": None, **SMALL}
    trainer = SACTrainer(Imitate, 1, **kwargs)
    trainer.train(10)
    trainer.save(tmp_path / "saved")
    loaded = SACTrainer.load(tmp_path / "saved", env=Imitate, runs_dir=None)
    policies = (trainer, loaded, loaded)
    runs = [x.evaluate(1, seed=5, deterministic=False)["returns"] for x in policies]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0] != trainer.evaluate(1, seed=5)["returns"]


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("train_freq", [1, 8])
def test_exploration_decreases_with_every_step(train_freq, num_envs):
    settings = {"train_freq": train_freq, "num_envs": num_envs, "exploration_fraction": 0.5}
    settings |= {"exploration_final_eps": 0.05, "gradient_steps": 1}
    trainer = DQNTrainer("CartPole-v1", 1, backend="torch", runs_dir=None, **SMALL, **settings)
    learner, rates = trainer.learner, []
    explore_actions = learner.explore_actions
    learner.explore_actions = lambda *args: (
        rates.append(learner.exploration_rate(learner.progress)) or explore_actions(*args)
    )
    for _ in range(2):  # each call of train restarts the schedules
        rates.clear()
        trainer.train(64)
        # The rate decreases from 1 to 0.05 in the first 32 steps of all environments.
        progress = np.arange(0, 64, num_envs) / 32
        np.testing.assert_allclose(rates, 1 - 0.95 * progress.clip(max=1), rtol=1e-6)


def test_exploration_changes_in_an_iteration_only_with_progress_per_step():
    exploration = {"exploration_fraction": 0.5, "exploration_final_eps": 0.1}
    learner, progress = make_learner("DQN", **SMALL, train_freq=5, **exploration), []
    explore_actions = learner.explore_actions
    learner.explore_actions = lambda *args: progress.append(learner.progress) or explore_actions(*args)
    rates = [learner.iterate(p)["rollout/exploration_rate"] for p in (0.0, 0.25, 0.5, 1.0)]
    assert rates == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert progress[5:10] == [0.25] * 5
    learner.progress_per_step = 0.5
    learner.iterate(0.25)
    assert progress[20:] == [0.25, 0.75, 1, 1, 1]


@BOTH
@pytest.mark.parametrize("env", ["CartPole-v1", lambda: gym.make("CartPole-v1")])
def test_exploration_may_end_within_an_iteration(env, backend):
    kwargs = {**SMALL, "buffer_size": 1000, "train_freq": 800, "exploration_fraction": 0.5}
    kwargs |= {"exploration_final_eps": 0.0, "runs_dir": None, "backend": backend}
    kwargs |= {"gradient_steps": 1}
    trainer, untrained = (DQNTrainer(env, 1, **kwargs) for _ in "ab")
    trainer.train(800)
    table = to_arrow(trainer.learner.replay.buffer)
    obs, actions = (np.array(table[name].to_pylist()) for name in ("obs", "actions"))
    # The initial weights chose all actions, since updates follow the steps.
    greedy = untrained.predict(obs.astype(np.float32)) == actions
    assert greedy[400:].all()
    assert not greedy[:200].all()


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_correlated_noise_is_zero_at_the_start_of_every_episode(mode, num_envs):
    envs, noise = [Numbered(terminate=True) for _ in range(num_envs)], OrnsteinUhlenbeckNoise(0.5)
    settings = {"num_envs": num_envs, "action_noise": noise}
    learner = make_learner("TD3", env=vector(mode, *envs), **SMALL, **settings)
    add, episode_counts, states = learner.noise.add, [-num_envs], []

    def record_and_add(actions, stream):
        episode_counts.append(sum(env.episode for env in envs))
        states.append(learner.noise.state.copy())
        return add(actions, stream)

    learner.noise.add = record_and_add
    run_iterations(learner, 12)
    first = np.diff(episode_counts) > 0
    assert first.sum() >= 3
    assert not np.array(states)[first].any()
    assert np.array(states)[~first].any()


def test_native_correlated_noise_is_zero_in_resetting_environments():
    env = vector(AutoresetMode.NEXT_STEP, *(Numbered(limit=n, terminate=True) for n in (3, 2)))
    noise = OrnsteinUhlenbeckNoise(0.5)
    learner = make_learner("TD3", "native", 1, env, **SMALL, num_envs=2, action_noise=noise)
    step, results = learner.stepper.step, []

    def step_and_record(actions):
        results.append(step(actions))
        return results[-1]

    learner.stepper.step = step_and_record
    resets = 0
    for _ in range(12):
        learner.iterate()
        ended, valid = results[-1].terminated, results[-1].valid
        valid = np.ones(2, bool) if valid is None else valid
        is_zero = learner.policy.progress_state()[0].reshape(2) == 0
        np.testing.assert_array_equal(is_zero, ended | ~valid)
        resets += (~valid).sum()
    assert resets >= 4


def test_metrics_of_a_failed_iteration_are_discarded():
    learner, other = (make_learner("SAC", seed=1, **SMALL) for _ in "ab")
    for x in (learner, other):
        run_iterations(x, 5)
    state, update = learner.state(), other.update

    def update_and_fail(*args):
        update(*args)
        other.record(critic_loss=torch.tensor(1e9))
        raise FloatingPointError("here")

    other.update = update_and_fail
    with pytest.raises(FloatingPointError) as raised:
        other.iterate()
    assert raised.value.args == ("here",)
    other.update = update
    other.load_state(state)
    assert str(learner.iterate()) == str(other.iterate())


def test_noise_is_added_to_random_actions():
    def first_action(noise):
        settings = {**SMALL, "learning_starts": 50, "action_noise": noise}
        learner = make_learner("TD3", seed=1, **settings)
        learner.iterate()
        return learner.replay.state()["step.actions"].ravel()

    assert first_action(None) != first_action(GaussianNoise(0.3))
    assert abs(first_action(GaussianNoise(100.0))) == 1


def sent_in_one_iteration(algorithm, backend, space, progress=0.0, **settings):
    """Return the actions (steps, 2, ...) sent to two environments, and the learner."""
    envs = [Constant(space, limit=0) for _ in range(2)]
    env = vector(AutoresetMode.SAME_STEP, *envs)
    settings = {"num_envs": 2, "buffer_size": 10**5, **settings}
    learner = make_learner(algorithm, backend, 1, env, **settings)
    learner.iterate(progress)
    return np.stack([x.sent for x in envs], 1), learner


@BOTH
@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_random_actions_are_uniform_and_independent(algorithm, backend):
    low, high = np.float32([-2, 0, 5]), np.float32([1, 0.5, 9])
    settings = {"learning_starts": 4000, "train_freq": 2000, "action_noise": None}
    space = gym.spaces.Box(low, high)
    sent, _ = sent_in_one_iteration(algorithm, backend, space, **settings)
    shares = ((sent - low) / (high - low)).reshape(2000, 6)  # relative position between the bounds
    for column in shares.T:
        steps = np.arange(2001) / 2000
        above = np.maximum(steps[1:] - np.sort(column), np.sort(column) - steps[:-1])
        assert above.max() < 2.2 / np.sqrt(2000)  # Kolmogorov-Smirnov test: p = 0.0001
    # Components, environments and successive steps are uncorrelated.
    correlations = np.corrcoef(np.hstack([shares[1:], shares[:-1]]).T) - np.eye(12)
    assert np.abs(correlations).max() < 0.1


def chi_squared(counts, expected):
    return ((counts - expected) ** 2 / expected).sum()


@BOTH
@pytest.mark.parametrize("starts", [0, 8000])
def test_random_actions_of_dqn_are_uniform_and_have_the_configured_share(backend, starts):
    settings = {"train_freq": 4000, "learning_starts": starts}
    settings |= {"exploration_fraction": 1.0, "exploration_final_eps": 0.0}
    space = gym.spaces.Discrete(5, start=-2)
    for progress in (0.0, 0.5):
        sent, learner = sent_in_one_iteration("DQN", backend, space, progress, **settings)
        share = 1.0 if starts else 1.0 - progress  # share of random actions
        expected = np.full(5, 4000 * share / 5)
        if share < 1:
            untrained = type(learner)(learner.env, learner.config, 1)  # the initial weights
            expected[untrained.predict(Constant.obs) + 2] += 4000 * (1 - share)
        for column in sent.T:
            counts = np.bincount(column + 2, minlength=5)
            assert chi_squared(counts, expected) < 23.5  # 4 degrees of freedom: p = 0.0001
        # Random actions of different environments and steps are independent.
        if share == 1:
            for pair in ((sent[:, 0], sent[:, 1]), (sent[1:, 0], sent[:-1, 0])):
                counts = np.bincount(5 * (pair[0] + 2) + pair[1] + 2, minlength=25)
                assert chi_squared(counts, len(pair[0]) / 25) < 60  # 24 degrees: p = 0.0001
