"""Processes that train many: one that dies, or whose parent does, keeps nobody waiting."""

import json
import os
import signal
import subprocess
import time

import pytest

import rlox
from many_runs import begun
from rlox.callbacks import Callback

SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 1}

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")


def workers_of(pid):
    """The processes that train for another, which import the program it is."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(pid)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split(maxsplit=1) for line in listed.stdout.splitlines()]
    return [int(pid) for pid, words in lines if "spawn_main" in words]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def waited_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_ctrl_c_ends_all_where_a_worker_was_killed(tmp_path):
    with begun(tmp_path, True) as run:
        try:
            killed = workers_of(run.pid)[0]
            os.kill(killed, signal.SIGKILL)
            waited_for(lambda: not alive(killed))
            run.send_signal(signal.SIGINT)
            _, err = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 1, err
    assert "process: expected to end, died with -9" in err
    assert len([*tmp_path.rglob("summary.json")]) >= 1


def test_workers_end_in_order_where_their_parent_is_gone(tmp_path):
    with begun(tmp_path, True) as run:
        workers = workers_of(run.pid)
        run.kill()
    try:
        waited_for(lambda: not any(map(alive, workers)))
    finally:
        for worker in filter(alive, workers):
            os.kill(worker, signal.SIGKILL)
    assert len([*tmp_path.rglob("summary.json")]) == len(workers) > 0


class Wait(Callback):
    """Runs of seed 2 go on until they are stopped."""

    def on_iteration(self, trainer, metrics):
        if trainer.seed == 2:
            time.sleep(0.01)


def waiting():
    return [Wait()]


@pytest.mark.parametrize("processes", [False, True])
def test_what_is_told_may_raise_and_all_are_saved(processes, tmp_path):
    def tell(number, came):
        raise LookupError(number)

    about = {"processes": processes, "runs_dir": tmp_path, "callbacks": waiting, **SMALL}
    with pytest.raises(LookupError):
        rlox.train_many("ppo", "CartPole-v1", [1, 2], 64_000, tell=tell, **about)
    summaries = [json.loads(file.read_text()) for file in tmp_path.rglob("summary.json")]
    begun_ones = [*tmp_path.rglob("config.json")]
    assert len(summaries) == len(begun_ones)
    for one in tmp_path.rglob("summary.json"):
        assert rlox.load(one.parent).predict([0.0] * 4) in (0, 1)


def test_every_variant_must_be_what_processes_can_be_sent(tmp_path):
    torch = pytest.importorskip("torch")

    class Flat(torch.nn.Flatten):
        features_dim = 4

    settings = [{}, {"features_extractor": lambda space: Flat()}]
    with pytest.raises(TypeError, match=r"settings\[1\]: .* that processes can be sent"):
        rlox.train_many(
            "ppo", "CartPole-v1", [1], 64, settings=settings, processes=True, runs_dir=tmp_path
        )
    assert [*tmp_path.iterdir()] == []
