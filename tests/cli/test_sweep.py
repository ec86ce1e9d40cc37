"""`rlox sweep`: trials, pruning, failures, Ctrl-C, and continued studies."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest

from rlox import _system as machine
from rlox._processes import Pool
from rlox.cli._args import read_yaml
from rlox.experiments import Range, Sweep, default_space
from rlox.experiments import sweep as study
from rlox.experiments._jobs import TrialJob
from rlox.experiments.sweep import Plan
from rlox.trainers import PPOTrainer

optuna = pytest.importorskip("optuna", reason="needs optuna: pip install 'rlox[sweep]'")

SWEEP = "sweep ppo CartPole-v1 --seed 1 --total-timesteps 256 --eval-every 64 --eval-episodes 2"
SWEEP = (*SWEEP.split(), "--num-envs", "2", "--n-steps", "16", "--n-epochs", "1", "--no-progress")
SPACE = "learning_rate: {low: 1e-4, high: 1e-2, log: true}\nbatch_size: [16, 32]\n"


@pytest.fixture
def space(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    return ("--space", "space.yaml")


def trials_of(result):
    """Return pairs of settings and score of the trials."""
    return [(x["settings"], x["score"]) for x in result.json["trials"]]


def saved_study(tmp_path, name="ppo-CartPole-v1"):
    return optuna.load_study(study_name=name, storage=f"sqlite:///{tmp_path}/sweep.db")


def test_printed_best_settings_repeat_the_trial(rlox, space, tmp_path):
    result = rlox(*SWEEP, *space, "--trials", "3")
    assert (result.code, result.err) == (0, "")
    (tmp_path / "best.yaml").write_text(result.out)
    best = saved_study(tmp_path).best_trial
    assert read_yaml(result.out, "here")["settings"] == best.user_attrs["settings"]
    arguments = ("--runs-dir", "again", "--no-progress", "--json")
    repeated = rlox("train", "--config", "best.yaml", *arguments).json
    assert repeated["timesteps"] == best.user_attrs["timesteps"]
    runs = [tmp_path / run for run in (best.user_attrs["run_dir"], repeated["run_dir"])]
    scores = [rlox("eval", run, "--episodes", "2", "--json").json["returns"] for run in runs]
    assert scores[0] == scores[1]
    files = [run / "checkpoint/networks.safetensors" for run in runs]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.processes
def test_a_seeded_sweep_repeats_and_continues_exactly(rlox, space):
    arguments = (*SWEEP, *space, "--startup-trials", "2", "--json")
    expected = trials_of(rlox(*arguments, "--trials", "4"))
    first = rlox(*arguments, "--trials", "2", "--storage", "other.db")
    assert trials_of(first) == expected[:2]
    continued = rlox(*arguments, "--trials", "4", "--storage", "other.db")
    assert trials_of(continued) == expected
    assert [x["seed"] for x in continued.json["trials"]] == [1, 2, 3, 4]
    again = rlox(*arguments, "--trials", "3", "--storage", "other.db")
    assert trials_of(again) == expected


@pytest.mark.processes
def test_parallel_trials_equal_serial_trials(rlox, space):
    arguments = (*SWEEP, *space, "--json", "--startup-trials", "4", "--trials", "4", "--no-prune")
    serial, parallel = rlox(*arguments), rlox(*arguments, "--jobs", "2", "--storage", "two.db")
    trials = [sorted(trials_of(result), key=json.dumps) for result in (serial, parallel)]
    assert trials[0] == trials[1]


@dataclass(frozen=True)
class Scripted:
    """Range that returns a fixed learning rate for each trial."""

    def suggest(self, name, trial):
        return (3e-3, 2e-3, 0.0)[trial.number]


@pytest.mark.processes
@pytest.mark.parametrize(("prune", "state"), [(True, "PRUNED"), (False, "COMPLETE")])
def test_trial_below_the_median_is_pruned(prune, state, tmp_path):
    """Check that the third trial, which does not learn, is pruned if `prune` is set."""
    settings = {"eval_episodes": 5, "seed": 1, "startup_trials": 2, "prune": prune}
    space = {"learning_rate": Scripted()}
    plan = Plan("ppo", "CartPole-v1", space, 8192, 1024, **settings)
    sweep = Sweep(plan, tmp_path / "sweep.db", runs_dir=None)
    sweep.run(3)
    assert [trial.state.name for trial in sweep.finished_trials()] == ["COMPLETE", "COMPLETE", state]
    assert (sweep.finished_trials()[-1].user_attrs["timesteps"] < 8192) == prune
    assert sweep.best_trial().number in (0, 1)


@pytest.mark.processes
def test_sweep_continues_after_a_failed_trial(rlox, tmp_path):
    (tmp_path / "space.yaml").write_text("learning_rate: [1e30, 1e-3]\n")
    argv = "--space space.yaml --trials 6 --json --startup-trials 6"
    result = rlox(*SWEEP, *argv.split()).json
    states = {x["settings"]["learning_rate"]: x["state"] for x in result["trials"]}
    assert states == {1e30: "fail", 1e-3: "complete"}
    (error, *_) = (x["error"] for x in result["trials"] if x["state"] == "fail")
    assert "Error: " in error


def test_fixed_settings_are_the_same_in_all_trials(rlox, tmp_path):
    (tmp_path / "space.yaml").write_text("learning_rate: {low: 1e-4, high: 1e-3}\n")
    (tmp_path / "fixed.yaml").write_text("net_arch: [4]\nenv_kwargs: {g: 9.0}\n")
    arguments = "sweep td3 Pendulum-v1 --total-timesteps 300 --eval-every 300 --eval-episodes 1"
    more = "--action-noise gaussian --action-noise.sigma 0.2 --buffer-size 300 --trials 2"
    files = ("--space", "space.yaml", "--config", "fixed.yaml", "--env-kwargs.max_episode_steps=50")
    result = rlox(*arguments.split(), *more.split(), *files, "--train-freq", "8", "--no-progress")
    assert result.code == 0, result.err
    best = read_yaml(result.out, "here")
    assert best["env_kwargs"] == {"g": 9.0, "max_episode_steps": 50}
    assert best["settings"]["net_arch"] == [4]
    assert best["settings"]["action_noise"]["sigma"] == 0.2
    (tmp_path / "best.yaml").write_text(result.out)
    again = rlox("train", "--config", "best.yaml", "--no-progress", "--json")
    assert (again.code, again.json["timesteps"]) == (0, 304)


@pytest.mark.processes
def test_the_last_error_is_reported_if_no_trial_has_a_score(rlox, tmp_path):
    (tmp_path / "space.yaml").write_text("gamma: [1.5, 2.0]\n")
    result = rlox(*SWEEP, "--space", "space.yaml", "--trials", "2")
    assert result.code == 1
    assert "score: expected a trial with a score, got 2 trials without" in result.err
    assert "gamma: expected a finite number in [0, 1], got " in result.err


def start_sweep(arguments, folder, **options):
    """Start a sweep in a child process."""
    command = [sys.executable, "-m", "rlox", *(w for w in arguments if w != "--no-progress")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, **pipes, **options)


@pytest.mark.serial
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_study_continues_after_ctrl_c(rlox, space, tmp_path):
    arguments = [*SWEEP, *space, "--eval-every", "256", "--trials", "500", "--jobs", "2"]
    with start_sweep(arguments, tmp_path, start_new_session=True) as run:
        try:
            first = run.stderr.readline()
            os.killpg(run.pid, signal.SIGINT)  # terminals signal the process group
            out, err = run.communicate(timeout=60)
        finally:
            run.kill()
    assert first.startswith("trial ")
    assert (run.returncode, out) == (130, "")
    assert "the same command continues" in err
    assert "Traceback" not in err, err
    trials = saved_study(tmp_path).trials
    assert all(trial.state.is_finished() for trial in trials)
    finished = sum(x.state.name != "FAIL" or bool(x.user_attrs.get("error")) for x in trials)
    result = rlox(*arguments, "--trials", str(finished + 1), "--json")
    assert (result.code, len(result.json["trials"])) == (0, finished + 1)


@pytest.mark.kills
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_study_continues_after_a_kill(rlox, space, tmp_path):
    arguments = [*SWEEP, *space, "--eval-every", "256", "--trials", "500"]
    with start_sweep(arguments, tmp_path) as run:
        run.stderr.readline()
        run.kill()
    finished = sum(trial.state.is_finished() for trial in saved_study(tmp_path).trials)
    assert finished >= 1
    result = rlox(*arguments, "--trials", str(finished + 1), "--json")
    assert (result.code, len(result.json["trials"])) == (0, finished + 1)
    assert [trial["seed"] for trial in result.json["trials"]] == list(range(1, finished + 2))


def test_pool_reports_killed_workers():
    job = TrialJob(PPOTrainer, "CartPole-v1", 1, 10**9, {"runs_dir": None}, eval_every=10**9)
    with Pool(1, 1) as pool:
        pool.submit(job, "a")
        (process,) = pool._processes
        time.sleep(0.1)
        process._process.kill()
        ((label, is_result, error, _),) = pool.wait()
        assert (label, is_result) == ("a", True)
        assert isinstance(error, RuntimeError)
        assert "exit code -9" in str(error)
        assert pool.free == 1


@pytest.mark.parametrize("name", ["trials", "jobs"])
def test_invalid_counts_are_rejected_before_the_storage_is_created(name, rlox, space, tmp_path):
    result = rlox(*SWEEP, *space, f"--{name}", "0")
    assert (result.code, result.err.startswith(f"rlox: {name}: ")) == (2, True)
    assert not [*tmp_path.rglob("*.db")]


@pytest.mark.processes
def test_studies_of_another_plan_are_rejected(rlox, space):
    assert rlox(*SWEEP, *space, "--trials", "1").code == 0
    result = rlox(*SWEEP, *space, "--trials", "2", "--total-timesteps", "512")
    assert result.code == 2
    assert result.err.startswith("rlox: total_timesteps: expected 256, ")
    assert rlox(*SWEEP, *space, "--trials", "1", "--seed", "9").code == 2
    assert rlox(*SWEEP, *space, "--trials", "1", "--seed", "9", "--study", "mine").code == 0


@pytest.mark.parametrize("algorithm", ["a2c", "dqn", "ppo", "sac", "td3"])
def test_default_space_contains_valid_settings_of_every_algorithm(algorithm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = "Pendulum-v1" if algorithm in ("sac", "td3") else "CartPole-v1"
    space = default_space(algorithm, 1, 300)
    settings = {"num_envs": 1}
    if algorithm in ("dqn", "sac", "td3"):
        settings |= {"buffer_size": 2_000, "net_arch": (8,), "learning_starts": 10}
    plan = Plan(algorithm, env, space, 300, 300, 1, seed=1, settings=settings)
    sweep = Sweep(plan, runs_dir=None)
    for index in range(20):
        sweep.study.sampler = optuna.samplers.RandomSampler(seed=index)
        trial = sweep.study.ask()
        found = {name: values.suggest(name, trial) for name, values in sweep.plan.space.items()}
        if algorithm == "ppo":
            found["batch_size"] = min(found["batch_size"], found["n_steps"])
        plan.make_job(index, found, None).make_trainer().close()


def test_setting_that_replaces_a_searched_setting_is_accepted(rlox, tmp_path):
    options = ("--total-timesteps", "20", "--trials", "1", "--eval-episodes", "1", "--startup-trials", "1", "--json")
    result = rlox("sweep", "sac", "Pendulum-v1", "--seed", "1", "--utd-ratio", "0.1", "--net-arch", "8", *options)
    (trial,) = result.json["trials"]
    assert trial["state"] == "complete"
    assert "gradient_steps" not in trial["settings"]


def test_plan_of_numpy_numbers_is_stored(plan):
    assert replace(plan, total_timesteps=np.int64(64)).to_dict()["total_timesteps"] == 64


@pytest.fixture
def plan():
    settings = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 1}
    space = {"learning_rate": Range(1e-4, 1e-3)}
    return Plan("ppo", "CartPole-v1", space, 32, 32, 1, seed=1, settings=settings)


@pytest.mark.parametrize("url", [False, True])
def test_a_second_sweep_of_a_running_study_is_rejected(url, plan, tmp_path):
    storage, errors = tmp_path / "sweep.db", []

    def start_another(trial):
        location = f"sqlite:///{storage}" if url else storage
        with pytest.raises(BlockingIOError) as raised:
            Sweep(plan, location, runs_dir=None).run(2)
        errors.append((raised.value.errno, raised.value.filename))
        Sweep(plan, location, "another", runs_dir=None).run(1)

    sweep = Sweep(plan, storage, runs_dir=None)
    sweep.run(1, on_result=start_another)
    assert errors == [(errno.EAGAIN, f"sqlite:///{storage}" if url else str(storage))]
    assert len(sweep.finished_trials()) == 1
    Sweep(plan, storage, runs_dir=None).run(2)
    assert [trial.user_attrs["seed"] for trial in sweep.finished_trials()] == [1, 2]


@pytest.mark.parametrize("name", ["a?b.db", "a%3Fb.db", "{a}.db", "a b#c.db"])
def test_storage_is_the_named_file(name, plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Sweep(plan, name, runs_dir=None)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert Sweep(plan, name, runs_dir=None).finished_trials() == []


def test_jobs_share_the_cpus_of_the_control_group(plan, monkeypatch):
    def pool(count, threads):
        raise LookupError(count, threads)

    monkeypatch.setattr(machine, "allowed_cpus", lambda: 64)
    monkeypatch.setattr(machine, "quota", lambda: 6.0)
    monkeypatch.setattr(study, "Pool", pool)
    with pytest.raises(LookupError) as raised:
        Sweep(plan, runs_dir=None).run(4, jobs=2)
    assert raised.value.args == (2, 3)
