"""Off-policy methods in Rust and the learners around them."""

import numpy as np

import rlox
from hostile.arguments import (
    but,
    flag,
    flags,
    floats,
    nothing,
    number,
    optional,
    record,
    row,
    text,
    thing,
    whole,
)
from hostile.networks import NORMALIZER, SEED, made, stream, whole_record
from hostile.table import Subject, call
from rlox._rlox import NativeAgent
from rlox.configs import DQNConfig, SACConfig, TD3Config
from rlox.native_off_policy import NativeDQN, NativeSAC, NativeTD3

N, D = 3, 4
SMALL = {"num_envs": N, "net_arch": (4,), "learning_starts": 3, "batch_size": 4, "buffer_size": 99}
KINDS = {
    NativeDQN: ("CartPole-v1", DQNConfig(**SMALL)),
    NativeSAC: ("Pendulum-v1", SACConfig(**SMALL)),
    NativeTD3: ("Pendulum-v1", TD3Config(**SMALL)),
}
OBSERVATION = {"kind": text("numbers"), "shape": row(whole(D), kind=tuple)}
ACTION = {"kind": text("discrete"), "n": whole(2), "start": whole(0)}
SETTINGS = {
    "net_arch": row(whole(4)),
    "activation": text("relu"),
    "buffer_size": whole(99),
    "learning_starts": whole(3),
    "batch_size": whole(4),
    "train_freq": whole(1),
    "gradient_steps": optional(whole(1)),
    "utd_ratio": optional(number(0.5)),
    "n_steps": whole(1),
    "gamma": number(0.5),
    "tau": number(0.5),
    "learning_rate": number(0.5),
    "lr_schedule": text("linear"),
    "target_update_interval": whole(1),
    "double": flag(True),
    "dueling": flag(False),
    "prioritized": flag(True),
    "priority_alpha": number(0.5),
    "priority_beta": number(0.5),
    "max_grad_norm": number(0.5),
    "exploration_fraction": number(0.5),
    "exploration_initial_eps": number(0.5),
    "exploration_final_eps": number(0.5),
}
# Means of minibatches, of all algorithms and of some.
LEARNED = {
    **{x: number(0.5) for x in ("critic_loss", "mean_value", "grad_norm", "learning_rate")},
    **{x: optional(number(0.5)) for x in ("actor_loss", "ent_coef", "ent_coef_loss")},
}


def seeds():
    return np.array([1, 2])


def env():
    env = rlox.VecEnv(N, 5)
    env.reset_all()
    return env._native


def agent(_=0):
    envs = made(OBSERVATION), made(ACTION), N, False, False
    agent = NativeAgent("dqn", *envs, stream(), seeds(), made(SETTINGS), "native")
    agent.start_at(np.zeros((N, D), np.float32), True)
    agent.begin(0.5)
    agent.act()
    return agent


def state_of(agent):
    return agent.tensors(), agent.optimizer_state(), agent.streams(), agent.standing(), agent.said()


def learner(kind):
    env_id, config = KINDS[kind]
    return lambda _: kind(rlox.VecEnv(N, 5, env_id), config, 3)


SUBJECTS = {
    "NativeAgent": Subject(agent, state_of),
    **{
        kind.__name__: Subject(learner(kind), lambda it: it.state(), (RuntimeError,))
        for kind in KINDS
    },
}
OBS = floats(*[0.5, -0.25, 0, 1] * N, shape=(N, D), dtype="f4")
FLAGS = flags(0, 0, 1, shape=(N,))
MASKS = optional(flags(1, 0, 1, 1, 0, 1, shape=(N, 2)))
# It was made for environments without any.
NO_MASKS = nothing()
WRONG = (FloatingPointError,)


def learner_calls(kind):
    name, (env_id, config) = kind.__name__, KINDS[kind]
    yield call(
        name,
        env=thing(lambda: rlox.VecEnv(N, 5, env_id)),
        config=thing(lambda: config),
        seed=SEED,
        backend=text("native"),
    )
    yield call(f"{name}.iterate", progress=number(0.5))
    width = rlox.VecEnv(1, 5, env_id).single_observation_space.shape[0]
    yield call(
        f"{name}.predict",
        obs=floats(*[0.5, -0.25, 0, 1][:width], shape=(1, width), dtype="f4"),
        deterministic=flag(True),
        stream=optional(thing(lambda: np.random.default_rng(0))),
        action_masks=optional(
            flags(1, 0, shape=(1, 2)) if kind is NativeDQN else thing(lambda: None)
        ),
    )


CALLS = [
    call(
        "NativeAgent",
        algorithm=text("dqn"),
        observation=whole_record(OBSERVATION),
        action=whole_record(ACTION),
        num_envs=whole(N),
        masked=flag(False),
        idling=flag(False),
        stream=thing(stream),
        seeds=thing(seeds),
        settings=whole_record(SETTINGS),
        backend=text("native"),
    ),
    call("NativeAgent.set_stopping", stop=flag(False)),
    call("NativeAgent.start", env=thing(env), normalizer=NORMALIZER),
    call("NativeAgent.go_on", env=thing(env)),
    call(
        "NativeAgent.iterate",
        raises=WRONG,
        env=thing(env),
        progress=number(0.5),
        growth=optional(number(0.001)),
        normalizer=NORMALIZER,
    ),
    call("NativeAgent.said"),
    call(
        "NativeAgent.start_at",
        raises=WRONG,
        obs=OBS,
        fresh=flag(True),
        action_masks=NO_MASKS,
        normalizer=NORMALIZER,
    ),
    call("NativeAgent.begin", progress=number(0.5), growth=optional(number(0.001))),
    call("NativeAgent.act", raises=WRONG, normalizer=NORMALIZER),
    call(
        "NativeAgent.observe",
        raises=WRONG,
        next_obs=OBS,
        obs=OBS,
        rewards=floats(0.5, 1, -2),
        terminated=FLAGS,
        truncated=FLAGS,
        valid=optional(FLAGS),
        action_masks=NO_MASKS,
        final_action_masks=NO_MASKS,
        normalizer=NORMALIZER,
    ),
    call("NativeAgent.learn", raises=WRONG, normalizer=NORMALIZER),
    call(
        "NativeAgent.predict",
        raises=WRONG,
        obs=OBS,
        seed=optional(SEED),
        action_masks=MASKS,
        normalizer=NORMALIZER,
    ),
    call("NativeAgent.tensors"),
    call("NativeAgent.check_tensors", tensors=record(lambda: agent().tensors())),
    call("NativeAgent.load", tensors=record(lambda: agent().tensors())),
    call("NativeAgent.replay_len"),
    call("NativeAgent.replay_state"),
    call("NativeAgent.load_replay_state", arrays=record(lambda: agent().replay_state())),
    call("NativeAgent.optimizer_state"),
    call("NativeAgent.check_optimizer_state", state=record(lambda: agent().optimizer_state())),
    call("NativeAgent.load_optimizer_state", state=record(lambda: agent().optimizer_state())),
    call("NativeAgent.streams"),
    call("NativeAgent.standing"),
    call(
        "NativeAgent.set_standing",
        streams=thing(lambda: agent().streams()),
        noise=but(thing(lambda: np.zeros(0, np.float32)), "a list"),
        due=number(0.5),
        timesteps=whole(9),
        updates=whole(3),
        progress=number(0.5),
    ),
    call("NativeAgent.learned"),
    call("NativeAgent.set_learned", learned=optional(whole_record(LEARNED))),
    *(each for kind in KINDS for each in learner_calls(kind)),
]
