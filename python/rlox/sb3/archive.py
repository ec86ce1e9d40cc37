"""What Stable-Baselines3 saves, read without running anything of it: zips and statistics."""

import io
import json
import os
import re
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError
from rlox.backends import expect_torch
from rlox.memory import check_memory
from rlox.sb3.inert import Inert, array, read_pickle

Arrays = dict[str, npt.NDArray[np.float32]]
# How their JSON holds what JSON cannot: as a pickle, which is left alone.
_PICKLED = ":serialized:"
_NUMBER = r"([-+.\deE]+)"
_CONSTANT = re.compile(rf"(?:ConstantSchedule\(val=)?{_NUMBER}\)?")
_LINEAR = re.compile(rf"LinearSchedule\(start={_NUMBER}, end={_NUMBER}, end_fraction={_NUMBER}\)")


@dataclass(frozen=True)
class Archive:
    """What a zip of theirs says, as far as that is plain."""

    data: dict[str, Any]
    """Settings that JSON holds, and of others the texts about them."""
    weights: Arrays
    """Of the policy, by their names."""
    variables: Arrays
    """Other tensors, such as the logarithm of SAC's temperature."""

    def plain(self, name: str) -> bool:
        """Whether a setting is there as itself."""
        value = self.data.get(name)
        return name in self.data and not (isinstance(value, dict) and _PICKLED in value)

    def about(self, name: str) -> dict[str, Any]:
        """The texts about what is not plain, or a plain dict."""
        value = self.data.get(name)
        return value if isinstance(value, dict) else {}


def read_archive(path: str | os.PathLike[str]) -> Archive:
    """Reads a zip that `model.save` of Stable-Baselines3 wrote.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is no such zip, or damaged; the member is named.
        ModuleNotFoundError: PyTorch, which reads the tensors, is not installed.
        RuntimeError: It is older than 2.6, whose reader could be made to run code.
        MemoryError: It does not fit into memory.
    """
    expect_torch("the weights of such a zip are torch's")
    _expect_safe_reader()
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"path: expected a zip of Stable-Baselines3's, {file} is none; pass where one is"
        )
    try:
        with zipfile.ZipFile(file) as opened:
            data = json.loads(_member(opened, file, "data"))
            if not isinstance(data, dict):
                raise _not_theirs(file, "data", f"{type(data).__name__} rather than a dict")
            weights = _tensors(_member(opened, file, "policy.pth"), file, "policy.pth")
            others = "pytorch_variables.pth"
            there = others in opened.namelist()
            variables = _tensors(_member(opened, file, others), file, others) if there else {}
    except (zipfile.BadZipFile, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _not_theirs(file, "data", f"{type(error).__name__}: {error}") from error
    return Archive(data, weights, variables)


def _expect_safe_reader() -> None:
    """Refuses torch before 2.6: see its CVE-2025-32434.

    Raises:
        RuntimeError: It is older.
    """
    import torch

    version = str(torch.__version__)
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < (2, 6):
        raise RuntimeError(
            f"torch: expected 2.6 or newer, as its reader of tensors could be made to run code "
            f"before, got {version}; pip install --upgrade torch"
        )


def _member(opened: zipfile.ZipFile, file: Path, name: str) -> bytes:
    try:
        about = opened.getinfo(name)
    except KeyError as error:
        raise _not_theirs(file, name, "no such member") from error
    check_memory("path", f"{name} of {about.file_size:,} bytes", 3 * about.file_size)
    try:
        return opened.read(name)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError) as error:
        raise _not_theirs(file, name, f"{type(error).__name__}: {error}") from error
    except Exception as error:  # of the libraries that decompress
        raise _not_theirs(file, name, f"{type(error).__name__}: {error}") from error


def _tensors(data: bytes, file: Path, name: str) -> Arrays:
    """Float tensors by name, read by torch's reader that only knows tensors."""
    import torch

    try:
        said = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes torch raise
        shown = str(error).partition("\n")[0]
        raise _not_theirs(file, name, f"{type(error).__name__}: {shown}") from error
    told: Arrays = {}
    for key, tensor in (said or {}).items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            raise _not_theirs(file, name, f"{type(tensor).__name__} as {key!r}")
        told[str(key)] = np.ascontiguousarray(tensor.detach().float().numpy())
        if not np.isfinite(told[str(key)]).all():
            raise _not_theirs(file, name, f"numbers in {key!r} that are not finite")
    return told


def said_schedule(archive: Archive, name: str) -> tuple[float, bool] | None:
    """The number that a schedule begins with, and whether it falls linearly to 0; None if unsaid.

    Args:
        archive: Has it as itself, or a text about it.
        name: "clip_range", "learning_rate" or "lr_schedule".
    """
    value = archive.data.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), False
    text = str(archive.about(name).get("value_schedule", ""))
    with suppress(ValueError):  # of what only looks like a number
        if found := _CONSTANT.fullmatch(text):
            return float(found[1]), False
        if (found := _LINEAR.fullmatch(text)) and (float(found[2]), float(found[3])) == (0, 1):
            return float(found[1]), True
    return None


def read_statistics(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a `VecNormalize` saved: settings, and statistics as arrays.

    Returns:
        "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon", and "obs" and
        "return", each a dict with "mean", "var" and "count".

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is something else, or of a Dict of observations.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"vecnormalize: expected a file, {file} is none; pass what VecNormalize.save wrote"
        )
    saved = read_pickle(file.read_bytes())
    state = getattr(saved, "state", None)
    if not isinstance(saved, Inert) or not saved.named.endswith(".VecNormalize"):
        raise _not_theirs(file, "VecNormalize", "something else")
    if not isinstance(state, dict):
        raise _not_theirs(file, "VecNormalize", "no settings")
    told: dict[str, Any] = {}
    for name, kind in (("norm_obs", bool), ("norm_reward", bool)):
        if not isinstance(state.get(name), kind):
            raise _not_theirs(file, name, repr(state.get(name))[:80])
        told[name] = state[name]
    for name in ("clip_obs", "clip_reward", "gamma", "epsilon"):
        numbers = array(state.get(name))
        if numbers.shape != ():
            raise _not_theirs(file, name, f"numbers of shape {numbers.shape}")
        told[name] = float(numbers)
    for ours, theirs in (("obs", "obs_rms"), ("return", "ret_rms")):
        about = getattr(state.get(theirs), "state", None)
        if about is None and not told["norm_obs"] and ours == "obs":
            continue
        if not isinstance(about, dict):
            raise _not_theirs(file, theirs, "statistics of several parts, or none")
        told[ours] = {name: array(about.get(name)) for name in ("mean", "var", "count")}
    return told


def _not_theirs(file: Path, what: str, got: str) -> ValueError:
    return ArgumentError(
        f"{file}, {what}",
        "what Stable-Baselines3 wrote",
        str(got),
        "the file is damaged or something else, use another copy",
    )
