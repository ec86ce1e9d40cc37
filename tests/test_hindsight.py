"""`HindsightReplayBuffer`: goals that the same episode reached, and the rewards for them."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import rlox
from support.envs import BitFlip, PointMass

SIZES = {"observation": 1, "achieved_goal": 1, "desired_goal": 1}


def obs_of(achieved, desired=-1.0):
    column = np.reshape(np.float32(achieved), (-1, 1))
    goal = np.full_like(column, desired)
    return {"observation": column, "achieved_goal": column, "desired_goal": goal}


def distance(achieved, desired, info):
    return -np.abs(achieved - desired)[:, 0]


def made(capacity, num_envs=1, **keywords):
    keywords = {"compute_reward": distance, "seed": 0, **keywords}
    return rlox.HindsightReplayBuffer(capacity, SIZES, 1, num_envs=num_envs, **keywords)


class Walks:
    """Environments that reach another goal with every step."""

    def __init__(self, seed, num_envs):
        self.rng, self.n = np.random.default_rng(seed), num_envs
        self.at = 10_000.0 * np.arange(num_envs)
        self.rows = []  # (achieved, whether the episode ends) by number

    def push(self, buffer):
        done = self.rng.random(self.n) < 0.2
        last = done | (self.rng.random(self.n) < 0.1)
        zeros = np.zeros((self.n, 1))
        no = np.zeros(self.n, bool)
        buffer.push_batch(
            obs_of(self.at), obs_of(self.at + 1), zeros, np.full(self.n, 7.0), no, done
        )
        self.rows += zip(self.at.copy(), last, strict=True)
        self.at += np.where(last, 7.0, 1.0)

    def goals(self, i, held, strategy):
        """What the steps of a transition's episode have reached, step by step."""
        first = end = i
        while first - self.n >= held.start and not self.rows[first - self.n][1]:
            first -= self.n
        while not self.rows[end][1] and end + self.n < held.stop:
            end += self.n
        start = {"future": i, "final": end, "episode": first}[strategy]
        return {self.rows[step][0] + 1 for step in range(start, end + 1, self.n)}


@settings(max_examples=40, deadline=None)
@given(
    strategy=st.sampled_from(["future", "final", "episode"]),
    capacity=st.integers(1, 14),
    num_envs=st.integers(1, 3),
    steps=st.integers(1, 25),
    k=st.integers(0, 5),
    seed=st.integers(0, 1 << 32),
)
def test_goals_and_rewards_equal_a_slow_reference(strategy, capacity, num_envs, steps, k, seed):
    buffer = made(capacity, num_envs, strategy=strategy, n_sampled_goal=k)
    walks = Walks(seed, num_envs)
    for _ in range(steps):
        walks.push(buffer)
    held = range(len(walks.rows) - len(buffer), len(walks.rows))
    number = {walks.rows[i][0]: i for i in held}
    count = len(buffer)
    for draw in range(20):
        batch = buffer.sample(count, draw)
        achieved, reached = (
            batch[name]["achieved_goal"][:, 0].astype(float) for name in ("obs", "next_obs")
        )
        goals, rewards = batch["obs"]["desired_goal"][:, 0].astype(float), batch["rewards"]
        assert np.array_equal(reached, achieved + 1)
        assert np.array_equal(goals, batch["next_obs"]["desired_goal"][:, 0])
        changed = count * k // (k + 1)
        assert np.array_equal(goals[changed:], np.full(count - changed, -1.0))
        assert np.array_equal(rewards[changed:], np.full(count - changed, 7.0))
        assert np.array_equal(rewards[:changed], -np.abs(reached - goals)[:changed])
        for at, goal in zip(achieved[:changed], goals[:changed], strict=True):
            assert goal in walks.goals(number[at], held, strategy)
        assert not batch["terminated"].any()


def test_later_steps_are_as_likely_as_each_other():
    buffer = made(10)
    for t in range(10):
        buffer.push(
            {name: x[0] for name, x in obs_of(t).items()},
            [0.0],
            0.0,
            False,
            t == 9,
            {name: x[0] for name, x in obs_of(t + 1).items()},
        )
    goals = []
    for draw in range(3000):
        batch = buffer.sample(10, draw)
        first = batch["obs"]["achieved_goal"][:8, 0] == 4
        goals += batch["obs"]["desired_goal"][:8, 0][first].tolist()
    counts = np.bincount(np.int64(goals), minlength=11)[5:]
    expected = len(goals) / 6
    assert ((counts - expected) ** 2 / expected).sum() < 26  # 5 degrees of freedom: p = 0.0001


def test_rewards_and_ends_are_computed_once_a_batch():
    env, calls = BitFlip(4, ends_at_goal=True), []

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
    for seed in range(10):
        obs, _ = env.reset(seed=seed)
        done = False
        while not done:
            action = env.np_random.integers(4)
            following, reward, terminated, truncated, _ = env.step(action)
            cost = {"cost": [1.0, 2.0]}
            buffer.push(obs, action, reward, terminated, truncated, following, extra=cost)
            obs, done = following, terminated or truncated
    batch = buffer.sample(20, 0)
    assert calls == [((16, 4), (16, 4), {"cost": (16, 2)})]
    met = (batch["next_obs"]["achieved_goal"] == batch["next_obs"]["desired_goal"]).all(1)
    assert np.array_equal(batch["rewards"], np.where(met, 0.0, -1.0))
    assert np.array_equal(batch["terminated"], met)
    assert met.any()
    again = buffer.sample(20, 0, out=batch)
    assert again is batch
    assert len(calls) == 2


def test_seeds_repeat_and_buffers_are_saved_and_loaded(tmp_path):
    buffer, walks = made(20, 2), Walks(3, 2)
    for _ in range(15):
        walks.push(buffer)
    buffer.save(tmp_path / "buffer")
    loaded = rlox.HindsightReplayBuffer.load(tmp_path / "buffer", distance)
    copy = made(20, 2)
    copy.load_state(buffer.state())
    for seed in (None, None, 5):
        first, *others = [b.sample(16, seed) for b in (buffer, loaded, copy)]
        for other in others:
            assert np.array_equal(first["rewards"], other["rewards"])
            for name, array in first["obs"].items():
                assert np.array_equal(array, other["obs"][name])
    assert isinstance(loaded, rlox.ReplayBuffer)
    with pytest.raises(ValueError, match="path: expected a ReplayBuffer, got a HindsightReplay"):
        rlox.ReplayBuffer.load(tmp_path / "buffer")
    rlox.ReplayBuffer(5, 1, 1).save(tmp_path / "plain")
    with pytest.raises(ValueError, match="path: expected a HindsightReplayBuffer, got something"):
        rlox.HindsightReplayBuffer.load(tmp_path / "plain", distance)
    with pytest.raises(TypeError, match="compute_reward: expected a function"):
        rlox.HindsightReplayBuffer.load(tmp_path / "buffer", None)
    (tmp_path / "buffer" / "replay.safetensors").write_bytes(b"")
    with pytest.raises(rlox.CorruptFileError, match="section replay"):
        rlox.HindsightReplayBuffer.load(tmp_path / "buffer", distance)


@pytest.mark.parametrize(
    ("keywords", "error", "said"),
    [
        ({"strategy": "past"}, ValueError, "strategy: expected future, final or episode"),
        ({"n_sampled_goal": -1}, ValueError, "n_sampled_goal: expected zero or a positive"),
        ({"compute_reward": None}, TypeError, "compute_reward: expected a function"),
        ({"compute_terminated": 3}, TypeError, "compute_terminated: expected a function"),
    ],
)
def test_settings_that_make_no_sense_are_refused(keywords, error, said):
    with pytest.raises(error, match=said):
        made(10, **keywords)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"observation": 1, "achieved_goal": 1}, "obs_dim: expected the keys observation"),
        (3, "obs_dim: expected the keys observation"),
        ({**SIZES, "desired_goal": 2}, "desired_goal: expected F32"),
    ],
)
def test_observations_without_goals_are_refused(sizes, said):
    with pytest.raises(ValueError, match=said):
        rlox.HindsightReplayBuffer(10, sizes, 1, compute_reward=distance)


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (lambda *_: 0.0, r"compute_reward: expected shape \(8,\), got \(\)"),
        (lambda *_: np.zeros(7), r"compute_reward: expected shape \(8,\), got \(7,\)"),
        (
            lambda *_: np.full(8, np.nan),
            "compute_reward: expected finite numbers, got nan in row 0",
        ),
        (
            lambda *_: np.r_[np.zeros(3), np.full(5, -1e300)],
            r"compute_reward: expected finite numbers, got -1e\+300 in row 3, beyond float32",
        ),
        (lambda *_: [10**400] * 8, "compute_reward: expected 8 numbers, got list"),
        (lambda *_: np.zeros(8) + 1j, "compute_reward: expected 8 numbers, got ndarray"),
        (lambda *_: ["a"] * 8, "compute_reward: expected 8 numbers, got list"),
    ],
)
def test_rewards_that_make_no_sense_are_refused(gives, said):
    buffer, walks = made(20, compute_reward=gives), Walks(0, 1)
    for _ in range(12):
        walks.push(buffer)
    with pytest.raises(ValueError, match=said):
        buffer.sample(10)


def spoil(achieved, desired, info):
    achieved -= desired
    return np.zeros(len(achieved))


def test_a_function_that_writes_to_what_was_sampled_is_refused():
    buffer, walks = made(20, compute_reward=spoil), Walks(0, 1)
    for _ in range(12):
        walks.push(buffer)
    with pytest.raises(RuntimeError, match="compute_reward") as raised:
        buffer.sample(10)
    assert "read-only" in str(raised.value.__cause__)


def filled(**keywords):
    buffer, walks = made(20, **keywords), Walks(0, 1)
    for _ in range(12):
        walks.push(buffer)
    return buffer


@pytest.mark.parametrize("no", [False, np.False_, np.array(False)])
def test_false_for_all_is_false_for_each(no):
    asked = []

    def never(achieved, desired, info):
        asked.append(len(achieved))
        return no

    buffer = filled(compute_terminated=never)
    assert not buffer.sample(10)["terminated"].any()
    assert asked == [8]


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (True, r"expected 8 flags, or False for all, got True for all"),
        (np.True_, r"expected 8 flags, or False for all, got True for all"),
        (0, r"expected shape \(8,\), got \(\)"),
        ([np.nan] * 8, "expected finite numbers, got nan in row 0"),
    ],
)
def test_flags_that_make_no_sense_are_refused(gives, said):
    buffer = filled(compute_terminated=lambda *_: gives)
    with pytest.raises(ValueError, match=f"^compute_terminated: {said}"):
        buffer.sample(10)


@pytest.mark.parametrize("kind", [BitFlip, PointMass])
def test_the_goal_environments_are_gymnasiums(kind):
    check_env(kind(), skip_render_check=True)
