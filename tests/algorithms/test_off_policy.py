"""What DQN, SAC and TD3 have in common: steps, replay, schedules, states, refusals."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlox import make_vec
from rlox.algorithms import DQN, SAC, TD3, DQNConfig, SACConfig, TD3Config
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer
from support.envs import Imitate

SMALL = {"learning_starts": 5, "batch_size": 16, "buffer_size": 500, "net_arch": (8,)}
KINDS = {
    "DQN": (DQN, DQNConfig(**SMALL), "CartPole-v1"),
    "DQN, all options": (
        DQN,
        DQNConfig(**SMALL, double=True, dueling=True, prioritized=True, n_steps=3, num_envs=2),
        "CartPole-v1",
    ),
    "SAC": (SAC, SACConfig(**SMALL), "Pendulum-v1"),
    "SAC, gSDE": (
        SAC,
        SACConfig(**SMALL, use_sde=True, train_freq=8, gradient_steps=-1, sde_sample_freq=4),
        "Pendulum-v1",
    ),
    "SAC, normalised": (
        SAC,
        SACConfig(**SMALL, normalize_obs=True, normalize_reward=True, num_envs=3, utd_ratio=0.4),
        "Pendulum-v1",
    ),
    "TD3": (TD3, TD3Config(**SMALL, action_noise=GaussianNoise(0.1)), "Pendulum-v1"),
    "TD3, a walk": (
        TD3,
        TD3Config(**SMALL, action_noise=OrnsteinUhlenbeckNoise(0.5), n_steps=2),
        "Pendulum-v1",
    ),
}


def learner(kind, seed=0, env=None, **changes):
    algorithm, config, name = KINDS[kind]
    config = replace(config, **changes)
    return algorithm(make_vec(env or name, config.num_envs), config, seed)


def iterated(one, times=15):
    return [one.iterate(i / times) for i in range(times)]


def same(a, b):
    assert a.keys() == b.keys()
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name], err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_two_runs_are_equal_and_another_seed_is_not(kind):
    before = torch.get_rng_state()
    one, two, other = (learner(kind, seed) for seed in (3, 3, 4))
    runs = [iterated(x) for x in (one, two, other)]
    assert str(runs[0]) == str(runs[1]) != str(runs[2])
    same(one._networks(), two._networks())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", KINDS)
def test_going_on_from_a_state_is_going_on(kind):
    one = learner(kind, 5)
    iterated(one)
    state = one.state()
    two = learner(kind, 6)
    iterated(two, 4)
    two.load_state(state)
    assert str(iterated(one)) == str(iterated(two))
    same(one._networks(), two._networks())
    same(one._optimizer_state(), two._optimizer_state())
    same(one.state().replay, two.state().replay)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_state_changes_nothing(kind):
    one = learner(kind, 5)
    iterated(one)
    for part in ("networks", "optimizer", "replay", "counters", "streams"):
        state = one.state()
        content = getattr(state, part)
        content.pop(next(iter(content)))
        before = one.state()
        with pytest.raises(ValueError, match=part):
            one.load_state(state)
        after = one.state()
        same(before.networks, after.networks)
        same(before.replay, after.replay)
        same(before.environment, after.environment)
        assert before.counters == after.counters


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_metrics_has_the_same_names(kind):
    rows = iterated(learner(kind), 8)
    assert all(row.keys() == rows[0].keys() for row in rows)
    count = KINDS[kind][1].num_envs * KINDS[kind][1].train_freq
    early = np.isnan(rows[0]["train/critic_loss" if kind[0] != "D" else "train/loss"])
    assert early == (count <= 5)  # nothing has been learned yet
    assert {"rollout/ep_rew_mean", "train/learning_rate", "train/n_updates"} <= rows[0].keys()
    assert (
        rows[-1]["time/total_timesteps"]
        == sum(8 for _ in range(8)) * (KINDS[kind][1].num_envs * KINDS[kind][1].train_freq) // 8
    )


@pytest.mark.parametrize(
    ("settings", "steps", "updates"),
    [
        ({"gradient_steps": 2}, [1] * 4, [2] * 4),
        ({"gradient_steps": -1, "train_freq": 3, "num_envs": 2}, [6] * 3, [6] * 3),
        ({"utd_ratio": 0.25}, [1] * 8, [0, 0, 0, 1] * 2),
        ({"utd_ratio": 1.5, "num_envs": 2, "train_freq": 1}, [2] * 2, [3] * 2),
    ],
)
def test_so_many_minibatches_are_learned_from(settings, steps, updates):
    one = learner("TD3", learning_starts=0, **settings)
    for came, due in zip(steps, updates, strict=True):
        before = one.timesteps, one.updates
        one.iterate()
        assert (one.timesteps - before[0], one.updates - before[1]) == (came, due)


def test_learning_starts_after_so_many_random_steps():
    one = learner("SAC", learning_starts=10)
    asked = []
    explore = one.explore
    one.explore = lambda *args: (asked.append(one.timesteps), explore(*args))[1]
    updates = [row["train/n_updates"] for row in iterated(one, 12)]
    assert updates == [0] * 10 + [1, 2]
    assert asked == [10, 11]


class Telling(gym.Env):
    """Observations and rewards say which step of which episode it is. Cut, or ended, after 3."""

    def __init__(self, terminate=False):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
        bounds = np.array([[-2, 0], [2, 10]], np.float32)
        self.action_space = gym.spaces.Box(*bounds)
        self.terminate, self.episode = terminate, -1
        self.sent = []

    def reset(self, *, seed=None, options=None):
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action):
        self.sent.append(action)
        self.t += 1
        over = self.t == 3
        obs = np.array([self.episode, self.t], np.float32)
        return obs, float(self.t), over and self.terminate, over and not self.terminate, {}


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("terminate", [False, True])
def test_replay_has_what_happened_and_the_true_next_observations(mode, num_envs, terminate):
    env = SyncVectorEnv([lambda: Telling(terminate)] * num_envs, autoreset_mode=mode)
    config = TD3Config(num_envs=num_envs, learning_starts=1000, net_arch=(4,))
    one = TD3(make_vec(env), config, 1)
    for _ in range(14):
        one.iterate()
    held = len(one.replay)
    assert one.timesteps >= held >= 10 * num_envs
    batch = one.replay.buffer.sample(held, 0)
    (episode, t), (then, after) = batch["obs"].T, batch["next_obs"].T
    np.testing.assert_array_equal(then, episode)
    np.testing.assert_array_equal(after, t + 1)
    np.testing.assert_array_equal(batch["rewards"], after)
    flags = batch["terminated"], batch["truncated"]
    np.testing.assert_array_equal(flags[not terminate], after == 3)
    assert not flags[terminate].any()
    assert one.episodes.mean_length == 3.0


@pytest.mark.parametrize("mode", AutoresetMode)
def test_native_environments_in_any_mode_give_the_same_transitions(mode):
    env = make_vec("CartPole-v1", 2, autoreset_mode=mode, max_episode_steps=5)
    one = DQN(env, DQNConfig(num_envs=2, learning_starts=1000), 1)
    for _ in range(6):
        one.iterate()
    assert one.episodes.count >= 4
    assert one.timesteps == 48
    batch = one.replay.buffer.sample(len(one.replay), 0)
    moved = np.abs(batch["next_obs"][:, 0] - batch["obs"][:, 0] - 0.02 * batch["obs"][:, 1])
    assert moved.max() < 1e-6  # one step of physics, never a reset


def test_several_steps_need_environments_that_do_not_pause():
    env = make_vec("CartPole-v1", 2, autoreset_mode="NextStep")
    with pytest.raises(ValueError, match=r"n_steps: .* NEXT_STEP, got 3"):
        DQN(env, DQNConfig(num_envs=2, n_steps=3), 1)


def test_actions_are_stored_between_minus_one_and_one_and_sent_within_bounds():
    env = SyncVectorEnv([Telling], autoreset_mode=AutoresetMode.SAME_STEP)
    one = TD3(make_vec(env), TD3Config(learning_starts=10, net_arch=(4,)), 1)
    for _ in range(20):
        one.iterate()
    sent = np.array(env.envs[0].sent)
    assert (sent >= [-2, 0]).all()
    assert (sent <= [2, 10]).all()
    stored = one.replay.buffer.sample(len(one.replay), 0)["actions"]
    assert np.abs(stored).max() <= 1
    expected = [0.5, 0.2] * (sent - [0, 5])
    apart = np.abs(stored[:, None] - expected[None]).max(2)
    assert apart.min(1).max() < 1e-5


def test_raw_observations_are_stored_and_normalised_ones_learned_from():
    one = learner("SAC, normalised")
    iterated(one)
    raw = one.replay.buffer.sample(16, np.random.default_rng(7))
    batch = one.replay.sample(np.random.default_rng(7), one.normalizer)
    np.testing.assert_array_equal(batch.obs, one.normalizer.normalize_obs(raw["obs"]))
    np.testing.assert_array_equal(batch.next_obs, one.normalizer.normalize_obs(raw["next_obs"]))
    deviation = np.sqrt(one.normalizer.state()["return_var"][0] + 1e-8)
    np.testing.assert_allclose(batch.rewards, (raw["rewards"] / deviation).clip(-10, 10), 1e-6)
    counted = one.normalizer.state()["obs_count"][0]
    assert counted == pytest.approx(one.timesteps + 3, abs=0.01)  # resets are seen, too


def test_minibatches_share_memory_that_is_used_again():
    one = learner("SAC")
    iterated(one, 30)
    first, second = (one.replay.sample(one.streams["minibatches"], None) for _ in "ab")
    assert first.obs.data_ptr() == second.obs.data_ptr()


def test_stopping_ends_an_iteration_and_keeps_the_steps_made():
    one = learner("SAC, gSDE")
    one.stopping = True
    assert one.iterate() == {}
    one.stopping = False
    explore = one.explore

    def stop(*args):
        one.stopping = True
        return explore(*args)

    iterated(one, 3)
    one.explore = stop
    before = one.timesteps
    metrics = one.iterate()
    assert metrics["time/total_timesteps"] == before + 1 == one.timesteps


@pytest.mark.parametrize("kind", ["DQN", "SAC", "TD3"])
def test_nan_is_told_by_name_and_step(kind):
    one = learner(kind)
    iterated(one, 8)
    with torch.no_grad():
        next(one.policy.parameters())[0, 0] = np.nan
    with pytest.raises(FloatingPointError, match=r"expected finite numbers, got (nan|NaN)"):
        iterated(one, 30)


@pytest.mark.parametrize("kind", ["DQN", "SAC", "TD3"])
def test_predictions_are_in_the_action_space_and_repeat(kind):
    one = learner(kind)
    iterated(one, 4)
    obs = np.stack([one.stepper.obs[0]] * 5)
    space = one.spaces[1]
    for deterministic in (True, False):
        drawn = [one.predict(obs, deterministic, np.random.default_rng(1)) for _ in "ab"]
        np.testing.assert_array_equal(*drawn)
        assert all(space.contains(action) for action in drawn[0])
    assert space.contains(one.predict(obs[0]))
    assert one.predict(obs[:0]).shape == (0, *space.shape)


@pytest.mark.parametrize(
    ("algorithm", "space", "message"),
    [
        (DQN, gym.spaces.Box(-1, 1, (1,)), "Discrete for DQN, got Box.*; use SAC, TD3, PPO or A2C"),
        (DQN, gym.spaces.MultiDiscrete([2, 3]), "Discrete for DQN, got Multi.*; use PPO or A2C"),
        (SAC, gym.spaces.Discrete(3), "a Box for SAC, got Discrete.*; use DQN, PPO or A2C"),
        (TD3, gym.spaces.MultiBinary(3), "a Box for TD3, got MultiBinary.*; use PPO or A2C"),
        (
            SAC,
            gym.spaces.Box(-np.inf, np.inf, (1,)),
            "finite bounds for SAC, .*, got .* PPO or A2C",
        ),
    ],
)
def test_other_action_spaces_are_refused_with_who_does_them(algorithm, space, message):
    class Other(Imitate):
        def __init__(self):
            super().__init__()
            self.action_space = space

    config = {DQN: DQNConfig, SAC: SACConfig, TD3: TD3Config}[algorithm]()
    with pytest.raises(ValueError, match=f"action space: expected {message}"):
        algorithm(make_vec(Other), config, 1)


def test_a_buffer_that_does_not_fit_is_refused():
    with pytest.raises(MemoryError, match="buffer_size"):
        learner("SAC", buffer_size=10**15)


@pytest.mark.parametrize(
    ("trainer", "env"),
    [(DQNTrainer, "CartPole-v1"), (SACTrainer, "Pendulum-v1"), (TD3Trainer, "Pendulum-v1")],
)
def test_a_trainer_saves_and_goes_on_with_its_buffer(trainer, env, tmp_path):
    settings = {**SMALL, "train_freq": 1, "gradient_steps": 1}
    one = trainer(env, 3, backend="torch", runs_dir=None, **settings)
    one.train(60)
    one.save(tmp_path / "saved")
    two = trainer.load(tmp_path / "saved", runs_dir=None)
    assert len(two.learner.replay) == 60
    results = [x.train(30) for x in (one, two)]
    assert results[0]["timesteps"] == results[1]["timesteps"] == 90
    same(one.learner._networks(), two.learner._networks())
    assert one.evaluate(2)["returns"] == two.evaluate(2)["returns"]


def test_networks_of_ones_own_are_refused_on_other_backends():
    with pytest.raises(ValueError, match=r'policy: expected None.* pass backend="torch"'):
        SACTrainer("Pendulum-v1", backend="native", policy=lambda *_: None, runs_dir=None)
