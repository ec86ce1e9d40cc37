"""Load a trained policy from a checkpoint for prediction, without an environment."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rlox._errors import ArgumentError, ArgumentTypeError, CorruptFileError, add_file
from rlox._registry import has_encoder
from rlox._training.resume import check_manifest, check_required_objects, find_algorithm, resolve_settings, saved_spaces
from rlox._types import Obs
from rlox.checkpoint import read_checkpoint
from rlox.configs import OnPolicyConfig, local_config
from rlox.envs._rollout_env import RolloutEnv
from rlox.learners import MEMBERS, Config, LearnerState
from rlox.learners._backends import Backend, choose_backend, loading_backend, make_learner

if TYPE_CHECKING:
    from rlox.features import FeaturesExtractor
    from rlox.learners import EnvLearner
    from rlox.policies import PolicyLike

__all__ = ["Policy", "load"]


class Policy:
    """Trained policy, as `load` returns it. `rlox.evaluation.evaluate` accepts such a policy.

    Attributes:
        algorithm: "ppo", "a2c", "impala", "dqn", "sac" or "td3".
        env: Id of the environment of the training; None for environments without an id.
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
        timesteps: Number of environment steps of the training.
        manifest: Manifest of the checkpoint, see `rlox.checkpoint`.
        learner: Learner that computes the actions.
    """

    def __init__(self, learner: "EnvLearner", manifest: dict[str, Any]) -> None:
        self.learner, self.manifest = learner, manifest
        self.observation_space, self.action_space = learner.spaces
        self.algorithm: str = manifest["algorithm"]
        self.env: str | None = manifest["env"]
        self.timesteps = learner.budget_used

    def predict(
        self, obs: Obs, deterministic: bool = True, action_masks: npt.ArrayLike | None = None
    ) -> npt.NDArray[Any]:
        """Return the actions for one observation or a batch.

        The actions are those that the trainer would have returned when it was saved. Samples
        continue the trainer's random stream.

        Args:
            obs: Raw observations, (*obs_shape) or (n, *obs_shape); dicts or tuples for Dict and
                Tuple spaces. They are normalized if training normalized observations.
            deterministic: Return greedy actions instead of samples.
            action_masks: Flags (n, k) of the allowed actions; None allows all actions.

        Returns:
            Actions in the action space, (*action_shape) or (n, *action_shape).

        Raises:
            ArgumentError: The observations or masks have a wrong shape, or no action is allowed.
            ArgumentTypeError: The observations are not an array of real numbers, the masks are not
                flags, or a custom policy without `mode` cannot be greedy.
            NonFiniteError: An observation is NaN or infinite.
        """
        return self.learner.predict(obs, deterministic, action_masks=action_masks)

    def __repr__(self) -> str:
        steps = f"{self.timesteps:,} steps"
        return f"Policy({self.algorithm}, {self.env or 'custom environment'}, {steps})"


def load(
    path: str | os.PathLike[str],
    *,
    backend: Backend | None = None,
    policy: "PolicyLike" = None,
    features_extractor: "FeaturesExtractor | None" = None,
    device: str | None = None,
) -> Policy:
    """Load a trained policy from a checkpoint.

    Args:
        path: Checkpoint that a trainer saved, or a run folder, whose newest checkpoint is loaded.
        backend: Backend that computes the actions; None is the backend of the checkpoint. With "native", built-in
            networks that were trained with torch need no torch, and actions differ only by rounding.
        policy: Policy that was passed to the trainer; required if one was passed.
        features_extractor: As `policy`.
        device: Torch device of the networks; None is the device of the checkpoint.

    Returns:
        The policy, which predicts as the trainer did when it was saved.

    Raises:
        FileNotFoundError: There is no checkpoint at `path`.
        CorruptFileError: A file is damaged or missing; the error names the file and the section.
        ArgumentError: The algorithm is unknown, the checkpoint does not fit `policy` or `backend`,
            or a required `policy` or `features_extractor` is missing.
        ArgumentTypeError: An argument has a wrong type.
        OutOfMemoryError: The checkpoint does not fit into memory.
        ModuleNotFoundError: The backend is torch, and torch is not installed.

    >>> import rlox, tempfile
    >>> trainer = rlox.trainers.PPOTrainer("CartPole-v1", seed=1, runs_dir=None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trainer.save(f"{folder}/saved")
    ...     loaded = rlox.load(f"{folder}/saved")
    >>> loaded, bool(loaded.predict([0.0] * 4) == trainer.predict([0.0] * 4))
    (Policy(ppo, CartPole-v1, 0 steps), True)
    """
    checkpoint = read_checkpoint(path)
    spec = find_algorithm(path, checkpoint.manifest)
    saved = check_manifest(Path(path), checkpoint.manifest, spec)
    has_features = features_extractor is not None or has_encoder(saved_spaces(saved)[0])
    check_required_objects(saved, policy=policy is not None, features_extractor=has_features)
    chosen = loading_backend(backend, saved["backend"])
    config = _make_minimal_config(spec.config(**resolve_settings(chosen, saved, device=device)))
    env = cast(RolloutEnv, _SpacesOnlyEnv(saved, config.num_envs))
    space = env.single_observation_space
    expected = choose_backend(spec, chosen, config, space, policy, features_extractor)
    learner_args = env, config, saved["seed"]
    learner = make_learner(spec, expected, learner_args, policy, features_extractor)
    members: dict[str, Any] = {name: checkpoint.members.get(name, {}) for name in MEMBERS}
    members |= {"environment": {}, "replay": None}
    try:
        learner.load_state(LearnerState(**members, counters=saved["counters"], streams=saved["streams"]))
    except ValueError as error:
        same = policy is None and chosen == saved["backend"]
        raise add_file(error, path, CorruptFileError if same else ArgumentError) from error
    return Policy(learner, saved)


def _make_minimal_config(config: Config) -> Config:
    """Return the config without settings that use memory or environments only for training."""
    if isinstance(config, OnPolicyConfig):  # actors would need environments
        local: OnPolicyConfig = local_config(config, config.num_envs)
        return replace(local, device=config.device)
    size = config.batch_size + config.num_envs
    return replace(config, her=None, frame_stack=1, compile=False, buffer_size=size)


class _SpacesOnlyEnv:
    """Stand-in for environments that has only their spaces and cannot step."""

    has_action_masks = True
    autoreset_mode = AutoresetMode.SAME_STEP

    def __init__(self, manifest: Mapping[str, Any], num_envs: int) -> None:
        self.single_observation_space, self.single_action_space = saved_spaces(manifest)
        self.num_envs = num_envs

    def _raise_unsupported(self, *args: object, **kwargs: object) -> NoReturn:
        raise ArgumentTypeError("policy", None, "can only predict", "load the checkpoint with a trainer to train")

    begin_rollout = step_rollout = step = reset = pop_episodes = _raise_unsupported
    action_stream = None
