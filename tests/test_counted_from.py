"""Discrete spaces whose first value is not 0, in functions and in networks."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlox import ArgumentError, collect_rollout, make_vec
from rlox.trainers import A2CTrainer
from support.envs import Samples
from support.refusals import refuses

PAIR = spaces.MultiDiscrete([2, 3], start=[1, -4])
OBS_SPACES = {
    "Discrete": spaces.Discrete(3, start=5),
    "MultiDiscrete": PAIR,
    "MultiBinary": spaces.MultiBinary(2),
    "Dict": spaces.Dict(at=spaces.Discrete(3, start=5), of=spaces.Tuple([PAIR])),
}
ACTION_SPACES = {"Discrete": spaces.Discrete(3, start=1), "MultiDiscrete": PAIR}


@pytest.mark.parametrize("action_space", ACTION_SPACES.values(), ids=ACTION_SPACES)
@pytest.mark.parametrize("obs_space", OBS_SPACES.values(), ids=OBS_SPACES)
def test_policy_functions_use_the_values_of_the_spaces(obs_space, action_space):
    env, actions = make_vec(lambda: Samples(obs_space, action_space), 2, seed=0), []

    def policy(obs):
        batch_space = gym.vector.utils.batch_space(obs_space, 2)
        rows = [*gym.vector.utils.iterate(batch_space, obs)]
        assert all(obs_space.contains(row) for row in rows)
        actions.append(np.stack([action_space.sample() for _ in rows]))
        return actions[-1], np.zeros(len(rows)), np.zeros(len(rows))

    batch = collect_rollout(env, policy, 8)
    applied = [[each.unwrapped.actions[t] for each in env.unwrapped.envs] for t in range(8)]
    assert applied == np.stack(actions[:8]).tolist()
    assert (batch.actions + action_space.start).tolist() == applied


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("action_space", ACTION_SPACES.values(), ids=ACTION_SPACES)
@pytest.mark.parametrize("obs_space", ["Discrete", "MultiDiscrete"])
def test_predict_can_collect_rollouts(obs_space, action_space, backend):
    make_env, predicted = (lambda: Samples(OBS_SPACES[obs_space], action_space)), []
    trainer = A2CTrainer(make_env, 0, backend=backend, num_envs=2, runs_dir=None)
    env = make_vec(make_env, 2, seed=0)

    def policy(obs):
        predicted.append(trainer.predict(obs, deterministic=False))
        return predicted[-1]

    batch = collect_rollout(env, policy, 20)
    assert (batch.actions + action_space.start).tolist() == np.stack(predicted[:20]).tolist()
    assert collect_rollout(env, trainer.predict, 4).actions.min() >= 0


def test_collect_rollout_rejects_actions_outside_the_action_space():
    env = make_vec(lambda: Samples(OBS_SPACES["Discrete"], ACTION_SPACES["Discrete"]), 2, seed=0)
    with refuses(ArgumentError, "actions", env=1) as raised:
        collect_rollout(env, lambda obs: [1, 0] if len(obs) else None, 2)
    assert "[1, 4)" in raised.value.expected
    assert [each.unwrapped.actions for each in env.unwrapped.envs] == [[], []]


def test_custom_policies_receive_and_return_zero_based_values():
    torch = pytest.importorskip("torch")

    class EchoPolicy(torch.nn.Module):
        """Return the observations as actions."""

        def get_action_and_logprob(self, obs):
            assert obs.dtype == torch.int64
            return obs, torch.zeros(len(obs))

        def get_value(self, obs):
            return torch.zeros(len(obs))

    env = make_vec(lambda: Samples(OBS_SPACES["Discrete"], ACTION_SPACES["Discrete"]), 2, seed=0)
    batch = collect_rollout(env, EchoPolicy(), 12)
    assert np.array_equal(batch.actions, batch.obs)
    assert set(batch.obs.ravel()) == {0, 1, 2}
