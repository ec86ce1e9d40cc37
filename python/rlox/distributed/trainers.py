"""Trainers of which each process of a group has one: rank 0's leads, the others' follow it."""

import json
import os
from collections.abc import Sequence
from typing import Any

from rlox import trainers
from rlox._errors import ArgumentError
from rlox.callbacks.base import as_callbacks
from rlox.distributed.alike import expect_alike, expect_alike_or_refused, refused
from rlox.distributed.groups import current
from rlox.distributed.shares import share
from rlox.loop import plan
from rlox.manifest import settings_told
from rlox.registered import count_of, name_of
from rlox.results import STOP, TrainResult
from rlox.settings import chosen_seed, text
from rlox.trainer import EnvLike, Trainer

_WHERE = "rlox.distributed.learners:"
_FIX = "pass the same on every rank"


class RankedTrainer(Trainer):
    """A trainer of a group; `rlox.distributed.ddp.Group.trainer` makes it.

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
        self.group = group = current()
        expect_alike_or_refused(group.ranks, lambda: self._asked(env, seed, backend), _FIX)
        seed = int(group.ranks.tell(str(chosen_seed(seed)).encode()))
        self._own_envs = count_of(env) is not None and "num_envs" not in kwargs
        self._whole, self._compared = None, False
        folder = runs_dir if group.ranks.leads else None
        try:
            super().__init__(env, seed, backend="torch", runs_dir=folder, **kwargs)
        except (TypeError, ValueError) as error:
            if not self._compared:  # the others compare their settings
                expect_alike(group.ranks, refused(error), _FIX)
            raise
        group.members.append(self)

    def _asked(self, env: EnvLike, seed: int | None, backend: str) -> dict[str, Any]:
        """What has to be the same on all ranks, beside settings.

        Raises:
            TypeError, ValueError: It is none.
        """
        if text("backend", backend) not in ("auto", "torch"):
            raise ArgumentError(
                "backend",
                "'torch', on which processes average their gradients",
                repr(backend),
                "leave it out",
            )
        chosen_seed(seed)
        made = count_of(env) is not None  # which are the rank's own: learners compare their spaces
        named = "environments already made" if made else name_of(env)
        return {"algorithm": self.algorithm, "env": named}

    def _share(self, config: Any) -> Any:
        told = settings_told(config)
        told["device"] = config.device.partition(":")[0]  # each may have a GPU of its own
        self._compared = True
        expect_alike(self.group.ranks, told, _FIX)
        self._whole, own = share(
            config, self.group.size, own_envs=self._own_envs, device=self.group.device
        )
        return own

    @property
    def config(self) -> Any:
        """All settings of the whole run, resolved; `learner.config` has this process's share."""
        return self._whole

    @property
    def timesteps(self) -> int:
        """Steps learned from so far, all environments of all processes together."""
        return int(self.learner.timesteps) * self.group.size

    @property
    def stopped_by(self) -> str | None:
        """Why the run ended, as in `TrainResult`; another rank's wish counts as `stop()`."""
        agreed = hasattr(self, "learner") and self.learner.agreed
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
        """As `Trainer.train`, called on every rank.

        Callbacks and loggers are rank 0's, the run folder, too; Ctrl-C on any rank ends all.

        Returns:
            The same on every rank.

        Raises:
            ValueError: Ranks were told other numbers of steps; what `Trainer.train` refuses.
            rlox.distributed.ddp.PeerError: Another rank failed, died, or makes other calls.
        """
        plan(self, total_timesteps)  # which refuses, on all ranks alike, before anything begins
        called = as_callbacks(callbacks)
        ranks, learner = self.group.ranks, self.learner
        ranks.meet("train")
        expect_alike(ranks, {"total_timesteps": total_timesteps}, _FIX)
        learner.over = False
        try:
            if ranks.leads:
                how: dict[str, Any] = {"progress_bar": progress_bar, "loggers": loggers}
                result = super().train(total_timesteps, callbacks=called, **how)
                ranks.order("end")
            else:
                result = super().train(total_timesteps)
                if not learner.over:
                    ranks.hear("end")
            told: TrainResult = json.loads(ranks.tell(json.dumps(result).encode()))
        except BaseException as error:
            ranks.peers.report(error)
            raise
        return told

    def save(self, path: str | os.PathLike[str], *, replay: bool = True) -> None:
        """As `Trainer.save`: rank 0 writes a checkpoint of all ranks, which the others wait for.

        Rank 0 may call it alone: it gets what it needs from the others at their next call of
        `train`, `save` or `load`, or where they leave the group.
        """
        ranks = self.group.ranks
        if not ranks.leads:
            ranks.hear("save")
            return
        try:
            super().save(path, replay=replay)
        finally:
            if not ranks.peers.broken:
                ranks.order("save")


class PPOTrainer(RankedTrainer, trainers.PPOTrainer):
    """PPO in several processes."""

    learners = (f"{_WHERE}PPO", "")


class A2CTrainer(RankedTrainer, trainers.A2CTrainer):
    """A2C in several processes."""

    learners = (f"{_WHERE}A2C", "")


class SACTrainer(RankedTrainer, trainers.SACTrainer):
    """SAC in several processes."""

    learners = (f"{_WHERE}SAC", "")


TRAINERS: dict[str, type[RankedTrainer]] = {
    kind.algorithm: kind for kind in (PPOTrainer, A2CTrainer, SACTrainer)
}
