"""PPO, A2C and SAC on several processes that learn the same weights, started by torchrun.

    # train.py, started by: torchrun --nproc-per-node 2 train.py
    from rlox.distributed import ddp

    with ddp.group() as group:
        trainer = group.trainer("ppo", "CartPole-v1", num_envs=8, seed=1)
        trainer.train(100_000)
        trainer.save("trained")

Every process runs the whole script, steps its share of the environments and learns from its share
of each minibatch. Gradients are averaged, so that all processes have the same weights, which are
those of one process that had done everything, except for the random numbers. Gradients go over
gloo, on GPUs over NCCL.
"""

import hashlib
import json
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pkgutil import resolve_name
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from rlox import trainers
from rlox._errors import ArgumentError
from rlox._registry import ALGORITHMS
from rlox._training.loop import plan
from rlox._training.results import STOP, TrainResult
from rlox._training.resume import config_to_dict
from rlox._training.run_folder import versions
from rlox._validation import check_float, check_str, resolve_seed
from rlox.callbacks.base import as_callbacks
from rlox.checkpoint import read_checkpoint
from rlox.distributed import PeerError
from rlox.distributed._ddp_state import shard_config
from rlox.envs._make import get_env_name, get_num_envs
from rlox.learners._backends import check_torch
from rlox.trainers import EnvLike, Trainer

if TYPE_CHECKING:
    from typing_extensions import Self

    from rlox.distributed._collectives import Ranks

__all__ = ["PeerError", "ProcessGroup", "group"]
_LEARNERS = "rlox.distributed._ddp_learners:"
_SAME = "pass the same on every rank"
_current: list["ProcessGroup"] = []


def group(
    backend: Literal["gloo", "nccl"] | None = None, timeout: float = 1800.0
) -> "ProcessGroup":
    """Return the group of the processes that torchrun started, a context manager.

    If a process fails or dies, the others raise `PeerError` at their next common step. At the end
    all processes wait for each other, and the trainers are closed.

    Args:
        backend: What gradients go over. None: NCCL if each process has a GPU, else gloo.
        timeout: Seconds that a process waits for another one, at least as long as what rank 0 does
            alone, evaluations for instance.

    Raises:
        RuntimeError: torchrun did not start this process, or the process is in a group already.
        ValueError: Another backend, or NCCL without a GPU for each process; other versions of rlox
            or torch on other ranks.
        ModuleNotFoundError: PyTorch is not installed.

    >>> group()
    Traceback (most recent call last):
    RuntimeError: group: expected to be started by torchrun, ...
    """
    return ProcessGroup(backend, timeout)


def current_group() -> "ProcessGroup":
    """Return the group that this process is in.

    Raises:
        RuntimeError: The process is in none.
    """
    if not _current:
        raise RuntimeError(
            "group: expected to be within `with ddp.group() as group:`, got no group; make "
            "trainers by group.trainer there"
        )
    return _current[-1]


class ProcessGroup:
    """Processes that torchrun started, as a context manager; see `rlox.distributed.ddp.group`."""

    def __init__(
        self, backend: Literal["gloo", "nccl"] | None = None, timeout: float = 1800.0
    ) -> None:
        self._backend = None if backend is None else check_str("backend", backend, ("gloo", "nccl"))
        self._timeout = check_float("timeout", timeout, 1, 1e6)
        if missing := [name for name in ("RANK", "WORLD_SIZE") if name not in os.environ]:
            raise RuntimeError(
                f"group: expected to be started by torchrun, got no {' and no '.join(missing)} in "
                "the environment; start it with: torchrun --nproc-per-node 2 train.py"
            )
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device: str | None = None  # a GPU of this process's own
        self.trainers: list[DDPTrainer] = []
        self.ranks: Ranks
        self._handles_sigterm = False

    def __enter__(self) -> "Self":
        check_torch("processes average gradients in it")
        import torch
        import torch.distributed as dist

        from rlox.distributed._collectives import Ranks

        if _current or dist.is_initialized():
            raise RuntimeError(
                "group: expected the only process group of this process, got one beside another; "
                "leave that first"
            )
        local, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
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
        self.ranks = Ranks(self._timeout, nccl=self.device is not None)
        self.ranks.send_state = lambda index, replay: self.trainers[index].learner.send_state(
            replay
        )
        local_versions = {name: x for name, x in versions().items() if name in ("rlox", "torch")}
        local_versions["backend"] = "gloo" if self.device is None else "nccl"
        try:
            self.ranks.check_consistent(local_versions, "start the same on every machine")
        except BaseException:
            self.ranks.close()
            raise
        _current.append(self)
        self._stop_on_sigterm()
        return self

    def _stop_on_sigterm(self) -> None:
        """Stop training in order on SIGTERM, which torchrun sends if another process has failed."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def stop(signum: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if not any(trainer._training for trainer in self.trainers):
                signal.raise_signal(signal.SIGTERM)
            for trainer in self.trainers:
                trainer.stop()

        signal.signal(signal.SIGTERM, stop)
        self._handles_sigterm = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.ranks.barrier("leave")
        finally:
            if self._handles_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _current.remove(self)
            for trainer in self.trainers:
                trainer.close()
            self.ranks.close()

    def trainer(self, algorithm: str, env: EnvLike, **kwargs: Any) -> "DDPTrainer":
        """Return a trainer that all ranks have together; call it on each of them alike.

        Settings are those of all ranks: `num_envs` and `batch_size` are shared out, as are
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
        trainer_class = _load_trainer(algorithm)
        if self.device is not None and "device" not in kwargs:
            kwargs["device"] = self.device
        self.ranks.barrier("make")
        return trainer_class(env, **kwargs)

    def load(self, path: str | os.PathLike[str], **kwargs: Any) -> "DDPTrainer":
        """Return the trainer that as many processes saved; call it on each of them alike.

        Each rank reads the checkpoint, and goes on exactly where the process of its rank was.

        Args:
            path: What a trainer's `save` wrote, or the run folder; each process must see it.
            **kwargs: What `rlox.trainers.Trainer.load` takes: `env`, `policy`, `runs_dir`.

        Raises:
            ValueError: The checkpoint is of another number of processes, or of another algorithm;
                ranks read other checkpoints; as `Trainer.load` does.
            FileNotFoundError, rlox.CorruptFileError: As `Trainer.load` does.
            PeerError: Another rank failed, or makes other calls.
        """
        self.ranks.barrier("load")  # what rank 0 saved before is there by now
        manifest = read_checkpoint(path).manifest
        digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        values = {"path": f"a manifest of SHA-256 {digest[:16]}"}
        self.ranks.check_consistent(values, "read the same checkpoint on every rank")
        trainer_class = _load_trainer(manifest.get("algorithm"))
        saved_size = len(manifest.get("ranks") or [None])
        if saved_size != self.size:
            raise ArgumentError(
                "path",
                f"a checkpoint of {self.size} processes, as are here",
                f"one of {saved_size}",
                f"start it with: torchrun --nproc-per-node {saved_size}, or predict with rlox.load",
            )
        if self.device is not None:
            kwargs.setdefault("device", self.device)
        kwargs.setdefault("backend", "torch")
        return trainer_class.load(path, **kwargs)

    def trainer_index(self, learner: object) -> int:
        """Return the number of a learner's trainer, in the order in which trainers were made."""
        return next(i for i, trainer in enumerate(self.trainers) if trainer.learner is learner)


def _load_trainer(algorithm: Any) -> "type[DDPTrainer]":
    """Return the trainer class of an algorithm that several processes can train."""
    paths = {name: spec.ddp_trainer for name, spec in ALGORITHMS.items() if spec.ddp_trainer}
    trainer: type[DDPTrainer] = resolve_name(paths[check_str("algorithm", algorithm, tuple(paths))])
    return trainer


class DDPTrainer(Trainer):
    """A trainer of a group, which `Group.trainer` makes.

    `config` and `timesteps` are those of all processes together.
    """

    learner: Any

    def __init__(
        self,
        env: EnvLike,
        seed: int | None = None,
        *,
        backend: str = "torch",
        runs_dir: str | os.PathLike[str] | None = "runs",
        **kwargs: Any,
    ) -> None:
        self.group = current_group()
        if check_str("backend", backend) not in ("auto", "torch"):
            raise ArgumentError(
                "backend",
                "'torch', on which processes average their gradients",
                repr(backend),
                "leave it out",
            )
        ranks = self.group.ranks
        has_local_envs = get_num_envs(env) is not None  # made already, and the rank's own
        env_name = "environments already made" if has_local_envs else get_env_name(env)
        ranks.check_consistent({"algorithm": self.spec.name, "env": env_name}, _SAME)
        seed = ranks.broadcast(int(resolve_seed(seed)))
        self._has_local_envs = has_local_envs and "num_envs" not in kwargs
        self._config: Any = None
        folder = runs_dir if ranks.is_main_rank else None
        super().__init__(env, seed, backend="torch", runs_dir=folder, **kwargs)
        self.group.trainers.append(self)

    def _shard_config(self, config: Any) -> Any:
        settings = config_to_dict(config)
        settings["device"] = config.device.partition(":")[0]  # each rank may have its own GPU
        self.group.ranks.check_consistent(settings, _SAME)
        self._config, local_config = shard_config(
            config, self.group.size, has_local_envs=self._has_local_envs, device=self.group.device
        )
        return local_config

    @property
    def config(self) -> Any:
        """All settings of the run, resolved; `learner.config` has this process's share."""
        return self._config

    @property
    def timesteps(self) -> int:
        """Steps learned from so far, all environments of all processes together."""
        return int(self.learner.timesteps) * self.group.size

    @property
    def stopped_by(self) -> str | None:
        """Why the run ended, as in `TrainResult`; a stop on another rank counts as `stop()`."""
        agreed = hasattr(self, "learner") and self.learner.stop_agreed
        return self._stopped_by or (STOP if agreed else None)

    @stopped_by.setter
    def stopped_by(self, reason: str | None) -> None:
        self._stopped_by = reason

    def train(
        self,
        total_timesteps: int | None = None,
        *,
        progress_bar: bool = False,
        callbacks: Sequence[Any] = (),
        loggers: Sequence[Any] = (),
    ) -> TrainResult:
        """Train as `Trainer.train` does; call it on every rank.

        Callbacks, loggers and the run folder are rank 0's. Ctrl-C on any rank stops all.

        Returns:
            The same on every rank.

        Raises:
            ValueError: Ranks have other numbers of steps; what `Trainer.train` refuses.
            rlox.distributed.PeerError: Another rank failed, died, or makes other calls.
        """
        plan(self, total_timesteps)  # refuses on all ranks alike, before anything begins
        checked = as_callbacks(callbacks)
        ranks, learner = self.group.ranks, self.learner
        ranks.barrier("train")
        ranks.check_consistent({"total_timesteps": total_timesteps}, _SAME)
        learner.run_ended = False
        try:
            if ranks.is_main_rank:
                result = super().train(
                    total_timesteps, callbacks=checked, progress_bar=progress_bar, loggers=loggers
                )
                ranks.send_command("end")
            else:
                result = super().train(total_timesteps)
                if not learner.run_ended:
                    ranks.recv_command("end")
            return ranks.broadcast(result)
        except BaseException as error:
            ranks.fail(error)
            raise

    def save(self, path: str | os.PathLike[str], *, replay: bool = True) -> None:
        """Save as `Trainer.save` does: rank 0 writes a checkpoint of all ranks; the others wait.

        Rank 0 may call it alone: the others send their states at their next call of `train`, `save`
        or `load`, or where they leave the group.
        """
        ranks = self.group.ranks
        if not ranks.is_main_rank:
            ranks.recv_command("save")
            return
        try:
            super().save(path, replay=replay)
        finally:
            if not ranks.failure:
                ranks.send_command("save")


class PPOTrainer(DDPTrainer, trainers.PPOTrainer):
    """PPO in several processes."""

    spec = replace(ALGORITHMS["ppo"], torch_learner=f"{_LEARNERS}PPO")


class A2CTrainer(DDPTrainer, trainers.A2CTrainer):
    """A2C in several processes."""

    spec = replace(ALGORITHMS["a2c"], torch_learner=f"{_LEARNERS}A2C")


class SACTrainer(DDPTrainer, trainers.SACTrainer):
    """SAC in several processes."""

    spec = replace(ALGORITHMS["sac"], torch_learner=f"{_LEARNERS}SAC")
