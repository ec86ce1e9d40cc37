"""Measure libraries against each other in interleaved rounds, each in a separate process.

A benchmark is a list of rows. A row is one piece of work, and its subjects are functions that do
this work with different libraries or settings. The first subject is rlox. A subject that does more
or less than the others states the difference in `work`. Only subjects with the same `work` are
compared. Worker processes (`worker.py`) set up each subject once, and check its results against a
reference before the timing. Each round runs one block of repetitions of each subject, in the order
A B C, then C B A, and so on, so that disturbances of the machine affect all subjects. `report.py`
computes medians and intervals.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import report
from make_peers import interpreter, peers_folder, why_missing

OURS = "rlox"
BASELINE = report.BASELINE
HERE = Path(__file__).resolve().parent
LIMIT = 1200.0  # seconds until a worker must answer


@dataclass(frozen=True)
class Subject:
    """One way to do the work of a row: a function of the benchmark's module, run in a worker."""

    name: str
    function: str
    peer: str = OURS  # environment of make_peers.PEERS, or this environment
    options: dict[str, Any] = field(default_factory=dict)
    threads: int = 1  # threads of torch, OpenMP, Rayon and rlox
    work: str = ""  # difference from the usual work of the row
    rival: bool = False  # not rlox, but runs in this environment

    @property
    def ours(self) -> bool:
        """True for subjects of rlox."""
        return self.peer == OURS and not self.rival


def swept(subject: Subject) -> list[Subject]:
    """Return two variants of a subject: with one thread and with two. Results use the faster one."""
    return [replace(subject, threads=threads) for threads in (1, 2)]


@dataclass(frozen=True)
class Row:
    """Piece of work, which processes `amount` units (such as steps), and the subjects that do it."""

    name: str
    params: dict[str, Any]
    subjects: Sequence[Subject]
    amount: int
    unit: str = "steps"


@dataclass(frozen=True)
class Benchmark:
    """Table of rows. `rows(True)` returns fewer and smaller rows, for a quick check."""

    module: str
    title: str
    rows: Callable[[bool], list[Row]]
    rounds: int = 41
    columns: tuple[str, ...] = ()  # other numbers that the subjects measure


class Repeated(timeit.Timer):
    """Timer whose statement does the work `times` times. Results are divided by `times`."""

    def __init__(self, statement: str, names: dict[str, Any], times: int) -> None:
        super().__init__(statement, globals=names)
        self.times = times


class WorkerError(Exception):
    """Error that a worker returned."""


class Worker:
    """Process for the subjects of one library, with a fixed number of threads."""

    def __init__(self, python: Path, threads: int, pythonpath: str | None) -> None:
        libraries = ("OMP", "MKL", "OPENBLAS", "RAYON", "RLOX")
        names = [f"{library}_NUM_THREADS" for library in libraries]
        environ = {**os.environ, **dict.fromkeys(names, str(threads)), "JAX_PLATFORMS": "cpu"}
        # A peer must not import the rlox of this process.
        environ.pop("PYTHONPATH", None)
        if pythonpath is not None:
            environ["PYTHONPATH"] = pythonpath
        self._stderr: TextIO = tempfile.TemporaryFile("w+")  # noqa: SIM115  # open until close()
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=environ,
        )
        self.used = 0.0  # processor seconds
        answer = self.ask("describe")
        self.versions: dict[str, str] = answer["versions"]
        self.rlox: str | None = answer["rlox"]  # path of the imported module

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer."""
        assert self._process.stdin
        assert self._process.stdout
        timer = threading.Timer(LIMIT, self._process.kill)
        timer.start()
        try:
            print(json.dumps({"do": do, **request}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise WorkerError(f"the worker process ended with {self._process.wait()}: {self._last_line()}")
        answer: dict[str, Any] = json.loads(line)
        self.used = answer.pop("used")
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def _last_line(self) -> str:
        self._stderr.seek(0)
        return (self._stderr.read().strip().splitlines() or ["no output"])[-1]

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()


class Workers:
    """Processes of a run: one per library and number of threads, started on demand."""

    def __init__(self, peers: Path, baseline: str | None = None) -> None:
        self._peers = peers
        self._baseline = baseline
        self._running: dict[tuple[str, int], Worker] = {}

    def of(self, subject: Subject) -> Worker:
        """Return the process for a subject."""
        key = (subject.peer, subject.threads)
        if key in self._running and self._running[key].alive:
            return self._running[key]
        python = Path(sys.executable)
        pythonpath = None
        if subject.peer == OURS:
            pythonpath = os.environ.get("PYTHONPATH")
        elif subject.peer == BASELINE:
            pythonpath = self._baseline
        elif reason := why_missing(self._peers, subject.peer):
            raise WorkerError(reason)
        else:
            python = interpreter(self._peers, subject.peer)
        worker = self._running[key] = Worker(python, subject.threads, pythonpath)
        if self._baseline is not None:
            is_baseline = Path(worker.rlox or "").is_relative_to(self._baseline)
            if is_baseline != (subject.peer == BASELINE):
                del self._running[key]
                worker.close()
                place = "in" if subject.peer == BASELINE else "outside of"
                raise WorkerError(f"expected rlox {place} {self._baseline}, got {worker.rlox}")
        return worker

    def used(self) -> float:
        """Return the processor seconds of the workers and of this process."""
        return time.process_time() + sum(worker.used for worker in self._running.values())

    def forget(self) -> None:
        """Delete all subjects."""
        for worker in self._running.values():
            if worker.alive:
                worker.ask("forget")

    def close(self) -> None:
        """End the processes."""
        for worker in self._running.values():
            worker.close()


@dataclass
class PreparedSubject:
    """Subject that is set up, and runs in every round whose number is a multiple of `every`."""

    key: str
    worker: Worker
    repetitions: int
    every: int
    result: dict[str, Any]


def set_up(
    row: Row, benchmark: Benchmark, workers: Workers, options: argparse.Namespace, rounds: int
) -> tuple[list[PreparedSubject], list[dict[str, Any]]]:
    """Return the subjects that can be measured, and a result or error for each subject."""
    ready: list[PreparedSubject] = []
    results: list[dict[str, Any]] = []
    for index, subject in enumerate(row.subjects):
        result: dict[str, Any] = {"name": subject.name, "peer": subject.peer}
        result.update(threads=subject.threads, work=subject.work, ours=subject.ours)
        results.append(result)
        key = str(index)
        request = {"key": key, "module": benchmark.module, "function": subject.function}
        try:
            worker = workers.of(subject)
            result["versions"] = worker.versions
            worker.ask("set_up", params={**row.params, **subject.options}, **request)
            answer = worker.ask("calibrate", key=key, seconds=0.002 if options.quick else 0.02)
        except WorkerError as error:
            result["error"] = str(error)
            continue
        # Slow subjects skip an even number of rounds, so that half of their turns are reversed.
        share = options.patience / len(row.subjects)
        turns = max(5, min(rounds, math.floor(share / answer.get("seconds", 1e-9))))
        ready.append(PreparedSubject(key, worker, answer["repetitions"], rounds // turns | 1, result))
    return ready, results


def measure_row(row: Row, benchmark: Benchmark, workers: Workers, options: argparse.Namespace) -> dict[str, Any]:
    """Set up the subjects of a row, time them in rounds, and return all measurements."""
    rounds = options.rounds or min(benchmark.rounds, 5 if options.quick else benchmark.rounds)
    ready, results = set_up(row, benchmark, workers, options, rounds)
    before, used = report.machine_load(), workers.used()
    for turn in range(rounds):
        for prepared in ready if turn % 2 == 0 else ready[::-1]:
            if "error" in prepared.result or turn % prepared.every:
                continue
            request = {"key": prepared.key, "repetitions": prepared.repetitions, "turn": turn}
            try:
                numbers = prepared.worker.ask("measure", **request)
            except WorkerError as error:
                prepared.result["error"] = str(error)
                continue
            for name, value in numbers.items():
                prepared.result.setdefault(name, []).append(value)
    load = report.load_between(before, report.machine_load(), workers.used() - used)
    workers.forget()
    return {
        "name": row.name,
        "params": row.params,
        "amount": row.amount,
        "unit": row.unit,
        "rounds": rounds,
        "load": load,
        "subjects": results,
    }


def arguments(description: str) -> argparse.ArgumentParser:
    """Return the parser of the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small rows and few rounds, as a check")
    parser.add_argument("--no-peers", action="store_true", help="measure only rlox")
    parser.add_argument(
        "--baseline",
        metavar="DIR",
        type=os.path.abspath,
        help="also measure the rlox installed in DIR (pip install --target); the exit "
        "status is 1 if a row is slower than this rlox in two runs",
    )
    parser.add_argument("--peers", metavar="DIR", help="folder of the environments of make_peers.py")
    parser.add_argument("--only", metavar="TEXT", help="only rows whose names contain TEXT")
    parser.add_argument("--rounds", type=int, help="number of rounds")
    parser.add_argument(
        "--patience", type=float, default=30.0, metavar="SECONDS", help="time for the rounds of one row"
    )
    parser.add_argument("--results", metavar="DIR", default=str(HERE.parents[1] / "benchmark_results"))
    return parser


def with_baseline(row: Row) -> Row:
    """Return the row with a second subject for each rlox subject, which runs the baseline's rlox."""
    pairs = [(subject, *([replace(subject, peer=BASELINE)] if subject.ours else [])) for subject in row.subjects]
    return replace(row, subjects=[subject for pair in pairs for subject in pair])


def run(benchmark: Benchmark, options: argparse.Namespace | None = None) -> int:
    """Measure a benchmark and print its table; return the exit status.

    The status is 1 if rlox or the baseline failed, if rlox was slower than the baseline in two
    runs, or if nothing was measured.
    """
    if options is None:
        options = arguments(benchmark.title).parse_args()
    rows = [row for row in benchmark.rows(options.quick) if not options.only or options.only in row.name]
    print(report.heading(benchmark.title), flush=True)
    workers = Workers(peers_folder(options.peers), options.baseline)
    measured: list[dict[str, Any]] = []
    start_time = time.strftime("%Y-%m-%dT%H-%M-%S")
    try:
        for row in rows:
            if options.no_peers:
                ours = [subject for subject in row.subjects if subject.peer == OURS]
                row = Row(row.name, row.params, ours, row.amount, row.unit)
            if options.baseline:
                row = with_baseline(row)
            if not row.subjects:
                continue
            result = report.evaluate(measure_row(row, benchmark, workers, options))
            if report.slower(result):
                print(report.table(result, benchmark.columns), flush=True)
                print("  slower than the baseline: measured again", flush=True)
                result = report.evaluate(measure_row(row, benchmark, workers, options))
            measured.append(result)
            print(report.table(result, benchmark.columns), flush=True)
            # Saved after each row, so that an interrupted run keeps its measurements.
            report.save(Path(options.results), benchmark.module, start_time, vars(options), measured)
    finally:
        workers.close()
    subjects = [subject for row in measured for subject in row["subjects"]]
    failed = any(s["peer"] in (OURS, BASELINE) and "error" in s for s in subjects)
    slower = [name for row in measured for name in report.slower(row)]
    if slower:
        print("\nslower than the baseline in two runs: " + "; ".join(slower), flush=True)
    return int(failed or bool(slower) or not measured)
