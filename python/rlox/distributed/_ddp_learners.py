"""Torch learners (PPO, A2C, SAC) for one rank of a process group.

Each rank has its share of the settings and its own environments, replay buffer and random streams.
Gradients of minibatch means are averaged over the ranks. Advantages are normalized over all ranks,
normalizer statistics are merged, and all ranks stop at the same point.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor
from torch.nn import Module

from rlox import _spaces, _types, learners
from rlox._errors import ArgumentError
from rlox._nn.custom import PolicyLike
from rlox._nn.optim import VectorOptimizer
from rlox.algorithms import a2c, ppo, sac
from rlox.algorithms._on_policy import Batch
from rlox.distributed import _ddp_state
from rlox.distributed.ddp import current_group
from rlox.envs._rollout_env import RolloutEnv
from rlox.features import FeaturesExtractor
from rlox.policies import Evaluate

_EPISODES = ("rollout/ep_rew_mean", "rollout/ep_len_mean")
if TYPE_CHECKING:
    from rlox.learners.base import BaseLearner

    _Learner = BaseLearner[Any]
else:  # the learner class provides the base
    _Learner = object


class DDPMixin(_Learner):
    """Mixin for one rank of a group; precedes the learner class in the list of bases.

    Args:
        env: Environments of this rank.
        config: This rank's share of the settings.
        seed: Seed of the run.
        policy, features_extractor: As for the learner.

    Raises:
        ArgumentError: Several ranks use autoreset mode NEXT_STEP, in which their numbers of
            transitions would differ; or spaces or networks differ between ranks.
    """

    built_in: bool
    module_names: tuple[str, ...] = ("policy",)  # modules whose tensors are equal on all ranks
    may_cut_rollouts = True  # True if a rank may stop collecting before the other ranks

    def __init__(
        self,
        env: RolloutEnv,
        config: learners.Config,
        seed: int,
        policy: PolicyLike = None,
        features_extractor: FeaturesExtractor | None = None,
    ) -> None:
        self.ranks = current_group().ranks
        self.world_size = self.ranks.size
        if env.autoreset_mode is AutoresetMode.NEXT_STEP and self.world_size > 1:
            raise ArgumentError(
                "env",
                "environments with autoreset mode SAME_STEP or DISABLED for training in several processes",
                "NEXT_STEP",
                "create them with autoreset_mode='SameStep'",
            )
        self._local_stop_requested = False  # this rank requests a stop
        self.stop_agreed = False  # all ranks know that a rank requests a stop
        self._may_stop_alone = self.ranks.is_main_rank
        self.run_ended = False  # rank 0 has ended the run
        self._base = _types.Arrays()  # normalizer state after the last merge
        local_seed = _ddp_state.rank_seed(seed, self.ranks.rank)
        super().__init__(env, config, local_seed, policy, features_extractor)  # type: ignore[call-arg,arg-type]  # the learner's
        self._local_episodes, self.episodes = self.episodes, learners.EpisodeStatistics()
        values = {
            "observation space": _spaces.to_json(self.env.single_observation_space),
            "action space": _spaces.to_json(self.env.single_action_space),
            "policy": [(str(x.dtype), tuple(x.shape)) for x in self._tensors()],
        }
        self.ranks.check_consistent(values, "use the same environments and policy on every rank")
        self._broadcast_weights()
        self.ranks.learners.append(self)

    @property
    def budget_used(self) -> int:
        """Number of steps learned from, over all environments of all processes."""
        return int(self.timesteps) * self.world_size

    # Ranks that leave a loop at different points would wait for each other until the timeout.
    @property
    def stop_requested(self) -> bool:
        """True if loops must end early; in collective work, only if all ranks know of the stop."""
        return self.stop_agreed or (self._may_stop_alone and self._local_stop_requested)

    @stop_requested.setter
    def stop_requested(self, value: bool) -> None:
        self._local_stop_requested = value
        self.stop_agreed = self.stop_agreed and value

    def iterate(self, progress: float = 0.0) -> dict[str, float]:
        """Run one iteration on all ranks.

        Args:
            progress: As for `Learner.iterate`. The value of rank 0 is used on all ranks.

        Returns:
            Means of the metrics over all ranks; empty after a stop or if rank 0 ended the run.
            Episode metrics cover the last 100 episodes of all ranks.

        Raises:
            PeerError: Another rank failed.
        """
        ranks = self.ranks
        if ranks.is_main_rank:
            ranks.send_command("iterate", progress)
        else:
            command, values = ranks.recv_command("iterate", "end")
            self.run_ended = command == "end"
            if self.run_ended:
                return {}
            (progress,) = values
        try:
            with self._use_local_episodes():
                metrics: dict[str, float] = super().iterate(progress)  # type: ignore[misc]  # the learner's
            return self._merge_metrics(metrics)
        except BaseException as error:
            ranks.fail(error)
            raise
        finally:
            self._may_stop_alone = ranks.is_main_rank

    def collect(self, *args: Any) -> Any:
        """Collect with this rank's environments, then agree on a stop and merge statistics."""
        self._may_stop_alone = self.may_cut_rollouts
        try:
            collected = super().collect(*args)  # type: ignore[misc]  # the learner's
        finally:
            self._may_stop_alone = False
        normalizer = self.normalizer
        local_statistics = () if normalizer is None else _ddp_state.flatten_statistics(normalizer.state())
        rows = self.ranks.all_gather([float(self._local_stop_requested), *local_statistics])
        self.stop_agreed = bool(rows[:, 0].any())
        if normalizer is not None:
            merged = _ddp_state.merge_statistics(self._base, rows[:, 1:])
            normalizer.load_state(normalizer.state() | merged)
            self._base = normalizer.state()
        return collected and not self.stop_agreed if self.may_cut_rollouts else collected

    def state(self, replay: bool = True) -> learners.LearnerState:
        """Return the state of all ranks on rank 0, and of this rank alone on the other ranks."""
        with self._use_local_episodes():
            local_state = super().state(replay)
        ranks = self.ranks
        if not ranks.is_main_rank or self.world_size == 1:
            return local_state
        if ranks.failure:
            return _ddp_state.degraded_state(local_state, self.world_size, ranks.failure)
        ranks.send_command("state", ranks.learners.index(self), replay)
        _, *others = ranks.gather_objects(None)
        return _ddp_state.merge_states([local_state, *others])

    def send_state(self, replay: bool) -> None:
        """Send the state of this rank to rank 0, without networks and optimizer."""
        local_state = replace(self.state(replay), networks={}, optimizer={})
        self.ranks.gather_objects(local_state)

    def load_state(self, state: learners.LearnerState) -> None:
        """Restore a state of all ranks; called on every rank. See `Learner.load_state`."""
        learners.check_state(state)
        episodes = learners.EpisodeStatistics()
        episodes.load_state(state.counters.get("episodes", {}))
        with self._use_local_episodes():
            local_state = _ddp_state.shard_state(state, self.ranks.rank) if state.ranks else state
            super().load_state(local_state)
            self._local_episodes = self.episodes
        self.episodes = episodes
        self._broadcast_weights()

    @contextmanager
    def _use_local_episodes(self) -> Iterator[None]:
        """Restrict `episodes`, which covers all ranks, to this rank within the context."""
        merged, self.episodes = self.episodes, self._local_episodes
        try:
            yield
        finally:
            self.episodes = merged

    def _broadcast_weights(self) -> None:
        """Copy parameters and buffers of rank 0; store the normalizer state for the next merge."""
        self.ranks.broadcast_tensors(self._tensors())
        self._base = {} if self.normalizer is None else self.normalizer.state()

    def _modules(self) -> list[Module]:
        return [getattr(self, name) for name in self.module_names]

    def _tensors(self) -> list[Tensor]:
        return [tensor for module in self._modules() for tensor in (*module.parameters(), *module.buffers())]

    def _average(self, gradient: Tensor) -> Tensor:
        """Return the mean gradient over all ranks; set `stop_agreed` if a rank stops."""
        stop_flag = gradient.new_full((1,), float(self._local_stop_requested))
        total = self.ranks.all_reduce(torch.cat((gradient, stop_flag)))
        self.stop_agreed = self.stop_agreed or bool(total[-1] > 0)
        return total[:-1].div_(self.world_size)

    def _merge_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return the merged metrics of all ranks. Either all ranks have metrics or none has."""
        rows = self.ranks.all_gather_objects((metrics, self._local_episodes.state()))
        self.episodes = _ddp_state.merge_episodes([episodes for _, episodes in rows])
        if not self.built_in:  # forward passes may change buffers, such as batch norm statistics
            self.ranks.broadcast_tensors(x for module in self._modules() for x in module.buffers())
        if not metrics:
            return {}
        merged = {}
        for name in metrics:
            values = np.array([rank_metrics[name] for rank_metrics, _ in rows])
            finite = values[np.isfinite(values)]
            merged[name] = float(finite.mean()) if finite.size else np.nan
        merged |= zip(_EPISODES, (self.episodes.mean_return, self.episodes.mean_length), strict=True)
        merged[learners.TIMESTEPS] = int(metrics[learners.TIMESTEPS]) * self.world_size
        merged["train/n_updates"] = int(metrics["train/n_updates"])
        return merged


class _OnPolicy(DDPMixin):
    """On-policy learner that normalizes advantages over the minibatches of all ranks."""

    loss: Callable[..., Any]
    optimizer: VectorOptimizer

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.optimizer.average = self._average
        if self.config.normalize_advantage:
            self.loss = self._normalizing(self.loss)

    def _normalizing(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        config = replace(self.config, normalize_advantage=False)

        def normalized(evaluate: Evaluate, batch: Batch, _: object, *rest: object) -> object:
            batch = batch._replace(advantages=self._standardize(batch.advantages))
            return loss(evaluate, batch, config, *rest)

        return normalized

    def _standardize(self, numbers: Tensor) -> Tensor:
        """Subtract the mean over all ranks and divide by the standard deviation."""
        var, mean = torch.var_mean(numbers.double(), correction=0)
        rows = self.ranks.all_gather([mean.item(), var.item(), float(len(numbers))])
        parts = [(row[:1], row[1:2], float(row[2])) for row in rows]
        all_mean, all_var, count = _ddp_state.merge_moments(*parts)
        if count < 2:
            return numbers
        std = np.sqrt(all_var[0] * count / (count - 1))
        return (numbers - float(all_mean[0])) / (float(std) + 1e-8)


class PPO(_OnPolicy, ppo.PPO):
    """PPO learner of one rank."""

    def divergence(self, log_ratio: Tensor) -> float:
        """Return the mean `approx_kl` over all ranks, so that `target_kl` stops all ranks at once."""
        return float(self.ranks.all_gather([super().divergence(log_ratio)]).mean())


class A2C(_OnPolicy, a2c.A2C):
    """A2C learner of one rank."""


class SAC(DDPMixin, sac.SAC):
    """SAC learner of one rank, with a replay buffer of its own."""

    module_names = ("modules",)
    # Steps count once they are in the buffer, so every rank must complete the same number.
    may_cut_rollouts = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for optimizer in self.optimizers:
            optimizer.average = self._average
