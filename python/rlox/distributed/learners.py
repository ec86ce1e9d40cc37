"""PPO, A2C and SAC on torch as one of several processes that learn the same weights.

Each process is a learner as any other, of its share of the settings: its own environments, replay
and random streams. What makes them one is said here: where the algorithms take the mean over a
minibatch, the gradient is averaged; advantages are normalised over all; statistics are merged; and
all stop at the same place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from rlox import algorithms, learner, spaces
from rlox._errors import ArgumentError
from rlox.distributed.alike import expect_alike
from rlox.distributed.groups import current
from rlox.distributed.merging import episodes_merged, flat, merge, rows_merged
from rlox.distributed.shares import rank_seed
from rlox.distributed.states import left_state, own_state, packed, unpacked, whole_state
from rlox.resets import autoreset_mode_of

# Of a window of episodes as numbers: their count, how many are told, returns and lengths.
_WINDOW = 100
_EPISODES = ("rollout/ep_rew_mean", "rollout/ep_len_mean")


if TYPE_CHECKING:
    from rlox.base_learner import BaseLearner as _Learner
else:  # learners bring it
    _Learner = object


class Ranked(_Learner):
    """Before a learner of torch among the bases of a class: one of a group's ranks.

    Args:
        env, config, seed, policy, features_extractor: As for the learner. `config` is this rank's
            share, `seed` the run's.

    Raises:
        ValueError: Environments in autoreset mode NEXT_STEP, in which ranks would have different
            numbers of transitions; what the learner refuses.
    """

    optimizer: Any
    optimizers: Any
    built_in: bool
    modules_of: tuple[str, ...] = ("policy",)  # attributes whose tensors all ranks share
    stops_anywhere = True  # whether a rank may end its own steps before the others do

    def __init__(self, env: Any, config: Any, seed: int, *own: Any) -> None:
        self.ranks = current().ranks
        self.world_size = self.ranks.size
        mode = getattr(env, "_mode", None) or autoreset_mode_of(env)
        if mode is AutoresetMode.NEXT_STEP and self.world_size > 1:
            raise ArgumentError(
                "env",
                "environments in autoreset mode SAME_STEP or DISABLED where several processes "
                "learn together",
                "NEXT_STEP",
                "make them with autoreset_mode='SameStep'",
            )
        # Whether this rank wants to stop, whether all know that one does, and whether this one's
        # wish counts where it is now; whether rank 0 ended the run.
        self._wish, self.agreed, self._free = False, False, self.ranks.leads
        self.over = False
        self._base = learner.Arrays()
        super().__init__(env, config, rank_seed(seed, self.ranks.rank), *own)
        self._own_episodes, self.episodes = self.episodes, learner.EpisodeStatistics()
        for optimizer in getattr(self, "optimizers", None) or [self.optimizer]:
            optimizer.average = self._averaged
        self._expect_alike()
        self._share()

    # Ranks that ended a loop at different places would wait for each other for ever.
    @property
    def stopping(self) -> bool:
        """Whether to return early; within what all do together, only when all know."""
        return self.agreed or (self._free and self._wish)

    @stopping.setter
    def stopping(self, value: bool) -> None:
        self._wish = value
        self.agreed = self.agreed and value

    def iterate(self, progress: float = 0.0) -> dict[str, float]:
        """One iteration of all ranks; empty where rank 0 ended the run. See `Learner`.

        Metrics are the means over ranks; of episodes, those of the last 100 of all ranks.

        Raises:
            PeerError: Another rank failed.
        """
        ranks = self.ranks
        if ranks.leads:
            ranks.order("iterate", number=progress)
        else:
            what, progress = ranks.hear("iterate", "end")
            self.over = what == "end"
            if self.over:
                return {}
        try:
            with self._own():
                metrics: dict[str, float] = super().iterate(progress)  # type: ignore[misc]  # the learner's
            return self._of_all(metrics)
        except BaseException as error:
            ranks.peers.report(error)
            raise
        finally:
            self._free = ranks.leads

    def collect(self, *given: Any) -> Any:
        """Steps of this rank's environments; then all agree whether to go on, and merge."""
        self._free = self.stops_anywhere
        try:
            made = super().collect(*given)  # type: ignore[misc]  # the learner's
        finally:
            self._free = False
        normalizer = self.normalizer
        now = np.empty(0) if normalizer is None else flat(normalizer.state())
        rows = self.ranks.gather([float(self._wish), *now])
        self.agreed = bool(rows[:, 0].any())
        if normalizer is not None:
            normalizer.load_state(normalizer.state() | rows_merged(self._base, rows[:, 1:]))
            self._base = normalizer.state()
        return made and not self.agreed if self.stops_anywhere else made

    def state(self, replay: bool = True) -> learner.LearnerState:
        """Of the whole run on rank 0, which asks the others; on them their own."""
        with self._own():
            state = super().state(replay)
        if not self.ranks.leads or self.world_size == 1:
            return state
        if self.ranks.peers.broken:
            return left_state(state, self.world_size, self.ranks.peers.broken)
        self.ranks.order("state", current().number_of(self), float(replay))
        others = [unpacked(self.ranks.take(k)) for k in range(1, self.world_size)]
        return whole_state([state, *others])

    def give_state(self, replay: bool) -> None:
        """Gives rank 0 what is this rank's own."""
        self.ranks.give(packed(self.state(replay)))

    def load_state(self, state: learner.LearnerState) -> None:
        """Goes back to a state of all ranks, on each of them; see `Learner`."""
        learner.expect_state(state)
        episodes = learner.EpisodeStatistics()
        episodes.load_state(state.counters.get("episodes", {}))
        with self._own():
            own = own_state(state, self.ranks.rank) if state.ranks else state
            super().load_state(own)
            self._own_episodes = self.episodes
        self.episodes = episodes
        self._share()

    @contextmanager
    def _own(self) -> Iterator[None]:
        """Within it `episodes` are those of this rank, else those of all."""
        whole, self.episodes = self.episodes, self._own_episodes
        try:
            yield
        finally:
            self.episodes = whole

    def _share(self) -> None:
        """Takes rank 0's parameters and buffers, and notes the statistics that all begin with."""
        self.ranks.share_(self._tensors())
        self._base = {} if self.normalizer is None else self.normalizer.state()

    def _expect_alike(self) -> None:
        """All ranks have environments and networks of the same kind.

        Raises:
            ValueError: They have not; who has what.
        """
        shapes = [(str(x.dtype), tuple(x.shape)) for x in self._tensors()]
        told = {
            "observation space": spaces.describe(self.env.single_observation_space),
            "action space": spaces.describe(self.env.single_action_space),
            "tensors of the policy": len(shapes),
            **{f"tensor {i}": x for i, x in enumerate(shapes)},
        }
        expect_alike(self.ranks, told, "make the same environments and policy on every rank")

    def _tensors(self) -> Iterator[Tensor]:
        modules = [getattr(self, name) for name in self.modules_of]
        return chain.from_iterable((*m.parameters(), *m.buffers()) for m in modules)

    def _averaged(self, gradient: Tensor) -> Tensor:
        """The mean of all ranks' gradients; with it they hear whether one wants to stop."""
        wish = torch.full((1,), float(self._wish), dtype=gradient.dtype, device=gradient.device)
        joined = self.ranks.sum_(torch.cat((gradient, wish)))
        self.agreed = self.agreed or bool(joined[-1] > 0)
        return joined[:-1].div_(self.world_size)

    def _of_all(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics of all ranks, from those of each; where there are none, all have none."""
        own = self._own_episodes
        names = sorted(metrics)
        window = [float(own.count), float(len(own.returns))]
        for told in (own.returns, own.lengths):
            window += [*map(float, told), *[0.0] * (_WINDOW - len(told))]
        rows = self.ranks.gather([*window, *(metrics[name] for name in names)])
        each = []
        for row in rows:
            one, n = learner.EpisodeStatistics(), int(row[1])
            one.add(row[2 : 2 + n], row[2 + _WINDOW : 2 + _WINDOW + n].astype(np.int64))
            one.count = int(row[0])
            each.append(one)
        self.episodes = episodes_merged(each)
        if not self.built_in:  # theirs may change in forward passes, as those of batch norms do
            self.ranks.share_(x for name in self.modules_of for x in getattr(self, name).buffers())
        if not metrics:
            return {}
        said = rows[:, 2 + 2 * _WINDOW :]
        means = [x[np.isfinite(x)].mean() if np.isfinite(x).any() else np.nan for x in said.T]
        merged = {name: float(x) for name, x in zip(names, means, strict=True)}
        merged |= dict(
            zip(_EPISODES, (self.episodes.mean_return, self.episodes.mean_length), strict=True)
        )
        merged["time/total_timesteps"] = int(metrics["time/total_timesteps"]) * self.world_size
        merged["train/n_updates"] = int(metrics["train/n_updates"])
        return {name: merged[name] for name in metrics}


class _OnPolicy(Ranked):
    """What PPO and A2C share: losses with advantages normalised over the ranks' minibatches."""

    loss: Any

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._plain = replace(self.config, normalize_advantage=False)
        self.loss = self._normalizing(self.loss)

    def _normalizing(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        def of_all(evaluate: Any, batch: Any, config: Any, *rest: Any) -> Any:
            if not config.normalize_advantage:
                return loss(evaluate, batch, config, *rest)
            batch = batch._replace(advantages=self._standardized(batch.advantages))
            return loss(evaluate, batch, self._plain, *rest)

        return of_all

    def _standardized(self, numbers: Tensor) -> Tensor:
        """Less the mean of all ranks' numbers, over their deviation, as of one minibatch."""
        var, mean = torch.var_mean(numbers.double(), correction=0)
        rows = self.ranks.gather([mean.item(), var.item(), float(len(numbers))])
        parts = [(row[:1], row[1:2], float(row[2])) for row in rows]
        whole_mean, whole_var, count = merge(*parts)
        if count < 2:
            return numbers
        std = np.sqrt(whole_var[0] * count / (count - 1))
        return (numbers - float(whole_mean[0])) / (float(std) + 1e-8)


class PPO(_OnPolicy, algorithms.PPO):
    """PPO as one of several processes."""

    def divergence(self, log_ratio: Tensor) -> float:
        """The mean over ranks, so that `target_kl` ends the updates of all."""
        return float(self.ranks.gather([super().divergence(log_ratio)]).mean())


class A2C(_OnPolicy, algorithms.A2C):
    """A2C as one of several processes."""


class SAC(Ranked, algorithms.SAC):
    """SAC as one of several processes, each with a replay buffer of its own."""

    modules_of = ("modules",)
    # Steps count as soon as they are in the buffer: all ranks make as many.
    stops_anywhere = False
