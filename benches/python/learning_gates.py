"""Check that every algorithm reaches a minimum score in Gymnasium's environments, on each backend.

    python benches/python/learning_gates.py OUT [--only TEXT] [--workers 2]

A gate is the minimum score of an algorithm in an environment. A score is the mean return of 30
greedy episodes. Each training writes its score to a JSON file in OUT. A second call with the same
OUT continues with the trainings that are missing. A gate with a threshold compares the threshold
with the median score of five seeds. A gate without a threshold compares the interquartile mean of
ten seeds with the lower end of Stable-Baselines3's 95% interval. `make_peers.py` creates the Python
environment of Stable-Baselines3. The exit status is 1 if a gate is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from make_peers import interpreter, peers_folder, why_missing

BACKENDS = ("native", "torch")
PEER = "sb3"


@dataclass(frozen=True)
class Gate:
    """Score that an algorithm must reach in an environment after a number of steps."""

    algorithm: str
    env_id: str
    steps: int
    threshold: float | None  # None: no worse than Stable-Baselines3

    @property
    def name(self) -> str:
        """Name of the gate in files and reports."""
        return f"{self.algorithm}-{self.env_id}"

    @property
    def seeds(self) -> range:
        """Seeds of the trainings."""
        return range(1, 11 if self.threshold is None else 6)

    @property
    def subjects(self) -> tuple[str, ...]:
        """Backends of rlox, and the peer if the gate compares with it."""
        return BACKENDS if self.threshold is not None else (*BACKENDS, PEER)


GATES = (
    Gate("PPO", "CartPole-v1", 100_000, 475),
    Gate("A2C", "CartPole-v1", 500_000, 475),
    Gate("IMPALA", "CartPole-v1", 500_000, 475),
    Gate("PPO", "Acrobot-v1", 500_000, -95),
    Gate("PPO", "Pendulum-v1", 100_000, -200),
    Gate("SAC", "Pendulum-v1", 20_000, -180),
    Gate("TD3", "Pendulum-v1", 20_000, -180),
    Gate("SAC", "MountainCarContinuous-v0", 50_000, 90),
    Gate("DQN", "Acrobot-v1", 100_000, -90),
    Gate("DQN", "CartPole-v1", 50_000, None),
    Gate("DQN", "MountainCar-v0", 120_000, None),
)


@dataclass(frozen=True)
class Training:
    """One training of a gate."""

    gate: Gate
    subject: str  # backend of rlox, or the peer
    seed: int

    @property
    def file(self) -> str:
        """Name of the file with the score."""
        return f"{self.gate.name}-{self.subject}-{self.seed}.json"

    def run(self, out: Path, peers: Path) -> None:
        """Train in a process with one thread, and write the file."""
        python = interpreter(peers, PEER) if self.subject == PEER else Path(sys.executable)
        facts = [self.gate.algorithm, self.gate.env_id, self.gate.steps, self.subject, self.seed]
        command = [str(python), __file__, "--train", json.dumps(facts)]
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "RLOX_NUM_THREADS"), "1")
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | one_thread)
        partial = out / f".{self.file}"
        partial.write_text(done.stdout.splitlines()[-1] + "\n")
        partial.rename(out / self.file)
        print(self.file, (out / self.file).read_text().strip(), flush=True)


def train(algorithm: str, env_id: str, steps: int, subject: str, seed: int) -> dict[str, float]:
    """Train once in this process, and return the score and the seconds."""
    import learning

    make: Any = learning.sb3 if subject == PEER else learning.rlox
    options = () if subject == PEER else (subject,)
    result: dict[str, float] = make(algorithm, env_id, steps, 30, *options)(seed)
    return {"score": result["return"], "seconds": result["seconds"]}


def check(gate: Gate, out: Path) -> bool:
    """Print the scores of a gate, and return whether all backends reach the gate."""
    scores: dict[str, list[float]] = {}
    for subject in gate.subjects:
        files = [out / Training(gate, subject, seed).file for seed in gate.seeds]
        scores[subject] = [json.loads(x.read_text())["score"] for x in files if x.exists()]
        if len(scores[subject]) < len(gate.seeds):
            print(f"{gate.name} {subject}: {len(scores[subject])} of {len(gate.seeds)} trainings")
            return False
    if gate.threshold is not None:
        limit, reached = gate.threshold, {x: statistics.median(scores[x]) for x in BACKENDS}
    else:
        from rlox.scores import bootstrap_interval, interquartile_mean

        limit = float(bootstrap_interval(scores[PEER])[0])
        reached = {x: float(interquartile_mean(scores[x])) for x in BACKENDS}
    for backend, score in reached.items():
        verdict = "reached" if score >= limit else "MISSED"
        print(f"{gate.name} {backend}: {score:.1f}, at least {limit:.1f} {verdict}")
    return min(reached.values()) >= limit


def main() -> int:
    """Run the trainings that are missing, and check the gates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, help="folder of the scores")
    parser.add_argument("--only", default="", help="text in the names of the gates to run")
    parser.add_argument("--workers", type=int, default=2, help="trainings at the same time")
    parser.add_argument("--peers", help="folder of the peers' environments")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        print(json.dumps(train(*json.loads(options.train))))
        return 0
    if options.out is None:
        parser.error("OUT is missing")
    options.out.mkdir(parents=True, exist_ok=True)
    peers = peers_folder(options.peers)
    gates = [gate for gate in GATES if options.only in gate.name]
    if any(gate.threshold is None for gate in gates) and (reason := why_missing(peers, PEER)):
        parser.error(reason)
    trainings = [Training(g, subject, seed) for g in gates for subject in g.subjects for seed in g.seeds]
    missing = [x for x in trainings if not (options.out / x.file).exists()]
    with ThreadPoolExecutor(options.workers) as pool:
        for future in [pool.submit(x.run, options.out, peers) for x in missing]:
            future.result()
    results = [check(gate, options.out) for gate in gates]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
