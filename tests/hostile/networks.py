"""Networks in Rust and the learners around them: native ones, or those of another backend."""

import os

import numpy as np

import rlox
from hostile.arguments import (
    endless,
    flag,
    flags,
    floats,
    number,
    optional,
    record,
    row,
    text,
    thing,
    whole,
)
from hostile.table import Subject, call
from rlox._rlox import NativeActors, NativePolicy, write_rollout
from rlox.configs import A2CConfig, IMPALAConfig, PPOConfig
from rlox.native import NativeA2C, NativeIMPALA, NativePPO
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
