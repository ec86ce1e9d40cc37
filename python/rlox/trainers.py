"""Trainers: run an algorithm, from creating environments to saving checkpoints."""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast

import numpy.typing as npt

from rlox._errors import ArgumentTypeError, ClosedError, StructuredError
from rlox._registry import ALGORITHMS, AlgorithmSpec, has_encoder
from rlox._training import loop
from rlox._training.results import TrainResult
from rlox._training.resume import (
    check_manifest,
    check_required_objects,
    find_algorithm,
    resolve_settings,
    restore_run,
)
from rlox._training.run import Callback, Run
from rlox._training.run_folder import check_runs_dir
from rlox._validation import check_bool, check_keywords, resolve_seed
from rlox.callbacks.base import as_callbacks
from rlox.callbacks.progress import ProgressBar
from rlox.checkpoint import read_checkpoint
from rlox.configs import SHAPE_SETTINGS
from rlox.envs._make import EnvLike, EnvMaker, EnvSource, as_env_source, get_env_name, get_num_envs, make_vec
from rlox.evaluation import EvaluationResult
from rlox.learners._backends import Backend, choose_backend, loading_backend, make_learner
from rlox.logger.base import Logger, as_loggers
from rlox.plotting import plot_curve
from rlox.presets import resolve_config

if TYPE_CHECKING:
    from typing_extensions import Self

    from rlox.features import FeaturesExtractor
    from rlox.policies import PolicyLike

__all__ = [
    "A2CTrainer",
    "DQNTrainer",
    "IMPALATrainer",
    "PPOTrainer",
    "SACTrainer",
    "TD3Trainer",
    "TrainResult",
    "Trainer",
]
_log = logging.getLogger("rlox")
_TRAIN_ARGUMENTS = ("total_timesteps", "callbacks", "loggers", "progress_bar")
_HINTS = {
    "policy_kwargs": "pass net_arch, activation or features_extractor instead",
    "replay_buffer_class": 'pass her="future", or prioritized=True to DQN',
    **dict.fromkeys(_TRAIN_ARGUMENTS, "pass it to train()"),
}


class Trainer:
    """Base class of the trainers, whose arguments `PPOTrainer` describes.

    As a context manager, a trainer is closed at the end.

    Attributes:
        env: Vector environment of the training.
        learner: Learner of the algorithm on the chosen backend.
        run: State of the run: budget, run folder, callbacks, reason of the end.
    """

    spec: AlgorithmSpec
    run_class: type[Run] = Run  # `rlox.distributed.ddp` has its own class

    def __init__(
        self,
        env: EnvLike | EnvSource,
        seed: int | None = None,
        *,
        backend: Backend = "auto",
        policy: "PolicyLike" = None,
        features_extractor: "FeaturesExtractor | None" = None,
        env_kwargs: dict[str, Any] | None = None,
        runs_dir: str | os.PathLike[str] | None = "runs",
        **settings: Any,
    ) -> None:
        if type(self) is Trainer:
            expected = "the class of an algorithm, such as PPOTrainer"
            raise ArgumentTypeError("Trainer", expected, "the base class", "use PPOTrainer(...) or Trainer.load(path)")
        known = [field.name for field in fields(self.spec.config)]
        known += ["backend", "policy", "features_extractor", "env_kwargs", "runs_dir"]
        check_keywords(settings, known, type(self).__name__, _HINTS)
        source = as_env_source(env, env_kwargs)
        config, config_sources = resolve_config(
            self.spec.config,
            self.spec.name,
            get_env_name(source.env),
            get_num_envs(source.env),
            settings,
            exclude=() if policy is None else SHAPE_SETTINGS,
        )
        config, local_config = self._shard_config(config)
        seed = resolve_seed(seed)
        folder = check_runs_dir(runs_dir)
        self._closed = False
        self._owns_env = not source.is_existing
        try:
            self.env = make_vec(source.env, local_config.num_envs, **source.kwargs)
        except StructuredError as error:
            if error.argument in source.kwargs:
                error.section = "env_kwargs"
            raise
        try:
            space = self.env.single_observation_space
            chosen = choose_backend(self.spec, backend, local_config, space, policy, features_extractor)
            learner_args = self.env, local_config, seed
            self.learner = make_learner(self.spec, chosen, learner_args, policy, features_extractor)
        except BaseException:
            if self._owns_env:
                self.env.close()
            raise
        self.run = self.run_class(
            spec=self.spec,
            learner=self.learner,
            config=config,
            seed=seed,
            task=source.name,
            env_source=source,
            config_sources=config_sources,
            has_custom_policy=policy is not None,
            has_custom_features=features_extractor is not None or has_encoder(self.env.single_observation_space),
            runs_dir=folder,
        )

    def _shard_config(self, config: Any) -> tuple[Any, Any]:
        """Return the settings of the run and of this process; see `rlox.distributed.ddp`."""
        return config, config

    @property
    def config(self) -> Any:
        """Resolved settings; `config_sources` has the origin of each setting."""
        return self.run.config

    @property
    def config_sources(self) -> dict[str, str]:
        """Origin of each setting: "argument", "rl-zoo3", "default" or "checkpoint"."""
        return self.run.config_sources

    @property
    def seed(self) -> int:
        """Seed from which all random streams derive."""
        return self.run.seed

    @property
    def timesteps(self) -> int:
        """Number of environment steps learned from, over all environments."""
        return self.run.budget_used

    def close(self) -> None:
        """Close the environments unless the caller created them; repeated calls do nothing.

        A closed trainer can predict, evaluate and save, but not train.
        """
        self.learner.stop_actors()
        if self._owns_env and not self._closed:
            self.env.close()
        self._closed = True

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def train(
        self,
        total_timesteps: int | None = None,
        *,
        progress_bar: bool = False,
        callbacks: Sequence[Callback | Callable[[Run, dict[str, float]], object]] = (),
        loggers: Sequence[str | Logger] = (),
    ) -> TrainResult:
        """Train for at least `total_timesteps` more environment steps, in full iterations.

        Schedules run over the steps of this call. Ctrl-C ends the call after the current step or
        weight update, and the run is saved. The steps of an unfinished rollout are discarded. A
        second Ctrl-C raises `KeyboardInterrupt` immediately.

        Args:
            total_timesteps: Number of steps over all environments. None continues an interrupted or
                loaded run up to its planned end.
            progress_bar: If True, show a progress bar; requires the extra `rlox[progress]`.
            callbacks: `rlox.callbacks.Callback` objects, or functions of (run, metrics). If a
                callback raises an error, the run is saved first.
            loggers: "console", "jsonl", "tensorboard", "wandb", "mlflow", or objects that implement
                `rlox.logger.Logger`. The run folder always has a `metrics.csv`.

        Returns:
            Mean return and length of the last episodes, step counts, and the reason of the end.

        Raises:
            ArgumentTypeError: An argument has a wrong type.
            ArgumentError: `total_timesteps` is below 1, or None although no run can be continued;
                the name of a logger is unknown.
            NonFiniteError: A number is NaN or infinite. The error names the tensor or the
                environment and the step, and the run folder gets a `diagnosis`.
            MemoryError: The data does not fit into memory; a smaller `buffer_size` needs less.
            ModuleNotFoundError: The extra for the progress bar or a logger is not installed.
            OSError: The run folder cannot be written, or another process trains in it.
            ClosedError: The trainer is closed.

        Warns:
            UserWarning: The run's checkpoint lacks the replay buffer, or a logger failed and was removed.
        """
        if self._closed:
            raise ClosedError("trainer", None, "is closed", "create a new one")
        checked = as_callbacks(callbacks)
        if check_bool("progress_bar", progress_bar):
            checked.append(ProgressBar())
        has_folder = self.run.folder is not None or self.run.runs_dir is not None
        checked_loggers = as_loggers(loggers, folder=has_folder)
        callback_list = [*checked, _LearningCurve()]
        return loop.train(self.run, total_timesteps, callbacks=callback_list, loggers=checked_loggers)

    def stop(self, reason: str | None = None) -> None:
        """End `train` after the current step. Callbacks and other threads may call this method.

        Args:
            reason: Text for `stopped_by` of the result. A run that has a reason counts as complete.
                If the reason is None, the run is interrupted, and another call of `train()`
                continues the run. The first of several reasons counts.

        Raises:
            ArgumentTypeError: `reason` is neither a str nor None.
            ArgumentError: `reason` is empty.
        """
        self.run.stop(reason)

    def evaluate(
        self,
        n_episodes: int = 30,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        env: EnvMaker | None = None,
        max_episode_steps: int | None = None,
    ) -> EvaluationResult:
        """Evaluate the policy over full episodes in Gymnasium's own environment.

        The native environment is used if only this has the keywords `env_kwargs` of the training. Evaluations do not
        affect training.

        Args:
            n_episodes: Number of episodes, at least 1.
            seed: Seed of the episodes and of sampled actions. None uses a seed that derives from
                the trainer's seed, so the same weights give the same result.
            deterministic: If True, use greedy actions, else samples.
            env: Environment to evaluate in; None uses the id, spec or function of the training environment.
            max_episode_steps: Number of steps after which an episode is truncated; None uses the
                limit of the environment.

        Returns:
            Mean and standard deviation of the returns, and the return and length of each episode.
            If Ctrl-C or `stop()` ends `train` during the evaluation, the means are NaN.

        Raises:
            ArgumentError: `env` is None, and the trainer was created with environment objects; also
                as for `rlox.evaluation.evaluate`.
            ArgumentTypeError: An argument has a wrong type, or a custom policy has no greedy actions.
        """
        return self.run.evaluate(
            n_episodes, seed=seed, deterministic=deterministic, env=env, max_episode_steps=max_episode_steps
        )

    def predict(
        self, obs: Any, deterministic: bool = True, action_masks: npt.ArrayLike | None = None
    ) -> npt.NDArray[Any]:
        """Return actions for one observation or a batch.

        Args:
            obs: (*obs_shape) or (n, *obs_shape), not normalized; dicts or tuples of arrays for Dict
                and Tuple spaces. If training normalizes, the current statistics are applied.
            deterministic: If True, return greedy actions, else samples.
            action_masks: (n, k) bool, True where an action is allowed; None allows all.

        Returns:
            (*action_shape) or (n, *action_shape), in the dtype of the action space.

        Raises:
            ArgumentError: `obs` has another shape.
            NonFiniteError: `obs` has numbers that are not finite.
            ArgumentTypeError: `obs` is not an array of real numbers, or a custom policy has no greedy actions.
        """
        return self.learner.predict(obs, deterministic, action_masks=action_masks)

    def save(self, path: str | os.PathLike[str], *, replay: bool = True) -> None:
        """Write a checkpoint, from which `load` creates an equal trainer; see `rlox.checkpoint`.

        Args:
            path: Folder to create; an existing checkpoint is replaced.
            replay: If True, include the replay buffer, which may be large. Without the buffer, predictions
                stay the same, but training resumes with an empty buffer.

        Raises:
            FileExistsError: `path` exists, and is neither a checkpoint nor an empty folder.
            OSError: The checkpoint cannot be written; an existing checkpoint remains.
            OutOfMemoryError: A copy of the replay buffer does not fit into memory. Saving
                temporarily needs up to twice the memory of the buffer.
        """
        self.run.save(path, replay=replay)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        env: EnvLike | EnvSource | None = None,
        backend: Backend | None = None,
        policy: "PolicyLike" = None,
        features_extractor: "FeaturesExtractor | None" = None,
        env_kwargs: dict[str, Any] | None = None,
        device: str | None = None,
        actors: str | None = None,
        runs_dir: str | os.PathLike[str] | None = "runs",
    ) -> "Self":
        """Return the trainer of a checkpoint, which predicts the same and continues to train.

        `Trainer.load` accepts checkpoints of all algorithms. The class of an algorithm only accepts
        checkpoints of this algorithm.
        Environments whose state can be saved continue in the middle of their episodes, so the
        results of a resumed run are bitwise equal to those of an uninterrupted run. Other
        environments start new episodes.
        A checkpoint of a trainer in Rust can be loaded if the Python config supports its settings.

        Args:
            path: Checkpoint, or run folder, whose newest checkpoint is loaded.
            env: Environment that replaces the saved id; required if the checkpoint has no id.
            backend: Backend that continues the run; None: the backend of the checkpoint.
            policy: Policy that was passed to the trainer; required if there was one.
            features_extractor: As `policy`.
            env_kwargs: Keywords for creating the environments. None: the saved keywords, unless `env` replaces
                a saved id or is an existing environment.
            device: Device of the networks; None: the device of the checkpoint.
            actors: Value of the setting `actors`, such as other worker addresses; None: the value of the checkpoint.
            runs_dir: As for the constructor.

        Raises:
            FileNotFoundError: `path` does not exist.
            CorruptFileError: The checkpoint is damaged. The error names the file and the section.
            ArgumentError: The checkpoint is of another algorithm, or does not fit the environment,
                the policy, the backend or the actors.

        Warns:
            UserWarning: In the first call of `train`, if parts of the run were not restored.
        """
        checkpoint = read_checkpoint(path)
        if cls is Trainer:
            cls = cast("type[Self]", load_trainer(find_algorithm(path, checkpoint.manifest)))
        saved = check_manifest(Path(path), checkpoint.manifest, cls.spec)
        check_required_objects(saved, env=env is not None, policy=policy is not None)
        chosen: Any = loading_backend(backend, saved["backend"])
        settings = resolve_settings(chosen, saved, device=device, actors=actors, shape=policy is None)
        has_saved_env = env is None or (saved["env"] is None and not as_env_source(env).is_existing)
        if env_kwargs is None and has_saved_env:
            env_kwargs = saved["env_kwargs"]
        trainer = cls(
            saved["env"] if env is None else env,
            saved["seed"],
            backend=chosen,
            policy=policy,
            features_extractor=features_extractor,
            env_kwargs=env_kwargs,
            runs_dir=runs_dir,
            **settings,
        )
        with ExitStack() as on_error:
            on_error.callback(trainer.close)
            check_required_objects(saved, features_extractor=trainer.run.has_custom_features)
            # With the same policy and backend, a rejected state means a damaged checkpoint.
            same = policy is None and chosen == saved["backend"]
            restore_run(trainer.run, path, saved, checkpoint.members, same=same)
            on_error.pop_all()
        return trainer


def load_trainer(spec: AlgorithmSpec) -> type[Trainer]:
    """Return the trainer class of an algorithm."""
    if spec.trainer is None:
        return type(f"{spec.name.upper()}Trainer", (Trainer,), {"spec": spec})
    trainer: type[Trainer] = resolve_name(spec.trainer)
    return trainer


class _LearningCurve(Callback):
    """Callback that draws `curve.png` in the run folder."""

    def on_train_end(self, run: Run) -> None:
        folder = run.folder
        if folder is None or not folder.metrics.columns:
            return
        title = f"{run.spec.name} {run.task}, seed {run.seed}"
        try:
            folder.metrics.flush()
            plot_curve(folder.path / "metrics.csv", folder.path / "curve.png", title)
        except Exception as error:  # a missing plot must not end the run
            level = logging.DEBUG if isinstance(error, ModuleNotFoundError) else logging.WARNING
            _log.log(level, "curve.png was not written: %s", error)


class PPOTrainer(Trainer):
    """Trainer of proximal policy optimization; see `rlox.algorithms.ppo`.

    Settings that are not passed come from rl-zoo3 if it has settings for the environment's id, else
    from Stable-Baselines3's defaults. `config` and `config_sources` have the result.

    Args:
        env: Id, `EnvSpec`, class or function of environments, or a vector environment in any autoreset mode.
        seed: Seed of all random streams. If a custom `policy` or `features_extractor` draws from
            torch's global generator, results repeat only if no other thread draws from it. If None,
            the operating system provides a seed.
        backend: "native" computes in Rust and needs no other package; "torch" supports all settings; "candle" and
            "burn" need a build with them. "auto" is "native", unless an argument needs "torch":
            image, Dict or Tuple observations; the arguments `policy`, `features_extractor`, `compile`, `her` and
            `frame_stack`; `device` other than "cpu"; the values "elu" and "rmsprop_tf"; `full_std=False`;
            `use_sde` with `net_arch=()`; `action_noise` with a mean or several sigmas. The choice does not depend on
            the installed packages.
        policy: Torch module that implements `rlox.policies.ActorCritic`, or a function that returns
            one for an observation space and an action space; None: built-in MLP.
        features_extractor: Function or class that returns a torch module for the observation space,
            which replaces the built-in encoder; see `rlox.features.FeaturesExtractor`.
        env_kwargs: Keywords for creating the environments, with values that JSON can represent.
        runs_dir: Folder in which `train` creates the run folder; None: nothing is written.
        **settings: Fields of `rlox.configs.PPOConfig`.

    Raises:
        ArgumentTypeError: A setting is unknown, or an argument has a wrong type.
        ArgumentError: A setting is out of range, the id is unknown, the spaces are not supported, `runs_dir` cannot be
            written, or the backend is not in this build or does not support a setting.
        ModuleNotFoundError: A setting needs PyTorch, which is not installed.
        MemoryError: Environments, rollout or networks do not fit into memory.

    >>> trainer = PPOTrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2048
    """

    spec = ALGORITHMS["ppo"]


class A2CTrainer(Trainer):
    """Trainer of advantage actor-critic; see `rlox.algorithms.a2c`.

    Args:
        env, seed, backend, policy, features_extractor, env_kwargs, runs_dir: As for `PPOTrainer`.
        **settings: Fields of `rlox.configs.A2CConfig`.

    Raises:
        ArgumentTypeError, ArgumentError, ModuleNotFoundError, MemoryError: As for `PPOTrainer`.

    >>> trainer = A2CTrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2000
    """

    spec = ALGORITHMS["a2c"]


class IMPALATrainer(Trainer):
    """Trainer of IMPALA: actors collect while the learner updates; see `rlox.algorithms.impala`.

    Args:
        env, seed, backend, policy, features_extractor, env_kwargs, runs_dir: As for `PPOTrainer`.
            With a Gymnasium environment, a custom policy or a features extractor, actors are worker
            processes, which need an id or a function as `env`. In these cases, an existing
            environment needs `deterministic=True` and `max_staleness=0`; collecting and learning
            then alternate.
        **settings: Fields of `rlox.configs.IMPALAConfig`.

    Raises:
        ArgumentTypeError, ArgumentError, ModuleNotFoundError, MemoryError: As for `PPOTrainer`.

    >>> trainer = IMPALATrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2000
    """

    spec = ALGORITHMS["impala"]


class DQNTrainer(Trainer):
    """Trainer of deep Q-networks; see `rlox.algorithms.dqn`.

    Args:
        env, seed, backend, policy, features_extractor, env_kwargs, runs_dir: As for `PPOTrainer`.
        **settings: Fields of `rlox.configs.DQNConfig`.

    Raises:
        ArgumentTypeError, ArgumentError, ModuleNotFoundError, MemoryError: As for `PPOTrainer`.

    >>> trainer = DQNTrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2048
    """

    spec = ALGORITHMS["dqn"]


class SACTrainer(Trainer):
    """Trainer of soft actor-critic; see `rlox.algorithms.sac`.

    Args:
        env, seed, backend, policy, features_extractor, env_kwargs, runs_dir: As for `PPOTrainer`.
        **settings: Fields of `rlox.configs.SACConfig`.

    Raises:
        ArgumentTypeError, ArgumentError, ModuleNotFoundError, MemoryError: As for `PPOTrainer`.

    >>> trainer = SACTrainer(env="Pendulum-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=110)["timesteps"]
    110
    """

    spec = ALGORITHMS["sac"]


class TD3Trainer(Trainer):
    """Trainer of twin delayed DDPG; see `rlox.algorithms.td3`.

    Args:
        env, seed, backend, policy, features_extractor, env_kwargs, runs_dir: As for `PPOTrainer`.
        **settings: Fields of `rlox.configs.TD3Config`.

    Raises:
        ArgumentTypeError, ArgumentError, ModuleNotFoundError, MemoryError: As for `PPOTrainer`.

    >>> trainer = TD3Trainer(env="Pendulum-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=1_000)["timesteps"]
    1000
    """

    spec = ALGORITHMS["td3"]
