"""Collective operations of the processes that torchrun started."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from rlox._errors import ArgumentError, one_line
from rlox.distributed import PeerError

T = TypeVar("T")
F64 = npt.NDArray[np.float64]
# Commands of rank 0; all other calls are made on every rank alike.
COMMANDS = ("make", "load", "train", "iterate", "end", "state", "save", "leave")


class Ranks:
    """Process group of torch. Rank 0 gives commands, and the other ranks follow.

    Learners keep their parameters in one vector. Each step of an optimiser therefore needs one
    all-reduce; `DistributedDataParallel` would wrap every forward pass instead.

    Args:
        timeout: Seconds that a rank waits for another one.
        nccl: Whether gradients go over NCCL. Everything else goes over gloo.

    Raises:
        RuntimeError: The processes cannot be connected, or not in time.
    """

    def __init__(self, timeout: float, nccl: bool) -> None:
        limit = timedelta(seconds=timeout)
        dist.init_process_group("gloo", timeout=limit)
        self._gradients: Any = dist.new_group(backend="nccl", timeout=limit) if nccl else None
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.is_main_rank = self.rank == 0
        self.failure = ""  # why collective operations fail from now on
        # Sends rank 0 the state of a trainer, by its number and whether with the replay buffer.
        self.send_state: Callable[[int, bool], None] = lambda trainer, replay: None

    def close(self) -> None:
        """Close the connections; ranks that wait for this one raise `PeerError`."""
        dist.destroy_process_group()

    def fail(self, error: BaseException) -> None:
        """Record an error of this rank, whose later calls raise `PeerError`."""
        self.failure = self.failure or f"rank {self.rank} failed with {one_line(error)[:200]}"

    @contextmanager
    def _communicating(self) -> Iterator[None]:
        if self.failure:
            raise PeerError(f"the process group has failed ({self.failure}); make another one")
        try:
            yield
        except RuntimeError as error:
            self.failure = one_line(error)[:200]
            raise PeerError(
                "another rank failed, died, or did not answer in time; look at the output of the "
                f"other ranks ({self.failure})"
            ) from error

    def all_reduce(self, gradient: Tensor) -> Tensor:
        """Replace a gradient by the sum over all ranks, the same bits on each of them."""
        with self._communicating():
            dist.all_reduce(gradient, group=self._gradients)
        return gradient

    def all_gather(self, numbers: Iterable[float]) -> F64:
        """Return the numbers of all ranks, (size, n)."""
        local = torch.tensor([*numbers], dtype=torch.float64)
        rows = [torch.empty_like(local) for _ in range(self.size)]
        with self._communicating():
            dist.all_gather(rows, local)
        return torch.stack(rows).numpy()

    def all_gather_objects(self, value: T) -> list[T]:
        """Return the values of all ranks."""
        values: list[Any] = [None] * self.size
        with self._communicating():
            dist.all_gather_object(values, value)
        return values

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0, and nothing on the others."""
        values: list[Any] = [None] * self.size if self.is_main_rank else []
        with self._communicating():
            dist.gather_object(value, values if self.is_main_rank else None)
        return values

    def broadcast(self, value: T) -> T:
        """Return the value of rank 0."""
        values = [value]
        with self._communicating():
            dist.broadcast_object_list(values)
        return values[0]

    @torch.no_grad()
    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by those of rank 0."""
        local_tensors = [*tensors]
        copies = (
            [x.detach().to("cpu", copy=True) for x in local_tensors] if self.is_main_rank else []
        )
        for tensor, value in zip(local_tensors, self.broadcast(copies), strict=True):
            tensor.copy_(value)

    def check_consistent(self, values: Mapping[str, object], hint: str) -> None:
        """Check that every rank has the same values; called on all ranks.

        Raises:
            ValueError: A value differs; every rank raises the same error.
        """
        rows = self.all_gather_objects({name: str(x) for name, x in values.items()})
        for name in dict.fromkeys(name for row in rows for name in row):
            found = [row.get(name) for row in rows]
            if len(set(found)) > 1:
                got = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(found))
                raise ArgumentError(name, "the same on every rank", str(got), hint)

    def send_command(self, name: str, trainer: int = 0, value: float = 0.0) -> None:
        """Tell the other ranks what comes next; called on rank 0."""
        message = torch.tensor([COMMANDS.index(name), trainer, value], dtype=torch.float64)
        with self._communicating():
            dist.broadcast(message, 0)

    def recv_command(self, *names: str) -> tuple[str, float]:
        """Return the next command and its number; called on other ranks than 0.

        Until then the rank sends rank 0 the states that a checkpoint takes.

        Raises:
            PeerError: The command is none of `names`: ranks make different calls.
        """
        while True:
            message = torch.zeros(3, dtype=torch.float64)
            with self._communicating():
                dist.broadcast(message, 0)
            code, trainer, value = message.tolist()
            name = COMMANDS[int(code)]
            if name in names:
                return name, value
            if name == "state":
                self.send_state(int(trainer), bool(value))
            elif name != "save":
                raise PeerError(
                    f"expected the same calls on every rank, got {name!r} on rank 0 and "
                    f"{' or '.join(map(repr, names))} on rank {self.rank}; call train, load and "
                    "what makes trainers on all ranks"
                )

    def barrier(self, name: str) -> None:
        """Wait until all ranks make the same call.

        Raises:
            PeerError: A rank fails or makes another call, or does not come in time.
        """
        if self.is_main_rank:
            self.send_command(name)
        else:
            self.recv_command(name)
        with self._communicating():
            dist.monitored_barrier(wait_all_ranks=True)  # rank 0 names those that do not come
