"""Calls of policies, trainers, checkpoints and callbacks."""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces

import rlox
from hostile.arguments import (
    NO_SCALAR,
    TEXTS,
    Argument,
    always,
    but,
    endless,
    flag,
    flags,
    floats,
    nothing,
    number,
    optional,
    path,
    record,
    replace,
    row,
    text,
    thing,
    whole,
)
from hostile.table import Subject, call
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
    Every,
    FunctionCallback,
    ProgressBar,
    TimingCallback,
)
from rlox.checkpoint import read_checkpoint, write_checkpoint
from rlox.distributions import Categorical, Gaussian
from rlox.evaluation import SeededPredictor
from rlox.policies import MlpPolicy, SdePolicy
from rlox.torch_state import own_generator, own_threads
from rlox.trainers import (
    A2CTrainer,
    DQNTrainer,
    IMPALATrainer,
    PPOTrainer,
    SACTrainer,
    TD3Trainer,
)

BOX, DISCRETE = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
MASKS = optional(flags(1, 0, 1, 1, 0, 1, shape=(3, 2)))


def policy():
    with own_generator(0), own_threads(1):  # torch has no other threads in a forked child
        return MlpPolicy(BOX, DISCRETE)


def exploring():
    with own_generator(0), own_threads(1):
        return SdePolicy(BOX, BOX)


SUBJECTS = {
    "MlpPolicy": Subject(lambda _: policy(), lambda x: sorted(x.state_dict())),
    "SdePolicy": Subject(lambda _: exploring(), lambda x: sorted(x.state_dict())),
}


def tensor(*values, shape, dtype):
    """A tensor: torch itself says what is wrong with others."""

    def make():
        return torch.tensor(values, dtype=dtype).reshape(shape)

    return Argument(make, same={"a copy": lambda x: x.clone()}, drawn=False)


def as_arrays(method):
    """A method of policies, with tensors given as arrays."""

    def called(policy, **arguments):
        with torch.no_grad(), own_threads(1):
            said = getattr(policy, method)(**arguments)
        if isinstance(said, Gaussian | Categorical):
            said = said.mean if isinstance(said, Gaussian) else said.log_probs
        return [x.numpy() for x in (said if isinstance(said, tuple) else (said,))]

    return called


def policy_calls():
    """A mask is what users make themselves."""
    masked = {
        "obs": tensor(*np.linspace(-1, 1, 12), shape=(3, 4), dtype=torch.float32),
        "mask": replace(MASKS, called=("action_masks",)),
    }
    action = tensor(0, 1, 1, shape=(3,), dtype=torch.int64)
    for method, more in (
        ("distribution", {}),
        ("get_action_and_logprob", {"action": action}),
        ("get_action_and_logprob", {}),
        ("act", {}),
        ("evaluate_actions", {"action": action}),
        ("mode", {}),
    ):
        yield call(f"MlpPolicy.{method}", through=as_arrays(method), **masked, **more)
        # Real actions have no masks.
        more = {name: tensor(*range(12), shape=(3, 4), dtype=torch.float32) for name in more}
        unmasked = masked | {"mask": replace(nothing(), called=("action_masks",))}
        yield call(f"SdePolicy.{method}", through=as_arrays(method), **unmasked, **more)
    for kind in ("MlpPolicy", "SdePolicy"):
        yield call(f"{kind}.get_value", through=as_arrays("get_value"), obs=masked["obs"])
        yield call(f"{kind}.frozen_act")


SHAPE = {
    "observation_space": thing(lambda: BOX),
    "net_arch": optional(but(row(whole(4)), "a dict")),
    "shared_trunk": flag(False),
    "features_extractor": nothing(),
    "activation": text("relu"),
    "ortho_init": flag(True),
    "log_std_init": number(-0.5),
    "init": optional(thing(torch.Generator)),
}
CALLS = [
    *policy_calls(),
    call("MlpPolicy", action_space=thing(lambda: DISCRETE), **SHAPE),
    call("SdePolicy", action_space=thing(lambda: BOX), full_std=flag(True), **SHAPE),
    call(
        "check_policy",
        policy=thing(lambda: MlpPolicy(BOX, DISCRETE)),
        observation_space=thing(lambda: BOX),
        action_space=thing(lambda: DISCRETE),
    ),
    call("torch_dtype", dtype=thing(lambda: np.dtype("f4"))),
]


N = 2
SMALL = {
    PPOTrainer: {"num_envs": N, "n_steps": 4, "batch_size": 8, "n_epochs": 1, "net_arch": (4,)},
    A2CTrainer: {"num_envs": N, "n_steps": 4, "net_arch": (4,)},
    # Actor and learner by turns: what threads do is not the same every time.
    IMPALATrainer: {
        "num_envs": N,
        "n_steps": 4,
        "net_arch": (4,),
        "lockstep": True,
        "max_lag": 0,
    },
}
REPLAY = {"num_envs": N, "learning_starts": 2, "buffer_size": 64, "batch_size": 4, "net_arch": (4,)}
OFF_POLICY = {DQNTrainer: DQN, SACTrainer: SAC, TD3Trainer: TD3}
SMALL |= dict.fromkeys(OFF_POLICY, REPLAY)
CONFIGS = {
    PPO: PPOConfig(**SMALL[PPOTrainer]),
    A2C: A2CConfig(**SMALL[A2CTrainer]),
    IMPALA: IMPALAConfig(**SMALL[IMPALATrainer]),
    DQN: DQNConfig(**REPLAY),
    SAC: SACConfig(**REPLAY),
    TD3: TD3Config(**REPLAY),
}
# SAC and TD3 need actions that are numbers.
ENVS = dict.fromkeys((SAC, SACTrainer, TD3, TD3Trainer), "Pendulum-v1")
OBS = floats(0.5, -0.25, 0, 1, shape=(3, 4), dtype="f4")
# The seeds of a trainer may be as large as one likes.
SEED = whole(3)


# Those of an environment are refused in its own words.
KEYWORDS = optional(record(lambda: {"sutton_barto_reward": True}, sutton_barto_reward=flag(True)))
KEYWORDS = replace(KEYWORDS, called=("env arguments", "kwargs", "sutton_barto_reward"))
# What keywords there are, Gymnasium's environment finds out.
PLAIN_KEYWORDS = but(
    record(lambda: {"sutton_barto_reward": True}),
    "one key more",
    "a number as key",
    "surrogates as key",
)
# Any class or function may be what makes an environment.
ENV = but(text("CartPole-v1"), "a class")


def settings(config):
    """An argument for each setting, of the kind of its default."""
    found = {}
    for field in dataclasses.fields(config):
        match field.default:
            case bool():
                # Without it, there are no other settings of actors.
                found[field.name] = flag(field.default or field.name == "async_collect")
            case int():
                found[field.name] = whole(4)
            case float():
                found[field.name] = number(0.5)
            case str():
                found[field.name] = text(field.default)
                if field.name == "device":  # which there are, the learner finds out
                    found["device"] = but(text("cpu"), odd=tuple(TEXTS))
            case None if "tuple" in str(field.type):
                found[field.name] = optional(but(row(whole(4), whole(8)), "a dict"))
            case None if "int" in str(field.type):
                found[field.name] = optional(whole(4))
            case None:
                found[field.name] = optional(number(0.5))
            case other:
                raise AssertionError(f"{field.name}: a setting of another kind, {other!r}")
    return found


def trainer(kind):
    def make(_):
        return kind(ENVS.get(kind, "CartPole-v1"), 3, runs_dir=None, **SMALL[kind])

    return make


def learner(kind):
    return lambda _: kind(envs_for(kind), CONFIGS[kind], 3)


def envs_for(kind):
    return rlox.VecEnv(N, 5, ENVS.get(kind, "CartPole-v1"))


def state_of(learner):
    return learner.state()


def predicted(predictor):
    return predictor._learner.state()


def configured(x):
    return dataclasses.astuple(x)


TRAINING_SUBJECTS = {
    "PPOTrainer": Subject(trainer(PPOTrainer), lambda x: x.learner.state(), (RuntimeError,)),
    "A2CTrainer": Subject(trainer(A2CTrainer), lambda x: x.learner.state(), (RuntimeError,)),
    "IMPALATrainer": Subject(trainer(IMPALATrainer), lambda x: x.learner.state(), (RuntimeError,)),
    "IMPALA": Subject(learner(IMPALA), state_of, (RuntimeError,)),
    "PPO": Subject(learner(PPO), state_of, (RuntimeError,)),
    "A2C": Subject(learner(A2C), state_of, (RuntimeError,)),
    **{
        kind.__name__: Subject(trainer(kind), lambda x: x.learner.state(), (RuntimeError,))
        for kind in OFF_POLICY
    },
    **{
        kind.__name__: Subject(learner(kind), state_of, (RuntimeError,))
        for kind in OFF_POLICY.values()
    },
    "SeededPredictor": Subject(lambda _: SeededPredictor(learner(PPO)(0), 3), predicted),
}


class Left:
    """Decides on the same action always."""

    def predict(self, obs, deterministic=True):
        return np.zeros(len(obs), np.int64)


def saved():
    """Where a trainer is that was saved once in this process."""
    folder = Path("saved").absolute()
    if not folder.exists():
        trainer(PPOTrainer)(0).save(folder)
    return str(folder)


def untimed(trainer, **arguments):
    """What training gives, but for how long it took."""
    result = trainer.train(**arguments)
    return {name: x for name, x in result.items() if name not in ("sps", "seconds")}


def trainer_calls(kind):
    name = kind.__name__
    yield call(
        name,
        env=but(text(ENVS[kind]), "a class") if kind in ENVS else ENV,
        seed=optional(SEED),
        backend=text("auto"),
        policy=nothing(),
        features_extractor=nothing(),
        env_kwargs=nothing() if kind in ENVS else KEYWORDS,
        runs_dir=optional(path(lambda: "runs")),
        num_envs=whole(N),
        n_steps=whole(4),
        device=text("cpu"),
        net_arch=optional(but(row(whole(4)), "a dict")),
    )
    yield call(
        f"{name}.train",
        through=untimed,
        total_timesteps=endless(whole(8)),
        progress_bar=flag(False),
        callbacks=row(thing(lambda: lambda trainer, metrics: None), kind=tuple),
        loggers=row(thing(Silent), kind=tuple),
    )


class Silent:
    """A logger."""

    def start(self, trainer):
        pass

    def log(self, metrics, timesteps):
        pass

    def finish(self, result):
        pass


WORD = path(lambda: "word")  # any text may be one
WORD = replace(WORD, same={name: form for name, form in WORD.same.items() if name != "Path"})


def inherited_calls():
    """What all trainers and learners have from their bases."""
    name = "PPOTrainer"
    yield call(
        f"{name}.evaluate",
        n_episodes=endless(whole(2)),
        seed=optional(SEED),
        deterministic=flag(True),
        env=optional(ENV),
        max_episode_steps=optional(whole(9)),
    )
    yield call(
        f"{name}.predict", obs=OBS, deterministic=flag(True), action_masks=MASKS, shared=True
    )
    yield call(
        f"{name}.save",
        raises=(OSError,),
        path=path(lambda: "other"),
        replay=flag(True),
        shared=True,
    )
    yield call(
        f"{name}.load",
        raises=(OSError,),
        through=lambda _, **arguments: PPOTrainer.load(**arguments),
        shared=True,
        path=path(saved),
        env=optional(ENV),
        policy=nothing(),
        features_extractor=nothing(),
        device=optional(text("cpu")),
        actors=nothing(),
        backend=optional(text("native")),
        runs_dir=optional(path(lambda: "runs")),
    )
    yield call(f"{name}.stop", reason=optional(WORD))
    yield call(f"{name}.close")
    yield call(
        "SeededPredictor.predict",
        obs=OBS,
        deterministic=flag(True),
        action_masks=MASKS,
        shared=True,
    )
    yield call(
        "PPO.predict",
        obs=OBS,
        deterministic=flag(True),
        stream=optional(thing(lambda: np.random.default_rng(0))),
        action_masks=MASKS,
        shared=True,
    )


def learner_calls(kind):
    name = kind.__name__
    yield call(
        name,
        env=thing(lambda: envs_for(kind)),
        config=thing(lambda: CONFIGS[kind]),
        seed=SEED,
        policy=nothing(),
        features_extractor=nothing(),
    )
    yield call(f"{name}.iterate", progress=number(0.5))
    yield call(f"{name}.state", replay=flag(True))
    yield call(f"{name}.load_state", state=thing(lambda: learner(kind)(0).state()))
    given = settings(type(CONFIGS[kind]))
    # What is given beside gradient_steps or n_steps is refused, and noise is no plain number.
    odd = ("utd_ratio", "her", "action_noise")
    given |= {setting: nothing() for setting in odd if setting in given}
    # Numbers, or the word "auto".
    given |= {x: number(0.5) for x in ("ent_coef", "target_entropy") if x in given}
    yield call(f"{name}Config", **given)


TRAINING_CALLS = [
    *trainer_calls(PPOTrainer),
    *trainer_calls(A2CTrainer),
    *trainer_calls(IMPALATrainer),
    *(x for kind in OFF_POLICY for x in trainer_calls(kind)),
    *inherited_calls(),
    *learner_calls(PPO),
    *learner_calls(A2C),
    *learner_calls(IMPALA),
    *(x for kind in OFF_POLICY.values() for x in learner_calls(kind)),
    call(
        "DQN.predict",
        obs=OBS,
        deterministic=flag(True),
        stream=optional(thing(lambda: np.random.default_rng(0))),
        action_masks=MASKS,
        shared=True,
    ),
    call("evaluation_seed", seed=SEED, training=flag(True)),
    call(
        "SeededPredictor",
        learner=thing(lambda: learner(PPO)(0)),
        seed=SEED,
        halted=thing(lambda: bool),
    ),
    call(
        "evaluate",
        policy=thing(Left),
        env=ENV,
        n_episodes=endless(whole(2)),
        seed=optional(SEED),
        deterministic=flag(True),
        num_envs=whole(2),
        env_kwargs=optional(PLAIN_KEYWORDS),
        max_episode_steps=optional(whole(9)),
    ),
]


def written(path, manifest, members):
    """What is read of what was written."""
    write_checkpoint(path, manifest, members)
    return read_checkpoint(path)


def known():
    """A checkpoint that is there."""
    if not Path("known").exists():
        write_checkpoint("known", {"steps": 7}, {"networks": {"w": np.ones(2)}})
    return "known"


def every(_):
    """Where a run has begun."""
    made = Every(9)
    made.start(4)
    return made


FILE_SUBJECTS = {
    "ProgressBar": Subject(lambda _: ProgressBar(), lambda bar: None),
    "FunctionCallback": Subject(
        lambda _: FunctionCallback(lambda *told: None), lambda callback: None
    ),
    "Callback": Subject(lambda _: Callback(), lambda callback: None),
    "EvalCallback": Subject(lambda _: EvalCallback(9), lambda callback: callback.reward_threshold),
    "CheckpointCallback": Subject(lambda _: CheckpointCallback(9), lambda callback: callback.best),
    "EarlyStoppingCallback": Subject(
        lambda _: EarlyStoppingCallback(), lambda callback: [callback.patience, callback.min_delta]
    ),
    "TimingCallback": Subject(lambda _: TimingCallback(), lambda callback: callback.seconds),
    "Every": Subject(every, lambda every: every.steps),
}


def called(kind):
    """What a trainer calls. It is for the function to say what is wrong, or for nobody."""
    told = Argument(lambda: {"steps": 7}, odd={"a copy": dict}, drawn=False)
    yield call(f"{kind}.on_train_start", trainer=told)
    yield call(f"{kind}.on_iteration", trainer=told, metrics=told)
    yield call(f"{kind}.on_row_logged", trainer=told, metrics=told)
    yield call(f"{kind}.on_train_end", trainer=told)


def recorded(parts):
    return record(lambda: {key: part.make() for key, part in parts.items()}, **parts)


# A file holds the dtype that it was given, and other bytes have another checksum.
EXACT = but(floats(0.5, 2), odd=("f2", ">f2", "f4", ">f4", "g"))
MEMBERS = record(
    lambda: {"networks": {"w": np.array([0.5, 2.0])}},
    networks=recorded({"w": EXACT}),
)
# JSON holds most things, and what it does not is refused.
NUMBER = Argument(lambda: 7, odd=NO_SCALAR | {"NaN": always(np.nan), "bool": bool})
MANIFEST = recorded({"steps": NUMBER})
FILE_WORD = path(lambda: "word")  # any text may be one
FILE_WORD = replace(
    FILE_WORD, same={name: form for name, form in FILE_WORD.same.items() if name != "Path"}
)
FILE_ENV = Argument(
    lambda: "CartPole-v1",
    odd={"a function": always(dict), "another id": always("abc")},
    senseless={"a number": always(3), "numbers": always(np.zeros(3)), "a list": always(["a"])},
    drawn=False,
)
FILE_CALLS = [
    call("read_checkpoint", raises=(OSError,), path=path(known)),
    call(
        "write_checkpoint",
        through=written,
        raises=(OSError,),
        path=path(lambda: "new"),
        manifest=MANIFEST,
        members=MEMBERS,
    ),
    call("FunctionCallback", function=thing(lambda: print)),
    call("Callback"),
    *called("Callback"),
    *called("FunctionCallback"),
    call("ProgressBar", every=number(0.5)),
    call("TimingCallback", every=whole(9)),
    call("Every", every=whole(9)),
    call(
        "EvalCallback",
        every=whole(9),
        n_episodes=whole(3),
        reward_threshold=optional(number(0.5)),
        deterministic=flag(True),
        env=optional(FILE_ENV),
        save_best=optional(flag(True)),
        path=optional(path(lambda: "new")),
    ),
    call(
        "CheckpointCallback",
        every=whole(9),
        keep_last=optional(whole(3)),
        best=optional(FILE_WORD),
        replay=flag(True),
        path=optional(path(lambda: "new")),
    ),
    call(
        "EarlyStoppingCallback",
        metric=FILE_WORD,
        patience=whole(9),
        min_delta=number(0.5),
        mode=text("max"),
    ),
    call("as_callback", callback=thing(lambda: print)),
    call("as_callbacks", callbacks=row(thing(lambda: print))),
]

CALLS += TRAINING_CALLS
SUBJECTS |= TRAINING_SUBJECTS
CALLS += FILE_CALLS
SUBJECTS |= FILE_SUBJECTS
