"""Discrete spaces whose first value is not 0, in functions and in networks."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlox import ArgumentError, collect_rollout, make_vec
from rlox.trainers import A2CTrainer
from support.envs import Samples

SIDES = spaces.MultiDiscrete([2, 3], start=[1, -4])
SEEN = {
    "Discrete": spaces.Discrete(3, start=5),
    "MultiDiscrete": SIDES,
    "MultiBinary": spaces.MultiBinary(2),
    "Dict": spaces.Dict(at=spaces.Discrete(3, start=5), of=spaces.Tuple([SIDES])),
}
DONE = {"Discrete": spaces.Discrete(3, start=1), "MultiDiscrete": SIDES}


@pytest.mark.parametrize("done", DONE.values(), ids=DONE)
@pytest.mark.parametrize("seen", SEEN.values(), ids=SEEN)
def test_policy_functions_use_the_values_of_the_environment(seen, done):
    env, given = make_vec(lambda: Samples(seen, done), 2, seed=0), []

    def policy(obs):
        batch_space = gym.vector.utils.batch_space(seen, 2)
        rows = [*gym.vector.utils.iterate(batch_space, obs)]
        assert all(seen.contains(row) for row in rows)
        given.append(np.stack([done.sample() for _ in rows]))
        return given[-1], np.zeros(len(rows)), np.zeros(len(rows))

    batch = collect_rollout(env, policy, 8)
    taken = [[each.unwrapped.actions[t] for each in env.unwrapped.envs] for t in range(8)]
    assert taken == np.stack(given[:8]).tolist()
    assert (batch.actions + done.start).tolist() == taken


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("done", DONE.values(), ids=DONE)
@pytest.mark.parametrize("seen", ["Discrete", "MultiDiscrete"])
def test_predict_is_a_policy_for_rollouts(seen, done, backend):
    make, predicted = (lambda: Samples(SEEN[seen], done)), []
    trainer = A2CTrainer(make, 0, backend=backend, num_envs=2, runs_dir=None)
    env = make_vec(make, 2, seed=0)

    def policy(obs):
        predicted.append(trainer.predict(obs, deterministic=False))
        return predicted[-1]

    batch = collect_rollout(env, policy, 20)
    assert (batch.actions + done.start).tolist() == np.stack(predicted[:20]).tolist()
    assert collect_rollout(env, trainer.predict, 4).actions.min() >= 0


def test_invalid_actions_are_rejected_with_the_range_of_the_environment():
    env = make_vec(lambda: Samples(SEEN["Discrete"], DONE["Discrete"]), 2, seed=0)
    with pytest.raises(ArgumentError) as raised:
        collect_rollout(env, lambda obs: [1, 0] if len(obs) else None, 2)
    assert (raised.value.argument, raised.value.env) == ("actions", 1)
    assert "[1, 4)" in raised.value.expected
    assert [each.unwrapped.actions for each in env.unwrapped.envs] == [[], []]


def test_networks_count_from_0():
    torch = pytest.importorskip("torch")

    class Follows(torch.nn.Module):
        """Return the observations as actions."""

        def get_action_and_logprob(self, obs):
            assert obs.dtype == torch.int64
            return obs, torch.zeros(len(obs))

        def get_value(self, obs):
            return torch.zeros(len(obs))

    env = make_vec(lambda: Samples(SEEN["Discrete"], DONE["Discrete"]), 2, seed=0)
    batch = collect_rollout(env, Follows(), 12)
    assert np.array_equal(batch.actions, batch.obs)
    assert set(batch.obs.ravel()) == {0, 1, 2}
