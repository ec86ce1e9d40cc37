"""Distributed data-parallel PPO, A2C and SAC in processes that torchrun starts.

    # train.py, started by: torchrun --nproc-per-node 2 train.py
    from rlox.distributed import ddp

    with ddp.group() as group:
        trainer = group.trainer("ppo", "CartPole-v1", num_envs=8, seed=1)
        trainer.train(100_000)
        trainer.save("trained")

Every process runs the whole script, steps its share of the environments and learns from its share
of each minibatch. Gradients are averaged, so all processes have the same weights. Except for the
random numbers, the updates are equal to those of a single process. Gradients use NCCL on GPUs, else
gloo.
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
from typing import TYPE_CHECKING, Any, Literal, cast

from rlox import trainers
from rlox._errors import ArgumentError
from rlox._registry import ALGORITHMS
from rlox._training.results import TrainResult
from rlox._training.run import Run, config_to_dict
from rlox._training.run_folder import versions
from rlox._validation import check_float, check_str, resolve_seed
from rlox.callbacks.base import as_callbacks
from rlox.checkpoint import read_checkpoint
from rlox.distributed._ddp_state import shard_config
from rlox.envs._make import EnvLike, get_env_name, get_num_envs
from rlox.learners import Config
from rlox.learners._backends import check_torch
from rlox.trainers import Trainer

if TYPE_CHECKING:
    from typing_extensions import Self

    from rlox.distributed._collectives import Ranks

__all__ = ["group"]
_LEARNERS = "rlox.distributed._ddp_learners:"
_SAME = "pass the same value on every rank"
_current: list["ProcessGroup"] = []


def group(backend: Literal["gloo", "nccl"] | None = None, timeout: float = 1800.0) -> "ProcessGroup":
    """Return the group of the processes that torchrun started, as a context manager.

    If a process fails or exits, the others raise `PeerError` at their next collective operation.
    Leaving the context waits for all processes and closes the trainers.

    Args:
        backend: Backend for gradients. None: NCCL if each process has a GPU, else gloo.
        timeout: Seconds that a process waits for another process, in [1, 1e6]. Must exceed the
            time that rank 0 works alone, for example in evaluations.

    Raises:
        RuntimeError: torchrun did not start this process. On entering the context: the process is
            already in a group, or the processes cannot connect.
        ArgumentError: `backend` or `timeout` is invalid. On entering the context: NCCL lacks a GPU
            for each process, or the versions of rlox or torch differ between ranks.
        ModuleNotFoundError: PyTorch is not installed (on entering the context).

    >>> group()
    Traceback (most recent call last):
    RuntimeError: torchrun did not start this process: ...
    """
    return ProcessGroup(backend, timeout)


def current_group() -> "ProcessGroup":
    """Return the group that this process is in.

    Raises:
        RuntimeError: The process is in no group.
    """
    if not _current:
        raise RuntimeError(
            "this process is in no group; create trainers with group.trainer inside `with ddp.group() as group:`"
        )
    return _current[-1]


class ProcessGroup:
    """Group of the processes that torchrun started, created by `rlox.distributed.ddp.group`."""

    def __init__(self, backend: Literal["gloo", "nccl"] | None, timeout: float) -> None:
        self._backend = None if backend is None else check_str("backend", backend, ("gloo", "nccl"))
        self._timeout = check_float("timeout", timeout, 1, 1e6)
        if missing := [name for name in ("RANK", "WORLD_SIZE") if name not in os.environ]:
            raise RuntimeError(
                f"torchrun did not start this process: {' and '.join(missing)} not set; start it "
                "with: torchrun --nproc-per-node 2 train.py"
            )
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self.device: str | None = None  # GPU of this process
        self.trainers: list[DDPTrainer] = []
        self.ranks: Ranks
        self._handles_sigterm = False

    def __enter__(self) -> "Self":
        check_torch("the processes average gradients with PyTorch")
        import torch
        import torch.distributed as dist

        from rlox.distributed._collectives import Ranks

        if _current or dist.is_initialized():
            raise RuntimeError(
                "this process is already in a process group; leave that group before you enter another one"
            )
        local, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        usable = torch.cuda.is_available() and dist.is_nccl_available() and local < gpus
        if self._backend == "nccl" and not usable:
            raise ArgumentError(
                "backend",
                "'gloo', or 'nccl' with a GPU for each process",
                f"'nccl' with {gpus} GPUs for local rank {local}",
                "pass None, or start fewer processes",
            )
        if usable and self._backend != "gloo":
            self.device = f"cuda:{local}"
            torch.cuda.set_device(local)
        self.ranks = Ranks(self._timeout, nccl=self.device is not None)
        local_versions = {name: x for name, x in versions().items() if name in ("rlox", "torch")}
        local_versions["backend"] = "gloo" if self.device is None else "nccl"
        try:
            self.ranks.check_consistent(local_versions, "use the same versions and backend on every machine")
        except BaseException:
            self.ranks.close()
            raise
        _current.append(self)
        self._stop_on_sigterm()
        return self

    def _stop_on_sigterm(self) -> None:
        """Stop training early on SIGTERM, which torchrun sends if another process has failed."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def stop(signum: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if not any(trainer.run.is_training for trainer in self.trainers):
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
        """Return a trainer that runs on all ranks; call this method on every rank.

        `num_envs`, `batch_size`, `buffer_size` and `learning_starts` are totals over all ranks. Each rank gets an equal
        share, with `buffer_size` rounded down and `learning_starts` rounded up. Updates per transition count the
        transitions of all ranks. All other settings, such as `n_steps`, apply to each rank.

        Args:
            algorithm: "ppo", "a2c" or "sac".
            env: As for `rlox.trainers.PPOTrainer`. Existing environments belong to this rank.
            **kwargs: Arguments of the algorithm's trainer: `seed`, `policy`, `runs_dir`, settings. All ranks use the
                seed of rank 0. The default of `device` is this rank's GPU, if the rank has one.

        Raises:
            ArgumentTypeError: As for the algorithm's trainer.
            ArgumentError: As for the algorithm's trainer; also if the algorithm or `backend` is not
                supported, arguments, spaces or networks differ between ranks, a setting is not a
                multiple of the number of ranks, or the autoreset mode is NEXT_STEP.
            PeerError: Another rank failed or made a different call.
        """
        trainer_class = _load_trainer(algorithm)
        if self.device is not None and "device" not in kwargs:
            kwargs["device"] = self.device
        self.ranks.barrier("make")
        return trainer_class(env, **kwargs)

    def load(self, path: str | os.PathLike[str], **kwargs: Any) -> "DDPTrainer":
        """Return the trainer of a checkpoint of all ranks; call this method on every rank.

        Each rank reads the checkpoint and continues exactly where the process of this rank stopped.

        Args:
            path: Checkpoint or run folder, which every process must be able to read.
            **kwargs: Arguments of `rlox.trainers.Trainer.load`: `env`, `policy`, `runs_dir`.

        Raises:
            ArgumentError: The number of processes or the algorithm of the checkpoint does not
                match, or the ranks read different checkpoints; also as for `Trainer.load`.
            FileNotFoundError, CorruptFileError: As for `Trainer.load`.
            PeerError: Another rank failed or made a different call.
        """
        self.ranks.barrier("load")  # rank 0 has written its checkpoint by then
        manifest = read_checkpoint(path).manifest
        digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        values = {"path": f"a manifest with SHA-256 {digest[:16]}"}
        self.ranks.check_consistent(values, "read the same checkpoint on every rank")
        trainer_class = _load_trainer(manifest.get("algorithm"))
        saved_size = len(manifest.get("ranks") or [None])
        if saved_size != self.size:
            raise ArgumentError(
                "path",
                f"a checkpoint of {self.size} processes",
                f"a checkpoint of {saved_size}",
                f"use torchrun --nproc-per-node {saved_size}, or predict with rlox.load",
            )
        if self.device is not None:
            kwargs.setdefault("device", self.device)
        kwargs.setdefault("backend", "torch")
        return trainer_class.load(path, **kwargs)


def _load_trainer(algorithm: object) -> "type[DDPTrainer]":
    """Return the DDP trainer class of an algorithm."""
    paths = {name: spec.ddp_trainer for name, spec in ALGORITHMS.items() if spec.ddp_trainer}
    trainer: type[DDPTrainer] = resolve_name(paths[check_str("algorithm", algorithm, tuple(paths))])
    return trainer


class _DDPRun(Run):
    """Run of a process group, whose checkpoints contain the states of all ranks."""

    def save(self, path: str | os.PathLike[str], *, replay: bool = True) -> None:
        """Write a checkpoint of all ranks on rank 0, as `Run.save` does; the others wait.

        Rank 0 may call this method alone, for example in a callback. The other ranks then send
        their states at their next collective call, or when they leave the group.
        """
        ranks: Ranks = cast(Any, self.learner).ranks
        if not ranks.is_main_rank:
            ranks.recv_command("save")
            return
        try:
            super().save(path, replay=replay)
        finally:
            if not ranks.failure:
                ranks.send_command("save")


class DDPTrainer(Trainer):
    """Trainer of a process group, created by `ProcessGroup.trainer`.

    `config` and `timesteps` are totals over all processes.
    """

    learner: Any
    run_class = _DDPRun

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
                "backend", "'auto' or 'torch' for training in several processes", repr(backend), "remove the argument"
            )
        ranks = self.group.ranks
        has_local_envs = get_num_envs(env) is not None
        env_name = "existing environments" if has_local_envs else get_env_name(env)
        ranks.check_consistent({"algorithm": self.spec.name, "env": env_name}, _SAME)
        seed = ranks.broadcast(int(resolve_seed(seed)))
        self._has_local_envs = has_local_envs and "num_envs" not in kwargs
        folder = runs_dir if ranks.is_main_rank else None
        super().__init__(env, seed, backend="torch", runs_dir=folder, **kwargs)
        self.group.trainers.append(self)

    def _shard_config(self, config: Config) -> tuple[Config, Config]:
        settings = config_to_dict(config)
        settings["device"] = config.device.partition(":")[0]  # each rank may have its own GPU
        self.group.ranks.check_consistent(settings, _SAME)
        return shard_config(config, self.group.size, has_local_envs=self._has_local_envs, device=self.group.device)

    def train(
        self,
        total_timesteps: int | None = None,
        *,
        progress_bar: bool = False,
        callbacks: Sequence[Any] = (),
        loggers: Sequence[Any] = (),
    ) -> TrainResult:
        """Train as `Trainer.train` does; call this method on every rank.

        Only rank 0 uses callbacks, loggers, the progress bar and the run folder. Ctrl-C on any rank stops all ranks.

        Returns:
            Result of rank 0, on every rank.

        Raises:
            ArgumentError: `total_timesteps` differs between ranks; also as for `Trainer.train`.
            PeerError: Another rank failed, exited or made a different call.
        """
        # Raise errors of arguments before any collective operation.
        self.run.check_total(total_timesteps)
        checked = as_callbacks(callbacks)
        ranks, learner = self.group.ranks, self.learner
        ranks.barrier("train")
        ranks.check_consistent({"total_timesteps": total_timesteps}, _SAME)
        learner.run_ended = False
        try:
            if ranks.is_main_rank:
                result = super().train(total_timesteps, callbacks=checked, progress_bar=progress_bar, loggers=loggers)
                ranks.send_command("end")
            else:
                result = super().train(total_timesteps)
                if not learner.run_ended:
                    ranks.recv_command("end")
            return ranks.broadcast(result)
        except BaseException as error:
            ranks.fail(error)
            raise


class PPOTrainer(DDPTrainer, trainers.PPOTrainer):
    """PPO trainer of a process group."""

    spec = replace(ALGORITHMS["ppo"], torch_learner=f"{_LEARNERS}PPO")


class A2CTrainer(DDPTrainer, trainers.A2CTrainer):
    """A2C trainer of a process group."""

    spec = replace(ALGORITHMS["a2c"], torch_learner=f"{_LEARNERS}A2C")


class SACTrainer(DDPTrainer, trainers.SACTrainer):
    """SAC trainer of a process group."""

    spec = replace(ALGORITHMS["sac"], torch_learner=f"{_LEARNERS}SAC")
