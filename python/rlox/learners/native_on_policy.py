"""PPO, A2C and IMPALA on the networks of rlox in Rust, without PyTorch."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rlox import _finite, _spaces, _types, learners
from rlox._errors import ArgumentError, ArgumentTypeError, NonFiniteError
from rlox._rlox import NativePolicy, RolloutBuffer
from rlox._rlox import enter_phase as enter
from rlox._rng import state_for_native
from rlox.buffers.rollout import make_buffer
from rlox.configs import EPS, A2CConfig, IMPALAConfig, PPOConfig, scheduled
from rlox.envs import _state
from rlox.envs._rollout_env import RolloutEnv
from rlox.envs.vec_env import VecEnv
from rlox.learners import OnPolicyT, _actors, _native
from rlox.learners._backends import check_torch
from rlox.learners.base import NativeBaseLearner

if TYPE_CHECKING:
    from torch import nn

    from rlox.policies import MlpPolicy

# Native method that updates the policy from a rollout and settings, and returns metrics.
NativeUpdate = Callable[[RolloutBuffer, dict[str, Any]], dict[str, float]]


class NativeLearner(NativeBaseLearner[OnPolicyT]):
    """Base class of on-policy learners with networks in Rust; subclasses define `update`.

    With native environments, an iteration is two calls of Rust functions: a rollout and an update.
    Other environments are stepped from Python.

    Args:
        env: Environments from `rlox.make_vec` with Box, Discrete, MultiDiscrete or MultiBinary
            observations.
        config: Settings; `num_envs` must be the number of environments.
        seed: Seed of initial weights, environments, actions and minibatches, an int >= 0.
        backend: Backend of the networks, one of `rlox._rlox.network_backends()`.

    Raises:
        ArgumentError: Spaces and config do not match.
        ArgumentTypeError: `env`, `config` or `seed` has another type.
        MemoryError: The networks or the rollouts do not fit into memory.
    """

    policy: NativePolicy

    def __init__(self, env: RolloutEnv, config: OnPolicyT, seed: int, backend: str = "native") -> None:
        super().__init__(env, config, seed, type(self).__name__.removeprefix("Native"))
        self.backend = backend
        self.staleness = 0  # staleness of the last rollout, in updates
        if not _actors.is_synchronous(config):
            mode = _actors.resolve_actors(env, config)
            self.actor_plan = _actors.ActorPlan(mode, type(self), env, config, self.spaces)
        self.shape = _native.shape(config)
        observation = _native.observation_spec(self.layout)
        # The policy's actions count from 0; `to_env_actions` adds the start of the space.
        action = _spaces.to_native(self.spaces[1])
        stream = state_for_native(np.random.default_rng(self.init))
        self.policy = NativePolicy(observation, action, stream, self.shape, backend)
        self.buffer = make_buffer(
            env, config.n_steps, normalize_obs=config.normalize_obs, mask_width=self._mask_width()
        )
        self.masks = self.buffer.field("action_masks") if config.action_masks else None
        # The loop in Rust cannot ignore masks that the environments report.
        self.fused: VecEnv | None = None
        if isinstance(env, VecEnv) and env.has_action_masks == config.action_masks:
            self.fused = env

    def iterate(self, progress: float = 0.0) -> dict[str, float]:
        """Collect `n_steps` steps per environment and learn from them; see `Learner.iterate`."""
        progress = learners.check_progress(progress)
        with self._exclusive():
            is_full = self.collect() if self.actor_plan is None else self._receive()
            enter("gradient_update")
            n_transitions = self.buffer.n_transitions
            metrics = self.update(progress) if is_full else {}
            if self.actors is None:
                self.episodes.drain(self.env)
            elif metrics:
                self.actors.publish(self._actor_weights())
                metrics |= {"train/policy_staleness": self.staleness, **self.actors.metrics()}
            if not metrics:
                return {}
            self.timesteps += n_transitions
            return self.episode_metrics() | metrics

    def _receive(self) -> bool:
        """Wait for a rollout of an actor, and seed the update; return False on a stop."""
        rollout = self.next_rollout()
        if rollout is None:
            return False
        self.buffer, self.staleness = rollout.buffer, rollout.staleness
        self.policy.begin(rollout.seed, rollout.buffer.num_envs)
        return True

    def _actor_weights(self) -> NativePolicy | _types.Arrays:
        """Return the weights in the form that actors accept."""
        copies_policy = self.actor_plan is not None and self.actor_plan.uses_native_policy
        return self.policy if copies_policy else self._networks()

    def _worker_args(self) -> tuple[object, ...]:
        """Return the arguments that workers pass to the learner class after env, config and seed."""
        return (self.backend,)

    def load_weights(self, weights: _types.Arrays) -> None:
        """Load weights by name; see `TorchLearner.load_weights`."""
        self.policy.load(weights)

    def collect_for_remote(self, seed: int) -> bool:
        """Fill the buffer with a rollout; see `TorchLearner.collect_for_remote`."""
        with self._exclusive():
            return self.collect(seed)

    def collect(self, seed: int | None = None) -> bool:
        """Fill the buffer with a rollout; return False if `stop_requested` stopped the rollout.

        Args:
            seed: Seed of the rollout; None: the next seed of the stream "iterations".
        """
        config, buffer, policy = self.config, self.buffer, self.policy
        seed = int(self.streams["iterations"].integers(2**63)) if seed is None else seed
        policy.begin(seed, config.num_envs)
        first_step, outputs = self.timesteps // config.num_envs, list[npt.NDArray[Any]]()
        try:
            if self.fused is None:
                return self._collect_stepwise(outputs)
            enter("env_step")
            if not self.env_initialized:
                self.env.begin_rollout(buffer, self.normalizer, self.first_seed())
                self.env_initialized = True
            args = config.gamma, config.gae_lambda, max(config.sde_sample_freq, 0)
            return policy.collect(self.fused._native, buffer, self.normalizer, *args)
        except (ValueError, FloatingPointError) as error:
            # The environment rejects NaN actions. Report the policy's tensor that has the NaN.
            t = buffer.next_step
            if self.fused is not None and t < config.n_steps:
                outputs = [buffer.actions[t], buffer.log_probs[t], buffer.values[t]]
            _finite.check_finite_policy(outputs, policy.tensors(), first_step + t)
            if isinstance(error, NonFiniteError) and error.step is None:
                error.step = first_step + t
            raise

    def _collect_stepwise(self, outputs: list[npt.NDArray[Any]]) -> bool:
        """Collect from environments stepped from Python; keep the last policy outputs in `outputs`."""
        env, buffer, config, policy = self.env, self.buffer, self.config, self.policy
        shape, freq = self.spaces[1].shape or (), config.sde_sample_freq
        enter("env_step")
        env.begin_rollout(buffer, self.normalizer, self.first_seed())
        self.env_initialized = True
        for t in range(config.n_steps):
            allowed = None
            if self.masks is not None:
                allowed = self.masks[t]
                allowed[...] = env.action_masks()
            enter("inference")
            noise = t == 0 or (freq > 0 and t % freq == 0)
            actions, *rest = policy.act(buffer, t, allowed, noise)
            outputs[:] = actions.reshape(config.num_envs, *shape), *rest
            enter("env_step")
            env.step_rollout(buffer, t, outputs[0], outputs[1], outputs[2], self.normalizer)
            if self.stop_requested:
                return False
        enter("gae_compute")
        policy.finish(buffer, config.gamma, config.gae_lambda)
        # If all steps were resets, collect another rollout.
        return buffer.n_transitions > 0 or self._collect_stepwise(outputs)

    def update(self, progress: float) -> dict[str, float]:
        """Learn from the rollout in the buffer.

        Args:
            progress: Fraction of the run that is done, in [0, 1], for schedules.

        Returns:
            Metrics; empty if `stop_requested` was set before the first minibatch.

        Raises:
            NonFiniteError: A gradient is NaN or infinite (the weights have not changed), or the
                optimizer step made a weight non-finite (restore a checkpoint).
        """
        raise NotImplementedError

    def learn(self, call: NativeUpdate, names: Sequence[str], progress: float, **others: Any) -> dict[str, float]:
        """Call a native update and return its metrics; add `timesteps` to a `NonFiniteError`.

        Args:
            call: Update, such as `NativePolicy.ppo`.
            names: Names of the settings of this update, besides those that all updates use.
            progress: Fraction of the run that is done, in [0, 1], for the learning rate.
            **others: Arguments of the update that differ from the config.
        """
        config = self.config
        settings = {name: getattr(config, name) for name in (*names, "ent_coef", "vf_coef", "max_grad_norm")}
        learning_rate = scheduled(_single(config.learning_rate), config.lr_schedule, progress)
        try:
            metrics = call(self.buffer, {**settings, "learning_rate": learning_rate, **others})
        except NonFiniteError as error:
            error.timesteps = self.timesteps
            raise
        self.updates += int(metrics["updates"])
        return metrics

    def take_step(
        self, call: NativeUpdate, names: Sequence[str], progress: float, metric_names: Sequence[str]
    ) -> dict[str, float]:
        """Take one gradient step by a native update (see `learn`); return losses and named metrics."""
        config, metrics = self.config, self.learn(call, names, progress)
        if not metrics["updates"]:
            return {}
        metric_names = ("policy_loss", "value_loss", "entropy_loss", "loss", *metric_names)
        return {
            **{f"train/{name}": metrics[name] for name in metric_names},
            "train/learning_rate": scheduled(config.learning_rate, config.lr_schedule, progress),
            "train/n_updates": self.updates,
            **({"train/std": metrics["std"]} if "std" in metrics else {}),
        }

    def _restore(self, state: learners.LearnerState) -> bool:
        """Restore networks, optimizer and environments; see `BaseLearner._restore`."""
        policy = self.policy
        _native.check_part("networks", policy.check_tensors, state.networks)
        _native.check_part("optimizer", policy.check_optimizer_state, state.optimizer)
        is_restored = _state.set_state_if_supported(self.env, state.environment)
        # These calls cannot fail, because all parts are checked above.
        policy.load(state.networks)
        policy.load_optimizer_state(state.optimizer)
        return is_restored

    def to_torch(self) -> "MlpPolicy":
        """Return the policy as a torch module with the same names and weights.

        With `normalize_obs`, the module expects observations that `normalizer` has normalized. Box
        actions of the module are not clipped to the bounds of the space, unlike those of `predict`.
        Discrete and MultiDiscrete actions and observations count from 0; `predict` adds the `start`
        of the action space.

        Raises:
            ModuleNotFoundError: PyTorch is not installed.

        >>> from rlox import make_vec
        >>> from rlox.configs import PPOConfig
        >>> from rlox.learners.native_on_policy import NativePPO
        >>> module = NativePPO(make_vec("CartPole-v1", 1), PPOConfig(), seed=1).to_torch()
        >>> next(iter(module.state_dict()))
        'actor.0.weight'
        """
        check_torch("to_torch returns a torch module")
        import torch

        from rlox.policies import MlpPolicy, make_policy

        shape = {**self.shape, "full_std": True, "features_extractor": None}
        shape["init"] = torch.Generator().manual_seed(0)  # these weights are replaced below
        module = make_policy(None, *self.spaces, shape)
        assert isinstance(module, MlpPolicy)
        tensors = {name: torch.from_numpy(x) for name, x in self.policy.tensors().items()}
        module.load_state_dict(tensors)
        return module

    def load_torch(self, module: "nn.Module") -> None:
        """Load the weights of a torch module with the same architecture, by name, as float32.

        The activation is checked only if the module has it as a submodule, not as a function.
        Normalization of observations and clipping of actions are not checked; see `to_torch`.

        Args:
            module: Module whose `state_dict` has the names and shapes of this policy.

        Raises:
            ArgumentTypeError: `module` is not a torch module, or its `state_dict` has values that
                are not real tensors.
            ArgumentError: The activation differs, a name is missing or unknown, or a shape differs.
                The weights of this learner are unchanged.
            NonFiniteError: A weight is not finite. The weights of this learner are unchanged.
        """
        if not callable(getattr(module, "state_dict", None)):
            raise ArgumentTypeError(
                "module", "a torch module", type(module).__name__, "pass a module with the architecture of to_torch()"
            )
        from rlox._nn.runtime import activations, real_arrays

        module_activations, activation = activations(module), self.shape["activation"]
        if module_activations and activation not in module_activations:
            raise ArgumentError(
                "module",
                f"the activation {activation!r}",
                ", ".join(sorted(module_activations)),
                "pass a module with the same activation",
            )
        self.policy.load(real_arrays(module))


__all__ = ["NativeA2C", "NativeIMPALA", "NativePPO"]


def _single(setting: float) -> float:
    """Round a setting to float32, so that schedules start from the same value as in Rust."""
    return float(np.float32(setting))


class NativePPO(NativeLearner[PPOConfig]):
    """PPO learner (Schulman et al. 2017) without PyTorch, with settings `rlox.configs.PPOConfig`.

    >>> from rlox import make_vec
    >>> from rlox.configs import PPOConfig
    >>> learner = NativePPO(make_vec("CartPole-v1", 8), PPOConfig(num_envs=8, n_steps=32), seed=1)
    >>> learner.iterate()["time/total_timesteps"]
    256
    """

    algorithm = "ppo"

    def update(self, progress: float) -> dict[str, float]:
        """Learn from the rollout for `n_epochs` epochs; see `NativeLearner.update`."""
        config = self.config
        clip_coef = scheduled(_single(config.clip_coef), config.clip_schedule, progress)
        names = ("batch_size", "n_epochs", "clip_coef_vf", "target_kl", "normalize_advantage")
        others = {"clip_coef": clip_coef, "optimizer": "adam", "optimizer_eps": EPS}
        metrics = self.learn(self.policy.ppo, names, progress, **others)
        if not metrics["updates"]:
            return {}
        # Only policies with Box actions have "std".
        metric_names = ("value_loss", "entropy_loss", "loss", "clip_fraction", "explained_variance", "std", "approx_kl")
        return {
            "train/policy_gradient_loss": metrics["policy_loss"],
            **{f"train/{name}": metrics[name] for name in metric_names if name in metrics},
            "train/learning_rate": scheduled(config.learning_rate, config.lr_schedule, progress),
            "train/clip_range": scheduled(config.clip_coef, config.clip_schedule, progress),
            **({} if config.clip_coef_vf is None else {"train/clip_range_vf": config.clip_coef_vf}),
            "train/n_updates": self.updates,
        }


class NativeA2C(NativeLearner[A2CConfig]):
    """A2C learner (Mnih et al. 2016) without PyTorch, with settings `rlox.configs.A2CConfig`.

    >>> from rlox import make_vec
    >>> from rlox.configs import A2CConfig
    >>> learner = NativeA2C(make_vec("CartPole-v1", 8), A2CConfig(num_envs=8), seed=1)
    >>> learner.iterate()["time/total_timesteps"]
    40
    """

    algorithm = "a2c"

    def update(self, progress: float) -> dict[str, float]:
        """Take one gradient step on the rollout; see `NativeLearner.update`."""
        names = ("optimizer", "optimizer_eps", "normalize_advantage")
        return self.take_step(self.policy.a2c, names, progress, ("explained_variance",))


class NativeIMPALA(NativeLearner[IMPALAConfig]):
    """IMPALA learner (Espeholt et al. 2018) without PyTorch, see `rlox.configs.IMPALAConfig`.

    With native environments, actors are threads that do not use the GIL, each with a copy of the
    policy. `stop_actors` stops the actors, as does garbage collection of the learner.

    >>> from rlox import make_vec
    >>> from rlox.configs import IMPALAConfig
    >>> learner = NativeIMPALA(make_vec("CartPole-v1", 8), IMPALAConfig(), seed=1)
    >>> learner.iterate()["time/total_timesteps"]
    40
    """

    algorithm = "impala"

    def update(self, progress: float) -> dict[str, float]:
        """Take one gradient step on a rollout of an actor; see `NativeLearner.update`."""
        names = ("optimizer", "optimizer_eps", "gamma", "vtrace_lambda", "rho_bar", "c_bar")
        metric_names = ("approx_kl", "clip_fraction", "explained_variance")
        return self.take_step(self.policy.impala, names, progress, metric_names)
