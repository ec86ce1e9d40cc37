"""Loggers by name and as objects; those that fail."""

import pytest

from rlox.logger import ConsoleLogger, CSVLogger, JSONLinesLogger, RunFolder, Thinned, as_loggers
from rlox.logger.base import NAMES
from support.runs import NotingLogger, small


class Failing(NotingLogger):
    def __init__(self, method):
        super().__init__()
        self.method = method

    def start(self, trainer):
        super().start(trainer)
        self.fail("start")

    def log(self, metrics, timesteps):
        super().log(metrics, timesteps)
        self.fail("log")

    def finish(self, result):
        super().finish(result)
        self.fail("finish")

    def fail(self, method):
        if method == self.method:
            raise OSError("no room")


@pytest.mark.parametrize(
    ("method", "calls"),
    [
        ("start", ["start"]),
        ("log", ["start", "log"]),
        ("finish", ["start", "log", "log", "finish"]),
    ],
)
def test_a_logger_that_raises_warns_once_is_left_out_and_never_stops_training(method, calls):
    failing, fine = Failing(method), NotingLogger()
    words = rf"Failing\.{method} failed \(OSError: no room\); training goes on without this logger"
    with pytest.warns(UserWarning, match=words) as said:
        result = small().train(64, loggers=[failing, fine])
    assert len(said) == 1
    assert [call for _, call in failing.notes] == calls
    assert (result["timesteps"], len(fine.rows)) == (64, 2)
    assert fine.results == [result]


def test_the_run_folder_that_cannot_hold_rows_stops_nothing(tmp_path):
    trainer = small(runs_dir=tmp_path)

    def in_the_way(trainer, metrics):
        (trainer.run.path / "metrics.csv").mkdir(exist_ok=True)

    with pytest.warns(UserWarning, match=r"metrics\.csv: rows cannot be written") as said:
        result = trainer.train(64, callbacks=[in_the_way])
    assert len(said) == 1
    assert result["timesteps"] == 64
    assert {"checkpoint", "summary.json"} <= {path.name for path in trainer.run.path.iterdir()}


def test_rows_that_could_not_be_written_for_a_while_are_all_there(tmp_path, monkeypatch):
    monkeypatch.setattr("rlox.logger.csv_file.FLUSH_SECONDS", 0.0)
    trainer, log = small(runs_dir=tmp_path), RunFolder.log

    def once(run, metrics):
        log(run, metrics)
        if trainer.timesteps == 64:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "log", once)
    with pytest.warns(UserWarning, match="rows cannot be written"):
        trainer.train(128)
    assert len((trainer.run.path / "metrics.csv").read_text().splitlines()) == 5


@pytest.mark.filterwarnings("error")
def test_a_logger_that_fails_stops_nothing_where_warnings_are_errors(tmp_path, caplog):
    trainer = small(runs_dir=tmp_path)

    def in_the_way(trainer, metrics):
        (trainer.run.path / "metrics.csv").mkdir(exist_ok=True)

    result = trainer.train(64, callbacks=[in_the_way], loggers=[Failing("log")])
    assert result["timesteps"] == 64
    assert "Failing.log failed (OSError: no room)" in caplog.text
    assert "metrics.csv: rows cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("loggers", "error", "words"),
    [
        ("console", TypeError, "loggers: expected a list of names and objects, got 'console'"),
        (3, TypeError, "loggers: expected a list"),
        (["consol"], ValueError, "got 'consol'; did you mean 'console'?"),
        ([print], TypeError, "got a builtin_function_or_method; see rlox.logger.Logger"),
        ([ConsoleLogger], TypeError, "got the class ConsoleLogger; pass an object of it"),
        (["csv"], ValueError, "expected a run folder for csv to write into, got runs_dir=None"),
        (["jsonl"], ValueError, "expected a run folder for JSONLinesLogger to write into"),
    ],
)
def test_what_is_no_logger_is_refused_before_anything_has_changed(loggers, error, words):
    trainer = small()
    with pytest.raises(error) as raised:
        trainer.train(64, loggers=loggers)
    assert words in str(raised.value)
    assert trainer.target_timesteps == 0


def test_a_path_of_its_own_needs_no_run_folder(tmp_path):
    rows = tmp_path / "sub" / "rows.jsonl"
    table = tmp_path / "other" / "rows.csv"
    small().train(64, loggers=[JSONLinesLogger(rows, every=1), CSVLogger(table)])
    assert len(rows.read_text().splitlines()) == 2
    assert len(table.read_text().splitlines()) == 3


def test_csv_is_there_without_being_named(tmp_path):
    assert as_loggers(["csv"], folder=True) == []
    trainer = small(runs_dir=tmp_path)
    trainer.train(64, loggers=["csv"])
    assert len((trainer.run.path / "metrics.csv").read_text().splitlines()) == 3


class Written(Thinned):
    def __init__(self, every):
        super().__init__(every)
        self.steps = []

    def write(self, metrics, timesteps):
        self.steps.append(timesteps)


def test_rows_are_left_out_but_for_what_is_new_and_the_last():
    logger = Written(100)
    logger.start(small())
    for steps in range(32, 321, 32):
        logger.log({"a": 1.0} | ({"eval": 2.0} if steps == 224 else {}), steps)
    logger.finish(None)
    assert logger.steps == [32, 128, 224, 320]


def test_a_run_that_goes_on_has_the_rows_of_one_that_was_not_killed():
    def logged(steps, trainer):
        logger = Written(100)
        logger.start(trainer)
        for at in steps:
            logger.log({"time/fps": 1.0, "train/loss": 1.0}, at)
        return logger.steps

    whole, trainer = logged(range(32, 321, 32), small()), small()
    trainer.train(160)
    assert [*logged(range(32, 161, 32), small()), *logged(range(192, 321, 32), trainer)] == whole


@pytest.mark.parametrize(("every", "error"), [(0, ValueError), (1.5, TypeError), ("a", TypeError)])
def test_frequencies_are_whole_numbers_of_steps(every, error):
    with pytest.raises(error, match="every: expected an integer of at least 1"):
        ConsoleLogger(every)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_extra_is_named(name, monkeypatch):
    import sys

    for module in [name, *(m for m in sys.modules if m.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError) as raised:
        as_loggers([name], folder=True)
    assert f"pip install 'rlox[{name}]'" in str(raised.value)


def test_all_names_are_known():
    assert {*NAMES} == {"console", "csv", "jsonl", "tensorboard", "wandb", "mlflow"}


def test_a_name_that_comes_twice_is_refused():
    message = "loggers: expected each name once, got 'jsonl' twice, which would write each row "
    with pytest.raises(ValueError, match=f"^{message}twice; leave one out$"):
        as_loggers(["jsonl", "csv", "jsonl"], folder=True)
    once = JSONLinesLogger("a"), JSONLinesLogger("b")
    assert as_loggers(once, folder=True) == [*once]
