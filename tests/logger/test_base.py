"""Loggers passed by name and as objects, and loggers that fail."""

import pytest

from rlox import ArgumentError, ArgumentTypeError
from rlox.logger import ConsoleLogger, CSVLogger, IntervalLogger, JSONLinesLogger
from support.runs import NotingLogger, small


def failing_logger(method):
    """Return a logger that raises an error in one method."""
    logger = NotingLogger()
    call = getattr(logger, method)

    def fail(*args):
        call(*args)
        raise OSError("mine")

    setattr(logger, method, fail)
    return logger


@pytest.mark.parametrize(
    ("method", "calls"), [("start", "start"), ("log", "start log"), ("finish", "start log log finish")]
)
def test_logger_that_raises_warns_once_and_is_not_called_again(method, calls):
    broken, fine = failing_logger(method), NotingLogger()
    message = rf"NotingLogger\.{method} failed \(OSError: mine\); training continues without"
    with pytest.warns(UserWarning, match=message) as warned:
        result = small().train(64, loggers=[broken, fine])
    assert len(warned) == 1
    assert [call for _, call in broken.notes] == calls.split()
    assert (result["timesteps"], len(fine.rows)) == (64, 2)
    assert fine.results == [result]


def block_metrics_file(run, metrics):
    (run.path / "metrics.csv").mkdir(exist_ok=True)


def test_unwritable_metrics_file_warns_once(tmp_path):
    trainer = small(runs_dir=tmp_path)
    with pytest.warns(UserWarning, match=r"metrics\.csv: rows cannot be written") as warned:
        result = trainer.train(64, callbacks=[block_metrics_file])
    assert (len(warned), result["timesteps"]) == (1, 64)
    assert {"checkpoint", "summary.json"} <= {path.name for path in trainer.run.path.iterdir()}


@pytest.mark.filterwarnings("error")
def test_failing_loggers_are_logged_if_warnings_are_errors(tmp_path, caplog):
    trainer = small(runs_dir=tmp_path)
    assert trainer.train(64, callbacks=[block_metrics_file], loggers=[failing_logger("log")])["timesteps"] == 64
    assert "NotingLogger.log failed (OSError: mine)" in caplog.text
    assert "metrics.csv: rows cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("loggers", "error", "got"),
    [
        ([print], ArgumentTypeError, "a builtin_function_or_method"),
        ([ConsoleLogger], ArgumentTypeError, "the class ConsoleLogger"),
        (["csv"], ArgumentError, "runs_dir=None"),
        (["jsonl", "console", "jsonl"], ArgumentError, "'jsonl' twice"),
    ],
    ids=["function", "class", "no run folder", "twice"],
)
def test_invalid_loggers_are_rejected_before_anything_changes(loggers, error, got):
    trainer = small()
    with pytest.raises(error) as raised:
        trainer.train(64, loggers=loggers)
    assert raised.value.argument == "loggers"
    assert got in raised.value.got
    assert trainer.run.budget_end == 0


def test_loggers_with_a_path_need_no_run_folder(tmp_path):
    rows, table = tmp_path / "sub" / "rows.jsonl", tmp_path / "other" / "rows.csv"
    small().train(64, loggers=[JSONLinesLogger(rows, every=1), CSVLogger(table)])
    assert len(rows.read_text().splitlines()) == 2
    assert len(table.read_text().splitlines()) == 3


def test_csv_logger_of_the_run_folder_writes_each_row_once(tmp_path):
    trainer = small(runs_dir=tmp_path)
    trainer.train(64, loggers=["csv"])
    assert len((trainer.run.path / "metrics.csv").read_text().splitlines()) == 3


class RecordingLogger(IntervalLogger):
    def __init__(self, run):
        super().__init__(100)
        self.steps = []
        self.start(run.info())

    def write(self, metrics, step):
        self.steps.append(step)


def test_thinned_rows_include_new_metrics_and_the_last_row():
    logger = RecordingLogger(small().run)
    for steps in range(32, 321, 32):
        logger.log({"a": 1.0} | ({"eval": 2.0} if steps == 224 else {}), steps)
    logger.finish(None)
    assert logger.steps == [32, 128, 224, 320]


def test_thinned_rows_of_resumed_and_uninterrupted_runs_are_equal():
    def log_steps(steps, trainer):
        logger = RecordingLogger(trainer.run)
        for at in steps:
            logger.log({"time/fps": 1.0, "train/loss": 1.0}, at)
        return logger.steps

    uninterrupted, trainer = log_steps(range(32, 321, 32), small()), small()
    trainer.train(160)
    assert [*log_steps(range(32, 161, 32), small()), *log_steps(range(192, 321, 32), trainer)] == uninterrupted
