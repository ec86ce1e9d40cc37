"""Measures libraries against each other, interleaved, each in a process and an environment of its
own.

A benchmark is a list of rows; a row is a piece of work and its subjects, the ways to do it, ours
first. A subject that does more or less than the others says so in its `work`, and is compared with
those that say the same. Workers (`worker.py`) set the subjects up once, and check their results
against a reference, before any of them is timed. Then rounds: every subject runs one block of
repetitions, in the order A B C, then C B A, and so on, so that whatever else happens on the machine
happens to all of them. `report.py` makes medians and intervals of it.
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
LIMIT = 1200.0  # seconds that a worker may take to answer


@dataclass(frozen=True)
class Subject:
    """One way to do a row's work: a function of the benchmark's module, called in a worker."""

    name: str
    function: str
    peer: str = OURS  # an environment of make_peers.PEERS, or the one that runs this
    options: dict[str, Any] = field(default_factory=dict)
    threads: int = 1  # of torch, OpenMP, Rayon and rlox
    work: str = ""  # what sets it apart from the row's usual work
    rival: bool = False  # not ours, though it runs in the environment that runs this

    @property
    def ours(self) -> bool:
        """Whether it is rlox."""
        return self.peer == OURS and not self.rival


def swept(subject: Subject) -> list[Subject]:
    """A subject with one thread and with two; the better counts."""
    return [replace(subject, threads=threads) for threads in (1, 2)]


@dataclass(frozen=True)
class Row:
    """A piece of work; `amount` of `unit` is done by one repetition. The first subject is ours."""

    name: str
    params: dict[str, Any]
    subjects: Sequence[Subject]
    amount: int
    unit: str = "steps"


@dataclass(frozen=True)
class Benchmark:
    """A table: the module with its subjects, a title, and its rows (fewer and smaller if quick)."""

    module: str
    title: str
    rows: Callable[[bool], list[Row]]
    rounds: int = 41
    columns: tuple[str, ...] = ()  # further numbers that the subjects measure


class Repeated(timeit.Timer):
    """A timer whose statement does the work so many times; one of them is what is measured."""

    def __init__(self, statement: str, names: dict[str, Any], times: int) -> None:
        super().__init__(statement, globals=names)
        self.times = times


class WorkerError(Exception):
    """What a worker answered in place of a result."""


class Worker:
    """A process in which the subjects of one library run, with a fixed number of threads."""

    def __init__(self, python: Path, threads: int, pythonpath: str | None) -> None:
        libraries = ("OMP", "MKL", "OPENBLAS", "RAYON", "RLOX")
        names = [f"{library}_NUM_THREADS" for library in libraries]
        environ = {**os.environ, **dict.fromkeys(names, str(threads)), "JAX_PLATFORMS": "cpu"}
        # Without a path of its own, a peer must not import the rlox of this process.
        environ.pop("PYTHONPATH", None)
        if pythonpath is not None:
            environ["PYTHONPATH"] = pythonpath
        self._said: TextIO = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the worker
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environ,
        )
        self.used = 0.0  # seconds of processor
        answer = self.ask("describe")
        self.versions: dict[str, str] = answer["versions"]
        self.rlox: str | None = answer["rlox"]  # path of the module that it imports

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Sends an order and waits for its answer."""
        assert self._process.stdin
        assert self._process.stdout
        watch = threading.Timer(LIMIT, self._process.kill)
        watch.start()
        try:
            print(json.dumps({"do": do, **order}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watch.cancel()
        if not line:
            raise WorkerError(
                f"its process ended with {self._process.wait()}: {self._last_words()}"
            )
        answer: dict[str, Any] = json.loads(line)
        self.used = answer.pop("used")
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def _last_words(self) -> str:
        self._said.seek(0)
        return (self._said.read().strip().splitlines() or ["it said nothing"])[-1]

    @property
    def alive(self) -> bool:
        """Whether it takes orders."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._said.close()


class Workers:
    """The processes of a run: one for each library and number of threads, started when needed."""

    def __init__(self, peers: Path, baseline: str | None = None) -> None:
        self._peers = peers
        self._baseline = baseline
        self._running: dict[tuple[str, int], Worker] = {}

    def of(self, subject: Subject) -> Worker:
        """The process for a subject."""
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
            inside = Path(worker.rlox or "").is_relative_to(self._baseline)
            if inside != (subject.peer == BASELINE):
                del self._running[key]
                worker.close()
                where = "in" if subject.peer == BASELINE else "outside of"
                raise WorkerError(f"expected rlox {where} {self._baseline}, got {worker.rlox}")
        return worker

    def used(self) -> float:
        """Seconds of processor that the workers and this process have used."""
        return time.process_time() + sum(worker.used for worker in self._running.values())

    def forget(self) -> None:
        """Lets all subjects go."""
        for worker in self._running.values():
            if worker.alive:
                worker.ask("forget")

    def close(self) -> None:
        """Ends the processes."""
        for worker in self._running.values():
            worker.close()


@dataclass
class Ready:
    """A subject that is set up, and when it is its turn."""

    key: str
    worker: Worker
    repetitions: int
    every: int
    result: dict[str, Any]


def set_up(
    row: Row, benchmark: Benchmark, workers: Workers, options: argparse.Namespace, rounds: int
) -> tuple[list[Ready], list[dict[str, Any]]]:
    """The subjects that can be measured, and a result for each, which may be an error."""
    ready: list[Ready] = []
    results: list[dict[str, Any]] = []
    for number, subject in enumerate(row.subjects):
        result: dict[str, Any] = {"name": subject.name, "peer": subject.peer}
        result.update(threads=subject.threads, work=subject.work, ours=subject.ours)
        results.append(result)
        key = str(number)
        order = {"key": key, "module": benchmark.module, "function": subject.function}
        try:
            worker = workers.of(subject)
            result["versions"] = worker.versions
            worker.ask("set_up", params={**row.params, **subject.options}, **order)
            answer = worker.ask("calibrate", key=key, seconds=0.002 if options.quick else 0.02)
        except WorkerError as error:
            result["error"] = str(error)
            continue
        # Slow subjects sit rounds out, an even number of them: half of their turns are reversed.
        share = options.patience / len(row.subjects)
        turns = max(5, min(rounds, math.floor(share / answer.get("seconds", 1e-9))))
        ready.append(Ready(key, worker, answer["repetitions"], rounds // turns | 1, result))
    return ready, results


def measure_row(
    row: Row, benchmark: Benchmark, workers: Workers, options: argparse.Namespace
) -> dict[str, Any]:
    """Sets a row's subjects up, times them in turns, and returns everything measured."""
    rounds = options.rounds or min(benchmark.rounds, 5 if options.quick else benchmark.rounds)
    ready, results = set_up(row, benchmark, workers, options, rounds)
    before, used = report.machine_load(), workers.used()
    for turn in range(rounds):
        for one in ready if turn % 2 == 0 else ready[::-1]:
            if "error" in one.result or turn % one.every:
                continue
            order = {"key": one.key, "repetitions": one.repetitions, "turn": turn}
            try:
                numbers = one.worker.ask("measure", **order)
            except WorkerError as error:
                one.result["error"] = str(error)
                continue
            for name, value in numbers.items():
                one.result.setdefault(name, []).append(value)
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
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--quick", action="store_true", help="small rows and few rounds: does it run?"
    )
    parser.add_argument("--no-peers", action="store_true", help="measure rlox alone")
    parser.add_argument(
        "--baseline",
        metavar="DIR",
        type=os.path.abspath,
        help="also measure the rlox that is installed in DIR (pip install --target); the exit "
        "status is 1 if a row is slower than with that one in two runs",
    )
    parser.add_argument("--peers", metavar="DIR", help="where make_peers.py made its environments")
    parser.add_argument("--only", metavar="TEXT", help="only rows that have TEXT in their names")
    parser.add_argument("--rounds", type=int, help="how many times the subjects take turns")
    parser.add_argument(
        "--patience", type=float, default=30.0, metavar="SECONDS", help="for one row's rounds"
    )
    parser.add_argument(
        "--results", metavar="DIR", default=str(HERE.parents[1] / "benchmark_results")
    )
    return parser


def with_baseline(row: Row) -> Row:
    """Return the row with each subject of ours also measured in the baseline's process."""
    pairs = [
        (subject, *([replace(subject, peer=BASELINE)] if subject.ours else []))
        for subject in row.subjects
    ]
    return replace(row, subjects=[subject for pair in pairs for subject in pair])


def run(benchmark: Benchmark, options: argparse.Namespace | None = None) -> int:
    """Measures a benchmark and prints its table; 1 if ours or the baseline failed, else 0."""
    if options is None:
        options = arguments(benchmark.title).parse_args()
    rows = [
        row for row in benchmark.rows(options.quick) if not options.only or options.only in row.name
    ]
    print(report.heading(benchmark.title), flush=True)
    workers = Workers(peers_folder(options.peers), options.baseline)
    measured: list[dict[str, Any]] = []
    started = time.strftime("%Y-%m-%dT%H-%M-%S")
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
            # After every row, so that an interrupted run leaves what it measured.
            report.save(Path(options.results), benchmark.module, started, vars(options), measured)
    finally:
        workers.close()
    subjects = [subject for row in measured for subject in row["subjects"]]
    failed = any(s["peer"] in (OURS, BASELINE) and "error" in s for s in subjects)
    slower = [name for row in measured for name in report.slower(row)]
    if slower:
        print("\nslower than the baseline in two runs: " + "; ".join(slower), flush=True)
    return int(failed or bool(slower) or not measured)
