"""Runs of a learner without environments: loop, callbacks, loggers, checkpoints and resume."""

import dataclasses
import json

import numpy as np
import pytest

from rlox import ArgumentError
from rlox._registry import AlgorithmSpec
from rlox._rng import stream_state, streams_from_states
from rlox._training import loop
from rlox._training.resume import check_manifest, restore_run, resume_in
from rlox._training.run import Run
from rlox.callbacks import CheckpointCallback, EarlyStoppingCallback, EvalCallback
from rlox.callbacks.base import as_callbacks
from rlox.checkpoint import read_checkpoint
from rlox.learners import EpisodeStatistics, Learner, LearnerState
from rlox.logger import JSONLinesLogger
from support.rejections import rejects


@dataclasses.dataclass(frozen=True)
class RegressionConfig:
    learning_rate: float = 0.1
    batch_size: int = 16


class Regression(Learner):
    """Linear regression by stochastic gradient descent; its budget counts tokens."""

    algorithm = "regression"
    backend = "torch"
    budget_unit = "tokens"
    weights = np.array([2.0, -1.0, 0.5])

    def __init__(self, config, seed):
        self.config = config
        self.episodes = EpisodeStatistics()
        self.stop_requested = False
        self.estimate = np.zeros(3)
        self.tokens = 0
        self.streams = {"data": np.random.default_rng(seed)}

    @property
    def budget_used(self):
        return self.tokens

    def iterate(self, progress=0.0):
        x = self.streams["data"].normal(size=(self.config.batch_size, 3))
        error = x @ (self.estimate - self.weights)
        rate = self.config.learning_rate * (1 - progress)
        self.estimate = self.estimate - rate * x.T @ error / len(x)
        self.tokens += x.size
        return {"time/total_tokens": self.tokens, "train/loss": float(np.mean(error**2))}

    def state(self, replay=True):
        streams = {name: stream_state(stream) for name, stream in self.streams.items()}
        counters = {"tokens": self.tokens}
        return LearnerState({"estimate": self.estimate}, {}, {}, {}, counters, streams)

    def load_state(self, state):
        self.streams = streams_from_states(state.streams, self.streams)
        self.estimate = state.networks["estimate"]
        self.tokens = state.counters["tokens"]


SPEC = AlgorithmSpec(
    name="regression",
    config=RegressionConfig,
    trainer="",
    torch_learner="",
    native_learner="",
    search_space="",
    has_env=False,
)


def make_run(runs_dir=None, seed=1):
    config = RegressionConfig()
    return Run(
        spec=SPEC,
        learner=Regression(config, seed),
        config=config,
        seed=seed,
        task="line",
        config_sources={"learning_rate": "default", "batch_size": "default"},
        runs_dir=runs_dir,
    )


def load_run(path):
    checkpoint = read_checkpoint(path)
    run = make_run(seed=9)
    restore_run(run, path, check_manifest(path, checkpoint.manifest, SPEC), checkpoint.members, same=True)
    return run


def test_supervised_learner_trains_logs_and_saves(tmp_path):
    run = make_run(tmp_path)
    result = loop.train(run, 4_800, loggers=[JSONLinesLogger(every=1)])
    assert result["stopped_by"] is None
    assert np.isnan(result["mean_reward"])
    assert np.abs(run.learner.estimate - Regression.weights).max() < 0.05
    header, *rows = (run.path / "metrics.csv").read_text().splitlines()
    assert header.startswith("time/total_tokens,train/loss")
    assert (len(rows), rows[-1].split(",")[0]) == (100, "4800")
    assert len((run.path / "metrics.jsonl").read_text().splitlines()) == 100
    assert {"env", "spaces"}.isdisjoint(json.loads((run.path / "config.json").read_text()))
    assert {"env", "spaces", "env_state"}.isdisjoint(read_checkpoint(run.path).manifest)


def test_resumed_run_equals_an_uninterrupted_run(tmp_path):
    complete = make_run()
    loop.train(complete, 960)
    stopped = make_run(tmp_path)

    def stop(run, metrics):
        if run.budget_used == 480:
            run.stop()

    assert loop.train(stopped, 960, callbacks=as_callbacks([stop]))["interrupted"]
    resumed = load_run(stopped.path)
    resume_in(resumed, stopped.path)
    loop.train(resumed, None)
    np.testing.assert_array_equal(resumed.learner.estimate, complete.learner.estimate)
    rows = (stopped.path / "metrics.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == [str(48 * (i + 1)) for i in range(20)]


def test_callbacks_count_the_unit_of_the_budget(tmp_path):
    run = make_run(tmp_path)
    checkpoints = CheckpointCallback(every=480, keep_last=2, best="train/loss")
    patience = EarlyStoppingCallback("train/loss", patience=480, mode="min", min_delta=1e9)
    result = loop.train(run, 9_600, callbacks=[checkpoints, patience])
    assert result["stopped_by"].startswith("EarlyStoppingCallback")
    names = sorted(path.name for path in (run.path / "checkpoints").glob("step-*"))
    assert names[0] == "step-000000480"
    assert load_run(run.path).budget_used == run.budget_used


@pytest.mark.parametrize("env", [None, "CartPole-v1"])
def test_evaluation_callback_names_the_missing_environment(env):
    run = make_run()
    with rejects(ArgumentError, "env"):
        loop.train(run, 480, callbacks=[EvalCallback(every=48, env=env)])
    assert run.budget_used == 0


def test_check_of_the_budget_does_not_change_the_plan():
    run = make_run()
    run.plan(960)
    assert (run.check_total(48), run.check_total(None)) == (48, None)
    assert (run.budget_start, run.budget_end) == (0, 960)


@pytest.mark.parametrize("total", [0, None, "many"])
def test_budget_errors_name_the_unit(total):
    with pytest.raises((ValueError, TypeError)) as raised:
        loop.train(make_run(), total)
    assert raised.value.argument == "total_tokens"
