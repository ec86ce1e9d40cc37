"""`OffPolicyCollector`: a learner that acts in environments and remembers what came of it."""

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

from rlox import _finite, _rng, _serialize, _spaces, _types, _validation, learners
from rlox._errors import ArgumentError
from rlox._layout import as_batch
from rlox._nn import runtime
from rlox._nn.optim import Adam, clip_norm_
from rlox._nn.runtime import torch_dtype
from rlox._registry import ALGORITHMS
from rlox._rlox import enter_phase as enter
from rlox._spaces import check_supported_actions, random_actions
from rlox._types import Array
from rlox.algorithms._replay import Replay, ReplayBatch
from rlox.buffers._steps import Step, StepRecorder
from rlox.buffers.hindsight import goal_functions
from rlox.buffers.replay import check_frame_stack
from rlox.buffers.rollout import make_buffer
from rlox.configs import scheduled
from rlox.envs._masks import as_masks, random_allowed
from rlox.envs._rollout_env import RolloutEnv
from rlox.features import FeaturesExtractor
from rlox.learners._convert import to_torch_state
from rlox.learners.base import BaseLearner
from rlox.noise import NoiseProcess


class OffPolicyCollector(BaseLearner):
    """Collects transitions: random actions first, then those of a policy, with noise.

    Box actions are stored in [-1, 1], whatever the bounds are, Discrete ones counted from 0.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.
        config: An off-policy algorithm's settings.
        seed: Decides everything random.
        device: Where minibatches are wanted.

    Raises:
        ValueError: An action space that the algorithm does not do, or settings that do not fit.
        MemoryError: The buffer does not fit into memory.
    """

    algorithm: str
    # Beside the others: what explores, and which transitions are sampled.
    stream_names = (*BaseLearner.stream_names, "actions", "minibatches")

    def __init__(self, env: RolloutEnv, config: Any, seed: int, device: "torch.device") -> None:
        name = type(self).__name__
        super().__init__(env, config, seed, name)
        check_supported_actions(self.algorithm, ALGORITHMS[self.algorithm].actions, self.spaces[1])
        self.stop_requested, self.pending_updates, self.progress = False, 0.0, 0.0
        self.ended = 0  # episodes
        # What updates said last, by name.
        self.last: dict[str, float] = {}
        self.width = self._mask_width()
        self.stepper = StepRecorder(env, masked=self.width is not None)
        has_reset_rows = self.stepper.mode is AutoresetMode.NEXT_STEP and config.num_envs > 1
        for setting, default in (("n_steps", 1), ("her", None), ("frame_stack", None)):
            got = getattr(config, setting)
            if has_reset_rows and got not in (default, 1):
                raise ArgumentError(
                    setting,
                    f"{default} beside several environments in autoreset mode NEXT_STEP",
                    repr(got),
                    "make them with autoreset_mode='SameStep'",
                )
        # Where some only reset, the others' rows are pushed without theirs, and follow no others.
        streams = 1 if has_reset_rows else config.num_envs
        frames = check_frame_stack(env.single_observation_space, config.frame_stack)
        goals = None if config.her is None else goal_functions(env)
        replay_args = (
            self.layout,
            self.spaces[1],
            config,
            streams,
            device,
            self.width,
            goals,
            frames,
        )
        self.replay = Replay(*replay_args)
        self._statistics = make_buffer(env, 1, normalize_obs=config.normalize_obs)
        self._is_new = self._checked = False
        self._set_bounds(self.spaces[1])
        noise = getattr(config, "action_noise", None)
        shape = (config.num_envs, len(self.low))
        self.noise = None if noise is None else NoiseProcess(noise, *shape)

    def explore(self, obs: Array, masks: Array | None) -> Array:
        """The policy's actions for raw observations, as they are stored, before noise."""
        raise NotImplementedError

    def begin(self) -> None:
        """Before the first step of an iteration that the policy decides on."""

    def on_step(self, before: int) -> None:
        """After a step of all environments, which had made `before` steps together."""

    def _parameters(self) -> _types.Arrays:
        """The parameters of the policy, to name one that is NaN."""
        raise NotImplementedError

    def _set_bounds(self, space: gym.Space[Any]) -> None:
        """Notes the bounds of Box actions, (k,) each; of others there are none."""
        self.low = self.high = np.empty(0, np.float32)
        if isinstance(space, gym.spaces.Box):
            self.low, self.high = (
                side.astype(np.float32).ravel() for side in (space.low, space.high)
            )

    def to_env_actions(self, actions: Array) -> Array:
        """Actions as they are stored, (n,) or (n, k), as environments take them.

        Raises:
            ValueError: They are not finite.
        """
        space = self.spaces[1]
        if isinstance(space, gym.spaces.Box):
            # The halves cannot overflow; the bounds themselves come out as they are.
            actions = (0.5 - 0.5 * actions) * self.low + (0.5 + 0.5 * actions) * self.high
            actions = actions.reshape(len(actions), *space.shape)
        return _spaces.to_env_actions(space, actions, len(actions))

    def sample_random_actions(self) -> Array:
        """Uniformly random actions, as they are stored: of what is allowed."""
        space, stream, n = self.spaces[1], self.streams["actions"], self.config.num_envs
        if isinstance(space, gym.spaces.Box):
            return stream.uniform(-1, 1, (n, len(self.low))).astype(np.float32)
        if self.stepper.masks is not None:
            return random_allowed(space, stream, self.stepper.masks)[0]
        return random_actions(space, stream, (n,))

    def collect(self, progress: float) -> int:
        """Make `train_freq` steps of each environment, or episodes, unless `stop_requested` is set.

        Returns:
            How many transitions came in.
        """
        enter("env_step")
        self._start()
        enter("inference")
        self.begin()
        wanted, first = self.config.train_freq, self.ended
        n_transitions = steps = 0
        while not self.stop_requested:
            episodes = isinstance(wanted, tuple)
            done, target = (self.ended - first, wanted[0]) if episodes else (steps, wanted)
            if done >= target:
                break
            self.progress = min(progress + n_transitions * self.progress_per_step, 1.0)
            n_new = self.step(steps)
            n_transitions += n_new
            steps += n_new > 0  # what only resets is no step
        return n_transitions

    def step(self, t: int) -> int:
        """One step of all environments, the iteration's step `t`; how many transitions came in."""
        stepper, before = self.stepper, self.timesteps
        enter("inference")
        obs, actions = stepper.obs, self.choose(t)
        try:
            env_actions = self.to_env_actions(actions)
        except ValueError:
            # NaN from the policy is refused by what meets it first; here it gets its name.
            first_step = before // self.config.num_envs
            _finite.check_finite_policy([actions], self._parameters(), first_step)
            raise
        self.env_initialized = False  # what fails in the middle of it ends all episodes
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
            # What was added where an environment only reset is none of its new episode's.
            self.noise.end_episodes(dones if step.valid is None else dones | ~step.valid)
        n_transitions = self.config.num_envs if step.valid is None else int(step.valid.sum())
        self.timesteps += n_transitions
        self.on_step(before)
        return n_transitions

    def choose(self, t: int) -> Array:
        """Actions for where environments stand: in the beginning any, then those of the policy."""
        config = self.config
        early = self.timesteps < config.learning_starts
        every = getattr(config, "sde_sample_freq", -1)
        if t > 0 and every > 0 and t % every == 0:
            self.begin()
        if early and not getattr(config, "use_sde_at_warmup", False):
            actions = self.sample_random_actions()
        else:
            actions = self.explore(self.stepper.obs, self.stepper.masks)
        if self.noise is not None:
            actions = self.noise.add(actions, self.streams["actions"])
        return actions

    def _start(self) -> None:
        """Starts episodes everywhere, if that was not done."""
        if self.env_initialized and self._checked:
            return
        seed = self.first_seed()
        self.stepper.start(seed)
        self._is_new = seed is not None
        if self._is_new and self.noise is not None:
            self.noise.begin()
        self.env_initialized = self._checked = True

    def _update_normalizer(self, obs: Array, step: Step) -> None:
        """Has the normaliser's statistics follow, as in a rollout of one step."""
        row, n = self._statistics, self.config.num_envs
        zeros = np.zeros(n, np.float32)
        pausing = self.stepper.mode is AutoresetMode.NEXT_STEP
        idle = None
        if pausing:  # which is told apart by this, whether one pauses or not
            idle = np.zeros(n, np.bool_) if step.valid is None else ~step.valid
        row.begin(obs, self._is_new, self.normalizer, idle)
        flags = (step.terminated, step.truncated)
        final = step.next_obs if not pausing and any(x.any() for x in flags) else None
        args = (np.zeros_like(row.actions[0]), zeros, zeros, self.stepper.obs, step.rewards)
        row.record(0, *args, *flags, final, self.normalizer)
        self._is_new = False

    def minibatches(self, n_transitions: int) -> int:
        """How many minibatches are due, after so many new transitions.

        Where minibatches are counted by transitions, `pending_updates` is the number of due
        minibatches, including those of stopped iterations.
        """
        config = self.config
        if (per_transition := self._updates_per_transition()) is None:
            return int(config.gradient_steps)
        self.pending_updates += n_transitions * per_transition
        return int(self.pending_updates + 1e-9)

    def _pay_updates(self, updates: int) -> None:
        """Notes that so many minibatches are owed no more."""
        if self._updates_per_transition() is not None:
            self.pending_updates = max(self.pending_updates - updates, 0.0)

    def _updates_per_transition(self) -> float | None:
        """Minibatches for each transition; None where they are counted by iterations."""
        config = self.config
        if config.utd_ratio is not None:
            return float(config.utd_ratio)
        return 1.0 if config.gradient_steps == -1 else None

    def state(self, replay: bool = True) -> learners.LearnerState:
        """A copy of all that is needed to go on; see `Learner`."""
        state = super().state(replay)
        state.replay = self.replay.state() if replay else None
        noise = [] if self.noise is None else self.noise.state.ravel().tolist()
        last = _serialize.numbers_to_state(self.last.values())
        counters = {
            "owed": self.pending_updates,
            "progress": self.progress,
            "noise": noise,
            "last": last,
        }
        state.counters |= counters
        return state

    def load_state(self, state: learners.LearnerState) -> None:
        """Goes back to a state, whole or not at all; see `BaseLearner.load_state`."""
        learners.check_state(state)
        state = to_torch_state(state, self.layout, self.algorithm, self.replay.empty)
        noise_size = 0 if self.noise is None else self.noise.state.size
        wanted = {"owed": 1, "progress": 1, "noise": noise_size, "last": len(self.last)}
        pending_updates, progress, noise, last = (
            _serialize.numbers_from_state(state.counters, name, count)
            for name, count in wanted.items()
        )
        (timesteps,), _ = learners.counts_from_state(state.counters, ("timesteps",))
        # Sums are rounded, and of other settings less than one minibatch can be due.
        limit = (self._updates_per_transition() or 0.0) * timesteps * (1 + 1e-9) + 1
        if not 0 <= pending_updates[0] <= limit:
            raise ArgumentError(
                "counters",
                f"0 to {limit:g} minibatches that are due",
                str(pending_updates[0]),
                "use what `state` gave",
            )
        super().load_state(state)
        self.pending_updates, self.progress, self._checked = pending_updates[0], progress[0], False
        self.last = dict(zip(self.last, last, strict=True))
        if self.noise is not None:
            self.noise.state = np.reshape(noise, self.noise.state.shape)

    def _restore(self, state: learners.LearnerState) -> bool:
        """Takes environments and buffer; see `BaseLearner._restore`."""
        self._checked = False
        load_replay = partial(self.replay.load_state, state.replay)
        return self._set_env_state(state.environment, load_replay)


# What is added to Adam's roots: torch's default, as Stable-Baselines3 has it for these algorithms.
EPS = 1e-8
# Modules whose names the names of tensors leave out.
_OMITTED_PREFIXES = ("policy.", "temperature.")


class OffPolicyLearner(OffPolicyCollector):
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
    metric_names: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        env: RolloutEnv,
        config: Any,
        seed: int,
        policy: Any = None,
        features_extractor: FeaturesExtractor | None = None,
    ) -> None:
        learners.check_env_and_config(env, config, type(self).__name__)
        device = runtime.find_device(config.device)
        super().__init__(env, config, seed, device)
        self.device, self.generator = device, torch.Generator(device)
        self.built_in = policy is None and features_extractor is None
        init_seed, global_seed = map(int, self.init.generate_state(2, np.uint64))
        init = torch.Generator().manual_seed(init_seed)
        with runtime.initialising(None if self.built_in else global_seed, device):
            module = self.make_policy(policy, features_extractor, init)
        self.policy: Any = runtime.attach_generator(module, self.generator)
        with runtime.limit_threads(1):
            targets: Mapping[str, nn.Module] = self.make_targets()
        self.modules = nn.ModuleDict({self.policy_name: self.policy, **targets})
        self.optimizers = self.make_optimizers()
        self.threads = runtime.best_threads(self.policy, device)
        self.norms = torch.zeros((), device=device)
        self._metric_tensors: dict[str, list[Tensor]] = {name: [] for name in self.metric_names}
        self.last = dict.fromkeys(self.metric_names, math.nan)

    def make_policy(
        self, policy: Any, features_extractor: FeaturesExtractor | None, init: torch.Generator
    ) -> nn.Module:
        """The caller's policy, checked, or the built-in one, whose weights `init` decides."""
        raise NotImplementedError

    def make_targets(self) -> dict[str, nn.Module]:
        """Target networks, and what else has tensors, by name."""
        raise NotImplementedError

    def make_optimizers(self) -> list[Adam]:
        """The optimisers, each of other parameters."""
        raise NotImplementedError

    def compile_losses(self, *functions: Callable[..., Any]) -> None:
        """Notes, as `losses`, what is computed of minibatches; `compile` has it compiled."""
        self._plain = self._fast = self.losses = functions
        if self.config.compile:
            self._fast = tuple(torch.compile(function) for function in functions)

    def update(self, batch: ReplayBatch, learning_rate: float) -> None:
        """Learns from a minibatch; `record`s what it has to say."""
        raise NotImplementedError

    def sample_actions(self, obs: Any, mask: Tensor | None) -> Tensor:
        """Actions that the policy draws."""
        raise NotImplementedError

    def explore_actions(self, obs: Any, mask: Tensor | None) -> Tensor:
        """Actions to learn from: samples, unless an algorithm's go together over several steps."""
        return self.sample_actions(obs, mask)

    def greedy_actions(self, obs: Any, mask: Tensor | None) -> Tensor:
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
        with self._exclusive():
            seed, global_seed = map(int, self.streams["iterations"].integers(2**63, size=2))
            self.generator.manual_seed(seed)
            with runtime.isolate_torch(
                None if self.built_in else global_seed, self.device, self.threads
            ):
                yield

    def iterate(self, progress: float = 0.0) -> dict[str, float]:
        """Make `train_freq` steps of each environment and learn from the buffer; see `Learner`.

        Steps count even if `stop_requested` prevents the updates: they are in the buffer.
        """
        progress = _validation.check_float(
            "progress", progress, 0, 1, fix="pass the share that is done"
        )
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
                    self._pay_updates(self.updates - before)
        self.episodes.drain(self.env)
        if not n_transitions:
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
        """Updates by so many minibatches, until `stop_requested` ends them.

        Raises:
            FloatingPointError: A loss or a gradient is NaN or infinite.
        """
        self.norms.zero_()
        for tensors in self._metric_tensors.values():
            tensors.clear()  # of an iteration that failed
        for _ in range(count):
            if self.stop_requested:
                break
            stream, options = self.streams["minibatches"], self.sampling(progress)
            enter("buffer")
            batch = self.replay.sample(stream, self.normalizer, **options)
            enter("gradient_update")
            if batch is not None:
                # Smaller ones would be compiled for as well.
                is_full = len(batch.rewards) == self.config.batch_size
                self.losses = self._fast if is_full else self._plain
                self.update(batch, learning_rate)
            self.updates += 1
        # Only here are numbers read: on a GPU, each reading would wait for all work before it.
        metrics = {
            name: torch.stack(told).mean().item()
            for name, told in self._metric_tensors.items()
            if told
        }
        self.last |= metrics
        _finite.check_finite({**metrics, "gradient": self.norms.item()}, self.timesteps)

    def record(self, **metrics: Tensor) -> None:
        """Notes what an update has to say; metrics are the means over an iteration's updates."""
        for name, value in metrics.items():
            self._metric_tensors[name].append(value.detach())

    def optimizer_step(
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
        non_finite = ~norm.isfinite()
        if self.device.type != "cpu":
            gradient.masked_fill_(non_finite, 0.0)
        elif bool(non_finite):
            _finite.check_finite({name: loss.item(), "gradient": norm.item()}, self.timesteps)
        optimizer.step(gradient, learning_rate)
        self.record(**{name: loss})

    def unpack_obs(self, rows: Array) -> Any:
        """Raw observations as the policy takes them, where it lives; it may write to them."""
        if self.normalizer is not None and self.config.normalize_obs:
            rows = self.normalizer.normalize_obs(rows)
        tensor = torch.from_numpy(rows if self.built_in else rows.copy())
        return self.layout.unpack(tensor.to(self.device), torch_dtype)

    def explore(self, obs: Array, masks: Array | None) -> Array:
        """Actions for raw observations, as they are stored."""
        mask = None if masks is None else torch.from_numpy(masks).to(self.device)
        actions = self.explore_actions(self.unpack_obs(obs), mask)
        return actions.numpy(force=True)

    def predict(
        self,
        obs: Any,
        deterministic: bool = True,
        stream: _rng.Stream | None = None,
        action_masks: npt.ArrayLike | None = None,
    ) -> Array:
        """Actions for raw observations, greedy ones or samples; see `Learner`."""
        sample_stream, space = self._sample_stream(deterministic, stream), self.spaces[1]
        rows, single = as_batch(obs, self.layout)
        if len(rows) == 0:  # which torch cannot take apart
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

    def _parameters(self) -> _types.Arrays:
        """The parameters of the policy, to name one that is NaN."""
        return runtime.module_arrays(self.policy)

    def _networks(self) -> _types.Arrays:
        """Copies of all parameters and buffers, by name."""
        return {_common_name(name): x for name, x in runtime.module_arrays(self.modules).items()}

    def _optimizer_state(self) -> _types.Arrays:
        """Copies of what the optimisers keep, by name."""
        return {name: x for optimizer in self.optimizers for name, x in optimizer.state().items()}

    def _restore(self, state: learners.LearnerState) -> bool:
        """Takes networks, optimisers, buffer and environments; see `BaseLearner._restore`."""
        full_names = {_common_name(name): name for name in self.modules.state_dict()}
        arrays = {full_names.get(name, name): x for name, x in state.networks.items()}
        tensors = runtime.module_tensors(self.modules, arrays)
        parts = self._split_optimizer_state(state.optimizer)
        for optimizer, part in zip(self.optimizers, parts, strict=True):
            optimizer.check_state(part)
        is_restored = super()._restore(state)
        for optimizer, part in zip(self.optimizers, parts, strict=True):
            optimizer.load_state(part)
        self.modules.load_state_dict(tensors)
        return is_restored

    def _split_optimizer_state(self, arrays: _types.Arrays) -> list[_types.Arrays]:
        """What each optimiser keeps; the first one gets what none knows, and refuses it."""
        rest, parts = dict(arrays), list[_types.Arrays]()
        for optimizer in self.optimizers:
            names = [name for name in optimizer.state() if name in rest]
            parts.append({name: rest.pop(name) for name in names})
        parts[0] |= rest
        return parts


def _common_name(name: str) -> str:
    """The name of a tensor, as every backend has it."""
    for prefix in _OMITTED_PREFIXES:
        name = name.removeprefix(prefix)
    return name
