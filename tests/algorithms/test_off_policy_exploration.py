"""Exploration of DQN, SAC and TD3: random actions, noise of actions, matrices of gSDE, samples."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from rlox import make_vec
from rlox.configs import PPOConfig
from rlox.interchange import to_arrow
from rlox.native import NativePPO
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from rlox.trainers import DQNTrainer, SACTrainer
from support.envs import Imitate
from support.off_policy import BACKENDS, Numbered, WithPlace, iterated, make_learner, vector

SMALL = {"learning_starts": 0, "batch_size": 8, "buffer_size": 200, "net_arch": (8,)}
BOTH = pytest.mark.parametrize("backend", BACKENDS)


@pytest.mark.parametrize("env", [Imitate, WithPlace])
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
    iterated(one, 8)
    sample, taken = one.policy.get_action_and_logprob, []
    one.policy.get_action_and_logprob = lambda obs: taken.append(sample(obs)) or taken[-1]
    batch = one.replay.sample(np.random.default_rng(0), None)
    for _ in range(2):
        one.update(batch._replace(next_obs=batch.obs.clone()), 0.0)
    now, following, later, _ = (actions.detach() for actions, _ in taken)
    assert torch.equal(now, following) == use_sde
    assert not torch.equal(now, later)
    assert taken[0][1].requires_grad
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
    iterated(one, 5)
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
        iterated(env.learner, 3)
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
    said = [x.evaluate(1, seed=5, deterministic=False)["returns"] for x in (trainer, again, again)]
    assert said[0] == said[1] == said[2]
    assert said[0] != trainer.evaluate(1, seed=5)["returns"]


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("train_freq", [1, 8])
def test_exploration_decreases_with_every_step(train_freq, num_envs):
    how = {"train_freq": train_freq, "num_envs": num_envs, "exploration_fraction": 0.5}
    how |= {"exploration_final_eps": 0.05, "gradient_steps": 1}
    trainer = DQNTrainer("CartPole-v1", 1, backend="torch", runs_dir=None, **SMALL, **how)
    one, rates = trainer.learner, []
    explored = one.explored
    one.explored = lambda *given: (
        rates.append(one.exploration_rate(one.progress)) or explored(*given)
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
    explored = one.explored
    one.explored = lambda *args: progress.append(one.progress) or explored(*args)
    rates = [one.iterate(p)["rollout/exploration_rate"] for p in (0.0, 0.25, 0.5, 1.0)]
    assert rates == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert progress[5:10] == [0.25] * 5
    one.growth = 0.5
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


class Short(Imitate):
    """`Imitate` with terminations after `length` steps; counts its episodes."""

    episodes = 0

    def __init__(self, length=3):
        super().__init__()
        self.length = length

    def reset(self, *, seed=None, options=None):
        Short.episodes += 1
        return super().reset(seed=seed)

    def step(self, action):
        obs, reward, *_ = super().step(action)
        return obs, reward, self.steps == self.length, False, {}


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_correlated_noise_begins_at_zero_in_every_episode(mode, num_envs):
    env = vector(mode, *(Short() for _ in range(num_envs)))
    noise = OrnsteinUhlenbeckNoise(0.5)
    one = make_learner("TD3", env=env, **SMALL, num_envs=num_envs, action_noise=noise)
    add, begun, states = one.noise.add, [Short.episodes], []

    def noting(actions, stream):
        begun.append(Short.episodes)
        states.append(one.noise.state.copy())
        return add(actions, stream)

    one.noise.add = noting
    iterated(one, 12)
    first = np.diff(begun) > 0
    assert first.sum() >= 3
    assert not np.array(states)[first].any()
    assert np.array(states)[~first].any()


def test_native_correlated_noise_is_zero_where_an_environment_only_resets():
    env = vector(AutoresetMode.NEXT_STEP, Short(3), Short(2))
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
        at_0 = one.policy.standing()[0].reshape(2) == 0
        np.testing.assert_array_equal(at_0, ended | ~valid)
        reset += (~valid).sum()
    assert reset >= 4


def test_metrics_of_a_failed_iteration_are_discarded():
    one, other = (make_learner("SAC", seed=1, **SMALL) for _ in "ab")
    for each in (one, other):
        iterated(each, 5)
    state, update = one.state(), other.update

    def failing(*args):
        update(*args)
        other.tell(critic_loss=torch.tensor(1e9))
        raise FloatingPointError("here")

    other.update = failing
    with pytest.raises(FloatingPointError, match="here"):
        other.iterate()
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
