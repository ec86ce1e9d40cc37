"""Iteration of the on-policy learners in PyTorch: seeds, rollout collection and counters."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlox import _finite, _rng, _spaces, _types, learners, policies
from rlox._layout import as_batch
from rlox._nn import runtime
from rlox._nn.optim import VectorOptimizer, clip_norm_
from rlox._nn.runtime import TensorObs
from rlox._registry import has_encoder
from rlox._rlox import RolloutBuffer
from rlox._rlox import enter_phase as enter
from rlox.buffers.rollout import make_buffer
from rlox.configs import SHAPE_SETTINGS
from rlox.envs import _state
from rlox.envs._masks import as_masks
from rlox.envs._rollout_env import RolloutEnv
from rlox.features import FeaturesExtractor
from rlox.learners import OnPolicyT, _actors
from rlox.learners.base import BaseLearner


class Batch(NamedTuple):
    """B steps of a rollout."""

    obs: Any  # (B, *layout.shape), normalized; after `unpack_batch`: inputs of the policy
    actions: Tensor  # (B, *action_shape) int64 or float32, as the policy returned them
    log_probs: Tensor  # (B,) float32, at collection
    values: Tensor  # (B,) float32, at collection
    advantages: Tensor  # (B,) float32
    returns: Tensor  # (B,) float32, advantages + values
    masks: Tensor | None = None  # (B, n) bool, True where an action was allowed; None: all

    @classmethod
    def views_of(cls, buffer: RolloutBuffer, masked: bool) -> "Batch":
        """Return views of all rows of a buffer, without a copy."""
        names = (*cls._fields[:-1], "action_masks") if masked else cls._fields[:-1]
        return cls(*(torch.from_numpy(buffer.field(name)).flatten(0, 1) for name in names))

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        return Batch._make(None if x is None else x.to(device) for x in self)

    def at(self, index: Tensor) -> "Batch":
        """Return the steps at the given indices, or the steps where a mask, bool (B,), is True."""
        return Batch._make(None if x is None else x[index] for x in self)


class TorchLearner(BaseLearner[OnPolicyT]):
    """On-policy learner with a torch policy; subclasses define `prepare` and `update`.

    Args:
        env: Environments from `rlox.make_vec`.
        config: Settings; `num_envs` must be the number of environments.
        seed: Seed of initial weights, environments, actions and minibatches, an int >= 0.
        policy: Torch module that implements `rlox.policies.ActorCritic`, or a function from the
            observation and the action space to such a module; None: the built-in MLP. For custom
            modules, the learner seeds torch's global generator, which other threads must not use.
        features_extractor: Features extractor of the built-in policy, see
            `rlox.policies.MlpPolicy`.

    Raises:
        ArgumentError: Spaces, policy and config do not match.
        ArgumentTypeError: `env`, `config` or `policy` has another type.
        OutOfMemoryError: The networks or the rollouts do not fit into memory.
    """

    backend = "torch"
    optimizer: VectorOptimizer

    def __init__(
        self,
        env: RolloutEnv,
        config: OnPolicyT,
        seed: int,
        policy: policies.PolicyLike = None,
        features_extractor: FeaturesExtractor | None = None,
    ) -> None:
        super().__init__(env, config, seed, type(self).__name__)
        self._should_stop = False
        self.staleness = 0  # staleness of the last rollout, in updates
        self._learner_args = policy, features_extractor
        if not _actors.is_synchronous(config):
            mode = _actors.resolve_actors(env, config, *self._learner_args)
            self.actor_plan = _actors.ActorPlan(mode, type(self), env, config, self.spaces)
        self.device = runtime.find_device(config.device)
        self.generator = torch.Generator(self.device)
        shape: dict[str, Any] = {name: getattr(config, name) for name in SHAPE_SETTINGS}
        shape["features_extractor"] = features_extractor
        self.built_in = policy is None and features_extractor is None and not has_encoder(self.spaces[0])
        init_seed, global_seed = map(int, self.init.generate_state(2, np.uint64))
        shape["init"] = torch.Generator().manual_seed(init_seed)
        with runtime.initialising(None if self.built_in else global_seed, self.device):
            module = policies.make_policy(policy, *self.spaces, shape)  # an ActorCritic
        self.policy = runtime.attach_generator(module, self.generator)
        self.evaluate = policies.get_evaluate_fn(self.policy)
        self.threads = runtime.best_threads(self.policy, self.device)
        with runtime.limit_threads(1):
            self.prepare()
        masked, width = config.action_masks, self._mask_width()
        self.buffer = make_buffer(env, config.n_steps, normalize_obs=config.normalize_obs, mask_width=width)
        self.obs = torch.from_numpy(self.buffer.obs)
        self.masks = torch.from_numpy(self.buffer.field("action_masks")) if masked else None
        self.rows = Batch.views_of(self.buffer, masked)

    def prepare(self) -> None:
        """Create `optimizer` and the loss function; `policy` exists already."""
        raise NotImplementedError

    @property
    def stop_requested(self) -> bool:
        """Flag that makes `iterate` return early, before the next step or minibatch."""
        return self._should_stop

    @stop_requested.setter
    def stop_requested(self, stop: bool) -> None:
        self._should_stop = stop
        if self.actors is not None:
            self.actors.set_stop_requested(stop)

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Seed torch's generators from the stream "iterations" for a `with` block.

        Raises:
            ClosedError: Another thread runs such a block of this learner.
        """
        with self._exclusive():
            seed = global_seed = 0  # with actors, `_receive` sets the seed of the rollout
            if self.actor_plan is None:
                seed, global_seed = map(int, self.streams["iterations"].integers(2**63, size=2))
            self.generator.manual_seed(seed)
            # Built-in policies use only `generator`; others may use torch's global generators.
            with runtime.isolate_torch(None if self.built_in else global_seed, self.device, self.threads):
                yield

    def _worker_args(self) -> tuple[object, ...]:
        """Return the policy and the features extractor for workers; modules are copied."""
        # Parameters may be views of one vector, and pickling a view pickles the whole vector.
        return tuple(deepcopy(x).cpu() if isinstance(x, torch.nn.Module) else x for x in self._learner_args)

    def load_weights(self, weights: _types.Arrays) -> None:
        """Load weights, by name, of the same policy in another process.

        Raises:
            ArgumentError: Names, shapes or dtypes differ from those of the policy.
        """
        self.policy.load_state_dict(runtime.module_tensors(self.policy, weights))

    def collect_for_remote(self, seed: int) -> bool:
        """Fill the buffer with a rollout for a learner in another process.

        Args:
            seed: Seed of the rollout's random numbers.

        Returns:
            False if `stop_requested` stopped the rollout.
        """
        self.streams["iterations"] = np.random.default_rng(seed)
        with self.seeded(), runtime.evaluating(self.policy):
            return self.collect()

    def iterate(self, progress: float = 0.0) -> dict[str, float]:
        """Collect `n_steps` steps per environment and learn from them; see `Learner.iterate`."""
        progress = learners.check_progress(progress)
        with self.seeded():
            with runtime.evaluating(self.policy):
                is_full = self.collect() if self.actor_plan is None else self._receive()
            n_transitions = self.buffer.n_transitions
            metrics = self.update(progress) if is_full else {}
            if self.actors is None:
                self.episodes.drain(self.env)
            elif metrics:
                self.actors.publish(self._networks())
                metrics |= {"train/policy_staleness": self.staleness, **self.actors.metrics()}
            if not metrics:
                return {}
            self.timesteps += n_transitions
            return self.episode_metrics() | metrics

    @torch.no_grad()
    def collect(self) -> bool:
        """Fill the buffer with one rollout; return False if `stop_requested` stopped the rollout.

        In NEXT_STEP mode, all steps of a rollout may be resets. Then another rollout is collected.
        """
        env, buffer, config, policy = self.env, self.buffer, self.config, self.policy
        act, first_step = policies.get_act_fn(policy), self.timesteps // config.num_envs
        reset_noise, freq = getattr(policy, "reset_noise", None), config.sde_sample_freq
        n_transitions = 0
        while n_transitions == 0:
            enter("env_step")
            env.begin_rollout(buffer, self.normalizer, self.first_seed())
            self.env_initialized = True
            for t in range(config.n_steps):
                enter("inference")
                if reset_noise and (t == 0 or (freq > 0 and t % freq == 0)):
                    reset_noise(config.num_envs)
                outputs = list[npt.NDArray[Any]]()
                obs = self.obs[t] if self.built_in else self.obs[t].clone()  # a custom policy may write to it
                try:
                    outputs += (x.numpy(force=True) for x in act(self.unpack_obs(obs), *self.allowed(t)))
                    actions, log_probs, values = outputs
                    enter("env_step")
                    env.step_rollout(buffer, t, actions, log_probs, values, self.normalizer)
                except ValueError:
                    # The environment rejects NaN actions. Report the policy's tensor that has the NaN.
                    arrays = runtime.module_arrays(policy)
                    _finite.check_finite_policy(outputs, arrays, first_step + t)
                    raise
                if self.stop_requested:
                    return False
            self.finish_rollout(first_step)
            n_transitions = buffer.n_transitions
        return True

    def finish_rollout(self, first_step: int) -> None:
        """Compute the GAE advantages and the returns of the rollout.

        Truncated and unfinished episodes bootstrap from the policy's value of their last
        observation. The value after a terminated episode is 0.
        """
        buffer, config = self.buffer, self.config
        enter("inference")
        final_values = self.values(buffer.final_obs) if len(buffer.final_index) else None
        last_values = self.values(buffer.last_obs)
        enter("gae_compute")
        _finite.check_finite_rollout(buffer, last_values, final_values, first_step)
        buffer.finish(last_values, config.gamma, config.gae_lambda, final_values)

    def update(self, progress: float) -> dict[str, float]:
        """Learn from the rollout in the buffer.

        Args:
            progress: Fraction of the run that is done, in [0, 1], for schedules.

        Returns:
            Metrics; empty if `stop_requested` was set before the first minibatch.

        Raises:
            NonFiniteError: A loss or a gradient is NaN or infinite.
        """
        raise NotImplementedError

    def take_step(self, loss: Tensor, parts: Tensor, learning_rate: float) -> dict[str, float]:
        """Take one optimizer step on a loss; return the policy, value, entropy and total losses.

        Raises:
            NonFiniteError: A loss or the gradient is NaN or infinite. The weights are unchanged.
        """
        gradient = self.optimizer.gradient(loss)
        norm = clip_norm_(gradient, self.config.max_grad_norm)
        names = ("policy_loss", "value_loss", "entropy_loss", "loss")
        losses = dict(zip(names, parts.tolist(), strict=True))
        _finite.check_finite({**losses, "gradient": norm.item()}, self.timesteps)
        self.optimizer.step(gradient, learning_rate)
        self.updates += 1
        return {f"train/{name}": value for name, value in losses.items()}

    def _receive(self) -> bool:
        """Wait for an actor's rollout, and seed torch with its seed; return False on a stop."""
        rollout = self.next_rollout()
        if rollout is None:
            return False
        self.buffer, self.staleness = rollout.buffer, rollout.staleness
        self.rows = Batch.views_of(self.buffer, self.config.action_masks)
        self.generator.manual_seed(rollout.seed)
        if not self.built_in:
            torch.manual_seed(rollout.seed)  # `seeded` restores the global generator
        return True

    def allowed(self, t: int) -> tuple[Tensor, ...]:
        """Store the action masks of step `t`, and return them in a tuple; return () without masks."""
        if self.masks is None:
            return ()
        self.masks[t] = torch.from_numpy(self.env.action_masks())
        return (self.masks[t].to(self.device),)

    def unpack_obs(self, rows: Tensor) -> TensorObs:
        """Convert rows of `buffer.obs` to inputs of the policy, on the policy's device."""
        obs: TensorObs = self.layout.unpack(rows.to(self.device), runtime.torch_dtype)
        return obs

    def unpack_batch(self, batch: Batch) -> Batch:
        """Return the batch with observations as inputs of the policy."""
        return batch._replace(obs=self.unpack_obs(batch.obs))

    def values(self, obs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the policy's values (n,) of normalized observations (n, *layout.shape)."""
        values: Tensor = self.policy.get_value(self.unpack_obs(torch.from_numpy(obs)))
        return values.numpy(force=True)

    def predict(
        self,
        obs: _types.Obs,
        deterministic: bool = True,
        stream: _rng.Stream | None = None,
        action_masks: npt.ArrayLike | None = None,
    ) -> npt.NDArray[Any]:
        """Return greedy or sampled actions for raw observations; see `Learner.predict`."""
        sample_stream = self._sample_stream(deterministic, stream)
        rows, single = as_batch(obs, self.layout, self.normalizer)
        space = self.spaces[1]
        if len(rows) == 0:  # torch cannot unpack an empty batch
            return np.zeros((0, *(space.shape or ())), space.dtype)
        policy_obs = self.unpack_obs(torch.from_numpy(rows))
        mask = None
        if action_masks is not None:
            flags = as_masks(action_masks, space, len(rows))
            mask = torch.from_numpy(flags).to(self.device)
        with torch.no_grad(), runtime.evaluating(self.policy, self.threads):
            if sample_stream is None:
                actions = policies.greedy_actions(self.policy, policy_obs, mask)
            else:
                seed = int(sample_stream.integers(2**63))
                global_seed = None if self.built_in else seed
                with (
                    self._not_learning(),
                    runtime.reseeded(self.generator, seed),
                    runtime.isolate_torch(global_seed, self.device, self.threads),
                ):
                    actions = policies.sample_actions(self.policy, policy_obs, mask)
        env_actions = _spaces.to_env_actions(space, actions.numpy(force=True), len(rows))
        return env_actions[0] if single else env_actions

    def _networks(self) -> _types.Arrays:
        """Return copies of the parameters and buffers, by name."""
        return runtime.module_arrays(self.policy)

    def _optimizer_state(self) -> _types.Arrays:
        """Return copies of the optimizer's state, by name."""
        return self.optimizer.state()

    def _restore(self, state: learners.LearnerState) -> bool:
        """Restore networks, optimizer and environments; see `BaseLearner._restore`."""
        tensors = runtime.module_tensors(self.policy, state.networks)
        self.optimizer.check_state(state.optimizer)
        is_restored = _state.set_state_if_supported(self.env, state.environment)
        self.optimizer.load_state(state.optimizer)
        self.policy.load_state_dict(tensors)
        return is_restored
