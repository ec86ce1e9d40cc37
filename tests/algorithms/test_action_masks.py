"""Action masks of PPO, A2C and DQN: actions, predictions, targets and rejected masks."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlox import ArgumentError, VecEnv, make_vec
from rlox._rlox import network_backends
from rlox.policies import MlpPolicy
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer
from support.masked_envs import Doors, Endless, Locks, Method, Reused, Switches
from support.rejections import expect_rejection, rejections, rejects

NAMES = ["PPO", "A2C"]
TRAINERS = {"PPO": PPOTrainer, "A2C": A2CTrainer}
SMALL = {"num_envs": 4, "n_steps": 16, "runs_dir": None, "action_masks": True}
MODES = pytest.mark.parametrize("mode", list(AutoresetMode))
BACKENDS = ["native", "torch"]
BOTH = pytest.mark.parametrize("backend", BACKENDS)


class Listed(Doors):
    """`Doors` that report the mask as a list."""

    def _state(self):
        obs, infos = super()._state()
        return obs, {"action_mask": infos["action_mask"].tolist()}


@pytest.mark.parametrize("env", [Doors, Method, Listed])
@MODES
@pytest.mark.parametrize("name", NAMES)
def test_only_unlocked_doors_are_opened(name, mode, env):
    kwargs = {**SMALL, "env_kwargs": {"autoreset_mode": mode.value}, "backend": "torch"}
    trainer = TRAINERS[name](env, 0, **kwargs)
    trainer.train(400)
    buffer = trainer.learner.buffer
    masks = buffer.field("action_masks")
    chosen = np.take_along_axis(masks, buffer.actions[..., None], 2)[..., 0]
    assert chosen.all()
    assert set(masks[buffer.valid].sum(1)) == {2, 3}
    # Initially the two or three allowed actions have equal probabilities.
    assert (np.exp(buffer.log_probs[buffer.valid]) > 0.25).all()
    assert np.isfinite(buffer.log_probs).all()


@pytest.mark.parametrize("name", NAMES)
def test_locked_doors_are_opened_without_masks(name):
    trainer = TRAINERS[name](Doors, 0, **{**SMALL, "action_masks": False})
    with pytest.raises(AssertionError, match="is locked"):
        trainer.train(400)


class Pick(Doors):
    """Environment that rewards the first allowed action; observations do not contain the mask."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.MultiDiscrete([3, 3])

    def _state(self):
        self.open = np.arange(3) != self.np_random.integers(3, size=(2, 1))
        return np.zeros(1, np.float32), {"action_mask": self.open.ravel()}

    def step(self, action):
        assert self.open[[0, 1], action].all()
        reward = float(np.mean(action == self.open.argmax(1)))
        self.at += 1
        obs, infos = self._state()
        return obs, reward, False, self.at == 10, infos


@pytest.mark.parametrize("backend", ["auto", "torch", *network_backends()[1:]])
@pytest.mark.parametrize("name", NAMES)
def test_masked_actions_are_learned_and_respected_in_evaluation(name, backend):
    settings = {"gamma": 0.0, "learning_rate": 3e-3, "num_envs": 8, "runs_dir": None}
    settings |= {"n_steps": 64} if name == "PPO" else {}
    trainer = TRAINERS[name](Pick, 0, backend=backend, action_masks=True, **settings)
    trainer.train(12_000 if name == "PPO" else 30_000)
    assert trainer.evaluate(20)["mean_reward"] >= 9.5
    assert trainer.evaluate(20, deterministic=False)["mean_reward"] > 7.0


def test_masks_of_gymnasiums_taxi_are_used():
    env = "Taxi-v3" if "Taxi-v3" in gym.registry else "Taxi-v4"
    trainer = PPOTrainer(env, 0, backend="torch", **SMALL)
    trainer.train(128)
    masks = trainer.learner.buffer.field("action_masks")
    assert masks.shape == (16, 4, 6)
    assert not masks.all()


@pytest.mark.parametrize("deterministic", [True, False])
def test_predictions_respect_masks(deterministic):
    trainer = PPOTrainer(Doors, 0, **SMALL)
    masks = np.eye(6, dtype=bool)
    obs = np.zeros((6, 6), np.float32)
    actions = trainer.predict(obs, deterministic, action_masks=masks)
    assert actions.tolist() == [10, 11, 12, 13, 14, 15]
    assert trainer.predict(obs[0], deterministic, action_masks=masks[3]) == 13
    for wrong in (masks[:, :5], np.zeros((6, 6), bool), masks[:2]):
        with rejects(ArgumentError, "action_masks"):
            trainer.predict(obs, action_masks=wrong)


@pytest.mark.parametrize("backend", [*network_backends(), "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_multi_binary_predictions_respect_masks(name, backend):
    trainer = TRAINERS[name](Switches, 0, backend=backend, **{**SMALL, "num_envs": 2})
    trainer.train(200)
    masks = np.array([[0, 1, 1, 0, 1, 1, 1, 0]], bool)
    for deterministic in (True, False):
        (action,) = trainer.predict(np.zeros((1, 8)), deterministic, action_masks=masks)
        assert action.ravel()[[0, 1, 3]].tolist() == [1, 0, 0]
    assert trainer.evaluate(4)["mean_reward"] >= 0


def test_masked_distributions_have_no_probability_for_forbidden_actions():
    policy = MlpPolicy(spaces.Box(-1, 1, (2,)), spaces.Discrete(4))
    obs, mask = torch.zeros(1, 2), torch.tensor([[True, False, True, False]])
    log_prob, entropy, _ = policy.evaluate_actions(obs, torch.tensor([0]), mask)
    allowed = policy.actor(policy.features(obs))[0, [0, 2]].log_softmax(0)
    assert torch.allclose(log_prob[0], allowed[0])
    assert torch.allclose(entropy[0], -(allowed.exp() * allowed).sum())
    loss = entropy.sum() + log_prob.sum()
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in policy.parameters())


def doors_with_mask(mask):
    """Return a class of `Doors` with a constant mask, or without a mask if `mask` is None."""

    class Masked(Doors):
        def _state(self):
            return super()._state()[0], {} if mask is None else {"action_mask": np.array(mask)}

    return Masked


def train(env, **settings):
    PPOTrainer(env, 0, **{**SMALL, **settings}).train(64)


@rejections(
    (lambda: train("CartPole-v1"), ArgumentError, "action_masks"),
    (lambda: train("Pendulum-v1"), ArgumentError, "action_masks"),
    (lambda: train(doors_with_mask(None)), ArgumentError, "action_masks"),
    (lambda: VecEnv(1).action_masks(), ArgumentError, "action_masks", "in a wrapper"),
    (lambda: train(doors_with_mask([0] * 6)), ArgumentError, "action_mask"),
    (lambda: train(doors_with_mask([1] * 5)), ArgumentError, "action_mask"),
)
def test_missing_and_invalid_masks_are_rejected(rejection):
    expect_rejection(rejection)


def test_masked_resets_do_not_change_masks_of_other_environments():
    env = make_vec(Doors, 3, seed=0, autoreset_mode=AutoresetMode.DISABLED)
    env.reset(seed=0)
    before = env.action_masks()
    env.reset(options={"reset_mask": np.array([False, True, False])})
    after = env.action_masks()
    assert np.array_equal(before[[0, 2]], after[[0, 2]])
    assert after[1].sum() in (2, 3)


@MODES
def test_masks_of_multi_discrete_actions_may_be_tuples(mode):
    PPOTrainer(Locks, 0, env_kwargs={"autoreset_mode": mode.value}, **SMALL).train(400)


DQN = {"learning_starts": 8, "train_freq": 1, "runs_dir": None, "action_masks": True}
UNMASKED = pytest.mark.filterwarnings("ignore:action_mask. expected a mask with an allowed action:UserWarning")


def make_dqn(env, backend, mode, **settings):
    kwargs = {"autoreset_mode": mode.value, **settings.pop("env_kwargs", {})}
    return DQNTrainer(env, 0, backend=backend, env_kwargs=kwargs, **{**DQN, **settings})


def learned_value(env, backend, mode, limit, **settings):
    """Return the value of action 0 that DQN learns in `Endless` environments."""
    linear = {"net_arch": (), "learning_rate": 0.1, "tau": 0.2, "target_update_interval": 1}
    settings = {**linear, "gamma": 0.9, "batch_size": 16, **settings}
    trainer = make_dqn(env, backend, mode, env_kwargs={"limit": limit}, **settings)
    trainer.train(400)
    networks = trainer.learner.state().networks
    return float(networks["q_net.0.weight"][0, 0] + networks["q_net.0.bias"][0])


@BOTH
@pytest.mark.parametrize(
    ("mode", "limit", "settings"),
    [
        *((mode, limit, {}) for mode in AutoresetMode for limit in (1000, 5, 1)),
        (AutoresetMode.SAME_STEP, 5, {"n_steps": 3}),
        (AutoresetMode.SAME_STEP, 5, {"prioritized": True}),
        (AutoresetMode.SAME_STEP, 5, {"double": True}),
    ],
)
def test_dqn_bootstraps_truncated_episodes_from_allowed_actions(mode, limit, settings, backend):
    value = learned_value(Endless, backend, mode, limit, **settings)
    assert value == pytest.approx(-10, abs=0.1)


@BOTH
@MODES
@pytest.mark.parametrize("env", [Doors, Method])
def test_dqn_stores_the_mask_of_the_last_state_of_an_episode(env, mode, backend, recwarn):
    trainer = make_dqn(env, backend, mode, num_envs=2)
    trainer.train(200)
    trainer.evaluate(5)  # the environment raises for masked actions
    buffer = trainer.learner.replay.buffer
    batch = buffer.sample(len(buffer), seed=0)
    ended = batch["terminated"] | batch["truncated"]
    assert 10 < ended.sum() < len(ended)
    known = np.ones_like(ended)
    if env is Method and mode is AutoresetMode.SAME_STEP:
        known = ~ended  # the reset has replaced the last state
        assert not batch["next_masks"][ended].any()
        (_,) = [w for w in recwarn if str(w.message).startswith("action_mask: ")]
    # Observations of doors equal their masks, and change with every episode.
    assert np.array_equal(batch["next_masks"][known], batch["next_obs"][known] > 0)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_dqn_stores_a_copy_of_a_mask_that_the_reset_overwrites(vectorization):
    kwargs = {"vectorization_mode": vectorization}
    trainer = make_dqn(Reused, "native", AutoresetMode.SAME_STEP, num_envs=2, env_kwargs=kwargs)
    trainer.train(200)
    buffer = trainer.learner.replay.buffer
    batch = buffer.sample(len(buffer), seed=0)
    assert np.array_equal(batch["next_masks"], batch["next_obs"] > 0)


class Silent(Endless):
    """`Endless` without a mask in the last step of an episode."""

    def step(self, action):
        *rest, truncated, infos = super().step(action)
        return *rest, truncated, {} if truncated else infos


@UNMASKED
@BOTH
@MODES
def test_dqn_ignores_transitions_into_final_states_without_a_mask(mode, backend):
    assert learned_value(Silent, backend, mode, 5) == pytest.approx(-10, abs=0.1)


@UNMASKED
@BOTH
def test_dqn_learns_nothing_from_minibatches_of_ignored_transitions(backend):
    arguments = (Silent, backend, AutoresetMode.SAME_STEP, 1)
    assert len({learned_value(*arguments, learning_rate=rate) for rate in (0.1, 0.2)}) == 1


@UNMASKED
@BOTH
@pytest.mark.parametrize("batch_size", [1, 32])
def test_dqn_lowers_the_priorities_of_ignored_transitions(batch_size, backend):
    kwargs = {"env_kwargs": {"limit": 3}, "prioritized": True, "learning_rate": 0.1}
    kwargs |= {"net_arch": (), "batch_size": batch_size}
    trainer = make_dqn(Silent, backend, AutoresetMode.SAME_STEP, gamma=0.0, **kwargs)
    trainer.train(300)
    priorities = trainer.learner.replay.state()["priorities"]
    assert len(priorities) == 300
    assert np.median(priorities[2::3]) < 0.5  # 1 for transitions that were not sampled
