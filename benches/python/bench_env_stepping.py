"""Steps of CartPole-v1 and Pendulum-v1, n environments at once, with random actions made before.

One repetition is one call that steps all n environments, whatever it is called in each library;
where the step after an episode's end only resets (Gymnasium's NEXT_STEP mode, EnvPool), it counts
as a step. The rows named "benchmark_vector_step" are Gymnasium's own throughput function instead,
which draws actions besides and counts no such steps. Before the clock starts, steps are compared
with the equations of motion.
"""

from __future__ import annotations

import itertools
import sys
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from side_by_side import Benchmark, Row, Subject, run

Array = npt.NDArray[Any]
CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"


def random_actions(env_id: str, n: int, dtype: Any = np.int64) -> list[Array]:
    """Actions of 64 steps; Pendulum's are float32 (n, 1)."""
    rng = np.random.default_rng(7)
    if env_id == CARTPOLE:
        return [rng.integers(0, 2, n).astype(dtype) for _ in range(64)]
    return [rng.uniform(-2, 2, (n, 1)).astype(np.float32) for _ in range(64)]


def next_observation(env_id: str, obs: Array, action: Array) -> tuple[Array, Array]:
    """The equations of motion, from observations: what follows, and the rewards."""
    if env_id == CARTPOLE:
        x, speed, angle, turn = obs.astype(float).T
        force = np.where(action == 1, 10.0, -10.0)
        pull = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
        turning = 9.8 * np.sin(angle) - np.cos(angle) * pull
        turning /= 0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
        moving = pull - 0.05 * turning * np.cos(angle) / 1.1
        state = [
            x + 0.02 * speed,
            speed + 0.02 * moving,
            angle + 0.02 * turn,
            turn + 0.02 * turning,
        ]
        return np.stack(state, 1), np.ones(len(obs))
    cos, sin, turn = obs.astype(float).T
    angle, torque = np.arctan2(sin, cos), action[:, 0].astype(float)
    cost = angle**2 + 0.1 * turn**2 + 0.001 * torque**2
    turn = np.clip(turn + 0.05 * (15 * sin + 3 * torque), -8, 8)
    angle = angle + 0.05 * turn
    return np.stack([np.cos(angle), np.sin(angle), turn], 1), -cost


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
    """`step` first: it returns fresh arrays, as the peers do."""
    unsigned = {"dtype": "uint32"}
    return [
        Subject("rlox step", "rlox_step"),
        Subject("rlox step_all", "rlox_step_all"),
        Subject("rlox step_into", "rlox_step_into"),
        Subject("rlox 1.2.0 step_all", "rlox_step_all", "rlox-1.2.0", unsigned),
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
    """Both environments at every n, then Gymnasium's own measure."""
    table = [
        Row(f"{env_id} n={n}", {"env_id": env_id, "n": n}, subjects(env_id), n)
        for env_id in (CARTPOLE, PENDULUM)
        for n in ((4, 64) if quick else (1, 4, 64, 256, 1024, 4096))
    ]
    seconds = {"seconds": 0.02 if quick else 0.2}
    table += [
        Row(
            f"benchmark_vector_step {env_id} n={n}",
            {"env_id": env_id, "n": n, **seconds},
            [Subject("rlox step", "vector_step"), *gymnasium_modes(env_id, "vector_step")],
            n,
        )
        for env_id in (CARTPOLE, PENDULUM)
        for n in ((64,) if quick else (1, 64, 1024))
    ]
    return table


BENCHMARK = Benchmark("bench_env_stepping", "Environment steps", rows)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
