"""Weights & Biases offline and MLflow with a local SQLite store."""

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


def read_records(data):
    """Yield the records of a `.wandb` file: LevelDB's log format after a header of 7 bytes."""
    offset, record = 7, b""
    while offset + 7 <= len(data):
        remaining = 32_768 - offset % 32_768
        if remaining < 7:  # the end of a block is unused
            offset += remaining
            continue
        _, length, record_type = struct.unpack_from("<IHB", data, offset)
        record += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if record_type in (1, 4):  # full record or last part
            yield record
            record = b""


def read_wandb_rows(file):
    """Yield the history rows of a `.wandb` file."""
    from wandb.proto import wandb_internal_pb2

    read, until = [], time.monotonic() + 60
    # A separate process writes the file and can finish after the run.
    while "exit" not in [record_type for record_type, _ in read] and time.monotonic() < until:
        read, _ = [], time.sleep(0.1)
        for data in read_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            read.append((record.WhichOneof("record_type"), record))
    for record_type, record in read:
        if record_type == "history":
            items = record.history.item
            row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
            yield {name: x for name, x in row.items() if not name.startswith("_")}


@pytest.mark.services
def test_wandb_offline_contains_every_row(tmp_path):
    pytest.importorskip("wandb", reason="the extra rlox[wandb] is not installed")
    recorder, trainer = NotingLogger(), small(runs_dir=tmp_path)
    callback = Noting("a", [], {"eval/mean_reward": 3.0})
    trainer.train(96, callbacks=[callback], loggers=[WandbLogger(every=1), recorder])
    (file,) = (trainer.run.path / "wandb").glob("offline-run-*/run-*.wandb")
    expected = [{n: x for n, x in row.items() if not math.isnan(x)} for _, row in recorder.rows]
    assert [*read_wandb_rows(file)] == [pytest.approx(row) for row in expected]


@pytest.fixture(scope="module")
def mlflow_store(tmp_path_factory):
    pytest.importorskip("mlflow", reason="the extra rlox[mlflow] is not installed")
    return tmp_path_factory.mktemp("mlflow")


def runs_in(folder):
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("rlox")
    return client, client.search_runs([experiment.experiment_id])


@pytest.mark.services
def test_mlflow_contains_settings_and_every_row(mlflow_store, monkeypatch):
    (mlflow_store / "empty").mkdir()
    monkeypatch.chdir(mlflow_store / "empty")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    recorder, trainer = NotingLogger(), small(runs_dir=mlflow_store)
    trainer.train(96, loggers=[MLflowLogger(every=1), recorder])
    client, (run,) = runs_in(mlflow_store)
    assert (run.info.status, run.info.run_name) == ("FINISHED", trainer.run.path.name)
    assert run.data.params["n_steps"] == "16"
    assert run.data.params["algorithm"] == "ppo"
    for name in ("train/loss", "time/total_timesteps"):
        history = client.get_metric_history(run.info.run_id, name)
        expected = [(steps, pytest.approx(row[name])) for steps, row in recorder.rows]
        assert [(metric.step, metric.value) for metric in history] == expected
    assert list((mlflow_store / "empty").iterdir()) == []


@pytest.mark.services
@pytest.mark.parametrize("status", ["FAILED", "KILLED", "FINISHED"])
def test_mlflow_stores_the_status_of_a_run(mlflow_store, status):
    def end(run, metrics):
        if status == "FAILED":
            raise RuntimeError("mine")
        run.stop("solved" if status == "FINISHED" else None)

    trainer = small(runs_dir=mlflow_store)
    failure = pytest.raises(RuntimeError, match="mine")
    with failure if status == "FAILED" else contextlib.nullcontext():
        trainer.train(96, callbacks=[end], loggers=["mlflow"])
    _, runs = runs_in(mlflow_store)
    (run,) = [run for run in runs if run.info.run_name == trainer.run.path.name]
    assert run.info.status == status


@pytest.mark.services
def test_all_loggers_work_in_one_run(mlflow_store):
    for package in ("tensorboard", "wandb"):
        pytest.importorskip(package, reason=f"the extra rlox[{package}] is not installed")
    trainer = small(runs_dir=mlflow_store)
    names = ["console", "csv", "jsonl", "tensorboard", "wandb", "mlflow"]
    result = trainer.train(64, loggers=names)
    run = trainer.run.path
    assert result["timesteps"] == 64
    names_in_folder = {path.name for path in run.iterdir()}
    assert {"metrics.csv", "metrics.jsonl", "tensorboard", "wandb"} <= names_in_folder
    assert run.name in [r.info.run_name for r in runs_in(mlflow_store)[1]]


@pytest.mark.services
def test_wandb_resumes_the_run_of_the_folder(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="the extra rlox[wandb] is not installed")
    init_kwargs, init = [], wandb.init
    monkeypatch.setattr(wandb, "init", lambda **kwargs: (init_kwargs.append(kwargs), init(**kwargs))[1])
    run = train_half(tmp_path, tmp_path, WandbLogger)
    run_id = (run / "wandb.id").read_text().strip()
    assert "id" not in init_kwargs[0]
    assert list((run / "wandb").glob(f"offline-run-*-{run_id}"))
    load_half(tmp_path, run).train(96, loggers=[WandbLogger(every=1)])
    assert (init_kwargs[1]["id"], init_kwargs[1]["resume"]) == (run_id, "allow")
    names = [path.name for path in (run / "wandb").glob("offline-run-*")]
    assert len(names) == 2
    assert all(f"-{run_id}" in name for name in names)
    load_half(tmp_path, run).train(32, loggers=[WandbLogger(every=1, id="mine")])
    assert init_kwargs[2]["id"] == "mine"


@pytest.mark.services
def test_mlflow_resumes_the_run_of_the_folder(mlflow_store, tmp_path):
    run = train_half(tmp_path, mlflow_store, MLflowLogger)
    trainer = load_half(tmp_path, run)
    trainer.train(96, loggers=[MLflowLogger(every=1)])
    client, runs = runs_in(mlflow_store)
    (resumed_run,) = [resumed_run for resumed_run in runs if resumed_run.info.run_name == run.name]
    assert resumed_run.info.run_id == (run / "mlflow.id").read_text().strip()
    assert resumed_run.info.status == "FINISHED"
    history = client.get_metric_history(resumed_run.info.run_id, "train/loss")
    assert [metric.step for metric in history] == [32, 64, 96, 128, 160]
    client.delete_run(resumed_run.info.run_id)
    trainer.train(32, loggers=[MLflowLogger(every=1)])
    assert (run / "mlflow.id").read_text().strip() != resumed_run.info.run_id
