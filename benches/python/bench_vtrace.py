"""V-trace (Espeholt et al. 2018): one trajectory (T,), and T steps of N environments.

All importance ratios are clipped at 1, as in the paper's experiments. rlox 1.2.0 supports only one
trajectory in float32. It is therefore called once per environment, and runs in float32 in rows of
float64. TorchRL's function takes the log-probabilities of both policies, and loops over time.
"""

from __future__ import annotations

import sys
import timeit
from typing import Any

import numpy as np
import trajectories
from side_by_side import Benchmark, Row, Subject, run
from trajectories import GAMMA, Floats, jax_subjects, our_subjects, rollout, torchrl_subjects


def reference(
    log_rhos: Floats, rewards: Floats, values: Floats, dones: Floats, last_values: Floats, dtype: Any = None
) -> tuple[Floats, Floats]:
    """Return targets and policy-gradient advantages by a loop over time."""
    arrays = (log_rhos, rewards, values, last_values)
    log_rhos, rewards, values, last_values = (np.asarray(array, dtype) for array in arrays)
    discount = GAMMA * (1 - dones).astype(rewards.dtype)
    rhos = np.minimum(np.exp(log_rhos), 1)
    targets, advantages = np.empty_like(rewards), np.empty_like(rewards)
    value = target = last_values
    for t in reversed(range(len(rewards))):
        advantages[t] = rhos[t] * (rewards[t] + discount[t] * target - values[t])
        delta = rhos[t] * (rewards[t] + discount[t] * value - values[t])
        targets[t] = values[t] + delta + discount[t] * rhos[t] * (target - value)
        value, target = values[t], targets[t]
    return targets, advantages


def expected(data: trajectories.Rollout) -> tuple[Floats, Floats]:
    """Return targets and advantages in float64."""
    arrays = (data.log_rhos, data.rewards, data.values, data.dones, data.last_values)
    return reference(*arrays, np.float64)


def numpy_loop(steps: int, num_envs: int, dtype: str) -> timeit.Timer:
    names = {"f": reference, **rollout(steps, num_envs, dtype).arrays()}
    return timeit.Timer("f(rhos, r, v, d, last)", globals=names)


def rlox(steps: int, num_envs: int, dtype: str, flags: bool = False) -> timeit.Timer:
    """Time `compute_vtrace` with dones as floats or flags."""
    from rlox import compute_vtrace

    data = rollout(steps, num_envs, dtype)
    names = {"f": compute_vtrace, "gamma": GAMMA, **data.arrays(flags)}
    if num_envs == 1:
        names["last"] = float(names["last"])
    call = "f(rhos, r, v, d, last, gamma)"
    data.check(eval(call, names), expected(data))
    return timeit.Timer(call, globals=names)


def published_rlox(steps: int, num_envs: int, dtype: str) -> timeit.Timer:
    """Time rlox 1.2.0 with one call per environment on contiguous arrays."""
    from rlox import compute_vtrace

    data = rollout(steps, num_envs, dtype)
    if dtype == "float64":
        data = rollout(steps, num_envs, "float32")
    arrays = (data.log_rhos, data.rewards, data.values, data.dones.astype(np.float32))
    columns = [
        (*(np.ascontiguousarray(array[:, env]) for array in arrays), float(data.last_values[env]))
        for env in range(num_envs)
    ]
    names = {"f": compute_vtrace, "columns": columns, "gamma": GAMMA}
    call = "[f(*column, gamma) for column in columns]"
    results = zip(*eval(call, names), strict=True)
    data.check([np.stack(result, 1) for result in results], expected(data))
    if num_envs == 1:
        names.update(zip(("rhos", "r", "v", "d", "last"), columns[0], strict=True))
        call = "f(rhos, r, v, d, last, gamma)"
    return timeit.Timer(call, globals=names)


def torchrl(steps: int, num_envs: int, dtype: str, threads: int) -> timeit.Timer:
    """Time TorchRL's function on tensors (N, T, 1), with behaviour log-probabilities of 0."""
    from torchrl.objectives.value.functional import vtrace_advantage_estimate

    data = rollout(steps, num_envs, dtype)
    names = {"f": vtrace_advantage_estimate, "gamma": GAMMA, **data.tensors(threads)}
    names["acted"] = names["rhos"] * 0
    call = "f(gamma, rhos, acted, v, n, r, d, d)"
    advantages, targets = map(data.time_major, eval(call, names))
    data.check((targets, advantages), expected(data))
    return timeit.Timer(call, globals=names)


def jax(steps: int, num_envs: int, dtype: str, method: str, unroll: int = 1) -> timeit.Timer:
    """Time a compiled or associative scan. Arrays stay on JAX's device."""

    def estimate(solve: Any, r: Any, v: Any, d: Any, last: Any, log_rhos: Any) -> Any:
        import jax.numpy as jnp

        rhos = jnp.minimum(jnp.exp(log_rhos), 1)
        discount = GAMMA * (1 - d.astype(r.dtype))
        delta = rhos * (r + discount * jnp.concatenate([v[1:], last[None]]) - v)
        targets = v + solve(delta, discount * rhos, jnp.zeros_like(last))
        following = jnp.concatenate([targets[1:], last[None]])
        return targets, rhos * (r + discount * following - v)

    data = rollout(steps, num_envs, dtype)
    return trajectories.jax_timer(data, estimate, expected(data), method, unroll)


def subjects(num_envs: int, dtype: str) -> list[Subject]:
    """Return the subjects (`side_by_side.py`), with the documented call of rlox first."""
    precision = "float32" if dtype == "float64" else ""
    notes = [*(["a call for each environment"] if num_envs > 1 else []), *([precision] if precision else [])]
    name = ", ".join(["rlox 1.2.0", *notes])
    ours = [
        Subject("rlox compute_vtrace", "rlox"),
        Subject("rlox compute_vtrace, flags", "rlox", options={"flags": True}),
    ]
    return [
        *our_subjects(num_envs, *ours),
        Subject(name, "published_rlox", "rlox-1.2.0", work=precision),
        *torchrl_subjects("torchrl", "TorchRL"),
        *jax_subjects("jax"),
        Subject("NumPy loop over time", "numpy_loop", rival=True),
    ]


def rows(quick: bool) -> list[Row]:
    """Return single trajectories and batches in both precisions."""
    shapes = [(128, 1), (2048, 1), (32768, 1), (128, 8), (128, 64), (2048, 256)]
    if quick:
        shapes = [(128, 1), (128, 8)]
    return [
        trajectories.row("V-trace", (*shape, dtype), subjects(shape[1], dtype))
        for shape in shapes
        for dtype in ("float32", "float64")
    ]


BENCHMARK = Benchmark("bench_vtrace", "V-trace", rows)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
