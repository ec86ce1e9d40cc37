"""rlox compared with TRL: group advantages, Schulman's KL per token, and packing.

TRL computes advantages and KL in torch inside its GRPO trainer. This benchmark contains copies of
these formulas and the fastest torch forms. They run in TRL's Python environment with 1 and with 2
threads, and are compared with rlox on tensors. rlox on NumPy arrays is also shown. rlox 1.2.0
computes only advantages in float64 without eps. Its time is shown, but not compared.

Packing has two rows. "Planning" decides which sequences share a packed row. TRL has no function for
this part of `_pack_bfd`, so the benchmark implements best fit with TRL's `_SegmentTree`. It uses
Python integers, which are faster than TRL's NumPy scalars. "Packing" is `_pack_bfd` on an Arrow
table, which returns tokens and lengths. rlox's `pack_sequences` also creates positions, masks and a
dict for each packed row. All plans must need the number of rows of best fit decreasing.
"""

from __future__ import annotations

import sys
import timeit
from bisect import bisect_left, insort
from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt
from bench_llm_ops import assert_close, log_probs, rewards
from side_by_side import Benchmark, Row, Subject, run, swept

Floats = npt.NDArray[Any]
EPS = 1e-4
TRL, PUBLISHED = "trl", "rlox-1.2.0"


def expected_advantages(rewards: Floats, size: int) -> Floats:
    rows = rewards.astype(np.float64).reshape(-1, size)
    centred = rows - rows.mean(1, keepdims=True)
    result: Floats = (centred / (rows.std(1, ddof=1, keepdims=True) + EPS)).reshape(-1)
    return result


def advantages_rlox(groups: int, size: int, tensors: bool = False) -> timeit.Timer:
    from rlox import compute_batch_group_advantages as f

    r = rewards(groups, size).astype(np.float32)
    names: dict[str, Any] = {"f": f, "r": r, "g": size, "eps": EPS}
    call = "f(r, g, ddof=1, eps=eps)"
    if tensors:
        import torch

        names.update(r=torch.from_numpy(r), tensor=torch.from_numpy)
        call = "tensor(f(r.numpy(), g, ddof=1, eps=eps))"
    assert_close(eval(call, names), expected_advantages(r, size), loose=True)
    return timeit.Timer(call, globals=names)


def advantages_published(groups: int, size: int) -> timeit.Timer:
    """Time rlox 1.2.0, which has only float64, ddof 0 and no eps."""
    from rlox import compute_batch_group_advantages as f

    return timeit.Timer("f(r, g)", globals={"f": f, "r": rewards(groups, size), "g": size})


def advantages_trl(groups: int, size: int, threads: int, norm: bool = False) -> timeit.Timer:
    """Time TRL's formula, or a faster form: with the norm of centred rewards, as `std` is slow."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    r = torch.from_numpy(rewards(groups, size).astype(np.float32))

    def trl_formula(r: Any) -> Any:
        mean = r.view(-1, size).mean(dim=1).repeat_interleave(size, dim=0)
        std = r.view(-1, size).std(dim=1).repeat_interleave(size, dim=0)
        return (r - mean) / (std + EPS)

    def norm_formula(r: Any) -> Any:
        rows = r.view(-1, size)
        centred = rows - rows.mean(1, keepdim=True)
        std = torch.linalg.vector_norm(centred, dim=1, keepdim=True).mul_((size - 1) ** -0.5)
        return centred.div_(std.add_(EPS)).view(-1)

    f = norm_formula if norm else trl_formula
    assert_close(f(r), expected_advantages(r.numpy(), size), loose=True)
    return timeit.Timer("f(r)", globals={"f": f, "r": r})


def expected_kl(batch: int, tokens: int) -> Floats:
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
    assert_close(f(*arrays), expected_kl(batch, tokens), loose=True)
    return timeit.Timer("f(p, r)", globals={"f": f, "p": arrays[0], "r": arrays[1]})


def kl_trl(batch: int, tokens: int, threads: int, way: str = "TRL") -> timeit.Timer:
    """Time TRL's formula, directly, in place, or compiled."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    policy, reference = (torch.from_numpy(x).view(batch, tokens) for x in log_probs(batch, tokens, "float32"))

    def f(p: Any, r: Any) -> Any:
        return torch.exp(r - p) - (r - p) - 1

    def inplace(p: Any, r: Any) -> Any:
        x = r - p
        return torch.exp(x).sub_(x).sub_(1)

    def expm1(p: Any, r: Any) -> Any:
        x = r - p
        return torch.expm1(x).sub_(x)

    if way == "compile":
        f = torch.compile(f, dynamic=False)
    f = {"in place": inplace, "expm1": expm1}.get(way, f)
    assert_close(f(policy, reference), expected_kl(batch, tokens), loose=True)
    return timeit.Timer("f(p, r)", globals={"f": f, "p": policy, "r": reference})


def documents(count: int, max_length: int) -> list[npt.NDArray[np.uint32]]:
    """Return token sequences of log-normal lengths in separate arrays."""
    rng = np.random.default_rng(42)
    lengths = np.clip(rng.lognormal(4.2, 0.9, count), 1, max_length).astype(int)
    return [rng.integers(0, 50_000, n, dtype=np.uint32) for n in lengths]


def best_fit(sequences: list[Any], max_length: int) -> int:
    """Return the number of rows of best fit decreasing, which does not depend on ties."""
    spaces: list[int] = []
    for length in sorted(map(len, sequences), reverse=True):
        found = bisect_left(spaces, length)
        space = spaces.pop(found) if found < len(spaces) else max_length
        insort(spaces, space - length)
    return len(spaces)


def check_rows(lengths: list[int], sequences: list[Any], max_length: int) -> None:
    if sum(lengths) != sum(map(len, sequences)) or max(lengths) > max_length:
        raise AssertionError("tokens are missing, or a row is too long")
    if len(lengths) != (expected := best_fit(sequences, max_length)):
        raise AssertionError(f"{len(lengths)} rows, not the {expected} of best fit decreasing")


def packing_rlox(count: int, max_length: int) -> timeit.Timer:
    from rlox import pack_sequences as f

    sequences = documents(count, max_length)
    check_rows([len(row["input_ids"]) for row in f(sequences, max_length)], sequences, max_length)
    return timeit.Timer("f(s, n)", globals={"f": f, "s": sequences, "n": max_length})


def planning_rlox(count: int, max_length: int) -> timeit.Timer:
    from rlox import pack_lengths as f

    sequences = documents(count, max_length)
    lengths = np.array([len(sequence) for sequence in sequences])
    indices, starts = f(lengths, max_length)
    sums = np.add.reduceat(lengths[indices], starts[:-1])
    check_rows(sums.tolist(), sequences, max_length)
    return timeit.Timer("f(l, n)", globals={"f": f, "l": lengths, "n": max_length})


def planning_trl(count: int, max_length: int) -> timeit.Timer:
    from trl.data_utils import _SegmentTree as SegmentTree

    sequences = documents(count, max_length)
    lengths = np.array([len(sequence) for sequence in sequences])

    def f(lengths: Floats, max_length: int) -> list[list[int]]:
        permutation = np.argsort(-lengths, kind="stable")
        tree, rows_by_space, rows = SegmentTree(max_length), defaultdict(list), []
        tree.add(max_length)
        for source, length in zip(permutation.tolist(), lengths[permutation].tolist(), strict=True):
            space = tree.search(length)
            if space == max_length:
                row: list[int] = []
                rows.append(row)
            else:
                row = rows_by_space[space].pop()
                if not rows_by_space[space]:
                    tree.remove(space)
            row.append(source)
            space -= length
            if space:
                if not rows_by_space[space]:
                    tree.add(space)
                rows_by_space[space].append(row)
        return rows

    sums = [int(lengths[row].sum()) for row in f(lengths, max_length)]
    check_rows(sums, sequences, max_length)
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


def rlox_subjects(name: str, function: str) -> list[Subject]:
    """Return subjects (`side_by_side.py`) on tensors, as in TRL, and on NumPy arrays."""
    return [
        *swept(Subject(f"rlox {name}, tensors", function, options={"tensors": True})),
        *swept(Subject(f"rlox {name}, arrays", function, work="NumPy arrays")),
    ]


def trl_subjects(function: str, ways: dict[str, dict[str, Any]]) -> list[Subject]:
    return [
        Subject(name, function, TRL, {"threads": threads, **options}, threads)
        for name, options in ways.items()
        for threads in (1, 2)
    ]


def kl_ways(quick: bool) -> dict[str, dict[str, Any]]:
    """Return the forms of KL. Quick runs omit compilation, which takes half a minute per process."""
    ways = {"TRL's torch": "TRL", "torch in place": "in place", "torch expm1": "expm1"}
    if not quick:
        ways["TRL's torch compiled"] = "compile"
    return {name: {"way": way} for name, way in ways.items()}


def packing_rows(count: int) -> list[Row]:
    """Return rows of planning and packing."""
    published = Subject("rlox 1.2.0 pack_sequences", "packing_rlox", PUBLISHED)
    subjects = {
        "Planning": [Subject("rlox pack_lengths", "planning_rlox"), Subject("TRL's segment tree", "planning_trl", TRL)],
        "Packing": [
            Subject("rlox pack_sequences", "packing_rlox"),
            *swept(published),
            Subject("TRL bfd", "packing_trl", TRL),
        ],
    }
    params = {"count": count, "max_length": 2048}
    return [
        Row(f"{name} {count} sequences", params, row_subjects, count, "sequences")
        for name, row_subjects in subjects.items()
    ]


def rows(quick: bool) -> list[Row]:
    """Return rows of the documented sizes and of a data set to pack."""
    table = []
    for groups, size in [(16, 4), (256, 16), (1024, 32)][: 1 if quick else 3]:
        subjects = [
            *rlox_subjects("compute_batch_group_advantages", "advantages_rlox"),
            *swept(Subject("rlox 1.2.0", "advantages_published", PUBLISHED, work="float64, no eps")),
            *trl_subjects("advantages_trl", {"TRL's torch": {}, "torch norm": {"norm": True}}),
        ]
        params: dict[str, Any] = {"groups": groups, "size": size}
        name = f"GRPO advantages {groups}x{size} float32"
        table.append(Row(name, params, subjects, groups * size, "rewards"))
    for batch, tokens in [(1, 128), (1, 8192), (32, 2048)][: 1 if quick else 3]:
        subjects = [*rlox_subjects("token_kl", "kl_rlox"), *trl_subjects("kl_trl", kl_ways(quick))]
        params = {"batch": batch, "tokens": tokens}
        name = f"Schulman KL per token {batch}x{tokens} float32"
        table.append(Row(name, params, subjects, batch * tokens, "tokens"))
    return [*table, *packing_rows(2000 if quick else 100_000)]


BENCHMARK = Benchmark("bench_trl_comparison", "Against TRL", rows)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
