"""The benchmarks are whole: all are run, what they name is there, those of networks are right."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benches" / "python"
NAMES = sorted(path.stem for path in FOLDER.glob("bench_*.py"))
NETWORKS = ("bench_nn_backends", "bench_ppo_cartpole", "bench_a2c_cartpole", "bench_ppo_pendulum")


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_subjects_are_functions_of_their_module_and_of_known_peers(name, quick):
    module = importlib.import_module(name)
    make_peers = importlib.import_module("make_peers")
    assert module.BENCHMARK.module == name
    for row in module.BENCHMARK.rows(quick):
        for subject in row.subjects:
            assert callable(getattr(module, subject.function))
            assert subject.peer in {"rlox", *make_peers.PEERS}


def test_run_all_runs_every_benchmark():
    run_all = importlib.import_module("run_all")
    assert sorted(benchmark.module for benchmark in run_all.BENCHMARKS) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_our_own_subjects_run_without_peers(name, tmp_path):
    pytest.importorskip("torch")
    program = [sys.executable, str(FOLDER / f"{name}.py"), "--quick", "--no-peers", "--rounds", "1"]
    done = subprocess.run(
        [*program, "--results", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob(f"{name}-*.json"))


def test_every_row_of_pytorch_runs_eagerly_and_fused():
    torch = pytest.importorskip("torch")
    torch_steps = importlib.import_module("torch_steps")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for timer in torch_steps.TIMERS.values():
            for way in ("eager", "fused"):
                assert timer((8, 8), 4, way).timeit(1) > 0
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("vf_coef", 0.25), ("max_grad_norm", 10.0), ("optimizer_eps", 1e-4)],
)
def test_another_update_than_pytorchs_is_noticed(monkeypatch, setting, value):
    pytest.importorskip("torch")
    bench = importlib.import_module("bench_nn_backends")
    sizes = (16, 16)
    bench.check_native(bench.native_learner(sizes, 8, 8, 64), sizes)
    settings = bench.settings
    monkeypatch.setattr(bench, "settings", lambda *given: settings(*given) | {setting: value})
    with pytest.raises(AssertionError):
        bench.check_native(bench.native_learner(sizes, 8, 8, 64), sizes)
