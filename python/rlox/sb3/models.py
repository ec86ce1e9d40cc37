"""Models `PPO`, `A2C`, `DQN`, `SAC` and `TD3` with the interface of Stable-Baselines3."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox import _spaces, inference, trainers
from rlox._errors import ArgumentError, ArgumentTypeError, rename_arguments
from rlox._registry import ALGORITHMS
from rlox._training.resume import NoEnvironmentError
from rlox._types import Obs
from rlox._validation import check_bool, check_float, check_int, check_keywords, short_repr
from rlox.envs._make import EnvLike, EnvSource, as_env_source, get_num_envs
from rlox.envs.gymnasium import GymVecEnv
from rlox.envs.vec_env import VecEnv
from rlox.learners import Config
from rlox.learners._backends import Backend
from rlox.sb3.callbacks import log_folder, make_callbacks, make_loggers
from rlox.sb3.evaluation import check_environment, env_id_of
from rlox.sb3.kwargs import HINTS, as_action_noise, check_observations, check_policy, policy_settings, schedule
from rlox.trainers import Trainer

if TYPE_CHECKING:
    from typing_extensions import Self

PathLike = str | os.PathLike[str]
_RUST_ROLLOUTS = "remove it, rlox has its own rollout buffer"
# By keyword: the only values that models support, and a hint.
FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "rollout_buffer_class": ((None,), _RUST_ROLLOUTS),
    "rollout_buffer_kwargs": ((None, {}), _RUST_ROLLOUTS),
    "replay_buffer_class": ((None,), "use her= or prioritized= of rlox.trainers"),
    "replay_buffer_kwargs": ((None, {}), "remove it, rlox has its own replay buffer"),
    "optimize_memory_usage": ((False,), "use a smaller buffer_size, rlox has no such mode"),
    "stats_window_size": ((100,), "remove it, rollout/ep_rew_mean covers the last 100 episodes"),
    "_init_setup_model": ((True,), "remove it, models are complete after construction"),
}
# Keywords that are not settings of the trainer, with their defaults.
NO_SETTINGS: dict[str, Any] = {
    **{name: allowed[0] for name, (allowed, _) in FIXED.items()},
    "tensorboard_log": None,
    "policy_kwargs": None,
    "verbose": 0,
    "seed": None,
    "device": "auto",
    "use_rms_prop": True,
}
_RENAMED = {"rms_prop_eps": "optimizer_eps", "clip_range": "clip_coef", "clip_range_vf": "clip_coef_vf"}
# Names of arguments in trainers' errors, and the corresponding keywords.
KEYWORDS = {new: old for old, new in _RENAMED.items()}
KEYWORDS |= {"activation": "activation_fn", "num_envs": "env"}
_ROLLOUT = "use_sde sde_sample_freq rollout_buffer_class rollout_buffer_kwargs"
_OFF_POLICY = "learning_rate buffer_size learning_starts batch_size tau gamma train_freq gradient_steps"
_REPLAY = "replay_buffer_class replay_buffer_kwargs optimize_memory_usage n_steps"
_END = "stats_window_size tensorboard_log policy_kwargs verbose seed device _init_setup_model"
# Names of the keywords, in the order of the arguments after policy and env.
_NAMES = {
    "ppo": "learning_rate n_steps batch_size n_epochs gamma gae_lambda clip_range clip_range_vf "
    f"normalize_advantage ent_coef vf_coef max_grad_norm {_ROLLOUT} target_kl {_END}",
    "a2c": "learning_rate n_steps gamma gae_lambda ent_coef vf_coef max_grad_norm rms_prop_eps use_rms_prop "
    f"{_ROLLOUT} normalize_advantage {_END}",
    "dqn": f"{_OFF_POLICY} {_REPLAY} target_update_interval exploration_fraction exploration_initial_eps "
    f"exploration_final_eps max_grad_norm {_END}",
    "sac": f"{_OFF_POLICY} action_noise {_REPLAY} ent_coef target_update_interval target_entropy use_sde "
    f"sde_sample_freq use_sde_at_warmup {_END}",
    "td3": f"{_OFF_POLICY} action_noise {_REPLAY} policy_delay target_policy_noise target_noise_clip {_END}",
}


def _default(algorithm: str, name: str) -> Any:
    """Return Stable-Baselines3's default of a keyword; rlox's settings have the same defaults."""
    if (algorithm, name) == ("ppo", "batch_size"):
        return 64  # the setting's default None has this meaning
    if name in NO_SETTINGS:
        return NO_SETTINGS[name]
    return getattr(ALGORITHMS[algorithm].config, _RENAMED.get(name, name))


# Keywords and defaults of each algorithm, in the order of `_NAMES`.
DEFAULTS = {
    algorithm: {name: _default(algorithm, name) for name in names.split()} for algorithm, names in _NAMES.items()
}


def all_keywords(what: str, algorithm: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return all keywords of an algorithm: positional values, keywords and defaults.

    Args:
        what: Name of the class or function, for errors.
        algorithm: Name of the algorithm.
        args: Positional values, in the order of `DEFAULTS`.
        keywords: Values by keyword.

    Raises:
        ArgumentTypeError: A keyword is unknown or has two values, or there are too many values.

    >>> all_keywords("PPO", "ppo", (1e-3,), {"n_steps": 8})["learning_rate"]
    0.001
    """
    defaults = DEFAULTS[algorithm]
    owners = {name: [x.upper() for x in DEFAULTS if name in DEFAULTS[x]] for name in keywords}
    others = {name: f"{name} belongs to {', '.join(x)}" for name, x in owners.items() if x}
    check_keywords(keywords, defaults, what, {**others, **HINTS})
    if len(args) > len(defaults):
        raise ArgumentTypeError(
            what, f"at most {len(defaults)} arguments after policy and env", str(len(args)), "pass them by name"
        )
    positional = dict(zip(defaults, args, strict=False))
    if twice := [name for name in positional if name in keywords]:
        raise ArgumentTypeError(twice[0], "one value", "a positional and a keyword value", "remove one of them")
    return {**defaults, **positional, **keywords}


def trainer_settings(algorithm: str, keywords: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """Return a value for every setting of the trainer from the keywords, so that no preset applies.

    Raises:
        ArgumentTypeError, ArgumentError: rlox does not support the value of a keyword.

    >>> keywords = all_keywords("PPO", "ppo", (), {"clip_range": 0.1})
    >>> trainer_settings("ppo", keywords, num_envs=1)["clip_coef"]
    0.1
    """
    for name, (allowed, fix) in FIXED.items():
        if name in keywords and keywords[name] not in allowed:
            raise ArgumentError(name, str(allowed[0]), short_repr(keywords[name]), fix)
    settings = {field.name: field.default for field in fields(ALGORITHMS[algorithm].config)}
    settings |= {_RENAMED.get(n, n): x for n, x in keywords.items() if n not in NO_SETTINGS}
    settings |= {"num_envs": num_envs, "device": device_name(keywords["device"])}
    settings["learning_rate"], settings["lr_schedule"] = schedule("learning_rate", keywords["learning_rate"])
    if algorithm == "ppo":
        settings |= _ppo_settings(keywords, num_envs)
    # With Adam, Stable-Baselines3 uses this eps instead of rms_prop_eps.
    if algorithm == "a2c" and not check_bool("use_rms_prop", keywords["use_rms_prop"]):
        settings |= {"optimizer": "adam", "optimizer_eps": 1e-5}
    if "action_noise" in keywords:
        settings["action_noise"] = as_action_noise(keywords["action_noise"])
    return settings | policy_settings(algorithm, keywords["policy_kwargs"])


def _ppo_settings(keywords: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    clip_coef, clip_schedule = schedule("clip_range", keywords["clip_range"])
    clip_coef_vf, vf_schedule = schedule("clip_range_vf", keywords["clip_range_vf"])
    if vf_schedule != "constant":
        raise ArgumentError("clip_range_vf", "a number or None", "a function that is not constant", "pass a number")
    n_transitions = check_int("n_steps", keywords["n_steps"], 1) * num_envs
    batch_size = min(check_int("batch_size", keywords["batch_size"], 1), n_transitions)
    settings = {"clip_coef": clip_coef, "clip_schedule": clip_schedule, "clip_coef_vf": clip_coef_vf}
    return {**settings, "batch_size": batch_size}


def device_name(device: object) -> str:
    """Return the name of a device, a str or a torch.device; "auto" is the CPU."""
    return "cpu" if device == "auto" else str(device)


def _verbosity(value: object) -> int:
    return int(check_float("verbose", check_int("verbose", value, 0, fix="pass 0, 1 or 2"), 0, 2))


def _as_source(env: EnvLike) -> EnvSource:
    check_environment(env)
    return as_env_source(env, env_id=env_id_of(env))


class Model:
    """Base class of the models.

    Args:
        policy: "MlpPolicy"; "CnnPolicy" for images with PPO, A2C or DQN.
        env: Id, environment, vector environment of rlox or Gymnasium, or another value that `rlox.make_vec` accepts.
        *args: Positional values, in the order of `rlox.sb3.models.DEFAULTS`.
        backend: As for `rlox.trainers`; Stable-Baselines3 has no such argument.
        **keywords: Keywords of Stable-Baselines3, with the defaults of Stable-Baselines3.

    Raises:
        ArgumentTypeError: A keyword is unknown, or a value has an invalid type.
        ArgumentError: rlox does not support a value. The message contains an alternative.
    """

    algorithm: ClassVar[str]
    trainer_type: ClassVar[type[Trainer]]
    verbose: int
    tensorboard_log: str | None
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    n_envs: int
    seed: int
    _config: Config
    _first: int  # steps that `num_timesteps` does not count
    _trainer: Trainer | None = None
    _policy: inference.Policy  # set if the model was loaded without an environment
    _source: tuple[Path, str | None]  # path and device of `_policy`

    @rename_arguments(KEYWORDS)
    def __init__(self, policy: str, env: EnvLike, *args: object, backend: Backend = "auto", **keywords: object) -> None:
        values = all_keywords(type(self).__name__, self.algorithm, args, keywords)
        self.verbose = _verbosity(values["verbose"])
        self._first = 0
        self.tensorboard_log = log_folder(values["tensorboard_log"])
        source = _as_source(env)
        check_policy(policy)
        settings = trainer_settings(self.algorithm, values, get_num_envs(env) or 1)
        trainer = self.trainer_type(source, values["seed"], backend=backend, runs_dir=None, **settings)
        try:
            check_observations(policy, self.algorithm, trainer.env.single_observation_space)
        except ValueError:
            trainer.close()
            raise
        self._use_trainer(trainer)

    def _use_trainer(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._config, self.seed, self.n_envs = trainer.config, trainer.seed, trainer.config.num_envs
        self.observation_space = trainer.env.single_observation_space
        self.action_space = trainer.env.single_action_space

    @property
    def trainer(self) -> Trainer:
        """Trainer of the model.

        Raises:
            ArgumentError: The model was loaded without an environment.
        """
        if self._trainer is None:
            raise ArgumentError(
                "env",
                "an environment, because the checkpoint names none",
                "None",
                "call set_env(env), or pass env= to load",
            )
        return self._trainer

    def __getattr__(self, name: str) -> Any:
        """Return the setting of a keyword; for other names, raise an error with a hint."""
        class_name = type(self).__name__
        if name in DEFAULTS[self.algorithm] and "_config" in vars(self):
            with suppress(AttributeError):
                return getattr(self._config, _RENAMED.get(name, name))
        if name in HINTS:
            text = f"{class_name} has no {name!r} in rlox.sb3; {HINTS[name]}"
            raise AttributeError(text, name=name, obj=self)
        raise AttributeError(f"{class_name!r} object has no attribute {name!r}", name=name, obj=self)

    @rename_arguments({"callbacks": "callback"})
    def learn(
        self,
        total_timesteps: int,
        callback: object = None,
        log_interval: int | None = None,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> "Self":
        """Train for at least `total_timesteps` more steps, in full iterations.

        Args:
            total_timesteps: Number of steps over all environments.
            callback: `rlox.callbacks.Callback`, function of (run, metrics) that stops the run
                by returning False, or a list of these.
            log_interval: With `verbose=1`, iterations between two tables, or episodes if there is a
                replay buffer. None: 1 for PPO, 100 for A2C, 4 with a replay buffer.
            tb_log_name: Name of the log in `tensorboard_log`; None: name of the class.
            reset_num_timesteps: Count steps and episodes from 0 and restart schedules. False:
                continue counts and schedules.
            progress_bar: Show a progress bar; requires the extra `rlox[progress]`.

        Returns:
            The model.

        Raises:
            ArgumentTypeError: As for `rlox.trainers.Trainer.train`; also for a callback of Stable-Baselines3.
            ArgumentError: As for `rlox.trainers.Trainer.train`; also if the model was loaded without an environment.
            ModuleNotFoundError: The extra for the progress bar or the log is not installed.
        """
        reset = check_bool("reset_num_timesteps", reset_num_timesteps)
        progress_bar = check_bool("progress_bar", progress_bar)
        interval = None if log_interval is None else check_int("log_interval", log_interval, 1)
        trainer = self.trainer
        first = trainer.timesteps if reset else self._first
        callbacks = make_callbacks(callback, self.algorithm, self.verbose, interval, first)
        loggers = make_loggers(self.tensorboard_log, tb_log_name or type(self).__name__, new=reset)
        # Schedules cover the steps from the first counted step to the new end.
        trainer.run.plan(check_int("total_timesteps", total_timesteps, 1, fix="pass the number of steps"), first)
        self._first = first
        if reset:
            trainer.learner.episodes.clear()
        trainer.train(callbacks=callbacks, loggers=loggers, progress_bar=progress_bar)
        return self

    @rename_arguments({"obs": "observation"})
    def predict(
        self,
        observation: Obs,
        state: object = None,
        episode_start: npt.ArrayLike | None = None,
        deterministic: bool = False,
    ) -> tuple[npt.NDArray[Any], object]:
        """Return actions for one observation or a batch, and the unchanged `state`.

        Args:
            observation: Array of shape (*obs_shape) or (n, *obs_shape).
            state: Ignored, because policies have no memory.
            episode_start: Ignored.
            deterministic: Use greedy actions. Default: samples, as in Stable-Baselines3.

        Raises:
            ArgumentTypeError, ArgumentError: As for `rlox.trainers.Trainer.predict`.
        """
        predictor = self._policy if self._trainer is None else self._trainer
        return np.asarray(predictor.predict(observation, deterministic)), state

    def save(self, path: PathLike) -> None:
        """Write a checkpoint of rlox, which is a folder even if the name ends with ".zip".

        Raises:
            ArgumentError: The model was loaded without an environment.
            FileExistsError, OSError, MemoryError: As for `rlox.trainers.Trainer.save`.
        """
        self.trainer.save(path)

    @classmethod
    def load(
        cls,
        path: PathLike,
        env: EnvLike | None = None,
        device: object = "auto",
        *,
        verbose: int = 0,
        tensorboard_log: PathLike | None = None,
    ) -> "Self":
        """Return the model of a checkpoint from a model, a trainer or `rlox.sb3.convert`.

        The settings are those of the checkpoint, and cannot be changed.

        Args:
            path: Path of the folder, with or without ".zip" at the end.
            env: Environment instead of the saved id. If the checkpoint has no id and `env` is
                None, the model can predict, and can learn after `set_env`.
            device: Device of the networks; "auto": the saved device.
            verbose: As for the constructor.
            tensorboard_log: As for the constructor.

        Raises:
            FileNotFoundError: There is no checkpoint.
            CorruptFileError: The checkpoint is damaged.
            ArgumentError: The path is a file such as a zip of Stable-Baselines3, or the checkpoint
                has another algorithm or does not match `env`.
        """
        path = _checkpoint_path(Path(path))
        source = None if env is None else _as_source(env)
        target_device = None if device == "auto" else device_name(device)
        model = cls.__new__(cls)
        model.verbose = _verbosity(verbose)
        model.tensorboard_log = log_folder(tensorboard_log)
        try:
            trainer = cls.trainer_type.load(path, env=source, device=target_device, runs_dir=None)
        except NoEnvironmentError:
            model._use_policy(path.absolute(), target_device)
        else:
            model._use_trainer(trainer)
            model._first = trainer.run.budget_start
        return model

    def _use_policy(self, path: Path, device: str | None) -> None:
        policy = self._policy = inference.load(path, device=device)
        saved = policy.manifest
        self._source, self._first = (path, device), saved["run"]["start"]
        self.observation_space, self.action_space = policy.observation_space, policy.action_space
        self._config = self.trainer_type.spec.config(**saved["settings"])
        self.n_envs, self.seed = self._config.num_envs, saved["seed"]

    def get_env(self) -> VecEnv | GymVecEnv | None:
        """Return the vector environment, which has Gymnasium's API instead of Stable-Baselines3's.

        The result is None if the model was loaded without an environment.
        """
        return None if self._trainer is None else self._trainer.env

    @property
    def env(self) -> VecEnv | GymVecEnv | None:
        """Vector environment, as returned by `get_env`."""
        return self.get_env()

    @rename_arguments(KEYWORDS)
    def set_env(self, env: EnvLike) -> None:
        """Replace the environment by another with the same spaces and number of environments.

        Raises:
            ArgumentError: The spaces or the number of environments differ, or the checkpoint has
                changed since `load`. The model stays unchanged.
            ArgumentTypeError: `env` is not an environment.
        """
        source = _as_source(env)
        self._use_trainer(self._reload(source) if self._trainer is None else self._move(source))

    def _reload(self, env: EnvSource) -> Trainer:
        """Return the trainer for a model that was loaded without an environment."""
        path, device = self._source
        trainer = self.trainer_type.load(path, env=env, device=device, runs_dir=None)
        networks = self._policy.learner.state(replay=False).networks
        reloaded = trainer.learner.state(replay=False).networks
        if any(not np.array_equal(networks[name], reloaded[name]) for name in networks):
            trainer.close()
            raise ArgumentError(
                "path",
                "the checkpoint that was loaded",
                f"a different checkpoint at {path}",
                "call load again with env=",
            )
        return trainer

    def _move(self, env: EnvSource) -> Trainer:
        """Return a trainer with the current state in other environments; close the old trainer."""
        old = self.trainer
        backend = cast("Backend", old.learner.backend)
        new = self.trainer_type(env, old.seed, backend=backend, runs_dir=None, **vars(old.config))
        try:
            for name in ("observation", "action"):
                expected, got = (getattr(x.env, f"single_{name}_space") for x in (old, new))
                if _spaces.to_json(expected) != _spaces.to_json(got):
                    raise ArgumentError("env", f"the {name} space {expected}", str(got), "make a new model")
            # The new environments cannot continue the episodes of the old environments.
            new.learner.load_state(dataclasses.replace(old.learner.state(), environment={}))
        except BaseException:
            new.close()
            raise
        new.run.budget_start = old.run.budget_start
        new.run.budget_end = old.run.budget_end
        new.run.config_sources = old.run.config_sources
        old.close()
        return new

    @property
    def num_timesteps(self) -> int:
        """Number of steps since `learn` last reset the count."""
        source = self._policy if self._trainer is None else self._trainer
        return source.timesteps - self._first


def _checkpoint_path(path: Path) -> Path:
    """Return the path of an existing folder, with ".zip" added or removed if necessary."""
    other = path.with_suffix("") if path.suffix == ".zip" else Path(f"{path}.zip")
    for file in (path, other):
        if file.is_dir():
            return file
        if file.is_file():
            raise ArgumentError(
                "path",
                "a checkpoint of rlox, which is a folder",
                f"the file {file}",
                "convert a zip of Stable-Baselines3 with python -m rlox.sb3.convert",
            )
    return path


class PPO(Model):
    """Proximal policy optimization with the interface of Stable-Baselines3.

    >>> model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, clip_range=0.1, seed=1)
    >>> model.learn(100).num_timesteps
    128
    """

    algorithm = "ppo"
    trainer_type = trainers.PPOTrainer


class A2C(Model):
    """Advantage actor-critic with the interface of Stable-Baselines3.

    >>> A2C("MlpPolicy", "CartPole-v1", seed=1).learn(100).num_timesteps
    100
    """

    algorithm = "a2c"
    trainer_type = trainers.A2CTrainer


class DQN(Model):
    """Deep Q-networks with the interface of Stable-Baselines3.

    >>> DQN("MlpPolicy", "CartPole-v1", buffer_size=1_000, seed=1).learn(120).num_timesteps
    120
    """

    algorithm = "dqn"
    trainer_type = trainers.DQNTrainer


class SAC(Model):
    """Soft actor-critic with the interface of Stable-Baselines3.

    >>> SAC("MlpPolicy", "Pendulum-v1", buffer_size=1_000, seed=1).learn(110).num_timesteps
    110
    """

    algorithm = "sac"
    trainer_type = trainers.SACTrainer


class TD3(Model):
    """Twin delayed DDPG with the interface of Stable-Baselines3.

    >>> TD3("MlpPolicy", "Pendulum-v1", buffer_size=1_000, seed=1).learn(110).num_timesteps
    110
    """

    algorithm = "td3"
    trainer_type = trainers.TD3Trainer
