"""Steps of n classic control environments at once, with precomputed random actions.

One repetition is one call that steps all n environments. In NEXT_STEP mode (Gymnasium, EnvPool),
the step after an episode's end only resets the environment, but counts as a step. The rows named
"benchmark_vector_step" use Gymnasium's own throughput function, which also draws actions and does
not count steps that only reset. Before the clock starts, steps are checked against the equations of
motion.

rlox 1.2.0 has only CartPole-v1 and Pendulum-v1, and Gymnasium has a NumPy environment only for
CartPole-v1. PufferLib has only a CartPole in float32, with episodes of at most 200 steps and a
final reward of 0. PufferLib overwrites its returned arrays and is therefore compared with
`step_into`.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
from classic_control import CARTPOLE, IDS, PENDULUM, Array, next_observation, random_actions
from side_by_side import Benchmark, Row, Subject, run, swept

IN_PLACE = "in place"
Step = Callable[[Array], tuple[Array, Array, Array]]


def check_steps(env_id: str, n: int, first: Array, step: Step, actions: list[Array], limit: float = np.inf) -> None:
    """Raise AssertionError unless `step(actions) -> obs, rewards, done` obeys the equations.

    Rows at episode boundaries and rows whose observation reaches `limit` are not compared.
    """
    obs, was_done = np.array(first, copy=True), np.zeros(n, bool)
    for action in actions[: 64 if n <= 256 else 8]:
        next_obs, rewards, done = (np.array(x) for x in step(action))
        expected, reward = next_observation(env_id, obs, action)
        comparable = ~(was_done | done.astype(bool)) & (np.abs(expected) < limit).all(1)
        np.testing.assert_allclose(next_obs[comparable], expected[comparable], atol=1e-4, err_msg="wrong observations")
        np.testing.assert_allclose(rewards[comparable], reward[comparable], atol=1e-3, err_msg="wrong rewards")
        obs, was_done = next_obs, done.astype(bool)


def step_timer(call: str, step: Any, actions: list[Array], **names: Any) -> timeit.Timer:
    """Return a timer of `call`, in which `a()` returns the next actions."""
    return timeit.Timer(call, globals={"step": step, "a": itertools.cycle(actions).__next__, **names})


def gymnasium_step(env: Any) -> Step:
    """Return a step function with obs, rewards and done of Gymnasium's five results."""

    def step(action: Array) -> tuple[Array, Array, Array]:
        obs, rewards, terminated, truncated, _ = env.step(action)
        return obs, rewards, terminated | truncated

    return step


def rlox_step(env_id: str, n: int) -> timeit.Timer:
    """Time `VecEnv.step`, which returns new arrays."""
    import rlox

    env, actions = rlox.VecEnv(n=n, seed=0, env_id=env_id), random_actions(env_id, n)
    check_steps(env_id, n, env.reset()[0], gymnasium_step(env), actions)
    return step_timer("step(a())", env.step, actions)


def rlox_step_into(env_id: str, n: int) -> timeit.Timer:
    """Time `VecEnv.step_into`, which writes into the caller's arrays."""
    import rlox

    env, actions = rlox.VecEnv(n=n, seed=0, env_id=env_id), random_actions(env_id, n)
    first = env.reset_all()
    out = (np.empty_like(first), np.empty(n), np.empty(n, bool), np.empty(n, bool), np.empty_like(first))

    def step(action: Array) -> tuple[Array, Array, Array]:
        env.step_into(action, *out)
        return out[0], out[1], out[2] | out[3]

    check_steps(env_id, n, first, step, actions)
    names = dict(zip(("obs", "rewards", "terminated", "truncated", "final"), out, strict=True))
    call = "step(a(), obs, rewards, terminated, truncated, final)"
    return step_timer(call, env.step_into, actions, **names)


def rlox_step_all(env_id: str, n: int, dtype: str = "int64") -> timeit.Timer:
    """Time `VecEnv.step_all`, which returns a dict. rlox 1.2.0 requires unsigned actions."""
    import rlox

    env, actions = rlox.VecEnv(n=n, seed=0, env_id=env_id), random_actions(env_id, n, dtype)

    def step(action: Array) -> tuple[Array, Array, Array]:
        result = env.step_all(action)
        return result["obs"], result["rewards"], result["terminated"] | result["truncated"]

    check_steps(env_id, n, env.reset_all(), step, actions)
    return step_timer("step(a())", env.step_all, actions)


def gymnasium(env_id: str, n: int, mode: str) -> timeit.Timer:
    """Time Gymnasium's loop over environments or its NumPy environment."""
    import gymnasium as gym

    env, actions = gym.make_vec(env_id, n, vectorization_mode=mode), random_actions(env_id, n)
    check_steps(env_id, n, env.reset(seed=0)[0], gymnasium_step(env), actions)
    return step_timer("step(a())", env.step, actions)


def envpool(env_id: str, n: int, workers: int) -> timeit.Timer:
    """Time EnvPool in its synchronous mode.

    At the speed limit of 8, EnvPool's Pendulum turns further than Gymnasium's, so that steps to
    this speed are not checked.
    """
    import envpool

    env = envpool.make(env_id, "gymnasium", num_envs=n, num_threads=workers, seed=0)
    actions = random_actions(env_id, n, np.int32)
    limit = 7.999 if env_id == PENDULUM else np.inf
    check_steps(env_id, n, env.reset()[0], gymnasium_step(env), actions, limit)
    return step_timer("step(a())", env.step, actions)


def sb3(env_id: str, n: int) -> timeit.Timer:
    """Time Stable-Baselines3's loop over environments, without a Monitor."""
    import gymnasium as gym
    from stable_baselines3.common.vec_env import DummyVecEnv

    env = DummyVecEnv([lambda: gym.make(env_id)] * n)
    actions = random_actions(env_id, n)

    def step(action: Array) -> tuple[Array, Array, Array]:
        obs, rewards, done, _ = env.step(action)
        return obs, rewards, done

    check_steps(env_id, n, env.reset(), step, actions)
    return step_timer("step(a())", env.step, actions)


def pufferlib_cartpole(n: int, seed: int = 0) -> Any:
    """Return PufferLib's environments without statistics."""
    previous = os.getcwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # importing PufferLib puts a link into the working directory
        from pufferlib.ocean.cartpole.cartpole import Cartpole

        os.chdir(previous)
    return Cartpole(num_envs=n, report_interval=1 << 60, seed=seed)


def pufferlib(env_id: str, n: int, bare: bool = False) -> timeit.Timer:
    """Time PufferLib's `step`, or only its C function with the actions in its buffer."""
    env, actions = pufferlib_cartpole(n), random_actions(env_id, n, np.float32)
    check_steps(env_id, n, env.reset(seed=0)[0], gymnasium_step(env), actions)
    if not bare:
        return step_timer("step(a())", env.step, actions)
    names = {"place": env.actions, "envs": env.c_envs, "env": env}  # env owns the memory
    c_step = sys.modules["pufferlib.ocean.cartpole.binding"].vec_step
    return step_timer("place[:] = a(); step(envs)", c_step, actions, **names)


def vector_step(env_id: str, n: int, seconds: float, mode: str | None = None) -> Any:
    """Time Gymnasium's throughput function, as seconds per batch of n steps."""
    import gymnasium as gym
    from gymnasium.utils import performance

    throughput: Any = performance.benchmark_vector_step  # its annotation accepts only int seconds
    if mode:
        env = gym.make_vec(env_id, n, vectorization_mode=mode)
    else:
        import rlox

        env = rlox.VecEnv(n=n, env_id=env_id)
    return lambda turn: {"seconds": n / throughput(env, seconds, seed=turn)}


def subjects(env_id: str) -> list[Subject]:
    """Return the subjects (`side_by_side.py`), `step` first: like most peers, it returns new arrays."""
    table = [
        *swept(Subject("rlox step", "rlox_step")),
        *swept(Subject("rlox step_all", "rlox_step_all")),
        *swept(Subject("rlox step_into", "rlox_step_into", work=IN_PLACE)),
    ]
    if env_id in (CARTPOLE, PENDULUM):
        unsigned = {"dtype": "uint32"}
        published = Subject("rlox 1.2.0 step_all", "rlox_step_all", "rlox-1.2.0", unsigned)
        table += swept(published)
    if env_id == CARTPOLE:
        table += [
            Subject("PufferLib step", "pufferlib", "pufferlib", work=IN_PLACE),
            Subject("PufferLib C function", "pufferlib", "pufferlib", {"bare": True}, work=IN_PLACE),
        ]
    return [
        *table,
        Subject("EnvPool, 1 worker", "envpool", "envpool", {"workers": 1}),
        Subject("EnvPool, 2 workers", "envpool", "envpool", {"workers": 2}),
        *gymnasium_modes(env_id, "gymnasium"),
        Subject("SB3 DummyVecEnv", "sb3", "sb3"),
    ]


def gymnasium_modes(env_id: str, function: str, **options: Any) -> list[Subject]:
    """Return Gymnasium's loop, and its NumPy environment if there is one."""
    modes = [("sync", "Gymnasium sync")]
    if env_id == CARTPOLE:
        modes.append(("vector_entry_point", "Gymnasium NumPy"))
    return [Subject(name, function, "gymnasium", {"mode": mode, **options}) for mode, name in modes]


def rows(quick: bool) -> list[Row]:
    """Return rows for each environment and n, then rows of Gymnasium's throughput function."""
    table = [
        Row(f"{env_id} n={n}", {"env_id": env_id, "n": n}, subjects(env_id), n)
        for env_id in IDS
        for n in ((4, 64) if quick else (1, 4, 16, 64, 256, 1024, 4096))
    ]
    seconds = {"seconds": 0.02 if quick else 0.1}
    ours = swept(Subject("rlox step", "vector_step"))
    table += [
        Row(
            f"benchmark_vector_step {env_id} n={n}",
            {"env_id": env_id, "n": n, **seconds},
            [*ours, *gymnasium_modes(env_id, "vector_step")],
            n,
        )
        for env_id in IDS
        for n in ((64,) if quick else (1, 64, 1024))
    ]
    return table


BENCHMARK = Benchmark("bench_env_stepping", "Environment steps", rows)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
