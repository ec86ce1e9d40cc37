"""What torch keeps outside of us, and what its modules keep, as arrays."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rlox._errors import ArgumentError, ArgumentTypeError, one_line
from rlox._layout import Layout
from rlox._nn.networks import ACTIVATIONS
from rlox._types import Arrays
from rlox._validation import short_repr


def zeros(space: gym.Space[Any], n: int, device: torch.device) -> Any:
    """`n` observations of zeros, as a policy gets them."""
    layout = Layout(space)
    rows = torch.from_numpy(np.zeros((n, *layout.shape), layout.dtype))
    return layout.unpack(rows.to(device), torch_dtype)


def torch_dtype(dtype: "np.dtype[Any]") -> torch.dtype:
    """Torch's name for a dtype of NumPy.

    Raises:
        TypeError: It has none.

    >>> torch_dtype(np.dtype(np.uint8))
    torch.uint8
    """
    kind = getattr(torch, str(getattr(dtype, "name", "")), None)
    if isinstance(kind, torch.dtype):
        return kind
    raise ArgumentTypeError(
        "dtype", "one that torch has, too", short_repr(dtype), "convert it first"
    )


# torch's global generators and number of threads are the process's: one thread at a time has them.
_LOCK = threading.RLock()
# What was there before, and what those within `limit_threads` asked for, the last one at the end.
_THREADS: list[int] = []
# Whether this process was forked from one in which torch may have had threads.
_CHILD = False


def _forget() -> None:
    """In a forked child, those that held the lock are not there any more."""
    global _LOCK, _CHILD
    _LOCK, _CHILD = threading.RLock(), True
    _THREADS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@contextmanager
def reseeded(generator: torch.Generator, seed: int) -> Iterator[None]:
    """Within it a generator draws from a seed; what drew from it before goes on from where it was.

    >>> generator = torch.Generator().manual_seed(1)
    >>> with reseeded(generator, 2):
    ...     drawn = torch.rand(1, generator=generator)
    >>> generator.initial_seed()
    1
    """
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)


@contextmanager
def isolate_rng(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Within it, torch's global generators are ours; they are put back after.

    Args:
        seed: For the generators of the CPU and of a CUDA or MPS `device`.
        device: Where the network lives.

    >>> before = torch.get_rng_state()
    >>> with isolate_rng(seed=1):
    ...     first = torch.rand(1)
    >>> with isolate_rng(seed=1):
    ...     bool(first == torch.rand(1))
    True
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    device_type = "cpu" if device is None else device.type
    with _LOCK, _forked(device_type, device):
        torch.default_generator.manual_seed(seed)
        if device_type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif device_type == "mps":
            torch.mps.manual_seed(seed)
        yield


@contextmanager
def _forked(device_type: str, device: torch.device | None) -> Iterator[None]:
    """Puts the generators back after."""
    mps = (
        torch.mps.get_rng_state() if device_type == "mps" else None
    )  # which fork_rng does not know
    with torch.random.fork_rng([device] if device_type == "cuda" else []):
        try:
            yield
        finally:
            if mps is not None:
                torch.mps.set_rng_state(mps)


@contextmanager
def limit_threads(threads: int | None) -> Iterator[None]:
    """Within it, torch computes on so many threads; None leaves them as they are.

    In a forked child it is always one: torch would wait for ever for threads that only its parent
    has. Where several threads are within, the last one to leave puts back what was before.

    >>> with limit_threads(1):
    ...     torch.get_num_threads()
    1
    """
    with _LOCK:
        before = torch.get_num_threads()
        if not _THREADS:
            _THREADS.append(before)
        wanted = 1 if _CHILD else threads or before
        _THREADS.append(wanted)
        torch.set_num_threads(wanted)
    try:
        yield
    finally:
        with _LOCK:
            del _THREADS[len(_THREADS) - 1 - _THREADS[::-1].index(wanted)]
            torch.set_num_threads(_THREADS[-1])
            if len(_THREADS) == 1:
                _THREADS.clear()


@contextmanager
def isolate_torch(seed: int | None, device: torch.device, threads: int | None) -> Iterator[None]:
    """`limit_threads`, and `isolate_rng` unless the seed is None."""
    with limit_threads(threads), nullcontext() if seed is None else isolate_rng(seed, device):
        yield


@contextmanager
def initialising(seed: int | None, device: torch.device) -> Iterator[None]:
    """Isolate torch on one thread, because orthogonal matrices depend on the number of threads."""
    with (
        _LOCK,
        isolate_torch(seed, device, 1),
    ):  # the lock, so that nobody changes the number meanwhile
        yield


@contextmanager
def evaluating(module: nn.Module, threads: int | None = None) -> Iterator[None]:
    """Within it, layers such as dropout and batch normalisation do as in evaluation.

    Torch computes on so many threads meanwhile; None leaves them as they are.

    >>> layer = nn.Dropout()
    >>> with evaluating(layer):
    ...     layer.training
    False
    >>> layer.training
    True
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with limit_threads(threads):
            yield
    finally:
        for part, training in modes:
            part.training = training


def find_device(name: str) -> torch.device:
    """The device of this name, if torch can use it.

    Raises:
        ValueError: It cannot.

    >>> find_device("cpu")
    device(type='cpu')
    """
    try:
        device = torch.device(name)
        # Reading back refuses "meta", which computes nothing; not every device has generators.
        torch.zeros(1, device=device).item()
        torch.Generator(device)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        expected, got = "one that torch can use here", f"{name!r} ({one_line(error)})"
        raise ArgumentError("device", expected, got, "pass another, such as 'cpu'") from error
    return device


def best_threads(module: nn.Module, device: torch.device) -> int | None:
    """How many threads a module is fastest on; None for as many as torch has.

    On a small one's work, the others would only wait for each other.
    """
    small = sum(parameter.numel() for parameter in module.parameters()) < 50_000
    return 1 if small and device.type == "cpu" else None


def attach_generator(module: Any, generator: torch.Generator) -> Any:
    """Moves a module to the generator's device; it and its parts draw from there, if they can.

    Those can that have an attribute `generator`, which is a `torch.Generator` or None.
    """
    for part in module.modules():
        if isinstance(getattr(part, "generator", module), torch.Generator | None):
            part.generator = generator
    return module.to(generator.device)


def module_arrays(module: nn.Module) -> Arrays:
    """Copies of a module's parameters and buffers, by name."""
    return {name: _copy(tensor) for name, tensor in module.state_dict().items()}


def real_arrays(module: Any) -> Arrays:
    """Copies of the tensors in a `state_dict` as float32.

    Raises:
        TypeError: Something else is in it, or it is something else.

    >>> real_arrays(nn.Linear(1, 2, dtype=torch.bfloat16))["weight"].dtype
    dtype('float32')
    """
    tensors = module.state_dict()
    named = tensors.items() if isinstance(tensors, Mapping) else [("state_dict()", tensors)]
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor) or tensor.is_complex() or tensor.is_meta:
            raise ArgumentTypeError(
                "module",
                "real tensors with numbers in its state_dict",
                f"{tensor!r:.60} as {name}",
                "pass a module that to_torch made, or of the same shape",
            )
    return {name: tensor.float().numpy(force=True) for name, tensor in named}


def activations(module: Any) -> set[str]:
    """The names of those activations that are parts of a module.

    >>> activations(nn.Sequential(nn.Linear(1, 1), nn.Tanh()))
    {'tanh'}
    """
    parts = [*module.modules()] if isinstance(module, nn.Module) else []
    return {name for name, kind in ACTIVATIONS.items() if any(type(part) is kind for part in parts)}


def module_tensors(module: nn.Module, arrays: Arrays) -> dict[str, torch.Tensor]:
    """What `module.load_state_dict` takes, from what `module_arrays` gave.

    Raises:
        ValueError: Names, shapes or dtypes are not the module's.
    """
    expected = {name: (a.shape, a.dtype) for name, a in module_arrays(module).items()}
    got = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    for name in sorted({*expected, *got}):
        if expected.get(name) != got.get(name):
            wanted, actual = (_describe_array(spec.get(name)) for spec in (expected, got))
            raise ArgumentError(
                "networks",
                f"what a {type(module).__name__} of this shape saved, with {wanted} as {name}",
                str(actual),
                "make the same policy",
            )
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _describe_array(spec: tuple[tuple[int, ...], np.dtype[Any]] | None) -> str:
    return "nothing" if spec is None else f"{spec[1]} {spec[0]}"


def _copy(tensor: torch.Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    return np.array(tensor.detach().cpu().numpy())
