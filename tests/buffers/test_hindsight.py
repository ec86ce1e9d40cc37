"""`HindsightReplayBuffer`: relabelled goals, rewards and terminations."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import rlox
from rlox import ArgumentError, ArgumentTypeError, NonFiniteError
from support.envs import BitFlip, PointMass
from support.rejections import Rejection, expect_rejection, rejections, rejects
from support.replay import assert_batches_equal

SIZES = {"observation": 1, "achieved_goal": 1, "desired_goal": 1}


def distance(achieved, desired, info):
    return -np.abs(achieved - desired)[:, 0]


def make_buffer(capacity=20, compute_reward=distance, num_envs=1, **keywords):
    keywords = {"compute_reward": compute_reward, "num_envs": num_envs, "seed": 0, **keywords}
    return rlox.HindsightReplayBuffer(capacity, SIZES, 1, **keywords)


def make_filled(*args, lengths=(12,), **keywords):
    """Return a buffer of episodes whose step t reaches goal t + 1, plus 1,000 per environment."""
    buffer = make_buffer(*args, **keywords)
    column = 1000.0 * np.arange(buffer.num_envs)[:, None]
    zeros = np.zeros_like(column)
    for length in lengths:
        for i in range(length):
            obs, next_obs = (
                {"observation": x, "achieved_goal": x, "desired_goal": zeros - 1} for x in (column, column + 1)
            )
            ended = np.full(buffer.num_envs, i + 1 == length)
            buffer.push_batch(obs, next_obs, zeros, zeros[:, 0] + 7, zeros[:, 0] > 0, ended)
            column += 1
    return buffer


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_relabelled_goals_are_reached_in_the_same_episode(strategy, k):
    buffer = make_filled(20, num_envs=2, lengths=(4, 3, 5), strategy=strategy, n_sampled_goal=k)
    goals_of = {}
    for seed in range(100):
        batch = buffer.sample(20, seed)
        achieved, reached, goals, next_goals = (
            batch[name][goal][:, 0] for goal in ("achieved_goal", "desired_goal") for name in ("obs", "next_obs")
        )
        assert np.array_equal(reached, achieved + 1)
        assert np.array_equal(goals, next_goals)
        changed = 20 * k // (k + 1)
        assert (goals[changed:] == -1).all()
        assert (batch["rewards"][changed:] == 7).all()
        assert np.array_equal(batch["rewards"][:changed], -np.abs(reached - goals)[:changed])
        assert not batch["terminated"].any()
        for start, goal in zip(achieved[:changed], goals[:changed], strict=True):
            assert start // 1000 == goal // 1000
            goals_of.setdefault(start % 1000, set()).add(goal % 1000)
    expected = {}
    for episode in (range(2, 4), range(4, 7), range(7, 12)):  # steps 0 and 1 are overwritten
        for t in episode if k else ():
            start = {"future": t, "final": episode[-1], "episode": episode[0]}[strategy]
            expected[t] = {step + 1 for step in range(start, episode.stop)}
    assert goals_of == expected


def test_goals_are_sampled_uniformly_from_later_steps():
    buffer, goals = make_filled(12), []
    for seed in range(3000):
        obs = buffer.sample(10, seed)["obs"]
        rows = obs["achieved_goal"][:8, 0] == 6
        goals += obs["desired_goal"][:8, 0][rows].tolist()
    counts = np.bincount(np.int64(goals), minlength=13)[7:]
    expected = len(goals) / 6
    assert ((counts - expected) ** 2 / expected).sum() < 26  # 5 degrees of freedom: p = 0.0001


def test_rewards_and_terminations_are_computed_once_per_batch():
    env, calls = BitFlip(4, terminates_at_goal=True), []

    def compute_reward(achieved, desired, info):
        calls.append((achieved.shape, desired.shape, {k: v.shape for k, v in info.items()}))
        return env.compute_reward(achieved, desired, info)

    buffer = rlox.HindsightReplayBuffer(
        100,
        {name: box.shape for name, box in env.observation_space.items()},
        (),
        compute_reward=compute_reward,
        compute_terminated=env.compute_terminated,
        act_dtype="int64",
        extra={"cost": (2, "float32")},
        strategy="final",
    )
    cost = {"cost": [1.0, 2.0]}
    for seed in range(10):
        (obs, _), done = env.reset(seed=seed), False
        while not done:
            action = env.np_random.integers(4)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            buffer.push(obs, action, reward, terminated, truncated, next_obs, extra=cost)
            obs, done = next_obs, terminated or truncated
    batch = buffer.sample(20, 0)
    assert calls == [((16, 4), (16, 4), {"cost": (16, 2)})]
    is_reached = (batch["next_obs"]["achieved_goal"] == batch["next_obs"]["desired_goal"]).all(1)
    assert np.array_equal(batch["rewards"], np.where(is_reached, 0.0, -1.0))
    assert np.array_equal(batch["terminated"], is_reached)
    assert is_reached.any()
    assert buffer.sample(20, 0, out=batch) is batch
    assert len(calls) == 2


def test_saved_and_loaded_buffers_sample_the_same_batches(tmp_path):
    buffer = make_filled(20, num_envs=2, lengths=(4, 9))
    path, load = tmp_path / "buffer", rlox.HindsightReplayBuffer.load
    buffer.save(path)
    loaded, copy = load(path, distance), make_buffer(20, num_envs=2)
    copy.load_state(buffer.state())
    for seed in (None, None, 5):
        first, *others = [b.sample(16, seed) for b in (buffer, loaded, copy)]
        for other in others:
            assert_batches_equal(first, other)
    assert isinstance(loaded, rlox.ReplayBuffer)
    rlox.ReplayBuffer(5, 1, 1).save(tmp_path / "plain")
    for call, error, argument in (
        (lambda: rlox.ReplayBuffer.load(path), ArgumentError, "path"),
        (lambda: load(tmp_path / "plain", distance), ArgumentError, "path"),
        (lambda: load(path, None), ArgumentTypeError, "compute_reward"),
    ):
        expect_rejection(Rejection(call, error, argument))
    (path / "replay.safetensors").write_bytes(b"")
    with rejects(rlox.CorruptFileError, str(path / "replay.safetensors"), section="replay"):
        load(path, distance)


def make_with_sizes(sizes):
    return rlox.HindsightReplayBuffer(10, sizes, 1, compute_reward=distance)


@rejections(
    (lambda: make_buffer(strategy="past"), ArgumentError, "strategy"),
    (lambda: make_buffer(n_sampled_goal=-1), ArgumentError, "n_sampled_goal"),
    (lambda: make_buffer(10, None), ArgumentTypeError, "compute_reward"),
    (lambda: make_buffer(compute_terminated=3), ArgumentTypeError, "compute_terminated"),
    (lambda: make_with_sizes({"observation": 1, "achieved_goal": 1}), ArgumentError, "obs_dim"),
    (lambda: make_with_sizes(3), ArgumentError, "obs_dim"),
    (lambda: make_with_sizes({**SIZES, "desired_goal": 2}), ArgumentError, "obs.desired_goal"),
)
def test_invalid_settings_are_rejected(rejection):
    expect_rejection(rejection)


def overwrite_achieved(achieved, desired, info):
    achieved -= desired


HUGE = np.r_[np.zeros(3), np.full(5, -1e300)]
BAD_REWARDS = {
    "scalar": (0.0, ArgumentError),
    "shape": (np.zeros(7), ArgumentError),
    "NaN": (np.full(8, np.nan), NonFiniteError),
    "beyond float32": (HUGE, NonFiniteError),
    "beyond float64": ([10**400] * 8, ArgumentError),
    "complex": (np.zeros(8) + 1j, ArgumentError),
}
BAD_FLAGS = {"True for all": (True, ArgumentError), "number": (0, ArgumentError), "NaN": ([np.nan] * 8, NonFiniteError)}


@pytest.mark.parametrize(
    ("name", "result", "error"),
    [
        pytest.param(name, *row, id=f"{name} {case}")
        for name, rows in (("compute_reward", BAD_REWARDS), ("compute_terminated", BAD_FLAGS))
        for case, row in rows.items()
    ],
)
def test_invalid_results_of_functions_are_rejected(name, result, error):
    buffer = make_filled(**{name: lambda *_: result})
    expect_rejection(Rejection(buffer.sample, error, name), 10)


def test_a_function_that_writes_to_its_arguments_is_rejected():
    with rejects(RuntimeError, "compute_reward failed") as raised:
        make_filled(20, overwrite_achieved).sample(10)
    assert type(raised.value.__cause__) is ValueError


@pytest.mark.parametrize("value", [False, np.False_, np.array(False)], ids=repr)
def test_a_scalar_false_terminates_no_transition(value):
    calls = []

    def never(achieved, desired, info):
        calls.append(len(achieved))
        return value

    assert not make_filled(compute_terminated=never).sample(10)["terminated"].any()
    assert calls == [8]


@pytest.mark.parametrize("cls", [BitFlip, PointMass])
def test_goal_environments_pass_gymnasiums_checker(cls):
    check_env(cls(), skip_render_check=True)
