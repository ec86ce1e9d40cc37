"""What DQN, SAC and TD3 explore with: noise of actions, gSDE's matrices, samples."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlox import make_vec
from rlox.algorithms import DQN, SAC, TD3, DQNConfig, SACConfig, TD3Config
from rlox.interchange import to_arrow
from rlox.native_off_policy import NativeDQN, NativeSAC, NativeTD3
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from rlox.trainers import DQNTrainer, SACTrainer
from support.envs import Imitate

SMALL = {"learning_starts": 0, "batch_size": 8, "buffer_size": 200, "net_arch": (8,)}


class Both(Imitate):
    """`Imitate` with a Dict of the number and a place."""

    def __init__(self):
        super().__init__()
        inner = self.observation_space
        self.observation_space = gym.spaces.Dict(number=inner, place=gym.spaces.Discrete(3))

    def _observe(self):
        return {"number": super()._observe(), "place": int(self.np_random.integers(3))}


@pytest.mark.parametrize("env", [Imitate, Both])
def test_a_gsde_matrix_stays_until_the_next_whatever_observations_are(env):
    one = SAC(make_vec(env, 3), SACConfig(**SMALL, num_envs=3, use_sde=True), 1)
    one.iterate()
    rows = one.stepper.obs
    first, second = (one.explore(rows, None) for _ in "ab")
    np.testing.assert_array_equal(first, second)
    one.begin()
    assert (one.explore(rows, None) != first).all()


@pytest.mark.parametrize("use_sde", [False, True])
def test_an_update_samples_by_one_gsde_matrix(use_sde):
    one = SAC(make_vec(Imitate, 1), SACConfig(**SMALL, use_sde=use_sde, log_std_init=0.0), 1)
    for _ in range(8):
        one.iterate()
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


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("use_sde", [False, True])
def test_samples_go_by_the_seed_and_the_weights_alone(use_sde, backend, tmp_path):
    how = {"backend": backend, "use_sde": use_sde, "runs_dir": None, **SMALL}
    trainer = SACTrainer(Imitate, 1, **how)
    trainer.train(10)
    trainer.save(tmp_path / "saved")
    again = SACTrainer.load(tmp_path / "saved", env=Imitate, runs_dir=None)
    told = [x.evaluate(1, seed=5, deterministic=False)["returns"] for x in (trainer, again, again)]
    assert told[0] == told[1] == told[2]
    assert told[0] != trainer.evaluate(1, seed=5)["returns"]


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("train_freq", [1, 8])
def test_random_actions_become_rarer_with_every_step(train_freq, num_envs):
    how = {"train_freq": train_freq, "num_envs": num_envs, "exploration_fraction": 0.5}
    how |= {"exploration_final_eps": 0.05, "gradient_steps": 1}
    trainer = DQNTrainer("CartPole-v1", 1, backend="torch", runs_dir=None, **SMALL, **how)
    one, rates = trainer.learner, []
    explored = one.explored
    one.explored = lambda *given: (
        rates.append(one.exploration_rate(one.progress)) or explored(*given)
    )
    for _ in range(2):  # schedules run over each call
        rates.clear()
        trainer.train(64)
        # From 1 to 0.05 in the first 32 steps of all environments.
        done = np.arange(0, 64, num_envs) / 32
        np.testing.assert_allclose(rates, 1 - 0.95 * done.clip(max=1), rtol=1e-6)


def test_an_iteration_alone_explores_as_at_its_beginning():
    one, rates = DQN(make_vec("CartPole-v1", 1), DQNConfig(**SMALL, train_freq=5), 1), []
    explored = one.explored
    one.explored = lambda *given: rates.append(one.progress) or explored(*given)
    one.iterate(0.25)
    assert rates == [0.25] * 5
    one.growth = 0.5
    one.iterate(0.25)
    assert rates[5:] == [0.25, 0.75, 1, 1, 1]


class Three(Imitate):
    """`Imitate` of three steps, that notes where episodes begin."""

    begun = 0

    def reset(self, *, seed=None, options=None):
        type(self).begun += 1
        return super().reset(seed=seed)

    def step(self, action):
        obs, reward, *_ = super().step(action)
        return obs, reward, self.steps == 3, False, {}


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_walk_begins_at_0_in_every_episode(mode, num_envs):
    env = make_vec(SyncVectorEnv([Three] * num_envs, autoreset_mode=mode))
    walk = OrnsteinUhlenbeckNoise(0.5)
    one = TD3(env, TD3Config(**SMALL, num_envs=num_envs, action_noise=walk), 1)
    add, begun, states = one.noise.add, [], []

    def noting(actions, stream):
        begun.append(Three.begun)
        states.append(one.noise.state.copy())
        return add(actions, stream)

    one.noise.add = noting
    for _ in range(12):
        one.iterate()
    first = np.diff([0, *begun]) > 0
    assert first.sum() >= 3
    assert not np.array(states)[first].any()
    assert np.array(states)[~first].any()


class Two(Three):
    """`Three`, of two steps."""

    def step(self, action):
        obs, reward, *_ = super().step(action)
        return obs, reward, self.steps == 2, False, {}


def test_a_native_walk_begins_at_0_where_an_environment_has_only_reset():
    env = make_vec(SyncVectorEnv([Three, Two], autoreset_mode=AutoresetMode.NEXT_STEP))
    walk = OrnsteinUhlenbeckNoise(0.5)
    one = NativeTD3(env, TD3Config(**SMALL, num_envs=2, action_noise=walk), 1)
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


def test_what_failed_is_not_in_the_metrics_of_what_goes_on():
    one, other = (SAC(make_vec("Pendulum-v1", 1), SACConfig(**SMALL), 1) for _ in "ab")
    for x in (one, other):
        for _ in range(5):
            x.iterate()
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


def test_noise_is_added_to_the_first_random_actions_as_well():
    def first(noise):
        config = TD3Config(**SMALL | {"learning_starts": 50}, action_noise=noise)
        learner = TD3(make_vec("Pendulum-v1", 1), config, seed=1)
        learner.iterate()
        return learner.replay.state()["step.actions"].ravel()

    assert first(None) != first(GaussianNoise(0.3))
    assert abs(first(GaussianNoise(100.0))) == 1


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("env", ["CartPole-v1", lambda: gym.make("CartPole-v1")])
def test_exploration_ends_within_an_iteration(env, backend):
    how = {**SMALL, "buffer_size": 1000, "train_freq": 800, "exploration_fraction": 0.5}
    how |= {"exploration_final_eps": 0.0, "runs_dir": None, "backend": backend}
    trainer, fresh = (DQNTrainer(env, 1, **how) for _ in "ab")
    trainer.train(800)
    table = to_arrow(trainer.learner.replay.buffer)
    obs, actions = (np.array(table[name].to_pylist()) for name in ("obs", "actions"))
    # The first weights acted, as learning comes after the steps.
    greedy = fresh.predict(obs.astype(np.float32)) == actions
    assert greedy[400:].all()
    assert not greedy[:200].all()


class Noting(gym.Env):
    """Notes what it is sent; nothing else happens."""

    observation_space = gym.spaces.Box(-1, 1, (2,))

    def __init__(self, action_space):
        self.action_space, self.sent = action_space, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.float32([0.5, -0.5]), {}

    def step(self, action):
        self.sent.append(np.array(action))
        return np.float32([0.5, -0.5]), 0.0, False, False, {}


def sent_in_one_iteration(learner, config, space, progress=0.0):
    """What a learner sent to two environments, (steps, 2, ...), and the learner."""
    envs = [Noting(space) for _ in range(2)]
    made = SyncVectorEnv(
        [lambda env=env: env for env in envs], autoreset_mode=AutoresetMode.SAME_STEP
    )
    one = learner(make_vec(made), config, 1)
    one.iterate(progress)
    return np.stack([env.sent for env in envs], 1), one


@pytest.mark.parametrize("learner", [SAC, NativeSAC, TD3, NativeTD3])
def test_random_actions_before_learning_are_uniform_between_the_bounds(learner):
    low, high = np.float32([-2, 0, 5]), np.float32([1, 0.5, 9])
    config = (SACConfig if learner in (SAC, NativeSAC) else TD3Config)(
        num_envs=2, learning_starts=4000, train_freq=2000, net_arch=(8,)
    )
    sent, _ = sent_in_one_iteration(learner, config, gym.spaces.Box(low, high))
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


@pytest.mark.parametrize("learner", [DQN, NativeDQN])
@pytest.mark.parametrize("starts", [0, 8000])
def test_dqns_random_actions_are_uniform_and_as_many_as_asked_for(learner, starts):
    settings = {"num_envs": 2, "train_freq": 4000, "net_arch": (8,), "learning_starts": starts}
    config = DQNConfig(**settings, exploration_fraction=1.0, exploration_final_eps=0.0)
    space = gym.spaces.Discrete(5, start=-2)
    for progress in (0.0, 0.5):
        sent, one = sent_in_one_iteration(learner, config, space, progress)
        share = 1.0 if starts else 1.0 - progress  # of actions that are random
        expected = np.full(5, 4000 * share / 5)
        if share < 1:
            fresh = learner(one.env, config, 1)  # with the weights of before learning
            expected[fresh.predict(np.float32([0.5, -0.5])) + 2] += 4000 * (1 - share)
        for column in sent.T:
            counts = np.bincount(column + 2, minlength=5)
            assert chi_squared(counts, expected) < 23.5  # 4 degrees of freedom: p = 0.0001
        # No environment's or step's action goes with another's, where all are random.
        if share == 1:
            for pair in ((sent[:, 0], sent[:, 1]), (sent[1:, 0], sent[:-1, 0])):
                counts = np.bincount(5 * (pair[0] + 2) + pair[1] + 2, minlength=25)
                assert chi_squared(counts, len(pair[0]) / 25) < 60  # 24 degrees: p = 0.0001
