"""What reading a `MmapReplayBuffer` leaves: of memory little, and the file as it was."""

import numpy as np
import pytest

import rlox
from replay_rows import transition


def test_what_samples_keep_is_counted_and_goes_when_it_is_large(tmp_path):
    with rlox.MmapReplayBuffer(10, 1000, 10_000, 1, tmp_path / "replay", seed=0) as buffer:
        rows = np.zeros((1000, 10_000), np.float32)
        off = np.zeros(1000, bool)
        buffer.push_batch(rows, rows, rows[:, :1], rows[:, 0], off, off)
        before = buffer.nbytes
        for _ in range(3):
            buffer.sample(1000)  # 80 MB
        assert buffer.nbytes - before < 1 << 20
        buffer.sample(32)  # 2.6 MB, which the next one uses again
        assert 2_560_000 < buffer.nbytes - before < 8 << 20


@pytest.mark.parametrize("place", [0, 1])
def test_a_damaged_file_that_was_only_read_stays_as_it_is(tmp_path, place):
    path = tmp_path / "replay"
    with rlox.MmapReplayBuffer(5, 50, 2, 1, path) as buffer:
        for i in range(30):
            buffer.push(*transition(i))
    damaged = bytearray(path.read_bytes())
    records = 30 * (8 + 2 * 8 + 4 + 4 + 2 + 4)
    damaged[len(damaged) - records - 1024 + 512 * place] ^= 1
    path.write_bytes(damaged)
    with rlox.MmapReplayBuffer.open(path) as buffer:
        assert len(buffer) == 30
        with pytest.raises(rlox.CorruptFileError, match="section commit"):
            buffer.verify()
    assert path.read_bytes() == damaged
    with rlox.MmapReplayBuffer.open(path) as buffer:
        buffer.flush()
        buffer.verify()
