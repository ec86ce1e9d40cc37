"""Trajectories for advantages and returns, in the preferred form of each library.

All forms (time-major, environment-major, NumPy arrays, tensors, JAX arrays) are created before the
clock starts. JAX also compiles before the clock starts. All results are checked against slow loops.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from side_by_side import Row, Subject

GAMMA, LAMBDA = 0.99, 0.95
Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class Rollout:
    """Rewards, values, dones, log importance ratios (T, N), and values after the last step (N,)."""

    rewards: Floats
    values: Floats
    dones: npt.NDArray[np.bool_]
    last_values: Floats
    log_rhos: Floats

    def check(self, results: Sequence[Any], expected: Sequence[Floats]) -> None:
        """Raise AssertionError unless results equal `expected` in the dtype of the rewards."""
        exact = self.rewards.dtype == np.float64
        rtol, atol = (1e-6, 1e-10) if exact else (1e-4, 1e-4)
        for index, (result, expected_result) in enumerate(zip(results, expected, strict=True)):
            result = np.asarray(result).reshape(expected_result.shape)
            if result.dtype != self.rewards.dtype:
                raise AssertionError(f"result {index}: {result.dtype}, not {self.rewards.dtype}")
            np.testing.assert_allclose(result, expected_result, rtol, atol, err_msg=f"result {index}")

    def arrays(self, flags: bool = True) -> dict[str, Any]:
        """Return arrays by short names. A single trajectory has (T,) arrays and a number `last`.

        Dones, `d`, are flags or have the dtype of the rewards.
        """
        dones = self.dones if flags else self.dones.astype(self.rewards.dtype)
        names: dict[str, Any] = {
            "r": self.rewards,
            "v": self.values,
            "d": dones,
            "rhos": self.log_rhos,
            "last": self.last_values,
        }
        if self.rewards.shape[1] > 1:
            return names
        return {name: array[..., 0].copy() for name, array in names.items()}

    def tensors(self, threads: int) -> dict[str, Any]:
        """Set the threads and return tensors (N, T, 1), with the next values `n`."""
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        # TorchRL creates its discount with the default precision.
        torch.set_default_dtype(getattr(torch, str(self.rewards.dtype)))
        following = np.concatenate([self.values[1:], self.last_values[None]])
        arrays = (self.rewards, self.values, following, self.dones, self.log_rhos)
        return {
            name: torch.from_numpy(np.ascontiguousarray(array.T)[..., None])
            for name, array in zip(("r", "v", "n", "d", "rhos"), arrays, strict=True)
        }

    def environment_major(self, *arrays: Floats) -> list[Floats]:
        """Return flat copies, one environment after the other."""
        return [np.ascontiguousarray(array.T).reshape(-1) for array in arrays]

    def time_major(self, flat: Any) -> Floats:
        """Convert environment-major results to time-major arrays."""
        return np.asarray(flat).reshape(self.rewards.T.shape).T


def rollout(steps: int, num_envs: int, dtype: str) -> Rollout:
    """Return normal rewards, values and log ratios. About a twentieth of the steps are dones."""
    rng = np.random.default_rng(42)
    shape = (steps, num_envs)
    rewards, values = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    dones, last_values = rng.random(shape) < 0.05, rng.standard_normal(num_envs).astype(dtype)
    log_rhos = rng.standard_normal(shape).astype(dtype)
    return Rollout(rewards, values, dones, last_values, log_rhos)


Solve = Callable[..., Any]


def jax_timer(
    data: Rollout, estimate: Callable[..., tuple[Any, ...]], expected: Sequence[Floats], method: str, unroll: int = 1
) -> timeit.Timer:
    """Time compiled `estimate(solve, r, v, d, last, rhos)`.

    `solve(constant, factor, start)` returns x with x[t] = constant[t] + factor[t] * x[t + 1] and
    x[T] = `start`, by a scan over time or an associative scan.
    """
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def scan(constant: Any, factor: Any, start: Any) -> Any:
        def back(following: Any, row: Any) -> Any:
            now = row[0] + row[1] * following
            return now, now

        return jax.lax.scan(back, start, (constant, factor), reverse=True, unroll=unroll)[1]

    def associative(constant: Any, factor: Any, start: Any) -> Any:
        def compose(later: Any, now: Any) -> Any:
            return later[0] * now[0], now[1] + now[0] * later[1]

        constant = constant.at[-1].add(factor[-1] * start)
        return jax.lax.associative_scan(compose, (factor, constant), reverse=True)[1]

    solve = scan if method == "scan" else associative
    names = {name: jnp.asarray(array) for name, array in data.arrays().items()}
    names["f"] = jax.jit(lambda *arrays: estimate(solve, *arrays))
    names["ready"] = jax.block_until_ready
    call = "ready(f(r, v, d, last, rhos))"
    data.check(eval(call, names), expected)
    return timeit.Timer(call, globals=names)


def our_subjects(num_envs: int, *subjects: Subject) -> list[Subject]:
    """Return the rlox subjects (`side_by_side.py`), from 256 environments on also with two threads."""
    if num_envs < 256:
        return list(subjects)
    return [*subjects, *(replace(subject, threads=2) for subject in subjects)]


def torchrl_subjects(function: str, name: str, **options: Any) -> list[Subject]:
    """Return TorchRL with one thread and with two."""
    return [Subject(name, function, "torchrl", {"threads": threads, **options}, threads) for threads in (1, 2)]


def jax_subjects(function: str, **options: Any) -> list[Subject]:
    """Return the scans of JAX."""
    methods = (
        ("JAX scan", {"method": "scan"}),
        ("JAX scan, unrolled by 16", {"method": "scan", "unroll": 16}),
        ("JAX associative scan", {"method": "associative"}),
    )
    return [Subject(name, function, "jax", {**options_of_method, **options}) for name, options_of_method in methods]


Size = tuple[int, int, str]


def row(name: str, size: Size, subjects: Sequence[Subject]) -> Row:
    """Return the row of a size (steps, environments, dtype)."""
    steps, num_envs, dtype = size
    shape = f"T={steps}" if num_envs == 1 else f"{steps}x{num_envs}"
    params = {"steps": steps, "num_envs": num_envs, "dtype": dtype}
    return Row(f"{name} {shape} {dtype}", params, subjects, steps * num_envs)
