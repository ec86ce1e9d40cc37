"""`train_many`: parallel runs equal separate runs, fail separately and stop together."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from gymnasium.spaces import Box, Discrete

import rlox
import rlox._system
from rlox import ArgumentError, ArgumentTypeError
from rlox.callbacks import Callback, EvalCallback
from rlox.experiments.many import RunsFailedError
from rlox.policies import MlpPolicy
from rlox.trainers import PPOTrainer
from support.rejections import rejects
from support.resume_runs import SETTINGS, table, trainer_class
from support.runs import SMALL, failing

STEPS = 192
PROCESSES = pytest.mark.processes
NEEDS_SIGNALS = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
THREADS_AND_PROCESSES = pytest.mark.parametrize(
    "processes", [False, pytest.param(True, marks=PROCESSES)], ids=["threads", "processes"]
)


def files_of(folder):
    """Return the checkpoint members of a run and its metrics without times."""
    files = (folder / "checkpoint").glob("*.safetensors")
    members = {file.name: file.read_bytes() for file in files}
    rows = table(folder)
    assert members, rows
    return members, rows


CASES = [(name, False, "native") for name in SETTINGS]
CASES += [("ppo", True, "native")]  # the smoke test of worker processes
CASES += [pytest.param(x, True, "native", marks=PROCESSES) for x in SETTINGS if x != "ppo"]
CASES += [pytest.param("ppo", None, "torch", marks=PROCESSES)]


@pytest.mark.parametrize(("algorithm", "processes", "backend"), CASES)
def test_each_run_equals_a_separate_run(algorithm, processes, backend, tmp_path, monkeypatch):
    monkeypatch.setattr("rlox.trainers.plot_curve", lambda *args: None)
    env, settings = SETTINGS[algorithm]
    options = {**settings, "backend": backend}
    seeds = [1, 2]
    results = rlox.train_many(algorithm, env, seeds, STEPS, processes=processes, runs_dir=tmp_path / "many", **options)
    for seed, result in zip(seeds, results, strict=True):
        root = tmp_path / f"alone-{seed}"
        with trainer_class(algorithm)(env, seed, runs_dir=root, **options) as trainer:
            serial = trainer.train(STEPS)
        (manifest,) = root.glob("*/*/*/config.json")
        folder = tmp_path / "many" / os.path.relpath(result["run_dir"], tmp_path / "many")
        assert files_of(folder) == files_of(manifest.parent)
        assert (result["timesteps"], result["episodes"]) == (serial["timesteps"], serial["episodes"])
    assert len({result["run_dir"] for result in results}) == len(seeds)


def test_each_run_trains_a_copy_of_a_custom_policy():
    policy = MlpPolicy(Box(-1, 1, (4,)), Discrete(2), net_arch=(8,))
    before = [x.clone() for x in policy.parameters()]
    first, second = rlox.train_many(
        "ppo", "CartPole-v1", [1], 64, settings=[{}, {}], policy=policy, processes=False, **SMALL
    )
    assert first["mean_reward"] == second["mean_reward"]
    assert all(map(torch.equal, before, policy.parameters()))


def test_every_variant_runs_with_every_seed():
    runs = []

    def record_run(run, metrics):
        runs.append((run.config.gamma, run.seed, run.config.n_steps))

    hooks = {"workers": 1, "runs_dir": None, "callbacks": lambda: [record_run]}
    settings = [{"gamma": 0.9}, {"gamma": 0.8}]
    results = rlox.train_many(PPOTrainer, "CartPole-v1", (4, 7), 32, settings=settings, **hooks, **SMALL)
    assert runs == [(0.9, 4, 16), (0.9, 7, 16), (0.8, 4, 16), (0.8, 7, 16)]
    assert [result["timesteps"] for result in results] == [32] * 4


@pytest.mark.parametrize(("workers", "limit"), [(1, 1), (1000, rlox._system.threads())])
def test_workers_limits_the_number_of_concurrent_runs(workers, limit):
    running, counts, lock = set(), [], threading.Lock()

    class Count(Callback):
        def on_train_start(self, run):
            with lock:
                running.add(run)
                counts.append(len(running))
            time.sleep(0.05)

        def on_train_end(self, run):
            with lock:
                running.remove(run)

    hooks = {"workers": workers, "runs_dir": None, "callbacks": lambda: [Count()]}
    rlox.train_many("ppo", "CartPole-v1", range(4), 32, **hooks, **SMALL)
    assert max(counts) <= limit


@THREADS_AND_PROCESSES
def test_failed_runs_are_named_and_the_others_finish(processes):
    options = {"runs_dir": None, "processes": processes, "callbacks": failing, **SMALL}
    outcomes = {}
    with pytest.raises(RunsFailedError) as raised:
        rlox.train_many("ppo", "CartPole-v1", range(5), 64, on_result=outcomes.__setitem__, **options)
    error = raised.value
    assert [error.errors[seed].errno for seed in (1, 3)] == [errno.ENOSPC] * 2
    assert "seed 1: OSError: [Errno 28] no space for 1; seed 3: OSError" in str(error)
    assert [result and result["timesteps"] for result in error.results] == [64, None, 64, None, 64]
    assert {*error.errors} == {1, 3}
    assert sorted(outcomes) == [0, 1, 2, 3, 4]
    assert isinstance(outcomes[1], OSError)


def sleep_for_seed_2(run, metrics):
    if run.seed == 2:
        time.sleep(0.01)


def sleeping_callbacks():
    return [sleep_for_seed_2]


@THREADS_AND_PROCESSES
def test_error_of_on_result_stops_all_runs_and_saves_them(processes, tmp_path):
    def on_result(index, outcome):
        raise LookupError(index)

    before = threading.active_count()
    options = {"processes": processes, "runs_dir": tmp_path, "callbacks": sleeping_callbacks, **SMALL}
    with pytest.raises(LookupError):
        rlox.train_many("ppo", "CartPole-v1", [1, 2], 64_000, on_result=on_result, **options)
    assert threading.active_count() == before
    summaries = [*tmp_path.rglob("summary.json")]
    assert len(summaries) == len([*tmp_path.rglob("config.json")])
    for summary in summaries:
        assert rlox.load(summary.parent).predict([0.0] * 4) in (0, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        ({"algorithm": "pppo"}, ArgumentError, "did you mean 'ppo'"),
        ({"seeds": 10}, ArgumentTypeError, "pass range(10)"),
        ({"seeds": []}, ArgumentError, "pass range"),
        ({"seeds": [1, 1]}, ArgumentError, "remove one"),
        ({"seeds": [1, -1]}, ArgumentError, "pass range"),
        ({"seeds": [0.5]}, ArgumentTypeError, "pass range"),
        ({"seed": 1}, ArgumentTypeError, "pass seeds="),
        ({"total_timesteps": 0}, ArgumentError, ""),
        ({"env": "CartPole-v7"}, ArgumentError, "did you mean 'CartPole-v1'"),
        ({"env": rlox.VecEnv(2, env_id="CartPole-v1")}, ArgumentError, "pass lambda"),
        ({"settings": {"gamma": 0.9}}, ArgumentTypeError, "pass [{"),
        ({"settings": []}, ArgumentError, "pass None"),
        ({"workers": 0}, ArgumentError, "pass None for all"),
        ({"processes": 2}, ArgumentTypeError, "pass True or False"),
        ({"callbacks": [EvalCallback(8)]}, ArgumentTypeError, "pass lambda: [EvalCallback("),
        ({"loggers": [object()]}, ArgumentTypeError, "pass 'jsonl'"),
        ({"loggers": iter(["jsonl"])}, ArgumentTypeError, "pass ['jsonl']"),
        ({"on_result": 3}, ArgumentTypeError, "pass print"),
        ({"gama": 0.9}, ArgumentTypeError, "did you mean 'gamma'"),
        ({"processes": True, "callbacks": lambda: [print]}, ArgumentTypeError, "of a module"),
    ],
)
def test_invalid_arguments_are_rejected_before_training(arguments, error, hint, tmp_path):
    defaults = {"algorithm": "ppo", "env": "CartPole-v1", "seeds": [1], "total_timesteps": 8}
    with rejects(error, next(iter(arguments)), hint):
        rlox.train_many(**{**defaults, "runs_dir": tmp_path, **arguments})
    assert not [*tmp_path.iterdir()]


def test_variants_that_cannot_be_pickled_are_rejected(tmp_path):
    class Flat(torch.nn.Flatten):
        features_dim = 4

    settings = [{}, {"features_extractor": lambda space: Flat()}]
    arguments = {"settings": settings, "processes": True, "runs_dir": tmp_path}
    with rejects(ArgumentTypeError, "processes", section="settings[1]"):
        rlox.train_many("ppo", "CartPole-v1", [1], 64, **arguments)
    assert not [*tmp_path.iterdir()]


PROGRAM = """
    import json, sys
    import rlox

    if __name__ == "__main__":
        processes = sys.argv[1] == "True"
        about = dict(backend="native", processes=processes, workers=2)
        results = rlox.train_many("ppo", "CartPole-v1", range(4), 10**9, **about)
        print(json.dumps([[x["interrupted"], x["timesteps"], x["run_dir"]] for x in results]))
"""


@contextlib.contextmanager
def start_program(folder, processes):
    """Run a long training program in its own process group and kill it at the end."""
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "program.py", str(processes)]
    with subprocess.Popen(command, cwd=folder, start_new_session=True, **pipes) as run:
        try:
            count = min(2, rlox._system.threads())
            wait_until(lambda: len([*folder.rglob("metrics.csv")]) >= count or run.poll() is not None)
            yield run
        finally:
            run.kill()


def wait_until(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def workers_of(pid):
    """Return the worker processes of a program."""
    command = ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(pid)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split(maxsplit=1) for line in listed.stdout.splitlines()]
    return [int(pid) for pid, args in lines if "spawn_main" in args]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@NEEDS_SIGNALS
@pytest.mark.processes
@pytest.mark.serial
@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_ctrl_c_stops_all_runs_and_saves_them(processes, tmp_path):
    with start_program(tmp_path, processes) as run:
        os.killpg(run.pid, signal.SIGINT)  # a terminal sends SIGINT to all processes of the group
        out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert "Traceback" not in err
    results = json.loads(out)
    assert all(interrupted for interrupted, _, _ in results)
    trained = [result for result in results if result[2] is not None]
    assert [result[1] for result in results if result[2] is None] == [0] * (4 - len(trained))
    assert 1 <= len(trained) <= 2
    for _, steps, folder in trained:
        assert rlox.load(tmp_path / folder).predict([0.0] * 4) in (0, 1)
        assert (tmp_path / folder / "summary.json").is_file()
        assert steps > 0


@NEEDS_SIGNALS
@pytest.mark.processes
@pytest.mark.serial
@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_second_ctrl_c_exits_immediately(processes, tmp_path):
    with start_program(tmp_path, processes) as run:
        for _ in range(2):
            run.send_signal(signal.SIGINT)
            time.sleep(0.001)
        _, err = run.communicate(timeout=30)
    # The program may end before the second signal.
    assert run.returncode in (0, 1, 130, -signal.SIGINT), err
    assert "Fatal" not in err


@NEEDS_SIGNALS
@pytest.mark.processes
@pytest.mark.kills
def test_killed_worker_fails_its_run_and_the_others_are_saved(tmp_path):
    with start_program(tmp_path, True) as run:
        killed = workers_of(run.pid)[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not alive(killed))
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
    assert run.returncode == 1, err
    assert "exit code -9" in err
    assert len([*tmp_path.rglob("summary.json")]) >= 1


@NEEDS_SIGNALS
@pytest.mark.processes
@pytest.mark.kills
def test_workers_of_a_killed_program_save_their_runs_and_exit(tmp_path):
    with start_program(tmp_path, True) as run:
        workers = workers_of(run.pid)
        run.kill()
    try:
        wait_until(lambda: not any(map(alive, workers)))
    finally:
        for worker in filter(alive, workers):
            os.kill(worker, signal.SIGKILL)
    assert len([*tmp_path.rglob("summary.json")]) == len(workers) > 0


@pytest.mark.parametrize(
    ("settings", "error", "argument"),
    [
        ({"gamma": 2.0}, ArgumentError, "gamma"),
        ({"gama": 0.5}, ArgumentTypeError, "gama"),
        (5, ArgumentTypeError, "settings"),
        ({"seed": 1}, ArgumentTypeError, "seed"),
    ],
    ids=["value", "unknown", "no dict", "seed"],
)
def test_error_of_a_variant_has_its_index_as_section(settings, error, argument):
    with rejects(error, argument, section="settings[1]"):
        rlox.train_many("ppo", "CartPole-v1", [1], 100, settings=[{}, settings], runs_dir=None)


def test_plain_error_of_a_variant_is_unchanged():
    def fail():
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        rlox.train_many("ppo", fail, [1], 100, settings=[{}], runs_dir=None)


def test_errors_of_env_kwargs_name_their_section():
    with rejects(ArgumentError, "max_episode_steps", section="env_kwargs"):
        rlox.train_many("ppo", "CartPole-v1", [1], 8, runs_dir=None, env_kwargs={"max_episode_steps": 0})
