"""T steps of N CartPole-v1 environments from end to end: step, store, and compute advantages.

The actions are random and made before, as are the values and log-probabilities that a policy
would have given, so that no policy is measured; `collect_rollout` alone draws its actions itself.
What is stored: observations, actions, rewards, both flags, values and log-probabilities, in
float32 where they are real numbers. Libraries without a buffer get NumPy arrays; those without an
estimator in Python the fastest of NumPy's in `bench_gae.py`, and where they are named "plain GAE"
the loop that PPO programs have written instead. PufferLib's own estimator is an operator of torch,
which its wheel does not have compiled, with one row of steps for each environment and the rewards a
step later. All stored rollouts are checked against that loop, and their observations against the
equations of motion.
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
from bench_gae import FewPasses, reference
from classic_control import CARTPOLE, Array, next_observation
from side_by_side import Benchmark, Row, Subject, run, swept
from trajectories import GAMMA, LAMBDA


@dataclass
class Policy:
    """What the policy said: actions, values and log-probabilities (T, N), last values (N,)."""

    actions: Array
    values: Array
    log_probs: Array
    last_values: Array


def policy(steps: int, num_envs: int, dtype: Any = np.int64) -> Policy:
    """Random actions of a `dtype`, normal values."""
    rng = np.random.default_rng(7)
    shape = (steps, num_envs)
    values = rng.standard_normal(shape).astype(np.float32)
    log_probs = np.full(shape, np.log(0.5), np.float32)
    last_values = rng.standard_normal(num_envs).astype(np.float32)
    return Policy(rng.integers(0, 2, shape).astype(dtype), values, log_probs, last_values)


class Arrays:
    """A rollout in NumPy arrays, time-major."""

    def __init__(self, steps: int, num_envs: int, said: Policy) -> None:
        shape = (steps, num_envs)
        self.obs = np.empty((steps + 1, num_envs, 4), np.float32)
        self.rewards = np.empty(shape, np.float32)
        self.terminated, self.truncated = np.empty(shape, bool), np.empty(shape, bool)
        self.actions = np.empty_like(said.actions)
        self.values, self.log_probs = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self.advantages = self.returns = np.empty(shape, np.float32)
        # Rows are found once: finding them costs as much as copying them.
        mine = zip(self.actions, self.values, self.log_probs, strict=True)
        given = zip(said.actions, said.values, said.log_probs, strict=True)
        self._said = [(*a, *b) for a, b in zip(mine, given, strict=True)]
        answers = (self.obs[1:], self.rewards, self.terminated, self.truncated)
        self._answers = list(zip(*answers, strict=True))

    def store(self, t: int) -> None:
        """Row t of what the policy said."""
        actions, values, log_probs, said_actions, said_values, said_log_probs = self._said[t]
        actions[:] = said_actions
        values[:] = said_values
        log_probs[:] = said_log_probs

    def came_back(
        self, t: int, obs: Array, rewards: Array, terminated: Array, truncated: Array
    ) -> None:
        """Row t of what the environments answered."""
        my_obs, my_rewards, my_terminated, my_truncated = self._answers[t]
        my_obs[:] = obs
        my_rewards[:] = rewards
        my_terminated[:] = terminated
        my_truncated[:] = truncated


def check(kept: Any, last_values: Array, next_step: bool = False) -> None:
    """Raises AssertionError unless advantages and observations are what they must be."""
    dones = np.asarray(kept.terminated) | np.asarray(kept.truncated)
    if np.asarray(kept.truncated).any():
        raise AssertionError("a random policy balanced a pole to the time limit")
    expected = reference(kept.rewards, kept.values, dones, last_values, np.float64)
    for got, wanted in zip((kept.advantages, kept.returns), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3, err_msg="wrong advantages")
    obs, actions = np.asarray(kept.obs), np.asarray(kept.actions)
    usual = ~dones[:-1]
    if next_step:
        usual[1:] &= ~dones[:-2]
    for t in range(min(len(usual), 64)):
        wanted, _ = next_observation(CARTPOLE, obs[t], actions[t])
        rows = usual[t]
        np.testing.assert_allclose(obs[t + 1][rows], wanted[rows], atol=1e-4, err_msg="wrong steps")


def rlox_buffer(steps: int, num_envs: int) -> timeit.Timer:
    """`RolloutBuffer`: what the trainers do, one call a step."""
    import rlox

    said = policy(steps, num_envs)
    env = rlox.VecEnv(n=num_envs, seed=0, env_id=CARTPOLE)
    buffer = rlox.RolloutBuffer(steps, num_envs, (4,))
    rows = list(zip(range(steps), said.actions, said.log_probs, said.values, strict=True))

    def collect() -> None:
        env.begin_rollout(buffer)
        for t, actions, log_probs, values in rows:
            env.step_rollout(buffer, t, actions, log_probs, values)
        final_values = np.zeros(len(buffer.final_index), np.float32)
        buffer.finish(said.last_values, GAMMA, LAMBDA, final_values)

    collect()
    check(buffer, said.last_values)
    return timeit.Timer(collect)


def rlox_collect(steps: int, num_envs: int) -> timeit.Timer:
    """`collect_rollout`: one line, a fresh buffer each time, actions drawn."""
    import rlox

    env = rlox.VecEnv(n=num_envs, seed=0, env_id=CARTPOLE)
    check(rlox.collect_rollout(env, None, steps), np.zeros(num_envs))
    return timeit.Timer(
        "collect(env, None, n)", globals={"collect": rlox.collect_rollout, "env": env, "n": steps}
    )


def rlox_arrays(steps: int, num_envs: int) -> timeit.Timer:
    """`step_into` writes into NumPy arrays, then `compute_gae`."""
    import rlox

    said, env = policy(steps, num_envs), rlox.VecEnv(n=num_envs, seed=0, env_id=CARTPOLE)
    kept, rewards = Arrays(steps, num_envs, said), np.empty((steps, num_envs))
    out = np.empty_like(kept.rewards), np.empty_like(kept.rewards)
    rows = list(
        zip(
            range(steps),
            said.actions,
            kept.obs[1:],
            rewards,
            kept.terminated,
            kept.truncated,
            strict=True,
        )
    )
    kept.obs[-1] = env.reset_all()

    def collect() -> None:
        kept.obs[0] = kept.obs[-1]
        for t, actions, *results in rows:
            kept.store(t)
            env.step_into(actions, *results)
        kept.rewards[:] = rewards
        dones = kept.terminated | kept.truncated
        arrays = (kept.rewards, kept.values, dones, said.last_values)
        kept.advantages, kept.returns = rlox.compute_gae(*arrays, GAMMA, LAMBDA, out=out)

    collect()
    check(kept, said.last_values)
    return timeit.Timer(collect)


def published_rlox(steps: int, num_envs: int, numpy: bool = False) -> timeit.Timer:
    """rlox 1.2.0: `step_all`, NumPy arrays, its batched estimator in float32, or NumPy's."""
    rlox: Any = importlib.import_module("rlox")  # another library than ours, of the same name

    said, env = policy(steps, num_envs, np.uint32), rlox.VecEnv(num_envs, 0, CARTPOLE)
    kept = Arrays(steps, num_envs, said)
    kept.obs[-1] = env.reset_all()

    def batched(rewards: Array, values: Array, ends: Array, last_values: Array) -> Any:
        dones = ends.astype(np.float32)
        flat = [np.ascontiguousarray(x.T).reshape(-1) for x in (rewards, values, dones)]
        results = rlox.compute_gae_batched_f32(*flat, last_values, steps, GAMMA, LAMBDA)
        return (np.ascontiguousarray(x.reshape(num_envs, steps).T) for x in results)

    estimate: Any = FewPasses(steps, num_envs, np.float32, reuse=True) if numpy else batched
    rows = list(said.actions)

    def collect() -> None:
        kept.obs[0] = kept.obs[-1]
        for t, actions in enumerate(rows):
            kept.store(t)
            result = env.step_all(actions)
            kept.came_back(
                t, result["obs"], result["rewards"], result["terminated"], result["truncated"]
            )
        dones = kept.terminated | kept.truncated
        kept.advantages, kept.returns = estimate(kept.rewards, kept.values, dones, said.last_values)

    collect()
    check(kept, said.last_values)
    return timeit.Timer(collect)


def with_arrays(
    first: Array, step: Callable[[Array], Any], said: Policy, plain: bool
) -> timeit.Timer:
    """Gymnasium's `step`, NumPy arrays, and NumPy's fastest estimator or the plain one."""
    steps, num_envs = said.actions.shape
    kept, rows = Arrays(steps, num_envs, said), list(said.actions)
    kept.obs[-1] = first
    estimate: Any = reference if plain else FewPasses(steps, num_envs, np.float32, reuse=True)

    def collect() -> None:
        kept.obs[0] = kept.obs[-1]
        for t, actions in enumerate(rows):
            kept.store(t)
            kept.came_back(t, *step(actions)[:4])
        dones = kept.terminated | kept.truncated
        kept.advantages, kept.returns = estimate(kept.rewards, kept.values, dones, said.last_values)

    collect()
    check(kept, said.last_values, next_step=True)
    return timeit.Timer(collect)


def gymnasium(steps: int, num_envs: int, mode: str, plain: bool = False) -> timeit.Timer:
    """Gymnasium's loop over environments, or its NumPy environment."""
    import gymnasium as gym

    env = gym.make_vec(CARTPOLE, num_envs, vectorization_mode=mode)
    return with_arrays(env.reset()[0], env.step, policy(steps, num_envs), plain)


def envpool(steps: int, num_envs: int, workers: int) -> timeit.Timer:
    """EnvPool in its synchronous mode."""
    import envpool

    env = envpool.make(CARTPOLE, "gymnasium", num_envs=num_envs, num_threads=workers, seed=0)
    said = policy(steps, num_envs, np.int32)
    return with_arrays(env.reset()[0], env.step, said, plain=False)


def pufferlib(steps: int, num_envs: int, plain: bool = False) -> timeit.Timer:
    """PufferLib's CartPole, another one than Gymnasium's (`bench_env_stepping.py` says how).

    Its C function is called, which its `step` wraps.
    """
    env = pufferlib_cartpole(num_envs)
    results = env.observations, env.rewards, env.terminals, env.truncations
    c_step = sys.modules["pufferlib.ocean.cartpole.binding"].vec_step

    def step(actions: Array) -> Any:
        env.actions[:] = actions
        c_step(env.c_envs)
        return results

    return with_arrays(env.reset()[0], step, policy(steps, num_envs, np.float32), plain)


def sb3(steps: int, num_envs: int) -> timeit.Timer:
    """Stable-Baselines3's environments and its `RolloutBuffer`."""
    import gymnasium as gym
    import torch
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    env = DummyVecEnv([lambda: gym.make(CARTPOLE)] * num_envs)
    buffer = RolloutBuffer(
        steps, env.observation_space, env.action_space, "cpu", LAMBDA, GAMMA, num_envs
    )
    said = policy(steps, num_envs)
    values, log_probs = torch.from_numpy(said.values)[..., None], torch.from_numpy(said.log_probs)
    last_values = torch.from_numpy(said.last_values)
    state: dict[str, Array] = {"obs": env.reset(), "starts": np.ones(num_envs, bool)}

    def collect() -> None:
        buffer.reset()
        obs, starts = state["obs"], state["starts"]
        for t, actions in enumerate(said.actions):
            following, rewards, dones, _ = env.step(actions)
            buffer.add(obs, actions[:, None], rewards, starts, values[t], log_probs[t])
            obs, starts = following, dones
        buffer.compute_returns_and_advantage(last_values, starts)
        state.update(obs=obs, starts=starts)

    collect()
    kept = Arrays(steps, num_envs, said)
    kept.obs[:-1], kept.obs[-1], kept.actions = buffer.observations, state["obs"], said.actions
    kept.terminated[:-1], kept.terminated[-1] = buffer.episode_starts[1:], state["starts"]
    kept.truncated[:] = False
    kept.rewards, kept.values = buffer.rewards, buffer.values
    kept.advantages, kept.returns = buffer.advantages, buffer.returns
    check(kept, said.last_values)
    return timeit.Timer(collect)


NUMPY_MODE: dict[str, Any] = {"mode": "vector_entry_point"}
SUBJECTS = [
    *swept(Subject("rlox RolloutBuffer", "rlox_buffer")),
    *swept(Subject("rlox collect_rollout", "rlox_collect", work="draws actions")),
    *swept(Subject("rlox step_into and compute_gae", "rlox_arrays")),
    *swept(Subject("rlox 1.2.0 step_all and arrays", "published_rlox", "rlox-1.2.0")),
    *swept(
        Subject("rlox 1.2.0 step_all, NumPy GAE", "published_rlox", "rlox-1.2.0", {"numpy": True})
    ),
    Subject("PufferLib and arrays", "pufferlib", "pufferlib"),
    Subject("PufferLib and arrays, plain GAE", "pufferlib", "pufferlib", {"plain": True}),
    Subject("EnvPool and arrays, 1 worker", "envpool", "envpool", {"workers": 1}),
    Subject("EnvPool and arrays, 2 workers", "envpool", "envpool", {"workers": 2}),
    Subject("Gymnasium NumPy and arrays", "gymnasium", "gymnasium", NUMPY_MODE),
    Subject(
        "Gymnasium NumPy and arrays, plain GAE",
        "gymnasium",
        "gymnasium",
        {**NUMPY_MODE, "plain": True},
    ),
    Subject("Gymnasium sync and arrays", "gymnasium", "gymnasium", {"mode": "sync"}),
    Subject("SB3 DummyVecEnv and RolloutBuffer", "sb3", "sb3"),
]


def rows(quick: bool) -> list[Row]:
    """N x T."""
    return [
        Row(f"rollout {n}x{steps}", {"steps": steps, "num_envs": n}, SUBJECTS, n * steps)
        for n, steps in ([(8, 64)] if quick else [(256, 2048), (64, 512), (16, 256)])
    ]


BENCHMARK = Benchmark("bench_e2e_rollout", "Rollouts from end to end", rows)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
