"""Gymnasium's classic control: random actions, and the equations of motion from observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
CARTPOLE, PENDULUM, ACROBOT = "CartPole-v1", "Pendulum-v1", "Acrobot-v1"
MOUNTAIN_CAR, CONTINUOUS_CAR = "MountainCar-v0", "MountainCarContinuous-v0"

IDS = (CARTPOLE, PENDULUM, ACROBOT, MOUNTAIN_CAR, CONTINUOUS_CAR)
CHOICES = {CARTPOLE: 2, ACROBOT: 3, MOUNTAIN_CAR: 3}
BOUNDS = {PENDULUM: 2.0, CONTINUOUS_CAR: 1.0}


def random_actions(env_id: str, n: int, dtype: Any = np.int64) -> list[Array]:
    """Return actions of 64 steps: (n,) of a `dtype` if discrete, else float32 (n, 1)."""
    rng = np.random.default_rng(7)
    if env_id in CHOICES:
        return [rng.integers(0, CHOICES[env_id], n).astype(dtype) for _ in range(64)]
    bound = BOUNDS[env_id]
    return [rng.uniform(-bound, bound, (n, 1)).astype(np.float32) for _ in range(64)]


def next_observation(env_id: str, obs: Array, action: Array) -> tuple[Array, Array]:
    """Return the next observations and rewards of (n, d) observations inside an episode."""
    motion = {CARTPOLE: cartpole, PENDULUM: pendulum, ACROBOT: acrobot}.get(env_id, mountain_car)
    return motion(obs.astype(float).T, action.reshape(len(obs)))


def cartpole(obs: Array, action: Array) -> tuple[Array, Array]:
    x, speed, angle, turn = obs
    force = np.where(action == 1, 10.0, -10.0)
    pull = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
    turning = 9.8 * np.sin(angle) - np.cos(angle) * pull
    turning /= 0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1)
    moving = pull - 0.05 * turning * np.cos(angle) / 1.1
    state = [x + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning]
    return np.stack(state, 1), np.ones(len(action))


def pendulum(obs: Array, action: Array) -> tuple[Array, Array]:
    cos, sin, turn = obs
    angle, torque = np.arctan2(sin, cos), action.astype(float)
    cost = angle**2 + 0.1 * turn**2 + 0.001 * torque**2
    turn = np.clip(turn + 0.05 * (15 * sin + 3 * torque), -8, 8)
    angle = angle + 0.05 * turn
    return np.stack([np.cos(angle), np.sin(angle), turn], 1), -cost


def acrobot(obs: Array, action: Array) -> tuple[Array, Array]:
    """Make one Runge-Kutta step of 0.2 s. Each link is 1 m long, with a mass of 1 kg in the middle."""
    torque, g = action - 1.0, 9.8

    def slope(state: Array) -> Array:
        first, second, turn1, turn2 = state
        both = 0.25 + 0.5 * np.cos(second) + 1
        inertia = 0.25 + 1.25 + np.cos(second) + 2
        pull2 = 0.5 * g * np.sin(first + second)
        pull1 = pull2 + 1.5 * g * np.sin(first)
        pull1 -= 0.5 * np.sin(second) * turn2 * (turn2 + 2 * turn1)
        turning2 = torque + both / inertia * pull1 - 0.5 * turn1**2 * np.sin(second) - pull2
        turning2 /= 1.25 - both**2 / inertia
        return np.stack([turn1, turn2, -(both * turning2 + pull1) / inertia, turning2])

    state = np.stack([np.arctan2(obs[1], obs[0]), np.arctan2(obs[3], obs[2]), obs[4], obs[5]])
    k1 = slope(state)
    k2 = slope(state + 0.1 * k1)
    k3 = slope(state + 0.1 * k2)
    state = state + 0.2 / 6 * (k1 + 2 * k2 + 2 * k3 + slope(state + 0.2 * k3))
    first, second = state[:2]
    turns = np.clip(state[2:].T, [-4 * np.pi, -9 * np.pi], [4 * np.pi, 9 * np.pi])
    angles = [np.cos(first), np.sin(first), np.cos(second), np.sin(second)]
    return np.hstack([np.stack(angles, 1), turns]), np.full(len(action), -1.0)


def mountain_car(obs: Array, action: Array) -> tuple[Array, Array]:
    """Step either mountain car. The push is 0.001 * (action - 1) if discrete, else 0.0015 * action."""
    x, speed = obs
    if np.issubdtype(action.dtype, np.integer):
        push, rewards = 0.001 * (action.astype(float) - 1), np.full(len(action), -1.0)
    else:
        push, rewards = 0.0015 * action.astype(float), -0.1 * action.astype(float) ** 2
    speed = np.clip(speed + push - 0.0025 * np.cos(3 * x), -0.07, 0.07)
    x = np.clip(x + speed, -1.2, 0.6)
    return np.stack([x, np.where((x == -1.2) & (speed < 0), 0.0, speed)], 1), rewards
