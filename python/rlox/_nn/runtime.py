"""Global state of torch (generators, threads, devices) and module tensors as arrays."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rlox._errors import ArgumentError, ArgumentTypeError, one_line
from rlox._layout import Layout
from rlox._nn.networks import ACTIVATIONS
from rlox._types import Arrays
from rlox._validation import short_repr

# Observations that policies accept: dicts for Dict spaces, tuples for Tuple spaces, else tensors.
TensorObs: TypeAlias = torch.Tensor | dict[str, "TensorObs"] | tuple["TensorObs", ...]


def zeros(space: gym.Space[Any], module: nn.Module) -> TensorObs:
    """Return two observations of zeros in the form that policies accept, on the device of a module."""
    layout = Layout(space)
    device = next((parameter.device for parameter in module.parameters()), None)
    rows = torch.zeros((2, *layout.shape), dtype=torch_dtype(layout.dtype), device=device)
    obs: TensorObs = layout.unpack(rows, torch_dtype)
    return obs


def torch_dtype(dtype: "np.dtype[Any]") -> torch.dtype:
    """Return the torch dtype of a NumPy dtype.

    Raises:
        ArgumentTypeError: torch has no such dtype.

    >>> torch_dtype(np.dtype(np.uint8))
    torch.uint8
    """
    kind = getattr(torch, str(getattr(dtype, "name", "")), None)
    if isinstance(kind, torch.dtype):
        return kind
    raise ArgumentTypeError("dtype", "a dtype that torch supports", short_repr(dtype), "convert the array first")


# Protects torch's global generators and number of threads, which belong to the process.
_LOCK = threading.RLock()
# torch's original number of threads, then the number of each active `limit_threads`, in order.
_THREADS: list[int] = []
# True in a forked process, where the parent's torch threads are missing.
_CHILD = False


def _forget() -> None:
    """Reset the lock in a forked child, where no thread can release it."""
    global _LOCK, _CHILD
    _LOCK, _CHILD = threading.RLock(), True
    _THREADS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@contextmanager
def reseeded(generator: torch.Generator, seed: int) -> Iterator[None]:
    """Seed a generator for a `with` block, then restore its state.

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
    """Seed torch's global generators for a `with` block, then restore their states.

    Args:
        seed: Seed of the CPU generator and of the generator of a CUDA or MPS `device`.
        device: Device of the network; None: CPU only.

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
    with _LOCK, torch.random.fork_rng([device] if device_type == "cuda" else []):
        # `fork_rng` does not support MPS.
        mps_state = torch.mps.get_rng_state() if device_type == "mps" else None
        torch.default_generator.manual_seed(seed)
        if device_type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif device_type == "mps":
            torch.mps.manual_seed(seed)
        try:
            yield
        finally:
            if mps_state is not None:
                torch.mps.set_rng_state(mps_state)


@contextmanager
def limit_threads(threads: int | None) -> Iterator[None]:
    """Set torch's number of threads for a `with` block; None does not change the number.

    A forked child always has one thread, because torch would wait forever for threads of the
    parent. If several Python threads are in such blocks, the last to exit restores the number.

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
    """Enter `limit_threads`, and `isolate_rng` unless the seed is None."""
    with limit_threads(threads), nullcontext() if seed is None else isolate_rng(seed, device):
        yield


@contextmanager
def initialising(seed: int | None, device: torch.device) -> Iterator[None]:
    """Enter `isolate_torch` with one thread: orthogonal matrices depend on the number of threads."""
    # The lock prevents other Python threads from changing the number of threads.
    with _LOCK, isolate_torch(seed, device, 1):
        yield


@contextmanager
def evaluating(module: nn.Module, threads: int | None = None) -> Iterator[None]:
    """Set a module to evaluation mode for a `with` block, with `limit_threads(threads)`.

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
    """Return the device with a name, if torch can use it.

    Raises:
        ArgumentError: torch cannot use the device.

    >>> find_device("cpu")
    device(type='cpu')
    """
    try:
        device = torch.device(name)
        # Reading a value back rejects "meta", which has no data; some devices lack generators.
        torch.zeros(1, device=device).item()
        torch.Generator(device)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        expected, got = "a device that torch can use", f"{name!r} ({one_line(error)})"
        raise ArgumentError("device", expected, got, "pass another device such as 'cpu'") from error
    return device


def best_threads(module: nn.Module, device: torch.device) -> int | None:
    """Return the fastest number of threads for a module; None: torch's own number.

    Small modules on the CPU are fastest on one thread.
    """
    small = sum(parameter.numel() for parameter in module.parameters()) < 50_000
    return 1 if small and device.type == "cpu" else None


def attach_generator(module: Any, generator: torch.Generator) -> Any:
    """Move a module to the device of a generator, and set the generator of its submodules.

    Only submodules whose attribute `generator` is a `torch.Generator` or None get the generator.
    """
    for part in module.modules():
        if isinstance(getattr(part, "generator", module), torch.Generator | None):
            part.generator = generator
    return module.to(generator.device)


def module_arrays(module: nn.Module) -> Arrays:
    """Return copies of a module's parameters and buffers, by name."""
    return {name: np.array(tensor.numpy(force=True)) for name, tensor in module.state_dict().items()}


def real_arrays(module: Any) -> Arrays:
    """Return copies of the tensors in a module's `state_dict` as float32.

    Raises:
        ArgumentTypeError: The `state_dict` is no mapping, or has other entries than real tensors.

    >>> real_arrays(nn.Linear(1, 2, dtype=torch.bfloat16))["weight"].dtype
    dtype('float32')
    """
    tensors = module.state_dict()
    named = tensors.items() if isinstance(tensors, Mapping) else [("state_dict()", tensors)]
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor) or tensor.is_complex() or tensor.is_meta:
            raise ArgumentTypeError(
                "module",
                "a state_dict of real tensors with data",
                f"{tensor!r:.60} as {name}",
                "pass a module that to_torch returned, or one with the same parameters",
            )
    return {name: tensor.float().numpy(force=True) for name, tensor in named}


def activations(module: object) -> set[str]:
    """Return the names of the activations among the submodules of a module.

    >>> activations(nn.Sequential(nn.Linear(1, 1), nn.Tanh()))
    {'tanh'}
    """
    parts = [*module.modules()] if isinstance(module, nn.Module) else []
    return {name for name, kind in ACTIVATIONS.items() if any(type(part) is kind for part in parts)}


def module_tensors(module: nn.Module, arrays: Arrays) -> dict[str, torch.Tensor]:
    """Convert the result of `module_arrays` to tensors for `module.load_state_dict`.

    Raises:
        ArgumentError: Names, shapes or dtypes differ from those of the module.
    """
    expected = {name: (a.shape, a.dtype) for name, a in module_arrays(module).items()}
    got = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    for name in sorted({*expected, *got}):
        if expected.get(name) != got.get(name):
            specs = (expected.get(name), got.get(name))
            wanted, actual = ("nothing" if spec is None else f"{spec[1]} {spec[0]}" for spec in specs)
            raise ArgumentError(
                "networks",
                f"{wanted} as {name} of the {type(module).__name__}",
                actual,
                "create the policy with the saved settings",
            )
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
