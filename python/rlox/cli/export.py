"""`rlox export RUN`: a trained policy as a file for other programs."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rlox import exporting
from rlox.cli.mistakes import UsageError
from rlox.cli.output import say, say_json
from rlox.cli.saved import refuse_above
from rlox.cli.usage import POSITIONAL, named, parse
from rlox.files import write_file
from rlox.loading import Policy, load

# By the ends of files' names.
_ENDS = {".pt": "torch", ".pth": "torch", ".safetensors": "safetensors", ".onnx": "onnx"}


@dataclass
class Export:
    """Write a trained policy as a file for other programs; numbers alone, no code."""

    run: Annotated[str, POSITIONAL, named("RUN")]
    """Run folder, or a checkpoint."""
    out: Annotated[str, named("FILE")]
    """the file to write; one there is replaced"""
    format: Literal["torch", "safetensors", "onnx"] | None = None  # None: by the end of --out
    json: bool = False  # print what was written as JSON


def run(words: Sequence[str]) -> int:
    """Writes it, and tells where."""
    asked = parse(Export, "export", words)
    kind = asked.format or _ENDS.get(Path(asked.out).suffix)
    if kind is None:
        raise UsageError(
            f"--format: expected torch, safetensors or onnx, as {asked.out!r} ends with none of "
            f"{', '.join(_ENDS)}, got none; add --format onnx"
        )
    if _ENDS.get(Path(asked.out).suffix, kind) != kind:
        raise UsageError(
            f"--out: expected a name that does not end as other formats do, got {asked.out!r} for "
            f"{kind}; leave --format out, or pass another name"
        )
    parent = Path(asked.out).absolute().parent
    if not parent.is_dir() or Path(asked.out).is_dir():
        got = f"{asked.out!r}, a folder" if parent.is_dir() else f"one in {parent}, which is none"
        raise UsageError(f"--out: expected a file in a folder, got {got}; pass another path")
    refuse_above(Path(asked.run))
    policy = load(asked.run)
    write = {"torch": _write_torch, "onnx": exporting.save_onnx}.get(kind, _write_safetensors)
    write(policy, asked.out)
    size = Path(asked.out).stat().st_size
    if asked.json:
        say_json({"file": asked.out, "format": kind, "bytes": size})
    else:
        say(f"{policy.algorithm} {policy.env} as {kind}, {size:,} bytes, in {asked.out}")
    return 0


def _write_torch(policy: Policy, path: str) -> None:
    """What `torch.load(path, weights_only=True)` reads."""
    tensors = exporting.state_dict(policy)
    import torch

    data = io.BytesIO()
    torch.save(tensors, data)
    write_file(Path(path), data.getvalue())


def _write_safetensors(policy: Policy, path: str) -> None:
    exporting.save_safetensors(policy, path)
