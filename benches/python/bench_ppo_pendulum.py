"""PPO on Pendulum-v1 against RLtools: same networks, minibatches and number of updates.

RLtools is written in C++, with array sizes that are known at compile time. Its Python package
compiles the code before the clock starts, here with MKL and RLtools' own pendulum. Its training
loop contains no Python. The settings are those of RLtools' example: 74 iterations of 4 x 1,024
steps, 2 epochs in minibatches of 256, ReLU. Both libraries explore with a learned standard
deviation that starts at twice the largest torque. rlox also clips gradient norms. RLtools uses one
thread. It is compared with rlox on one thread. rlox on two threads is also shown.

`training.py` describes the measurement.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import Benchmark, Row, Subject, run

import training

ENV = "Pendulum-v1"
ENVS, STEPS, EPOCHS, BATCH, WIDTH = 4, 1024, 2, 256, 64
GAMMA, LAMBDA, RATE, CLIP, MAX_TORQUE, SPREAD = 0.9, 0.95, 1e-3, 0.2, 2.0, 2.0
ITERATION = ENVS * STEPS


def rlox(total: int, episodes: int) -> training.Once:
    """Time the native backend of rlox with native environments."""
    from rlox.trainers import PPOTrainer

    settings: dict[str, Any] = {
        "num_envs": ENVS,
        "n_steps": STEPS,
        "n_epochs": EPOCHS,
        "batch_size": BATCH,
        "net_arch": (WIDTH, WIDTH),
        "activation": "relu",
        "gamma": GAMMA,
        "gae_lambda": LAMBDA,
        "learning_rate": RATE,
        "clip_coef": CLIP,
        "ent_coef": 0.0,
        "use_sde": False,
        "log_std_init": math.log(SPREAD * MAX_TORQUE),
    }
    train = training.rlox(PPOTrainer, "native", 1, ENV, **settings)
    return training.training_subject(train, total, 1, episodes, ENV)


def rltools(total: int, episodes: int) -> training.Once:
    """Time RLtools. Its actions are fractions of the largest torque."""
    from rltools import PPO

    environment = {
        "path": str(Path(__file__).resolve().parent / "rltools_pendulum"),
        "observation_dim": 3,
        "action_dim": 1,
    }

    def compile_for(iterations: int) -> Any:
        return PPO(
            environment,
            interface_name=f"rlox_bench_{iterations}",
            enable_evaluation=False,
            STEP_LIMIT=iterations,
            N_ENVIRONMENTS=ENVS,
            ON_POLICY_RUNNER_STEPS_PER_ENV=STEPS,
            N_EPOCHS=EPOCHS,
            BATCH_SIZE=BATCH,
            ACTOR_HIDDEN_DIM=WIDTH,
            CRITIC_HIDDEN_DIM=WIDTH,
            GAMMA=GAMMA,
            LAMBDA=LAMBDA,
            EPSILON_CLIP=CLIP,
            OPTIMIZER_ALPHA=RATE,
            ACTION_ENTROPY_COEFFICIENT=0.0,
            INITIAL_ACTION_STD=SPREAD,
        )

    module = compile_for(total // ITERATION)

    def train(steps: int, seed: int) -> training.Predict:
        state = module.State(seed)
        while not state.step():
            pass
        return lambda obs: MAX_TORQUE * np.clip(state.action(obs), -1, 1)

    return training.training_subject(train, total, 1, episodes, ENV)


def rows(quick: bool) -> list[Row]:
    """Return the only row."""
    iterations, episodes = (1, 1) if quick else (74, 30)
    subjects = [Subject("rlox PPO, native", "rlox"), Subject("RLtools PPO", "rltools", "rltools")]
    if not quick:
        both_cores = Subject("rlox PPO, native, both cores", "rlox", threads=2, work="both cores")
        subjects.append(both_cores)
    total = iterations * ITERATION
    updates = total // BATCH * EPOCHS
    params = {"total": total, "episodes": episodes}
    return [Row(f"PPO {ENV}, {total} steps, {updates} updates", params, subjects, total)]


COLUMNS = ("processor", "return")
BENCHMARK = Benchmark("bench_ppo_pendulum", "PPO training", rows, rounds=5, columns=COLUMNS)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
