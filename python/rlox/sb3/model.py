"""`Model`: what the models of all algorithms do, around a trainer."""

import dataclasses
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from rlox import spaces
from rlox._errors import ArgumentError
from rlox.backends import Backend
from rlox.keywords import refuse_unknown
from rlox.learner import EpisodeStatistics
from rlox.manifest import NoEnvironmentError
from rlox.registered import count_of
from rlox.sb3.arguments import device_name, given_keywords, trainer_settings, verbosity
from rlox.sb3.attributes import instead_of, setting
from rlox.sb3.callbacks import as_rlox_callbacks
from rlox.sb3.environments import expect_environment, named, ready
from rlox.sb3.logs import as_rlox_loggers, log_folder
from rlox.sb3.policy_names import expect_fitting, expect_policy
from rlox.sb3.waiting import Waiting, found
from rlox.settings import flag, shown, whole
from rlox.trainer import EnvLike, Trainer

if TYPE_CHECKING:
    from typing_extensions import Self

PathLike = str | os.PathLike[str]


class Model:
    """What the models of all algorithms do.

    Args:
        policy: "MlpPolicy", or for pictures and PPO, A2C or DQN "CnnPolicy".
        env: An id, an environment, a vector environment of rlox's or Gymnasium's, or what else
            `rlox.make_vec` takes.
        *args: Of `rlox.sb3.keywords.DEFAULTS`, in its order.
        backend: Who computes, as for `rlox.trainers`; not Stable-Baselines3's.
        **keywords: Of the same, by name. Defaults are Stable-Baselines3's.

    Raises:
        TypeError: An unknown keyword (near ones are named), or an argument of another kind.
        ValueError: What is not done here, with what to do instead; what trainers refuse.
    """

    algorithm: ClassVar[str]
    trainer_type: ClassVar[type[Trainer]]
    trainer: Trainer
    """What does the work; models that were loaded without an environment have it by `set_env`."""
    verbose: int
    tensorboard_log: str | None
    _first: int  # steps before those that count
    _waiting: Waiting | None = None  # instead of the trainer

    def __init__(
        self,
        policy: str,
        env: EnvLike,
        *args: Any,
        backend: Backend = "auto",
        **keywords: Any,
    ) -> None:
        given = given_keywords(type(self).__name__, self.algorithm, args, keywords)
        self.verbose, self._first = verbosity(given["verbose"]), 0
        self.tensorboard_log = log_folder(given["tensorboard_log"])
        expect_environment(env)
        expect_policy(policy)
        num_envs = count_of(env) or 1
        kind = self.trainer_type
        settings = trainer_settings(self.algorithm, kind.config_type, given, num_envs)
        made = kind(env, given["seed"], backend=backend, runs_dir=None, **settings)
        try:
            expect_fitting(policy, self.algorithm, made.env.single_observation_space)
        except ValueError:
            made.close()
            raise
        self.trainer = named(made, env)

    def __getattr__(self, name: str) -> Any:
        """Settings by their keywords, and what to do instead of what models do not have here."""
        kind = type(self).__name__
        if name == "trainer" and self._waiting is not None:
            raise AttributeError(f"{kind} has no {name!r} without environments; call set_env(env)")
        if not name.startswith("_") and name != "trainer":
            with suppress(AttributeError):
                return setting(self.algorithm, self._config, name)
        raise AttributeError(instead_of(kind, name))

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int | None = None,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> "Self":
        """Makes at least so many more steps, in whole iterations, and learns from them.

        Args:
            total_timesteps: Of all environments together.
            callback: None, a function of (trainer, metrics), which ends the run by giving False,
                an `rlox.callbacks.Callback`, or a list of these; called after each iteration.
            log_interval: With `verbose=1`, iterations between two tables, for algorithms with a
                replay buffer finished episodes; None: 1, A2C 100, with a replay buffer 4.
            tb_log_name: What the folder in `tensorboard_log` is called, before `_1` and so on;
                None: as the class.
            reset_num_timesteps: Count steps and episodes from 0 and begin schedules anew. False: go
                on with them, to `total_timesteps` beyond those that were made.
            progress_bar: Show one; needs the extra `rlox[progress]`.

        Raises:
            TypeError, ValueError: As `rlox.trainers.Trainer.train`; an SB3 callback; a model that
                was loaded without an environment.
            ModuleNotFoundError: Progress bar or log need their extra.
        """
        fix = "say how many steps to make"
        steps = whole("total_timesteps", total_timesteps, 1, fix=fix)
        reset = flag("reset_num_timesteps", reset_num_timesteps, fix="pass one of them")
        interval = None if log_interval is None else whole("log_interval", log_interval, 1)
        if self._waiting is not None:
            raise ArgumentError(
                "env",
                "environments to learn in, as none was saved",
                "None",
                "call set_env(env), or pass env= to load",
            )
        trainer = self.trainer
        first = trainer.timesteps if reset else self._first
        called = as_rlox_callbacks(callback, self.algorithm, self.verbose, interval, first)
        name = tb_log_name or type(self).__name__
        loggers = as_rlox_loggers(self.tensorboard_log, name, new=reset)
        flag("progress_bar", progress_bar, fix="pass one of them")
        if reset:
            self._first, trainer.learner.episodes = first, EpisodeStatistics()
            trainer.train(steps, progress_bar=progress_bar, callbacks=called, loggers=loggers)
        else:
            # Schedules go on from where the count began, to where it now ends.
            trainer.start_timesteps = first
            trainer.target_timesteps = trainer.timesteps + steps
            trainer.train(progress_bar=progress_bar, callbacks=called, loggers=loggers)
        return self

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: npt.ArrayLike | None = None,
        deterministic: bool = False,
    ) -> tuple[npt.NDArray[Any], Any]:
        """Actions for one observation or a batch, and `state` as it came.

        Args:
            observation: (*obs_shape) or (n, *obs_shape).
            state: Of policies with a memory, of which there are none.
            episode_start: Likewise.
            deterministic: Greedy actions. As in Stable-Baselines3, samples are the default.

        Raises:
            TypeError, ValueError: As `rlox.trainers.Trainer.predict`.
        """
        who = self.trainer if self._waiting is None else self._waiting.policy
        return np.asarray(who.predict(observation, deterministic)), state

    def save(self, path: PathLike, exclude: None = None, include: None = None) -> None:
        """Writes a checkpoint of rlox, a folder, whatever the name ends with.

        Args:
            path: Of the folder.
            exclude: Must be None: checkpoints are whole.
            include: Likewise.

        Raises:
            ValueError: Something is to be left out.
            FileExistsError, OSError, MemoryError: As `rlox.trainers.Trainer.save`.
        """
        _expect_only("exclude", exclude, None)
        _expect_only("include", include, None)
        (self.trainer if self._waiting is None else self._waiting).save(path)

    @classmethod
    def load(
        cls,
        path: PathLike,
        env: EnvLike | None = None,
        device: Any = "auto",
        **keywords: Any,
    ) -> "Self":
        """The model that was saved, by this class, a trainer of rlox's or `rlox.sb3.convert`.

        Args:
            path: What `save` wrote; ".zip" at its end may be missing, or be too much.
            env: Takes the place of the saved id. Where there is neither, the model predicts, and
                learns once it has environments by `set_env`.
            device: Where the networks shall live; "auto": where they were.
            **keywords: `verbose`, `tensorboard_log`; others that change what was saved are refused.

        Raises:
            FileNotFoundError: Nothing is there.
            rlox.CorruptFileError: It is damaged.
            ValueError: It is a zip of Stable-Baselines3's, another algorithm's, or does not fit.
            TypeError: Another keyword.
        """
        known = ("verbose", "tensorboard_log", "custom_objects", "print_system_info", "force_reset")
        hint = "settings are those that were saved; make a new model to change them"
        others = dict.fromkeys(given_keywords(cls.__name__, cls.algorithm, (), {}), hint)
        refuse_unknown(keywords, known, f"{cls.__name__}.load", others)
        for name, only in (("custom_objects", None), ("print_system_info", False)):
            _expect_only(name, keywords.get(name, only), only)
        _expect_only("force_reset", keywords.get("force_reset", True), True)
        path = found(path)
        if env is not None:
            expect_environment(env)
        where = None if device == "auto" else device_name(device)
        made = cls.__new__(cls)
        made.verbose = verbosity(keywords.get("verbose", 0))
        made.tensorboard_log = log_folder(keywords.get("tensorboard_log"))
        try:
            trainer = cls.trainer_type.load(path, env=env, device=where, runs_dir=None)
        except NoEnvironmentError:
            made._waiting = Waiting(cls.trainer_type, path, where)
            made._first = made._waiting.saved["run"]["start"]
            return made
        made.trainer = trainer if env is None else named(trainer, env)
        made._first = trainer.start_timesteps
        return made

    def get_env(self) -> Any:
        """The environments, with Gymnasium's API for vector environments, not SB3's.

        None: The model was loaded without, and there was no id.
        """
        return self.trainer.env if self._waiting is None else None

    @property
    def env(self) -> Any:
        """As `get_env`."""
        return self.get_env()

    def set_env(self, env: EnvLike, force_reset: bool = True) -> None:
        """Goes on learning in other environments, of the same spaces and as many.

        Args:
            env: As for the constructor.
            force_reset: Must be True: new environments begin new episodes.

        Raises:
            ValueError: Other spaces, or another number of environments; the model is as it was.
            TypeError: No environment.
        """
        _expect_only("force_reset", force_reset, True)
        expect_environment(env)
        if self._waiting is not None:
            self.trainer, self._waiting = named(self._waiting.trainer(env), env), None
            return
        old, config = self.trainer, self.trainer.config
        tried = ready(env, config.num_envs)
        try:
            for kind in ("observation", "action"):
                name = f"single_{kind}_space"
                ours, theirs = (spaces.describe(getattr(e, name)) for e in (old.env, tried))
                if ours != theirs:
                    raise ArgumentError(
                        "env", f"the {kind} space {ours}", str(theirs), "make a new model"
                    )
        finally:
            if not isinstance(env, VectorEnv | gym.Env):
                tried.close()
        about = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
        backend: Any = old.learner.backend
        made = self.trainer_type(env, old.seed, backend=backend, runs_dir=None, **about)
        try:
            # What the environments were in the middle of is not these ones'.
            made.learner.load_state(dataclasses.replace(old.learner.state(), environment={}))
        except BaseException:
            made.close()
            raise
        made.start_timesteps, made.target_timesteps = old.start_timesteps, old.target_timesteps
        made.sources = old.sources
        old.close()
        self.trainer = named(made, env)

    @property
    def num_timesteps(self) -> int:
        """Steps since the last `learn` that counted from 0."""
        waiting = self._waiting
        return (self.trainer if waiting is None else waiting.policy).timesteps - self._first

    @property
    def _config(self) -> Any:
        return self.trainer.config if self._waiting is None else self._waiting.config

    @property
    def n_envs(self) -> int:
        """How many environments there are."""
        return int(self._config.num_envs)

    @property
    def seed(self) -> int:
        """What decided everything random."""
        waiting = self._waiting
        return self.trainer.seed if waiting is None else int(waiting.saved["seed"])

    @property
    def observation_space(self) -> gym.Space[Any]:
        """Of one environment."""
        if self._waiting is not None:
            return self._waiting.spaces[0]
        return self.trainer.env.single_observation_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """Of one environment."""
        if self._waiting is not None:
            return self._waiting.spaces[1]
        return self.trainer.env.single_action_space


def _expect_only(name: str, value: Any, only: object) -> None:
    """An argument has the value with which it asks for nothing that is not done.

    Raises:
        ValueError: It has another one.
    """
    if value is not only:
        raise ArgumentError(
            name,
            f"{only}, as checkpoints are whole, hold no code and environments begin anew",
            shown(value),
            "leave it out",
        )
