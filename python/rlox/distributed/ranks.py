"""`Ranks`: processes that do the same, and what they give each other."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from rlox.distributed.meeting import START, within
from rlox.distributed.peers import PeerError, Peers

F64 = npt.NDArray[np.float64]
# What rank 0 tells the others to do; all other calls are made on every rank alike.
ORDERS = ("make", "load", "train", "iterate", "end", "state", "save", "leave")
_PATIENCE = timedelta(seconds=0.5)
# Seconds between two looks at a GPU's work, and those that ending the connections may take.
_LOOK, _GRACE = 1e-4, 3.0


class Ranks:
    """The processes of a group. Rank 0 leads: it says what is done next, and the others follow.

    This is `torch.distributed` without its `DistributedDataParallel`: learners keep parameters as
    one vector, so that one all-reduce of the gradient does for each step of an optimiser, where
    every forward pass would have to go through that wrapper.

    Args:
        store: A `torch.distributed.Store`, in which the processes find each other.
        rank: Which one this is.
        size: How many there are.
        timeout: Seconds that one waits for another that lives.
        device: The GPU whose gradients are to go over NCCL. All that ranks tell each other goes
            over gloo, and so do gradients on the CPU.

    Raises:
        RuntimeError: They cannot be connected, or not in time.
    """

    def __init__(
        self, store: Any, rank: int, size: int, timeout: float, device: str | None = None
    ) -> None:
        self.rank, self.size, self.leads = rank, size, rank == 0
        self._timeout = timeout
        self._serve: Callable[[int, bool], None] | None = None
        # Whether an all-reduce of gradients is looked at rather than waited for. A wait for NCCL
        # is the GPU's: until a rank comes that has died, and deaf to what that rank said.
        self.looks = device is not None
        within(
            min(timeout, START),
            lambda: self._connect(store, device),
            f"group: expected {size} processes that can be connected",
            "look whether they reach each other: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name "
            "network interfaces",
        )
        apart = dist.PrefixStore("peers", store)  # type: ignore[attr-defined]  # it does
        self.peers = Peers(apart, rank, size)

    def _connect(self, store: Any, device: str | None) -> None:
        """Makes two groups of all ranks: one for gradients, one for all else."""
        limit = timedelta(seconds=self._timeout)
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("group", store),  # type: ignore[attr-defined]  # it does
            rank=self.rank,
            world_size=self.size,
            timeout=limit,
        )
        self._gradients: Any
        if device is None:
            self._gradients = dist.new_group(timeout=limit, backend="gloo")
            return
        # NCCL's own watchdog would end the process, and what was learned would not be saved.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        torch.cuda.set_device(device)  # of this thread
        self._gradients = dist.new_group(timeout=limit, backend="cpu:gloo,cuda:nccl")
        # NCCL connects in the first call, which hears nobody.
        dist.all_reduce(torch.zeros(1, device=device), group=self._gradients)
        torch.cuda.synchronize(device)

    def close(self) -> None:
        """Ends the connections."""
        self.peers.close()
        # Not longer than this, where a rank hangs with which something was begun.
        ends = threading.Thread(target=self._disconnect, daemon=True)
        ends.start()
        ends.join(_GRACE)

    def _disconnect(self) -> None:
        if self.peers.broken:  # what was begun with another rank ends here, on GPUs, too
            everything: Any = dist.group.WORLD
            for group in (self._gradients, everything):
                with suppress(Exception):  # older backends do not know how
                    group.abort()
        dist.destroy_process_group()

    def serving(self, serve: Callable[[int, bool], None]) -> None:
        """Notes who gives rank 0 the state of a trainer, by its number and whether with replay."""
        self._serve = serve

    def sum_(self, tensor: Tensor) -> Tensor:
        """Makes of a gradient, in place, the sum of those of all ranks: bit for bit the same."""
        begin = partial(dist.all_reduce, tensor, group=self._gradients, async_op=True)
        self._do(begin, looks=self.looks)
        return tensor

    def gather(self, numbers: Iterable[float]) -> F64:
        """The numbers of all ranks, (size, n); all have as many."""
        own = torch.tensor([*numbers], dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        self._do(lambda: dist.all_gather(rows, own, async_op=True))
        return torch.stack(rows).numpy()

    def share_(self, tensors: Iterable[Tensor]) -> None:
        """Makes of tensors, in place, those of rank 0; over the CPU, as gloo hears who fails."""
        with torch.no_grad():
            for tensor in tensors:
                whole = tensor.cpu().contiguous()
                if whole.numel():
                    data = whole.detach().view(-1).view(torch.uint8)
                    self._do(partial(dist.broadcast, data, 0, async_op=True))
                if whole is not tensor:
                    tensor.copy_(whole)

    def tell(self, said: bytes) -> bytes:
        """What rank 0 says."""
        size = torch.tensor([len(said)])
        self._do(lambda: dist.broadcast(size, 0, async_op=True))
        text = torch.zeros(int(size), dtype=torch.uint8)
        if self.leads:
            text = torch.frombuffer(bytearray(said), dtype=torch.uint8)
        if len(text):
            self._do(lambda: dist.broadcast(text, 0, async_op=True))
        return text.numpy().tobytes()

    def give(self, said: bytes) -> None:
        """Sends rank 0 what `take` waits for; from another rank."""
        size = torch.tensor([len(said)])
        self._do(lambda: dist.isend(size, 0))
        text = torch.frombuffer(bytearray(said), dtype=torch.uint8)
        self._do(lambda: dist.isend(text, 0))

    def take(self, rank: int) -> bytes:
        """What another rank gives; on rank 0."""
        size = torch.zeros(1, dtype=torch.int64)
        self._do(lambda: dist.irecv(size, rank))
        text = torch.empty(int(size), dtype=torch.uint8)
        self._do(lambda: dist.irecv(text, rank))
        return text.numpy().tobytes()

    def order(self, what: str, whose: int = 0, number: float = 0.0) -> None:
        """Tells the others what comes next; on rank 0."""
        said = torch.tensor([ORDERS.index(what), whose, number], dtype=torch.float64)
        self._do(lambda: dist.broadcast(said, 0, async_op=True))

    def hear(self, *wanted: str) -> tuple[str, float]:
        """What comes next, one of `wanted`; on another rank than 0.

        Until then it serves rank 0, which may save meanwhile.

        Raises:
            PeerError: Something else comes: the ranks do not make the same calls.
        """
        while True:
            said = torch.zeros(3, dtype=torch.float64)
            self._do(lambda x=said: dist.broadcast(x, 0, async_op=True))  # type: ignore[misc]  # bound now
            code, whose, number = said.tolist()
            what = ORDERS[int(code)]
            if what in wanted:
                return what, number
            if what == "state" and self._serve is not None:
                self._serve(int(whose), bool(number))
            elif what != "save":
                raise PeerError(
                    f"rank 0: expected the same calls on every rank, got {what!r} there, where "
                    f"rank {self.rank} waits for {' or '.join(map(repr, wanted))}; call train, "
                    "load and what makes trainers on all of them"
                )

    def meet(self, what: str) -> None:
        """All ranks come to the same call.

        Raises:
            PeerError: Another one fails, or comes to another call.
        """
        if self.leads:
            self.order(what)
        else:
            self.hear(what)

    def _do(self, begin: Callable[[], dist.Work | None], looks: bool = False) -> None:
        """Does something together with the others; waits as long as they live, and for Ctrl-C.

        Args:
            begin: What is done.
            looks: Whether to look time and again, and not to wait: see `self.looks`.

        Raises:
            PeerError: Another one failed, died, or did not come in time.
        """
        self.peers.expect_well()
        try:
            work = begin()
        except RuntimeError as error:
            raise self.peers.explain(error) from error
        if work is None:
            return
        done = self._looked if looks else self._waited
        until = time.monotonic() + self._timeout
        while not done(work):
            self.peers.expect_well()
            if time.monotonic() > until:
                raise PeerError(
                    f"timeout: expected the other ranks within {self._timeout:g} s, got none; call "
                    "the same on every rank, or raise it"
                )

    def _waited(self, work: dist.Work, patience: timedelta = _PATIENCE) -> bool:
        """Waits a while; whether it is done.

        Raises:
            PeerError: It failed.
        """
        try:
            work.wait(patience)
        except RuntimeError:
            # It may have been done since the time was over.
            return work.is_completed() and self._ended(work)
        return True

    def _looked(self, work: dist.Work) -> bool:
        """Whether it is done, after a moment. Until it is, nothing on a GPU waits for it.

        Raises:
            PeerError: It failed.
        """
        if not work.is_completed():
            time.sleep(_LOOK)
            return False
        return self._ended(work)

    def _ended(self, work: dist.Work) -> bool:
        """That it is done, where it has not failed.

        Raises:
            PeerError: It failed.
        """
        try:
            work.wait(_PATIENCE)  # not any more; without a time NCCL would keep its error
        except RuntimeError as error:
            raise self.peers.explain(error) from error
        return True
