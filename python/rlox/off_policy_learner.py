"""`OffPolicyLearner`: what off-policy learners on torch share, around networks and updates."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rlox import finite, learner, settings, torch_state
from rlox.actor_critic import torch_dtype
from rlox.exploring import Explorer
from rlox.features import FeaturesExtractor
from rlox.masks import as_masks
from rlox.observations import as_batch
from rlox.optimizer import Adam, clip_norm_
from rlox.phases import enter
from rlox.replaying import ReplayBatch
from rlox.rollout import RolloutEnv

Array = npt.NDArray[Any]
# What is added to Adam's roots: torch's default, as Stable-Baselines3 has it for these algorithms.
EPS = 1e-8
# Modules whose names the names of tensors leave out.
_UNSAID = ("policy.", "temperature.")


class OffPolicyLearner(Explorer):
    """Steps, replay and updates; an algorithm says what its networks are and what they learn.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.
        config: Settings; `num_envs` must be the environments'.
        seed: Decides everything random.
        policy: A torch module of the caller's, or a function from the observation and the action
            space to one, as the algorithm describes it; None: built-in networks.
        features_extractor: For the built-in networks, as `rlox.policies.MlpPolicy` has it.

    Raises:
        ValueError, TypeError: Spaces, policy and config that do not fit together.
        MemoryError: The buffer or the networks do not fit into memory.
    """

    backend = "torch"
    # Of the policy among modules; "policy" is left out of the names of tensors.
    policy_name = "policy"
    # The losses, and what else updates say, in the order of the metrics.
    said: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        env: RolloutEnv,
        config: Any,
        seed: int,
        policy: Any = None,
        features_extractor: FeaturesExtractor | None = None,
    ) -> None:
        learner.expect_fitting(env, config, type(self).__name__)
        device = torch_state.find_device(config.device)
        super().__init__(env, config, seed, device)
        self.device, self.generator = device, torch.Generator(device)
        self.built_in = policy is None and features_extractor is None
        ours, others = map(int, self.init.generate_state(2, np.uint64))
        init = torch.Generator().manual_seed(ours)
        with torch_state.initialising(None if self.built_in else others, device):
            made = self.make_policy(policy, features_extractor, init)
        self.policy: Any = torch_state.place(made, self.generator)
        with torch_state.own_threads(1):
            others_of: Mapping[str, nn.Module] = self.make_rest()
        self.modules = nn.ModuleDict({self.policy_name: self.policy, **others_of})
        self.optimizers = self.make_optimizers()
        self.threads = torch_state.best_threads(self.policy, device)
        self.norms = torch.zeros((), device=device)
        self._told: dict[str, list[Tensor]] = {name: [] for name in self.said}
        self.last = dict.fromkeys(self.said, math.nan)

    def make_policy(
        self, policy: Any, features_extractor: FeaturesExtractor | None, init: torch.Generator
    ) -> nn.Module:
        """The caller's policy, checked, or the built-in one, whose weights `init` decides."""
        raise NotImplementedError

    def make_rest(self) -> dict[str, nn.Module]:
        """Target networks, and what else has tensors, by name."""
        raise NotImplementedError

    def make_optimizers(self) -> list[Adam]:
        """The optimisers, each of other parameters."""
        raise NotImplementedError

    def computes(self, *functions: Callable[..., Any]) -> None:
        """Notes, as `losses`, what is computed of minibatches; `compile` has it compiled."""
        self._plain = self._fast = self.losses = functions
        if self.config.compile:
            self._fast = tuple(torch.compile(function) for function in functions)

    def update(self, batch: ReplayBatch, learning_rate: float) -> None:
        """Learns from a minibatch; `tell`s what it has to say."""
        raise NotImplementedError

    def sampled(self, obs: Any, mask: Tensor | None) -> Tensor:
        """Actions that the policy draws."""
        raise NotImplementedError

    def explored(self, obs: Any, mask: Tensor | None) -> Tensor:
        """Actions to learn from: samples, unless an algorithm's go together over several steps."""
        return self.sampled(obs, mask)

    def greedy(self, obs: Any, mask: Tensor | None) -> Tensor:
        """Greedy actions."""
        raise NotImplementedError

    def sampling(self, progress: float) -> dict[str, float]:
        """What else sampling takes at this share of the run."""
        return {}

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Within it, all that torch draws comes from the next seeds of ours.

        Raises:
            RuntimeError: Another thread is within.
        """
        with self._alone():
            ours, others = map(int, self.streams["iterations"].integers(2**63, size=2))
            self.generator.manual_seed(ours)
            with torch_state.own(None if self.built_in else others, self.device, self.threads):
                yield

    def iterate(self, progress: float = 0.0) -> dict[str, float]:
        """Makes `train_freq` steps of each environment and learns from the buffer; see `Learner`.

        Steps that were made count, even if `stopping` came before they were learned from: they are
        in the buffer.
        """
        progress = settings.number("progress", progress, 0, 1, fix="pass the share that is done")
        config, left = self.config, {"constant": 1.0, "linear": 1.0 - progress}
        learning_rate = config.learning_rate * left[config.lr_schedule]
        with self.seeded():
            with torch.no_grad(), torch_state.evaluating(self.policy):
                made = self.collect(progress)
            if self.timesteps > config.learning_starts:
                due, before = self.minibatches(made), self.updates
                try:
                    self.learn(due, learning_rate, progress)
                finally:
                    self._paid(self.updates - before)
        self.episodes.drain(self.env)
        if not made:
            return {}
        return {
            "rollout/ep_rew_mean": self.episodes.mean_return,
            "rollout/ep_len_mean": self.episodes.mean_length,
            "time/total_timesteps": self.timesteps,
            **self.rates(progress),
            **{f"train/{name}": value for name, value in self.last.items()},
            "train/learning_rate": learning_rate,
            "train/n_updates": self.updates,
        }

    def rates(self, progress: float) -> dict[str, float]:
        """Metrics of how it explores."""
        return {}

    def learn(self, count: int, learning_rate: float, progress: float) -> None:
        """Updates by so many minibatches, until `stopping` ends them.

        Raises:
            FloatingPointError: A loss or a gradient is NaN or infinite.
        """
        self.norms.zero_()
        for told in self._told.values():
            told.clear()  # of an iteration that failed
        for _ in range(count):
            if self.stopping:
                break
            stream, how = self.streams["minibatches"], self.sampling(progress)
            enter("buffer")
            batch = self.replay.sample(stream, self.normalizer, **how)
            enter("gradient_update")
            if batch is not None:
                # Smaller ones would be compiled for as well.
                whole = len(batch.rewards) == self.config.batch_size
                self.losses = self._fast if whole else self._plain
                self.update(batch, learning_rate)
            self.updates += 1
        # Only here are numbers read: on a GPU, each reading would wait for all work before it.
        said = {name: torch.stack(told).mean().item() for name, told in self._told.items() if told}
        self.last |= said
        finite.refuse_spoiled({**said, "gradient": self.norms.item()}, self.timesteps)

    def tell(self, **said: Tensor) -> None:
        """Notes what an update has to say; metrics are the means over an iteration's updates."""
        for name, value in said.items():
            self._told[name].append(value.detach())

    def descend(
        self,
        optimizer: Adam,
        loss: Tensor,
        learning_rate: float,
        name: str,
        max_norm: float | None = None,
    ) -> None:
        """Moves an optimiser's parameters against the gradient of a loss, cut to a norm.

        Raises:
            FloatingPointError: It is not finite; these parameters have not moved then. On a GPU,
                where looking would wait, the iteration ends first.
        """
        gradient = optimizer.gradient(loss)
        norm = gradient.norm() if max_norm is None else clip_norm_(gradient, max_norm)
        self.norms += norm
        spoiled = ~norm.isfinite()
        if self.device.type != "cpu":
            gradient.masked_fill_(spoiled, 0.0)
        elif bool(spoiled):
            finite.refuse_spoiled({name: loss.item(), "gradient": norm.item()}, self.timesteps)
        optimizer.step(gradient, learning_rate)
        self.tell(**{name: loss})

    def observed(self, rows: Array) -> Any:
        """Raw observations as the policy takes them, where it lives; it may write to them."""
        if self.normalizer is not None and self.config.normalize_obs:
            rows = self.normalizer.normalize_obs(rows)
        tensor = torch.from_numpy(rows if self.built_in else rows.copy())
        return self.layout.unpack(tensor.to(self.device), torch_dtype)

    def explore(self, rows: Array, masks: Array | None) -> Array:
        """Actions for raw observations, as they are stored."""
        mask = None if masks is None else torch.from_numpy(masks).to(self.device)
        said = self.explored(self.observed(rows), mask)
        return said.numpy(force=True)

    def predict(
        self,
        obs: Any,
        deterministic: bool = True,
        stream: learner.Stream | None = None,
        action_masks: npt.ArrayLike | None = None,
    ) -> Array:
        """Actions for raw observations, greedy ones or samples; see `Learner`."""
        drawn, space = self._sampling(deterministic, stream), self.spaces[1]
        rows, single = as_batch(obs, self.layout)
        if len(rows) == 0:  # which torch cannot take apart
            return np.zeros((0, *(space.shape or ())), space.dtype)
        mask = None
        if action_masks is not None:
            mask = torch.from_numpy(as_masks(action_masks, space, len(rows))).to(self.device)
        observed = self.observed(rows)
        with torch.no_grad(), torch_state.evaluating(self.policy, self.threads):
            if drawn is None:
                said = self.greedy(observed, mask)
            else:
                seed = int(drawn.integers(2**63))
                others = None if self.built_in else seed
                with (
                    self._not_learning(),
                    torch_state.reseeded(self.generator, seed),
                    torch_state.own(others, self.device, self.threads),
                ):
                    said = self.sampled(observed, mask)
        sent = self.sent(said.numpy(force=True))
        return sent[0] if single else sent

    def _parameters(self) -> learner.Arrays:
        """The parameters of the policy, to name one that is NaN."""
        return torch_state.module_arrays(self.policy)

    def _networks(self) -> learner.Arrays:
        """Copies of all parameters and buffers, by name."""
        return {_told(name): x for name, x in torch_state.module_arrays(self.modules).items()}

    def _optimizer_state(self) -> learner.Arrays:
        """Copies of what the optimisers keep, by name."""
        return {name: x for optimizer in self.optimizers for name, x in optimizer.state().items()}

    def _restore(self, state: learner.LearnerState) -> bool:
        """Takes networks, optimisers, buffer and environments; see `BaseLearner._restore`."""
        known = {_told(name): name for name in self.modules.state_dict()}
        arrays = {known.get(name, name): x for name, x in state.networks.items()}
        tensors = torch_state.module_tensors(self.modules, arrays)
        parts = self._shared_out(state.optimizer)
        for optimizer, part in zip(self.optimizers, parts, strict=True):
            optimizer.check_state(part)
        stands = super()._restore(state)
        for optimizer, part in zip(self.optimizers, parts, strict=True):
            optimizer.load_state(part)
        self.modules.load_state_dict(tensors)
        return stands

    def _shared_out(self, arrays: learner.Arrays) -> list[learner.Arrays]:
        """What each optimiser keeps; the first one gets what none knows, and refuses it."""
        rest, parts = dict(arrays), list[learner.Arrays]()
        for optimizer in self.optimizers:
            names = [name for name in optimizer.state() if name in rest]
            parts.append({name: rest.pop(name) for name in names})
        parts[0] |= rest
        return parts


def _told(name: str) -> str:
    """The name of a tensor, as every backend has it."""
    for prefix in _UNSAID:
        name = name.removeprefix(prefix)
    return name
