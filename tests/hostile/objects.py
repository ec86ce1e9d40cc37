"""Calls of buffers, statistics and environments."""

import tempfile
import uuid

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rlox
from hostile.arguments import (
    always,
    but,
    dtype,
    flag,
    flags,
    floats,
    nothing,
    number,
    optional,
    out,
    path,
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

D = 2
SHAPE = but(row(whole(D), kind=tuple), "a dict")  # whose keys are a shape, too
DEEP = {f"{n} axes": always((1,) * n) for n in (30, 31, 33, 40, 70)}
SHAPE = replace(SHAPE, odd={**SHAPE.odd, **DEEP})


def pushed(made, count):
    for i in range(count):
        made.push([i, -i], [0.5 * i], i, False, i % 3 == 2, [i + 1, -i - 1])
    return made


def sampled(made):
    return {"transitions": len(made), **(made.sample(len(made), seed=0) if len(made) else {})}


FOLDER = tempfile.TemporaryDirectory()


def place():
    """A path where nothing is."""
    return f"{FOLDER.name}/{uuid.uuid4()}.replay"


def persistent(pushes, path=None):
    return pushed(rlox.MmapReplayBuffer(3, 6, D, 1, path or place(), seed=0), pushes)


def kept():
    """A file that nobody uses."""
    path = place()
    persistent(4, path).close()
    return path


def replay_state():
    return pushed(rlox.ReplayBuffer(6, D, 1, seed=0), 8).state()


def saved(kind):
    """A folder with a buffer."""
    path = place()
    pushed(getattr(rlox, kind)(6, D, 1, seed=0), 8).save(path)
    return path


GOALS = {"observation": 1, "achieved_goal": 1, "desired_goal": 1}


def distance(achieved, desired, info):
    return -np.abs(achieved - desired)[:, 0]


def hindsight(count):
    made = rlox.HindsightReplayBuffer(6, GOALS, 1, compute_reward=distance, seed=0)
    for i in range(count):
        obs, following = ({name: [x] for name in GOALS} for x in (i, i + 1))
        made.push(obs, [0.5], i, False, i % 3 == 2, following)
    return made


SUBJECTS = {
    "HindsightReplayBuffer": Subject(hindsight, sampled),
    "MmapReplayBuffer": Subject(persistent, sampled),
    "ReplayBuffer": Subject(lambda n: pushed(rlox.ReplayBuffer(6, D, 1, seed=0), n), sampled),
    "PrioritizedReplayBuffer": Subject(
        lambda n: pushed(rlox.PrioritizedReplayBuffer(6, D, 1, seed=0), n),
        lambda made: [sampled(made), made.alpha, made.beta],
    ),
}
REPLAY = {
    "capacity": whole(6),
    "obs_dim": but(SHAPE, odd=("text",)),
    "act_dim": but(SHAPE, odd=("text",)),
    "num_envs": optional(whole(1)),
    "obs_dtype": optional(dtype("float32")),
    "act_dtype": optional(dtype("int64")),
    "frame_stack": optional(whole(1)),
    "n_step": optional(whole(2)),
    "gamma": number(0.5),
    "extra": optional(
        record(
            lambda: {"cost": ((2,), "float64")},
            cost=row(row(whole(2), kind=tuple), dtype("float64"), kind=tuple),
        )
    ),
    "seed": optional(whole(3)),
}
TRANSITIONS = {
    "obs": floats(1, -2, 0.5, 3, shape=(2, D), dtype="f4"),
    "next_obs": floats(0.5, 3, 1, 1, shape=(2, D), dtype="f4"),
    "actions": floats(0.5, -1, shape=(2, 1), dtype="f4"),
    "rewards": floats(1, 0, dtype="f4"),
    "terminated": flags(0, 1),
    "truncated": flags(1, 0),
}
OUT = {name: (D,) if name.endswith("obs") else (1,) * (name == "actions") for name in TRANSITIONS}


def columns():
    kinds = dict.fromkeys(OUT, "f4") | dict.fromkeys(("terminated", "truncated"), "?")
    return {name: np.zeros((2, *shape), kinds[name]) for name, shape in OUT.items()}


SAMPLE = {
    "batch_size": whole(2),
    "seed": optional(whole(7)),
    "out": optional(
        replace(
            record(columns, **{name: out(lambda name=name: columns()[name]) for name in OUT}),
            written=True,
        )
    ),
}


def folder(kind):
    """Where a buffer is; errors of what else may be there name the section."""
    return replace(path(lambda: saved(kind)), called=("section",))


CALLS = [
    call(
        "MmapReplayBuffer",
        hot_capacity=whole(3),
        total_capacity=whole(6),
        cold_path=path(place),
        **{name: REPLAY[name] for name in ("obs_dim", "act_dim", "extra", "seed")},
        **{name: REPLAY[name] for name in ("obs_dtype", "act_dtype")},
        raises=(OSError,),
    ),
    call(
        "MmapReplayBuffer.open",
        path=path(kept),
        hot_capacity=optional(whole(3)),
        seed=optional(whole(1)),
        raises=(OSError,),
    ),
    call(
        "MmapReplayBuffer.push",
        obs=floats(1, -2, dtype="f4"),
        action=floats(0.5, dtype="f4"),
        reward=number(0.5),
        terminated=flag(True),
        truncated=flag(False),
        next_obs=floats(0.5, 3, dtype="f4"),
        extra=nothing(),
        at=4,
    ),
    call("MmapReplayBuffer.push_batch", **TRANSITIONS, extra=nothing(), at=4),
    call("MmapReplayBuffer.sample", **SAMPLE, at=4),
    call("MmapReplayBuffer.flush", at=4),
    call("MmapReplayBuffer.state", at=4),
    # Right ones are of the same file: test_replay_buffer.py.
    call("MmapReplayBuffer.verify", at=4),
    call("ReplayBuffer", **REPLAY),
    call(
        "HindsightReplayBuffer",
        obs_dim=but(record(lambda: dict(GOALS)), "one key more", "surrogates as key"),
        compute_reward=thing(lambda: distance),
        compute_terminated=nothing(),
        strategy=text("final"),
        n_sampled_goal=whole(4),
        **{name: REPLAY[name] for name in ("capacity", "act_dim", "num_envs", "seed", "extra")},
        **{name: REPLAY[name] for name in ("obs_dtype", "act_dtype")},
    ),
    call(
        "HindsightReplayBuffer.sample",
        **{**SAMPLE, "out": nothing()},  # a dict of dicts: test_hindsight.py
        at=4,
    ),
    call("PrioritizedReplayBuffer", alpha=number(0.5), beta=number(0.25), **REPLAY),
    call(
        "ReplayBuffer.push",
        obs=floats(1, -2, dtype="f4"),
        action=floats(0.5, dtype="f4"),
        reward=number(0.5),
        terminated=flag(True),
        truncated=flag(False),
        next_obs=floats(0.5, 3, dtype="f4"),
        extra=nothing(),
        at=4,
    ),
    call("ReplayBuffer.push_batch", **TRANSITIONS, extra=nothing(), in_order=flag(True), at=4),
    call("ReplayBuffer.sample", **SAMPLE, at=4),
    call(
        "ReplayBuffer.sample_sequences",
        batch_size=whole(2),
        length=whole(3),
        seed=optional(whole(7)),
        burn_in=optional(whole(1)),
        whole=flag(False),
        out=nothing(),  # which has four more: test_replay_buffer.py
        at=4,
    ),
    call("ReplayBuffer.state", at=4),
    # Its arrays in all forms: test_replay_buffer.py.
    call("ReplayBuffer.load_state", arrays=record(replay_state), at=2),
    call("ReplayBuffer.save", path=path(place), raises=(OSError,), at=4),
    call("ReplayBuffer.load", path=folder("ReplayBuffer"), raises=(OSError,)),
    call(
        "PrioritizedReplayBuffer.load",
        path=folder("PrioritizedReplayBuffer"),
        raises=(OSError,),
    ),
    call(
        "PrioritizedReplayBuffer.sample",
        **{**SAMPLE, "out": nothing()},  # which has two more: test_replay_buffer.py
        beta=optional(number(0.5)),
        at=4,
    ),
    call(
        "PrioritizedReplayBuffer.update_priorities",
        indices=wholes(3, 1),
        priorities=floats(0.5, 4),
        at=4,
    ),
]


T, N = 2, 3
OBS = floats(1, -2, 0.5, 3, shape=(N, D), dtype="f4")
SAID = {
    "actions": wholes(0, 1, 1),
    "log_probs": floats(-1, -0.5, -2, dtype="f4"),
    "values": floats(1, 2, -3, dtype="f4"),
}
FELT = {
    "rewards": floats(1, 0, -1),
    "terminated": flags(0, 0, 1),
    "truncated": flags(0, 1, 0),
}
STEPS = ("actions", "log_probs", "values", "rewards", "terminated", "truncated", "valid")
FIELDS = ("final_index", "final_obs", "next_step", "n_steps", "num_envs", "n_transitions")


def normalizer():
    made = rlox.Normalizer(N, (D,))
    made.update_obs(np.arange(6.0).reshape(N, D))
    return made


def buffer(steps):
    made = rlox.RolloutBuffer(T, N, (D,))
    if steps >= 0:
        made.begin(np.ones((N, D)))
    for t in range(steps):
        right = {name: x.make() for name, x in (SAID | FELT).items()}
        made.record(t, next_obs=OBS.make(), final_obs=OBS.make(), **right)
    return made


def fields_of(made):
    """What a buffer has taken: rows that are to come may hold anything."""
    taken = made.next_step
    found = {name: getattr(made, name)[:taken].copy() for name in STEPS}
    found |= {name: np.array(getattr(made, name)) for name in FIELDS}
    found["obs"] = np.concatenate([made.obs, made.last_obs[None]])[: taken + 1]
    if taken == made.n_steps:
        found |= {name: made.field(name).copy() for name in ("advantages", "returns")}
    return found


def statistics(_):
    made = rlox.RunningMeanStd((D,))
    made.update([[1.0, 2.0], [3.0, 5.0]])
    return made


ROLLOUT_SUBJECTS = {
    "RolloutBuffer": Subject(buffer, fields_of),
    "Normalizer": Subject(lambda _: normalizer(), lambda made: made.state()),
    "RunningMeanStd": Subject(statistics, lambda made: [made.mean, made.var, made.count]),
}
STATE = {
    "obs_mean": floats(0.5, -2),
    "obs_var": floats(0.25, 4),
    "obs_count": floats(8),
    "return_mean": floats(1.5),
    "return_var": floats(2),
    "return_count": floats(4),
    "returns": floats(1, -0.5, 2),
}
NORMALIZER = optional(thing(normalizer))
ROLLOUT_CALLS = [
    call("RunningMeanStd", shape=optional(but(SHAPE, odd=("text",)))),
    call("RunningMeanStd.update", x=floats(1, 2, 3, 4, shape=(4, D))),
    call("RunningMeanStd.merge", other=thing(lambda: statistics(0))),
    call(
        "Normalizer",
        num_envs=whole(N),
        obs_shape=SHAPE,
        obs=flag(True),
        reward=flag(True),
        gamma=number(0.5),
        clip_obs=number(4.0),
        clip_reward=number(2.0),
        epsilon=number(0.5),
    ),
    call("Normalizer.update_obs", obs=OBS),
    call("Normalizer.normalize_obs", obs=OBS),
    call("Normalizer.state"),
    call(
        "Normalizer.load_state",
        state=record(lambda: {name: x.make() for name, x in STATE.items()}, **STATE),
    ),
    call(
        "RolloutBuffer",
        n_steps=whole(T),
        num_envs=whole(N),
        obs_shape=SHAPE,
        action_shape=optional(but(row(whole(1), kind=tuple), "a dict")),
        action_dtype=optional(dtype("float32")),
        obs_dtype=optional(dtype("uint8")),
        extra=optional(
            record(
                lambda: {"masks": ((2,), "bool")},
                masks=row(row(whole(2), kind=tuple), dtype("bool"), kind=tuple),
            )
        ),
    ),
    call("RolloutBuffer.field", name=text("rewards")),
    call(
        "RolloutBuffer.begin",
        obs=OBS,
        fresh=flag(True),
        normalizer=NORMALIZER,
        ended=optional(flags(0, 1, 0)),
        at=-1,
    ),
    call(
        "RolloutBuffer.record",
        t=whole(1),
        next_obs=OBS,
        final_obs=optional(OBS),
        normalizer=NORMALIZER,
        **SAID,
        **FELT,
        at=1,
    ),
    call(
        "RolloutBuffer.finish",
        last_values=floats(1, 2, 3, dtype="f4"),
        gamma=number(0.5),
        gae_lambda=number(0.75),
        final_values=optional(floats(0.5, -1, dtype="f4")),
        at=T,
    ),
]


ENV_N, ENV_T, ENV_D = 3, 2, 4
SEED = optional(whole(7))
MODE = text("SameStep")
NUMBERS = floats(-1, -0.5, -2, dtype="f4")
PUSHES = wholes(0, 1, 1)


def vector(steps):
    env = rlox.VecEnv(ENV_N, 5)
    for t in range(steps + 1):
        env.reset() if t == 0 else env.step(PUSHES.make())
    return env


def native(steps):
    env = NativeVectorEnv("CartPole-v1", ENV_N, 5, "SameStep")
    for t in range(steps + 1):
        env.reset() if t == 0 else env.step(PUSHES.make())
    return env


def other(steps=-1):
    same_step = AutoresetMode.SAME_STEP
    env = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * ENV_N, autoreset_mode=same_step)
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
    buffer = rlox.RolloutBuffer(ENV_T, ENV_N, (ENV_D,))
    buffer.begin(np.zeros((ENV_N, ENV_D)))
    return buffer


def env_normalizer():
    return rlox.Normalizer(ENV_N, (ENV_D,))


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


ENV_SUBJECTS = {
    "VecEnv": Subject(vector, lambda env: [standing(env), env.np_random_seed]),
    "NativeVectorEnv": Subject(native, standing),
    "ForeignVecEnv": Subject(other, standing_elsewhere, meets=(RuntimeError,)),
    "NativeEnv": Subject(single, standing_alone),
}
RESULTS = {
    "obs": out(lambda: np.zeros((ENV_N, ENV_D), np.float32)),
    "rewards": out(lambda: np.zeros(ENV_N)),
    "terminated": out(lambda: np.zeros(ENV_N, bool)),
    "truncated": out(lambda: np.zeros(ENV_N, bool)),
    "final_obs": out(lambda: np.zeros((ENV_N, ENV_D), np.float32)),
}
MANY = {name: out(lambda x=x: np.stack([x.make()] * ENV_T)) for name, x in RESULTS.items()}
SAYING = saying(row(PUSHES, NUMBERS, NUMBERS, kind=tuple), "actions", "log_probs", "values")
ENV_SAID = {"actions": PUSHES, "log_probs": NUMBERS, "values": NUMBERS}
ROLLOUT = {"buffer": thing(begun), "normalizer": optional(thing(env_normalizer))}
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


TORQUES = floats(0.5, -1, 2, shape=(ENV_N, 1))


def turning(method):
    """A method of environments whose actions are real numbers."""

    def called(_, **arguments):
        env = NativeVectorEnv("Pendulum-v1", ENV_N, 5, "SameStep")
        env.reset()
        return getattr(env, method)(**arguments)

    return called


PENDULUM = {"obs": out(lambda: np.zeros((ENV_N, 3), np.float32))}
INTO = RESULTS | {"final_obs": optional(RESULTS["final_obs"])}


def native_calls():
    for kind, seed in (("VecEnv", {}), ("NativeVectorEnv", {})):
        yield call(f"{kind}.step", actions=PUSHES)
        yield call(f"{kind}.step_into", actions=PUSHES, **INTO)
        yield call(f"{kind}.begin_rollout", **ROLLOUT, seed=SEED, **seed)
        yield call(f"{kind}.step_rollout", **ROLLOUT, t=whole(0), **ENV_SAID)
        yield call(f"{kind}.set_state", state=state())
        for name in ("drain_episodes", "get_state", "close"):
            yield call(f"{kind}.{name}", at=1)


ENV_CALLS = [
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
    call("VecEnv.collect_n_steps", n=whole(ENV_T), policy=optional(saying(PUSHES, "actions"))),
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
    call("NativeVectorEnv.steps_into", actions=wholes(0, 1, 1, 0, shape=(ENV_T, ENV_N)), **MANY),
    call("NativeVectorEnv.action_masks", out=optional(out(lambda: np.zeros((ENV_N, 2), bool)))),
    call("NativeVectorEnv.observe"),
    call("NativeVectorEnv.states"),
    call("NativeVectorEnv.spec"),
    call("NativeVectorEnv.rng_states"),
    call("NativeVectorEnv.set_rng_states", states=streams(native(0).rng_states())),
    call("ForeignVecEnv", env=thing(lambda: other().env), seed=SEED),
    call("ForeignVecEnv.reset", seed=SEED, options=MASKED),
    call("ForeignVecEnv.step", actions=PUSHES),
    call("ForeignVecEnv.begin_rollout", **ROLLOUT, seed=SEED),
    call("ForeignVecEnv.step_rollout", **ROLLOUT, t=whole(0), **ENV_SAID),
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
        n_steps=whole(ENV_T),
        gamma=number(0.5),
        gae_lambda=number(0.75),
    ),
    call(
        "collect_rollout",
        env=thing(lambda: vector(0)),
        policy=optional(SAYING),
        n_steps=whole(ENV_T),
    ),
]

CALLS += ROLLOUT_CALLS
SUBJECTS |= ROLLOUT_SUBJECTS
CALLS += ENV_CALLS
SUBJECTS |= ENV_SUBJECTS
