"""DQN, SAC and TD3: full runs, parts of a step, and RLtools' settings.

`training.py` describes the measurement. Runs have rl-zoo3's settings and are compared with
Stable-Baselines3, and with rlox 1.2.0 if it supports the settings. The parts of a step use the
networks of these settings. "acting" measures 1,000 stored steps with noisy actions (random actions
in DQN), and one update at the end. "learning" measures 1,000 updates after 256 steps, because the
largest batch has 256 transitions. The times of both are divided by 1,000.

RLtools is written in C++, with array sizes that are known at compile time. Here RLtools uses MKL
and its own pendulum, and compiles before the clock starts. Its settings are the defaults of its
package: two hidden layers of 64, batches of 100, one update for each of 10,000 steps. RLtools uses
one thread. It is compared with rlox on one thread. rlox on two threads is also shown.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import Benchmark, Row, Subject, run, swept

import training

PENDULUM, CARTPOLE, MAX_TORQUE = "Pendulum-v1", "CartPole-v1", 2.0
# rl-zoo3's settings for Stable-Baselines3. rlox uses its presets.
ZOO: dict[str, dict[str, Any]] = {
    "SAC": {"learning_rate": 1e-3},
    "TD3": {
        "gamma": 0.98,
        "buffer_size": 200_000,
        "learning_starts": 10_000,
        "train_freq": 1,
        "gradient_steps": 1,
        "learning_rate": 1e-3,
        "policy_kwargs": {"net_arch": [400, 300]},
    },
    "DQN": {
        "learning_rate": 2.3e-3,
        "batch_size": 64,
        "buffer_size": 100_000,
        "learning_starts": 1_000,
        "gamma": 0.99,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
}
RUNS = (("SAC", PENDULUM, 20_000), ("TD3", PENDULUM, 20_000), ("DQN", CARTPOLE, 50_000))
# Hidden layers of rl-zoo3.
NETWORKS = {"SAC": "256 x 256", "TD3": "400 x 300", "DQN": "256 x 256"}
PHASES = {
    "acting": {"train_freq": 1_000, "gradient_steps": 1},
    "learning": {"train_freq": 256, "gradient_steps": 1_000},
}
WIDTH, BATCH, NOISE = 64, 100, 0.1


def rlox(
    algorithm: str,
    env_id: str,
    total: int,
    episodes: int,
    threads: int,
    backend: str,
    settings: dict[str, Any] | None = None,
    warm_up: int = training.WARM_UP,
) -> training.Once:
    """Time a trainer of rlox with rl-zoo3's settings, which `settings` overrides."""
    from rlox import noise, trainers

    keywords = dict(settings or {})
    if "noise" in keywords:
        keywords["action_noise"] = noise.GaussianNoise(keywords.pop("noise"))
    trainer = getattr(trainers, f"{algorithm}Trainer")
    train = training.rlox(trainer, backend, threads, env_id, **keywords)
    return training.training_subject(train, total, threads, episodes, env_id, warm_up)


def sb3(
    algorithm: str,
    env_id: str,
    total: int,
    episodes: int,
    threads: int,
    settings: dict[str, Any] | None = None,
    warm_up: int = training.WARM_UP,
) -> training.Once:
    """Time Stable-Baselines3 with rl-zoo3's settings, which `settings` overrides."""
    import stable_baselines3
    from stable_baselines3.common.noise import NormalActionNoise

    keywords = {**ZOO[algorithm], **(settings or {})}
    if algorithm == "TD3":
        keywords["action_noise"] = NormalActionNoise(np.zeros(1), np.full(1, NOISE))
    train = training.sb3(getattr(stable_baselines3, algorithm), 1, env_id, **keywords)
    return training.training_subject(train, total, threads, episodes, env_id, warm_up)


def published_rlox(algorithm: str, env_id: str, total: int, episodes: int, threads: int) -> training.Once:
    """Time rlox 1.2.0 with rl-zoo3's learning rate, and other settings at their defaults."""
    config = {"learning_rate": ZOO[algorithm]["learning_rate"]}
    train = training.published_rlox(algorithm.lower(), config, env_id)
    return training.training_subject(train, total, threads, episodes, env_id)


def small(algorithm: str, total: int, episodes: int, threads: int = 1) -> training.Once:
    """Time the native backend of rlox with RLtools' settings."""
    settings: dict[str, Any] = {
        "net_arch": (WIDTH, WIDTH),
        "batch_size": BATCH,
        "buffer_size": total,
        "learning_starts": BATCH,
        "learning_rate": 1e-3,
        "gamma": 0.99,
    }
    if algorithm == "SAC":
        settings["ent_coef"] = "auto_0.5"
    else:
        settings["noise"] = NOISE
    return rlox(algorithm, PENDULUM, total, episodes, threads, "native", settings)


def rltools(algorithm: str, total: int, episodes: int) -> training.Once:
    """Time RLtools. Its actions are fractions of the largest torque."""
    import rltools as library

    environment = {
        "path": str(Path(__file__).resolve().parent / "rltools_pendulum"),
        "observation_dim": 3,
        "action_dim": 1,
    }

    def compile_for(steps: int) -> Any:
        return getattr(library, algorithm)(
            environment, interface_name=f"rlox_bench_{steps}", enable_evaluation=False, STEP_LIMIT=steps
        )

    modules = {steps: compile_for(steps) for steps in (training.WARM_UP, total)}

    def train(steps: int, seed: int) -> training.Predict:
        state = modules[steps].State(seed)
        while not state.step():
            pass
        return lambda obs: MAX_TORQUE * np.clip(state.action(obs), -1, 1)

    return training.training_subject(train, total, 1, episodes, PENDULUM)


def libraries(algorithm: str, quick: bool, options: dict[str, Any]) -> list[Subject]:
    """Return subjects (`side_by_side.py`) for rlox on both backends, and for Stable-Baselines3.

    Each of them runs with one thread and with two.
    """
    subjects = [
        Subject(f"rlox {algorithm}, {backend}", "rlox", options={"backend": backend, **options})
        for backend in ("native", "torch")
    ]
    subjects.append(Subject(f"SB3 {algorithm}", "sb3", "sb3", options))
    found = [variant for library in subjects for variant in (swept(library)[:1] if quick else swept(library))]
    return [with_threads(variant) for variant in found]


def with_threads(subject: Subject) -> Subject:
    """Return the subject with its number of threads as an argument of its function."""
    return replace(subject, options={**subject.options, "threads": subject.threads})


def rows(quick: bool) -> list[Row]:
    """Return the rows of runs, phases, and RLtools' settings."""
    found = []
    for algorithm, env_id, full_total in RUNS:
        total, episodes = (200, 1) if quick else (full_total, 30)
        subjects = libraries(algorithm, quick, {"warm_up": 120} if quick else {})
        if not quick and algorithm != "DQN":  # rlox 1.2.0 lacks the zoo's DQN settings
            # rlox 1.2.0 has no parameters for the zoo's discount, first random steps and noise.
            work = "its defaults but the learning rate" if algorithm == "TD3" else ""
            published = Subject(f"rlox 1.2.0 {algorithm}", "published_rlox", "rlox-1.2.0", work=work)
            subjects += [with_threads(variant) for variant in swept(published)]
        params = {"algorithm": algorithm, "env_id": env_id, "total": total, "episodes": episodes}
        found.append(Row(f"{algorithm} {env_id}, {total} steps", params, subjects, total))
    for (algorithm, env_id, _), phase in () if quick else product(RUNS, PHASES):
        settings = {**PHASES[phase], "learning_starts": 0}
        total = settings["train_freq"]
        params = {"algorithm": algorithm, "env_id": env_id, "total": total, "episodes": 0}
        subjects = libraries(algorithm, quick, {"settings": settings, "warm_up": total})
        name = f"{algorithm} {NETWORKS[algorithm]}, {phase}"
        found.append(Row(name, params, subjects, 1_000))
    for algorithm in () if quick else ("SAC", "TD3"):
        subjects = [
            Subject(f"rlox {algorithm}, native", "small"),
            Subject(f"RLtools {algorithm}", "rltools", "rltools"),
            Subject(
                f"rlox {algorithm}, native, both cores", "small", options={"threads": 2}, threads=2, work="both cores"
            ),
        ]
        params = {"algorithm": algorithm, "total": 10_000, "episodes": 30}
        name = f"{algorithm} {PENDULUM} as RLtools, 10000 steps"
        found.append(Row(name, params, subjects, 10_000))
    return found


COLUMNS = ("processor", "return")
BENCHMARK = Benchmark("bench_off_policy", "Off-policy training", rows, rounds=3, columns=COLUMNS)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
