"""Mistakes of users: each message says the argument, what was expected, what came and the fix."""

import pytest

from mistakes import buffers, environments, extras, saved, settings
from mistakes.row import Here, small
from rlox.trainers import PPOTrainer

ROWS = [row for table in (settings, environments, saved, buffers, extras) for row in table.ROWS]
PARTS = ("argument", "expected", "got", "fix")
OTHERS = ("has no setting",)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    trainer = small(None, tmp_path_factory.mktemp("trained"))
    trainer.train(64)
    return trainer.run.path


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Here(tmp_path, trained / "checkpoint", trained)


def expect_told(row, message):
    """All four parts are in the message, each where it belongs."""
    told = " ".join(message.split())
    missing = {part: getattr(row, part) for part in PARTS if getattr(row, part) not in told}
    assert not missing, told
    if f"{row.argument}: expected {row.expected}" in told:
        _, _, after = told.partition(": expected ")
        got, _, fix = after[len(row.expected) :].partition("; ")
        assert (row.got in got, row.fix in fix) == (True, True), told
    else:  # unknown names
        assert any(words in told for words in OTHERS), told
        assert min(len(getattr(row, part)) for part in PARTS) > 2


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.did)
def test_a_mistake_is_told_with_what_was_expected_what_came_and_the_fix(row, here):
    with pytest.raises(row.error) as raised:
        row.make(here)
    assert isinstance(raised.value, row.error)
    expect_told(row, str(raised.value))


def test_there_are_at_least_sixty_and_each_has_all_parts():
    assert len(ROWS) >= 60
    assert len({row.did for row in ROWS}) == len(ROWS)
    assert all(len(getattr(row, part)) > 0 for row in ROWS for part in PARTS)


def test_a_callback_that_raises_stops_the_run_with_its_own_error_when_all_is_saved(here):
    def broken(trainer, metrics):
        raise ZeroDivisionError("mine")

    trainer = small(here, here.path / "runs")
    with pytest.raises(ZeroDivisionError, match=r"^mine$") as raised:
        trainer.train(640, callbacks=[broken])
    assert raised.traceback[-1].name == "broken"
    assert PPOTrainer.load(trainer.run.path, runs_dir=None).timesteps == trainer.timesteps == 32
    assert (trainer.run.path / "summary.json").is_file()
