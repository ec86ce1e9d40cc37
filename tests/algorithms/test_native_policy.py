"""Native policies in the hands of several threads, and with arguments that do not fit."""

import threading

import gymnasium as gym
import numpy as np
import pytest

from rlox import ClosedError, RolloutBuffer, make_vec
from rlox._rlox import NativePolicy
from rlox.configs import A2CConfig, PPOConfig
from rlox.native import NativeA2C, NativePPO
from rlox.streams import state_for_native
from rlox.trainers import A2CTrainer

SHAPE = {
    "net_arch": (8,),
    "activation": "tanh",
    "ortho_init": True,
    "shared_trunk": False,
    "use_sde": False,
    "log_std_init": 0.0,
}
NUMBERS = {"kind": "numbers", "shape": (4,)}
TWO = {"kind": "discrete", "n": 2, "start": 0}


def policy(observation=NUMBERS, action=TWO):
    stream = state_for_native(np.random.default_rng(0))
    return NativePolicy(observation, action, stream, SHAPE, "native")


@pytest.mark.timeout(60)
def test_predictions_and_training_with_statistics_do_not_wait_for_each_other():
    config = PPOConfig(num_envs=2, n_steps=64, normalize_obs=True)
    learner = NativePPO(make_vec("CartPole-v1", 2), config, seed=0)
    over, obs = threading.Event(), np.zeros((64, 4), np.float32)

    def predict():
        while not over.is_set():
            learner.predict(obs)

    threads = [threading.Thread(target=predict, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        learner.iterate()
    over.set()
    for thread in threads:
        thread.join()


def test_a_sampled_prediction_leaves_the_noise_of_a_rollout_alone():
    """An environment that asks the policy, as an opponent would."""
    asked, seen = [], []

    class Opponent(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (3,))
        action_space = gym.spaces.Box(-100, 100, (1,))

        def reset(self, *, seed=None, options=None):
            return np.ones(3, np.float32), {}

        def step(self, action):
            seen.append(float(action[0]))
            for learner in asked:
                learner.predict(np.ones(3, np.float32), deterministic=False)
            return np.ones(3, np.float32), 0.0, False, False, {}

    config = PPOConfig(num_envs=1, n_steps=8, use_sde=True, log_std_init=-1.0, batch_size=8)
    learner = NativePPO(make_vec(Opponent, 1), config, seed=0)
    asked.append(learner)
    learner.iterate()
    assert len(set(seen)) == 1  # the same observation, the same noise


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_schedules_start_from_what_the_networks_hold(schedule):
    config = PPOConfig(num_envs=1, n_steps=64, learning_rate=1e-3, lr_schedule=schedule)
    learner = NativePPO(make_vec("CartPole-v1", 1), config, seed=0)
    given = []
    real = learner.policy

    class Noting:
        def ppo(self, buffer, settings):
            given.append(settings["learning_rate"])
            return real.ppo(buffer, settings)

        def __getattr__(self, name):
            return getattr(real, name)

    learner.policy = Noting()
    metrics = learner.iterate(0.3)
    left = 0.7 if schedule == "linear" else 1.0
    assert given == [float(np.float32(1e-3)) * left]
    assert metrics["train/learning_rate"] == 1e-3 * left


def test_only_numbers_that_are_not_finite_are_called_so():
    with pytest.raises(ValueError, match="optimizer_eps: expected a number above 0 in float32"):
        A2CTrainer("CartPole-v1", 0, optimizer_eps=1e-50, backend="native", runs_dir=None)
    learner = NativeA2C(make_vec("CartPole-v1", 2), A2CConfig(num_envs=2), seed=0)
    learner.iterate()
    learner.env.close()
    with pytest.raises(ClosedError):
        learner.iterate()


def test_buffers_of_resets_or_without_advantages_are_no_rollouts():
    learner = NativePPO(make_vec("CartPole-v1", 2), PPOConfig(num_envs=2, n_steps=4), seed=0)
    with pytest.raises(ValueError, match="buffer: expected a finished rollout with transitions"):
        learner.update(1.0)
    resets = RolloutBuffer(1, 2, (4,))
    resets.begin(np.zeros((2, 4)), ended=[True, True])
    flags = np.zeros(2, bool), np.zeros(2, bool)
    resets.record(0, [0, 0], np.zeros(2), np.zeros(2), np.zeros((2, 4)), np.zeros(2), *flags)
    resets.finish(np.zeros(2), 0.9, 0.9)
    learner.buffer = resets
    with pytest.raises(ValueError, match="got one of resets alone"):
        learner.update(1.0)


@pytest.mark.parametrize("counts", [[2], [2, 0], [2, 3, 4]])
def test_counts_that_are_not_the_shapes_are_refused(counts):
    with pytest.raises(ValueError, match="counts: expected a positive count for each integer"):
        policy({"kind": "one_hot", "shape": (2,), "counts": counts})


def test_counts_that_no_machine_holds_are_refused():
    with pytest.raises((ValueError, MemoryError)):
        policy({"kind": "one_hot", "shape": (2,), "counts": [2**63, 2**63 + 4]})


@pytest.mark.parametrize("masks", [np.ones(4), np.ones((4, 1)), np.ones((2, 3)), np.ones((1, 2))])
def test_masks_have_a_row_for_each_observation(masks):
    with pytest.raises(ValueError, match="action_masks: expected shape"):
        policy().predict(np.zeros((2, 4)), None, masks.astype(bool))


def test_many_observations_are_the_same_as_few():
    made, obs = policy(), np.random.default_rng(0).normal(size=(20_000, 4))
    np.testing.assert_array_equal(made.predict(obs)[::1000], [made.predict(x) for x in obs[::1000]])
    np.testing.assert_array_equal(made.predict(obs, 7)[:50], made.predict(obs[:50], 7))
