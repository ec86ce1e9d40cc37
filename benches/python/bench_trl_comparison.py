"""rlox against TRL: group advantages, Schulman's KL per token, packing.

TRL writes the first two in torch within its GRPO trainer; here they stand as it writes them, and
run in TRL's environment on 1 and 2 threads. Packing calls TRL's own function on an Arrow table.
TRL returns packed tokens and lengths; `pack_sequences` besides makes positions, masks and a dict
for each row, and `pack_lengths` only decides who shares a row, which TRL offers no call for.
"""

from __future__ import annotations

import sys
import timeit
from typing import Any

import numpy as np
import numpy.typing as npt
from bench_llm_ops import close, log_probs, rewards
from side_by_side import Benchmark, Row, Subject, run, swept

Floats = npt.NDArray[Any]
EPS = 1e-4
TRL, OLD = "trl", "rlox-1.2.0"


def wanted_advantages(rewards: Floats, size: int) -> Floats:
    rows = rewards.astype(np.float64).reshape(-1, size)
    centred = rows - rows.mean(1, keepdims=True)
    result: Floats = (centred / (rows.std(1, ddof=1, keepdims=True) + EPS)).reshape(-1)
    return result


def advantages_rlox(groups: int, size: int) -> timeit.Timer:
    from rlox import compute_batch_group_advantages as f

    r = rewards(groups, size).astype(np.float32)
    names = {"f": f, "r": r, "g": size, "eps": EPS}
    close(eval("f(r, g, ddof=1, eps=eps)", names), wanted_advantages(r, size), loose=True)
    return timeit.Timer("f(r, g, ddof=1, eps=eps)", globals=names)


def advantages_old(groups: int, size: int) -> timeit.Timer:
    """rlox 1.2.0 has float64, ddof 0 and no eps only."""
    from rlox import compute_batch_group_advantages as f

    return timeit.Timer("f(r, g)", globals={"f": f, "r": rewards(groups, size), "g": size})


def advantages_trl(groups: int, size: int, threads: int) -> timeit.Timer:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    r = torch.from_numpy(rewards(groups, size).astype(np.float32))

    def f(r: Any) -> Any:
        mean = r.view(-1, size).mean(dim=1).repeat_interleave(size, dim=0)
        std = r.view(-1, size).std(dim=1).repeat_interleave(size, dim=0)
        return (r - mean) / (std + EPS)

    close(f(r), wanted_advantages(r.numpy(), size), loose=True)
    return timeit.Timer("f(r)", globals={"f": f, "r": r})


def wanted_kl(batch: int, tokens: int) -> Floats:
    policy, reference = (x.astype(np.float64) for x in log_probs(batch, tokens, "float32"))
    x = reference - policy
    result: Floats = np.expm1(x) - x
    return result


def kl_rlox(batch: int, tokens: int, tensors: bool = False) -> timeit.Timer:
    from rlox import token_kl as f

    arrays: list[Any] = [x.reshape(batch, tokens) for x in log_probs(batch, tokens, "float32")]
    if tensors:
        import torch

        arrays = [torch.from_numpy(x) for x in arrays]
    close(f(*arrays), wanted_kl(batch, tokens), loose=True)
    return timeit.Timer("f(p, r)", globals={"f": f, "p": arrays[0], "r": arrays[1]})


def kl_trl(batch: int, tokens: int, threads: int) -> timeit.Timer:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    policy, reference = (
        torch.from_numpy(x).view(batch, tokens) for x in log_probs(batch, tokens, "float32")
    )

    def f(p: Any, r: Any) -> Any:
        return torch.exp(r - p) - (r - p) - 1

    close(f(policy, reference), wanted_kl(batch, tokens), loose=True)
    return timeit.Timer("f(p, r)", globals={"f": f, "p": policy, "r": reference})


def documents(count: int, max_length: int) -> list[npt.NDArray[np.uint32]]:
    """Token sequences of log-normal lengths, each its own array."""
    rng = np.random.default_rng(42)
    lengths = np.clip(rng.lognormal(4.2, 0.9, count), 1, max_length).astype(int)
    return [rng.integers(0, 50_000, n, dtype=np.uint32) for n in lengths]


def check_rows(lengths: list[int], sequences: list[Any], max_length: int) -> None:
    total = sum(map(len, sequences))
    if sum(lengths) != total or max(lengths) > max_length:
        raise AssertionError("tokens were lost, or a row is too long")
    if len(lengths) > 1.01 * total / max_length + 1:
        raise AssertionError(f"{len(lengths)} rows are more than best fit needs")


def packing_rlox(count: int, max_length: int) -> timeit.Timer:
    from rlox import pack_sequences as f

    sequences = documents(count, max_length)
    check_rows([len(row["input_ids"]) for row in f(sequences, max_length)], sequences, max_length)
    return timeit.Timer("f(s, n)", globals={"f": f, "s": sequences, "n": max_length})


def planning_rlox(count: int, max_length: int) -> timeit.Timer:
    from rlox import pack_lengths as f

    sequences = documents(count, max_length)
    lengths = np.array([len(sequence) for sequence in sequences])
    sources, starts = f(lengths, max_length)
    sums = np.add.reduceat(lengths[sources], starts[:-1])
    check_rows(sums.tolist(), sequences, max_length)
    return timeit.Timer("f(l, n)", globals={"f": f, "l": lengths, "n": max_length})


def packing_trl(count: int, max_length: int) -> timeit.Timer:
    import pyarrow
    from trl.data_utils import _pack_bfd as f

    sequences = documents(count, max_length)
    offsets = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    column = pyarrow.ListArray.from_arrays(offsets, np.concatenate(sequences))
    table = pyarrow.table({"input_ids": column})
    lengths = [len(row) for row in f(table, max_length)["input_ids"]]
    check_rows(lengths, sequences, max_length)
    return timeit.Timer("f(t, n)", globals={"f": f, "t": table, "n": max_length})


def trl_subjects(function: str) -> list[Subject]:
    return [
        Subject("TRL's torch", function, TRL, {"threads": threads}, threads) for threads in (1, 2)
    ]


def rows(quick: bool) -> list[Row]:
    """The documents' sizes, and a data set to pack."""
    table = []
    for groups, size in [(16, 4), (256, 16), (1024, 32)][: 1 if quick else 3]:
        subjects = [
            Subject("rlox compute_batch_group_advantages", "advantages_rlox"),
            *swept(Subject("rlox 1.2.0, float64", "advantages_old", OLD)),
            *trl_subjects("advantages_trl"),
        ]
        params: dict[str, Any] = {"groups": groups, "size": size}
        name = f"GRPO advantages {groups}x{size} float32"
        table.append(Row(name, params, subjects, groups * size, "rewards"))
    for batch, tokens in [(1, 128), (1, 8192), (32, 2048)][: 1 if quick else 3]:
        subjects = [
            Subject("rlox token_kl", "kl_rlox"),
            Subject("rlox token_kl, tensors", "kl_rlox", options={"tensors": True}),
            *trl_subjects("kl_trl"),
        ]
        params = {"batch": batch, "tokens": tokens}
        name = f"Schulman KL per token {batch}x{tokens} float32"
        table.append(Row(name, params, subjects, batch * tokens, "tokens"))
    count = 2000 if quick else 100_000
    subjects = [
        Subject("rlox pack_sequences", "packing_rlox"),
        Subject("rlox pack_lengths, who goes where", "planning_rlox"),
        *swept(Subject("rlox 1.2.0 pack_sequences", "packing_rlox", OLD)),
        Subject("TRL bfd", "packing_trl", TRL),
    ]
    params = {"count": count, "max_length": 2048}
    table.append(Row(f"Packing {count} sequences", params, subjects, count, "sequences"))
    return table


BENCHMARK = Benchmark("bench_trl_comparison", "Against TRL", rows)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
