"""DQN, SAC and TD3 go from networks in Rust to torch and back with all that they have."""

import gymnasium as gym
import numpy as np
import pytest

from masked_envs import Doors
from rlox import ArgumentError
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer

SMALL = {
    "num_envs": 2,
    "learning_starts": 10,
    "batch_size": 16,
    "buffer_size": 90,
    "net_arch": (16,),
    "train_freq": 4,
    "gradient_steps": 2,
    "runs_dir": None,
}
SELDOM = {"train_freq": 1, "gradient_steps": 1, "utd_ratio": 0.1}
RAINBOW = {"double": True, "dueling": True, "prioritized": True, "n_steps": 3}


class Seen(gym.Env):
    """Any observation of a space; episodes of five steps."""

    def __init__(self, space, actions=None):
        self.observation_space = space
        self.action_space = actions or gym.spaces.Box(-2, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), float(self.t), self.t == 5, False, {}


SPACES = {
    "numbers of two axes": gym.spaces.Box(-1, 1, (2, 3), np.float32),
    "bytes": gym.spaces.Box(0, 9, (2,), np.uint8),
    "float64": gym.spaces.Box(-1, 1, (2,), np.float64),
    "an integer": gym.spaces.Discrete(5, start=2),
    "integers": gym.spaces.MultiDiscrete([[3, 4], [2, 5]]),
    "flags": gym.spaces.MultiBinary(3),
}
CASES = {
    "dqn": (DQNTrainer, "CartPole-v1", {"target_update_interval": 7}),
    "dqn, all options": (DQNTrainer, "CartPole-v1", RAINBOW),
    "dqn, masks": (DQNTrainer, Doors, {"action_masks": True}),
    "sac": (SACTrainer, "Pendulum-v1", {"action_noise": OrnsteinUhlenbeckNoise(0.3)}),
    "sac, set": (
        SACTrainer,
        "Pendulum-v1",
        {"ent_coef": 0.2, "gradient_steps": 1, "utd_ratio": 0.3},
    ),
    "sac, gSDE": (SACTrainer, "Pendulum-v1", {"use_sde": True, "sde_sample_freq": 3}),
    "td3": (
        TD3Trainer,
        "Pendulum-v1",
        {"action_noise": GaussianNoise(0.2), "normalize_obs": True, "normalize_reward": True},
    ),
    **{f"td3, {name}": (TD3Trainer, lambda s=s: Seen(s), {}) for name, s in SPACES.items()},
}


def crossed(trainer, env, folder, to):
    trainer.save(folder)
    given = {} if isinstance(env, str) else {"env": env}
    return type(trainer).load(folder, backend=to, runs_dir=None, **given)


def same(ours, theirs, but=()):
    assert {*ours} - {*but} == {*theirs} - {*but}
    for name in {*ours} - {*but}:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
        assert ours[name].dtype == theirs[name].dtype, name


@pytest.mark.parametrize("saved", ["native", "torch"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:environment:UserWarning")  # new episodes
def test_a_checkpoint_goes_on_on_the_other_backend_and_back(case, saved, tmp_path):
    kind, env, settings = CASES[case]
    asked = "torch" if saved == "native" else "native"
    one = kind(env, 1, backend=saved, **{**SMALL, **settings})
    one.train(120)
    two = crossed(one, env, tmp_path / "two", asked)
    back = crossed(two, env, tmp_path / "back", saved)
    assert [x.learner.backend for x in (one, two, back)] == [saved, asked, saved]
    assert one.config == two.config == back.config
    there, again, first = (x.learner.state() for x in (two, back, one))
    for part in ("networks", "optimizer", "normalizer", "environment"):
        same(getattr(there, part), getattr(first, part))
    same(again.replay, first.replay, but=["stream"])
    assert len(two.learner.replay) == len(one.learner.replay) > 30
    for x in (there, again):
        for name in ("timesteps", "updates", "episodes", "progress"):
            assert x.counters[name] == first.counters[name]
        np.testing.assert_allclose(x.counters["noise"], first.counters["noise"], rtol=1e-6)
        for name in ("resets", "iterations", "predictions", "minibatches"):
            assert x.streams[name] == first.streams[name]
    space = one.env.single_observation_space
    space.seed(0)
    seen = [one.learner.replay.buffer.sample(8, 1)["obs"]] if isinstance(env, str) else []
    seen += [np.stack([space.sample() for _ in range(8)])]
    for obs in seen:
        np.testing.assert_allclose(two.predict(obs), one.predict(obs), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(back.predict(obs), one.predict(obs))
    assert two.train(20)["timesteps"] >= 140
    assert two.learner.updates > one.learner.updates


@pytest.mark.parametrize("saved", ["native", "torch"])
@pytest.mark.parametrize("kind", [DQNTrainer, SACTrainer, TD3Trainer])
def test_what_was_learned_last_is_told_on_both(kind, saved, tmp_path):
    env = "CartPole-v1" if kind is DQNTrainer else "Pendulum-v1"
    one = kind(env, 1, backend=saved, **SMALL | SELDOM)
    said = {}
    one.train(40, callbacks=[lambda _, metrics: said.update(metrics)])
    two = crossed(one, env, tmp_path / "two", "torch" if saved == "native" else "native")
    again = two.learner.iterate()  # a fifth of a minibatch is due: nothing is learned
    assert again["train/n_updates"] == said["train/n_updates"]
    for name in said:
        losses = ("loss", "critic_loss", "actor_loss", "ent_coef", "ent_coef_loss")
        if name.removeprefix("train/") in losses and not np.isnan(said[name]):
            assert again[name] == pytest.approx(said[name])


def test_a_checkpoint_of_before_the_first_step_goes_over(tmp_path):
    one = DQNTrainer("CartPole-v1", 1, backend="native", **SMALL)
    two = crossed(one, "CartPole-v1", tmp_path / "two", "torch")
    assert (two.timesteps, len(two.learner.replay)) == (0, 0)
    back = crossed(two, "CartPole-v1", tmp_path / "back", "native")
    assert back.train(60)["timesteps"] >= 60


def test_environments_of_a_worker_each_draw_from_streams_of_their_own(tmp_path):
    one = SACTrainer("Pendulum-v1", 1, backend="torch", **SMALL)
    streams = crossed(one, "Pendulum-v1", tmp_path / "two", "native").learner.state().streams
    apart = [streams[name]["state"]["state"] for name in ("actions.0", "actions.1", "learning")]
    assert len({*apart, streams["minibatches"]["state"]["state"]}) == 4


def stacked():
    return gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 4)


def test_checkpoints_with_stacked_frames_stay_on_torch(tmp_path):
    trainer = DQNTrainer(stacked, 1, backend="torch", frame_stack=4, **SMALL)
    trainer.train(40)
    with pytest.raises(ArgumentError) as raised:
        crossed(trainer, stacked, tmp_path / "saved", "native")
    assert raised.value.argument == "frame_stack"


def test_settings_that_only_torch_has_are_named(tmp_path):
    one = SACTrainer("Pendulum-v1", 1, backend="torch", activation="elu", **SMALL)
    with pytest.raises(ValueError, match=r'^activation: expected .*; pass backend="torch"$'):
        crossed(one, "Pendulum-v1", tmp_path / "saved", "native")
