"""Processes that have not the same do not begin to learn, and each says who has what."""

import json
import os
import re
import signal
import socket
import threading
import time

import pytest

pytest.importorskip("torch")

from ddp_processes import side_by_side
from rlox.checkpoint import read_checkpoint
from rlox.distributed import ddp

SAME = "expected the same on every rank, got"


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """What processes said of what they have not alike, all at the same time."""
    folder = tmp_path_factory.mktemp("apart")
    cases = ("unlike", "sizes", "version", "absent", "gradient-die", "gradient-raise")
    return folder, side_by_side(folder, *cases)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("setting", f"n_steps: {SAME} 16 on rank 0, 32 on rank 1; pass the same on every rank"),
        ("settings", f"n_steps, gamma: {SAME} n_steps=16 gamma=0.9 on rank 0, n_steps=32 gamma="),
        (
            "refused",
            f'settings: {SAME} no error on rank 0, "ValueError: gamma: .* got 2.0; change ',
        ),
        ("unknown", f"settings: {SAME} \"TypeError: .*'num_env'; did you .*\" on rank 0, no error"),
        (
            "backend",
            f"settings: {SAME} no error on rank 0, \"ValueError: backend: expected 'torch'",
        ),
        ("algorithm", f"algorithm: {SAME} sac on rank 0, ppo on rank 1"),
        ("env", f"env: {SAME} CartPole-v1 on rank 0, Acrobot-v1 on rank 1"),
        ("made", f"env: {SAME} CartPole-v1 on rank 0, environments already made on rank 1"),
        ("spaces", rf"observation space, action space.*: {SAME} observation space=Box.* on rank 1"),
        ("policy", rf"tensor 0, .*: {SAME} .*\(8, 4\).* on rank 0, .*\(16, 4\).* on rank 1; make"),
        ("steps", f"total_timesteps: {SAME} 64 on rank 0, 128 on rank 1"),
        (
            "checkpoint",
            f"path: {SAME} a manifest of SHA-256 .* on rank 0, .* on rank 1; have all",
        ),
    ],
)
def test_what_differs_is_told_on_every_rank_in_the_same_words(apart, case, message):
    folder, found = apart
    assert found["unlike"][1] == [0, 0], found["unlike"]
    one, two = (json.loads((folder / f"unlike-{rank}.json").read_text()) for rank in range(2))
    assert one[case] == two[case]
    assert re.search(f"ValueError: {message}", one[case])


def test_seeds_and_keywords_of_environments_may_differ(apart):
    said = [json.loads((apart[0] / f"unlike-{rank}.json").read_text()) for rank in range(2)]
    assert [one["seed"] for one in said] == [0, 0]  # rank 0's counts


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("sizes", f"ValueError: WORLD_SIZE: {SAME} 2 on rank 0, 3 on rank 1; start the same on"),
        ("version", f"ValueError: rlox: {SAME} [0-9.]+ on rank 0, 0.0.1 on rank 1; start the"),
    ],
)
def test_other_programs_and_sizes_are_told_before_they_are_connected(apart, case, message):
    said, statuses = apart[1][case]
    assert statuses == [1, 1]
    for one in said:
        assert re.search(message, one), one


def test_sizes_that_differ_are_noticed_soon(apart):
    for rank in range(2):
        assert float((apart[0] / f"sizes-{rank}.json").read_text()) < 20


def test_one_that_does_not_come_is_named(apart):
    (zero, _), statuses = apart[1]["absent"]
    assert statuses == [1, 0]
    assert "RuntimeError: rank 1: expected all 2 processes within 2 s, got 1; look at" in zero


@pytest.mark.parametrize(
    ("case", "heard"),
    [
        ("gradient-die", "rank 1: expected a process that goes on, got one that ended without a"),
        ("gradient-raise", "rank 1: expected it to go on, it failed with OSError: the gradient is"),
    ],
)
def test_one_that_ends_in_the_sum_of_gradients_is_heard_there(apart, case, heard):
    folder, found = apart
    (zero, one), statuses = found[case]
    assert statuses == [1, -9 if case == "gradient-die" else 1]
    assert f"PeerError: {heard}" in zero
    assert "in _do" in zero
    assert "in _averaged" in zero
    assert ("OSError: the gradient is gone" in one) == (case == "gradient-raise")
    (saved,) = folder.glob(f"{case}/*/*/*/checkpoint")
    assert read_checkpoint(saved).manifest["counters"]["timesteps"] == 64


def started(monkeypatch, **variables):
    about = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    for name, value in {**about, "MASTER_PORT": "29500", **variables}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("WORLD_SIZE", "two", "WORLD_SIZE: expected an integer of at least 1, .* got 'two'; leave"),
        ("WORLD_SIZE", "0", "WORLD_SIZE: expected an integer of at least 1, .* got '0'; leave it"),
        ("WORLD_SIZE", "", "expected to be started by torchrun, .* got no WORLD_SIZE; start it w"),
        ("RANK", "2", "RANK: expected below WORLD_SIZE = 2, got 2; leave .* torchrun --nproc"),
        ("RANK", "-1", "RANK: expected an integer of at least 0, .* got '-1'; leave it"),
        ("MASTER_PORT", "high", "MASTER_PORT: expected an integer of at least 1 .* got 'high'"),
        ("MASTER_PORT", "70000", "MASTER_PORT: expected .* at most 65535, .* got '70000'"),
    ],
)
def test_what_torchrun_does_not_say_is_refused(monkeypatch, name, value, message):
    started(monkeypatch, **{name: value})
    with pytest.raises(RuntimeError, match=message):
        ddp.group()


@pytest.mark.parametrize("address", ["no-such-host.invalid", "127.0.0.1"])
def test_a_host_that_does_not_answer_is_named_in_time(monkeypatch, address):
    with socket.socket() as bound:  # nobody listens
        bound.bind(("127.0.0.1", 0))
        started(monkeypatch, RANK="1", MASTER_ADDR=address, MASTER_PORT=str(bound.getsockname()[1]))
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=f"MASTER_ADDR, MASTER_PORT: .* at {address}:"):
            ddp.group(timeout=2).__enter__()
        assert time.monotonic() - began < 15


def test_ctrl_c_is_heard_by_one_that_waits_for_the_others(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started(monkeypatch, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ddp.group(timeout=60).__enter__()
    assert time.monotonic() - began < 10
