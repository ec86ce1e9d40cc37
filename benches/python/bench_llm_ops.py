"""Operations of language-model post-training: group advantages, token KL, packing.

Against NumPy, torch on 1 and 2 threads, and rlox 1.2.0. All results are compared with the formula
in float64 before the clock starts. The Schulman rows check the magnitude that each library
documents: rlox 1.2.0 takes the two policies the other way round, which costs it the same time.
"""

from __future__ import annotations

import sys
import timeit
from typing import Any

import numpy as np
import numpy.typing as npt
from side_by_side import Benchmark, Row, Subject, run, swept

Floats = npt.NDArray[Any]
OLD = "rlox-1.2.0"


def rewards(groups: int, size: int) -> Floats:
    return np.random.default_rng(42).random(groups * size)


def normalised(rewards: Floats, size: int) -> Floats:
    """The formula: what programs have written with NumPy."""
    rows = rewards.reshape(-1, size)
    mean, std = rows.mean(1, keepdims=True), rows.std(1, keepdims=True)
    result: Floats = ((rows - mean) / std).reshape(-1)
    return result


def log_probs(batch: int, tokens: int, dtype: str) -> tuple[Floats, Floats]:
    """Of the policy and of a reference near it, (B * T,)."""
    rng = np.random.default_rng(42)
    policy = -rng.exponential(2.0, batch * tokens)
    reference = policy + rng.normal(0, 0.2, batch * tokens)
    return policy.astype(dtype), reference.astype(dtype)


def k3(policy: Floats, reference: Floats, tokens: int) -> Floats:
    """Schulman's estimator, summed over each sequence."""
    x = reference - policy
    result: Floats = (np.exp(x) - x - 1).reshape(-1, tokens).sum(1)
    return result


def full(policy: Floats, reference: Floats, tokens: int) -> Floats:
    """What rlox 1.2.0 documents as token KL: each term weighted with its probability."""
    result: Floats = (np.exp(policy) * (policy - reference)).reshape(-1, tokens).sum(1)
    return result


def close(got: Any, wanted: Floats, loose: bool = False) -> None:
    tolerance = 1e-3 if loose else 1e-7
    got = np.asarray(got, np.float64).reshape(wanted.shape)
    np.testing.assert_allclose(got, wanted, tolerance, tolerance)


def advantages_numpy(groups: int, size: int) -> timeit.Timer:
    return timeit.Timer("f(r, g)", globals={"f": normalised, "r": rewards(groups, size), "g": size})


def advantages_rlox(groups: int, size: int) -> timeit.Timer:
    from rlox import compute_batch_group_advantages as f

    r = rewards(groups, size)
    close(f(r, size), normalised(r, size))
    return timeit.Timer("f(r, g)", globals={"f": f, "r": r, "g": size})


def advantages_torch(groups: int, size: int, threads: int) -> timeit.Timer:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    r = torch.from_numpy(rewards(groups, size))

    def f(r: Any) -> Any:
        rows = r.view(-1, size)
        mean, std = rows.mean(1, keepdim=True), rows.std(1, correction=0, keepdim=True)
        return ((rows - mean) / std).view(-1)

    close(f(r), normalised(r.numpy(), size))
    return timeit.Timer("f(r)", globals={"f": f, "r": r})


FORMULAS = {"k3": k3, "full": full}


def kl_numpy(batch: int, tokens: int, dtype: str, kind: str) -> timeit.Timer:
    policy, reference = log_probs(batch, tokens, dtype)
    names = {"f": FORMULAS[kind], "p": policy, "r": reference, "t": tokens}
    return timeit.Timer("f(p, r, t)", globals=names)


def kl_rlox(batch: int, tokens: int, dtype: str, kind: str, swapped: bool = False) -> timeit.Timer:
    """The calls of the documents; rlox 1.2.0's has the roles swapped in k3."""
    import rlox

    name = f"compute{'_batch' if batch > 1 else ''}_token_kl"
    name += ("_schulman" if kind == "k3" else "") + ("_f32" if dtype == "float32" else "")
    policy, reference = log_probs(batch, tokens, dtype)
    names = {"f": getattr(rlox, name), "p": policy, "r": reference, "t": tokens}
    more = ", t" if batch > 1 else ""
    if kind == "full" and not swapped:
        more += ", estimator='full'"
    wide = [x.astype(np.float64) for x in (policy, reference)]
    if swapped and kind == "k3":
        wide.reverse()
    call = f"f(p, r{more})"
    close(eval(call, names), FORMULAS[kind](*wide, tokens), dtype == "float32")
    return timeit.Timer(call, globals=names)


def kl_torch(batch: int, tokens: int, dtype: str, kind: str, threads: int) -> timeit.Timer:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    arrays = log_probs(batch, tokens, dtype)
    policy, reference = (torch.from_numpy(x).view(batch, tokens) for x in arrays)

    def schulman(p: Any, r: Any) -> Any:
        x = r - p
        return (torch.exp(x) - x - 1).sum(1)

    def weighted(p: Any, r: Any) -> Any:
        return (torch.exp(p) * (p - r)).sum(1)

    names = {"f": schulman if kind == "k3" else weighted, "p": policy, "r": reference}
    wanted = FORMULAS[kind](*(x.astype(np.float64) for x in arrays), tokens)
    close(eval("f(p, r)", names), wanted, dtype == "float32")
    return timeit.Timer("f(p, r)", globals=names)


def torch_subjects(function: str) -> list[Subject]:
    return [
        Subject("torch", function, "torchrl", {"threads": threads}, threads) for threads in (1, 2)
    ]


def rows(quick: bool) -> list[Row]:
    """The documents' sizes."""
    table = []
    for groups, size in [(16, 4), (256, 16), (1024, 32)][: 1 if quick else 3]:
        subjects = [
            Subject("rlox compute_batch_group_advantages", "advantages_rlox"),
            *swept(Subject("rlox 1.2.0", "advantages_rlox", OLD)),
            Subject("NumPy", "advantages_numpy"),
            *torch_subjects("advantages_torch"),
        ]
        params: dict[str, Any] = {"groups": groups, "size": size}
        name = f"GRPO advantages {groups}x{size}"
        table.append(Row(name, params, subjects, groups * size, "rewards"))
    for batch, tokens in [(1, 128), (1, 8192), (32, 2048)][: 1 if quick else 3]:
        for kind, dtype in (("k3", "float32"), ("k3", "float64"), ("full", "float64")):
            subjects = [
                Subject("rlox", "kl_rlox"),
                *swept(Subject("rlox 1.2.0", "kl_rlox", OLD, {"swapped": True})),
                Subject("NumPy", "kl_numpy"),
                *torch_subjects("kl_torch"),
            ]
            params = {"batch": batch, "tokens": tokens, "dtype": dtype, "kind": kind}
            name = f"Token KL {kind} {batch}x{tokens} {dtype}"
            table.append(Row(name, params, subjects, batch * tokens, "tokens"))
    return table


BENCHMARK = Benchmark("bench_llm_ops", "Operations of language-model post-training", rows)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
