"""`Group`: the processes that torchrun started, and the trainers that they have in common."""

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from rlox._errors import ArgumentError
from rlox.backends import expect_torch
from rlox.checkpoint import read_checkpoint
from rlox.distributed.alike import expect_alike
from rlox.distributed.place import place
from rlox.logger import versions
from rlox.settings import number, text

if TYPE_CHECKING:
    from typing_extensions import Self

    from rlox.distributed.ranks import Ranks
    from rlox.distributed.trainers import RankedTrainer
    from rlox.trainer import EnvLike

_ALGORITHMS = ("ppo", "a2c", "sac")
# Packages of which all processes must have the same version.
_VERSIONS = ("rlox", "torch")
_CURRENT: list["Group"] = []


def current() -> "Group":
    """The group that this process is in.

    Raises:
        RuntimeError: It is in none.
    """
    if not _CURRENT:
        raise RuntimeError(
            "group: expected to be within `with ddp.group() as group:`, got no group; make "
            "trainers by group.trainer there"
        )
    return _CURRENT[-1]


class Group:
    """The processes that torchrun started, as a context manager; `rlox.distributed.ddp.group`."""

    def __init__(
        self, backend: Literal["gloo", "nccl"] | None = None, timeout: float = 1800.0
    ) -> None:
        self._backend = None if backend is None else text("backend", backend, ("gloo", "nccl"))
        self._timeout = number("timeout", timeout, 1, 1e6)
        self._place = place()
        self.rank, self.size = self._place.rank, self._place.size
        self.device: str | None = None
        self.members: list[RankedTrainer] = []
        self._undo: Callable[[], object] = lambda: None
        self.ranks: Ranks

    def __enter__(self) -> "Self":
        expect_torch("processes average gradients in it")
        import torch
        import torch.distributed as dist

        from rlox.distributed.meeting import START, meet
        from rlox.distributed.ranks import Ranks

        if _CURRENT or dist.is_initialized():
            raise RuntimeError(
                "group: expected the only process group of this process, got one beside another; "
                "leave that first"
            )
        local, gpus = self._place.local, torch.cuda.device_count()
        usable = torch.cuda.is_available() and dist.is_nccl_available() and local < gpus
        if self._backend == "nccl" and not usable:
            raise ArgumentError(
                "backend",
                "'gloo' without a GPU for each process",
                f"'nccl' with {gpus}, as process {local} of this machine",
                "leave it out, or start fewer",
            )
        if usable and self._backend != "gloo":
            self.device = f"cuda:{local}"
            torch.cuda.set_device(local)
        said = {"backend": "gloo" if self.device is None else "nccl"}
        said |= {name: x for name, x in versions().items() if name in _VERSIONS}
        store = meet(self._place, min(self._timeout, START), said)
        self.ranks = Ranks(store, self.rank, self.size, self._timeout, device=self.device)
        self.ranks.serving(lambda whose, replay: self.members[whose].learner.give_state(replay))
        _CURRENT.append(self)
        self._end_in_order()
        return self

    def _end_in_order(self) -> None:
        """Has what was learned be saved where the launcher ends this process, as another failed."""
        usual = signal.getsignal(signal.SIGTERM)
        main = threading.current_thread() is threading.main_thread()
        if not main or usual is not signal.SIG_DFL:
            return

        def first(signum: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGTERM, usual)
            self.ranks.peers.end_soon()

        signal.signal(signal.SIGTERM, first)
        self._undo = lambda: signal.signal(signal.SIGTERM, usual)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.ranks.meet("leave")
            else:
                self._tell(error)
        except BaseException as failed:  # Ctrl-C, for instance, where rank 0 is waited for
            self._tell(failed)
            raise
        finally:
            self._undo()
            _CURRENT.remove(self)
            for trainer in self.members:
                trainer.close()
            self.ranks.close()

    def _tell(self, error: BaseException) -> None:
        self.ranks.peers.report(error)
        self.ranks.peers.wait_until_heard()

    def trainer(
        self, algorithm: Literal["ppo", "a2c", "sac"], env: "EnvLike", **kwargs: Any
    ) -> "RankedTrainer":
        """A trainer that all ranks have together; called on each of them alike.

        Settings are those of the whole: `num_envs` and `batch_size` are shared out, as are
        `buffer_size` (rounded down), `learning_starts` (rounded up) and minibatches counted by
        transitions. All other settings, `n_steps` among them, are each process's.

        Args:
            algorithm: "ppo", "a2c" or "sac".
            env: As for `rlox.trainers.PPOTrainer`. Environments already made are this process's.
            **kwargs: What the algorithm's trainer takes: `seed`, `policy`, `runs_dir`, settings.
                Rank 0's seed counts. Networks are on a GPU of this process's where there is one,
                unless `device` says otherwise.

        Raises:
            TypeError: As the algorithm's trainer does.
            ValueError: As that does; another algorithm or backend; settings, spaces or networks
                that are not the same on every rank; settings that cannot be shared out evenly;
                environments in autoreset mode NEXT_STEP.
            PeerError: Another rank failed, or makes other calls.
        """
        from rlox.distributed.trainers import TRAINERS

        kind = TRAINERS[text("algorithm", algorithm, _ALGORITHMS)]
        if self.device is not None and "device" not in kwargs:
            kwargs["device"] = self.device
        self.ranks.meet("make")
        return kind(env, **kwargs)

    def load(self, path: str | os.PathLike[str], **kwargs: Any) -> "RankedTrainer":
        """The trainer that was saved, by as many processes; called on each of them alike.

        Each reads the checkpoint, and goes on where the process of its rank stood.

        Args:
            path: What a trainer's `save` wrote, or the run folder; each process must see it.
            **kwargs: What `rlox.trainers.Trainer.load` takes: `env`, `policy`, `runs_dir`.

        Raises:
            ValueError: It is of another number of processes, or of another algorithm; ranks read
                other checkpoints; as `Trainer.load` does.
            FileNotFoundError, rlox.CorruptFileError: As `Trainer.load` does.
            PeerError: Another rank failed, or makes other calls.
        """
        from rlox.distributed.trainers import TRAINERS

        self.ranks.meet("load")  # what rank 0 saved before is there by now
        manifest = read_checkpoint(path).manifest
        digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        expect_alike(
            self.ranks,
            {"path": f"a manifest of SHA-256 {digest[:16]}"},
            "have all read the same checkpoint",
        )
        kind = TRAINERS[text("algorithm", manifest.get("algorithm"), _ALGORITHMS)]
        ranks = manifest.get("ranks") or [None]
        if len(ranks) != self.size:
            raise ArgumentError(
                "path",
                f"a checkpoint of {self.size} processes, as are here",
                f"one of {len(ranks)}",
                f"start it with: torchrun --nproc-per-node {len(ranks)}, or predict with rlox.load",
            )
        if self.device is not None:
            kwargs.setdefault("device", self.device)
        kwargs.setdefault("backend", "torch")
        return kind.load(path, **kwargs)

    def number_of(self, learner: object) -> int:
        """Which of the group's trainers a learner is of, in the order in which they were made."""
        return next(i for i, trainer in enumerate(self.members) if trainer.learner is learner)
