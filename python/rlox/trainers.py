"""`Trainer`: what surrounds an algorithm, from the environment's id to the checkpoint."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from rlox._concurrency import stop_on_interrupt
from rlox._errors import ClosedError, StructuredError
from rlox._registry import ALGORITHMS, AlgorithmSpec
from rlox._training.hooks import Callback, CallbackStates
from rlox._training.loop import Loop, plan
from rlox._training.results import CTRL_C, STOP, TrainResult
from rlox._training.resume import (
    check_required_objects,
    describe,
    emit_restore_warnings,
    restore_trainer,
    save_checkpoint,
    settings_on,
    trainer_manifest,
)
from rlox._training.run_folder import RunFolder, check_runs_dir
from rlox._validation import check_bool, check_keywords, check_str, json_keywords, resolve_seed
from rlox.callbacks.base import as_callbacks
from rlox.callbacks.progress import ProgressBar
from rlox.checkpoint import read_checkpoint
from rlox.configs import SHAPE_SETTINGS
from rlox.envs._make import get_env_name, get_num_envs, make_vec
from rlox.evaluation import (
    EvaluationResult,
    SeededPredictor,
    evaluate,
    evaluation_seed,
    get_env_maker,
)
from rlox.learners._backends import Backend, choose_backend, loading_backend, make_learner
from rlox.logger.base import Logger, as_loggers
from rlox.presets import resolve_config

if TYPE_CHECKING:
    from typing_extensions import Self

    from rlox.features import FeaturesExtractor
    from rlox.policies import PolicyLike

_TRAIN_ARGUMENTS = ("total_timesteps", "callbacks", "loggers", "progress_bar")
_HINTS = {
    "policy_kwargs": "pass net_arch, activation or features_extractor instead",
    "replay_buffer_class": 'pass her="future", or prioritized=True to DQN',
    **dict.fromkeys(_TRAIN_ARGUMENTS, "pass it to train()"),
}
Maker = str | EnvSpec | Callable[..., gym.Env[Any, Any]]
EnvLike = Maker | VectorEnv[Any, Any, Any] | gym.Env[Any, Any]


class Trainer:
    """What the trainers of all algorithms do; `rlox.trainers.PPOTrainer` describes the arguments.

    As a context manager it is closed at the end.
    """

    spec: AlgorithmSpec

    def __init__(
        self,
        env: EnvLike,
        seed: int | None = None,
        *,
        backend: Backend = "auto",
        policy: "PolicyLike" = None,
        features_extractor: "FeaturesExtractor | None" = None,
        env_kwargs: dict[str, Any] | None = None,
        runs_dir: str | os.PathLike[str] | None = "runs",
        **settings: Any,
    ) -> None:
        known = [field.name for field in dataclasses.fields(self.spec.config)]
        known += ["backend", "policy", "features_extractor", "env_kwargs", "runs_dir"]
        check_keywords(settings, known, type(self).__name__, _HINTS)
        self.env_name = get_env_name(env)
        self.env_id = self.env_name if isinstance(env, str) else None
        shape = () if policy is None else SHAPE_SETTINGS
        config, self.config_sources = resolve_config(
            self.spec.config,
            self.spec.name,
            self.env_name,
            get_num_envs(env),
            settings,
            exclude=shape,
        )
        config = self._shard_config(config)
        self.seed = resolve_seed(seed)
        keywords = {} if env_kwargs is None else env_kwargs
        self.env_kwargs = json_keywords("env_kwargs", keywords, ("env", "num_envs", "seed"))
        self.has_custom_policy, self.has_custom_features = (
            policy is not None,
            features_extractor is not None,
        )
        self._env, self._env_kwargs = env, dict(keywords)
        self._runs_dir, self._closed = check_runs_dir(runs_dir), False
        try:
            self.env = make_vec(env, config.num_envs, **self._env_kwargs)
        except StructuredError as error:
            if error.argument in self._env_kwargs:
                error.section = "env_kwargs"
            raise
        try:
            space = self.env.single_observation_space
            chosen = choose_backend(backend, config, space, policy, features_extractor)
            learner_args = self.env, config, self.seed
            self.learner = make_learner(self.spec, chosen, learner_args, policy, features_extractor)
        except BaseException:
            self.close()
            raise
        self.run: RunFolder | None = None
        self.start_timesteps = self.target_timesteps = self.iterations = 0
        self.restore_warnings: list[str] = []  # what of a checkpoint could not be gone on with
        self.callbacks: list[Callback] = []  # those of the call of `train`, or of the last one
        self.callback_states: CallbackStates = []  # what callbacks of a checkpoint know
        self.stopped_by: str | None = None  # as in `TrainResult`, since the last call of `train`
        self._training = False

    def _shard_config(self, config: Any) -> Any:
        """What of the settings this process does; several share them in `rlox.distributed.ddp`."""
        return config

    @property
    def config(self) -> Any:
        """All settings, resolved; `config_sources` says where each comes from."""
        return self.learner.config

    @property
    def timesteps(self) -> int:
        """Steps learned from so far, all environments together."""
        return self.learner.timesteps

    def close(self) -> None:
        """Frees the environments, unless they were given already made; closing twice is allowed.

        What was learned stays: only `train` needs environments.
        """
        if (stop := getattr(getattr(self, "learner", None), "stop_actors", None)) is not None:
            stop()
        if not self._closed and not isinstance(self._env, VectorEnv | gym.Env):
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
        callbacks: Sequence[Callback | Callable[["Trainer", dict[str, float]], object]] = (),
        loggers: Sequence[str | Logger] = (),
    ) -> TrainResult:
        """Makes at least `total_timesteps` more steps, in whole iterations.

        Schedules run over the steps of the call. Ctrl-C ends it after the current step, or update
        of the weights; what was learned is kept and saved, steps not learned from are lost. A
        second one raises `KeyboardInterrupt` at once.

        Args:
            total_timesteps: Of all environments together. None goes on with a run that was
                interrupted or loaded, to where it was to end.
            progress_bar: Show one; needs the extra `rlox[progress]`.
            callbacks: `rlox.callbacks.Callback` objects, or functions of (trainer, metrics). When
                one raises, what was learned is saved first.
            loggers: "console", "jsonl", "tensorboard", "wandb", "mlflow", or objects as
                `rlox.logger.Logger` describes; the run folder has its `metrics.csv` without.

        Raises:
            TypeError: `total_timesteps` is no number, a callback or a logger is none.
            ValueError: Fewer than 1 step, or None with nothing to go on with; a logger's name is
                none; what an environment gives that is not finite, with the step and environment.
            FloatingPointError: NaN or infinity, with the tensor, the step and the environment; the
                run folder has a `diagnosis` then.
            MemoryError: No room for what comes in; a smaller `buffer_size` takes less.
            ModuleNotFoundError: The progress bar needs rich, a logger its extra.
            OSError: The run folder cannot be written, or another process trains in it.
            rlox.ClosedError: After `close`.

        Warns:
            UserWarning: There was no room for the replay buffer in the run's checkpoint; a logger
                failed, and is left out.
        """
        if self._closed:
            raise ClosedError("trainer", "an open one", "a closed one", "make another")
        callback_objects = as_callbacks(callbacks)
        if check_bool("progress_bar", progress_bar):
            callback_objects.append(ProgressBar())
        folder = self.run is not None or self._runs_dir is not None
        logger_objects = as_loggers(loggers, folder=folder)
        plan(self, total_timesteps)
        emit_restore_warnings(self)
        self.learner.stop_requested, self.stopped_by = False, None
        with stop_on_interrupt(lambda: self.stop(CTRL_C)):  # before a folder is half made
            if self.run is None and self._runs_dir is not None:
                self.run = RunFolder.make(self._runs_dir, self.env_name, self.spec.name, self.seed)
                self.run.write("config.json", describe(self))
            self._training = True
            try:
                with nullcontext() if self.run is None else self.run.lock():
                    return Loop(self, callback_objects, logger_objects).run()
            finally:
                self._training = False

    def stop(self, reason: str | None = None) -> None:
        """Ends `train` after the current step; from a callback or another thread.

        Args:
            reason: Why the run has come to its end: the result has it as `stopped_by`, and there is
                nothing to go on with. None interrupts it. The first one that is told counts.

        Raises:
            TypeError: It is neither a str nor None.
        """
        why = STOP if reason is None else check_str("reason", reason)
        self.stopped_by = self.stopped_by or why
        self.learner.stop_requested = True

    def interrupt_requested(self) -> bool:
        """Whether `train` was interrupted and has not returned: nothing long shall begin then."""
        return self._training and self.stopped_by in (CTRL_C, STOP)

    def evaluate(
        self,
        n_episodes: int = 30,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        env: Maker | None = None,
        max_episode_steps: int | None = None,
    ) -> EvaluationResult:
        """Plays full episodes in Gymnasium's own environment, without learning anything.

        Args:
            n_episodes: At least 1.
            seed: Of the episodes, and of the samples; None takes one that belongs to the trainer's.
                The same seed and weights give the same result, and training goes on as without.
            deterministic: Greedy actions rather than samples.
            env: Another environment; None: the one trained on, by its id, spec or the function
                given.
            max_episode_steps: Episodes end there at the latest; None: where the environment has it.

        Returns:
            Means are NaN where Ctrl-C or `stop()` ended `train` while this played for it.

        Raises:
            ValueError: The trainer was given environments already made, so `env` is needed; what
                `rlox.evaluation.evaluate` refuses.
            TypeError: An argument of another kind; a policy of your own without `mode` cannot be
                greedy.
        """
        chosen = get_env_maker(self, env)
        seed = evaluation_seed(self.seed) if seed is None else resolve_seed(seed)
        kwargs = self._env_kwargs if env is None else {}
        return evaluate(
            SeededPredictor(self.learner, seed, self.interrupt_requested),
            chosen,
            n_episodes,
            seed=seed,
            deterministic=deterministic,
            env_kwargs=kwargs,
            max_episode_steps=max_episode_steps,
        )

    def predict(
        self, obs: Any, deterministic: bool = True, action_masks: npt.ArrayLike | None = None
    ) -> npt.NDArray[Any]:
        """Actions as the environment takes them, for one observation or a batch.

        Args:
            obs: (*obs_shape) or (n, *obs_shape), raw: where training normalises observations, so
                does this, with the statistics as they are. Dicts or tuples for such spaces.
            deterministic: Greedy actions rather than samples.
            action_masks: (n, k) flags of the actions that are allowed; None: all.

        Returns:
            (*action_shape) or (n, *action_shape), in the action space.

        Raises:
            ValueError: Another shape, or numbers that are not finite.
            TypeError: No array of real numbers; a policy of your own without `mode` cannot be
                greedy.
        """
        return self.learner.predict(obs, deterministic, action_masks=action_masks)

    def save(self, path: str | os.PathLike[str], *, replay: bool = True) -> None:
        """Writes a checkpoint, see `rlox.checkpoint`, from which `load` makes an equal trainer.

        Args:
            path: The folder to make; a checkpoint there is replaced.
            replay: Whether a replay buffer, which may be large, is in it. Without one the
                checkpoint predicts the same, and `train` begins with an empty buffer.

        Raises:
            FileExistsError: `path` is there, and neither a checkpoint nor an empty folder.
            OSError: It cannot be written; what was there stays.
            MemoryError: Copies of it do not fit into memory: those of the replay buffer take up to
                twice what it holds, which `buffer_size` bounds.
        """
        save_checkpoint(self, path, check_bool("replay", replay))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        env: EnvLike | None = None,
        backend: Backend | None = None,
        policy: "PolicyLike" = None,
        features_extractor: "FeaturesExtractor | None" = None,
        device: str | None = None,
        actors: str | None = None,
        runs_dir: str | os.PathLike[str] | None = "runs",
    ) -> "Self":
        """The trainer that was saved: it predicts the same, and goes on learning from there.

        Environments with a state (native ones, and those of `rlox.envs._state`) go on in the middle
        of their episodes, so that a run saved between two iterations is the one that was not
        stopped; others start new episodes. What a trainer in Rust saved is loaded,
        too, if it has the settings of trainers here.

        Args:
            path: What `save` wrote, or the run folder.
            env: Takes the place of the saved id and `env_kwargs`; needed where there was no id.
            policy: Needed where the trainer was made with one, as are `features_extractor`s.
            backend: What computes from here on; None: what did.
            device: Where the networks shall live; None: where they were.
            actors: Where they shall work, other workers than those saved for instance; None: there.
            runs_dir: As for the constructor.

        Raises:
            FileNotFoundError: Nothing is there.
            rlox.CorruptFileError: It is damaged; the file and the section are named.
            ValueError: It is another algorithm's, or does not fit environment, policy, backend or
                actors.

        Warns:
            UserWarning: By `train`, once: what it cannot go on with exactly, and why.
        """
        checkpoint = read_checkpoint(path)
        saved = trainer_manifest(Path(path), checkpoint.manifest, cls.spec.name, cls.spec.config)
        check_required_objects(saved, env=env, policy=policy, features_extractor=features_extractor)
        chosen: Any = loading_backend(backend, saved["backend"])
        settings = settings_on(chosen, saved, device=device, actors=actors, shape=policy is None)
        trainer = cls(
            saved["env"] if env is None else env,
            saved["seed"],
            backend=chosen,
            policy=policy,
            features_extractor=features_extractor,
            env_kwargs=saved["env_kwargs"] if env is None else None,
            runs_dir=runs_dir,
            **settings,
        )
        with ExitStack() as on_error:
            on_error.callback(trainer.close)
            # Only a policy of the caller's can be another one than that which was saved, and only
            # another backend can have no room for what is in order.
            same = policy is None and chosen == saved["backend"]
            restore_trainer(trainer, path, saved, checkpoint.members, same=same)
            on_error.pop_all()
        return trainer


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


class PPOTrainer(Trainer):
    """Trains with proximal policy optimization, `rlox.algorithms.ppo`.

    Settings come from the arguments, else from rl-zoo3 for this environment's id, else they are
    Stable-Baselines3's defaults; `config` and `config_sources` tell.

    Args:
        env: An id, an `EnvSpec`, an environment class or a function that makes an environment, a
            vector environment in any autoreset mode.
        seed: Decides everything random, but for what a `policy` or `features_extractor` of your own
            draws from torch's global generator while other threads draw from it, too. None takes
            one from the operating system; `seed` tells.
        backend: What computes: "native", the networks in Rust, needs nothing else; "torch" does all
            settings; "candle" and "burn" are for builds with them. "auto" takes "torch" for what
            only that one does (a `policy` or `features_extractor`, pictures, Dict and Tuple
            observations, another `device` than the CPU, `compile`, "elu", "rmsprop_tf",
            `full_std=False`, `net_arch=()` beside `use_sde`, `her`, `frame_stack`, `action_noise`
            with a mean or with several sigmas), else "native", whatever is installed;
            `learner.backend` tells.
        policy: A torch module as `rlox.policies.ActorCritic` describes, or a function from the
            observation space and the action space to one; None: the built-in MLP.
        env_kwargs: Passed to `rlox.make_vec` and what makes the environments; only what JSON can
            hold, as the run folder and checkpoints have it (there, tuples are lists).
        runs_dir: Where run folders are made; None: nothing is written.
        **settings: Fields of `rlox.configs.PPOConfig`.

    Raises:
        TypeError: An unknown setting (near ones are named), or an argument of another kind.
        ValueError: A setting out of range, spaces that PPO cannot do, an unknown id, a `runs_dir`
            in which no folder can be made; a backend that is none, is not in this build, or does
            not do what is asked for.
        ModuleNotFoundError: Torch is what is needed, and it is not installed.
        MemoryError: Environments, rollout or networks do not fit into memory.

    >>> trainer = PPOTrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2048
    """

    spec = ALGORITHMS["ppo"]


class A2CTrainer(Trainer):
    """Trains with advantage actor-critic, `rlox.algorithms.a2c`.

    Args:
        env, seed, backend, policy, env_kwargs, runs_dir: As for `PPOTrainer`.
        **settings: Fields of `rlox.configs.A2CConfig`.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError: As `PPOTrainer` does.

    >>> trainer = A2CTrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2000
    """

    spec = ALGORITHMS["a2c"]


class IMPALATrainer(Trainer):
    """Trains with IMPALA, `rlox.algorithms.impala`; actors collect meanwhile, in threads.

    Args:
        env, seed, backend, policy, env_kwargs, runs_dir: As for `PPOTrainer`. Environments other
            than native ones, and a `policy` or `features_extractor` of your own, need
            `deterministic=True` and `max_staleness=0`: actors and learner take turns then.
        **settings: Fields of `rlox.configs.IMPALAConfig`.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError: As `PPOTrainer` does.

    >>> trainer = IMPALATrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2000
    """

    spec = ALGORITHMS["impala"]


class DQNTrainer(Trainer):
    """Trains with deep Q-networks, `rlox.algorithms.dqn`.

    Args:
        env, seed, backend, env_kwargs, runs_dir: As for `PPOTrainer`.
        policy, features_extractor: As for `rlox.algorithms.DQN`.
        **settings: Fields of `rlox.configs.DQNConfig`.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError: As `PPOTrainer` does.

    >>> trainer = DQNTrainer(env="CartPole-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=2_000)["timesteps"]
    2048
    """

    spec = ALGORITHMS["dqn"]


class SACTrainer(Trainer):
    """Trains with soft actor-critic, `rlox.algorithms.sac`.

    Args:
        env, seed, backend, env_kwargs, runs_dir: As for `PPOTrainer`.
        policy, features_extractor: As for `rlox.algorithms.SAC`.
        **settings: Fields of `rlox.configs.SACConfig`.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError: As `PPOTrainer` does.

    >>> trainer = SACTrainer(env="Pendulum-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=110)["timesteps"]
    110
    """

    spec = ALGORITHMS["sac"]


class TD3Trainer(Trainer):
    """Trains with twin delayed DDPG, `rlox.algorithms.td3`.

    Args:
        env, seed, backend, env_kwargs, runs_dir: As for `PPOTrainer`.
        policy, features_extractor: As for `rlox.algorithms.TD3`.
        **settings: Fields of `rlox.configs.TD3Config`.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError: As `PPOTrainer` does.

    >>> trainer = TD3Trainer(env="Pendulum-v1", seed=42, runs_dir=None)
    >>> trainer.train(total_timesteps=1_000)["timesteps"]
    1000
    """

    spec = ALGORITHMS["td3"]
