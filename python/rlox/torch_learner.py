"""`TorchLearner`: what learners on torch have in common, around the algorithm itself."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlox import learner, policies, settings, spaces, torch_state
from rlox.batches import Batch
from rlox.configs import SHAPE_SETTINGS
from rlox.features import FeaturesExtractor
from rlox.layouts import Layout
from rlox.masks import as_masks, mask_width, no_masks
from rlox.observations import as_batch
from rlox.optimizer import VectorOptimizer
from rlox.rollout import RolloutEnv, make_buffer


class TorchLearner:
    """Environments, policy, normaliser, random streams, and a state to save; see `Learner`.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.
        config: Settings; `num_envs` must be the environments'.
        seed: Decides everything random: initial weights, environments, actions, minibatches.
        policy: A torch module that does what `rlox.policies.ActorCritic` says, or a function from
            the observation and action space to one; None: the built-in MLP. Torch's global
            generator is seeded by ours meanwhile; other threads must not draw from it.
        features_extractor: For the built-in policy, see `rlox.policies.MlpPolicy`.

    Raises:
        ValueError, TypeError: Spaces, policy and config that do not fit together.
        MemoryError: The networks do not fit into memory.
    """

    backend = "torch"
    optimizer: VectorOptimizer

    def __init__(
        self,
        env: RolloutEnv,
        config: Any,
        seed: int,
        policy: policies.PolicyLike = None,
        features_extractor: FeaturesExtractor | None = None,
    ) -> None:
        learner.expect_fitting(env, config, type(self).__name__)
        self.env, self.config = env, config
        init, *own = np.random.SeedSequence(settings.whole("seed", seed, 0)).spawn(4)
        # A base seed for each reset of all, seeds for torch in each iteration, for each sample.
        names = ("resets", "iterations", "predictions")
        self.streams = {n: np.random.default_rng(s) for n, s in zip(names, own, strict=True)}
        self.device = torch_state.find_device(config.device)
        self.generator = torch.Generator(self.device)
        self.spaces = env.single_observation_space, env.single_action_space
        shape: dict[str, Any] = {name: getattr(config, name) for name in SHAPE_SETTINGS}
        shape["features_extractor"] = features_extractor
        self.built_in = policy is None and features_extractor is None
        ours, others = map(int, init.generate_state(2, np.uint64))
        shape["init"] = torch.Generator().manual_seed(ours)
        with torch_state.initialising(None if self.built_in else others, self.device):
            made: Any = policies.make_policy(policy, *self.spaces, shape)  # an ActorCritic
        self.policy = torch_state.place(made, self.generator)
        self.evaluate = policies.evaluating_actions(self.policy)
        self.layout = Layout(self.spaces[0])
        self.threads = torch_state.best_threads(self.policy, self.device)
        self.normalizer = learner.make_normalizer(config, self.spaces[0])
        self.episodes = learner.EpisodeStatistics()
        self.timesteps = self.updates = 0
        self.started = self.stopping = False
        self._idle = threading.Lock()

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Within it, all that torch draws comes from the next seeds of ours.

        Raises:
            RuntimeError: Another thread is within.
        """
        if not self._idle.acquire(blocking=False):
            raise RuntimeError(
                "iterate: expected a learner that no other thread uses, got one that is learning; "
                "make a trainer for each thread"
            )
        try:
            ours, others = map(int, self.streams["iterations"].integers(2**63, size=2))
            self.generator.manual_seed(ours)
            # Built-in policies draw from nothing else; others may, from torch's global generators.
            with torch_state.own(None if self.built_in else others, self.device, self.threads):
                yield
        finally:
            self._idle.release()

    def first_seed(self) -> int | None:
        """For the environments, where they have not been reset by us yet."""
        if self.started:
            return None
        self.env.drain_episodes()  # those are not ours
        return int(self.streams["resets"].integers(2**31))

    def make_storage(self, n_steps: int) -> None:
        """The buffer for rollouts, and views of it: steps' observations and masks, and all rows."""
        config = self.config
        width = mask_width(self.spaces[1]) if config.action_masks else None
        # What wraps other environments learns whether they have masks when they are reset.
        masked = getattr(self.env, "has_action_masks", hasattr(self.env, "action_masks"))
        if width is not None and not masked:
            raise no_masks(self.env)
        made = make_buffer(self.env, n_steps, normalize_obs=config.normalize_obs, mask_width=width)
        self.buffer, self.obs = made, torch.from_numpy(made.obs)
        self.masks = None if width is None else torch.from_numpy(made.field("action_masks"))
        self.rows = Batch.views_of(made, self.masks)

    def allowed(self, t: int) -> tuple[Tensor, ...]:
        """The masks of step `t`, noted in the buffer; nothing for environments without."""
        if self.masks is None:
            return ()
        env: Any = self.env  # with masks, see `make_storage`
        self.masks[t] = torch.from_numpy(env.action_masks())
        return (self.masks[t].to(self.device),)

    def observed(self, rows: Tensor) -> Any:
        """Rows of a rollout as the policy takes them, where it lives."""
        return self.layout.unpack(rows.to(self.device), policies.torch_dtype)

    def unpacked(self, batch: Batch) -> Batch:
        """A batch whose observations are as the policy takes them."""
        return batch._replace(obs=self.observed(batch.obs))

    def values(self, obs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The policy's values of normalised observations, (n,)."""
        values: Tensor = self.policy.get_value(self.observed(torch.from_numpy(obs)))
        return values.numpy(force=True)

    def predict(
        self,
        obs: Any,
        deterministic: bool = True,
        stream: learner.Stream | None = None,
        action_masks: npt.ArrayLike | None = None,
    ) -> npt.NDArray[Any]:
        """Actions for raw observations, greedy ones or samples; see `Learner`."""
        deterministic = settings.flag("deterministic", deterministic, fix="pass one of them")
        if stream is not None and not isinstance(stream, np.random.Generator):
            raise TypeError(
                f"stream: expected a numpy.random.Generator or None, got {type(stream).__name__}; "
                "pass numpy.random.default_rng(seed)"
            )
        rows, single = as_batch(obs, self.layout, self.normalizer)
        observed = self.observed(torch.from_numpy(rows))
        mask = None
        if action_masks is not None:
            flags = as_masks(action_masks, self.spaces[1], len(rows))
            mask = torch.from_numpy(flags).to(self.device)
        with torch.no_grad(), torch_state.evaluating(self.policy, self.threads):
            if deterministic:
                said = policies.greedy(self.policy, observed, mask)
            else:
                seed = int((stream or self.streams["predictions"]).integers(2**63))
                self.generator.manual_seed(seed)
                with torch_state.own(None if self.built_in else seed, self.device, self.threads):
                    said = policies.sampled(self.policy, observed, mask)
        sent = spaces.sent_actions(self.spaces[1], said.numpy(force=True), len(rows))
        return sent[0] if single else sent

    def state(self) -> learner.LearnerState:
        """A copy of all that is needed to go on; see `Learner`."""
        if self.started:  # else the episodes that ended are not ours
            self.episodes.drain(self.env)
        counts = {"timesteps": self.timesteps, "updates": self.updates}
        return learner.LearnerState(
            networks=torch_state.module_arrays(self.policy),
            optimizer=self.optimizer.state(),
            normalizer={} if self.normalizer is None else dict(self.normalizer.state()),
            environment=learner.environment_state(self.env) if self.started else {},
            counters={**counts, "episodes": self.episodes.state()},
            streams={name: learner.stream_state(s) for name, s in self.streams.items()},
        )

    def load_state(self, state: learner.LearnerState) -> None:
        """Goes back to a state, whole or not at all; foreign environments start new episodes."""
        learner.expect_state(state)
        streams = learner.streams_from_states(state.streams, self.streams)
        counts, episodes = learner.counts_from_state(state.counters, ("timesteps", "updates"))
        tensors = torch_state.module_tensors(self.policy, state.networks)
        normalizer = learner.make_normalizer(self.config, self.spaces[0], state.normalizer)
        self.optimizer.check_state(state.optimizer)
        self.started = learner.restore_environment(self.env, state.environment)
        self.optimizer.load_state(state.optimizer)
        self.policy.load_state_dict(tensors)
        self.normalizer, self.streams, self.episodes = normalizer, streams, episodes
        self.timesteps, self.updates = counts
