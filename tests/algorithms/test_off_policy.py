"""Properties shared by DQN, SAC and TD3 on both backends."""

import csv
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList

import rlox
from rlox import ArgumentError, ArgumentTypeError, NonFiniteError, make_vec
from rlox.configs import DQNConfig, SACConfig
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer
from support.envs import Answer
from support.off_policy import (
    BACKENDS,
    CASES,
    SMALL,
    Numbered,
    action_space,
    assert_learners_equal,
    make_learner,
    run_iterations,
    vector,
)
from support.rejections import rejects

BOTH = pytest.mark.parametrize("backend", BACKENDS)
EVERY_CASE = pytest.mark.parametrize("case", CASES)
EVERY_ALGORITHM = pytest.mark.parametrize("algorithm", ["DQN", "SAC", "TD3"])
EVERY_MODE = pytest.mark.parametrize("mode", AutoresetMode)
TRAINERS = {"DQN": DQNTrainer, "SAC": SACTrainer, "TD3": TD3Trainer}


@BOTH
@EVERY_CASE
def test_two_runs_are_equal_and_another_seed_differs(case, backend):
    before = torch.get_rng_state()
    learner, twin, other = (make_learner(case, backend, seed) for seed in (3, 3, 4))
    runs = [run_iterations(x) for x in (learner, twin, other)]
    assert str(runs[0]) == str(runs[1]) != str(runs[2])
    assert_learners_equal(learner, twin)
    name = next(iter(learner.state().networks))
    assert (learner.state().networks[name] != other.state().networks[name]).any()
    assert torch.equal(torch.get_rng_state(), before)


@BOTH
@EVERY_CASE
def test_a_learner_continues_exactly_from_a_state(case, backend):
    learner, other = make_learner(case, backend, 5), make_learner(case, backend, 6)
    run_iterations(learner)
    run_iterations(other, 4)
    other.load_state(learner.state())
    assert_learners_equal(learner, other)
    assert (other.timesteps, other.updates) == (learner.timesteps, learner.updates)
    obs = np.linspace(-1, 1, 3 * learner.spaces[0].shape[0]).reshape(3, -1).astype(np.float32)
    for deterministic in (True, False):
        draws = [x.predict(obs, deterministic) for x in (learner, other)]
        np.testing.assert_array_equal(*draws)
    assert str(run_iterations(learner)) == str(run_iterations(other))
    assert_learners_equal(learner, other)


@BOTH
@EVERY_CASE
@pytest.mark.parametrize("part", ["networks", "optimizer", "replay", "counters", "streams"])
def test_a_damaged_state_is_rejected_and_changes_nothing(case, backend, part):
    learner = make_learner(case, backend, 5)
    run_iterations(learner)
    state, before = learner.state(), learner.state()
    content = getattr(state, part)
    content.pop(next(iter(content)))
    with pytest.raises(ArgumentError) as raised:
        learner.load_state(state)
    assert part in (raised.value.argument, raised.value.section)
    np.testing.assert_equal(vars(learner.state()), vars(before))


@BOTH
@EVERY_CASE
def test_invalid_counts_of_pending_minibatches_are_rejected(case, backend):
    learner = make_learner(case, backend, 5)
    run_iterations(learner)
    before = learner.state()
    for pending in (-1.0, np.nan, 2.0**31):
        state = learner.state()
        state.counters["pending_updates"] = pending
        with rejects(ArgumentError, "counters"):
            learner.load_state(state)
    np.testing.assert_equal(vars(learner.state()), vars(before))


def test_damaged_counters_and_streams_of_a_native_learner_are_rejected():
    learner = make_learner("SAC", "native")
    run_iterations(learner)
    before = learner.state()
    for damage in (
        lambda state: state.counters.update(noise=[0.0]),
        lambda state: state.streams.pop("learning"),
        lambda state: state.counters["last_update"].update(critic_loss=None),
        lambda state: state.counters["last_update"].pop("actor_loss"),
    ):
        state = learner.state()
        damage(state)
        with pytest.raises(ArgumentError) as raised:
            learner.load_state(state)
        assert raised.value.argument in ("counters", "streams")
    np.testing.assert_equal(vars(learner.state()), vars(before))


@EVERY_CASE
def test_stepping_in_python_equals_stepping_in_rust(case):
    native, python_learner = make_learner(case, "native"), make_learner(case, "native")
    python_learner.fused = None  # step in Python
    assert native.fused
    assert str(run_iterations(native, 30)) == str(run_iterations(python_learner, 30))
    assert_learners_equal(native, python_learner)


@BOTH
@EVERY_CASE
def test_metrics_have_the_names_of_stable_baselines3_in_every_row(case, backend):
    learner = make_learner(case, backend)
    rows = run_iterations(learner, 8)
    names = {"rollout/ep_rew_mean", "rollout/ep_len_mean", "time/total_timesteps"}
    names |= {"train/learning_rate", "train/n_updates"}
    names |= {
        "DQN": {"rollout/exploration_rate", "train/loss"},
        "SAC": {f"train/{x}" for x in ("critic_loss", "actor_loss", "ent_coef", "ent_coef_loss")},
        "TD3": {"train/critic_loss", "train/actor_loss"},
    }[case[:3]]
    assert all(row.keys() == names for row in rows)
    loss = "train/loss" if case[0] == "D" else "train/critic_loss"
    assert np.isnan(rows[0][loss]) == (rows[0]["train/n_updates"] == 0)
    assert rows[-1]["time/total_timesteps"] == 8 * learner.config.num_envs * learner.config.train_freq


def test_the_last_actor_loss_is_reported_until_the_next_update():
    settings = {"policy_delay": 5, "train_freq": 1, "num_envs": 2}
    learner, loaded = (make_learner("TD3", "native", seed, **settings) for seed in (1, 2))
    losses = [row["train/actor_loss"] for row in run_iterations(learner, 30)]
    assert len({*losses[-5:]}) == 2
    assert learner.updates == 28
    loaded.load_state(learner.state())
    assert loaded.iterate()["train/actor_loss"] == losses[-1]


@BOTH
@pytest.mark.parametrize(
    ("settings", "steps", "updates"),
    [
        ({"gradient_steps": 2}, [1] * 4, [2] * 4),
        ({"gradient_steps": -1, "train_freq": 3, "num_envs": 2}, [6] * 3, [6] * 3),
        ({"utd_ratio": 0.25}, [1] * 8, [0, 0, 0, 1] * 2),
        ({"utd_ratio": 1.5, "num_envs": 2, "train_freq": 1}, [2] * 2, [3] * 2),
        ({"utd_ratio": 0.75, "num_envs": 2}, [2] * 4, [1, 2, 1, 2]),
    ],
)
def test_settings_determine_the_number_of_minibatches(settings, steps, updates, backend):
    learner = make_learner("TD3", backend, learning_starts=0, **settings)
    for n_steps, n_updates in zip(steps, updates, strict=True):
        before = learner.timesteps, learner.updates
        learner.iterate()
        assert (learner.timesteps - before[0], learner.updates - before[1]) == (n_steps, n_updates)


def test_random_actions_precede_the_first_update():
    learner, explored = make_learner("SAC", learning_starts=10), []
    explore = learner.explore
    learner.explore = lambda *args: (explored.append(learner.timesteps), explore(*args))[1]
    updates = [row["train/n_updates"] for row in run_iterations(learner, 12)]
    assert updates == [0] * 10 + [1, 2]
    assert explored == [10, 11]


WRAPPED = [(mode, lambda env: env) for mode in AutoresetMode]
WRAPPED += [(AutoresetMode.SAME_STEP, DictInfoToList)]  # infos are lists


@BOTH
@pytest.mark.parametrize(("mode", "wrap"), WRAPPED)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("terminate", [False, True])
def test_replay_stores_every_transition_with_the_true_next_obs(mode, wrap, num_envs, terminate, backend):
    env = wrap(vector(mode, *(Numbered(terminate=terminate) for _ in range(num_envs))))
    learner = make_learner("TD3", backend, 1, env, num_envs=num_envs, learning_starts=1000)
    run_iterations(learner, 14)
    size = len(learner.replay)
    assert learner.timesteps >= size >= 10 * num_envs
    batch = learner.replay.buffer.sample(size, 0)
    (episode, t), (next_episode, next_t) = batch["obs"].T, batch["next_obs"].T
    np.testing.assert_array_equal(next_episode, episode)
    np.testing.assert_array_equal(next_t, t + 1)
    np.testing.assert_array_equal(batch["rewards"], next_t)
    flags = batch["terminated"], batch["truncated"]
    np.testing.assert_array_equal(flags[not terminate], next_t == 3)
    assert not flags[terminate].any()
    assert learner.episodes.mean_length == 3.0


@BOTH
@EVERY_ALGORITHM
def test_errors_of_rewards_name_the_environment_while_others_reset(algorithm, backend):
    space = action_space(algorithm)
    envs = Numbered(space, 2), Numbered(space, 9), Numbered(space, 9, huge_at=3)
    env = vector(AutoresetMode.NEXT_STEP, *envs)
    learner = make_learner(algorithm, backend, 1, env, num_envs=3, learning_starts=100, train_freq=1)
    run_iterations(learner, 2)
    assert (learner.timesteps, len(learner.replay)) == (6, 6)
    with rejects(NonFiniteError, "rewards", got="1e+39", env=2, step=3):
        learner.iterate()
    assert (learner.timesteps, len(learner.replay)) == (6, 6)
    learner.iterate()
    assert learner.timesteps == len(learner.replay) > 6


PARTS = gym.spaces.Dict(
    image=gym.spaces.Box(0, 255, (2, 3), np.uint8), flags=gym.spaces.MultiBinary(4), numbers=Numbered.observation_space
)


def to_parts(obs):
    episode, t = obs.astype(np.uint8)
    flags = (np.arange(4) == t).astype(np.int8)
    return {"image": np.full((2, 3), 10 * episode + t), "flags": flags, "numbers": obs}


@EVERY_ALGORITHM
def test_dict_observations_with_images_and_flags_are_stored(algorithm):
    inner = lambda: Numbered(action_space(algorithm))  # noqa: E731
    env = lambda: gym.wrappers.TransformObservation(inner(), to_parts, PARTS)  # noqa: E731
    learner = make_learner(algorithm, env=env, num_envs=2, learning_starts=8, train_freq=1)
    run_iterations(learner, 12)
    assert learner.updates > 0
    batch = learner.replay.buffer.sample(24, seed=0)
    episode, t = batch["obs"]["numbers"].T.astype(int)
    assert {*t} == {0, 1, 2}
    assert np.array_equal(batch["obs"]["flags"], np.arange(4) == t[:, None])
    assert np.array_equal(batch["next_obs"]["flags"], np.arange(4) == t[:, None] + 1)
    images = np.broadcast_to((10 * episode + t)[:, None, None], (24, 2, 3))
    assert np.array_equal(batch["obs"]["image"], images)
    assert np.array_equal(batch["next_obs"]["image"], images + 1)


@EVERY_MODE
def test_native_environments_give_the_same_transitions_in_every_mode(mode):
    env = make_vec("CartPole-v1", 2, autoreset_mode=mode, max_episode_steps=5)
    learner = make_learner("DQN", env=env, num_envs=2, train_freq=4, learning_starts=1000)
    run_iterations(learner, 6)
    assert learner.episodes.count >= 4
    assert learner.timesteps == 48
    batch = learner.replay.buffer.sample(len(learner.replay), 0)
    errors = np.abs(batch["next_obs"][:, 0] - batch["obs"][:, 0] - 0.02 * batch["obs"][:, 1])
    assert errors.max() < 1e-6  # each transition is one step of physics, not a reset


def test_actions_are_stored_scaled_and_sent_within_bounds():
    env = Numbered(gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 10])))
    learner = make_learner("TD3", env=vector(AutoresetMode.SAME_STEP, env), learning_starts=10)
    run_iterations(learner, 20)
    assert all(map(env.action_space.contains, env.sent))
    stored = learner.replay.buffer.sample(len(learner.replay), 0)["actions"]
    assert np.abs(stored).max() <= 1
    distances = np.abs(stored[:, None] - [0.5, 0.2] * (np.array(env.sent) - [0, 5])[None]).max(2)
    assert distances.min(1).max() < 1e-5


def test_native_actions_have_the_dtype_and_bounds_of_the_space():
    space = gym.spaces.Box(np.array([-3.0, 0.0]), np.array([1.0, 9.0]), dtype=np.float64)
    learner = make_learner("TD3", "native", env=lambda: Answer(space))
    run_iterations(learner, 20)
    assert all(map(space.contains, learner.predict(np.ones((5, 2), np.float32))))


def test_raw_observations_are_stored_and_minibatches_are_normalised():
    learner = make_learner("SAC, normalised")
    run_iterations(learner)
    raw = learner.replay.buffer.sample(16, np.random.default_rng(7))
    batch = learner.replay.sample(np.random.default_rng(7), learner.normalizer)
    np.testing.assert_array_equal(batch.obs, learner.normalizer.normalize_obs(raw["obs"]))
    np.testing.assert_array_equal(batch.next_obs, learner.normalizer.normalize_obs(raw["next_obs"]))
    deviation = np.sqrt(learner.normalizer.state()["return_var"][0] + 1e-8)
    np.testing.assert_allclose(batch.rewards, (raw["rewards"] / deviation).clip(-10, 10), 1e-6)
    count = learner.normalizer.state()["obs_count"][0]
    assert count == pytest.approx(learner.timesteps + 3, abs=0.01)  # 3 from the first reset


@EVERY_MODE
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("terminate", [False, True])
def test_statistics_are_computed_from_policy_inputs_and_returns(mode, num_envs, terminate):
    env = vector(mode, *(Numbered(terminate=terminate) for _ in range(num_envs)))
    settings = {"normalize_obs": True, "normalize_reward": True, "learning_starts": 8}
    learner = make_learner("TD3", env=env, num_envs=num_envs, **settings)
    while learner.timesteps < 12 * num_envs:
        learner.iterate()
    assert learner.episodes.count == 4 * num_envs
    statistics = learner.normalizer.state()
    inputs = [(episode, t) for episode in range(4) for t in range(3)]
    if mode is not AutoresetMode.NEXT_STEP:
        inputs.append((4, 0))  # NEXT_STEP environments reset in the next step
    np.testing.assert_allclose(statistics["obs_mean"], np.mean(inputs, 0), rtol=1e-3)
    np.testing.assert_allclose(statistics["obs_var"], np.var(inputs, 0), rtol=1e-3)
    returns = [1.0, 1.0 * 0.99 + 2, (1.0 * 0.99 + 2) * 0.99 + 3]
    np.testing.assert_allclose(statistics["return_var"], np.var(returns), rtol=1e-3)


def test_minibatches_reuse_memory():
    learner = make_learner("SAC")
    run_iterations(learner, 30)
    first, second = (learner.replay.sample(learner.streams["minibatches"], None) for _ in "ab")
    assert first.obs.data_ptr() == second.obs.data_ptr()


@EVERY_ALGORITHM
def test_nan_in_a_parameter_raises(algorithm):
    learner = make_learner(algorithm)
    run_iterations(learner, 8)
    with torch.no_grad():
        next(learner.policy.parameters())[0, 0] = np.nan
    with pytest.raises(NonFiniteError) as raised:
        run_iterations(learner, 30)
    assert raised.value.got.lower().startswith("nan")


@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_overflow_of_native_weights_raises_without_an_update(algorithm):
    learner = make_learner(algorithm, "native")
    run_iterations(learner, 8)
    tensors = learner.policy.tensors()
    tensors["critic.qf0.2.weight"] = np.full_like(tensors["critic.qf0.2.weight"], 3e38)
    learner.policy.load(tensors)
    with pytest.raises(NonFiniteError):
        learner.iterate()
    after = learner.policy.tensors()
    for name in ("log_alpha", "actor.0.weight", "critic.qf0.0.weight", "critic.qf1.0.weight"):
        assert name not in after or (after[name] == tensors[name]).all()


@BOTH
@EVERY_ALGORITHM
def test_predictions_are_repeatable_and_in_the_action_space(algorithm, backend):
    learner = make_learner(algorithm, backend)
    run_iterations(learner, 4)
    obs = np.linspace(-0.1, 0.1, 5 * learner.spaces[0].shape[0], dtype=np.float32).reshape(5, -1)
    space = learner.spaces[1]
    for deterministic in (True, False):
        samples = [learner.predict(obs, deterministic, np.random.default_rng(1)) for _ in "ab"]
        np.testing.assert_array_equal(*samples)
        assert all(space.contains(action) for action in samples[0])
    assert space.contains(learner.predict(obs[0]))
    assert learner.predict(obs[:0]).shape == (0, *space.shape)


def test_native_backend_rejects_settings_of_torch():
    with rejects(ArgumentError, "her", "torch", got="'future'"):
        make_learner("SAC", "native", her="future")
    with rejects(ArgumentError, "normalize_obs"):
        make_learner("DQN", "native", env="FrozenLake-v1", normalize_obs=True)
    with rejects(ArgumentError, "policy", 'pass backend="torch"'):
        SACTrainer("Pendulum-v1", backend="native", policy=Numbered, runs_dir=None)


@BOTH
def test_invalid_calls_are_rejected(backend):
    env = make_vec("CartPole-v1", 2, autoreset_mode="NextStep")
    with rejects(ArgumentError, "n_steps", got="3"):
        make_learner("DQN", backend, env=env, num_envs=2, n_steps=3)
    learner = make_learner("TD3", backend)
    with rejects(ArgumentError, "progress", got="1.5"):
        learner.iterate(1.5)
    with rejects(ArgumentTypeError, "state", got="dict"):
        learner.load_state({})


@pytest.mark.parametrize("value", [(1, "epoch"), (0, "episode"), (1.0, "episode"), (1,)], ids=str)
def test_invalid_train_freq_is_rejected(value):
    with rejects(ArgumentError, "train_freq", got=str(value)):
        SACConfig(train_freq=value)


RUN = {**SMALL, "batch_size": 8, "learning_starts": 20, "train_freq": 1, "gradient_steps": 1}


@BOTH
@EVERY_ALGORITHM
def test_a_run_folder_has_rows_before_the_first_update(algorithm, backend, tmp_path):
    env = "CartPole-v1" if algorithm == "DQN" else "Pendulum-v1"
    trainer = TRAINERS[algorithm](env, seed=1, backend=backend, runs_dir=tmp_path, **RUN)
    result = trainer.train(40)
    assert (result["timesteps"], result["checkpoint_warning"]) == (40, None)
    with open(trainer.run.path / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["time/total_timesteps"]) for row in rows] == list(range(1, 41))
    loss = "train/loss" if algorithm == "DQN" else "train/critic_loss"
    has_loss = [not math.isnan(float(row[loss])) for row in rows]
    assert has_loss == [False] * 20 + [True] * 20
    assert (trainer.run.path / "checkpoint").is_dir()


@BOTH
@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("native_env", [True, False])
def test_runs_in_next_step_mode_make_the_requested_steps(native_env, num_envs, backend):
    if native_env:
        env = rlox.VecEnv(num_envs, env_id="Pendulum-v1", autoreset_mode=AutoresetMode.NEXT_STEP)
    else:
        env = gym.make_vec("Pendulum-v1", num_envs)
    settings = RUN | {"learning_starts": 10**6}
    trainer = SACTrainer(env, seed=1, backend=backend, runs_dir=None, **settings)
    result = trainer.train(900)
    assert (result["timesteps"], result["interrupted"]) == (900, False)
    env.close()


def test_utd_ratio_replaces_the_gradient_steps_of_a_preset():
    trainer = DQNTrainer("CartPole-v1", seed=1, utd_ratio=0.5, runs_dir=None)
    assert (trainer.config.utd_ratio, trainer.config.gradient_steps) == (0.5, 1)
    assert trainer.config_sources["gradient_steps"] == "default"


class Longer(Numbered):
    """`Numbered` with 2, 3, 4, 2, ... steps per episode, truncated and terminated in turn."""

    def reset(self, *, seed=None, options=None):
        start = super().reset()
        self.limit, self.terminate = 2 + self.episode % 3, self.episode % 2 == 1
        return start


def make_episodic_learner(algorithm, backend, mode=AutoresetMode.SAME_STEP, **settings):
    env = vector(mode, Longer(action_space(algorithm)))
    settings = {"train_freq": (1, "episode"), "learning_starts": 0, **settings}
    return make_learner(algorithm, backend, 1, env, **settings)


@BOTH
@EVERY_MODE
@EVERY_ALGORITHM
def test_iterations_of_episodes_have_the_configured_minibatches(algorithm, mode, backend):
    learner, counts = make_episodic_learner(algorithm, backend, mode, gradient_steps=-1), []
    for _ in range(4):
        learner.iterate()
        counts.append((learner.timesteps, learner.updates, learner.episodes.count))
    assert counts == [(2, 2, 1), (5, 5, 2), (9, 9, 3), (11, 11, 4)]
    learner = make_episodic_learner(algorithm, backend, mode, train_freq=(2, "episode"), gradient_steps=3)
    run_iterations(learner, 2)
    assert (learner.timesteps, learner.updates, learner.episodes.count) == (11, 6, 4)


@BOTH
def test_iterations_of_episodes_are_resumed(backend, tmp_path):
    kwargs = {"train_freq": (1, "episode"), "backend": backend, "runs_dir": None, **SMALL}
    trainer = DQNTrainer("CartPole-v1", 1, **kwargs)
    for _ in range(5):
        before = trainer.learner.episodes.count
        trainer.learner.iterate()
        assert trainer.learner.episodes.count == before + 1
    trainer.save(tmp_path / "saved")
    loaded = DQNTrainer.load(tmp_path / "saved", runs_dir=None)
    assert loaded.config == trainer.config
    assert str(trainer.learner.iterate()) == str(loaded.learner.iterate())


@BOTH
def test_a_stopped_iteration_counts_completed_steps(backend):
    learner = make_episodic_learner("SAC", backend)
    learner.stop_requested = True
    assert learner.iterate() == {}
    assert learner.timesteps == 0
    learner.stop_requested = False
    learner.iterate()
    step = learner.stepper.step

    def stop_and_step(actions):
        learner.stop_requested = True
        return step(actions)

    learner.stepper.step = stop_and_step
    learner.iterate()
    assert (learner.timesteps, learner.episodes.count) == (3, 1)


def test_train_freq_is_a_count_of_steps_or_of_episodes():
    assert DQNConfig(train_freq=(4, "step")).train_freq == 4
    assert DQNConfig(train_freq=[1, "episode"]).train_freq == (1, "episode")
    assert DQNConfig().train_freq == 4
