"""Properties that DQN, SAC and TD3 have in common on both backends."""

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
from support.refusals import refuses

BOTH = pytest.mark.parametrize("backend", BACKENDS)
EVERY_CASE = pytest.mark.parametrize("case", CASES)
EVERY_ALGORITHM = pytest.mark.parametrize("algorithm", ["DQN", "SAC", "TD3"])
EVERY_MODE = pytest.mark.parametrize("mode", AutoresetMode)
TRAINERS = {"DQN": DQNTrainer, "SAC": SACTrainer, "TD3": TD3Trainer}


@BOTH
@EVERY_CASE
def test_two_runs_are_equal_and_another_seed_differs(case, backend):
    before = torch.get_rng_state()
    one, two, other = (make_learner(case, backend, seed) for seed in (3, 3, 4))
    runs = [run_iterations(each) for each in (one, two, other)]
    assert str(runs[0]) == str(runs[1]) != str(runs[2])
    assert_learners_equal(one, two)
    name = next(iter(one.state().networks))
    assert (one.state().networks[name] != other.state().networks[name]).any()
    assert torch.equal(torch.get_rng_state(), before)


@BOTH
@EVERY_CASE
def test_a_learner_continues_exactly_from_a_state(case, backend):
    one, two = make_learner(case, backend, 5), make_learner(case, backend, 6)
    run_iterations(one)
    run_iterations(two, 4)
    two.load_state(one.state())
    assert_learners_equal(one, two)
    assert (two.timesteps, two.updates) == (one.timesteps, one.updates)
    obs = np.linspace(-1, 1, 3 * one.spaces[0].shape[0]).reshape(3, -1).astype(np.float32)
    for deterministic in (True, False):
        draws = [each.predict(obs, deterministic) for each in (one, two)]
        np.testing.assert_array_equal(*draws)
    assert str(run_iterations(one)) == str(run_iterations(two))
    assert_learners_equal(one, two)


@BOTH
@EVERY_CASE
@pytest.mark.parametrize("part", ["networks", "optimizer", "replay", "counters", "streams"])
def test_a_damaged_state_is_rejected_and_changes_nothing(case, backend, part):
    one = make_learner(case, backend, 5)
    run_iterations(one)
    state, before = one.state(), one.state()
    content = getattr(state, part)
    content.pop(next(iter(content)))
    with pytest.raises(ArgumentError) as raised:
        one.load_state(state)
    assert part in (raised.value.argument, raised.value.section)
    np.testing.assert_equal(vars(one.state()), vars(before))


@BOTH
@EVERY_CASE
def test_more_due_minibatches_than_transitions_are_rejected(case, backend):
    one = make_learner(case, backend, 5)
    run_iterations(one)
    before = one.state()
    for due in (-1.0, np.nan, 2.0**31):
        state = one.state()
        state.counters["due" if backend == "native" else "owed"] = due
        with refuses(ArgumentError, "counters"):
            one.load_state(state)
    np.testing.assert_equal(vars(one.state()), vars(before))


def test_a_damaged_state_of_a_native_learner_is_rejected():
    one = make_learner("SAC", "native")
    run_iterations(one)
    before = one.state()
    for damage in (
        lambda state: state.counters.update(noise=[0.0]),
        lambda state: state.streams.pop("learning"),
        lambda state: state.counters["learned"].update(critic_loss=None),
        lambda state: state.counters["learned"].pop("actor_loss"),
    ):
        state = one.state()
        damage(state)
        with pytest.raises(ArgumentError) as raised:
            one.load_state(state)
        assert raised.value.argument in ("counters", "streams")
    np.testing.assert_equal(vars(one.state()), vars(before))


@EVERY_CASE
def test_stepping_in_python_equals_stepping_in_rust(case):
    native, stepwise = make_learner(case, "native"), make_learner(case, "native")
    stepwise.fused = False
    assert native.fused
    assert str(run_iterations(native, 30)) == str(run_iterations(stepwise, 30))
    assert_learners_equal(native, stepwise)


@BOTH
@EVERY_CASE
def test_metrics_have_the_names_of_stable_baselines3_in_every_row(case, backend):
    one = make_learner(case, backend)
    rows = run_iterations(one, 8)
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
    assert rows[-1]["time/total_timesteps"] == 8 * one.config.num_envs * one.config.train_freq


def test_a_loss_is_reported_until_the_next_one():
    settings = {"policy_delay": 5, "train_freq": 1, "num_envs": 2}
    one, again = (make_learner("TD3", "native", seed, **settings) for seed in (1, 2))
    losses = [row["train/actor_loss"] for row in run_iterations(one, 30)]
    assert len({*losses[-5:]}) == 2
    assert one.updates == 28
    again.load_state(one.state())
    assert again.iterate()["train/actor_loss"] == losses[-1]


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
def test_the_number_of_minibatches_follows_the_settings(settings, steps, updates, backend):
    one = make_learner("TD3", backend, learning_starts=0, **settings)
    for made, due in zip(steps, updates, strict=True):
        before = one.timesteps, one.updates
        one.iterate()
        assert (one.timesteps - before[0], one.updates - before[1]) == (made, due)


def test_learning_starts_after_random_steps():
    one, asked = make_learner("SAC", learning_starts=10), []
    explore = one.explore
    one.explore = lambda *args: (asked.append(one.timesteps), explore(*args))[1]
    updates = [row["train/n_updates"] for row in run_iterations(one, 12)]
    assert updates == [0] * 10 + [1, 2]
    assert asked == [10, 11]


WRAPPED = [(mode, lambda env: env) for mode in AutoresetMode]
WRAPPED += [(AutoresetMode.SAME_STEP, DictInfoToList)]  # infos are lists


@BOTH
@pytest.mark.parametrize(("mode", "wrap"), WRAPPED)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("terminate", [False, True])
def test_replay_has_every_transition_with_its_true_next_observation(
    mode, wrap, num_envs, terminate, backend
):
    env = wrap(vector(mode, *(Numbered(terminate=terminate) for _ in range(num_envs))))
    one = make_learner("TD3", backend, 1, env, num_envs=num_envs, learning_starts=1000)
    run_iterations(one, 14)
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


@BOTH
@EVERY_ALGORITHM
def test_a_reward_beyond_float32_names_its_environment_while_others_only_reset(algorithm, backend):
    space = action_space(algorithm)
    envs = Numbered(space, 2), Numbered(space, 9), Numbered(space, 9, huge_at=3)
    env = vector(AutoresetMode.NEXT_STEP, *envs)
    one = make_learner(algorithm, backend, 1, env, num_envs=3, learning_starts=100, train_freq=1)
    run_iterations(one, 2)
    assert (one.timesteps, len(one.replay)) == (6, 6)
    with refuses(NonFiniteError, "rewards", got="1e+39", env=2, step=3):
        one.iterate()
    assert (one.timesteps, len(one.replay)) == (6, 6)
    one.iterate()
    assert one.timesteps == len(one.replay) > 6


PARTS = gym.spaces.Dict(
    image=gym.spaces.Box(0, 255, (2, 3), np.uint8),
    flags=gym.spaces.MultiBinary(4),
    numbers=Numbered.observation_space,
)


def parts_of(obs):
    episode, t = obs.astype(np.uint8)
    flags = (np.arange(4) == t).astype(np.int8)
    return {"image": np.full((2, 3), 10 * episode + t), "flags": flags, "numbers": obs}


@EVERY_ALGORITHM
def test_dict_observations_with_bytes_and_flags_of_two_environments_are_stored(algorithm):
    inner = lambda: Numbered(action_space(algorithm))  # noqa: E731
    env = lambda: gym.wrappers.TransformObservation(inner(), parts_of, PARTS)  # noqa: E731
    one = make_learner(algorithm, env=env, num_envs=2, learning_starts=8, train_freq=1)
    run_iterations(one, 12)
    assert one.updates > 0
    batch = one.replay.buffer.sample(24, seed=0)
    episode, t = batch["obs"]["numbers"].T.astype(int)
    assert {*t} == {0, 1, 2}
    assert np.array_equal(batch["obs"]["flags"], np.arange(4) == t[:, None])
    assert np.array_equal(batch["next_obs"]["flags"], np.arange(4) == t[:, None] + 1)
    number = np.broadcast_to((10 * episode + t)[:, None, None], (24, 2, 3))
    assert np.array_equal(batch["obs"]["image"], number)
    assert np.array_equal(batch["next_obs"]["image"], number + 1)


@EVERY_MODE
def test_native_environments_give_the_same_transitions_in_every_mode(mode):
    env = make_vec("CartPole-v1", 2, autoreset_mode=mode, max_episode_steps=5)
    one = make_learner("DQN", env=env, num_envs=2, train_freq=4, learning_starts=1000)
    run_iterations(one, 6)
    assert one.episodes.count >= 4
    assert one.timesteps == 48
    batch = one.replay.buffer.sample(len(one.replay), 0)
    moved = np.abs(batch["next_obs"][:, 0] - batch["obs"][:, 0] - 0.02 * batch["obs"][:, 1])
    assert moved.max() < 1e-6  # one step of physics, never a reset


def test_actions_are_stored_between_minus_one_and_one_and_sent_within_bounds():
    env = Numbered(gym.spaces.Box(np.float32([-2, 0]), np.float32([2, 10])))
    one = make_learner("TD3", env=vector(AutoresetMode.SAME_STEP, env), learning_starts=10)
    run_iterations(one, 20)
    assert all(map(env.action_space.contains, env.sent))
    stored = one.replay.buffer.sample(len(one.replay), 0)["actions"]
    assert np.abs(stored).max() <= 1
    apart = np.abs(stored[:, None] - [0.5, 0.2] * (np.array(env.sent) - [0, 5])[None]).max(2)
    assert apart.min(1).max() < 1e-5


def test_native_actions_have_the_dtype_and_bounds_of_the_space():
    space = gym.spaces.Box(np.array([-3.0, 0.0]), np.array([1.0, 9.0]), dtype=np.float64)
    one = make_learner("TD3", "native", env=lambda: Answer(space))
    run_iterations(one, 20)
    assert all(map(space.contains, one.predict(np.ones((5, 2), np.float32))))


def test_raw_observations_are_stored_and_normalised_ones_learned_from():
    one = make_learner("SAC, normalised")
    run_iterations(one)
    raw = one.replay.buffer.sample(16, np.random.default_rng(7))
    batch = one.replay.sample(np.random.default_rng(7), one.normalizer)
    np.testing.assert_array_equal(batch.obs, one.normalizer.normalize_obs(raw["obs"]))
    np.testing.assert_array_equal(batch.next_obs, one.normalizer.normalize_obs(raw["next_obs"]))
    deviation = np.sqrt(one.normalizer.state()["return_var"][0] + 1e-8)
    np.testing.assert_allclose(batch.rewards, (raw["rewards"] / deviation).clip(-10, 10), 1e-6)
    counted = one.normalizer.state()["obs_count"][0]
    assert counted == pytest.approx(one.timesteps + 3, abs=0.01)  # and the first observations


@EVERY_MODE
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("terminate", [False, True])
def test_statistics_are_of_the_observations_acted_on_and_of_returns(mode, num_envs, terminate):
    env = vector(mode, *(Numbered(terminate=terminate) for _ in range(num_envs)))
    settings = {"normalize_obs": True, "normalize_reward": True, "learning_starts": 8}
    one = make_learner("TD3", env=env, num_envs=num_envs, **settings)
    while one.timesteps < 12 * num_envs:
        one.iterate()
    assert one.episodes.count == 4 * num_envs
    statistics = one.normalizer.state()
    seen = [(episode, t) for episode in range(4) for t in range(3)]
    if mode is not AutoresetMode.NEXT_STEP:
        seen.append((4, 0))  # which that mode resets to in its next step
    np.testing.assert_allclose(statistics["obs_mean"], np.mean(seen, 0), rtol=1e-3)
    np.testing.assert_allclose(statistics["obs_var"], np.var(seen, 0), rtol=1e-3)
    returns = [1.0, 1.0 * 0.99 + 2, (1.0 * 0.99 + 2) * 0.99 + 3]
    np.testing.assert_allclose(statistics["return_var"], np.var(returns), rtol=1e-3)


def test_minibatches_share_memory_that_is_used_again():
    one = make_learner("SAC")
    run_iterations(one, 30)
    first, second = (one.replay.sample(one.streams["minibatches"], None) for _ in "ab")
    assert first.obs.data_ptr() == second.obs.data_ptr()


@EVERY_ALGORITHM
def test_nan_in_a_parameter_ends_the_run(algorithm):
    one = make_learner(algorithm)
    run_iterations(one, 8)
    with torch.no_grad():
        next(one.policy.parameters())[0, 0] = np.nan
    with pytest.raises(NonFiniteError) as raised:
        run_iterations(one, 30)
    assert raised.value.got.lower().startswith("nan")


@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_native_weights_that_overflow_end_the_run_and_nothing_moves(algorithm):
    one = make_learner(algorithm, "native")
    run_iterations(one, 8)
    tensors = one.policy.tensors()
    tensors["critic.qf0.2.weight"] = np.full_like(tensors["critic.qf0.2.weight"], 3e38)
    one.policy.load(tensors)
    with pytest.raises(NonFiniteError):
        one.iterate()
    after = one.policy.tensors()
    for name in ("log_alpha", "actor.0.weight", "critic.qf0.0.weight", "critic.qf1.0.weight"):
        assert name not in after or (after[name] == tensors[name]).all()


@BOTH
@EVERY_ALGORITHM
def test_predictions_are_in_the_action_space_and_repeat(algorithm, backend):
    one = make_learner(algorithm, backend)
    run_iterations(one, 4)
    obs = np.linspace(-0.1, 0.1, 5 * one.spaces[0].shape[0], dtype=np.float32).reshape(5, -1)
    space = one.spaces[1]
    for deterministic in (True, False):
        drawn = [one.predict(obs, deterministic, np.random.default_rng(1)) for _ in "ab"]
        np.testing.assert_array_equal(*drawn)
        assert all(space.contains(action) for action in drawn[0])
    assert space.contains(one.predict(obs[0]))
    assert one.predict(obs[:0]).shape == (0, *space.shape)


def test_settings_of_the_torch_backend_are_rejected_on_the_native_one():
    with refuses(ArgumentError, "her", "torch", got="'future'"):
        make_learner("SAC", "native", her="future")
    with refuses(ArgumentError, "normalize_obs"):
        make_learner("DQN", "native", env="FrozenLake-v1", normalize_obs=True)
    with refuses(ArgumentError, "policy", 'pass backend="torch"'):
        SACTrainer("Pendulum-v1", backend="native", policy=Numbered, runs_dir=None)


@BOTH
def test_invalid_calls_are_rejected(backend):
    env = make_vec("CartPole-v1", 2, autoreset_mode="NextStep")
    with refuses(ArgumentError, "n_steps", got="3"):
        make_learner("DQN", backend, env=env, num_envs=2, n_steps=3)
    one = make_learner("TD3", backend)
    with refuses(ArgumentError, "progress", got="1.5"):
        one.iterate(1.5)
    with refuses(ArgumentTypeError, "state", got="dict"):
        one.load_state({})


@pytest.mark.parametrize("value", [(1, "epoch"), (0, "episode"), (1.0, "episode"), (1,)], ids=str)
def test_invalid_train_freq_is_rejected(value):
    with refuses(ArgumentError, "train_freq", got=str(value)):
        SACConfig(train_freq=value)


RUN = {**SMALL, "batch_size": 8, "learning_starts": 20, "train_freq": 1, "gradient_steps": 1}


@BOTH
@EVERY_ALGORITHM
def test_a_run_folder_has_rows_from_before_the_first_update(algorithm, backend, tmp_path):
    env = "CartPole-v1" if algorithm == "DQN" else "Pendulum-v1"
    trainer = TRAINERS[algorithm](env, seed=1, backend=backend, runs_dir=tmp_path, **RUN)
    result = trainer.train(40)
    assert (result["timesteps"], result["checkpoint_warning"]) == (40, None)
    with open(trainer.run.path / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["time/total_timesteps"]) for row in rows] == list(range(1, 41))
    loss = "train/loss" if algorithm == "DQN" else "train/critic_loss"
    learned = [not math.isnan(float(row[loss])) for row in rows]
    assert learned == [False] * 20 + [True] * 20
    assert (trainer.run.path / "checkpoint").is_dir()


@BOTH
@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("native_env", [True, False])
def test_a_run_makes_all_its_steps_where_environments_reset_in_steps(native_env, num_envs, backend):
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
    """Episodes have 2, 3, 4, 2, 3, 4 ... steps; truncations and terminations alternate."""

    def reset(self, *, seed=None, options=None):
        start = super().reset()
        self.limit, self.terminate = 2 + self.episode % 3, self.episode % 2 == 1
        return start


def whole_episodes(algorithm, backend, mode=AutoresetMode.SAME_STEP, **settings):
    env = vector(mode, Longer(action_space(algorithm)))
    settings = {"train_freq": (1, "episode"), "learning_starts": 0, **settings}
    return make_learner(algorithm, backend, 1, env, **settings)


@BOTH
@EVERY_MODE
@EVERY_ALGORITHM
def test_iterations_of_whole_episodes_have_the_configured_minibatches(algorithm, mode, backend):
    one, counts = whole_episodes(algorithm, backend, mode, gradient_steps=-1), []
    for _ in range(4):
        one.iterate()
        counts.append((one.timesteps, one.updates, one.episodes.count))
    assert counts == [(2, 2, 1), (5, 5, 2), (9, 9, 3), (11, 11, 4)]
    one = whole_episodes(algorithm, backend, mode, train_freq=(2, "episode"), gradient_steps=3)
    run_iterations(one, 2)
    assert (one.timesteps, one.updates, one.episodes.count) == (11, 6, 4)


@BOTH
def test_iterations_of_whole_episodes_are_resumed(backend, tmp_path):
    how = {"train_freq": (1, "episode"), "backend": backend, "runs_dir": None, **SMALL}
    one = DQNTrainer("CartPole-v1", 1, **how)
    for _ in range(5):
        before = one.learner.episodes.count
        one.learner.iterate()
        assert one.learner.episodes.count == before + 1
    one.save(tmp_path / "saved")
    two = DQNTrainer.load(tmp_path / "saved", runs_dir=None)
    assert two.config == one.config
    assert str(one.learner.iterate()) == str(two.learner.iterate())


@BOTH
def test_stopping_ends_an_iteration_and_keeps_its_steps(backend):
    one = whole_episodes("SAC", backend)
    one.stop_requested = True
    assert one.iterate() == {}
    assert one.timesteps == 0
    one.stop_requested = False
    one.iterate()
    step = one.stepper.step

    def last(actions):
        one.stop_requested = True
        return step(actions)

    one.stepper.step = last
    one.iterate()
    assert (one.timesteps, one.episodes.count) == (3, 1)


def test_train_freq_is_a_count_of_steps_or_of_episodes():
    assert DQNConfig(train_freq=(4, "step")).train_freq == 4
    assert DQNConfig(train_freq=[1, "episode"]).train_freq == (1, "episode")
    assert DQNConfig().train_freq == 4
