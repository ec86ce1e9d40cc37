"""`train_many`: runs side by side equal those done alone, fail alone, and end together."""

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import rlox
import rlox.machine
from resume_runs import CLOCK, SETTINGS, kind
from rlox.callbacks import Callback, EvalCallback
from rlox.logger import RunFolder
from rlox.many import RunsFailedError
from rlox.trainers import PPOTrainer
from support.runs import failing

SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2}
STEPS = 192
PROCESSES = pytest.mark.processes
SIGNALS = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
IN_BOTH = pytest.mark.parametrize(
    "processes", [False, pytest.param(True, marks=PROCESSES)], ids=["threads", "processes"]
)


def files_of(folder):
    """Checksums of a run's members, and its metrics without those of the clock."""
    members = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (folder / "checkpoint").glob("*.safetensors")
    }
    with (folder / "metrics.csv").open() as file:
        rows = [{n: x for n, x in row.items() if n not in CLOCK} for row in csv.DictReader(file)]
    assert members, rows
    return members, rows


CASES = [(name, False, "native") for name in SETTINGS]
CASES += [("ppo", True, "native")]  # the smoke test of worker processes
MARKED = [(name, True, "native") for name in SETTINGS if name != "ppo"]
MARKED += [("ppo", None, "torch")]


@pytest.mark.parametrize(
    ("algorithm", "processes", "backend"),
    [*CASES, *(pytest.param(*case, marks=PROCESSES) for case in MARKED)],
)
def test_each_run_equals_the_run_done_alone(algorithm, processes, backend, tmp_path, monkeypatch):
    monkeypatch.setattr(RunFolder, "plot", lambda self, title: None)
    env, settings = SETTINGS[algorithm]
    about = {**settings, "backend": backend}
    seeds = [1, 2]
    results = rlox.train_many(
        algorithm, env, seeds, STEPS, processes=processes, runs_dir=tmp_path / "many", **about
    )
    for seed, result in zip(seeds, results, strict=True):
        root = tmp_path / f"alone-{seed}"
        with kind(algorithm)(env, seed, runs_dir=root, **about) as trainer:
            alone = trainer.train(STEPS)
        (manifest,) = root.glob("*/*/*/config.json")
        folder = tmp_path / "many" / os.path.relpath(result["run_dir"], tmp_path / "many")
        assert files_of(folder) == files_of(manifest.parent)
        assert (result["timesteps"], result["episodes"]) == (alone["timesteps"], alone["episodes"])
    assert len({result["run_dir"] for result in results}) == len(seeds)


def test_every_variant_runs_with_every_seed():
    started = []

    class Note(Callback):
        def on_train_start(self, trainer):
            started.append((trainer.config.gamma, trainer.seed, trainer.config.n_steps))

    variants = [{"gamma": 0.9}, {"gamma": 0.8}]
    about = {"settings": variants, "workers": 1, "runs_dir": None, **SMALL}
    results = rlox.train_many(
        PPOTrainer, "CartPole-v1", (4, 7), 32, callbacks=lambda: [Note()], **about
    )
    assert started == [(0.9, 4, 16), (0.9, 7, 16), (0.8, 4, 16), (0.8, 7, 16)]
    assert [result["timesteps"] for result in results] == [32] * 4


def test_at_most_as_many_runs_train_at_once_as_there_are_workers():
    now, most, lock = [0], [0], threading.Lock()

    class Count(Callback):
        def on_train_start(self, trainer):
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.05)

        def on_train_end(self, trainer):
            with lock:
                now[0] -= 1

    def train(workers):
        most[0] = 0
        how = {"workers": workers, "runs_dir": None, "callbacks": lambda: [Count()], **SMALL}
        rlox.train_many("ppo", "CartPole-v1", range(4), 32, **how)
        return most[0]

    assert train(1) == 1
    assert train(1000) <= rlox.machine.threads()


@IN_BOTH
def test_runs_that_fail_are_named_and_the_others_end(processes):
    about = {"runs_dir": None, "processes": processes, "callbacks": failing, **SMALL}
    outcomes = {}
    with pytest.raises(RunsFailedError) as raised:
        rlox.train_many("ppo", "CartPole-v1", range(5), 64, tell=outcomes.__setitem__, **about)
    error = raised.value
    assert "seed 1: OSError: [Errno 28] no room for 1; seed 3: OSError" in str(error)
    assert [one and one["timesteps"] for one in error.results] == [64, None, 64, None, 64]
    assert {*error.errors} == {1, 3}
    assert sorted(outcomes) == [0, 1, 2, 3, 4]
    assert isinstance(outcomes[1], OSError)


class Wait(Callback):
    """Has runs of seed 2 go on until they are stopped."""

    def on_iteration(self, trainer, metrics):
        if trainer.seed == 2:
            time.sleep(0.01)


def waiting():
    return [Wait()]


@IN_BOTH
def test_error_of_tell_ends_all_runs_and_saves_them(processes, tmp_path):
    def tell(number, outcome):
        raise LookupError(number)

    before = threading.active_count()
    about = {"processes": processes, "runs_dir": tmp_path, "callbacks": waiting, **SMALL}
    with pytest.raises(LookupError):
        rlox.train_many("ppo", "CartPole-v1", [1, 2], 64_000, tell=tell, **about)
    assert threading.active_count() == before
    summaries = [*tmp_path.rglob("summary.json")]
    assert len(summaries) == len([*tmp_path.rglob("config.json")])
    for one in summaries:
        assert rlox.load(one.parent).predict([0.0] * 4) in (0, 1)


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"algorithm": "pppo"}, ValueError, "algorithm: .* did you mean 'ppo'"),
        ({"algorithm": 3}, TypeError, "algorithm: "),
        ({"seeds": 10}, TypeError, "seeds: .* pass range"),
        ({"seeds": "0-9"}, TypeError, "seeds: "),
        ({"seeds": []}, ValueError, "seeds: "),
        ({"seeds": [1, 1]}, ValueError, "seeds: .* 1 twice"),
        ({"seeds": [1, -1]}, ValueError, "seeds: .* -1"),
        ({"seeds": [0.5]}, TypeError, "seeds: .* 0.5"),
        ({"seeds": [None]}, TypeError, "seeds: .* None"),
        ({"seed": 1}, TypeError, "seed: .* pass seeds="),
        ({"total_timesteps": 0}, ValueError, "total_timesteps: "),
        ({"total_timesteps": "8"}, TypeError, "total_timesteps: "),
        ({"env": "CartPole-v7"}, Exception, "CartPole"),
        ({"settings": {"gamma": 0.9}}, TypeError, "settings: expected a list"),
        ({"settings": []}, ValueError, "settings: "),
        ({"settings": [{}, 3]}, TypeError, r"settings\[1\]: "),
        ({"settings": [{}, {"gama": 0.9}]}, TypeError, r"settings\[1\]: .*did you mean 'gamma'"),
        ({"settings": [{}, {"gamma": 9}]}, ValueError, r"settings\[1\]: gamma"),
        ({"settings": [{"seed": 1}]}, TypeError, r"settings\[0\]: .* pass seeds"),
        ({"workers": 0}, ValueError, "workers: "),
        ({"workers": "all"}, TypeError, "workers: "),
        ({"processes": 2}, ValueError, "processes: "),
        ({"callbacks": [EvalCallback(8)]}, TypeError, "callbacks: .* lambda"),
        ({"callbacks": lambda: [3]}, TypeError, "callbacks"),
        ({"loggers": ["consol"]}, ValueError, "loggers"),
        ({"loggers": [object()]}, TypeError, "loggers: expected names"),
        ({"tell": 3}, TypeError, "tell: "),
        ({"gama": 0.9}, TypeError, "did you mean 'gamma'"),
        ({"backend": "rust"}, ValueError, "backend"),
        ({"processes": True, "callbacks": lambda: [print]}, TypeError, "processes: .* module"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_trained(given, error, named, tmp_path):
    about = {"algorithm": "ppo", "env": "CartPole-v1", "seeds": [1], "total_timesteps": 8}
    with pytest.raises(error, match=named):
        rlox.train_many(**{**about, "runs_dir": tmp_path, **given})
    assert not [*tmp_path.iterdir()]


def test_environments_that_are_made_already_are_refused():
    env = rlox.VecEnv(2, env_id="CartPole-v1")
    with pytest.raises(ValueError, match=r"^env: "):
        rlox.train_many("ppo", env, [1], 8, runs_dir=None)


def test_variants_that_cannot_be_pickled_are_refused(tmp_path):
    torch = pytest.importorskip("torch")

    class Flat(torch.nn.Flatten):
        features_dim = 4

    settings = [{}, {"features_extractor": lambda space: Flat()}]
    with pytest.raises(TypeError, match=r"^settings\[1\]: processes"):
        rlox.train_many(
            "ppo", "CartPole-v1", [1], 64, settings=settings, processes=True, runs_dir=tmp_path
        )
    assert [*tmp_path.iterdir()] == []


PROGRAM = """
    import json, sys
    import rlox

    if __name__ == "__main__":
        processes = sys.argv[1] == "True"
        about = dict(backend="native", processes=processes, workers=2)
        results = rlox.train_many("ppo", "CartPole-v1", range(4), 10**9, **about)
        print(json.dumps([[x["interrupted"], x["timesteps"], x["run_dir"]] for x in results]))
"""


def started(folder, processes):
    """A program that trains many for long, in a process group of its own."""
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "program.py", str(processes)]
    run = subprocess.Popen(command, cwd=folder, start_new_session=True, **pipes)
    try:
        train = min(2, rlox.machine.threads())
        wait_for(lambda: len([*folder.rglob("metrics.csv")]) >= train or run.poll() is not None)
    except BaseException:
        os.killpg(run.pid, signal.SIGKILL)
        raise
    return run


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def workers_of(pid):
    """The processes that train for another one."""
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


@SIGNALS
@pytest.mark.processes
@pytest.mark.serial
@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_ctrl_c_ends_all_runs_and_saves_them(processes, tmp_path):
    with started(tmp_path, processes) as run:
        try:
            os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to all of its processes
            out, err = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 0, err
    assert "Traceback" not in err
    results = json.loads(out)
    assert all(interrupted for interrupted, _, _ in results)
    trained = [one for one in results if one[2] is not None]
    assert [one[1] for one in results if one[2] is None] == [0] * (4 - len(trained))
    assert 1 <= len(trained) <= 2
    for _, steps, folder in trained:
        assert rlox.load(tmp_path / folder).predict([0.0] * 4) in (0, 1)
        assert (tmp_path / folder / "summary.json").is_file()
        assert steps > 0


@SIGNALS
@pytest.mark.processes
@pytest.mark.serial
@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_second_ctrl_c_ends_at_once(processes, tmp_path):
    with started(tmp_path, processes) as run:
        try:
            for _ in range(2):
                run.send_signal(signal.SIGINT)
                time.sleep(0.001)
            _, err = run.communicate(timeout=30)
        finally:
            run.kill()
    # The program may end before the second one.
    assert run.returncode in (0, 1, 130, -signal.SIGINT), err
    assert "Fatal" not in err


@SIGNALS
@pytest.mark.processes
@pytest.mark.kills
def test_killed_worker_is_a_run_that_failed_and_the_others_are_saved(tmp_path):
    with started(tmp_path, True) as run:
        try:
            killed = workers_of(run.pid)[0]
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda: not alive(killed))
            run.send_signal(signal.SIGINT)
            _, err = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 1, err
    assert "exit code -9" in err
    assert len([*tmp_path.rglob("summary.json")]) >= 1


@SIGNALS
@pytest.mark.processes
@pytest.mark.kills
def test_workers_of_a_killed_program_end_in_order(tmp_path):
    with started(tmp_path, True) as run:
        workers = workers_of(run.pid)
        run.kill()
    try:
        wait_for(lambda: not any(map(alive, workers)))
    finally:
        for worker in filter(alive, workers):
            os.kill(worker, signal.SIGKILL)
    assert len([*tmp_path.rglob("summary.json")]) == len(workers) > 0
