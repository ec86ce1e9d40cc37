"""Columns of metrics, curves over steps or time, and plots of runs."""

import json
import time

import numpy as np
import pytest

from rlox import ArgumentError
from rlox._training.metrics_files import column, read_metrics, smoothed
from rlox._training.resume import resume_in
from rlox.plotting import Curve, _together, plot_runs, read_curve
from rlox.trainers import PPOTrainer
from support.rejections import rejects
from support.runs import small


def write_metrics(folder, text):
    (folder / "metrics.csv").write_text(text)
    return folder / "metrics.csv"


def test_column_returns_numbers_or_nan_and_drops_an_incomplete_last_row(tmp_path):
    file = write_metrics(tmp_path, "a,b\n1,\n2,0.5\n3")
    np.testing.assert_array_equal(column(read_metrics(file), "b", file), [np.nan, 0.5])


@pytest.mark.parametrize(
    ("text", "expected", "hint"),
    [
        ("", "one of its metrics", ""),
        ("time/total_timesteps,aa\n8,1\n", "one of its metrics", "did you mean 'aa'"),
        ("time/total_timesteps,a\n8,x\n", "numbers in the column a", ""),
        ("time/total_timesteps,a\n8,\n", "numbers in the column a", ""),
        ("\udcff", "the metrics of a run", ""),
    ],
    ids=["no column", "other column", "text", "empty", "no text"],
)
def test_columns_without_numbers_are_rejected(text, expected, hint, tmp_path):
    (tmp_path / "metrics.csv").write_bytes(text.encode(errors="surrogateescape"))
    with rejects(ArgumentError, str(tmp_path / "metrics.csv"), hint, expected=expected):
        read_curve(tmp_path, "a")


def test_missing_metrics_are_rejected(tmp_path):
    with rejects(FileNotFoundError, str(tmp_path / "none.csv"), "pass a run folder"):
        read_metrics(tmp_path / "none.csv")


def test_seconds_of_a_resumed_run_continue(tmp_path):
    trainer = small(runs_dir=tmp_path)
    trainer.train(64)
    run = trainer.run.path
    first = read_curve(run, "time/fps", along="time").at
    resumed = PPOTrainer.load(run)
    resume_in(resumed.run, run)
    resumed.train(64, callbacks=[lambda *_: time.sleep(first[-1])])
    at = read_curve(run, "time/fps", along="time").at
    assert at[: len(first)].tolist() == first.tolist()
    assert at[len(first)] > first[-1]
    assert at[len(first) + 1] > 2 * first[-1]


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, [1, 3, 5, 7]), (2, [1, 2, 4, 6]), (3, [1, 2, 3, 5]), (99, [1, 2, 3, 4])]
)
def test_smoothed_averages_trailing_windows_of_rows(rows, expected):
    assert smoothed(np.array([1.0, 3.0, 5.0, 7.0]), rows).tolist() == expected


@pytest.mark.parametrize(
    ("rows", "smooth", "at", "values"),
    [("8,\n16,2\n24,nan\n32,4\n", 2, [16, 32], [2, 3]), ("8,1\n16,2\n24,3\n16,4\n24,5\n", 1, [8, 16, 24], [1, 4, 5])],
    ids=["rows without the metric", "steps of a resumed run"],
)
def test_curve_has_one_value_for_each_step(rows, smooth, at, values, tmp_path):
    write_metrics(tmp_path, f"time/total_timesteps,m\n{rows}")
    curve = read_curve(tmp_path, "m", smooth=smooth)
    assert (curve.at.tolist(), curve.values.tolist()) == (at, values)
    assert curve.label == tmp_path.name


def test_curve_is_labelled_from_the_config_of_its_run(tmp_path):
    write_metrics(tmp_path, "time/total_timesteps,m\n8,1\n")
    config = {"algorithm": "ppo", "env": "Own-v0", "backend": "torch", "settings": {"gamma": 0.5}}
    (tmp_path / "config.json").write_text(json.dumps({**config, "env_kwargs": {"g": 1}}))
    curve = read_curve(tmp_path, "m")
    assert (curve.label, curve.settings) == ("ppo Own-v0 torch", {"gamma": 0.5, "g": 1})


def line(at, values, label="a", **settings):
    return Curve(label, settings, np.array(at, float), np.array(values, float))


def test_seeds_are_compared_on_their_common_steps():
    at, values = _together([line([0, 10], [0, 10]), line([5, 20], [0, 15])])
    assert (at[0], at[-1]) == (5.0, 10.0)
    np.testing.assert_allclose(values[0], [5, 0])
    np.testing.assert_allclose(values[-1], [10, 5])


def test_labels_contain_the_settings_that_differ(tmp_path):
    curves = [line([1, 2], [1, 2], gamma=0.9), line([1, 2], [1, 2], gamma=0.8), line([1], [1], "b")]
    labels = plot_runs(curves, tmp_path / "a.png")
    assert labels == ["a, gamma 0.9", "a, gamma 0.8", "b"]
    assert plot_runs(curves[:1] * 2, tmp_path / "a.png") == ["a (2 runs)"]


def test_seeds_without_common_steps_are_separate_lines(tmp_path):
    assert plot_runs([line([1], [1]), line([5], [2])], tmp_path / "a.png") == ["a", "a"]


def test_invalid_plots_are_rejected(tmp_path):
    for curves, image, argument in (([line([1], [1])], "a.xyz", "image"), ([], "a.png", "curves")):
        with rejects(ArgumentError, argument):
            plot_runs(curves, tmp_path / image)
