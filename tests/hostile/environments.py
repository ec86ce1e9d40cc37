"""Vector environments, native and others, and what collects steps from them."""

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rlox
from hostile.arguments import (
    but,
    flag,
    flags,
    floats,
    nothing,
    number,
    optional,
    out,
    record,
    replace,
    row,
    saying,
    some,
    text,
    thing,
    whole,
    wholes,
)
from hostile.table import Subject, call
from rlox._rlox import NativeVectorEnv
from rlox.envs import NativeEnv
from rlox.vector import ForeignVecEnv

N, T, D = 3, 2, 4
SEED = optional(whole(7))
MODE = text("SameStep")
NUMBERS = floats(-1, -0.5, -2, dtype="f4")
PUSHES = wholes(0, 1, 1)


def vector(steps):
    env = rlox.VecEnv(N, 5)
    for t in range(steps + 1):
        env.reset() if t == 0 else env.step(PUSHES.make())
    return env


def native(steps):
    env = NativeVectorEnv("CartPole-v1", N, 5, "SameStep")
    for t in range(steps + 1):
        env.reset() if t == 0 else env.step(PUSHES.make())
    return env


def other(steps=-1):
    same_step = AutoresetMode.SAME_STEP
    env = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * N, autoreset_mode=same_step)
    env = ForeignVecEnv(env, 5)
    for t in range(steps + 1):
        env.reset(seed=5) if t == 0 else env.step(PUSHES.make())
    return env


def single(steps):
    env = NativeEnv("CartPole-v1")
    for t in range(steps + 1):
        env.reset(seed=5) if t == 0 else env.step(1)
    return env


def begun():
    buffer = rlox.RolloutBuffer(T, N, (D,))
    buffer.begin(np.zeros((N, D)))
    return buffer


def normalizer():
    return rlox.Normalizer(N, (D,))


def standing(env):
    try:
        return env.get_state()
    except ValueError:
        return "closed, or never reset"


def standing_elsewhere(env):
    inner = env.env
    if inner.closed:
        return "closed"
    return [np.array([one.unwrapped.state for one in inner.envs], float), env._returns]


def standing_alone(env):
    try:
        # The stream is lent to the native environment when it needs one.
        return [{**env._native.get_state(), "streams": None}, env.np_random]
    except ValueError:
        return "closed, or never reset"


SUBJECTS = {
    "VecEnv": Subject(vector, lambda env: [standing(env), env.np_random_seed]),
    "NativeVectorEnv": Subject(native, standing),
    "ForeignVecEnv": Subject(other, standing_elsewhere),
    "NativeEnv": Subject(single, standing_alone),
}
RESULTS = {
    "obs": out(lambda: np.zeros((N, D), np.float32)),
    "rewards": out(lambda: np.zeros(N)),
    "terminated": out(lambda: np.zeros(N, bool)),
    "truncated": out(lambda: np.zeros(N, bool)),
    "final_obs": out(lambda: np.zeros((N, D), np.float32)),
}
MANY = {name: out(lambda x=x: np.stack([x.make()] * T)) for name, x in RESULTS.items()}
SAYING = saying(row(PUSHES, NUMBERS, NUMBERS, kind=tuple), "actions", "log_probs", "values")
SAID = {"actions": PUSHES, "log_probs": NUMBERS, "values": NUMBERS}
ROLLOUT = {"buffer": thing(begun), "normalizer": optional(thing(normalizer))}
UNSEEN = some(lambda: None, optional(text("")))
# A mask must be an array.
MASK = but(flags(1, 0, 1), maybe=("list", "teller"))
OPTIONS = {"low": number(-0.25), "high": number(0.25)}


def options(**more):
    parts = OPTIONS | more
    return optional(record(lambda: {key: part.make() for key, part in parts.items()}, **parts))


# Of other options the environment says what they are.
MASKED = optional(record(lambda: {"reset_mask": MASK.make()}, reset_mask=MASK))


def state():
    made = vector(1).get_state()
    kinds = {"f": floats, "i": wholes, "b": flags}
    parts = {
        name: kinds[x.dtype.kind](*x.ravel().tolist(), shape=x.shape) for name, x in made.items()
    }
    # The numbers of states are not small ones that all dtypes have.
    parts["states"] = but(parts["states"], odd=("f2", ">f2", "f4", ">f4"))
    parts["streams"] = streams(made["streams"])
    return record(lambda: vector(1).get_state(), **parts)


def streams(words):
    """Words of random streams, which not all dtypes have."""
    narrow = ("i1", "i2", ">i2", "i4", ">i4", "u1", "u2", "u4", "f4", "u8", ">u8", "f8")
    return but(wholes(*words.ravel().tolist(), shape=words.shape), odd=narrow)


TORQUES = floats(0.5, -1, 2, shape=(N, 1))


def turning(method):
    """A method of environments whose actions are real numbers."""

    def called(_, **arguments):
        env = NativeVectorEnv("Pendulum-v1", N, 5, "SameStep")
        env.reset()
        return getattr(env, method)(**arguments)

    return called


PENDULUM = {"obs": out(lambda: np.zeros((N, 3), np.float32))}
INTO = RESULTS | {"final_obs": optional(RESULTS["final_obs"])}


def native_calls():
    for kind, seed in (("VecEnv", {}), ("NativeVectorEnv", {})):
        yield call(f"{kind}.step", actions=PUSHES)
        yield call(f"{kind}.step_into", actions=PUSHES, **INTO)
        yield call(f"{kind}.begin_rollout", **ROLLOUT, seed=SEED, **seed)
        yield call(f"{kind}.step_rollout", **ROLLOUT, t=whole(0), **SAID)
        yield call(f"{kind}.set_state", state=state())
        for name in ("drain_episodes", "get_state", "close"):
            yield call(f"{kind}.{name}", at=1)


CALLS = [
    call(
        "VecEnv",
        n=whole(2),
        seed=SEED,
        env_id=text("Pendulum-v1"),
        autoreset_mode=MODE,
        max_episode_steps=optional(whole(5)),
        render_mode=UNSEEN,
        g=number(9.5),
    ),
    call("VecEnv", env_id=text("CartPole-v1"), sutton_barto_reward=flag(True)),
    call(
        "VecEnv",
        env_id=text("Acrobot-v1"),
        dt=number(0.25),
        nips=flag(False),
        torque_noise_max=number(0.5),
    ),
    call("VecEnv", env_id=text("MountainCar-v0"), goal_velocity=number(0.25)),
    call("VecEnv.reset", seed=SEED, options=options(reset_mask=MASK)),
    call("VecEnv.reset", seed=optional(row(*map(optional, (whole(1), whole(2), whole(3))))), at=-1),
    call("VecEnv.reset_all", seed=SEED),
    call("VecEnv.step_all", actions=PUSHES),
    call("VecEnv.render"),
    call("VecEnv.close_extras"),
    call("VecEnv.collect_n_steps", n=whole(T), policy=optional(saying(PUSHES, "actions"))),
    *native_calls(),
    call(
        "NativeVectorEnv",
        env_id=text("Pendulum-v1"),
        num_envs=whole(2),
        seed=SEED,
        autoreset_mode=optional(MODE),
        max_episode_steps=optional(whole(5)),
        kwargs=optional(
            replace(record(lambda: {"g": 9.5}, g=number(9.5)), called=("env arguments",))
        ),
    ),
    call("NativeVectorEnv.reset", seed=SEED, mask=optional(MASK), options=options()),
    call("NativeVectorEnv.step", through=turning("step"), actions=TORQUES),
    call(
        "NativeVectorEnv.step_into",
        through=turning("step_into"),
        actions=TORQUES,
        **RESULTS | PENDULUM | {"final_obs": nothing()},
    ),
    call("NativeVectorEnv.steps_into", actions=wholes(0, 1, 1, 0, shape=(T, N)), **MANY),
    call("NativeVectorEnv.action_masks", out=optional(out(lambda: np.zeros((N, 2), bool)))),
    call("NativeVectorEnv.observe"),
    call("NativeVectorEnv.states"),
    call("NativeVectorEnv.spec"),
    call("NativeVectorEnv.rng_states"),
    call("NativeVectorEnv.set_rng_states", states=streams(native(0).rng_states())),
    call("ForeignVecEnv", env=thing(lambda: other().env), seed=SEED),
    call("ForeignVecEnv.reset", seed=SEED, options=MASKED),
    call("ForeignVecEnv.step", actions=PUSHES),
    call("ForeignVecEnv.begin_rollout", **ROLLOUT, seed=SEED),
    call("ForeignVecEnv.step_rollout", **ROLLOUT, t=whole(0), **SAID),
    call("ForeignVecEnv.drain_episodes"),
    call("ForeignVecEnv.render"),
    call("ForeignVecEnv.close"),
    *map(call, ("env_ids", "available_memory", "isa", "num_threads", "register")),
    *map(call, ("start_phases", "phase_seconds", "stop_phases")),
    call("enter_phase", phase=text("inference")),
    call("NativeEnv", env_id=text("Pendulum-v1"), render_mode=UNSEEN, g=number(9.5)),
    call("NativeEnv.reset", seed=SEED, options=options()),
    call("NativeEnv.step", action=whole(1)),
    call("NativeEnv.render"),
    call("NativeEnv.close"),
    call(
        "make_native_vec",
        num_envs=whole(2),
        env_id=text("CartPole-v1"),
        autoreset_mode=MODE,
        sutton_barto_reward=flag(True),
    ),
    call(
        "make_vec",
        env=text("CartPole-v1"),
        num_envs=optional(whole(2)),
        seed=SEED,
        autoreset_mode=optional(MODE),
    ),
    call(
        "make_vec",
        env=text("CartPole-v1"),
        num_envs=optional(whole(2)),
        seed=SEED,
        vectorization_mode=optional(text("sync")),
        wrappers=row(thing(lambda: gym.wrappers.FlattenObservation)),
        autoreset_mode=optional(MODE),
    ),
    call(
        "collect_rollout",
        env=thing(lambda: vector(0)),
        policy=optional(saying(PUSHES, "actions")),
        n_steps=whole(T),
        gamma=number(0.5),
        gae_lambda=number(0.75),
    ),
    call(
        "collect_rollout",
        env=thing(lambda: vector(0)),
        policy=optional(SAYING),
        n_steps=whole(T),
    ),
]
