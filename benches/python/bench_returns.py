"""Discounted returns and lambda returns: one trajectory (T,), and T steps of N environments.

Both bootstrap from the value after the last step. rlox 1.2.0 computes neither of them. TorchRL has
two functions for each of them. The vectorised function takes seconds for large batches, and the
loop over time is fast only for large batches.
"""

from __future__ import annotations

import sys
import timeit
from typing import Any

import bench_gae
import numpy as np
import trajectories
from side_by_side import Benchmark, Row, Subject, run
from trajectories import GAMMA, LAMBDA, Floats, jax_subjects, our_subjects, rollout, torchrl_subjects


def discounted_returns(rewards: Floats, _: Floats, dones: Floats, last_values: Floats, dtype: Any = None) -> Floats:
    """Return discounted returns by a loop over time."""
    rewards, following = np.asarray(rewards, dtype), np.asarray(last_values, dtype)
    discount = GAMMA * (1 - dones).astype(rewards.dtype)
    returns = np.empty_like(rewards)
    for t in reversed(range(len(rewards))):
        returns[t] = following = rewards[t] + discount[t] * following
    return returns


def lambda_returns(rewards: Floats, values: Floats, dones: Floats, last_values: Floats, dtype: Any = None) -> Floats:
    """Return lambda returns, which are the returns of the GAE loop."""
    return bench_gae.reference(rewards, values, dones, last_values, dtype)[1]


def expected(data: trajectories.Rollout, lam: float) -> list[Floats]:
    """Return the expected returns in float64. For `lam=1`, they are discounted returns."""
    loop = discounted_returns if lam == 1 else lambda_returns
    return [loop(data.rewards, data.values, data.dones, data.last_values, np.float64)]


def numpy_loop(steps: int, num_envs: int, dtype: str, lam: float) -> timeit.Timer:
    loop = discounted_returns if lam == 1 else lambda_returns
    names = {"f": loop, **rollout(steps, num_envs, dtype).arrays()}
    return timeit.Timer("f(r, v, d, last)", globals=names)


def rlox(steps: int, num_envs: int, dtype: str, lam: float, flags: bool = False) -> timeit.Timer:
    """Time `compute_returns` or `compute_lambda_returns` with dones as floats or flags."""
    from rlox import compute_lambda_returns, compute_returns

    data = rollout(steps, num_envs, dtype)
    names = {"gamma": GAMMA, "lam": lam, **data.arrays(flags)}
    if num_envs == 1:
        names["last"] = float(names["last"])
    if lam == 1:
        names["f"], call = compute_returns, "f(r, d, last, gamma)"
    else:
        names["f"], call = compute_lambda_returns, "f(r, v, d, last, gamma, lam)"
    data.check([eval(call, names)], expected(data, lam))
    return timeit.Timer(call, globals=names)


def torchrl(steps: int, num_envs: int, dtype: str, lam: float, threads: int, vectorised: bool = True) -> timeit.Timer:
    """Time TorchRL's functions on tensors (N, T, 1)."""
    from torchrl.objectives.value import functional

    data = rollout(steps, num_envs, dtype)
    names = {"gamma": GAMMA, "lam": lam, **data.tensors(threads)}
    if lam == 1:
        name, call = "td1_return_estimate", "f(gamma, n, r, d, d)"
    else:
        name, call = "td_lambda_return_estimate", "f(gamma, lam, n, r, d, d)"
    names["f"] = getattr(functional, f"vec_{name}" if vectorised else name)
    data.check([data.time_major(eval(call, names))], expected(data, lam))
    return timeit.Timer(call, globals=names)


def jax(steps: int, num_envs: int, dtype: str, lam: float, method: str, unroll: int = 1) -> timeit.Timer:
    """Time a compiled or associative scan. Arrays stay on JAX's device."""

    def estimate(solve: Any, r: Any, v: Any, d: Any, last: Any, _: Any) -> Any:
        import jax.numpy as jnp

        discount = GAMMA * (1 - d.astype(r.dtype))
        if lam == 1:
            return (solve(r, discount, last),)
        following = jnp.concatenate([v[1:], last[None]])
        return (solve(r + (1 - lam) * discount * following, lam * discount, last),)

    data = rollout(steps, num_envs, dtype)
    return trajectories.jax_timer(data, estimate, expected(data, lam), method, unroll)


def subjects(name: str, lam: float, steps: int, num_envs: int) -> list[Subject]:
    """Return the subjects (`side_by_side.py`) for T steps of N environments, rlox first."""
    options = {"lam": lam}
    ours = [
        Subject(f"rlox {name}", "rlox", options=options),
        Subject(f"rlox {name}, flags", "rlox", options={"flags": True, **options}),
    ]
    tensors = []
    if steps * num_envs <= 32768:
        tensors += torchrl_subjects("torchrl", "TorchRL vectorised", **options)
    if num_envs >= 64:
        loop = {"vectorised": False, **options}
        tensors += torchrl_subjects("torchrl", "TorchRL loop over time", **loop)
    return [
        *our_subjects(num_envs, *ours),
        *tensors,
        *jax_subjects("jax", **options),
        Subject("NumPy loop over time", "numpy_loop", options=options, rival=True),
    ]


def rows(quick: bool) -> list[Row]:
    """Return single trajectories in float64 and batches in both precisions."""
    sizes = [(128, 1, "float64"), (2048, 1, "float64"), (32768, 1, "float64")]
    for shape in ((128, 8), (128, 64), (2048, 256)):
        sizes += [(*shape, "float32"), (*shape, "float64")]
    if quick:
        sizes = [(128, 1, "float64"), (128, 8, "float32")]
    returns_kinds = (("returns", "compute_returns", 1.0), ("lambda", "compute_lambda_returns", LAMBDA))
    return [
        trajectories.row(title, size, subjects(name, lam, *size[:2]))
        for title, name, lam in returns_kinds
        for size in sizes
    ]


BENCHMARK = Benchmark("bench_returns", "Discounted and lambda returns", rows)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
