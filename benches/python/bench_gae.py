"""Generalised advantage estimation: one trajectory (T,), and T steps of N environments.

NumPy has two forms: the usual loop of PPO programs, and a form with as few calls as possible.
Subjects that write into the same arrays each time are compared with each other only.
"""

from __future__ import annotations

import sys
import timeit
from typing import Any

import numpy as np
import trajectories
from side_by_side import Benchmark, Row, Subject, run, swept
from trajectories import GAMMA, LAMBDA, Floats, jax_subjects, our_subjects, rollout, torchrl_subjects


def reference(
    rewards: Floats, values: Floats, dones: Floats, last_values: Floats, dtype: Any = None
) -> tuple[Floats, Floats]:
    """Return advantages and returns from a loop over time, as in PPO programs with NumPy."""
    rewards, values, last_values = (np.asarray(x, dtype) for x in (rewards, values, last_values))
    alive = (1 - dones).astype(rewards.dtype)
    advantages = np.empty_like(rewards)
    following, advantage = last_values, np.zeros_like(last_values)
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + GAMMA * following * alive[t] - values[t]
        advantage = delta + GAMMA * LAMBDA * alive[t] * advantage
        advantages[t], following = advantage, values[t]
    return advantages, advantages + values


def expected(data: trajectories.Rollout) -> tuple[Floats, Floats]:
    """Return advantages and returns in float64."""
    return reference(data.rewards, data.values, data.dones, data.last_values, np.float64)


class VectorizedGae:
    """Estimator with few NumPy calls: two per time step, the others on full arrays.

    Intermediate arrays are allocated once, and result arrays as well with `reuse`.
    """

    def __init__(self, steps: int, num_envs: int, dtype: Any, reuse: bool) -> None:
        shape = (steps, num_envs)
        self.gamma, self.lam = np.asarray([GAMMA, LAMBDA], dtype)
        self.alive, self.factor = np.empty(shape, bool), np.empty(shape, dtype)
        self.row = np.empty(num_envs, dtype)
        self.results = (np.empty(shape, dtype), np.empty(shape, dtype)) if reuse else None
        self.rows = list(self.pairs(self.results[0])) if self.results else None

    def pairs(self, advantages: Floats) -> Any:
        """Return the advantages of each step, those of the next step, and the factor, from the end."""
        return zip(advantages[-2::-1], advantages[:0:-1], self.factor[-2::-1], strict=True)

    def __call__(self, rewards: Floats, values: Floats, dones: Floats, last_values: Floats) -> tuple[Floats, Floats]:
        factor, row, multiply, add = self.factor, self.row, np.multiply, np.add
        advantages, returns = self.results or (np.empty_like(rewards), np.empty_like(rewards))
        multiply(np.logical_not(dones, self.alive), self.gamma, factor)
        multiply(factor[:-1], values[1:], advantages[:-1])
        multiply(factor[-1], last_values, advantages[-1])
        advantages += rewards
        advantages -= values
        factor *= self.lam
        for now, following, share in self.rows or self.pairs(advantages):
            multiply(share, following, row)
            add(now, row, now)
        return advantages, add(advantages, values, returns)


def numpy_vectorized(steps: int, num_envs: int, dtype: str, reuse: bool = False) -> timeit.Timer:
    data = rollout(steps, num_envs, dtype)
    names = {"f": VectorizedGae(steps, num_envs, dtype, reuse), **data.arrays()}
    call = "f(r, v, d, last)"
    data.check(eval(call, names), expected(data))
    return timeit.Timer(call, globals=names)


def numpy_loop(steps: int, num_envs: int, dtype: str) -> timeit.Timer:
    names = {"f": reference, **rollout(steps, num_envs, dtype).arrays()}
    return timeit.Timer("f(r, v, d, last)", globals=names)


def rlox(steps: int, num_envs: int, dtype: str, flags: bool = False, reuse: bool = False) -> timeit.Timer:
    """Time `compute_gae` with dones as floats or flags and with new or reused results."""
    from rlox import compute_gae

    data = rollout(steps, num_envs, dtype)
    names = {"f": compute_gae, "gamma": GAMMA, "lam": LAMBDA, **data.arrays(flags)}
    if num_envs == 1:
        names["last"] = float(names["last"])
    names["out"] = np.empty_like(names["r"]), np.empty_like(names["r"])
    call = f"f(r, v, d, last, gamma, lam{', out=out' if reuse else ''})"
    data.check(eval(call, names), expected(data))
    return timeit.Timer(call, globals=names)


def rlox_flat(steps: int, num_envs: int, dtype: str, name: str = "compute_gae_batched") -> timeit.Timer:
    """Time the environment-major call. rlox 1.2.0 has a second function for float32."""
    import rlox

    data = rollout(steps, num_envs, dtype)
    arrays = data.environment_major(data.rewards, data.values, data.dones.astype(dtype))
    names: dict[str, Any] = dict(zip("rvd", arrays, strict=True))
    names.update(f=getattr(rlox, name), last=data.last_values, n=steps, gamma=GAMMA, lam=LAMBDA)
    call = "f(r, v, d, last, n, gamma, lam)"
    data.check([data.time_major(result) for result in eval(call, names)], expected(data))
    return timeit.Timer(call, globals=names)


def torchrl(steps: int, num_envs: int, dtype: str, threads: int, vectorised: bool = True) -> timeit.Timer:
    """Time TorchRL's vectorised function on tensors (N, T, 1), or its loop over time."""
    from torchrl.objectives.value import functional

    data, name = rollout(steps, num_envs, dtype), "generalized_advantage_estimate"
    estimate = getattr(functional, f"vec_{name}" if vectorised else name)
    names = {"f": estimate, "gamma": GAMMA, "lam": LAMBDA, **data.tensors(threads)}
    call = "f(gamma, lam, v, n, r, d, d)"
    data.check([data.time_major(result) for result in eval(call, names)], expected(data))
    return timeit.Timer(call, globals=names)


def jax(steps: int, num_envs: int, dtype: str, method: str, unroll: int = 1) -> timeit.Timer:
    """Time a compiled or associative scan. Arrays stay on JAX's device."""

    def estimate(solve: Any, r: Any, v: Any, d: Any, last: Any, _: Any) -> Any:
        import jax.numpy as jnp

        alive = 1 - d.astype(r.dtype)
        delta = r + GAMMA * jnp.concatenate([v[1:], last[None]]) * alive - v
        a = solve(delta, GAMMA * LAMBDA * alive, jnp.zeros_like(last))
        return a, a + v

    data = rollout(steps, num_envs, dtype)
    return trajectories.jax_timer(data, estimate, expected(data), method, unroll)


def subjects(num_envs: int, dtype: str) -> list[Subject]:
    """Return the subjects (`side_by_side.py`), with the documented call of rlox first."""
    flat = "compute_gae_batched"
    is_single, same_arrays, reuse = num_envs == 1, "the same arrays each time", {"reuse": True}
    ours = [
        Subject("rlox compute_gae", "rlox"),
        Subject("rlox compute_gae, flags", "rlox", options={"flags": True}),
        Subject("rlox compute_gae, flags, out=", "rlox", options={"flags": True, **reuse}, work=same_arrays),
    ]
    tensors = torchrl_subjects("torchrl", "TorchRL vectorised")
    if num_envs >= 64:  # the vectorised function is slower at this size
        tensors += torchrl_subjects("torchrl", "TorchRL loop over time", vectorised=False)
    label = "NumPy in few passes"
    numpy = [Subject("NumPy loop over time", "numpy_loop", rival=True)]
    if not is_single:
        numpy += [
            Subject(label, "numpy_vectorized", rival=True),
            Subject(f"{label}, reused", "numpy_vectorized", options=reuse, work=same_arrays, rival=True),
        ]
    old = "rlox-1.2.0"
    if is_single:
        published = [
            Subject("rlox 1.2.0 compute_gae", "rlox", old),
            Subject("rlox 1.2.0 compute_gae, flags", "rlox", old, {"flags": True}),
        ]
    else:
        ours.append(Subject(f"rlox {flat}", "rlox_flat"))
        name = flat if dtype == "float64" else f"{flat}_f32"
        published = swept(Subject(f"rlox 1.2.0 {name}", "rlox_flat", old, {"name": name}))
    return [*our_subjects(num_envs, *ours), *published, *tensors, *jax_subjects("jax"), *numpy]


def rows(quick: bool) -> list[Row]:
    """Return single trajectories in float64 and batches in both precisions."""
    sizes = [(128, 1, "float64"), (2048, 1, "float64"), (32768, 1, "float64")]
    for shape in ((128, 8), (128, 64), (2048, 64), (2048, 256)):
        sizes += [(*shape, "float32"), (*shape, "float64")]
    if quick:
        sizes = [(128, 1, "float64"), (128, 8, "float32"), (128, 8, "float64")]
    return [trajectories.row("GAE", size, subjects(*size[1:])) for size in sizes]


BENCHMARK = Benchmark("bench_gae", "Generalised advantage estimation", rows)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
