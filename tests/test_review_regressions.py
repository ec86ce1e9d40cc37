"""Regression tests that each fail before the fix."""

import csv
import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox._errors import (
    ArgumentError,
    ArgumentTypeError,
    CorruptFileError,
    NonFiniteError,
    OutOfMemoryError,
    in_file,
    in_section,
)
from rlox.actors import RemoteActor
from rlox.cli import main
from rlox.configs import DQNConfig
from rlox.diagnosis import write_diagnosis_on_error
from rlox.finite import refuse_spoiled
from rlox.layouts import Layout
from rlox.learner import MEMBERS
from rlox.logger import csv_file
from rlox.logger.csv_file import MetricsFile
from rlox.trainers import PPOTrainer
from rlox.transitions import replay_buffer

BOX, DISCRETE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("kind", [NonFiniteError, CorruptFileError, ArgumentTypeError])
def test_error_of_a_section_keeps_class_and_location(kind):
    error = in_section(kind("w", "x", "y", "z", row=3, section="inner"), "networks")
    assert type(error) is kind
    assert (error.argument, error.row, error.section) == ("w", 3, "networks, inner")


def test_error_of_a_file_keeps_location_and_drops_the_hint_for_an_argument():
    cause = NonFiniteError("returns", "finite numbers", "NaN", "pass others", env=1, row=2, step=3)
    error = in_file(cause, "a/b", CorruptFileError)
    assert (error.argument, error.section, error.got) == ("a/b", "returns", "NaN")
    assert (error.env, error.row, error.step) == (1, 2, 3)
    assert error.hint != "pass others"


def test_diagnosis_is_named_where_an_error_has_no_hint(tmp_path):
    learner = SimpleNamespace(state=lambda replay: SimpleNamespace(**dict.fromkeys(MEMBERS)))
    trainer = SimpleNamespace(
        run=SimpleNamespace(path=tmp_path), timesteps=1, learner=learner, save=lambda *a, **k: None
    )
    with pytest.raises(NonFiniteError) as raised, write_diagnosis_on_error(trainer):
        raise NonFiniteError("obs", "finite numbers", "NaN")
    assert raised.value.hint is None
    assert str(raised.value) == f"obs: expected finite numbers, got NaN; see {tmp_path}/diagnosis"


def test_loss_that_is_not_finite_names_timesteps_of_all_environments():
    with pytest.raises(NonFiniteError) as raised:
        refuse_spoiled({"loss": np.nan}, timesteps=192)
    assert (raised.value.step, raised.value.timesteps) == (None, 192)


def test_unknown_setting_is_the_argument():
    with pytest.raises(ArgumentTypeError) as raised:
        PPOTrainer("CartPole-v1", gama=1)
    assert (raised.value.argument, raised.value.hint) == ("gama", "did you mean 'gamma'?")


@pytest.mark.parametrize(
    ("settings", "kind", "argument"),
    [
        ({"gamma": 2.0}, ArgumentError, "gamma"),
        ({"gama": 0.5}, ArgumentTypeError, "gama"),
        (5, ArgumentTypeError, "settings"),
        ({"seed": 1}, ArgumentTypeError, "seed"),
    ],
    ids=["value", "unknown", "no dict", "seed"],
)
def test_wrong_setting_of_a_variant_has_its_place_as_section(settings, kind, argument):
    with pytest.raises(kind) as raised:
        rlox.train_many("ppo", "CartPole-v1", [1], 100, settings=[{}, settings], runs_dir=None)
    assert (raised.value.argument, raised.value.section) == (argument, "settings[1]")


def test_plain_error_of_a_variant_is_not_edited():
    def fail():
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        rlox.train_many("ppo", fail, [1], 100, settings=[{}], runs_dir=None)


def test_single_environment_names_state_and_action():
    env = gym.make("rlox/CartPole-v1").unwrapped
    env.reset(seed=0)
    for call, argument in (
        (lambda: setattr(env, "state", [np.nan, 0.0, 0.0, 0.0]), "state"),
        (lambda: env.step(5), "action"),
    ):
        with pytest.raises(ArgumentError) as raised:
            call()
        assert (raised.value.argument, raised.value.env) == (argument, None)


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda: rlox.VecEnv(env_id="Pendulum-v1", foo=1), "foo"),
        (lambda: gym.make("rlox/Pendulum-v1", foo=1), "foo"),
        (lambda: PPOTrainer("Pendulum-v1", env_kwargs={"foo": 1}, runs_dir=None), "foo"),
        (lambda: PPOTrainer("Pendulum-v1", env_kwargs={"g": "x"}, runs_dir=None), "g="),
    ],
    ids=["VecEnv", "make", "trainer", "wrong value"],
)
def test_wrong_environment_keyword_names_env_kwargs(make, got):
    with pytest.raises((ArgumentError, ArgumentTypeError)) as raised:
        make()
    assert raised.value.argument == "env_kwargs"
    assert got in raised.value.got


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: rlox.VecEnv(10**13), "n"),
        (lambda: rlox.make_vec("CartPole-v1", 10**13), "num_envs"),
    ],
    ids=["VecEnv", "make_vec"],
)
def test_too_many_environments_name_the_argument_of_the_call(make, argument):
    with pytest.raises(OutOfMemoryError) as raised:
        make()
    assert raised.value.argument == argument


def test_too_large_buffer_names_only_the_setting():
    with pytest.raises(OutOfMemoryError) as raised:
        replay_buffer(Layout(BOX), DISCRETE, DQNConfig(buffer_size=10**14), 1)
    assert raised.value.argument == "buffer_size"
    assert raised.value.got == "100,000,000,000,000"


def test_actor_that_was_stopped_is_an_error_with_a_sentence():
    worker = SimpleNamespace(poll=lambda seconds: True, receive=lambda: None)
    with pytest.raises(RuntimeError, match="stopped"):
        RemoteActor(worker, [], []).wait(0.0)


def _metrics_file(tmp_path):
    file = MetricsFile(tmp_path / "metrics.csv")
    file.log({"a": 1})
    file.flush()
    return file


def test_metrics_file_writes_its_header_again_after_it_was_removed(tmp_path):
    file = _metrics_file(tmp_path)
    file.path.unlink()
    file.log({"a": 2})
    file.flush()
    assert file.path.read_text() == "a\n2\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of open files
def test_interrupted_flush_writes_each_row_once(tmp_path):
    """Interrupt before each line of `flush` in turn."""
    code = MetricsFile.flush.__code__
    interrupted = 0
    for number in range(100):
        file = _metrics_file(tmp_path)
        file._rows = [{"a": 2}]
        lines = iter(range(number + 1))

        def trace(frame, event, arg, lines=lines):
            if frame.f_code is code and event == "line" and next(lines, None) is None:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace if frame.f_code is code else None

        sys.settrace(trace)
        try:
            file.flush()
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        file.flush()
        assert file.path.read_text() == "a\n1\n2\n", number
        file.path.unlink()
        if next(lines, None) is not None:
            break
    assert interrupted > 5


def test_interrupted_addition_of_columns_adds_them_once(tmp_path, monkeypatch):
    file = _metrics_file(tmp_path)
    write_file = csv_file.write_file

    def interrupted(path, data):
        write_file(path, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(csv_file, "write_file", interrupted)
    file._rows = [{"a": 2, "b": 3}]
    with pytest.raises(KeyboardInterrupt):
        file.flush()
    monkeypatch.undo()
    file.flush()
    rows = list(csv.reader(file.path.read_text().splitlines()))
    assert rows == [["a", "b"], ["1", ""], ["2", "3"]]


def test_resume_leaves_the_run_unchanged_if_options_are_rejected(tmp_path, monkeypatch):
    arguments = "--n-steps 64 --num-envs 1 --batch-size 64 --seed 1 --no-progress"
    command = f"train ppo CartPole-v1 --total-timesteps 192 --runs-dir {tmp_path} {arguments}"
    assert main([*command.split(), "--checkpoint-every", "64", "--backend", "native"]) == 0
    (config,) = tmp_path.glob("**/config.json")
    run = config.parent
    saved = run / "checkpoints" / "step-000000064"
    assert saved.is_dir()
    for folder in [run / "checkpoint", *(run / "checkpoints").glob("step-*")]:
        if folder != saved:
            shutil.rmtree(folder)
    before = (run / "metrics.csv").read_bytes(), config.stat().st_mtime_ns
    monkeypatch.setitem(sys.modules, "moviepy", None)
    assert main(["resume", str(run), "--video-every", "100", "--no-progress"]) == 1
    assert before == ((run / "metrics.csv").read_bytes(), config.stat().st_mtime_ns)


class OldStep(gym.Env):
    """Environment whose 70th step returns four values."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def __init__(self, render_mode=None):
        pass

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, "f4"), {}

    def step(self, action):
        self.steps += 1
        step = np.zeros(1, "f4"), 1.0, False, False, {}
        return step if self.steps < 70 else step[:4]


def test_error_of_an_environment_during_training_is_no_usage_error(monkeypatch, capsys):
    monkeypatch.setitem(
        gym.registry, "OldStep-v0", gym.envs.registration.EnvSpec("OldStep-v0", OldStep)
    )
    command = "train ppo OldStep-v0 --total-timesteps 1000 --n-steps 64 --num-envs 1"
    assert (
        main([*command.split(), "--batch-size", "64", "--no-progress", "--runs-dir", "None"]) == 1
    )
    assert "OldStep.step()" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    ["--env-kwargs.q 1", "--gamma 3", "--action-noise.sigma -1", "--eval-every 0"],
)
def test_wrong_option_is_a_usage_error(options, capsys):
    algorithm = "td3" if "noise" in options else "ppo"
    kind = " --action-noise gaussian" if "noise" in options else ""
    command = f"train {algorithm} Pendulum-v1 --total-timesteps 10 --runs-dir None {options}{kind}"
    assert main(command.split()) == 2


def test_same_weights_rejects_a_folder_without_rlox(tmp_path):
    script = ROOT / ".ci" / "same_weights.py"
    namespace = {"__name__": "same_weights"}
    exec(compile(script.read_text(), script, "exec"), namespace)
    with pytest.raises(subprocess.CalledProcessError):
        namespace["train"](tmp_path)


def test_baseline_must_be_in_its_folder_and_fails_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benches" / "python"))
    side_by_side = importlib.import_module("side_by_side")
    subject = side_by_side.Subject("rlox", "sizes")
    row = side_by_side.Row("row", {}, [subject], 1)
    bench = side_by_side.Benchmark("report", "title", lambda quick: [row])
    arguments = ["--quick", "--no-peers", "--baseline", str(tmp_path), "--results", str(tmp_path)]
    options = side_by_side.arguments("title").parse_args(arguments)
    workers = side_by_side.Workers(tmp_path, options.baseline)
    with pytest.raises(side_by_side.WorkerError, match="expected rlox in"):
        workers.of(side_by_side.replace(subject, peer=side_by_side.BASELINE))
    workers.close()
    good = {"name": "rlox", "peer": "rlox", "threads": 1, "work": "", "ours": True}
    bad = {**good, "peer": side_by_side.BASELINE, "ours": False, "error": "no rlox"}
    result = {"name": "row", "subjects": [good, bad]}
    monkeypatch.setattr(side_by_side, "measure_row", lambda *a: result)
    monkeypatch.setattr(side_by_side.report, "evaluate", lambda row: row)
    monkeypatch.setattr(side_by_side.report, "slower", lambda row: [])
    monkeypatch.setattr(side_by_side.report, "table", lambda *a: "")
    assert side_by_side.run(bench, options) == 1
