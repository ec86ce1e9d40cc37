"""Steps of classic control, n environments at once, with random actions made before.

One repetition is one call that steps all n environments, whatever it is called in each library;
where the step after an episode's end only resets (Gymnasium's NEXT_STEP mode, EnvPool), it counts
as a step. The rows named "benchmark_vector_step" are Gymnasium's own throughput function instead,
which draws actions besides and counts no such steps. Before the clock starts, steps are compared
with the equations of motion.

rlox 1.2.0 has CartPole-v1 and Pendulum-v1 only, Gymnasium a NumPy environment of CartPole-v1 only.
PufferLib's only one of these is a CartPole in float32, with episodes of at most 200 steps and a
reward of 0 at their end; it overwrites the arrays that it returns, and is compared with
`step_into`, which does that too.
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


def checked(
    env_id: str, n: int, first: Array, step: Step, actions: list[Array], limit: float = np.inf
) -> None:
    """Raises AssertionError unless `step(actions) -> obs, rewards, done` obeys the equations.

    Rows in which an episode ended or began, or an observation reaches `limit`, are not compared.
    """
    obs, before = np.array(first, copy=True), np.zeros(n, bool)
    for action in actions[: 64 if n <= 256 else 8]:
        now, rewards, done = (np.array(x) for x in step(action))
        expected, reward = next_observation(env_id, obs, action)
        usual = ~(before | done.astype(bool)) & (np.abs(expected) < limit).all(1)
        np.testing.assert_allclose(
            now[usual], expected[usual], atol=1e-4, err_msg="wrong observations"
        )
        np.testing.assert_allclose(
            rewards[usual], reward[usual], atol=1e-3, err_msg="wrong rewards"
        )
        obs, before = now, done.astype(bool)


def timer(call: str, step: Any, actions: list[Array], **names: Any) -> timeit.Timer:
    """Runs `call`, in which `a()` is the next actions."""
    return timeit.Timer(
        call, globals={"step": step, "a": itertools.cycle(actions).__next__, **names}
    )


def gymnasium_step(env: Any) -> Step:
    """obs, rewards and done of Gymnasium's five."""

    def step(action: Array) -> tuple[Array, Array, Array]:
        obs, rewards, terminated, truncated, _ = env.step(action)
        return obs, rewards, terminated | truncated

    return step


def rlox_step(env_id: str, n: int) -> timeit.Timer:
    """`VecEnv.step`: Gymnasium's five, fresh arrays."""
    import rlox

    env, actions = rlox.VecEnv(n=n, seed=0, env_id=env_id), random_actions(env_id, n)
    checked(env_id, n, env.reset()[0], gymnasium_step(env), actions)
    return timer("step(a())", env.step, actions)


def rlox_step_into(env_id: str, n: int) -> timeit.Timer:
    """`VecEnv.step_into`: the caller's arrays."""
    import rlox

    env, actions = rlox.VecEnv(n=n, seed=0, env_id=env_id), random_actions(env_id, n)
    first = env.reset_all()
    out = (
        np.empty_like(first),
        np.empty(n),
        np.empty(n, bool),
        np.empty(n, bool),
        np.empty_like(first),
    )

    def step(action: Array) -> tuple[Array, Array, Array]:
        env.step_into(action, *out)
        return out[0], out[1], out[2] | out[3]

    checked(env_id, n, first, step, actions)
    names = dict(zip(("obs", "rewards", "terminated", "truncated", "final"), out, strict=True))
    call = "step(a(), obs, rewards, terminated, truncated, final)"
    return timer(call, env.step_into, actions, **names)


def rlox_step_all(env_id: str, n: int, dtype: str = "int64") -> timeit.Timer:
    """`VecEnv.step_all`, a dict; rlox 1.2.0 has it too, and takes unsigned integers."""
    import rlox

    env, actions = rlox.VecEnv(n=n, seed=0, env_id=env_id), random_actions(env_id, n, dtype)

    def step(action: Array) -> tuple[Array, Array, Array]:
        result = env.step_all(action)
        return result["obs"], result["rewards"], result["terminated"] | result["truncated"]

    checked(env_id, n, env.reset_all(), step, actions)
    return timer("step(a())", env.step_all, actions)


def gymnasium(env_id: str, n: int, mode: str) -> timeit.Timer:
    """Gymnasium's loop over environments, or its NumPy environment."""
    import gymnasium as gym

    env, actions = gym.make_vec(env_id, n, vectorization_mode=mode), random_actions(env_id, n)
    checked(env_id, n, env.reset(seed=0)[0], gymnasium_step(env), actions)
    return timer("step(a())", env.step, actions)


def envpool(env_id: str, n: int, workers: int) -> timeit.Timer:
    """EnvPool in its synchronous mode.

    Its Pendulum turns further than Gymnasium's where the speed is at its limit of 8; the rest is
    compared.
    """
    import envpool

    env = envpool.make(env_id, "gymnasium", num_envs=n, num_threads=workers, seed=0)
    actions = random_actions(env_id, n, np.int32)
    limit = 7.999 if env_id == PENDULUM else np.inf
    checked(env_id, n, env.reset()[0], gymnasium_step(env), actions, limit)
    return timer("step(a())", env.step, actions)


def sb3(env_id: str, n: int) -> timeit.Timer:
    """Stable-Baselines3's loop over environments, without a Monitor."""
    import gymnasium as gym
    from stable_baselines3.common.vec_env import DummyVecEnv

    env = DummyVecEnv([lambda: gym.make(env_id)] * n)
    actions = random_actions(env_id, n)

    def step(action: Array) -> tuple[Array, Array, Array]:
        obs, rewards, done, _ = env.step(action)
        return obs, rewards, done

    checked(env_id, n, env.reset(), step, actions)
    return timer("step(a())", env.step, actions)


def pufferlib_cartpole(n: int, seed: int = 0) -> Any:
    """PufferLib's environments; they gather no statistics meanwhile."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as elsewhere:
        os.chdir(elsewhere)  # importing PufferLib puts a link into the working directory
        from pufferlib.ocean.cartpole.cartpole import Cartpole

        os.chdir(here)
    return Cartpole(num_envs=n, report_interval=1 << 60, seed=seed)


def pufferlib(env_id: str, n: int, bare: bool = False) -> timeit.Timer:
    """PufferLib's `step`; or its C function alone, once the actions are where it looks for them."""
    env, actions = pufferlib_cartpole(n), random_actions(env_id, n, np.float32)
    checked(env_id, n, env.reset(seed=0)[0], gymnasium_step(env), actions)
    if not bare:
        return timer("step(a())", env.step, actions)
    names = {"place": env.actions, "envs": env.c_envs, "env": env}  # env keeps the memory
    c_step = sys.modules["pufferlib.ocean.cartpole.binding"].vec_step
    return timer("place[:] = a(); step(envs)", c_step, actions, **names)


def vector_step(env_id: str, n: int, seconds: float, mode: str | None = None) -> Any:
    """Gymnasium's throughput function, as seconds a batch of n steps."""
    import gymnasium as gym
    from gymnasium.utils import performance

    throughput: Any = performance.benchmark_vector_step  # annotated for whole seconds only
    if mode:
        env = gym.make_vec(env_id, n, vectorization_mode=mode)
    else:
        import rlox

        env = rlox.VecEnv(n=n, env_id=env_id)
    return lambda turn: {"seconds": n / throughput(env, seconds, seed=turn)}


def subjects(env_id: str) -> list[Subject]:
    """`step` first: it returns fresh arrays, as most peers do."""
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
            Subject(
                "PufferLib C function", "pufferlib", "pufferlib", {"bare": True}, work=IN_PLACE
            ),
        ]
    return [
        *table,
        Subject("EnvPool, 1 worker", "envpool", "envpool", {"workers": 1}),
        Subject("EnvPool, 2 workers", "envpool", "envpool", {"workers": 2}),
        *gymnasium_modes(env_id, "gymnasium"),
        Subject("SB3 DummyVecEnv", "sb3", "sb3"),
    ]


def gymnasium_modes(env_id: str, function: str, **options: Any) -> list[Subject]:
    """Gymnasium's loop, and its NumPy environment where there is one."""
    modes = [("sync", "Gymnasium sync")]
    if env_id == CARTPOLE:
        modes.append(("vector_entry_point", "Gymnasium NumPy"))
    return [Subject(name, function, "gymnasium", {"mode": mode, **options}) for mode, name in modes]


def rows(quick: bool) -> list[Row]:
    """Every environment at every n, then Gymnasium's own measure."""
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
