"""What scripts for Stable-Baselines3 do every day: load without an environment, log, look at it."""

import sys

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox.callbacks import EvalCallback
from rlox.sb3 import A2C, DQN, PPO, SAC, TD3, evaluate_policy
from rlox.sb3.environments import told_id

OBS = np.zeros(4, np.float32)


class Doubled(gym.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


def doubled():
    return Doubled(gym.make("CartPole-v1"))


def ppo(env="CartPole-v1", **keywords):
    return PPO("MlpPolicy", env, n_steps=32, seed=1, policy_kwargs={"net_arch": [8]}, **keywords)


def pendulum(**keywords):
    about = {"buffer_size": 4_000, "learning_starts": 10_000, "seed": 1}
    return SAC("MlpPolicy", "Pendulum-v1", **about, **keywords)


class TestWithoutAnEnvironment:
    @pytest.mark.filterwarnings("ignore:environment. expected environments that go on")
    @pytest.mark.parametrize("make", [gym.make, lambda name: rlox.make_vec(name, 2)])
    def test_an_environment_that_its_id_makes_is_made_again(self, make, tmp_path):
        model = ppo(make("CartPole-v1")).learn(64)
        model.save(tmp_path / "m")
        loaded = PPO.load(tmp_path / "m")
        assert loaded.get_env().num_envs == model.n_envs
        ours, theirs = (m.predict(OBS, deterministic=True)[0] for m in (model, loaded))
        assert ours == theirs
        loaded.learn(64, reset_num_timesteps=False)
        assert loaded.num_timesteps == 128

    def test_others_predict_and_learn_in_what_is_set(self, tmp_path):
        model = ppo(doubled()).learn(64)
        model.save(tmp_path / "m")
        loaded = PPO.load(tmp_path / "m")
        assert loaded.get_env() is None
        obs = np.random.default_rng(0).normal(size=(9, 4))
        ours, theirs = (each.predict(obs, deterministic=True)[0] for each in (model, loaded))
        assert (ours == theirs).all()
        about = ("n_envs", "seed", "observation_space", "num_timesteps", "gamma", "action_space")
        for name in about:
            assert getattr(loaded, name) == getattr(model, name)
        assert evaluate_policy(loaded, "CartPole-v1", 2)[0] > 0
        with pytest.raises(ValueError, match=r"set_env\(env\)"):
            loaded.learn(32)
        with pytest.raises(AttributeError, match=r"set_env\(env\)"):
            loaded.trainer  # noqa: B018
        loaded.save(tmp_path / "copy")
        assert PPO.load(tmp_path / "copy", env=doubled()).num_timesteps == 64
        with pytest.raises(ValueError, match="observation space"):
            loaded.set_env(gym.make("Acrobot-v1"))
        assert loaded.get_env() is None
        loaded.set_env(doubled())
        assert loaded.learn(32, reset_num_timesteps=False).num_timesteps == 96

    def test_another_checkpoint_in_its_place_is_refused(self, tmp_path):
        model = ppo(doubled())
        model.save(tmp_path / "m")
        loaded = PPO.load(tmp_path / "m")
        model.learn(32).save(tmp_path / "m")
        with pytest.raises(ValueError, match="path: expected the checkpoint that was loaded"):
            loaded.set_env(doubled())


def test_only_environments_that_their_id_makes_are_told_by_it():
    assert told_id(gym.make("CartPole-v1", render_mode="rgb_array")) == "CartPole-v1"
    assert told_id(rlox.make_vec("CartPole-v1", 2)) == "CartPole-v1"
    others = [
        doubled(),
        gym.make("CartPole-v1").unwrapped,
        gym.make("CartPole-v1", max_episode_steps=7),
        gym.wrappers.TimeAwareObservation(gym.make("CartPole-v1")),
        rlox.make_vec("CartPole-v1", 2, max_episode_steps=7),
        gym.make_vec("CartPole-v1", 2),
        "CartPole-v1",
    ]
    assert [told_id(env) for env in others] == [None] * len(others)


@pytest.mark.parametrize(("saved", "loaded"), [("s", "s.zip"), ("s.zip", "s"), ("a.b", "a.b.zip")])
def test_the_ending_zip_may_be_missing_or_too_much(saved, loaded, tmp_path):
    ppo().save(tmp_path / saved)
    assert PPO.load(tmp_path / loaded).predict(OBS)[0] in (0, 1)


def test_tables_of_replay_algorithms_count_episodes(capsys):
    pendulum(verbose=1).learn(2_000, log_interval=4)
    assert capsys.readouterr().out.count("time/total_timesteps") == 2  # of 10 episodes
    pendulum(verbose=1).learn(800)
    assert capsys.readouterr().out.count("time/total_timesteps") == 1
    A2C("MlpPolicy", "CartPole-v1", verbose=1).learn(1_000)
    assert capsys.readouterr().out.count("time/total_timesteps") == 2


def test_logs_are_named_and_counted(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = ppo(tensorboard_log=str(tmp_path)).learn(64)
    model.learn(64)
    model.learn(64, reset_num_timesteps=False)
    model.learn(64, tb_log_name="other")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["PPO_1", "PPO_2", "other_1"]
    events = EventAccumulator(str(tmp_path / "PPO_2"))
    events.Reload()
    assert max(event.step for event in events.Scalars("time/total_timesteps")) == 128


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    model = ppo(tensorboard_log=tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"rlox\[tensorboard\]"):
        model.learn(32)
    assert model.num_timesteps == 0


def test_steps_and_episodes_are_counted_from_0_anew():
    rows = []
    model = ppo().learn(1_024)
    assert model.trainer.learner.episodes.count > 10
    model.learn(64, callback=lambda trainer, metrics: rows.append(metrics))
    assert [row["time/total_timesteps"] for row in rows] == [32, 64]
    assert model.num_timesteps == 64
    before = model.trainer.learner.episodes.count
    assert before < 10
    model.learn(64, callback=lambda t, row: rows.append(row), reset_num_timesteps=False)
    assert rows[-1]["time/total_timesteps"] == 128
    assert model.trainer.learner.episodes.count >= before


def test_the_best_model_is_kept_where_a_path_says(tmp_path):
    callback = EvalCallback(every=64, n_episodes=2, path=tmp_path)
    ppo().learn(64, callback=callback)
    (kept,) = (file.parent for file in tmp_path.rglob("manifest.json"))
    assert PPO.load(kept).predict(OBS)[0] in (0, 1)


def test_settings_are_attributes():
    model = ppo(gamma=0.9, clip_range=0.3)
    assert (model.gamma, model.learning_rate, model.n_steps) == (0.9, 3e-4, 32)
    assert (model.batch_size, model.device, model.clip_range) == (32, "cpu", 0.3)
    assert model.env is model.get_env()
    for name in ("replay_buffer", "ep_info_buffer", "logger", "policy_kwargs"):
        with pytest.raises(AttributeError, match=r"in rlox\.sb3; "):
            getattr(model, name)
    with pytest.raises(AttributeError, match="object has no attribute 'buffer_size'"):
        model.buffer_size  # noqa: B018
    for kind, env in ((DQN, "CartPole-v1"), (TD3, "Pendulum-v1")):
        assert kind("MlpPolicy", env, buffer_size=300).buffer_size == 300
