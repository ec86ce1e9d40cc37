"""`train_many`: runs side by side are those done alone, fail alone, and end together."""

import csv
import hashlib
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
from rlox.many import RunsFailedError
from rlox.trainers import PPOTrainer
from toy_runs import failing

SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2}
STEPS = 192


def left_behind(folder):
    """What a run leaves: its members' checksums, and its metrics but for the clock's."""
    members = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (folder / "checkpoint").glob("*.safetensors")
    }
    with (folder / "metrics.csv").open() as file:
        rows = [{n: x for n, x in row.items() if n not in CLOCK} for row in csv.DictReader(file)]
    assert members, rows
    return members, rows


def only(root):
    (manifest,) = root.glob("*/*/*/config.json")
    return manifest.parent


@pytest.mark.parametrize("algorithm", SETTINGS)
@pytest.mark.parametrize("processes", [False, True])
def test_each_run_is_the_one_done_alone(algorithm, processes, tmp_path):
    env, settings = SETTINGS[algorithm]
    about = {**settings, "backend": "native"}
    seeds = [1, 2, 3]
    results = rlox.train_many(
        algorithm, env, seeds, STEPS, processes=processes, runs_dir=tmp_path / "many", **about
    )
    for seed, result in zip(seeds, results, strict=True):
        with kind(algorithm)(env, seed, runs_dir=tmp_path / f"alone-{seed}", **about) as trainer:
            alone = trainer.train(STEPS)
        folder = tmp_path / "many" / os.path.relpath(result["run_dir"], tmp_path / "many")
        assert left_behind(folder) == left_behind(only(tmp_path / f"alone-{seed}"))
        assert (result["timesteps"], result["episodes"]) == (alone["timesteps"], alone["episodes"])
    assert len({result["run_dir"] for result in results}) == len(seeds)


def test_runs_on_torch_are_those_done_alone(tmp_path):
    pytest.importorskip("torch")
    env, settings = SETTINGS["ppo"]
    about = {**settings, "backend": "torch"}
    results = rlox.train_many("ppo", env, [1, 2], STEPS, runs_dir=tmp_path / "many", **about)
    for seed, result in zip([1, 2], results, strict=True):
        with PPOTrainer(env, seed, runs_dir=tmp_path / f"alone-{seed}", **about) as trainer:
            trainer.train(STEPS)
        folder = tmp_path / "many" / os.path.relpath(result["run_dir"], tmp_path / "many")
        assert left_behind(folder) == left_behind(only(tmp_path / f"alone-{seed}"))


def test_every_variant_runs_with_every_seed():
    seen = []

    class Note(Callback):
        def on_train_start(self, trainer):
            seen.append((trainer.config.gamma, trainer.seed, trainer.config.n_steps))

    variants = [{"gamma": 0.9}, {"gamma": 0.8}]
    about = {"settings": variants, "workers": 1, "runs_dir": None, **SMALL}
    results = rlox.train_many(
        PPOTrainer, "CartPole-v1", (4, 7), 32, callbacks=lambda: [Note()], **about
    )
    assert seen == [(0.9, 4, 16), (0.9, 7, 16), (0.8, 4, 16), (0.8, 7, 16)]
    assert [result["timesteps"] for result in results] == [32] * 4


def test_no_more_train_at_once_than_there_are_workers():
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


@pytest.mark.parametrize("processes", [False, True])
def test_one_that_fails_does_not_stop_the_others_and_is_named(processes):
    about = {"runs_dir": None, "processes": processes, "callbacks": failing, **SMALL}
    told = {}
    with pytest.raises(RunsFailedError, match="got 2 that failed") as raised:
        rlox.train_many("ppo", "CartPole-v1", range(5), 64, tell=told.__setitem__, **about)
    error = raised.value
    assert "seed 1: OSError: [Errno 28] no room for 1; seed 3: OSError" in str(error)
    assert [one and one["timesteps"] for one in error.results] == [64, None, 64, None, 64]
    assert {*error.errors} == {1, 3}
    assert sorted(told) == [0, 1, 2, 3, 4]
    assert isinstance(told[1], OSError)


def test_what_is_told_may_raise_and_ends_all():
    class OverError(Exception):
        pass

    def tell(number, came):
        raise OverError

    before = threading.active_count()
    with pytest.raises(OverError):
        rlox.train_many("ppo", "CartPole-v1", range(50), 64, tell=tell, runs_dir=None, **SMALL)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"algorithm": "pppo"}, ValueError, "algorithm: .* did you mean 'ppo'"),
        ({"algorithm": 3}, TypeError, "algorithm: "),
        ({"seeds": 10}, TypeError, "seeds: .* pass range"),
        ({"seeds": "0-9"}, TypeError, "seeds: "),
        ({"seeds": []}, ValueError, "seeds: "),
        ({"seeds": [1, 1]}, ValueError, "seeds: expected each once, got 1 twice"),
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
def test_bad_input_is_refused_before_anything_is_trained(given, error, named, tmp_path):
    about = {"algorithm": "ppo", "env": "CartPole-v1", "seeds": [1], "total_timesteps": 8}
    with pytest.raises(error, match=named):
        rlox.train_many(**{**about, "runs_dir": tmp_path, **given})
    assert not [*tmp_path.iterdir()]


def test_environments_that_are_made_already_are_refused():
    env = rlox.VecEnv(2, env_id="CartPole-v1")
    with pytest.raises(ValueError, match=r"env: .* each run has"):
        rlox.train_many("ppo", env, [1], 8, runs_dir=None)


PROGRAM = """
    import json, sys
    import rlox

    if __name__ == "__main__":
        processes = sys.argv[1] == "True"
        about = dict(backend="native", processes=processes, workers=2)
        results = rlox.train_many("ppo", "CartPole-v1", range(4), 10**9, **about)
        print(json.dumps([[x["interrupted"], x["timesteps"], x["run_dir"]] for x in results]))
"""


def begun(folder, processes):
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    if processes:  # which import the program
        (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
        program = [sys.executable, "program.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = subprocess.Popen([*program, str(processes)], cwd=folder, start_new_session=True, **pipes)
    until = time.monotonic() + 60
    while len([*folder.rglob("metrics.csv")]) < rlox.machine.threads() and run.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    return run


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("processes", [False, True])
def test_ctrl_c_ends_all_and_each_is_saved(processes, tmp_path):
    import json

    with begun(tmp_path, processes) as run:
        try:
            os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to all of its processes
            out, err = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 0, err
    assert "Traceback" not in err
    results = json.loads(out)
    assert all(interrupted for interrupted, _, _ in results)
    going = [one for one in results if one[2] is not None]
    assert [one[1] for one in results if one[2] is None] == [0] * (4 - len(going))
    assert 1 <= len(going) <= 2
    for _, steps, folder in going:
        assert rlox.load(tmp_path / folder).predict([0.0] * 4) in (0, 1)
        assert (tmp_path / folder / "summary.json").is_file()
        assert steps > 0


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize("processes", [False, True])
def test_a_second_ctrl_c_ends_at_once(processes, tmp_path):
    with begun(tmp_path, processes) as run:
        try:
            for _ in range(2):
                run.send_signal(signal.SIGINT)
                time.sleep(0.001)
            _, err = run.communicate(timeout=30)
        finally:
            run.kill()
    # The first may have done before the second came.
    assert run.returncode in (0, 1, 130, -signal.SIGINT), err
    assert "Fatal" not in err
