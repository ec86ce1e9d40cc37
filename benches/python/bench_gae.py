"""Generalised advantage estimation: one trajectory (T,), and T steps of N environments.

Every library gets its data in the form it likes best: time-major or environment-major, NumPy
arrays, tensors or arrays on its device, made before the clock starts. JAX is compiled before. All
results are compared with a slow loop.
"""

from __future__ import annotations

import sys
import timeit
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from side_by_side import Benchmark, Row, Subject, run

GAMMA, LAMBDA = 0.99, 0.95
Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class Rollout:
    """Rewards, values, dones (T, N) and the values that follow, (N,)."""

    rewards: Floats
    values: Floats
    dones: npt.NDArray[np.bool_]
    last_values: Floats

    def check(self, advantages: Any, returns: Any) -> None:
        """Raises AssertionError unless the results, time-major, are those of `reference`."""
        expected = reference(self.rewards, self.values, self.dones, self.last_values, np.float64)
        exact = self.rewards.dtype == np.float64
        rtol, atol = (1e-6, 1e-10) if exact else (1e-4, 1e-4)
        for name, result, wanted in zip(
            ("advantages", "returns"), (advantages, returns), expected, strict=True
        ):
            result = np.asarray(result).reshape(wanted.shape)
            if result.dtype != self.rewards.dtype:
                raise AssertionError(f"{name} are {result.dtype}, not {self.rewards.dtype}")
            np.testing.assert_allclose(result, wanted, rtol, atol, err_msg=f"wrong {name}")

    def environment_major(self, *arrays: Floats) -> list[Floats]:
        """Flat copies, one environment after the other."""
        return [np.ascontiguousarray(array.T).reshape(-1) for array in arrays]

    def time_major(self, flat: Any) -> Floats:
        """Back from environment-major."""
        return np.asarray(flat).reshape(self.rewards.T.shape).T


def rollout(steps: int, num_envs: int, dtype: str) -> Rollout:
    """Normal rewards and values, an episode's end in a twentieth of the rows."""
    rng = np.random.default_rng(42)
    shape = (steps, num_envs)
    rewards, values = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    return Rollout(
        rewards, values, rng.random(shape) < 0.05, rng.standard_normal(num_envs).astype(dtype)
    )


def reference(
    rewards: Floats, values: Floats, dones: Floats, last_values: Floats, dtype: Any = None
) -> tuple[Floats, Floats]:
    """The formula, as a loop over time: what PPO programs have written with NumPy."""
    rewards, values, last_values = (np.asarray(x, dtype) for x in (rewards, values, last_values))
    alive = (1 - dones).astype(rewards.dtype)
    advantages = np.empty_like(rewards)
    following, advantage = last_values, np.zeros_like(last_values)
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + GAMMA * following * alive[t] - values[t]
        advantage = delta + GAMMA * LAMBDA * alive[t] * advantage
        advantages[t], following = advantage, values[t]
    return advantages, advantages + values


def numpy_loop(steps: int, num_envs: int, dtype: str) -> timeit.Timer:
    data = rollout(steps, num_envs, dtype)
    names: dict[str, Any] = {
        "f": reference,
        "r": data.rewards,
        "v": data.values,
        "d": data.dones,
        "last": data.last_values,
    }
    if num_envs == 1:
        names.update({key: names[key][:, 0] for key in "rvd"}, last=data.last_values[0])
    return timeit.Timer("f(r, v, d, last)", globals=names)


def rlox(
    steps: int, num_envs: int, dtype: str, flags: bool = False, reuse: bool = False
) -> timeit.Timer:
    """`compute_gae`: dones as floats, as documented, or flags; fresh results or reused."""
    from rlox import compute_gae

    data = rollout(steps, num_envs, dtype)
    names: dict[str, Any] = {
        "f": compute_gae,
        "r": data.rewards,
        "v": data.values,
        "d": data.dones if flags else data.dones.astype(dtype),
        "last": data.last_values,
        "gamma": GAMMA,
        "lam": LAMBDA,
    }
    if num_envs == 1:
        names.update(
            {key: names[key][:, 0].copy() for key in "rvd"}, last=float(data.last_values[0])
        )
    names["out"] = np.empty_like(names["r"]), np.empty_like(names["r"])
    call = f"f(r, v, d, last, gamma, lam{', out=out' if reuse else ''})"
    data.check(*eval(call, names))
    return timeit.Timer(call, globals=names)


def rlox_flat(
    steps: int, num_envs: int, dtype: str, name: str = "compute_gae_batched"
) -> timeit.Timer:
    """The environment-major call; rlox 1.2.0 has a second one for float32."""
    import rlox

    data = rollout(steps, num_envs, dtype)
    arrays = data.environment_major(data.rewards, data.values, data.dones.astype(dtype))
    names: dict[str, Any] = dict(zip("rvd", arrays, strict=True))
    names.update(f=getattr(rlox, name), last=data.last_values, n=steps, gamma=GAMMA, lam=LAMBDA)
    call = "f(r, v, d, last, n, gamma, lam)"
    data.check(*map(data.time_major, eval(call, names)))
    return timeit.Timer(call, globals=names)


def torchrl(steps: int, num_envs: int, dtype: str, threads: int) -> timeit.Timer:
    """TorchRL's vectorised function on tensors (N, T, 1)."""
    import torch
    from torchrl.objectives.value.functional import vec_generalized_advantage_estimate as estimate

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    # It makes its discount a tensor of the default precision.
    torch.set_default_dtype(getattr(torch, dtype))
    data = rollout(steps, num_envs, dtype)
    following = np.concatenate([data.values[1:], data.last_values[None]])
    names: dict[str, Any] = {"f": estimate, "gamma": GAMMA, "lam": LAMBDA}
    for key, array in zip("rvnd", (data.rewards, data.values, following, data.dones), strict=True):
        names[key] = torch.from_numpy(np.ascontiguousarray(array.T)[..., None])
    call = "f(gamma, lam, v, n, r, d, d)"
    data.check(*(data.time_major(result.numpy()[..., 0]) for result in eval(call, names)))
    return timeit.Timer(call, globals=names)


def jax(steps: int, num_envs: int, dtype: str, how: str, unroll: int = 1) -> timeit.Timer:
    """A compiled scan over time, or the associative one; arrays stay on JAX's device."""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def estimate(r: Any, v: Any, d: Any, last: Any) -> Any:
        alive = 1 - d.astype(r.dtype)
        delta = r + GAMMA * jnp.concatenate([v[1:], last[None]]) * alive - v
        decay = GAMMA * LAMBDA * alive
        if how == "scan":

            def back(advantage: Any, row: Any) -> Any:
                advantage = row[0] + row[1] * advantage
                return advantage, advantage

            rows = (delta, decay)
            _, a = jax.lax.scan(back, jnp.zeros_like(last), rows, reverse=True, unroll=unroll)
        else:

            def compose(later: Any, now: Any) -> Any:
                return later[0] * now[0], now[1] + now[0] * later[1]

            _, a = jax.lax.associative_scan(compose, (decay, delta), reverse=True)
        return a, a + v

    data = rollout(steps, num_envs, dtype)
    arrays = (data.rewards, data.values, data.dones, data.last_values)
    if num_envs == 1:
        arrays = (*(array[:, 0] for array in arrays[:3]), data.last_values[0])
    names: dict[str, Any] = dict(
        zip(("r", "v", "d", "last"), map(jnp.asarray, arrays), strict=True)
    )
    names.update(f=jax.jit(estimate), ready=jax.block_until_ready)
    call = "ready(f(r, v, d, last))"
    data.check(*eval(call, names))
    return timeit.Timer(call, globals=names)


def subjects(num_envs: int, dtype: str) -> list[Subject]:
    """Ours first: the call of the documents."""
    flat = "compute_gae_batched"
    one = num_envs == 1
    ours = [
        Subject("rlox compute_gae", "rlox"),
        Subject("rlox compute_gae, flags", "rlox", options={"flags": True}),
        Subject("rlox compute_gae, flags, out=", "rlox", options={"flags": True, "reuse": True}),
    ]
    old = "rlox-1.2.0"
    if one:
        published = [
            Subject("rlox 1.2.0 compute_gae", "rlox", old),
            Subject("rlox 1.2.0 compute_gae, flags", "rlox", old, {"flags": True}),
        ]
    else:
        ours.append(Subject(f"rlox {flat}", "rlox_flat"))
        name = flat if dtype == "float64" else f"{flat}_f32"
        published = [Subject(f"rlox 1.2.0 {name}", "rlox_flat", old, {"name": name})]
    return [
        *ours,
        *published,
        *(
            Subject("TorchRL vectorised", "torchrl", "torchrl", {"threads": threads}, threads)
            for threads in (1, 2)
        ),
        Subject("JAX scan", "jax", "jax", {"how": "scan"}),
        Subject("JAX scan, unrolled by 16", "jax", "jax", {"how": "scan", "unroll": 16}),
        Subject("JAX associative scan", "jax", "jax", {"how": "associative"}),
        Subject("NumPy loop over time", "numpy_loop"),
    ]


def rows(quick: bool) -> list[Row]:
    """Single trajectories in float64, batches in both precisions."""
    sizes = [(128, 1, "float64"), (2048, 1, "float64"), (32768, 1, "float64")]
    for shape in ((128, 8), (128, 64), (2048, 64), (2048, 256)):
        sizes += [(*shape, "float32"), (*shape, "float64")]
    if quick:
        sizes = [(128, 1, "float64"), (128, 8, "float32"), (128, 8, "float64")]
    return [
        Row(
            f"GAE {f'T={steps}' if num_envs == 1 else f'{steps}x{num_envs}'} {dtype}",
            {"steps": steps, "num_envs": num_envs, "dtype": dtype},
            subjects(num_envs, dtype),
            steps * num_envs,
        )
        for steps, num_envs, dtype in sizes
    ]


BENCHMARK = Benchmark("bench_gae", "Generalised advantage estimation", rows)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
