"""Buffers that are saved and loaded, or take another's state, go on exactly as the original."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlox
from replay_rows import check, transition


def flat(batch):
    """Arrays of a batch, those of Dict observations by both names."""
    for name, value in batch.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", array) for key, array in value.items())
        else:
            yield name, value


def assert_equal(first, second):
    first, second = dict(flat(first)), dict(flat(second))
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype
        assert np.array_equal(array, second[name]), name


class Stacks:
    """An environment of stacked frames; now and then one starts anew without a flag."""

    def __init__(self, seed, frames):
        self.rng, self.frames = np.random.default_rng(seed), frames
        self.obs = self.new()

    def new(self):
        frame = self.rng.integers(0, 4, (1, 2), np.uint8)
        return np.repeat(frame, self.frames, 0)

    def step(self):
        frame = self.rng.integers(0, 4, (1, 2), np.uint8)
        obs, following = self.obs, np.concatenate([self.obs[1:], frame])
        if self.rng.random() < 0.1:
            following = self.new()
        terminated, truncated = self.rng.random(2) < 0.15
        anew = terminated or truncated or self.rng.random() < 0.1
        self.obs = self.new() if anew else following
        return obs, self.rng.integers(9), self.rng.random(), terminated, truncated, following


def run(buffers, envs, steps, rng):
    """Pushes the same time steps to all buffers, with next observations promised now and then."""
    for _ in range(steps):
        rows = [env.step() for env in envs]
        obs, actions, rewards, terminated, truncated, following = map(
            np.array, zip(*rows, strict=True)
        )
        kept = all(np.array_equal(env.obs, row[-1]) for env, row in zip(envs, rows, strict=True))
        promised = kept and not (terminated | truncated).any() and rng.random() < 0.3
        for buffer in buffers:
            buffer.push_batch(
                obs, None if promised else following, actions, rewards, terminated, truncated
            )
        if isinstance(buffers[0], rlox.PrioritizedReplayBuffer) and len(buffers[0]) > len(envs):
            for buffer in buffers:
                drawn = buffer.sample(1)["indices"]
                buffer.update_priorities(drawn, drawn % 5 + 0.5)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([rlox.ReplayBuffer, rlox.PrioritizedReplayBuffer]),
    capacity=st.integers(1, 25),
    num_envs=st.integers(1, 3),
    frames=st.integers(1, 3),
    n_step=st.integers(1, 3),
    before=st.integers(0, 40),
    seed=st.integers(0, 1 << 32),
)
def test_buffers_go_on_as_the_original(
    tmp_path_factory, kind, capacity, num_envs, frames, n_step, before, seed
):
    sizes = {"obs_dtype": "uint8", "act_dtype": "int64", "num_envs": num_envs}
    options = {**sizes, "frame_stack": frames, "n_step": n_step, "gamma": 0.9}
    original = kind(capacity, (frames, 2), (), seed=seed, **options)
    envs, rng = [Stacks(seed + i, frames) for i in range(num_envs)], np.random.default_rng(seed)
    run([original], envs, before, rng)
    copy = kind(capacity, (frames, 2), (), seed=1, **options)
    run([copy], [Stacks(9, frames) for _ in envs], 5, rng)
    copy.load_state(original.state())
    folder = tmp_path_factory.mktemp("buffers") / "buffer"
    original.save(folder)
    loaded = kind.load(folder)
    shutil.rmtree(folder)
    everyone = [original, copy, loaded]
    assert len({(type(b), len(b), b.capacity, b.num_envs) for b in everyone}) == 1
    for _ in range(12):
        run(everyone, envs, 1, rng)
        count = len(original) - num_envs
        if count > 0:
            for arguments in [(count,), (count, 7)]:
                first, *others = [b.sample(*arguments) for b in everyone]
                for other in others:
                    assert_equal(first, other)
    first, *others = [b.state() for b in everyone]
    for other in others:
        assert_equal(first, other)


def test_parts_and_extras_have_arrays_of_their_own(tmp_path):
    buffer = rlox.ReplayBuffer(
        10, {"a": 2, "b": ((3,), "int64")}, 1, extra={"cost": ((), "float64"), "seen": (2, "bool")}
    )
    for i in range(13):
        obs = {"a": [i, i], "b": [i, i, 0]}
        extra = {"cost": i / 3, "seen": [i % 2 == 0, True]}
        buffer.push(obs, [i], i, False, i % 4 == 3, {"a": [i + 1, i], "b": [0, 0, i]}, extra=extra)
    arrays = buffer.state()
    assert arrays["step.obs.b"].dtype == np.int64
    assert arrays["step.cost"].tolist() == [i / 3 for i in range(3, 13)]
    assert arrays["step.seen"].dtype == bool
    buffer.save(tmp_path / "buffer")
    assert_equal(rlox.ReplayBuffer.load(tmp_path / "buffer").sample(10, 3), buffer.sample(10, 3))


def filled(count=5, **keywords):
    buffer = rlox.ReplayBuffer(4, 2, 1, seed=0, **keywords)
    for i in range(count):
        buffer.push(*transition(i, truncated=i % 3 == 2))
    return buffer


@pytest.mark.parametrize("name", sorted(filled().state()))
def test_arrays_that_make_no_sense_are_refused_by_name_and_nothing_changes(name):
    buffer, state = filled(2), filled().state()
    before = buffer.state()
    array = state[name]
    strange = [np.zeros((99, 3)), np.array(["x"]), np.float16([1]), np.int32(3), None, "abc", [[1]]]
    for wrong in [*strange, np.concatenate([array, array])]:
        with pytest.raises((ValueError, TypeError), match="arrays"):
            buffer.load_state({**state, name: wrong})
    without = {key: value for key, value in state.items() if key != name}
    with pytest.raises(ValueError, match=rf'arrays\["{name}"\]: expected an array, got none'):
        buffer.load_state(without)
    if array.dtype.kind == "f" and array.size and name != "gamma":
        with pytest.raises(ValueError, match=rf'arrays\["{name}"\]: expected finite numbers, got'):
            buffer.load_state({**state, name: np.full_like(array, np.nan)})
    assert_equal(buffer.state(), before)
    assert set(check(buffer.sample(2))) <= {0, 1}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (rlox.ReplayBuffer(5, 2, 1), r'arrays\["capacity"\]: expected 5, got 4'),
        (rlox.ReplayBuffer(4, 3, 1), r'arrays\["step.obs"\]: expected shape \[4, 3\], got'),
        (rlox.ReplayBuffer(4, 2, 1, act_dtype="int64"), r'arrays\["step.actions"\]: expected I64'),
        (rlox.ReplayBuffer(4, 2, 1, num_envs=2), r'arrays\["num_envs"\]: expected 2, got 1'),
        (rlox.ReplayBuffer(4, 2, 1, n_step=2), r'arrays\["n_step"\]: expected 2, got 1'),
        (rlox.PrioritizedReplayBuffer(4, 2, 1), r'arrays\["priorities"\]: expected an array'),
        (rlox.ReplayBuffer(4, 2, 1, extra={"x": ((), "bool")}), r'arrays\["step.x"\]: expected'),
    ],
)
def test_states_of_other_buffers_are_refused(other, said):
    with pytest.raises(ValueError, match=said):
        other.load_state(filled().state())
    assert len(other) == 0


def test_other_classes_and_places_are_refused(tmp_path):
    filled().save(tmp_path / "plain")
    with pytest.raises(ValueError, match="path: expected a PrioritizedReplayBuffer"):
        rlox.PrioritizedReplayBuffer.load(tmp_path / "plain")
    with pytest.raises(FileNotFoundError):
        rlox.ReplayBuffer.load(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path):
        with pytest.raises(FileExistsError):
            filled().save(path)
    filled(3).save(tmp_path / "plain")
    assert len(rlox.ReplayBuffer.load(tmp_path / "plain")) == 3
    for wrong in (None, 3, b"x\0"):
        with pytest.raises((TypeError, ValueError, OSError)):
            filled().save(wrong)


def test_every_flipped_bit_and_every_cut_is_seen(tmp_path):
    folder = tmp_path / "buffer"
    filled().save(folder)
    assert sorted(file.name for file in folder.iterdir()) == ["manifest.json", "replay.safetensors"]
    rng = np.random.default_rng(0)
    for file in folder.iterdir():
        whole = file.read_bytes()
        for at in rng.integers(0, 8 * len(whole), 300):
            damaged = bytearray(whole)
            damaged[at // 8] ^= 1 << (at % 8)
            file.write_bytes(damaged)
            with pytest.raises(rlox.CorruptFileError, match=f"{file.name}, section"):
                rlox.ReplayBuffer.load(folder)
        for size in rng.integers(0, len(whole), 30):
            file.write_bytes(whole[:size])
            with pytest.raises(rlox.CorruptFileError, match=f"{file.name}, section"):
                rlox.ReplayBuffer.load(folder)
        file.unlink()
        with pytest.raises((rlox.CorruptFileError, FileNotFoundError)):
            rlox.ReplayBuffer.load(folder)
        file.write_bytes(whole)
    assert len(rlox.ReplayBuffer.load(folder)) == 4


def test_checkpoints_hold_states(tmp_path):
    from rlox.checkpoint import read_checkpoint, write_checkpoint

    buffer = filled()
    write_checkpoint(tmp_path / "checkpoint", {"steps": 5}, {"replay": buffer.state()})
    again = filled(1)
    again.load_state(read_checkpoint(tmp_path / "checkpoint").members["replay"])
    for _ in range(3):
        assert_equal(again.sample(4), buffer.sample(4))


def test_buffers_with_files_give_references(tmp_path):
    def pushed(name, count):
        buffer = rlox.MmapReplayBuffer(3, 6, 2, 1, tmp_path / name, seed=0)
        for i in range(count):
            buffer.push(*transition(i))
        return buffer

    with pushed("a", 5) as buffer, pushed("b", 9) as other:
        state = buffer.state()
        assert bytes(state["path"]) == bytes(tmp_path / "a")
        assert state["pushed"].tolist() == [5]
        drawn = [buffer.sample(4)["obs"] for _ in range(3)]
        buffer.load_state(state)
        again = [buffer.sample(4)["obs"] for _ in range(3)]
        assert np.array_equal(drawn, again)
        for wrong, said in [
            ({**state, "pushed": np.int64([6])}, "expected at most 5, as the file has, got 6"),
            ({**state, "id": state["id"] + 1}, "expected that of .*, got that of another file"),
            ({**state, "more": np.ones(1)}, "expected no such array"),
            ({"stream": state["stream"]}, "expected an array, got none"),
            ({}, "expected an array, got none"),
        ]:
            with pytest.raises(ValueError, match=r"arrays\[.*\]: " + said):
                buffer.load_state(wrong)
        with pytest.raises(ValueError, match="got that of another file"):
            other.load_state(state)
        # Transitions that were pushed since are dropped, as in other buffers.
        for i in range(5, 7):
            buffer.push(*transition(i))
        buffer.load_state(state)
        assert len(buffer) == 5
        assert np.array_equal([buffer.sample(4)["obs"] for _ in range(3)], drawn)
    (tmp_path / "a").rename(tmp_path / "moved")
    with rlox.MmapReplayBuffer.open(tmp_path / "moved") as buffer:
        buffer.load_state(state)
        assert np.array_equal(buffer.sample(4)["obs"], drawn[0])
    with pytest.raises(rlox.ClosedError):
        buffer.state()


def test_a_file_that_has_overwritten_what_a_reference_tells_of_says_so(tmp_path):
    with rlox.MmapReplayBuffer(3, 6, 2, 1, tmp_path / "a", seed=0) as buffer:
        rows = np.zeros((120_000, 2), np.float32)
        off = np.zeros(120_000, bool)
        for i in range(6):
            buffer.push(*transition(i))
        state = buffer.state()
        buffer.push_batch(rows, rows, rows[:, :1], rows[:, 0], off, off)
        drawn = buffer.sample(4, seed=1)["obs"]
        # What the file has room for beside 6 transitions is less than that.
        with pytest.raises(
            ValueError, match="older rows were overwritten since, got 6; keep a copy"
        ):
            buffer.load_state(state)
        assert np.array_equal(buffer.sample(4, seed=1)["obs"], drawn)


def test_native_agents_tell_how_much_they_remember():
    from rlox.trainers import SACTrainer

    settings = {"backend": "native", "net_arch": (4,), "buffer_size": 40, "batch_size": 8}
    trainer = SACTrainer("Pendulum-v1", seed=0, runs_dir=None, **settings)
    agent = trainer.learner.policy
    assert agent.replay_len() == 0
    trainer.train(30)
    assert agent.replay_len() == 30 == len(agent.replay_state()["step.rewards"])
    trainer.train(30)
    assert agent.replay_len() == 40
