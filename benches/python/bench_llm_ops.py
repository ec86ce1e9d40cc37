"""Operations of language-model post-training: group advantages, token KL, packing.

rlox is compared with NumPy, torch and rlox 1.2.0. All except NumPy run with 1 and with 2 threads.
NumPy and torch compute the formula directly, and in other forms that are fastest at some size.
rlox is compared with the fastest form. Before the clock starts, all results are checked against the
formula in float64. rlox 1.2.0 documents Schulman's estimator (k3) with the two policies swapped, so
its results are checked against that formula. The swap does not change the time.
"""

from __future__ import annotations

import sys
import timeit
from typing import Any

import numpy as np
import numpy.typing as npt
from side_by_side import Benchmark, Row, Subject, run, swept

Floats = npt.NDArray[Any]
PUBLISHED = "rlox-1.2.0"


def rewards(groups: int, size: int) -> Floats:
    return np.random.default_rng(42).random(groups * size)


def normalize(rewards: Floats, size: int) -> Floats:
    """Return group advantages, computed as in many NumPy programs."""
    rows = rewards.reshape(-1, size)
    mean, std = rows.mean(1, keepdims=True), rows.std(1, keepdims=True)
    result: Floats = ((rows - mean) / std).reshape(-1)
    return result


def log_probs(batch: int, tokens: int, dtype: str) -> tuple[Floats, Floats]:
    """Return log-probabilities of a policy and of a close reference, (B * T,)."""
    rng = np.random.default_rng(42)
    policy = -rng.exponential(2.0, batch * tokens)
    reference = policy + rng.normal(0, 0.2, batch * tokens)
    return policy.astype(dtype), reference.astype(dtype)


def k3(policy: Floats, reference: Floats, tokens: int) -> Floats:
    """Return Schulman's estimator, summed over each sequence."""
    x = reference - policy
    result: Floats = (np.exp(x) - x - 1).reshape(-1, tokens).sum(1)
    return result


def weighted_kl(policy: Floats, reference: Floats, tokens: int) -> Floats:
    """Return the token KL that rlox 1.2.0 documents: each term weighted with its probability."""
    result: Floats = (np.exp(policy) * (policy - reference)).reshape(-1, tokens).sum(1)
    return result


def assert_close(got: Any, expected: Floats, loose: bool = False) -> None:
    tolerance = 1e-3 if loose else 1e-7
    got = np.asarray(got, np.float64).reshape(expected.shape)
    np.testing.assert_allclose(got, expected, tolerance, tolerance)


def normalize_by_products(rewards: Floats, size: int) -> Floats:
    """Return group advantages, with means and variances as products, and the rest in place."""
    rows = rewards.reshape(-1, size)
    centred = rows - (rows @ np.full(size, 1 / size))[:, None]
    scale = np.vecdot(centred, centred)
    scale /= size
    np.sqrt(scale, scale)
    centred *= np.divide(1, scale, scale)[:, None]
    result: Floats = centred.reshape(-1)
    return result


def advantages_numpy(groups: int, size: int, products: bool = False) -> timeit.Timer:
    f, r = normalize_by_products if products else normalize, rewards(groups, size)
    assert_close(f(r, size), normalize(r, size))
    return timeit.Timer("f(r, g)", globals={"f": f, "r": r, "g": size})


def advantages_rlox(groups: int, size: int) -> timeit.Timer:
    from rlox import compute_batch_group_advantages as f

    r = rewards(groups, size)
    assert_close(f(r, size), normalize(r, size))
    return timeit.Timer("f(r, g)", globals={"f": f, "r": r, "g": size})


def advantages_torch(groups: int, size: int, threads: int, way: str = "formula") -> timeit.Timer:
    """Time torch. `std` over rows is slow, so that two faster forms are measured as well."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    r = torch.from_numpy(rewards(groups, size))

    def formula(r: Any) -> Any:
        rows = r.view(-1, size)
        std, mean = torch.std_mean(rows, 1, correction=0, keepdim=True)
        return (rows - mean).div_(std).view(-1)

    def norm(r: Any) -> Any:
        rows = r.view(-1, size)
        centred = rows - rows.mean(1, keepdim=True)
        std = torch.linalg.vector_norm(centred, dim=1, keepdim=True).mul_(size**-0.5)
        return centred.div_(std).view(-1)

    def layer(r: Any) -> Any:
        return torch.native_layer_norm(r.view(-1, size), (size,), None, None, 0.0)[0].view(-1)

    f = {"formula": formula, "norm": norm, "layer": layer}[way]
    assert_close(f(r), normalize(r.numpy(), size))
    return timeit.Timer("f(r)", globals={"f": f, "r": r})


def k3_inplace(policy: Floats, reference: Floats, tokens: int) -> Floats:
    x = reference - policy
    e = np.exp(x)
    e -= x
    e -= 1
    result: Floats = e.reshape(-1, tokens).sum(1)
    return result


def k3_expm1(policy: Floats, reference: Floats, tokens: int) -> Floats:
    x = reference - policy
    e = np.expm1(x)
    e -= x
    result: Floats = e.reshape(-1, tokens).sum(1)
    return result


def full_product(policy: Floats, reference: Floats, tokens: int) -> Floats:
    p, x = np.exp(policy), policy - reference
    result: Floats = np.vecdot(p.reshape(-1, tokens), x.reshape(-1, tokens))
    return result


FORMULAS = {"k3": k3, "full": weighted_kl}
NUMPY = {
    "k3": {"NumPy": k3, "NumPy in place": k3_inplace, "NumPy expm1": k3_expm1},
    "full": {"NumPy": weighted_kl, "NumPy vecdot": full_product},
}


def kl_numpy(batch: int, tokens: int, dtype: str, kind: str, way: str) -> timeit.Timer:
    policy, reference = log_probs(batch, tokens, dtype)
    names = {"f": NUMPY[kind][way], "p": policy, "r": reference, "t": tokens}
    expected = FORMULAS[kind](*(x.astype(np.float64) for x in (policy, reference)), tokens)
    assert_close(eval("f(p, r, t)", names), expected, dtype == "float32")
    return timeit.Timer("f(p, r, t)", globals=names)


def kl_rlox(batch: int, tokens: int, dtype: str, kind: str, swapped: bool = False) -> timeit.Timer:
    """Time the documented calls. `swapped` is for rlox 1.2.0, which swaps the policies in k3."""
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
    assert_close(eval(call, names), FORMULAS[kind](*wide, tokens), dtype == "float32")
    return timeit.Timer(call, globals=names)


def kl_torch(batch: int, tokens: int, dtype: str, kind: str, threads: int, way: str = "formula") -> timeit.Timer:
    """Time the formula: directly, compiled, in place or with `expm1`."""
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

    def schulman_inplace(p: Any, r: Any) -> Any:
        x = r - p
        return torch.exp(x).sub_(x).sub_(1).sum(1)

    def schulman_expm1(p: Any, r: Any) -> Any:
        x = r - p
        return torch.expm1(x).sub_(x).sum(1)

    def weighted_inplace(p: Any, r: Any) -> Any:
        return torch.exp(p).mul_(p - r).sum(1)

    formula = schulman if kind == "k3" else weighted
    ways = {
        "formula": formula,
        "in place": schulman_inplace if kind == "k3" else weighted_inplace,
        "expm1": schulman_expm1,
    }
    f = torch.compile(formula, dynamic=False) if way == "compile" else ways[way]
    names = {"f": f, "p": policy, "r": reference}
    expected = FORMULAS[kind](*(x.astype(np.float64) for x in arrays), tokens)
    assert_close(eval("f(p, r)", names), expected, dtype == "float32")
    return timeit.Timer("f(p, r)", globals=names)


def torch_subjects(function: str, ways: dict[str, str]) -> list[Subject]:
    return [
        Subject(name, function, "torchrl", {"threads": threads, "way": way}, threads)
        for way, name in ways.items()
        for threads in (1, 2)
    ]


ADVANTAGES = {"formula": "torch std_mean", "norm": "torch norm", "layer": "torch layer_norm"}


def kl_peers(kind: str, quick: bool) -> list[Subject]:
    """Return subjects (`side_by_side.py`) for the forms of NumPy and torch.

    Quick runs omit compilation, which takes half a minute in each process.
    """
    ways = {"formula": "torch", "in place": "torch in place"}
    if kind == "k3":
        ways["expm1"] = "torch expm1"
    if not quick:
        ways["compile"] = "torch compiled"
    numpy = [Subject(way, "kl_numpy", options={"way": way}, rival=True) for way in NUMPY[kind]]
    return [*numpy, *torch_subjects("kl_torch", ways)]


def rows(quick: bool) -> list[Row]:
    """Return rows of the documented sizes."""
    table = []
    for groups, size in [(16, 4), (256, 16), (1024, 32)][: 1 if quick else 3]:
        subjects = [
            Subject("rlox compute_batch_group_advantages", "advantages_rlox"),
            *swept(Subject("rlox 1.2.0", "advantages_rlox", PUBLISHED)),
            Subject("NumPy", "advantages_numpy", rival=True),
            Subject("NumPy products", "advantages_numpy", options={"products": True}, rival=True),
            *torch_subjects("advantages_torch", ADVANTAGES),
        ]
        params: dict[str, Any] = {"groups": groups, "size": size}
        name = f"GRPO advantages {groups}x{size}"
        table.append(Row(name, params, subjects, groups * size, "rewards"))
    for batch, tokens in [(1, 128), (1, 8192), (32, 2048)][: 1 if quick else 3]:
        for kind, dtype in (("k3", "float32"), ("k3", "float64"), ("full", "float64")):
            subjects = [
                *swept(Subject("rlox", "kl_rlox")),
                *swept(Subject("rlox 1.2.0", "kl_rlox", PUBLISHED, {"swapped": True})),
                *kl_peers(kind, quick),
            ]
            params = {"batch": batch, "tokens": tokens, "dtype": dtype, "kind": kind}
            name = f"Token KL {kind} {batch}x{tokens} {dtype}"
            table.append(Row(name, params, subjects, batch * tokens, "tokens"))
    return table


BENCHMARK = Benchmark("bench_llm_ops", "Operations of language-model post-training", rows)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
