"""`rlox sweep`: trials, pruning, failures, Ctrl-C, and a study that goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from rlox._processes import Pool
from rlox.cli.config_file import read_yaml
from rlox.many._jobs import TrialJob
from rlox.sweep import Plan, Sweep, default_space
from rlox.trainers import PPOTrainer

optuna = pytest.importorskip("optuna", reason="needs optuna: pip install 'rlox[sweep]'")

SWEEP = "sweep ppo CartPole-v1 --seed 1 --total-timesteps 256 --eval-every 64 --eval-episodes 2"
SWEEP = (*SWEEP.split(), "--num-envs", "2", "--n-steps", "16", "--n-epochs", "1", "--no-progress")
SPACE = "learning_rate: {low: 1e-4, high: 1e-2, log: true}\nbatch_size: [16, 32]\n"


@pytest.fixture
def space(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    return ("--space", "space.yaml")


def tried(said):
    """Settings and scores by trial."""
    return [(x["settings"], x["score"]) for x in said.json["trials"]]


def study(tmp_path, name="ppo-CartPole-v1"):
    return optuna.load_study(study_name=name, storage=f"sqlite:///{tmp_path}/sweep.db")


def test_the_best_settings_are_a_file_that_repeats_the_trial(rlox, space, tmp_path):
    said = rlox(*SWEEP, *space, "--trials", "3")
    assert (said.code, said.err) == (0, "")
    (tmp_path / "best.yaml").write_text(said.out)
    best = study(tmp_path).best_trial
    assert read_yaml(said.out, "here")["settings"] == best.user_attrs["settings"]
    words = ("--runs-dir", "again", "--no-progress", "--json")
    again = rlox("train", "--config", "best.yaml", *words).json
    assert again["timesteps"] == best.user_attrs["timesteps"]
    words = ("--episodes", "2", "--json")
    scores = [
        rlox("eval", run, *words).json["returns"]
        for run in (again["run_dir"], best.user_attrs["run_dir"])
    ]
    assert scores[0] == scores[1]
    weights = "checkpoint/networks.safetensors"
    of_trial, alone = (
        tmp_path / run / weights for run in (best.user_attrs["run_dir"], again["run_dir"])
    )
    assert of_trial.read_bytes() == alone.read_bytes()


def test_each_trial_has_a_run_folder_and_is_told(rlox, space, tmp_path):
    words = [word for word in SWEEP if word != "--no-progress"]
    said = rlox(*words, *space, "--trials", "2")
    assert said.err.startswith("trial 0: mean reward ")
    assert said.err.count("\n") == 2
    assert len(list(tmp_path.rglob("summary.json"))) == 2


def test_a_sweep_with_a_seed_repeats_and_goes_on_as_if_it_had_not_ended(rlox, space):
    words = (*SWEEP, *space, "--startup-trials", "2", "--json")
    whole = rlox(*words, "--trials", "4")
    first = rlox(*words, "--trials", "2", "--storage", "other.db")
    assert tried(first) == tried(whole)[:2]
    rest = rlox(*words, "--trials", "4", "--storage", "other.db")
    assert tried(rest) == tried(whole)
    assert [x["seed"] for x in rest.json["trials"]] == [1, 2, 3, 4]
    again = rlox(*words, "--trials", "3", "--storage", "other.db")
    assert tried(again) == tried(whole)


def test_several_at_once_are_the_same_as_alone(rlox, space):
    words = (*SWEEP, *space, "--json", "--startup-trials", "4", "--trials", "4", "--no-prune")
    alone, together = rlox(*words), rlox(*words, "--jobs", "2", "--storage", "two.db")
    by_seed = [sorted(tried(said), key=json.dumps) for said in (alone, together)]
    assert by_seed[0] == by_seed[1]


@dataclass(frozen=True)
class Scripted:
    """What trials try, in their order."""

    values: tuple[float, ...]

    def of(self, name, trial):
        return self.values[trial.number]


def test_what_is_below_the_median_is_pruned(tmp_path):
    """The first two learn; the third does not, and ends before all its steps are made."""
    space = {"learning_rate": Scripted((3e-3, 2e-3, 0.0))}
    about = {"eval_episodes": 5, "seed": 1, "startup_trials": 2}
    for prune, state in ((True, "PRUNED"), (False, "COMPLETE")):
        plan = Plan("ppo", "CartPole-v1", space, 8192, 1024, prune=prune, **about)
        sweep = Sweep(plan, tmp_path / f"{prune}.db", runs_dir=None)
        sweep.run(3)
        states = [trial.state.name for trial in sweep.done()]
        assert states == ["COMPLETE", "COMPLETE", state]
        assert (sweep.done()[-1].user_attrs["timesteps"] < 8192) == prune
        assert sweep.best().number in (0, 1)


def test_a_trial_that_fails_ends_no_sweep(rlox, tmp_path):
    (tmp_path / "space.yaml").write_text("learning_rate: [1e30, 1e-3]\n")
    words = (*SWEEP, "--space", "space.yaml", "--trials", "6", "--json", "--startup-trials", "6")
    told = rlox(*words).json
    states = {x["settings"]["learning_rate"]: x["state"] for x in told["trials"]}
    assert states == {1e30: "fail", 1e-3: "complete"}
    (error, *_) = (x["error"] for x in told["trials"] if x["state"] == "fail")
    assert "Error: " in error


def test_settings_that_are_given_are_those_of_all_trials(rlox, tmp_path):
    (tmp_path / "space.yaml").write_text("learning_rate: {low: 1e-4, high: 1e-3}\n")
    (tmp_path / "fixed.yaml").write_text("net_arch: [4]\nenv_kwargs: {g: 9.0}\n")
    words = "sweep td3 Pendulum-v1 --total-timesteps 300 --eval-every 300 --eval-episodes 1"
    more = "--action-noise gaussian --action-noise.sigma 0.2 --buffer-size 300 --trials 2"
    files = ("--space", "space.yaml", "--config", "fixed.yaml", "--env-kwargs.max_episode_steps=50")
    said = rlox(*words.split(), *more.split(), *files, "--train-freq", "8", "--no-progress")
    assert said.code == 0, said.err
    best = read_yaml(said.out, "here")
    assert best["env_kwargs"] == {"g": 9.0, "max_episode_steps": 50}
    assert best["settings"]["net_arch"] == [4]
    assert best["settings"]["action_noise"]["sigma"] == 0.2
    (tmp_path / "best.yaml").write_text(said.out)
    again = rlox("train", "--config", "best.yaml", "--no-progress", "--json")
    assert (again.code, again.json["timesteps"]) == (0, 304)


def test_where_no_trial_has_a_score_the_last_error_is_told(rlox, tmp_path):
    (tmp_path / "space.yaml").write_text("gamma: [1.5, 2.0]\n")
    said = rlox(*SWEEP, "--space", "space.yaml", "--trials", "2")
    assert said.code == 1
    assert "score: expected a trial with one, got 2 without" in said.err
    assert "gamma: expected a finite number in [0, 1], got " in said.err


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_leaves_a_study_that_goes_on(rlox, space, tmp_path):
    words = [*SWEEP, *space, "--eval-every", "256", "--trials", "500", "--jobs", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "rlox", *(w for w in words if w != "--no-progress")]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes) as run:
        try:
            first = run.stderr.readline()
            os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to all of its processes
            out, err = run.communicate(timeout=60)
        finally:
            run.kill()
    assert first.startswith("trial ")
    assert (run.returncode, out) == (130, "")
    assert "the same command goes on" in err
    assert "Traceback" not in err, err
    trials = study(tmp_path).trials
    assert all(trial.state.is_finished() for trial in trials)
    ended = [x for x in trials if x.state.name != "FAIL" or x.user_attrs.get("error")]
    said = rlox(*words, "--trials", str(len(ended) + 1), "--json")
    assert said.code == 0
    assert len(said.json["trials"]) == len(ended) + 1


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_a_sweep_that_was_killed_goes_on_with_the_trials_that_it_has(rlox, space, tmp_path):
    words = [*SWEEP, *space, "--eval-every", "256", "--trials", "500"]
    command = [sys.executable, "-m", "rlox", *(w for w in words if w != "--no-progress")]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
        run.stderr.readline()
        run.kill()
    ended = sum(trial.state.is_finished() for trial in study(tmp_path).trials)
    assert ended >= 1
    said = rlox(*words, "--trials", str(ended + 1), "--json")
    assert (said.code, len(said.json["trials"])) == (0, ended + 1)
    assert [trial["seed"] for trial in said.json["trials"]] == list(range(1, ended + 2))


def test_pool_reports_worker_that_died():
    job = TrialJob(PPOTrainer, "CartPole-v1", 1, 10**9, {"runs_dir": None}, eval_every=10**9)
    with Pool(1, 1) as pool:
        pool.submit(job, "a")
        (process,) = pool._processes.values()
        time.sleep(0.1)
        process._process.kill()
        ((label, is_result, error, _),) = pool.wait()
        assert (label, is_result) == ("a", True)
        assert isinstance(error, RuntimeError)
        assert "exit code -9" in str(error)
        assert pool.free == 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            "sweep",
            2,
            "ALGORITHM: expected an algorithm (a2c, dqn, impala, ppo, sac, td3), got none; rlox s",
        ),
        ("sweep ppo", 2, "ENV: expected an environment's id, got None; rlox sweep ppo CartPole-v1"),
        ("sweep ppo CartPole-v1", 2, "--total-timesteps: expected how many steps each trial makes"),
        ("BASE --trials 0", 2, "trials: expected an integer of at least 1, got 0; pass how many"),
        ("BASE --jobs 0", 2, "jobs: expected an integer of at least 1, got 0; pass how many at o"),
        ("BASE --eval-every 512", 2, "eval_every: expected at most total_timesteps = 256, got 512"),
        ("BASE --eval-episodes 0", 2, "eval_episodes: expected an integer of at least 1, got 0"),
        ("BASE --seed -1", 2, "seed: expected None or an integer of at least 0, got -1"),
        ("BASE --gamma 2", 2, "gamma: expected a finite number in [0, 1], got 2.0"),
        ("BASE --storage none/a.db", 1, "storage: expected an SQLite file that can be written"),
        ("BASE --runs-dir space.yaml", 2, "runs_dir: expected a folder"),
        ("BASE --space none.yaml", 2, "--space: expected a file, got 'none.yaml', which is not"),
        ("BASE --space unknown.yaml", 2, "ppo's space has no setting 'gama'; did you mean 'gamma'"),
        ("BASE --space word.yaml", 2, "space, gamma: expected a range such as {low: 1e-5, high:"),
        ("BASE --space half.yaml", 2, "space, gamma: expected low and high, got low; write {low"),
        ("BASE --space order.yaml", 2, "space, gamma: expected low below high, got 1 and 0.5; exc"),
        ("BASE --space log.yaml", 2, "space, gamma: expected low above 0 beside log, got 0"),
        ("BASE --space none.json", 2, "space: expected settings and what to search, got {}"),
        ("BASE --space twice.yaml", 2, "space, gamma: expected choices, each once, got [0.9, 0.9]"),
        ("BASE --space key.yaml", 2, "space, gamma has no setting 'hi'; did you mean 'high'?"),
        ("sweep ppo CartPol-v1 --total-timesteps 9", 1, "got 'CartPol-v1'"),
    ],
)
def test_mistakes_are_told_and_nothing_is_trained(words, code, message, rlox, space, tmp_path):
    about = {"unknown": "gama: [1]", "word": "gamma: much", "half": "gamma: {low: 1}"}
    about |= {"order": "gamma: {low: 1, high: 0.5}", "log": "gamma: {low: 0, high: 1, log: true}"}
    about |= {"twice": "gamma: [0.9, 0.9]", "key": "gamma: {low: 0, hi: 1}"}
    for name, text in about.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "none.json").write_text("{}")
    base = (*SWEEP, *space, "--trials", "1")
    said = rlox(*(x for word in words.split() for x in (base if word == "BASE" else (word,))))
    assert (said.code, said.out) == (code, ""), said.err
    assert message in said.err
    assert not list(tmp_path.rglob("metrics.csv"))


def test_a_study_of_another_plan_is_refused(rlox, space, tmp_path):
    assert rlox(*SWEEP, *space, "--trials", "1").code == 0
    said = rlox(*SWEEP, *space, "--trials", "2", "--total-timesteps", "512")
    assert said.code == 2
    assert (
        "total_timesteps: expected 256, as study 'ppo-CartPole-v1' in sweep.db has it, got 512; "
        "pass that, or another --study" in said.err
    )
    assert rlox(*SWEEP, *space, "--trials", "1", "--seed", "9").code == 2
    assert rlox(*SWEEP, *space, "--trials", "1", "--seed", "9", "--study", "mine").code == 0


@pytest.mark.parametrize("algorithm", ["a2c", "dqn", "ppo", "sac", "td3"])
def test_every_algorithm_has_a_space_whose_settings_it_takes(algorithm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = "Pendulum-v1" if algorithm in ("sac", "td3") else "CartPole-v1"
    space = default_space(algorithm, 1, 300)
    own = {"buffer_size": 2_000, "num_envs": 1, "net_arch": (8,), "learning_starts": 10}
    fixed = own if algorithm in ("dqn", "sac", "td3") else {"num_envs": 1}
    plan = Plan(algorithm, env, space, 300, 300, 1, seed=1, settings=fixed)
    sweep = Sweep(plan, runs_dir=None)
    for index in range(20):
        job = plan.job(index, _sampled(sweep, index), None)
        job.make_trainer().close()


def _sampled(sweep, index):
    sweep.study.sampler = optuna.samplers.RandomSampler(seed=index)
    trial = sweep.study.ask()
    found = {name: one.of(name, trial) for name, one in sweep.plan.space.items()}
    if sweep.plan.algorithm == "ppo":
        found["batch_size"] = min(found["batch_size"], found["n_steps"])
    return found


def test_without_optuna_the_extra_is_named(rlox, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = rlox(*SWEEP, "--trials", "1")
    assert said.code == 1
    assert (
        "rlox sweep: expected the package optuna, got none; pip install 'rlox[sweep]'" in said.err
    )
