"""Calls of buffers, statistics and environments."""

import tempfile
import uuid
from dataclasses import replace

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rlox
from hostile.arguments import (
    ANY,
    booleans,
    choice,
    constant,
    dtype,
    floats,
    function_returning,
    integers,
    label_forms,
    mapping,
    optional,
    output_array,
    path,
    real,
    sequence,
    string,
    with_outcome,
    without,
)
from hostile.table import Subject, call
from rlox._rlox import NativeVectorEnv
from rlox.envs import GymVecEnv, NativeEnv

D = 2
# The keys of a dict are also accepted as a shape.
SHAPE = without(sequence(D, cls=tuple), "a dict")
DEEP = label_forms(ANY, {f"{n} axes": constant((1,) * n) for n in (30, 31, 40, 70)})
SHAPE = replace(SHAPE, forms={**SHAPE.forms, **DEEP})
# Errors of widths of 0 name the column.
WIDTHS = replace(with_outcome(SHAPE, ANY, "text"), names=("obs", "actions"))
FOLDER = tempfile.TemporaryDirectory()


def push_transitions(buffer, count):
    for i in range(count):
        buffer.push([i, -i], [0.5 * i], i, False, i % 3 == 2, [i + 1, -i - 1])
    return buffer


def contents(buffer):
    rows = buffer.sample(len(buffer), seed=0) if len(buffer) else {}
    return {"transitions": len(buffer), **rows}


def new_path():
    return f"{FOLDER.name}/{uuid.uuid4()}.replay"


def make_mmap_buffer(pushes, path=None):
    return push_transitions(rlox.MmapReplayBuffer(3, 6, D, 1, path or new_path(), seed=0), pushes)


def closed_file():
    path = new_path()
    make_mmap_buffer(4, path).close()
    return path


def saved_buffer(class_name):
    """Return the path argument of a folder with a saved buffer."""

    def make():
        path = new_path()
        push_transitions(getattr(rlox, class_name)(6, D, 1, seed=0), 8).save(path)
        return path

    return replace(path(make), names=("manifest",))


GOALS = {"observation": 1, "achieved_goal": 1, "desired_goal": 1}


def distance(achieved, desired, info):
    return -np.abs(achieved - desired)[:, 0]


def make_hindsight_buffer(count):
    buffer = rlox.HindsightReplayBuffer(6, GOALS, 1, compute_reward=distance, seed=0)
    for i in range(count):
        obs, following = ({name: [x] for name in GOALS} for x in (i, i + 1))
        buffer.push(obs, [0.5], i, False, i % 3 == 2, following)
    return buffer


def make_replay_buffer(count):
    return push_transitions(rlox.ReplayBuffer(6, D, 1, seed=0), count)


SUBJECTS = {
    "HindsightReplayBuffer": Subject(make_hindsight_buffer, contents),
    "MmapReplayBuffer": Subject(make_mmap_buffer, contents),
    "ReplayBuffer": Subject(make_replay_buffer, contents),
    "PrioritizedReplayBuffer": Subject(
        lambda count: push_transitions(rlox.PrioritizedReplayBuffer(6, D, 1, seed=0), count),
        lambda buffer: [contents(buffer), buffer.alpha, buffer.beta],
    ),
}
STORED = {
    "act_dim": WIDTHS,
    "obs_dtype": optional(dtype("float32")),
    "act_dtype": optional(dtype("int64")),
    "extra": mapping({"cost": sequence(sequence(2, cls=tuple), dtype("float64"), cls=tuple)}),
    "seed": 3,
}
REPLAY = STORED | {"capacity": 6, "num_envs": optional(1)}
STACKED = REPLAY | {"obs_dim": WIDTHS, "frame_stack": optional(1), "n_step": optional(2)}
OBS = floats(1, -2, 0.5, 3, shape=(2, D), dtype="f4")
ROWS = {
    "obs": OBS,
    "next_obs": OBS,
    "actions": floats(0.5, -1, shape=(2, 1), dtype="f4"),
    "rewards": floats(1, 0, dtype="f4"),
    "terminated": booleans(0, 1),
    "truncated": booleans(1, 0),
    "extra": None,
}
TRANSITION = {
    "obs": floats(1, -2, dtype="f4"),
    "action": floats(0.5, dtype="f4"),
    "reward": 0.5,
    "terminated": True,
    "truncated": False,
    "next_obs": floats(0.5, 3, dtype="f4"),
    "extra": None,
}
SAMPLE = {"batch_size": 2, "seed": 7}
COLUMNS = {
    "obs": output_array((2, D), "f4"),
    "next_obs": output_array((2, D), "f4"),
    "actions": output_array((2, 1), "f4"),
    "rewards": output_array((2,), "f4"),
    "terminated": output_array((2,), "?"),
    "truncated": output_array((2,), "?"),
}
SAMPLE_OUT = {"out": mapping(COLUMNS, written=True)}
CALLS = [
    call(
        "MmapReplayBuffer",
        hot_capacity=3,
        total_capacity=6,
        cold_path=path(new_path),
        obs_dim=WIDTHS,
        **STORED,
        raises=(OSError,),
    ),
    call("MmapReplayBuffer.open", path=path(closed_file), hot_capacity=3, seed=1, raises=(OSError,)),
    call("MmapReplayBuffer.push", **TRANSITION, at=4),
    call("MmapReplayBuffer.push_batch", **ROWS, at=4),
    call("MmapReplayBuffer.sample", **SAMPLE, **SAMPLE_OUT, at=4),
    call("MmapReplayBuffer.flush", at=4),
    call("MmapReplayBuffer.state", at=4),
    call("MmapReplayBuffer.verify", at=4),
    call("ReplayBuffer", **STACKED),
    call("PrioritizedReplayBuffer", beta=0.25, **STACKED),
    call(
        "HindsightReplayBuffer",
        obs_dim=without(mapping(lambda: dict(GOALS)), "one key more", "surrogates as key"),
        compute_reward=lambda: distance,
        compute_terminated=None,
        capacity_name=optional(string("capacity")),
        **REPLAY,
    ),
    # test_hindsight.py passes a dict of dicts.
    call("HindsightReplayBuffer.sample", **SAMPLE, out=None, at=4),
    call("ReplayBuffer.push", **TRANSITION, at=4),
    call("ReplayBuffer.push_batch", **ROWS, in_order=True, at=4),
    call("ReplayBuffer.sample", **SAMPLE, **SAMPLE_OUT, at=4),
    # buffers/test_replay.py passes a dict with four more arrays.
    call("ReplayBuffer.sample_sequences", **SAMPLE, length=3, burn_in=optional(1), out=None, at=4),
    call("ReplayBuffer.state", at=4),
    # buffers/test_replay.py passes the arrays in all forms.
    call("ReplayBuffer.load_state", arrays=mapping(lambda: make_replay_buffer(8).state()), at=2),
    call("ReplayBuffer.save", path=path(new_path), raises=(OSError,), at=4),
    call("ReplayBuffer.load", path=saved_buffer("ReplayBuffer"), raises=(OSError,)),
    call("PrioritizedReplayBuffer.load", path=saved_buffer("PrioritizedReplayBuffer"), raises=(OSError,)),
    # buffers/test_replay.py passes a dict with two more arrays.
    call("PrioritizedReplayBuffer.sample", **SAMPLE, out=None, beta=0.5, at=4),
    call("PrioritizedReplayBuffer.update_priorities", indices=integers(3, 1), priorities=floats(0.5, 4), at=4),
]

T, N = 2, 3
STEP_OBS = floats(1, -2, 0.5, 3, shape=(N, D), dtype="f4")
STEP = {
    "actions": integers(0, 1, 1),
    "log_probs": floats(-1, -0.5, -2, dtype="f4"),
    "values": floats(1, 2, -3, dtype="f4"),
    "next_obs": STEP_OBS,
    "rewards": floats(1, 0, -1),
    "terminated": booleans(0, 0, 1),
    "truncated": booleans(0, 1, 0),
    "final_obs": STEP_OBS,
}
STEPS = ("actions", "log_probs", "values", "rewards", "terminated", "truncated", "valid")
FIELDS = ("final_index", "final_obs", "next_step", "n_steps", "num_envs", "n_transitions")


def make_normalizer():
    statistics = rlox.Normalizer(N, (D,))
    statistics.update_obs(np.arange(6.0).reshape(N, D))
    return statistics


def make_rollout(steps):
    buffer = rlox.RolloutBuffer(T, N, (D,))
    if steps >= 0:
        buffer.begin(np.ones((N, D)))
    for t in range(steps):
        buffer.record(t, **{name: argument.make() for name, argument in STEP.items()})
    return buffer


def recorded_steps(buffer):
    """Return the recorded steps of a buffer. Rows of later steps are undefined."""
    t = buffer.next_step
    found = {name: getattr(buffer, name)[:t].copy() for name in STEPS}
    found |= {name: np.array(getattr(buffer, name)) for name in FIELDS}
    found["obs"] = np.concatenate([buffer.obs, buffer.last_obs[None]])[: t + 1]
    if t == buffer.n_steps:
        found |= {name: buffer.field(name).copy() for name in ("advantages", "returns")}
    return found


def running_statistics(_):
    running = rlox.RunningMeanStd((D,))
    running.update([[1.0, 2.0], [3.0, 5.0]])
    return running


SUBJECTS |= {
    "RolloutBuffer": Subject(make_rollout, recorded_steps),
    "Normalizer": Subject(lambda _: make_normalizer(), lambda statistics: statistics.state()),
    "RunningMeanStd": Subject(running_statistics, lambda x: [x.mean, x.var, x.count]),
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
MASKS = sequence(sequence(2, cls=tuple), dtype("bool"), cls=tuple)
CALLS += [
    call("RunningMeanStd", shape=with_outcome(SHAPE, ANY, "text")),
    call("RunningMeanStd.update", x=floats(1, 2, 3, 4, shape=(4, D))),
    call("RunningMeanStd.merge", other=lambda: running_statistics(0)),
    call("Normalizer", num_envs=N, obs_shape=SHAPE),
    call("Normalizer.update_obs", obs=STEP_OBS),
    call("Normalizer.normalize_obs", obs=STEP_OBS),
    call("Normalizer.state"),
    call("Normalizer.load_state", state=STATE),
    call(
        "RolloutBuffer",
        n_steps=T,
        num_envs=N,
        obs_shape=SHAPE,
        action_shape=without(sequence(1, cls=tuple), "a dict"),
        action_dtype=optional(dtype("float32")),
        obs_dtype=optional(dtype("uint8")),
        extra={"masks": MASKS},
    ),
    call("RolloutBuffer.field", name=choice("rewards")),
    call("RolloutBuffer.begin", obs=STEP_OBS, normalizer=make_normalizer, ended=booleans(0, 1, 0), at=-1),
    call("RolloutBuffer.record", t=1, normalizer=make_normalizer, **STEP, at=1),
    call(
        "RolloutBuffer.finish",
        last_values=floats(1, 2, 3, dtype="f4"),
        gamma=0.5,
        gae_lambda=0.75,
        final_values=floats(0.5, -1, dtype="f4"),
        at=T,
    ),
]

ENV_D = 4
PUSHES = integers(0, 1, 1)
NUMBERS = floats(-1, -0.5, -2, dtype="f4")


def step_env(env, steps, **keywords):
    for t in range(steps + 1):
        env.reset(**keywords) if t == 0 else env.step(PUSHES.make())
    return env


def make_vec_env(steps):
    return step_env(rlox.VecEnv(N, 5), steps)


def make_native_env(steps):
    return step_env(NativeVectorEnv("CartPole-v1", N, 5, "SameStep"), steps)


def make_gym_env(steps=-1):
    envs = [lambda: gym.make("CartPole-v1")] * N
    env = SyncVectorEnv(envs, autoreset_mode=AutoresetMode.SAME_STEP)
    return step_env(GymVecEnv(env, 5), steps, seed=5)


def make_single_env(steps):
    env = NativeEnv("CartPole-v1")
    for t in range(steps + 1):
        env.reset(seed=5) if t == 0 else env.step(1)
    return env


def buffer_after_begin():
    buffer = rlox.RolloutBuffer(T, N, (ENV_D,))
    buffer.begin(np.zeros((N, ENV_D)))
    return buffer


def env_state(env):
    try:
        return env.get_state()
    except ValueError:
        return "closed, or never reset"


def gym_env_state(env):
    if env.env.closed:
        return "closed"
    return [np.array([each.unwrapped.state for each in env.env.envs], float), env._returns]


def single_env_state(env):
    try:
        # The native environment borrows the random stream.
        return [{**env._native.get_state(), "streams": None}, env.np_random]
    except ValueError:
        return "closed, or never reset"


SUBJECTS |= {
    "VecEnv": Subject(make_vec_env, lambda env: [env_state(env), env.np_random_seed]),
    "NativeVectorEnv": Subject(make_native_env, env_state),
    "GymVecEnv": Subject(make_gym_env, gym_env_state, meets=(RuntimeError,)),
    "NativeEnv": Subject(make_single_env, single_env_state),
}


def step_outputs(*shape, obs=ENV_D):
    return {
        "obs": output_array((*shape, obs), "f4"),
        "rewards": output_array(shape),
        "terminated": output_array(shape, "?"),
        "truncated": output_array(shape, "?"),
        "final_obs": output_array((*shape, obs), "f4"),
    }


POLICY = function_returning(sequence(PUSHES, NUMBERS, NUMBERS, cls=tuple), "actions", "log_probs", "values")
ROLLOUT = {"buffer": buffer_after_begin, "normalizer": lambda: rlox.Normalizer(N, (ENV_D,))}
DECISIONS = {"actions": PUSHES, "log_probs": NUMBERS, "values": NUMBERS, "t": 0}
# Masks must be arrays.
MASK = with_outcome(booleans(1, 0, 1), "maybe", "list", "array-like")
BOUNDS = {"low": real(-0.25), "high": real(0.25)}


def on_pendulum(method):
    """Return a method of an environment with real actions."""

    def call_method(_, **arguments):
        env = NativeVectorEnv("Pendulum-v1", N, 5, "SameStep")
        env.reset()
        return getattr(env, method)(**arguments)

    return call_method


def vector_env_calls(name):
    yield call(f"{name}.step", actions=PUSHES)
    yield call(f"{name}.step_into", actions=PUSHES, **step_outputs(N))
    yield call(f"{name}.begin_rollout", **ROLLOUT, seed=7)
    yield call(f"{name}.step_rollout", **ROLLOUT, **DECISIONS)
    yield call(f"{name}.set_state", state=make_vec_env(1).get_state())
    for method in ("pop_episodes", "get_state", "close"):
        yield call(f"{name}.{method}", at=1)


TORQUES = floats(0.5, -1, 2, shape=(N, 1))
INTO_PENDULUM = step_outputs(N, obs=3) | {"final_obs": None}
CALLS += [
    call(
        "VecEnv",
        n=2,
        env_id="Pendulum-v1",
        autoreset_mode="SameStep",
        seed=7,
        max_episode_steps=5,
        render_mode=None,
        g=9.5,
    ),
    call("VecEnv", env_id="CartPole-v1", sutton_barto_reward=True),
    call("VecEnv", env_id="Acrobot-v1", dt=0.25, nips=False, torque_noise_max=0.5),
    call("VecEnv", env_id="MountainCar-v0", goal_velocity=0.25),
    call("VecEnv.reset", seed=7, options=BOUNDS | {"reset_mask": MASK}),
    call("VecEnv.reset", seed=[optional(1), optional(2), optional(3)], at=-1),
    call("VecEnv.reset_all", seed=7),
    call("VecEnv.step_all", actions=PUSHES),
    call("VecEnv.render"),
    call("VecEnv.close_extras"),
    call("VecEnv.collect_n_steps", n=T, policy=function_returning(PUSHES, "actions")),
    *vector_env_calls("VecEnv"),
    *vector_env_calls("NativeVectorEnv"),
    call(
        "NativeVectorEnv",
        env_id="Pendulum-v1",
        num_envs=2,
        seed=7,
        autoreset_mode="SameStep",
        max_episode_steps=5,
        kwargs=replace(mapping({"g": 9.5}), names=("env_kwargs",)),
        count_name=string("num_envs"),
    ),
    call("NativeVectorEnv.reset", seed=7, mask=MASK, options=BOUNDS),
    call("NativeVectorEnv.step", through=on_pendulum("step"), actions=TORQUES),
    call("NativeVectorEnv.step_into", through=on_pendulum("step_into"), actions=TORQUES, **INTO_PENDULUM),
    call("NativeVectorEnv.steps_into", actions=integers(0, 1, 1, 0, shape=(T, N)), **step_outputs(T, N)),
    call("NativeVectorEnv.action_masks", out=output_array((N, 2), "?")),
    call("NativeVectorEnv.observe"),
    call("NativeVectorEnv.states"),
    call("NativeVectorEnv.spec"),
    call("NativeVectorEnv.rng_states"),
    call("NativeVectorEnv.set_rng_states", states=make_native_env(0).rng_states()),
    call("GymVecEnv", env=lambda: make_gym_env().env, seed=7),
    call("GymVecEnv.reset", seed=7, options={"reset_mask": MASK}),
    call("GymVecEnv.step", actions=PUSHES),
    call("GymVecEnv.begin_rollout", **ROLLOUT, seed=7),
    call("GymVecEnv.step_rollout", **ROLLOUT, **DECISIONS),
    *(call(f"GymVecEnv.{method}") for method in ("pop_episodes", "render", "close")),
    *map(call, ("env_ids", "available_memory", "isa", "num_threads")),
    *map(call, ("start_phases", "phase_seconds", "stop_phases")),
    call("enter_phase", phase="inference"),
    call("NativeEnv", env_id="Pendulum-v1", render_mode=None, g=9.5),
    call("NativeEnv.reset", seed=7, options=BOUNDS),
    call("NativeEnv.step", action=1),
    call("NativeEnv.render"),
    call("NativeEnv.close"),
    call("make_vec", env="CartPole-v1", num_envs=2, seed=7, autoreset_mode="SameStep"),
    call(
        "make_vec",
        env="CartPole-v1",
        num_envs=2,
        seed=7,
        vectorization_mode="sync",
        wrappers=[lambda: gym.wrappers.FlattenObservation],
        autoreset_mode="SameStep",
    ),
    call(
        "collect_rollout",
        env=lambda: make_vec_env(0),
        policy=optional(function_returning(PUSHES, "actions")),
        n_steps=T,
    ),
    call("collect_rollout", env=lambda: make_vec_env(0), policy=optional(POLICY), n_steps=T),
]
