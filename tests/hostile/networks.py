"""Calls of native networks, agents and their learners."""

import os

import numpy as np

import rlox
from hostile.arguments import (
    but,
    endless,
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
from hostile.table import Subject, call
from rlox._rlox import NativeActors, NativeAgent, NativePolicy, write_rollout
from rlox.configs import A2CConfig, DQNConfig, IMPALAConfig, PPOConfig, SACConfig, TD3Config
from rlox.native import NativeA2C, NativeIMPALA, NativePPO
from rlox.native_off_policy import NativeDQN, NativeSAC, NativeTD3
from rlox.streams import state_for_native

BACKEND = os.environ.get("RLOX_TEST_BACKEND", "native")
T, N, D = 2, 3, 4
SMALL = {"num_envs": N, "n_steps": T, "net_arch": (4,)}
AHEAD = {"max_lag": 1, "lockstep": True}
ADVANTAGES = {"gamma": 0.5, "gae_lambda": 0.75, "sde_sample_freq": 0}
CONFIGS = {
    NativePPO: PPOConfig(batch_size=4, n_epochs=1, **SMALL),
    NativeA2C: A2CConfig(**SMALL),
    NativeIMPALA: IMPALAConfig(lockstep=True, max_lag=0, **SMALL),
}
SHAPE = {
    "net_arch": row(whole(4)),
    "activation": text("relu"),
    "ortho_init": flag(True),
    "shared_trunk": flag(False),
    "use_sde": flag(False),
    "log_std_init": number(-0.5),
}
OBSERVATION = {"kind": text("numbers"), "shape": row(whole(D), kind=tuple)}
ACTION = {"kind": text("discrete"), "n": whole(2), "start": whole(0)}
LEARN = {
    "learning_rate": number(0.5),
    "optimizer": text("adam"),
    "optimizer_eps": number(0.5),
    "normalize_advantage": flag(True),
    "ent_coef": number(0.5),
    "vf_coef": number(0.5),
    "max_grad_norm": number(0.5),
}
IMPALA = {name: x for name, x in LEARN.items() if name != "normalize_advantage"} | {
    "gamma": number(0.5),
    "vtrace_lambda": number(0.75),
    "rho_bar": number(1.0),
    "c_bar": number(1.0),
}
PPO = LEARN | {
    "batch_size": whole(4),
    "n_epochs": endless(whole(1)),
    "clip_coef": number(0.5),
    "clip_coef_vf": optional(number(0.5)),
    "target_kl": optional(number(0.5)),
}


def made(parts):
    return {name: x.make() for name, x in parts.items()}


def whole_record(parts):
    return record(lambda: made(parts), **parts)


def stream():
    return state_for_native(np.random.default_rng(0))


def policy(_=0):
    policy = NativePolicy(made(OBSERVATION), made(ACTION), stream(), made(SHAPE), BACKEND)
    policy.begin(3, N)
    return policy


def env():
    env = rlox.VecEnv(N, 5)
    env.reset_all()
    return env


def rollout(steps):
    """A buffer in which so many steps have been made; a full one is finished."""
    buffer = rlox.RolloutBuffer(T, N, (D,))
    buffer.begin(np.ones((N, D)) / 2)
    for t in range(steps):
        felt = np.ones((N, D)), np.ones(N), np.zeros(N, bool), np.zeros(N, bool)
        buffer.record(t, np.arange(N) % 2, -np.ones(N), np.ones(N), *felt)
    if steps == T:
        buffer.finish(np.ones(N), 0.5, 0.75)
    return buffer


def tensors():
    return {name: x.copy() for name, x in policy().tensors().items()}


def optimizer_state():
    return {name: x.copy() for name, x in policy().optimizer_state().items()}


def state_of(policy):
    return policy.tensors(), policy.optimizer_state()


ACTORS = {
    "envs": lambda: [env()._native],
    "policies": lambda: [policy()],
    "buffers": lambda: [rlox.RolloutBuffer(T, N, (D,)) for _ in range(2)],
    "weights": policy,
    "stream": stream,
    "normalizer": lambda: None,
}


def actors(rollouts):
    """Actors whose first rollouts were learned from, and whose next one was taken."""
    made = NativeActors(**{n: make() for n, make in ACTORS.items()}, **AHEAD, **ADVANTAGES)
    learning = policy()
    for _ in range(rollouts):
        made.next()
        made.publish(learning)
    made.next()
    return made


def learner(kind):
    return lambda _: kind(rlox.VecEnv(N, 5), CONFIGS[kind], 3, BACKEND)


def state_of_learner(learner):
    return learner.state()


SUBJECTS = {
    "NativePolicy": Subject(policy, state_of),
    "NativePPO": Subject(learner(NativePPO), state_of_learner, (RuntimeError,)),
    "NativeA2C": Subject(learner(NativeA2C), state_of_learner, (RuntimeError,)),
    "NativeIMPALA": Subject(learner(NativeIMPALA), state_of_learner, (RuntimeError,)),
    "NativeActors": Subject(actors, lambda actors: actors.stats()["rollouts"]),
}
SEED = whole(3)
NORMALIZER = optional(thing(lambda: rlox.Normalizer(N, (D,))))


def learner_calls(kind):
    name = kind.__name__
    yield call(
        name,
        env=thing(lambda: rlox.VecEnv(N, 5)),
        config=thing(lambda: CONFIGS[kind]),
        seed=SEED,
        backend=text(BACKEND),
    )
    yield call(f"{name}.iterate", progress=number(0.5))
    yield call(
        f"{name}.predict",
        obs=floats(0.5, -0.25, 0, 1, shape=(1, D), dtype="f4"),
        deterministic=flag(True),
        stream=optional(thing(lambda: np.random.default_rng(0))),
        action_masks=optional(flags(1, 0, shape=(1, 2))),
    )


CALLS = [
    call(
        "NativePolicy",
        observation=whole_record(OBSERVATION),
        action=whole_record(ACTION),
        stream=thing(stream),
        shape=whole_record(SHAPE),
        backend=text(BACKEND),
    ),
    call("network_backends"),
    call("write_rollout", buffer=thing(lambda: rollout(T))),
    call(
        "read_rollout",
        buffer=thing(lambda: rollout(0)),
        data=thing(lambda: write_rollout(rollout(T))),
    ),
    call("NativePolicy.set_stopping", stop=flag(False)),
    call("NativePolicy.begin", seed=SEED, num_envs=whole(N)),
    call(
        "NativePolicy.collect",
        env=thing(lambda: env()._native),
        buffer=thing(lambda: rollout(0)),
        normalizer=NORMALIZER,
        gamma=number(0.5),
        gae_lambda=number(0.75),
        sde_sample_freq=whole(0),
    ),
    call(
        "NativePolicy.act",
        raises=(FloatingPointError,),
        buffer=thing(lambda: rollout(0)),
        t=whole(0),
        action_masks=optional(flags(1, 0, 1, 1, 0, 1, shape=(N, 2))),
        noise=flag(False),
    ),
    call(
        "NativePolicy.finish",
        buffer=thing(lambda: rollout(T)),
        gamma=number(0.5),
        gae_lambda=number(0.75),
    ),
    *(
        call(
            f"NativePolicy.{name}",
            raises=(FloatingPointError,),
            buffer=thing(lambda: rollout(T)),
            settings=whole_record(settings),
        )
        for name, settings in {"ppo": PPO, "a2c": LEARN, "impala": IMPALA}.items()
    ),
    call(
        "NativePolicy.predict",
        raises=(FloatingPointError,),
        obs=floats(0.5, -0.25, 0, 1, 0.5, -0.25, 0, 1, shape=(2, D), dtype="f4"),
        seed=optional(SEED),
        action_masks=optional(flags(1, 0, 1, 1, shape=(2, 2))),
        normalizer=NORMALIZER,
    ),
    call("NativePolicy.tensors"),
    call("NativePolicy.check_tensors", tensors=record(tensors)),
    call("NativePolicy.check_optimizer_state", state=record(optimizer_state)),
    call("NativePolicy.load", tensors=record(tensors)),
    call("NativePolicy.optimizer_state"),
    call("NativePolicy.load_optimizer_state", state=record(optimizer_state)),
    *learner_calls(NativePPO),
    *learner_calls(NativeA2C),
    *learner_calls(NativeIMPALA),
    call(
        "NativeActors",
        **{name: thing(make) for name, make in ACTORS.items() if name != "normalizer"},
        normalizer=NORMALIZER,
        max_lag=whole(1),
        lockstep=flag(False),
        gamma=number(0.5),
        gae_lambda=number(0.75),
        sde_sample_freq=whole(0),
    ),
    call("NativeActors.next"),
    call("NativeActors.set_stopping", stop=flag(False)),
    call("NativeActors.publish", policy=thing(policy)),
    call("NativeActors.publish_tensors", tensors=record(tensors)),
    call("NativeActors.stream"),
    call("NativeActors.stats"),
]


AGENT_N, AGENT_D = 3, 4
AGENT_SMALL = {
    "num_envs": AGENT_N,
    "net_arch": (4,),
    "learning_starts": 3,
    "batch_size": 4,
    "buffer_size": 99,
}
KINDS = {
    NativeDQN: ("CartPole-v1", DQNConfig(**AGENT_SMALL)),
    NativeSAC: ("Pendulum-v1", SACConfig(**AGENT_SMALL)),
    NativeTD3: ("Pendulum-v1", TD3Config(**AGENT_SMALL)),
}
AGENT_OBSERVATION = {"kind": text("numbers"), "shape": row(whole(AGENT_D), kind=tuple)}
AGENT_ACTION = {"kind": text("discrete"), "n": whole(2), "start": whole(0)}
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


def agent_env():
    agent_env = rlox.VecEnv(AGENT_N, 5)
    agent_env.reset_all()
    return agent_env._native


def agent(_=0):
    envs = made(AGENT_OBSERVATION), made(AGENT_ACTION), AGENT_N, False, False
    agent = NativeAgent("dqn", *envs, stream(), seeds(), made(SETTINGS), "native")
    agent.start_at(np.zeros((AGENT_N, AGENT_D), np.float32), True)
    agent.begin(0.5)
    agent.act()
    return agent


def agent_state_of(agent):
    return agent.tensors(), agent.optimizer_state(), agent.streams(), agent.standing(), agent.said()


def agent_learner(kind):
    env_id, config = KINDS[kind]
    return lambda _: kind(rlox.VecEnv(AGENT_N, 5, env_id), config, 3)


AGENT_SUBJECTS = {
    "NativeAgent": Subject(agent, agent_state_of),
    **{
        kind.__name__: Subject(agent_learner(kind), lambda it: it.state(), (RuntimeError,))
        for kind in KINDS
    },
}
OBS = floats(*[0.5, -0.25, 0, 1] * AGENT_N, shape=(AGENT_N, AGENT_D), dtype="f4")
FLAGS = flags(0, 0, 1, shape=(AGENT_N,))
MASKS = optional(flags(1, 0, 1, 1, 0, 1, shape=(AGENT_N, 2)))
# It was made for environments without any.
NO_MASKS = nothing()
WRONG = (FloatingPointError,)


def agent_learner_calls(kind):
    name, (env_id, config) = kind.__name__, KINDS[kind]
    yield call(
        name,
        env=thing(lambda: rlox.VecEnv(AGENT_N, 5, env_id)),
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


AGENT_CALLS = [
    call(
        "NativeAgent",
        algorithm=text("dqn"),
        observation=whole_record(AGENT_OBSERVATION),
        action=whole_record(AGENT_ACTION),
        num_envs=whole(AGENT_N),
        masked=flag(False),
        idling=flag(False),
        stream=thing(stream),
        seeds=thing(seeds),
        settings=whole_record(SETTINGS),
        backend=text("native"),
    ),
    call("NativeAgent.set_stopping", stop=flag(False)),
    call("NativeAgent.start", env=thing(agent_env), normalizer=NORMALIZER),
    call("NativeAgent.go_on", env=thing(agent_env)),
    call(
        "NativeAgent.iterate",
        raises=WRONG,
        env=thing(agent_env),
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
    *(each for kind in KINDS for each in agent_learner_calls(kind)),
]

CALLS += AGENT_CALLS
SUBJECTS |= AGENT_SUBJECTS
