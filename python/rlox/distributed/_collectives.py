"""Collective operations between the processes of a torchrun group."""

from collections.abc import Iterable, Iterator, Mapping
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


class Ranks:
    """Torch process group in which rank 0 sends commands to the other ranks.

    Learners keep their parameters in one vector, so each optimizer step needs one all-reduce.
    `DistributedDataParallel` is not used, because it would have to wrap every forward pass.

    Args:
        timeout: Seconds that a rank waits for another rank.
        nccl: True if gradients use NCCL. All other messages use gloo.

    Raises:
        RuntimeError: The processes cannot connect within `timeout` seconds.
    """

    def __init__(self, timeout: float, nccl: bool) -> None:
        limit = timedelta(seconds=timeout)
        dist.init_process_group("gloo", timeout=limit)
        self._gradients: Any = dist.new_group(backend="nccl", timeout=limit) if nccl else None
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.is_main_rank = self.rank == 0
        self.failure = ""  # reason why later collective operations fail; empty if there is none
        self.learners: list[Any] = []  # learners of this rank, in the same order on every rank

    def close(self) -> None:
        """Close the connections; ranks that wait for this rank raise `PeerError`."""
        dist.destroy_process_group()

    def fail(self, error: BaseException) -> None:
        """Record an error of this rank; later collective operations raise `PeerError`."""
        self.failure = self.failure or f"rank {self.rank} failed with {one_line(error)[:200]}"

    @contextmanager
    def _communicating(self) -> Iterator[None]:
        if self.failure:
            raise PeerError(f"the process group has failed ({self.failure}); create a new group")
        try:
            yield
        except RuntimeError as error:
            self.failure = one_line(error)[:200]
            raise PeerError(
                f"another rank failed, exited or timed out ({self.failure}); see the output of the other ranks"
            ) from error

    def all_reduce(self, gradient: Tensor) -> Tensor:
        """Replace a gradient by its sum over all ranks, which is bitwise equal on every rank."""
        with self._communicating():
            dist.all_reduce(gradient, group=self._gradients)
        return gradient

    def all_gather(self, numbers: Iterable[float]) -> F64:
        """Return the numbers of all ranks, shape (size, n)."""
        local = torch.tensor([*numbers], dtype=torch.float64)
        rows = [torch.empty_like(local) for _ in range(self.size)]
        with self._communicating():
            dist.all_gather(rows, local)
        return torch.stack(rows).numpy()

    def all_gather_objects(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order."""
        values: list[Any] = [None] * self.size
        with self._communicating():
            dist.all_gather_object(values, value)
        return values

    def gather_objects(self, value: object) -> list[Any]:
        """Return the values of all ranks on rank 0, and an empty list on the other ranks."""
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
        """Replace tensors in place by the tensors of rank 0."""
        local_tensors = [*tensors]
        copies = [x.detach().to("cpu", copy=True) for x in local_tensors] if self.is_main_rank else []
        for tensor, value in zip(local_tensors, self.broadcast(copies), strict=True):
            tensor.copy_(value)

    def check_consistent(self, values: Mapping[str, object], hint: str) -> None:
        """Check that every rank has the same values; called on all ranks.

        Raises:
            ArgumentError: A value differs between ranks. Every rank raises the same error.
        """
        rows = self.all_gather_objects({name: str(x) for name, x in values.items()})
        for name in dict.fromkeys(name for row in rows for name in row):
            found = [row.get(name) for row in rows]
            if len(set(found)) > 1:
                got = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(found))
                raise ArgumentError(name, "the same value on every rank", str(got), hint)

    def send_command(self, name: str, *values: object) -> None:
        """Send a command with its arguments to the other ranks; called on rank 0."""
        self.broadcast((name, values))

    def recv_command(self, *names: str) -> tuple[str, Any]:
        """Return the next command of `names` and its arguments; called on every rank except 0.

        Until then, the rank answers "state" commands and ignores "save" commands.

        Raises:
            PeerError: Rank 0 sent another command, because the ranks make different calls.
        """
        while True:
            message: tuple[str, Any] = ("", ())  # replaced by the message of rank 0
            name, values = self.broadcast(message)
            if name in names:
                return name, values
            if name == "state":
                index, replay = values
                self.learners[index].send_state(replay)
            elif name != "save":
                raise PeerError(
                    f"ranks make different calls: {name!r} on rank 0, {' or '.join(map(repr, names))} on rank "
                    f"{self.rank}; call group.trainer, group.load and train on every rank"
                )

    def barrier(self, name: str) -> None:
        """Wait until all ranks make the same call.

        Raises:
            PeerError: A rank fails, makes a different call or times out.
        """
        if self.is_main_rank:
            self.send_command(name)
        else:
            self.recv_command(name)
        with self._communicating():
            dist.monitored_barrier(wait_all_ranks=True)  # the error lists all missing ranks
