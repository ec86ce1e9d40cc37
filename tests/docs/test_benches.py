"""Benchmarks: all run, all named functions exist, and networks compute the same updates."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benches" / "python"
NAMES = sorted(path.stem for path in FOLDER.glob("bench_*.py"))
TABLES = [*NAMES, "learning"]
NETWORKS = ("bench_nn_backends", "bench_ppo_cartpole", "bench_a2c_cartpole", "bench_ppo_pendulum")


@pytest.fixture(autouse=True)
def _benches_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", TABLES)
def test_subjects_name_functions_and_known_peers(name, quick):
    module = importlib.import_module(name)
    make_peers = importlib.import_module("make_peers")
    assert module.BENCHMARK.module == name
    for row in module.BENCHMARK.rows(quick):
        for subject in row.subjects:
            assert callable(getattr(module, subject.function))
            assert subject.peer in {"rlox", *make_peers.PEERS}
            published = subject.name.startswith("rlox 1.2.0")
            assert subject.ours == (subject.name.startswith("rlox") and not published)
        assert row.subjects[0].ours or name == "bench_nn_backends"


def test_run_all_runs_every_benchmark():
    run_all = importlib.import_module("run_all")
    assert sorted(benchmark.module for benchmark in run_all.BENCHMARKS) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_subjects_of_rlox_run_without_peers(name, tmp_path):
    pytest.importorskip("torch")
    program = [sys.executable, str(FOLDER / f"{name}.py"), "--quick", "--no-peers", "--rounds", "1"]
    result = subprocess.run([*program, "--results", str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert list(tmp_path.glob(f"{name}-*.json"))


def test_every_row_of_pytorch_runs_eagerly_and_fused():
    torch = pytest.importorskip("torch")
    torch_steps = importlib.import_module("torch_steps")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for timer in torch_steps.TIMERS.values():
            for mode in ("eager", "fused"):
                assert timer((8, 8), 4, mode).timeit(1) > 0
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("setting", "value"), [("vf_coef", 0.25), ("max_grad_norm", 10.0), ("optimizer_eps", 1e-4)])
def test_check_native_detects_updates_that_differ_from_pytorch(monkeypatch, setting, value):
    pytest.importorskip("torch")
    bench = importlib.import_module("bench_nn_backends")
    sizes = (16, 16)
    bench.check_native(bench.native_learner(sizes, 8, 8, 64), sizes)
    settings = bench.settings
    monkeypatch.setattr(bench, "settings", lambda *args: settings(*args) | {setting: value})
    with pytest.raises(AssertionError):
        bench.check_native(bench.native_learner(sizes, 8, 8, 64), sizes)


def make_subject(name, seconds, ours, work=""):
    subject = {"name": name, "peer": "rlox", "threads": 1, "ours": ours, "work": work}
    return subject | {"seconds": [seconds] * 5}


def evaluate_row(report, *subjects):
    row = {"name": "row", "rounds": 5, "amount": 1, "unit": "steps", "load": {"others": None}}
    return report.evaluate({**row, "subjects": [*subjects]})


def test_subjects_with_the_same_work_are_compared():
    report = importlib.import_module("report")
    subjects = [
        make_subject("rlox a", 2.0, True),
        make_subject("rlox b", 1.0, True),
        make_subject("peer", 3.0, False),
        make_subject("rlox part", 0.1, True, "a part"),
        make_subject("peer's part", 0.2, False, "a part"),
        make_subject("another", 0.01, False, "something else"),
    ]
    row = evaluate_row(report, *subjects)
    assert [(best["work"], best["peer"], best["ours"]) for best in row["best"]] == [
        ("", "peer", "rlox b"),
        ("a part", "peer's part", "rlox part"),
    ]
    assert [best["ratio"] for best in row["best"]] == [[3.0] * 3, [2.0] * 3]
    assert [subject.get("ratio", [None])[0] for subject in subjects] == [1, 0.5, 1.5, 1, 2, None]
    table = report.table(row)
    assert "best peer: peer takes 3x [3, 3] the time of rlox b" in table
    assert "best peer (a part): peer's part takes 2x [2, 2] the time of rlox part" in table


def test_returns_are_reported_as_interquartile_means():
    report = importlib.import_module("report")
    rlox = make_subject("rlox", 1.0, True) | {"return": [0.0, 9.0, 4.0, 6.0, -100.0, 5.0, 7.0, 99.0]}
    row = evaluate_row(report, rlox)
    middle, low, high = rlox["score"]
    assert middle == 5.5
    assert -100 < low < middle < high < 99
    table = report.table(row, ("return",))
    assert "interquartile mean 5.5 [" in table
    assert "worse" not in table
    for score, verdict in ((9, "WORSE than"), (5, "no worse than")):
        peer = make_subject("peer", 1.0, False) | {"return": [float(score)] * 8}
        table = report.table(evaluate_row(report, rlox, peer))
        assert table.endswith(f"rlox: 5.5 is {verdict} peer's {score}")


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("shape", [(1, 3), (7, 1), (64, 5)])
def test_the_fast_numpy_estimator_equals_the_formula(shape, reuse):
    bench, trajectories = (importlib.import_module(x) for x in ("bench_gae", "trajectories"))
    data = trajectories.rollout(*shape, "float32")
    arrays = (data.rewards, data.values, data.dones, data.last_values)
    estimate = bench.VectorizedGae(*shape, "float32", reuse)
    for _ in range(2):
        data.check(estimate(*arrays), bench.reference(*arrays, "float64"))


def test_rlox_packs_by_best_fit():
    bench = importlib.import_module("bench_trl_comparison")
    assert bench.best_fit([range(n) for n in (6, 5, 5, 4)], 10) == 2
    assert bench.best_fit([range(n) for n in (6, 6, 5)], 10) == 3
    bench.planning_rlox(500, 2048)
    bench.packing_rlox(500, 2048)
    with pytest.raises(AssertionError, match="best fit"):
        bench.check_rows([6, 5, 5, 4], [range(n) for n in (6, 5, 5, 4)], 10)


@pytest.mark.parametrize(("seconds", "lost"), [(0.9, ["row, rlox"]), (0.96, []), (1.2, [])])
def test_rows_slower_than_the_baseline_are_listed(seconds, lost):
    report = importlib.import_module("report")
    baseline = make_subject("rlox", seconds, False) | {"peer": report.BASELINE}
    row = evaluate_row(report, make_subject("rlox", 1.0, True), baseline, make_subject("peer", 4.0, False))
    assert report.slower(row) == lost
    assert [best["peer"] for best in row["best"]] == ["peer"]
    assert f"baseline takes {seconds}x" in report.table(row)


def test_same_weights_rejects_a_folder_without_rlox(tmp_path):
    script = FOLDER.parents[1] / ".ci" / "same_weights.py"
    namespace = {"__name__": "same_weights"}
    exec(compile(script.read_text(), script, "exec"), namespace)
    with pytest.raises(subprocess.CalledProcessError):
        namespace["train"](tmp_path)


def test_baseline_must_be_in_its_folder_and_fails_the_run(tmp_path, monkeypatch, capsys):
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
