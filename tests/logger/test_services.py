"""Weights & Biases offline, and MLflow with a local SQLite store."""

import contextlib
import json
import math
import struct
import time

import pytest

from rlox.logger import MLflowLogger, WandbLogger
from support.runs import Noting, NotingLogger, load_half, small, train_half

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def records(data):
    """The records of a `.wandb` file: LevelDB's log format, after a header of 7 bytes."""
    at, record = 7, b""
    while at + 7 <= len(data):
        left = 32_768 - at % 32_768
        if left < 7:  # the rest of a block is not used
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, or the last part
            yield record
            record = b""


def rows_of_wandb(file):
    """The rows of history in a `.wandb` file."""
    from wandb.proto import wandb_internal_pb2

    read, until = [], time.monotonic() + 60
    # Its own process writes the file, and may do so after the run has ended here.
    while "exit" not in [kind for kind, _ in read] and time.monotonic() < until:
        read, _ = [], time.sleep(0.1)
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            read.append((record.WhichOneof("record_type"), record))
    for kind, record in read:
        if kind == "history":
            items = record.history.item
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
            yield {name: x for name, x in row.items() if not name.startswith("_")}


@pytest.mark.services
def test_wandb_offline_holds_every_row(tmp_path):
    pytest.importorskip("wandb", reason="the extra rlox[wandb] is not installed")
    recorder, trainer = NotingLogger(), small(runs_dir=tmp_path)
    adds = Noting("a", [], {"eval/mean_reward": 3.0})
    trainer.train(96, callbacks=[adds], loggers=[WandbLogger(every=1), recorder])
    (file,) = (trainer.run.path / "wandb").glob("offline-run-*/run-*.wandb")
    wanted = [{n: x for n, x in row.items() if not math.isnan(x)} for _, row in recorder.rows]
    assert [*rows_of_wandb(file)] == [pytest.approx(row) for row in wanted]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    pytest.importorskip("mlflow", reason="the extra rlox[mlflow] is not installed")
    return tmp_path_factory.mktemp("mlflow")


def runs_in(folder):
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("rlox")
    return client, client.search_runs([experiment.experiment_id])


@pytest.mark.services
def test_mlflow_holds_settings_and_every_row(store, monkeypatch):
    (store / "empty").mkdir()
    monkeypatch.chdir(store / "empty")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    recorder, trainer = NotingLogger(), small(runs_dir=store)
    trainer.train(96, loggers=[MLflowLogger(every=1), recorder])
    client, (run,) = runs_in(store)
    assert (run.info.status, run.info.run_name) == ("FINISHED", trainer.run.path.name)
    assert run.data.params["n_steps"] == "16"
    assert run.data.params["algorithm"] == "ppo"
    for name in ("train/loss", "time/total_timesteps"):
        said = client.get_metric_history(run.info.run_id, name)
        wanted = [(steps, pytest.approx(row[name])) for steps, row in recorder.rows]
        assert [(metric.step, metric.value) for metric in said] == wanted
    assert list((store / "empty").iterdir()) == []


@pytest.mark.services
@pytest.mark.parametrize("status", ["FAILED", "KILLED", "FINISHED"])
def test_mlflow_stores_how_a_run_ended(store, status):
    def end(trainer, metrics):
        if status == "FAILED":
            raise RuntimeError("mine")
        trainer.stop("solved" if status == "FINISHED" else None)

    trainer = small(runs_dir=store)
    failure = pytest.raises(RuntimeError, match="mine")
    with failure if status == "FAILED" else contextlib.nullcontext():
        trainer.train(96, callbacks=[end], loggers=["mlflow"])
    _, runs = runs_in(store)
    (run,) = [run for run in runs if run.info.run_name == trainer.run.path.name]
    assert run.info.status == status


@pytest.mark.services
def test_all_loggers_at_once(store):
    for package in ("tensorboard", "wandb"):
        pytest.importorskip(package, reason=f"the extra rlox[{package}] is not installed")
    trainer = small(runs_dir=store)
    names = ["console", "csv", "jsonl", "tensorboard", "wandb", "mlflow"]
    result = trainer.train(64, loggers=names)
    run = trainer.run.path
    assert result["timesteps"] == 64
    there = {path.name for path in run.iterdir()}
    assert {"metrics.csv", "metrics.jsonl", "tensorboard", "wandb"} <= there
    assert run.name in [r.info.run_name for r in runs_in(store)[1]]


@pytest.mark.services
def test_wandb_goes_on_with_the_run_of_the_folder(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="the extra rlox[wandb] is not installed")
    asked, init = [], wandb.init
    monkeypatch.setattr(wandb, "init", lambda **how: (asked.append(how), init(**how))[1])
    run = train_half(tmp_path, tmp_path, WandbLogger)
    kept = (run / "wandb.id").read_text().strip()
    assert "id" not in asked[0]
    assert list((run / "wandb").glob(f"offline-run-*-{kept}"))
    load_half(tmp_path, run).train(96, loggers=[WandbLogger(every=1)])
    assert (asked[1]["id"], asked[1]["resume"]) == (kept, "allow")
    names = [path.name for path in (run / "wandb").glob("offline-run-*")]
    assert len(names) == 2
    assert all(f"-{kept}" in name for name in names)
    load_half(tmp_path, run).train(32, loggers=[WandbLogger(every=1, id="mine")])
    assert asked[2]["id"] == "mine"


@pytest.mark.services
def test_mlflow_goes_on_with_the_run_of_the_folder(store, tmp_path):
    run = train_half(tmp_path, store, MLflowLogger)
    half = load_half(tmp_path, run)
    half.train(96, loggers=[MLflowLogger(every=1)])
    client, runs = runs_in(store)
    (one,) = [one for one in runs if one.info.run_name == run.name]
    assert one.info.run_id == (run / "mlflow.id").read_text().strip()
    assert one.info.status == "FINISHED"
    history = client.get_metric_history(one.info.run_id, "train/loss")
    assert [metric.step for metric in history] == [32, 64, 96, 128, 160]
    client.delete_run(one.info.run_id)
    half.train(32, loggers=[MLflowLogger(every=1)])
    assert (run / "mlflow.id").read_text().strip() != one.info.run_id
