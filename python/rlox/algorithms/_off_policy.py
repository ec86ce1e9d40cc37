"""Off-policy learners in PyTorch: collection of transitions, replay, and minibatch updates."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

from rlox import _finite, _rng, _serialize, _spaces, _types, learners
from rlox._errors import ArgumentError
from rlox._layout import as_batch
from rlox._nn import runtime
from rlox._nn.optim import Adam, clip_norm_
from rlox._nn.runtime import TensorObs, torch_dtype
from rlox._registry import ALGORITHMS, has_encoder
from rlox._rlox import enter_phase as enter
from rlox._spaces import check_supported_actions, random_actions
from rlox._types import Array, Obs
from rlox.algorithms._replay import Replay, ReplayBatch
from rlox.buffers._steps import Step, StepRecorder
from rlox.buffers.hindsight import goal_functions
from rlox.buffers.replay import check_frame_stack
from rlox.buffers.rollout import make_buffer
from rlox.configs import scheduled
from rlox.envs._masks import as_masks, random_allowed
from rlox.envs._rollout_env import RolloutEnv
from rlox.features import FeaturesExtractor, NatureCNN
from rlox.learners import OffPolicyT
from rlox.learners._state_conversion import to_torch_state
from rlox.learners.base import BaseLearner
from rlox.noise import NoiseProcess
from rlox.policies import PolicyLike


class OffPolicyLearner(BaseLearner[OffPolicyT]):
    """Base class of the off-policy algorithms; subclasses define networks, losses and `update`.

    An iteration collects transitions into a replay buffer and learns from minibatches. The first
    `learning_starts` steps use random actions, later steps the policy. Action noise is added to
    both. The buffer stores Box actions scaled to [-1, 1], and Discrete actions counted from 0; the
    methods below call this the stored form of actions.

    Args:
        env: Environments from `rlox.make_vec`.
        config: Settings; `num_envs` must be the number of environments.
        seed: Seed of all random streams, an int >= 0.
        policy: Custom torch module, or a function from the observation and the action space to a
            module with the methods that the subclass documents. None: built-in networks.
        features_extractor: Features extractor of the built-in networks, see
            `rlox.policies.MlpPolicy`.

    Raises:
        ArgumentError: Spaces, policy and config do not match.
        ArgumentTypeError: `env`, `config` or `policy` has another type.
        OutOfMemoryError: The replay buffer or the networks do not fit into memory.
    """

    backend = "torch"
    # "actions": random actions and action noise; "minibatches": sampled transitions.
    stream_names = (*BaseLearner.stream_names, "actions", "minibatches")
    # Name of the policy in `modules`. Tensor names in checkpoints omit the prefix "policy.".
    policy_name = "policy"
    # Names of the losses and other metrics of updates, in the order of the output.
    metric_names: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        env: RolloutEnv,
        config: OffPolicyT,
        seed: int,
        policy: PolicyLike = None,
        features_extractor: FeaturesExtractor | None = None,
    ) -> None:
        learners.check_env_and_config(env, config, type(self).__name__)
        self.device = device = runtime.find_device(config.device)
        super().__init__(env, config, seed, type(self).__name__)
        self.stop_requested = False
        self.spec = ALGORITHMS[self.algorithm]
        check_supported_actions(self.algorithm, self.spec.actions, self.spaces[1])
        self._make_replay()
        self.generator = torch.Generator(device)
        self.built_in = policy is None and features_extractor is None and not has_encoder(self.spaces[0])
        init_seed, global_seed = map(int, self.init.generate_state(2, np.uint64))
        init = torch.Generator().manual_seed(init_seed)
        with runtime.initialising(None if self.built_in else global_seed, device):
            module = self.make_policy(policy, features_extractor, init)
        self.policy = runtime.attach_generator(module, self.generator)
        with runtime.limit_threads(1):
            targets: Mapping[str, nn.Module] = self.make_targets()
        self.modules = nn.ModuleDict({self.policy_name: self.policy, **targets})
        self.optimizers = self.make_optimizers()
        self.threads = runtime.best_threads(self.policy, device)
        self.norms = torch.zeros((), device=device)
        self._metric_tensors: dict[str, list[Tensor]] = {name: [] for name in self.metric_names}
        # Metrics of the last iteration that learned, by name.
        self.last = dict.fromkeys(self.metric_names, math.nan)

    def _make_replay(self) -> None:
        """Create the replay buffer, the noise and the counters of the collection."""
        env, config = self.env, self.config
        self.pending_updates = 0.0
        self.progress = 0.0
        self.ended = 0  # number of finished episodes
        self.width = self._mask_width()
        self.stepper = StepRecorder(env, masked=self.width is not None)
        has_reset_rows = self.stepper.mode is AutoresetMode.NEXT_STEP and config.num_envs > 1
        for setting, default in (("n_steps", 1), ("her", None), ("frame_stack", None)):
            got = getattr(config, setting)
            if has_reset_rows and got not in (default, 1):
                raise ArgumentError(
                    setting,
                    f"{default} for several environments in autoreset mode NEXT_STEP",
                    repr(got),
                    "create the environments with autoreset_mode='SameStep'",
                )
        # Environments that only reset store no row, so an environment's rows are not `num_envs` apart.
        streams = 1 if has_reset_rows else config.num_envs
        frames = check_frame_stack(env.single_observation_space, config.frame_stack)
        goals = None if config.her is None else goal_functions(env)
        self.replay = Replay(self.layout, self.spaces[1], config, streams, self.device, self.width, goals, frames)
        self._statistics = make_buffer(env, 1, normalize_obs=config.normalize_obs)
        self._is_new = self._checked = False
        # Bounds of Box actions, (k,) each; empty for other spaces.
        self.low = self.high = np.empty(0, np.float32)
        space, noise = self.spaces[1], config.action_noise
        if isinstance(space, gym.spaces.Box):
            self.low, self.high = (side.astype(np.float32).ravel() for side in (space.low, space.high))
        self.noise = None if noise is None else NoiseProcess(noise, config.num_envs, len(self.low))

    def make_policy(
        self, policy: PolicyLike, features_extractor: FeaturesExtractor | None, init: torch.Generator
    ) -> nn.Module:
        """Return the custom policy after a check, or the built-in policy initialized by `init`."""
        raise NotImplementedError

    def net_arch(self, features: nn.Module) -> tuple[int, ...]:
        """Return the sizes of the hidden layers that follow a features extractor."""
        default = self.spec.image_net_arch if isinstance(features, NatureCNN) else self.spec.net_arch
        return default if self.config.net_arch is None else self.config.net_arch

    def make_targets(self) -> dict[str, nn.Module]:
        """Create the target networks and other modules that checkpoints store; return them by name."""
        raise NotImplementedError

    def make_optimizers(self) -> list[Adam]:
        """Create the optimizers; each parameter belongs to at most one of them."""
        raise NotImplementedError

    def compile_losses(self, *functions: Callable[..., Any]) -> None:
        """Set `losses` to functions of minibatches; compile them if `config.compile` is set."""
        self._plain = self._fast = self.losses = functions
        if self.config.compile:
            self._fast = tuple(torch.compile(function) for function in functions)

    def update(self, batch: ReplayBatch, learning_rate: float) -> None:
        """Take the optimizer steps for a minibatch, and pass the metrics to `record`."""
        raise NotImplementedError

    def sample_actions(self, obs: TensorObs, mask: Tensor | None) -> Tensor:
        """Sample actions from the policy, in stored form."""
        raise NotImplementedError

    def explore_actions(self, obs: TensorObs, mask: Tensor | None) -> Tensor:
        """Sample actions for training; gSDE keeps its noise over several steps."""
        return self.sample_actions(obs, mask)

    def greedy_actions(self, obs: TensorObs, mask: Tensor | None) -> Tensor:
        """Return the greedy actions, in stored form."""
        raise NotImplementedError

    def sampling(self, progress: float) -> dict[str, float]:
        """Return further keyword arguments for `Replay.sample`."""
        return {}

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Seed torch's generators from the stream "iterations" for a `with` block.

        Raises:
            ClosedError: Another thread runs such a block of this learner.
        """
        with self._exclusive():
            seed, global_seed = map(int, self.streams["iterations"].integers(2**63, size=2))
            self.generator.manual_seed(seed)
            with runtime.isolate_torch(None if self.built_in else global_seed, self.device, self.threads):
                yield

    def begin(self) -> None:
        """Prepare exploration, before an iteration and every `sde_sample_freq` steps."""

    def on_step(self, before: int) -> None:
        """Run after each step of all environments; `before` is `timesteps` before the step."""

    def iterate(self, progress: float = 0.0) -> dict[str, float]:
        """Collect `train_freq` steps and learn from the replay buffer; see `Learner.iterate`.

        If `stop_requested` prevents the updates, `timesteps` still counts the stored steps.
        """
        progress = learners.check_progress(progress)
        config = self.config
        learning_rate = scheduled(config.learning_rate, config.lr_schedule, progress)
        with self.seeded():
            with torch.no_grad(), runtime.evaluating(self.policy):
                n_transitions = self.collect(progress)
            if self.timesteps > config.learning_starts:
                n_updates, before = self.minibatches(n_transitions), self.updates
                try:
                    self.learn(n_updates, learning_rate, progress)
                finally:
                    if self._updates_per_transition() is not None:
                        self.pending_updates = max(self.pending_updates - (self.updates - before), 0.0)
        self.episodes.drain(self.env)
        if not n_transitions:
            return {}
        return {
            **self.episode_metrics(),
            **self.rates(progress),
            **{f"train/{name}": value for name, value in self.last.items()},
            "train/learning_rate": learning_rate,
            "train/n_updates": self.updates,
        }

    def to_env_actions(self, actions: Array) -> Array:
        """Convert actions in stored form, (n,) or (n, k), to actions of the environments.

        Raises:
            ArgumentError: An action is not finite.
        """
        space = self.spaces[1]
        if isinstance(space, gym.spaces.Box):
            # This form does not overflow, and maps -1 and 1 exactly to the bounds.
            actions = (0.5 - 0.5 * actions) * self.low + (0.5 + 0.5 * actions) * self.high
            actions = actions.reshape(len(actions), *space.shape)
        return _spaces.to_env_actions(space, actions, len(actions))

    def sample_random_actions(self) -> Array:
        """Sample allowed actions uniformly for all environments, in stored form."""
        space, stream, n = self.spaces[1], self.streams["actions"], self.config.num_envs
        if isinstance(space, gym.spaces.Box):
            return stream.uniform(-1, 1, (n, len(self.low))).astype(np.float32)
        if self.stepper.masks is not None:
            return random_allowed(space, stream, self.stepper.masks)[0]
        return random_actions(space, stream, (n,))

    def collect(self, progress: float) -> int:
        """Run `train_freq` steps or episodes per environment, or fewer if `stop_requested` is set.

        Args:
            progress: Fraction of the run that is done, in [0, 1].

        Returns:
            Number of new transitions.
        """
        enter("env_step")
        self._start()
        enter("inference")
        self.begin()
        wanted, first = self.config.train_freq, self.ended
        n_transitions = steps = 0
        while (self.ended - first < wanted[0]) if isinstance(wanted, tuple) else (steps < wanted):
            if self.stop_requested:
                break
            self.progress = min(progress + n_transitions * self.progress_per_step, 1.0)
            n_new = self.step(steps)
            n_transitions += n_new
            steps += n_new > 0  # a step in which all environments only reset does not count
        return n_transitions

    def step(self, t: int) -> int:
        """Take step `t` of an iteration in all environments; return the number of transitions."""
        stepper, before = self.stepper, self.timesteps
        enter("inference")
        obs, actions = stepper.obs, self.choose(t)
        try:
            env_actions = self.to_env_actions(actions)
        except ValueError:
            # The action space rejects NaN actions. Report the tensor of the policy that has the NaN.
            first_step = before // self.config.num_envs
            _finite.check_finite_policy([actions], runtime.module_arrays(self.policy), first_step)
            raise
        self.env_initialized = False  # after an error in the step, all environments are reset
        enter("env_step")
        step = stepper.step(env_actions)
        enter("buffer")
        self.replay.push(obs, actions, step)
        if self.normalizer is not None:
            self._update_normalizer(obs, step)
        self.env_initialized = True
        dones = step.terminated | step.truncated
        self.ended += int(dones.sum())
        if self.noise is not None:
            # The noise also advanced for environments that only reset. Restart their noise.
            self.noise.end_episodes(dones if step.valid is None else dones | ~step.valid)
        n_transitions = self.config.num_envs if step.valid is None else int(step.valid.sum())
        self.timesteps += n_transitions
        self.on_step(before)
        return n_transitions

    def choose(self, t: int) -> Array:
        """Return the actions of step `t` of an iteration, with any action noise, in stored form."""
        config = self.config
        is_warmup = self.timesteps < config.learning_starts
        freq = config.sde_sample_freq
        if t > 0 and freq > 0 and t % freq == 0:
            self.begin()
        if is_warmup and not config.use_sde_at_warmup:
            actions = self.sample_random_actions()
        else:
            actions = self.explore(self.stepper.obs, self.stepper.masks)
        if self.noise is not None:
            actions = self.noise.add(actions, self.streams["actions"])
        return actions

    def _start(self) -> None:
        """Start episodes in all environments, unless they are already running."""
        if self.env_initialized and self._checked:
            return
        seed = self.first_seed()
        self.stepper.start(seed)
        self._is_new = seed is not None
        if self._is_new and self.noise is not None:
            self.noise.begin()
        self.env_initialized = self._checked = True

    def _update_normalizer(self, obs: Array, step: Step) -> None:
        """Update the statistics of the normalizer with one step of all environments."""
        row, n = self._statistics, self.config.num_envs
        zeros = np.zeros(n, np.float32)
        is_next_step = self.stepper.mode is AutoresetMode.NEXT_STEP
        idle = None
        if is_next_step:  # the buffer detects this mode by an `idle` that is not None
            idle = np.zeros(n, np.bool_) if step.valid is None else ~step.valid
        row.begin(obs, self._is_new, self.normalizer, idle)
        flags = (step.terminated, step.truncated)
        final = step.next_obs if not is_next_step and any(x.any() for x in flags) else None
        args = (np.zeros_like(row.actions[0]), zeros, zeros, self.stepper.obs, step.rewards)
        row.record(0, *args, *flags, final, self.normalizer)
        self._is_new = False

    def minibatches(self, n_transitions: int) -> int:
        """Return the number of minibatches to learn from after `n_transitions` new transitions.

        With `utd_ratio` or `gradient_steps=-1`, new transitions increase `pending_updates`. This
        counter also holds fractions of a minibatch, and minibatches that stopped iterations skipped.
        """
        config = self.config
        if (per_transition := self._updates_per_transition()) is None:
            return int(config.gradient_steps)
        self.pending_updates += n_transitions * per_transition
        return int(self.pending_updates + 1e-9)

    def _updates_per_transition(self) -> float | None:
        """Return the number of minibatches per transition; None if it is fixed per iteration."""
        config = self.config
        if config.utd_ratio is not None:
            return float(config.utd_ratio)
        return 1.0 if config.gradient_steps == -1 else None

    def rates(self, progress: float) -> dict[str, float]:
        """Return exploration metrics, such as the exploration rate, by name."""
        return {}

    def learn(self, count: int, learning_rate: float, progress: float) -> None:
        """Learn from `count` minibatches, or fewer if `stop_requested` is set.

        Raises:
            NonFiniteError: A loss or a gradient is NaN or infinite.
        """
        self.norms.zero_()
        for tensors in self._metric_tensors.values():
            tensors.clear()  # metrics of the previous iteration
        for _ in range(count):
            if self.stop_requested:
                break
            stream, options = self.streams["minibatches"], self.sampling(progress)
            enter("buffer")
            batch = self.replay.sample(stream, self.normalizer, **options)
            enter("gradient_update")
            if batch is not None:
                # Uncompiled losses for smaller batches avoid a second compilation.
                is_full = len(batch.rewards) == self.config.batch_size
                self.losses = self._fast if is_full else self._plain
                self.update(batch, learning_rate)
            self.updates += 1
        # Reading a number waits for the GPU, so metrics are read once per iteration.
        metrics = {
            name: torch.stack(tensors).mean().item() for name, tensors in self._metric_tensors.items() if tensors
        }
        self.last |= metrics
        _finite.check_finite({**metrics, "gradient": self.norms.item()}, self.timesteps)

    def record(self, **metrics: Tensor) -> None:
        """Record metrics of one update; an iteration reports their means over its updates."""
        for name, value in metrics.items():
            self._metric_tensors[name].append(value.detach())

    def optimizer_step(
        self, optimizer: Adam, loss: Tensor, learning_rate: float, name: str, max_norm: float | None = None
    ) -> None:
        """Take one optimizer step on a loss, and record the loss.

        Args:
            optimizer: Optimizer of the parameters.
            loss: Scalar loss.
            learning_rate: Learning rate of this step.
            name: Name of the loss in metrics and errors.
            max_norm: Maximum norm of the gradient; None: no clipping.

        Raises:
            NonFiniteError: The gradient is not finite; the parameters are unchanged. On devices
                other than the CPU, 0 replaces a non-finite gradient, and `learn` raises later.
        """
        gradient = optimizer.gradient(loss)
        norm = gradient.norm() if max_norm is None else clip_norm_(gradient, max_norm)
        self.norms += norm
        non_finite = ~norm.isfinite()
        if self.device.type != "cpu":
            gradient.masked_fill_(non_finite, 0.0)
        elif bool(non_finite):
            _finite.check_finite({name: loss.item(), "gradient": norm.item()}, self.timesteps)
        optimizer.step(gradient, learning_rate)
        self.record(**{name: loss})

    def unpack_obs(self, rows: Array) -> TensorObs:
        """Convert raw observations to policy inputs. A custom policy gets a copy that it may modify."""
        if self.normalizer is not None and self.config.normalize_obs:
            rows = self.normalizer.normalize_obs(rows)
        tensor = torch.from_numpy(rows if self.built_in else rows.copy())
        obs: TensorObs = self.layout.unpack(tensor.to(self.device), torch_dtype)
        return obs

    def explore(self, obs: Array, masks: Array | None) -> Array:
        """Return the policy's actions for raw observations, in stored form and before noise."""
        mask = None if masks is None else torch.from_numpy(masks).to(self.device)
        actions = self.explore_actions(self.unpack_obs(obs), mask)
        return actions.numpy(force=True)

    def predict(
        self,
        obs: Obs,
        deterministic: bool = True,
        stream: _rng.Stream | None = None,
        action_masks: npt.ArrayLike | None = None,
    ) -> Array:
        """Return greedy or sampled actions for raw observations; see `Learner.predict`."""
        sample_stream, space = self._sample_stream(deterministic, stream), self.spaces[1]
        rows, single = as_batch(obs, self.layout)
        if len(rows) == 0:  # torch cannot unpack an empty batch
            return np.zeros((0, *(space.shape or ())), space.dtype)
        mask = None
        if action_masks is not None:
            mask = torch.from_numpy(as_masks(action_masks, space, len(rows))).to(self.device)
        policy_obs = self.unpack_obs(rows)
        with torch.no_grad(), runtime.evaluating(self.policy, self.threads):
            if sample_stream is None:
                actions = self.greedy_actions(policy_obs, mask)
            else:
                seed = int(sample_stream.integers(2**63))
                global_seed = None if self.built_in else seed
                with (
                    self._not_learning(),
                    runtime.reseeded(self.generator, seed),
                    runtime.isolate_torch(global_seed, self.device, self.threads),
                ):
                    actions = self.sample_actions(policy_obs, mask)
        env_actions = self.to_env_actions(actions.numpy(force=True))
        return env_actions[0] if single else env_actions

    def _networks(self) -> _types.Arrays:
        """Return copies of all parameters and buffers, by name."""
        return {_common_name(name): x for name, x in runtime.module_arrays(self.modules).items()}

    def _optimizer_state(self) -> _types.Arrays:
        """Return copies of the optimizers' states, by name."""
        return {name: x for optimizer in self.optimizers for name, x in optimizer.state().items()}

    def state(self, replay: bool = True) -> learners.LearnerState:
        """Return a copy of the state; see `Learner.state`."""
        state = super().state(replay)
        state.replay = self.replay.state() if replay else None
        noise = [] if self.noise is None else self.noise.state.ravel().tolist()
        last = _serialize.numbers_to_state(self.last.values())
        state.counters |= {
            "pending_updates": self.pending_updates,
            "progress": self.progress,
            "noise": noise,
            "last": last,
        }
        return state

    def load_state(self, state: learners.LearnerState) -> None:
        """Restore a state; an error leaves the learner unchanged. See `BaseLearner.load_state`."""
        learners.check_state(state)
        state = to_torch_state(state, self.layout, self.algorithm, self.replay.empty)
        noise_size = 0 if self.noise is None else self.noise.state.size
        wanted = {"pending_updates": 1, "progress": 1, "noise": noise_size, "last": len(self.last)}
        pending_updates, progress, noise, last = (
            _serialize.numbers_from_state(state.counters, name, count) for name, count in wanted.items()
        )
        (timesteps,), _ = learners.counts_from_state(state.counters, ("timesteps",))
        # 1e-9 allows for rounded sums, 1 for a fraction left over from a run with other settings.
        limit = (self._updates_per_transition() or 0.0) * timesteps * (1 + 1e-9) + 1
        if not 0 <= pending_updates[0] <= limit:
            raise ArgumentError(
                "counters", f"0 to {limit:g} pending minibatches", str(pending_updates[0]), "pass the result of state()"
            )
        super().load_state(state)
        self.pending_updates, self.progress, self._checked = pending_updates[0], progress[0], False
        self.last = dict(zip(self.last, last, strict=True))
        if self.noise is not None:
            self.noise.state = np.reshape(noise, self.noise.state.shape)

    def _restore(self, state: learners.LearnerState) -> bool:
        """Restore networks, optimizers, buffer and environments; see `BaseLearner._restore`."""
        full_names = {_common_name(name): name for name in self.modules.state_dict()}
        arrays = {full_names.get(name, name): x for name, x in state.networks.items()}
        tensors = runtime.module_tensors(self.modules, arrays)
        parts = self._split_optimizer_state(state.optimizer)
        for optimizer, part in zip(self.optimizers, parts, strict=True):
            optimizer.check_state(part)
        self._checked = False
        load_replay = partial(self.replay.load_state, state.replay)
        is_restored = self._set_env_state(state.environment, load_replay)
        for optimizer, part in zip(self.optimizers, parts, strict=True):
            optimizer.load_state(part)
        self.modules.load_state_dict(tensors)
        return is_restored

    def _split_optimizer_state(self, arrays: _types.Arrays) -> list[_types.Arrays]:
        """Split arrays by optimizer. Unknown names go to the first optimizer, which rejects them."""
        rest, parts = dict(arrays), list[_types.Arrays]()
        for optimizer in self.optimizers:
            names = [name for name in optimizer.state() if name in rest]
            parts.append({name: rest.pop(name) for name in names})
        parts[0] |= rest
        return parts


def _common_name(name: str) -> str:
    """Return the name of a tensor in checkpoints of all backends, without its module's prefix."""
    return name.removeprefix("policy.").removeprefix("temperature.")
