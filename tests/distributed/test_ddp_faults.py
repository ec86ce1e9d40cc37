"""Where one of the processes that learn together fails, dies or hangs, the others end."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")

import rlox
from ddp_processes import SCRIPT, environment, side_by_side, torchrun
from rlox.checkpoint import read_checkpoint


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """What processes said of which one fails, and others that do not, at the same time."""
    folder = tmp_path_factory.mktemp("faulty")
    return folder, side_by_side(folder, "raise", "die", "nan", "lead", "differently", "three")


@pytest.mark.parametrize(
    ("case", "own", "heard"),
    [
        ("raise", "OSError: the simulator is gone", "it failed with OSError: the simulator is"),
        ("nan", "rewards: expected finite numbers, got nan", "it failed with ValueError: rewards:"),
        ("die", "", "expected a process that goes on, got one that ended without a word"),
    ],
)
def test_a_rank_that_fails_or_dies_ends_the_other_which_names_it(faulty, case, own, heard):
    (zero, one), statuses = faulty[1][case]
    assert statuses == [1, -9 if case == "die" else 1]
    assert own in one
    assert "PeerError: rank 1: expected" in zero
    assert heard in zero


def test_rank_0_may_be_the_one_that_fails(faulty):
    (zero, one), statuses = faulty[1]["lead"]
    assert statuses == [1, 1]
    assert "OSError: the simulator is gone" in zero
    assert "PeerError: rank 0: expected it to go on, it failed with OSError" in one


@pytest.mark.parametrize("where", ["raise", "lead/raise"])
def test_what_was_learned_before_is_saved(faulty, where):
    (saved,) = faulty[0].glob(f"{where}/*/*/*/checkpoint")
    manifest = read_checkpoint(saved).manifest
    assert manifest["counters"]["timesteps"] == 128
    assert len(manifest["ranks"]) == 2
    assert manifest["ranks"][0]["streams"] != manifest["ranks"][1]["streams"]
    assert manifest["environment"] == "approximate"
    assert "the simulator is gone" in manifest["environment_reason"]
    assert rlox.load(saved).predict([0.0]) in (0, 1)


@pytest.mark.parametrize("case", ["die", "raise"])
def test_torchrun_ends_the_others_only_when_what_was_learned_is_saved(tmp_path, case):
    said, status = torchrun(2, case, str(tmp_path))
    assert status == 1
    # Who died without a word is known by the launcher, which ends this one meanwhile.
    assert re.search("PeerError: (rank 1|launcher): expected", said)
    (saved,) = tmp_path.glob(f"{case}/*/*/*/checkpoint")
    assert read_checkpoint(saved).manifest["counters"]["timesteps"] == 128


def test_other_calls_on_one_rank_are_told(faulty):
    (_, one), statuses = faulty[1]["differently"]
    assert statuses == [0, 1]
    assert "PeerError: rank 0: expected the same calls on every rank, got 'leave' there" in one


def test_three_processes_with_environments_of_their_own_hold_the_same(faulty):
    folder, found = faulty
    assert found["three"][1] == [0, 0, 0], found["three"]
    told = [json.loads((folder / f"three-{rank}.json").read_text()) for rank in range(3)]
    assert {one["num_envs"] for one in told} == {6}
    assert "networks.seen" in told[0]["arrays"]
    assert len({one["seed"] for one in told}) == 1
    assert {one["timesteps"] for one in told} == {384}
    for name, digest in told[0]["arrays"].items():
        if not name.startswith("environment"):
            assert told[1]["arrays"][name] == told[2]["arrays"][name] == digest, name


@pytest.mark.slow
def test_a_rank_that_hangs_is_given_up(tmp_path):
    began = time.monotonic()
    command = [sys.executable, SCRIPT, "forked", "stop", tmp_path]
    process = subprocess.Popen(command, env=environment(), start_new_session=True)
    said = tmp_path / "stop-0.txt"
    while "PeerError" not in (said.read_text() if said.exists() else ""):
        assert time.monotonic() - began < 60
        time.sleep(0.2)
    time.sleep(5)
    assert "exit status 1" in said.read_text()
    assert "PeerError: rank 1: expected a word every" in said.read_text()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_solve_cartpole_and_the_control_does_not(tmp_path):
    found = side_by_side(tmp_path, "solve", "control", limit=800)
    assert [statuses for _, statuses in found.values()] == [[0, 0], [0, 0]]
    scores = [json.loads((tmp_path / f"score-{x}.json").read_text()) for x in ("True", "False")]
    assert scores[0]["mean_reward"] >= 475
    assert scores[1]["mean_reward"] < 200
