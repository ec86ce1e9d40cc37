"""`Ranks`: processes that do the same, and what they give each other."""

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from rlox.distributed.peers import PeerError, Peers

F64 = npt.NDArray[np.float64]
# What rank 0 tells the others to do; all other calls are made on every rank alike.
ORDERS = ("make", "load", "train", "iterate", "end", "state", "save", "leave")
_PATIENCE = timedelta(seconds=0.5)
_GRACE = 3.0  # seconds


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
        nccl: Whether tensors on GPUs are to go over NCCL; all others go over gloo.

    Raises:
        RuntimeError: They do not find each other in time.
    """

    def __init__(
        self, store: Any, rank: int, size: int, timeout: float, nccl: bool = False
    ) -> None:
        self.rank, self.size, self.leads = rank, size, rank == 0
        self._timeout = timeout
        self._serve: Callable[[int, bool], None] | None = None
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if nccl else "gloo",
            store=dist.PrefixStore("group", store),  # type: ignore[attr-defined]  # it does
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
        apart = dist.PrefixStore("peers", store)  # type: ignore[attr-defined]  # it does
        self.peers = Peers(apart, rank, size)

    def close(self) -> None:
        """Ends the connections."""
        self.peers.close()
        # Where a rank hangs, gloo would wait for what was begun with it: not longer than this.
        ends = threading.Thread(target=dist.destroy_process_group, daemon=True)
        ends.start()
        ends.join(_GRACE)

    def serving(self, serve: Callable[[int, bool], None]) -> None:
        """Notes who gives rank 0 the state of a trainer, by its number and whether with replay."""
        self._serve = serve

    def sum_(self, tensor: Tensor) -> Tensor:
        """Makes of a tensor, in place, the sum of those of all ranks: bit for bit the same one."""
        self._do(lambda: dist.all_reduce(tensor, async_op=True), tensor)
        return tensor

    def gather(self, numbers: Iterable[float]) -> F64:
        """The numbers of all ranks, (size, n); all have as many."""
        own = torch.tensor([*numbers], dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.size)]
        self._do(lambda: dist.all_gather(rows, own, async_op=True))
        return torch.stack(rows).numpy()

    def share_(self, tensors: Iterable[Tensor]) -> None:
        """Makes of tensors, in place, those of rank 0."""
        with torch.no_grad():
            for tensor in tensors:
                whole = tensor.contiguous()
                self._do(lambda x=whole: dist.broadcast(x, 0, async_op=True), tensor)  # type: ignore[misc]  # bound now
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

    def _do(self, begin: Callable[[], dist.Work | None], tensor: Tensor | None = None) -> None:
        """Does something together with the others; waits as long as they live, and for Ctrl-C.

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
        if tensor is not None and tensor.is_cuda:
            work.wait()  # which queues: the GPU waits, and NCCL's own watchdog knows the limit
            return
        until = time.monotonic() + self._timeout
        while not self._done(work):
            self.peers.expect_well()
            if time.monotonic() > until:
                raise PeerError(
                    f"timeout: expected the other ranks within {self._timeout:g} s, got none; call "
                    "the same on every rank, or raise it"
                )

    def _done(self, work: dist.Work) -> bool:
        """Waits a while; whether it is done.

        Raises:
            PeerError: It failed.
        """
        try:
            work.wait(_PATIENCE)
        except RuntimeError as error:
            if work.is_completed():
                raise self.peers.explain(error) from error
            return False
        return True
