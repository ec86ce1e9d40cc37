"""DQN, SAC and TD3 on the networks of rlox in Rust, without PyTorch."""

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from rlox import _finite, _spaces, _types, learners
from rlox._errors import ArgumentError
from rlox._layout import Layout
from rlox._registry import ALGORITHMS
from rlox._rlox import NativeAgent, ReplayBuffer
from rlox._rlox import enter_phase as enter
from rlox._rng import state_for_native
from rlox._spaces import check_supported_actions
from rlox.buffers._steps import StepRecorder
from rlox.buffers.replay import make_replay_buffer
from rlox.configs import DQNConfig, OffPolicyConfig, SACConfig, TD3Config, scheduled
from rlox.envs._masks import mask_width
from rlox.envs._rollout_env import RolloutEnv
from rlox.envs.vec_env import VecEnv
from rlox.learners import OffPolicyT, _native
from rlox.learners._backends import resolve_backend, torch_reasons
from rlox.learners._state_conversion import to_native_state, to_torch_replay
from rlox.learners.base import NativeBaseLearner
from rlox.noise import check_lengths

__all__ = ["NativeDQN", "NativeSAC", "NativeTD3"]


@dataclass(frozen=True)
class NativeReplay:
    """Read-only view of the replay buffer of a native agent; all members but `len` copy it.

    Args:
        agent: Native agent that owns the buffer.
        buffer_args: Layout, action space, config and mask width for `make_replay_buffer`.
    """

    agent: NativeAgent
    buffer_args: tuple[Layout, gym.Space[Any], OffPolicyConfig, int | None]

    def __len__(self) -> int:
        return self.agent.replay_len()

    def state(self) -> _types.Arrays:
        """Return copies of the arrays and of the write position of the buffer."""
        return dict(self.agent.replay_state())

    @property
    def buffer(self) -> ReplayBuffer:
        """Copy of the buffer, with observations as torch learners store them."""
        arrays, (layout, space, config, width) = self.state(), self.buffer_args
        buffer = make_replay_buffer(layout, space, config, int(arrays["num_envs"][0]), width)
        buffer.load_state(to_torch_replay(arrays, layout, buffer.state()))
        return buffer


class NativeOffPolicy(NativeBaseLearner[OffPolicyT]):
    """Base class of off-policy learners with networks and replay buffer in Rust.

    With native environments in SAME_STEP mode, an iteration is one call of a Rust function, unless
    `train_freq` counts episodes. Other environments are stepped from Python.

    Args:
        env: Environments from `rlox.make_vec` with Box, Discrete, MultiDiscrete or MultiBinary
            observations.
        config: Settings; `num_envs` must be the number of environments.
        seed: Seed of initial weights, environments, actions and minibatches, an int >= 0.
        backend: Backend of the networks, one of `rlox._rlox.network_backends()`.

    Raises:
        ArgumentError: Spaces and config do not match, or only torch supports the settings.
        ArgumentTypeError: `env`, `config` or `seed` has another type.
        MemoryError: The networks or the replay buffer do not fit into memory.
    """

    policy: NativeAgent

    def __init__(self, env: RolloutEnv, config: OffPolicyT, seed: int, backend: str = "native") -> None:
        super().__init__(env, config, seed, self.algorithm.upper())
        self._check_support(backend)
        self.backend = backend
        observation = _native.observation_spec(self.layout)
        action = _spaces.to_native(self.spaces[1])
        settings = _native.off_policy_settings(config, ALGORITHMS[self.algorithm].net_arch)
        self.masked = config.action_masks
        self._mask_width()  # raises if there are no masks
        if action["kind"] == "discrete":
            action["start"] = int(self.spaces[1].start)  # type: ignore[attr-defined]  # Discrete
        self.stepper = StepRecorder(env, self.masked)
        mode = self.stepper.mode
        seeds = self.streams["iterations"].integers(2**63, size=2)
        self.policy = NativeAgent(
            self.algorithm,
            observation,
            action,
            config.num_envs,
            self.masked,
            mode is AutoresetMode.NEXT_STEP,
            state_for_native(np.random.default_rng(self.init)),
            seeds,
            settings,
            backend,
        )
        self._empty_replay = dict(self.policy.replay_state())
        self.fused: VecEnv | None = None
        by_steps = isinstance(config.train_freq, int) and mode is AutoresetMode.SAME_STEP
        # The loop in Rust cannot ignore masks that the environments report.
        if by_steps and isinstance(env, VecEnv) and env.has_action_masks == self.masked:
            self.fused = env

    def _check_support(self, backend: str) -> None:
        """Reject settings that only torch supports, and spaces that the algorithm does not support."""
        config, (observation, action) = self.config, self.spaces
        if config.action_noise is not None and isinstance(action, gym.spaces.Box):
            check_lengths(config.action_noise, math.prod(action.shape))
        for reason in torch_reasons(config, observation, None, None):
            if reason.name in ("her", "frame_stack", "action_noise"):
                resolve_backend(backend, reason)
        if config.normalize_obs and not isinstance(observation, gym.spaces.Box):
            raise ArgumentError(
                "normalize_obs",
                "a Box observation space",
                str(observation),
                "set normalize_obs=False, or normalize in a wrapper",
            )
        check_supported_actions(self.algorithm, ALGORITHMS[self.algorithm].actions, action)

    def iterate(self, progress: float = 0.0) -> dict[str, float]:
        """Collect `train_freq` steps and learn from the replay buffer; see `Learner.iterate`.

        If `stop_requested` prevents the updates, `timesteps` still counts the stored steps.
        """
        progress = learners.check_progress(progress)
        before = self.timesteps
        with self._exclusive():
            try:
                self._start()
                if self.fused is not None:
                    enter("env_step")
                    self.policy.iterate(self.fused._native, progress, self.normalizer, self.progress_per_step)
                else:
                    self._iterate_stepwise(progress)
            except BaseException as error:
                # If a step has failed, the next iteration resets the environments.
                self.env_initialized = self.fused is not None and self.policy.env_initialized
                if isinstance(error, ValueError | FloatingPointError):
                    _finite.check_finite_policy((), self.policy.tensors(), self.timesteps)
                raise
            finally:
                metrics = self.policy.metrics()
                self.timesteps, self.updates = int(metrics["timesteps"]), int(metrics["updates"])
        self.episodes.drain(self.env)
        return self._metrics(metrics, progress) if self.timesteps > before else {}

    def _start(self) -> None:
        """Pass the environments to the agent; reset them first if this learner has not done so."""
        if self.env_initialized and self.policy.env_initialized:
            return
        is_new, env = not self.env_initialized, self.fused
        if env is None:
            self.stepper.start(self.first_seed())
            self.policy.start_from_obs(self.stepper.obs, is_new, self.stepper.masks, self.normalizer)
        elif is_new:
            env.reset(seed=self.first_seed())
            self.policy.start(env._native, self.normalizer)
        else:
            self.policy.attach(env._native)
        self.env_initialized = True

    def _iterate_stepwise(self, progress: float) -> None:
        """Run an iteration with environments that are stepped from Python."""
        policy, stepper, space, n = self.policy, self.stepper, self.spaces[1], self.config.num_envs
        policy.begin(progress, self.progress_per_step)
        wanted, steps, ended = self.config.train_freq, 0, 0
        while (ended < wanted[0]) if isinstance(wanted, tuple) else (steps < wanted):
            if self.stop_requested:
                return
            enter("inference")
            env_actions = _spaces.to_env_actions(space, policy.act(self.normalizer), n)
            enter("env_step")
            step = stepper.step(env_actions)
            enter("buffer")
            flags = step.terminated, step.truncated, step.valid, stepper.masks, step.next_masks
            policy.observe(step.next_obs, stepper.obs, step.rewards, *flags, self.normalizer)
            # A step in which all environments only reset does not count.
            steps += step.valid is None or bool(step.valid.any())
            ended += int((step.terminated | step.truncated).sum())
        enter("gradient_update")
        policy.learn(self.normalizer)

    def _metrics(self, values: dict[str, float], progress: float) -> dict[str, float]:
        """Return metrics under Stable-Baselines3's names; losses are NaN before the first update."""
        config = self.config
        return {
            **self.episode_metrics(),
            **{
                metric: values.get(name, math.nan) for name, metric in ALGORITHMS[self.algorithm].update_metrics.items()
            },
            "train/learning_rate": scheduled(config.learning_rate, config.lr_schedule, progress),
            "train/n_updates": self.updates,
        }

    @property
    def replay(self) -> NativeReplay:
        """Read-only view of the replay buffer."""
        width = mask_width(self.spaces[1]) if self.masked else None
        return NativeReplay(self.policy, (self.layout, self.spaces[1], self.config, width))

    def state(self, replay: bool = True) -> learners.LearnerState:
        """Return a copy of the state; see `Learner.state`."""
        state = super().state(replay)
        state.replay = self.replay.state() if replay else None
        return _native.add_progress_state(state, self.policy)

    def load_state(self, state: learners.LearnerState) -> None:
        """Restore a state; an error leaves the learner unchanged. See `BaseLearner.load_state`."""
        learners.check_state(state)
        state = to_native_state(state, self.layout, self.algorithm, self.config.num_envs)
        self._progress_state = _native.read_progress_state(state, self.policy, self.config.num_envs)
        self._last_update = _native.read_last_update(state)
        super().load_state(_native.select_streams(state, self.streams))

    def _restore(self, state: learners.LearnerState) -> bool:
        """Restore networks, optimizers, buffer and environments; see `BaseLearner._restore`."""
        policy = self.policy
        _native.check_part("networks", policy.check_tensors, state.networks)
        _native.check_part("optimizer", policy.check_optimizer_state, state.optimizer)
        replay = self._empty_replay if state.replay is None else state.replay
        is_restored = self._set_env_state(
            state.environment, lambda: _native.check_part("replay", policy.load_replay_state, replay)
        )
        # These calls cannot fail, because all parts are checked above.
        policy.load(state.networks)
        policy.load_optimizer_state(state.optimizer)
        policy.load_progress_state(*self._progress_state)
        policy.load_last_update(self._last_update)
        return is_restored


class NativeDQN(NativeOffPolicy[DQNConfig]):
    """DQN learner (Mnih et al. 2015) without PyTorch, with settings `rlox.configs.DQNConfig`.

    >>> from rlox import make_vec
    >>> from rlox.configs import DQNConfig
    >>> learner = NativeDQN(make_vec("CartPole-v1", 2), DQNConfig(num_envs=2), seed=1)
    >>> learner.iterate()["time/total_timesteps"]
    8
    """

    algorithm = "dqn"


class NativeSAC(NativeOffPolicy[SACConfig]):
    """SAC learner (Haarnoja et al. 2018) without PyTorch, with settings `rlox.configs.SACConfig`.

    >>> from rlox import make_vec
    >>> from rlox.configs import SACConfig
    >>> learner = NativeSAC(make_vec("Pendulum-v1", 2), SACConfig(num_envs=2), seed=1)
    >>> learner.iterate()["time/total_timesteps"]
    2
    """

    algorithm = "sac"


class NativeTD3(NativeOffPolicy[TD3Config]):
    """TD3 learner (Fujimoto et al. 2018) without PyTorch, with settings `rlox.configs.TD3Config`.

    >>> from rlox import make_vec
    >>> from rlox.configs import TD3Config
    >>> learner = NativeTD3(make_vec("Pendulum-v1", 2), TD3Config(num_envs=2), seed=1)
    >>> learner.iterate()["time/total_timesteps"]
    2
    """

    algorithm = "td3"
