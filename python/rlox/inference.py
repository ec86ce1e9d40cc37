"""`load`: a trained policy from a checkpoint, to predict with; no environment is needed."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rlox._errors import ArgumentError, ArgumentTypeError, CorruptFileError, add_file
from rlox._registry import ALGORITHMS, AlgorithmSpec
from rlox._training.resume import (
    check_required_objects,
    saved_spaces,
    settings_on,
    trainer_manifest,
)
from rlox.checkpoint import Checkpoint, read_checkpoint
from rlox.configs import local_config
from rlox.learners import MEMBERS, LearnerState
from rlox.learners._backends import Backend, choose_backend, loading_backend, make_learner

if TYPE_CHECKING:
    from rlox.features import FeaturesExtractor
    from rlox.learners import Learner
    from rlox.policies import PolicyLike


class Policy:
    """What was trained, as `load` gives it; `rlox.evaluation.evaluate` takes it as well.

    Attributes:
        algorithm: "ppo", "a2c", "impala", "dqn", "sac" or "td3".
        env: The id that it was trained on; None for environments without one.
        observation_space: Of one environment.
        action_space: Of one environment.
        timesteps: How many steps it had learned from.
        manifest: All that the checkpoint says, see `rlox.checkpoint`.
        learner: What computes.
    """

    def __init__(self, learner: "Learner", manifest: dict[str, Any]) -> None:
        self.learner, self.manifest = learner, manifest
        any_learner: Any = learner
        self.observation_space, self.action_space = any_learner.spaces
        self.algorithm: str = manifest["algorithm"]
        self.env: str | None = manifest["env"]
        self.timesteps = learner.timesteps
        self.masked = bool(getattr(learner.config, "action_masks", False))

    def predict(
        self, obs: Any, deterministic: bool = True, action_masks: npt.ArrayLike | None = None
    ) -> npt.NDArray[Any]:
        """Actions as the environment takes them, for one observation or a batch.

        As the trainer's own at the moment of saving: samples go on in its stream, too.

        Args:
            obs: (*obs_shape) or (n, *obs_shape), raw: what training normalised is normalised.
            deterministic: Greedy actions rather than samples.
            action_masks: (n, k) flags of the actions that are allowed; None: all.

        Returns:
            (*action_shape) or (n, *action_shape), in the action space.

        Raises:
            ValueError: Another shape, or numbers that are not finite.
            TypeError: No array of real numbers.
        """
        return self.learner.predict(obs, deterministic, action_masks=action_masks)

    def __repr__(self) -> str:
        steps = f"{self.timesteps:,} steps"
        return f"Policy({self.algorithm}, {self.env or 'an environment of its own'}, {steps})"


def load(
    path: str | os.PathLike[str],
    *,
    backend: Backend | None = None,
    policy: "PolicyLike" = None,
    features_extractor: "FeaturesExtractor | None" = None,
    device: str | None = None,
) -> Policy:
    """The policy that was saved: it predicts as it did then.

    Args:
        path: What a trainer's `save` wrote, or a run folder.
        backend: What computes; None: what did. On "native", built-in networks of torch's need no
            torch; actions are then equal but for rounding.
        policy: Needed where the trainer was made with one, as are `features_extractor`s.
        device: Where the networks shall live; None: where they were.

    Raises:
        FileNotFoundError: Nothing is there.
        rlox.CorruptFileError: It is damaged; the file and the section are named.
        ValueError: It is no trainer's, or does not fit policy or backend; one of the caller's is
            needed.
        ModuleNotFoundError: It needs torch.

    >>> import rlox, tempfile
    >>> trainer = rlox.trainers.PPOTrainer("CartPole-v1", seed=1, runs_dir=None)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trainer.save(f"{folder}/saved")
    ...     loaded = rlox.load(f"{folder}/saved")
    >>> loaded, bool(loaded.predict([0.0] * 4) == trainer.predict([0.0] * 4))
    (Policy(ppo, CartPole-v1, 0 steps), True)
    """
    checkpoint = read_checkpoint(path)
    spec = _find_spec(path, checkpoint)
    saved = trainer_manifest(Path(path), checkpoint.manifest, spec.name, spec.config)
    check_required_objects(
        saved | {"env": ""}, policy=policy, features_extractor=features_extractor
    )
    chosen: Any = loading_backend(backend, saved["backend"])
    config = _make_minimal_config(spec.config(**settings_on(chosen, saved, device=device)))
    env = _SpacesOnlyEnv(saved, config.num_envs)
    space = env.single_observation_space
    expected = choose_backend(chosen, config, space, policy, features_extractor)
    learner_args = env, config, saved["seed"]
    learner = make_learner(spec, expected, learner_args, policy, features_extractor)
    members: dict[str, Any] = {name: checkpoint.members.get(name, {}) for name in MEMBERS}
    members |= {"environment": {}, "replay": None}
    try:
        learner.load_state(
            LearnerState(**members, counters=saved["counters"], streams=saved["streams"])
        )
    except ValueError as error:
        same = policy is None and chosen == saved["backend"]
        raise add_file(error, path, CorruptFileError if same else ArgumentError) from error
    return Policy(learner, saved)


def _find_spec(path: str | os.PathLike[str], checkpoint: Checkpoint) -> AlgorithmSpec:
    """Return the specification of the checkpoint's algorithm."""
    name = checkpoint.manifest.get("algorithm")
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise ArgumentError(
            str(path),
            f"a checkpoint of {', '.join(sorted(ALGORITHMS))}",
            f"one of {name!r}",
            "read it with rlox.checkpoint.read_checkpoint",
        )
    return ALGORITHMS[name]


def _make_minimal_config(config: Any) -> Any:
    """Settings of which nothing takes memory that only training needs."""
    names = {field.name for field in dataclasses.fields(config)}
    if "num_actors" in names:  # nobody collects: actors would need environments
        config = dataclasses.replace(local_config(config, config.num_envs), device=config.device)
    small: dict[str, Any] = {"her": None, "frame_stack": 1, "compile": False}
    if "buffer_size" in names:
        small["buffer_size"] = config.batch_size + config.num_envs
    return dataclasses.replace(config, **{n: x for n, x in small.items() if n in names})


class _SpacesOnlyEnv:
    """Environments of which only the spaces are known."""

    has_action_masks = True

    def __init__(self, manifest: Mapping[str, Any], num_envs: int) -> None:
        self.single_observation_space, self.single_action_space = saved_spaces(manifest)
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def _raise_unsupported(self, *args: object, **kwargs: object) -> NoReturn:
        raise ArgumentTypeError(
            "policy", None, "can only predict", "load it with its trainer to train"
        )

    begin_rollout = step_rollout = step = reset = pop_episodes = _raise_unsupported
    action_stream = None
