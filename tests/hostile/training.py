"""Calls of policies, trainers, checkpoints and callbacks."""

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces

import rlox
from hostile.arguments import (
    ANY,
    INVALID,
    NO_SCALAR,
    SAME,
    TEXTS,
    Argument,
    boolean,
    booleans,
    choice,
    constant,
    constants,
    duration,
    floats,
    integer,
    label_forms,
    mapping,
    none,
    optional,
    path,
    real,
    replace,
    sequence,
    string,
    with_outcome,
    without,
)
from hostile.table import Subject, call
from rlox._nn.distributions import Categorical
from rlox._nn.runtime import isolate_rng, limit_threads
from rlox.algorithms import (
    A2C,
    DQN,
    IMPALA,
    PPO,
    SAC,
    TD3,
    A2CConfig,
    DQNConfig,
    IMPALAConfig,
    PPOConfig,
    SACConfig,
    TD3Config,
)
from rlox.callbacks import (
    Callback,
    CheckpointCallback,
    EarlyStoppingCallback,
    EvalCallback,
    EveryNSteps,
    ProgressBar,
    TimingCallback,
)
from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.policies import MlpPolicy
from rlox.trainers import A2CTrainer, DQNTrainer, IMPALATrainer, PPOTrainer, SACTrainer, TD3Trainer

BOX, DISCRETE = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
MASKS = booleans(1, 0, 1, 1, 0, 1, shape=(3, 2))


def make_policy():
    with isolate_rng(0), limit_threads(1):  # torch loses its other threads in a forked child
        return MlpPolicy(BOX, DISCRETE)


SUBJECTS = {"MlpPolicy": Subject(lambda _: make_policy(), lambda x: sorted(x.state_dict()))}


def tensor_argument(*values, shape, dtype):
    """Return a tensor. Torch rejects other values."""
    valid = torch.tensor(values, dtype=dtype).reshape(shape)
    return Argument(valid.clone, label_forms(SAME, {"a copy": lambda x: x.clone()}), drawn=False)


def method_as_arrays(method):
    """Return a method of policies whose results are arrays."""

    def call_method(policy, **arguments):
        with torch.no_grad(), limit_threads(1):
            result = getattr(policy, method)(**arguments)
        if isinstance(result, Categorical):
            result = result.log_probs
        return [x.numpy() for x in (result if isinstance(result, tuple) else (result,))]

    return call_method


def policy_calls():
    obs = tensor_argument(*np.linspace(-1, 1, 12), shape=(3, 4), dtype=torch.float32)
    action = tensor_argument(0, 1, 1, shape=(3,), dtype=torch.int64)
    masked = {"obs": obs, "mask": replace(MASKS, names=("action_masks",))}
    for method in ("distribution", "get_action_and_logprob", "act", "mode"):
        yield call(f"MlpPolicy.{method}", through=method_as_arrays(method), **masked)
    for method in ("get_action_and_logprob", "evaluate_actions"):
        yield call(f"MlpPolicy.{method}", through=method_as_arrays(method), **masked, action=action)
    yield call("MlpPolicy.get_value", through=method_as_arrays("get_value"), obs=obs)
    yield call("MlpPolicy.frozen_act")


WIDTHS = without(sequence(4), "a dict")
NETWORKS = {
    "observation_space": lambda: BOX,
    "net_arch": optional(WIDTHS),
    "shared_trunk": False,
    "features_extractor": optional(None),
    "activation": "relu",
    "ortho_init": True,
    "log_std_init": -0.5,
    "init": optional(torch.Generator),
}
CALLS = [
    *policy_calls(),
    call("MlpPolicy", action_space=lambda: DISCRETE, **NETWORKS),
]

N = 2
ON_POLICY = {"num_envs": N, "n_steps": 4, "net_arch": (4,)}
REPLAY = {"num_envs": N, "learning_starts": 2, "buffer_size": 64, "batch_size": 4, "net_arch": (4,)}
# Trainer, learner, configuration and settings. Synchronous IMPALA has repeatable results.
ALGORITHMS = [
    (PPOTrainer, PPO, PPOConfig, ON_POLICY | {"batch_size": 8, "n_epochs": 1}),
    (A2CTrainer, A2C, A2CConfig, ON_POLICY),
    (IMPALATrainer, IMPALA, IMPALAConfig, ON_POLICY | {"deterministic": True, "max_staleness": 0}),
    (DQNTrainer, DQN, DQNConfig, REPLAY),
    (SACTrainer, SAC, SACConfig, REPLAY),
    (TD3Trainer, TD3, TD3Config, REPLAY),
]
SETTINGS = {trainer_cls: settings for trainer_cls, _, _, settings in ALGORITHMS}
CONFIGS = {learner_cls: config(**settings) for _, learner_cls, config, settings in ALGORITHMS}
# SAC and TD3 need real actions.
ENVS = dict.fromkeys((SAC, SACTrainer, TD3, TD3Trainer), "Pendulum-v1")
OBS = floats(0.5, -0.25, 0, 1, shape=(3, 4), dtype="f4")
# Any class or function can create an environment.
ENV = without(choice("CartPole-v1"), "a class")
REWARD = {"sutton_barto_reward": True}
# Environments reject these arguments. Gymnasium's environments raise errors of Gymnasium.
KEYWORDS = replace(mapping(REWARD), names=("env_kwargs", "kwargs"))
GYMNASIUM_KEYWORDS = without(mapping(lambda: dict(REWARD)), "one key more", "a number as key", "surrogates as key")


def setting_argument(field):
    """Return an argument that fits the default of a setting."""
    numbers = ("ent_coef", "target_entropy")  # these settings also accept "auto"
    if field.name in ("utd_ratio", "her", "action_noise"):
        return none()  # these settings exclude others or are not plain numbers
    match field.default:
        case bool():
            # Other settings of actors require `async_collect`.
            return boolean(field.default or field.name == "async_collect")
        case int():
            return integer(4)
        case str() if field.name == "device":
            return with_outcome(choice("cpu"), ANY, *TEXTS)  # the learner rejects other devices
        case str() if field.name not in numbers:
            return choice(field.default)
        case None if "tuple" in str(field.type):
            return optional(without(sequence(4, 8), "a dict"))
        case None if "int" in str(field.type):
            return optional(4)
        case float() | str():
            return real(0.5)
        case None:
            return real(0.5) if field.name in numbers else optional(0.5)
    raise AssertionError(f"{field.name}: an unknown kind of setting, {field.default!r}")


def make_trainer(cls, _=0):
    return cls(ENVS.get(cls, "CartPole-v1"), 3, runs_dir=None, **SETTINGS[cls])


def envs_for(cls):
    return rlox.VecEnv(N, 5, ENVS.get(cls, "CartPole-v1"))


def make_learner(cls, _=0):
    return cls(envs_for(cls), CONFIGS[cls], 3)


for trainer_cls, learner_cls, _, _ in ALGORITHMS:
    SUBJECTS[trainer_cls.__name__] = Subject(
        partial(make_trainer, trainer_cls), lambda x: x.learner.state(), (RuntimeError,)
    )
    SUBJECTS[learner_cls.__name__] = Subject(partial(make_learner, learner_cls), lambda x: x.state(), (RuntimeError,))


class LeftPolicy:
    def predict(self, obs, deterministic=True):
        return np.zeros(len(obs), np.int64)


class SilentLogger:
    """Logger that ignores all calls."""

    def start(self, info):
        pass

    log = finish = lambda *_: None


def saved_trainer():
    """Return the path of a trainer that this process saves once."""
    folder = Path("saved").absolute()
    if not folder.exists():
        make_trainer(PPOTrainer).save(folder)
    return str(folder)


def train_untimed(trainer, **arguments):
    result = trainer.train(**arguments)
    return {name: x for name, x in result.items() if name not in ("sps", "seconds")}


RUNS = {"runs_dir": optional(path(lambda: "runs"))}
# With a custom policy or extractor, errors can name settings of the built-in policy.
NO_CUSTOM = dict.fromkeys(("policy", "features_extractor"), replace(none(), names=("net_arch",)))
PREDICT = {"obs": OBS, "deterministic": True, "action_masks": MASKS}
STREAM = {"stream": lambda: np.random.default_rng(0)}


def algorithm_calls(trainer_cls, learner_cls, config):
    name, on_pendulum = trainer_cls.__name__, trainer_cls in ENVS
    yield call(
        name,
        env=without(choice("Pendulum-v1"), "a class") if on_pendulum else ENV,
        seed=3,
        backend="auto",
        **NO_CUSTOM,
        env_kwargs=None if on_pendulum else KEYWORDS,
        **RUNS,
        num_envs=N,
        n_steps=4,
        device="cpu",
        net_arch=optional(WIDTHS),
    )
    yield call(
        f"{name}.train",
        through=train_untimed,
        total_timesteps=duration(8),
        progress_bar=False,
        callbacks=(lambda: lambda run, metrics: None,),
        loggers=(SilentLogger,),
    )
    name = learner_cls.__name__
    yield call(name, env=partial(envs_for, learner_cls), config=lambda: CONFIGS[learner_cls], seed=3, **NO_CUSTOM)
    yield call(f"{name}.iterate", progress=0.5)
    yield call(f"{name}.state", replay=True)
    yield call(f"{name}.load_state", state=lambda: make_learner(learner_cls).state())
    yield call(config.__name__, **{x.name: setting_argument(x) for x in dataclasses.fields(config)})


CALLS += [
    *(x for row in ALGORITHMS for x in algorithm_calls(*row[:3])),
    # Methods of the base classes.
    call("PPOTrainer.evaluate", n_episodes=duration(2), seed=3, deterministic=True, env=ENV, max_episode_steps=9),
    call("PPOTrainer.predict", **PREDICT, shared=True),
    call("PPOTrainer.save", path=path(lambda: "other"), replay=True, raises=(OSError,), shared=True),
    call(
        "PPOTrainer.load",
        through=lambda _, **arguments: PPOTrainer.load(**arguments),
        path=path(saved_trainer),
        env=ENV,
        **NO_CUSTOM,
        env_kwargs=KEYWORDS,
        device="cpu",
        actors=None,
        backend="native",
        **RUNS,
        raises=(OSError,),
        shared=True,
    ),
    call("PPOTrainer.stop", reason=string("word")),
    call("PPOTrainer.close"),
    call("PPO.predict", **PREDICT, **STREAM, shared=True),
    call("DQN.predict", **PREDICT, **STREAM, shared=True),
    call(
        "evaluate",
        policy=LeftPolicy,
        env=ENV,
        n_episodes=duration(2),
        seed=3,
        num_envs=2,
        env_kwargs=GYMNASIUM_KEYWORDS,
        max_episode_steps=9,
    ),
]


def write_and_read(path, manifest, members):
    write_checkpoint(path, manifest, members)
    return read_checkpoint(path)


def existing_checkpoint():
    """Return the path of a checkpoint that this process writes once."""
    if not Path("existing").exists():
        write_checkpoint("existing", {"steps": 7}, {"networks": {"w": np.ones(2)}})
    return "existing"


def make_every_n_steps(_):
    callback = EveryNSteps(9)
    callback.start(4)
    return callback


SUBJECTS |= {
    "ProgressBar": Subject(lambda _: ProgressBar(), lambda bar: None),
    "Callback": Subject(lambda _: Callback(), lambda callback: None),
    "EvalCallback": Subject(lambda _: EvalCallback(9), lambda x: x.reward_threshold),
    "CheckpointCallback": Subject(lambda _: CheckpointCallback(9), lambda x: x.best),
    "EarlyStoppingCallback": Subject(lambda _: EarlyStoppingCallback(), lambda x: [x.patience, x.min_delta]),
    "TimingCallback": Subject(lambda _: TimingCallback(), lambda x: x.seconds),
    "EveryNSteps": Subject(make_every_n_steps, lambda callback: callback.steps),
}
# Files contain the dtype of arrays, and checksums depend on the bytes.
EXACT = with_outcome(floats(0.5, 2), ANY, "f2", ">f2", "f4", ">f4", "g")
# JSON represents most values. Other values are rejected.
STEPS = Argument(lambda: 7, label_forms(ANY, NO_SCALAR | {"NaN": constant(np.nan), "bool": bool}))
CALLBACK_ENV = Argument(
    lambda: "CartPole-v1",
    label_forms(ANY, constants({"a function": dict, "another id": "abc"}))
    | label_forms(INVALID, constants({"a number": 3, "numbers": np.zeros(3), "a list": ["a"]})),
    drawn=False,
)
FOLDER = path(lambda: "new")
CALLS += [
    call("read_checkpoint", raises=(OSError,), path=path(existing_checkpoint)),
    call(
        "write_checkpoint",
        through=write_and_read,
        raises=(OSError,),
        path=FOLDER,
        manifest={"steps": STEPS},
        members={"networks": {"w": EXACT}},
    ),
    call("Callback"),
    call("ProgressBar", every=0.5),
    call("TimingCallback", every=9),
    call("EveryNSteps", every=9),
    call(
        "EvalCallback",
        every=9,
        n_episodes=3,
        reward_threshold=0.5,
        deterministic=True,
        env=CALLBACK_ENV,
        save_best=True,
        path=FOLDER,
    ),
    call("CheckpointCallback", every=9, keep_last=optional(3), best=string("word"), replay=True, path=FOLDER),
    call("EarlyStoppingCallback", metric=string("word"), patience=9, min_delta=0.5, mode="max"),
]
