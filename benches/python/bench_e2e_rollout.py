"""T steps of N CartPole-v1 environments end to end: step, store and compute advantages.

The actions, values and log-probabilities are random numbers that are drawn before the clock starts,
so that no policy is measured. Only `collect_rollout` draws its actions while the clock runs. The
rollouts store observations, actions, rewards, `terminated`, `truncated`, values and
log-probabilities, with real numbers in float32. Libraries without a buffer use NumPy arrays.
Libraries without an advantage estimator in Python use the fastest NumPy estimator of
`bench_gae.py`, or the usual loop of PPO programs in subjects named "plain GAE". PufferLib's own
estimator cannot be used: it is a torch operator that is not compiled in PufferLib's wheel, and it
expects environment-major arrays with rewards one step later. The advantages of all rollouts are
checked against the loop, and their observations against the equations of motion.
"""

from __future__ import annotations

import importlib
import sys
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from bench_env_stepping import pufferlib_cartpole
from bench_gae import VectorizedGae, reference
from classic_control import CARTPOLE, Array, next_observation
from side_by_side import Benchmark, Row, Subject, run, swept
from trajectories import GAMMA, LAMBDA


@dataclass
class PolicyOutputs:
    """Outputs of a policy: actions, values and log-probabilities (T, N), last values (N,)."""

    actions: Array
    values: Array
    log_probs: Array
    last_values: Array


def random_outputs(steps: int, num_envs: int, dtype: Any = np.int64) -> PolicyOutputs:
    """Return random actions of a `dtype` and normal values."""
    rng = np.random.default_rng(7)
    shape = (steps, num_envs)
    values = rng.standard_normal(shape).astype(np.float32)
    log_probs = np.full(shape, np.log(0.5), np.float32)
    last_values = rng.standard_normal(num_envs).astype(np.float32)
    return PolicyOutputs(rng.integers(0, 2, shape).astype(dtype), values, log_probs, last_values)


class Arrays:
    """Rollout in time-major NumPy arrays."""

    def __init__(self, steps: int, num_envs: int, outputs: PolicyOutputs) -> None:
        shape = (steps, num_envs)
        self.obs = np.empty((steps + 1, num_envs, 4), np.float32)
        self.rewards = np.empty(shape, np.float32)
        self.terminated, self.truncated = np.empty(shape, bool), np.empty(shape, bool)
        self.actions = np.empty_like(outputs.actions)
        self.values, self.log_probs = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self.advantages = self.returns = np.empty(shape, np.float32)
        # Rows are looked up once, because a lookup takes as long as a copy.
        target_rows = zip(self.actions, self.values, self.log_probs, strict=True)
        source_rows = zip(outputs.actions, outputs.values, outputs.log_probs, strict=True)
        self._outputs = [(*a, *b) for a, b in zip(target_rows, source_rows, strict=True)]
        results = (self.obs[1:], self.rewards, self.terminated, self.truncated)
        self._results = list(zip(*results, strict=True))

    def store(self, t: int) -> None:
        """Store the policy outputs of row t."""
        actions, values, log_probs, next_actions, next_values, next_log_probs = self._outputs[t]
        actions[:] = next_actions
        values[:] = next_values
        log_probs[:] = next_log_probs

    def store_results(self, t: int, obs: Array, rewards: Array, terminated: Array, truncated: Array) -> None:
        """Store the environment results of row t."""
        obs_row, rewards_row, terminated_row, truncated_row = self._results[t]
        obs_row[:] = obs
        rewards_row[:] = rewards
        terminated_row[:] = terminated
        truncated_row[:] = truncated


def check(rollout: Any, last_values: Array, next_step: bool = False) -> None:
    """Raise AssertionError unless advantages and observations are correct."""
    dones = np.asarray(rollout.terminated) | np.asarray(rollout.truncated)
    if np.asarray(rollout.truncated).any():
        raise AssertionError("a random policy balanced a pole to the time limit")
    expected = reference(rollout.rewards, rollout.values, dones, last_values, np.float64)
    for got, expected_values in zip((rollout.advantages, rollout.returns), expected, strict=True):
        np.testing.assert_allclose(got, expected_values, rtol=1e-4, atol=1e-3, err_msg="wrong advantages")
    obs, actions = np.asarray(rollout.obs), np.asarray(rollout.actions)
    comparable = ~dones[:-1]
    if next_step:
        comparable[1:] &= ~dones[:-2]
    for t in range(min(len(comparable), 64)):
        expected_values, _ = next_observation(CARTPOLE, obs[t], actions[t])
        rows = comparable[t]
        np.testing.assert_allclose(obs[t + 1][rows], expected_values[rows], atol=1e-4, err_msg="wrong steps")


def rlox_buffer(steps: int, num_envs: int) -> timeit.Timer:
    """Time `RolloutBuffer` with one call per step, as trainers use it."""
    import rlox

    outputs = random_outputs(steps, num_envs)
    env = rlox.VecEnv(n=num_envs, seed=0, env_id=CARTPOLE)
    buffer = rlox.RolloutBuffer(steps, num_envs, (4,))
    rows = list(zip(range(steps), outputs.actions, outputs.log_probs, outputs.values, strict=True))

    def collect() -> None:
        env.begin_rollout(buffer)
        for t, actions, log_probs, values in rows:
            env.step_rollout(buffer, t, actions, log_probs, values)
        final_values = np.zeros(len(buffer.final_index), np.float32)
        buffer.finish(outputs.last_values, GAMMA, LAMBDA, final_values)

    collect()
    check(buffer, outputs.last_values)
    return timeit.Timer(collect)


def rlox_collect(steps: int, num_envs: int) -> timeit.Timer:
    """Time `collect_rollout`, which creates a buffer and draws actions."""
    import rlox

    env = rlox.VecEnv(n=num_envs, seed=0, env_id=CARTPOLE)
    check(rlox.collect_rollout(env, None, steps), np.zeros(num_envs))
    return timeit.Timer("collect(env, None, n)", globals={"collect": rlox.collect_rollout, "env": env, "n": steps})


def rlox_arrays(steps: int, num_envs: int) -> timeit.Timer:
    """Time `step_into` with NumPy arrays, then `compute_gae`."""
    import rlox

    outputs, env = random_outputs(steps, num_envs), rlox.VecEnv(n=num_envs, seed=0, env_id=CARTPOLE)
    rollout, rewards = Arrays(steps, num_envs, outputs), np.empty((steps, num_envs))
    out = np.empty_like(rollout.rewards), np.empty_like(rollout.rewards)
    rows = list(
        zip(range(steps), outputs.actions, rollout.obs[1:], rewards, rollout.terminated, rollout.truncated, strict=True)
    )
    rollout.obs[-1] = env.reset_all()

    def collect() -> None:
        rollout.obs[0] = rollout.obs[-1]
        for t, actions, *results in rows:
            rollout.store(t)
            env.step_into(actions, *results)
        rollout.rewards[:] = rewards
        dones = rollout.terminated | rollout.truncated
        arrays = (rollout.rewards, rollout.values, dones, outputs.last_values)
        rollout.advantages, rollout.returns = rlox.compute_gae(*arrays, GAMMA, LAMBDA, out=out)

    collect()
    check(rollout, outputs.last_values)
    return timeit.Timer(collect)


def published_rlox(steps: int, num_envs: int, numpy: bool = False) -> timeit.Timer:
    """Time rlox 1.2.0: `step_all`, NumPy arrays, and its float32 estimator or that of NumPy."""
    rlox: Any = importlib.import_module("rlox")  # rlox 1.2.0 has the same import name

    outputs, env = random_outputs(steps, num_envs, np.uint32), rlox.VecEnv(num_envs, 0, CARTPOLE)
    rollout = Arrays(steps, num_envs, outputs)
    rollout.obs[-1] = env.reset_all()

    def batched(rewards: Array, values: Array, flags: Array, last_values: Array) -> Any:
        dones = flags.astype(np.float32)
        flat = [np.ascontiguousarray(x.T).reshape(-1) for x in (rewards, values, dones)]
        results = rlox.compute_gae_batched_f32(*flat, last_values, steps, GAMMA, LAMBDA)
        return (np.ascontiguousarray(x.reshape(num_envs, steps).T) for x in results)

    estimate: Any = VectorizedGae(steps, num_envs, np.float32, reuse=True) if numpy else batched
    rows = list(outputs.actions)

    def collect() -> None:
        rollout.obs[0] = rollout.obs[-1]
        for t, actions in enumerate(rows):
            rollout.store(t)
            result = env.step_all(actions)
            rollout.store_results(t, result["obs"], result["rewards"], result["terminated"], result["truncated"])
        dones = rollout.terminated | rollout.truncated
        rollout.advantages, rollout.returns = estimate(rollout.rewards, rollout.values, dones, outputs.last_values)

    collect()
    check(rollout, outputs.last_values)
    return timeit.Timer(collect)


def with_arrays(first: Array, step: Callable[[Array], Any], outputs: PolicyOutputs, plain: bool) -> timeit.Timer:
    """Time a `step` like Gymnasium's, NumPy arrays, and the fastest or the plain NumPy estimator."""
    steps, num_envs = outputs.actions.shape
    rollout, rows = Arrays(steps, num_envs, outputs), list(outputs.actions)
    rollout.obs[-1] = first
    estimate: Any = reference if plain else VectorizedGae(steps, num_envs, np.float32, reuse=True)

    def collect() -> None:
        rollout.obs[0] = rollout.obs[-1]
        for t, actions in enumerate(rows):
            rollout.store(t)
            rollout.store_results(t, *step(actions)[:4])
        dones = rollout.terminated | rollout.truncated
        rollout.advantages, rollout.returns = estimate(rollout.rewards, rollout.values, dones, outputs.last_values)

    collect()
    check(rollout, outputs.last_values, next_step=True)
    return timeit.Timer(collect)


def gymnasium(steps: int, num_envs: int, mode: str, plain: bool = False) -> timeit.Timer:
    """Time Gymnasium's loop over environments or its NumPy environment."""
    import gymnasium as gym

    env = gym.make_vec(CARTPOLE, num_envs, vectorization_mode=mode)
    return with_arrays(env.reset()[0], env.step, random_outputs(steps, num_envs), plain)


def envpool(steps: int, num_envs: int, workers: int) -> timeit.Timer:
    """Time EnvPool in its synchronous mode."""
    import envpool

    env = envpool.make(CARTPOLE, "gymnasium", num_envs=num_envs, num_threads=workers, seed=0)
    outputs = random_outputs(steps, num_envs, np.int32)
    return with_arrays(env.reset()[0], env.step, outputs, plain=False)


def pufferlib(steps: int, num_envs: int, plain: bool = False) -> timeit.Timer:
    """Time PufferLib's CartPole, which differs from Gymnasium's (see `bench_env_stepping.py`).

    The benchmark calls the C function inside `step`.
    """
    env = pufferlib_cartpole(num_envs)
    results = env.observations, env.rewards, env.terminals, env.truncations
    c_step = sys.modules["pufferlib.ocean.cartpole.binding"].vec_step

    def step(actions: Array) -> Any:
        env.actions[:] = actions
        c_step(env.c_envs)
        return results

    return with_arrays(env.reset()[0], step, random_outputs(steps, num_envs, np.float32), plain)


def sb3(steps: int, num_envs: int) -> timeit.Timer:
    """Time Stable-Baselines3's environments and its `RolloutBuffer`."""
    import gymnasium as gym
    import torch
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    env = DummyVecEnv([lambda: gym.make(CARTPOLE)] * num_envs)
    buffer = RolloutBuffer(steps, env.observation_space, env.action_space, "cpu", LAMBDA, GAMMA, num_envs)
    outputs = random_outputs(steps, num_envs)
    values, log_probs = (torch.from_numpy(outputs.values)[..., None], torch.from_numpy(outputs.log_probs))
    last_values = torch.from_numpy(outputs.last_values)
    state: dict[str, Array] = {"obs": env.reset(), "starts": np.ones(num_envs, bool)}

    def collect() -> None:
        buffer.reset()
        obs, starts = state["obs"], state["starts"]
        for t, actions in enumerate(outputs.actions):
            following, rewards, dones, _ = env.step(actions)
            buffer.add(obs, actions[:, None], rewards, starts, values[t], log_probs[t])
            obs, starts = following, dones
        buffer.compute_returns_and_advantage(last_values, starts)
        state.update(obs=obs, starts=starts)

    collect()
    rollout = Arrays(steps, num_envs, outputs)
    rollout.obs[:-1], rollout.obs[-1], rollout.actions = (buffer.observations, state["obs"], outputs.actions)
    rollout.terminated[:-1], rollout.terminated[-1] = buffer.episode_starts[1:], state["starts"]
    rollout.truncated[:] = False
    rollout.rewards, rollout.values = buffer.rewards, buffer.values
    rollout.advantages, rollout.returns = buffer.advantages, buffer.returns
    check(rollout, outputs.last_values)
    return timeit.Timer(collect)


NUMPY_MODE: dict[str, Any] = {"mode": "vector_entry_point"}
SUBJECTS = [
    *swept(Subject("rlox RolloutBuffer", "rlox_buffer")),
    *swept(Subject("rlox collect_rollout", "rlox_collect", work="draws actions")),
    *swept(Subject("rlox step_into and compute_gae", "rlox_arrays")),
    *swept(Subject("rlox 1.2.0 step_all and arrays", "published_rlox", "rlox-1.2.0")),
    *swept(Subject("rlox 1.2.0 step_all, NumPy GAE", "published_rlox", "rlox-1.2.0", {"numpy": True})),
    Subject("PufferLib and arrays", "pufferlib", "pufferlib"),
    Subject("PufferLib and arrays, plain GAE", "pufferlib", "pufferlib", {"plain": True}),
    Subject("EnvPool and arrays, 1 worker", "envpool", "envpool", {"workers": 1}),
    Subject("EnvPool and arrays, 2 workers", "envpool", "envpool", {"workers": 2}),
    Subject("Gymnasium NumPy and arrays", "gymnasium", "gymnasium", NUMPY_MODE),
    Subject("Gymnasium NumPy and arrays, plain GAE", "gymnasium", "gymnasium", {**NUMPY_MODE, "plain": True}),
    Subject("Gymnasium sync and arrays", "gymnasium", "gymnasium", {"mode": "sync"}),
    Subject("SB3 DummyVecEnv and RolloutBuffer", "sb3", "sb3"),
]


def rows(quick: bool) -> list[Row]:
    """Return rows of N x T steps."""
    return [
        Row(f"rollout {n}x{steps}", {"steps": steps, "num_envs": n}, SUBJECTS, n * steps)
        for n, steps in ([(8, 64)] if quick else [(256, 2048), (64, 512), (16, 256)])
    ]


BENCHMARK = Benchmark("bench_e2e_rollout", "Rollouts from end to end", rows)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
