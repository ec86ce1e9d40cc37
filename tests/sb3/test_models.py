"""Models of `rlox.sb3` learn, predict, save and evaluate like Stable-Baselines3's models."""

import inspect
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

import rlox
from rlox import ArgumentError
from rlox.callbacks import Callback, EvalCallback
from rlox.sb3 import A2C, DQN, PPO, SAC, TD3, NormalActionNoise, OrnsteinUhlenbeckActionNoise, evaluate_policy
from rlox.sb3.evaluation import env_id_of
from rlox.sb3.kwargs import HINTS
from rlox.sb3.models import DEFAULTS
from support.rejections import rejects

SMALL = {"net_arch": [8]}
REPLAY = {"buffer_size": 400, "learning_starts": 20, "batch_size": 16}
CASES = [
    (PPO, "CartPole-v1", {"n_steps": 32}),
    (A2C, "Pendulum-v1", {}),
    (DQN, "CartPole-v1", REPLAY),
    (SAC, "Pendulum-v1", REPLAY),
    (TD3, "Pendulum-v1", REPLAY),
]
OBS = np.zeros(4, np.float32)


def make_model(cls, env, **keywords):
    return cls("MlpPolicy", env, seed=1, policy_kwargs=SMALL, **keywords)


def make_ppo(env="CartPole-v1", **keywords):
    return make_model(PPO, env, **{"n_steps": 32, **keywords})


def predict_actions(model, n=5):
    obs = np.random.default_rng(0).normal(size=(n, *model.observation_space.shape))
    return model.predict(obs, deterministic=True)[0]


def double_rewards():
    return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 2 * reward)


@pytest.mark.parametrize(("cls", "env", "keywords"), CASES)
class TestEveryAlgorithm:
    def test_saved_model_predicts_equally_and_continues(self, cls, env, keywords, tmp_path):
        model = make_model(cls, env, **keywords)
        assert model.learn(64) is model
        assert model.num_timesteps >= 64
        model.save(tmp_path / "model.zip")
        loaded = cls.load(tmp_path / "model.zip")
        batch = predict_actions(model)
        assert batch.shape == (5, *model.action_space.shape)
        assert (batch == predict_actions(loaded)).all()
        obs = np.random.default_rng(0).normal(size=(5, *model.observation_space.shape))[0]
        action, state = model.predict(obs, deterministic=True)
        assert state is None
        assert isinstance(action, np.ndarray)
        assert model.action_space.contains(action[()] if action.ndim == 0 else action)
        assert (action == batch[0]).all()
        for each in (model, loaded):
            each.learn(40, reset_num_timesteps=False)
        assert (predict_actions(model) == predict_actions(loaded)).all()
        assert loaded.num_timesteps == model.num_timesteps

    def test_defaults_equal_stable_baselines3(self, cls, env, keywords):
        buffer = {"buffer_size": 300} if "buffer_size" in keywords else {}
        config = cls("MlpPolicy", env, **buffer).trainer.config
        default = type(config)()
        differing = {name for name, x in vars(config).items() if x != getattr(default, name)}
        assert differing <= {"buffer_size", "batch_size"}

    def test_model_continues_after_evaluation_and_in_another_environment(self, cls, env, keywords):
        model, other = make_model(cls, env, **keywords).learn(40), gym.make(env)
        before = predict_actions(model)
        for eval_env in (env, other):
            if eval_env is other:
                model.set_env(other)
                assert (predict_actions(model) == before).all()
                assert "GymVecEnv" in repr(model.get_env())
            evaluate_policy(model, model.get_env(), 2)
            evaluate_policy(model, eval_env, 2)
            model.learn(40, reset_num_timesteps=False)
            before = predict_actions(model)
        assert model.num_timesteps >= 120


def test_keywords_have_the_order_of_stable_baselines3():
    recorded = json.loads((Path(__file__).parent / "fixtures/signatures.json").read_text())
    for algorithm, keywords in recorded.items():
        assert list(DEFAULTS[algorithm].items()) == [(name, x) for name, x in keywords]
    config = PPO("MlpPolicy", "CartPole-v1", 1e-3, 16, 8).trainer.config
    assert (config.learning_rate, config.n_steps, config.batch_size) == (1e-3, 16, 8)


SHAPE = {"net_arch": {"pi": [8, 8], "vf": [8, 8]}, "activation_fn": "relu", "ortho_init": False}


@pytest.mark.parametrize(
    ("cls", "keywords", "settings"),
    [
        (PPO, {"learning_rate": lambda x: x}, {"learning_rate": 1, "lr_schedule": "linear"}),
        (PPO, {"clip_range": lambda x: 0.1}, {"clip_coef": 0.1, "clip_schedule": "constant"}),
        (PPO, {"clip_range_vf": 0.3, "device": "auto"}, {"clip_coef_vf": 0.3, "device": "cpu"}),
        (PPO, {"n_steps": 16}, {"n_steps": 16, "batch_size": 16}),  # the steps of one iteration
        (PPO, {"use_sde": True, "sde_sample_freq": 4}, {"use_sde": True, "sde_sample_freq": 4}),
        (PPO, {"policy_kwargs": SHAPE}, {"net_arch": (8, 8), "activation": "relu", "ortho_init": False}),
        (PPO, {"policy_kwargs": SHAPE | {"log_std_init": -1}}, {"log_std_init": -1}),
        (A2C, {"use_rms_prop": False}, {"optimizer": "adam", "optimizer_eps": 1e-5}),
        (A2C, {"rms_prop_eps": 1e-3}, {"optimizer": "rmsprop", "optimizer_eps": 1e-3}),
        (TD3, {"train_freq": (2, "step"), "buffer_size": 300}, {"train_freq": 2}),
        (TD3, {"gradient_steps": -1, "buffer_size": 300}, {"gradient_steps": -1}),
        (PPO, {"policy_kwargs": {"activation_fn": torch.nn.GELU}}, {"activation": "gelu"}),
        (PPO, {"device": torch.device("cpu")}, {"device": "cpu"}),
    ],
    ids=[
        *("linear rate", "constant clip", "clip_range_vf", "n_steps", "gSDE", "net_arch"),
        *("log_std_init", "adam", "rmsprop", "train_freq", "gradient_steps", "GELU", "device"),
    ],
)
def test_keywords_become_settings(cls, keywords, settings):
    config = cls("MlpPolicy", "Pendulum-v1", **keywords).trainer.config
    assert {name: getattr(config, name) for name in settings} == settings


def test_learn_has_the_parameters_of_stable_baselines3():
    names = ["total_timesteps", "callback", "log_interval", "tb_log_name", "reset_num_timesteps"]
    assert [*inspect.signature(PPO.learn).parameters] == ["self", *names, "progress_bar"]


def test_noise_becomes_settings():
    noise = NormalActionNoise(mean=np.zeros(1), sigma=0.2 * np.ones(1))
    sb3_noise = type("NormalActionNoise", (), {"__module__": "stable_baselines3.common.noise"})()
    sb3_noise._mu, sb3_noise._sigma = np.zeros(1), 0.2 * np.ones(1)
    for each in (noise, sb3_noise):
        model = TD3("MlpPolicy", "Pendulum-v1", buffer_size=300, action_noise=each)
        assert model.trainer.config.action_noise.sigma == 0.2
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.5, theta=0.3)
    assert (noise.sigma, noise.theta) == (0.5, 0.3)


def test_cnn_policy_accepts_images():
    space = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)
    images = gym.wrappers.TransformObservation(
        gym.make("CartPole-v1"), lambda obs: np.zeros((40, 40, 3), np.uint8), space
    )
    assert A2C("CnnPolicy", images).trainer.learner.backend == "torch"


def test_settings_are_attributes():
    model = make_ppo(gamma=0.9, clip_range=0.3)
    assert (model.gamma, model.learning_rate, model.n_steps) == (0.9, 3e-4, 32)
    assert (model.batch_size, model.device, model.clip_range) == (32, "cpu", 0.3)
    assert model.env is model.get_env()
    assert DQN("MlpPolicy", "CartPole-v1", buffer_size=300).buffer_size == 300
    hinted_names = ("replay_buffer", "ep_info_buffer", "logger", "policy", "train", "get_parameters")
    for name in (*hinted_names, "policy_kwargs"):
        with rejects(AttributeError, name, HINTS[name]) as raised:
            getattr(model, name)
        assert raised.value.name == name
    for name in ("buffer_size", "anything"):
        with pytest.raises(AttributeError) as raised:
            getattr(model, name)
        assert raised.value.name == name


@pytest.mark.parametrize("make_env", [rlox.make_vec, gym.make_vec])
def test_vector_environments_of_rlox_and_gymnasium_are_accepted(make_env):
    model = make_ppo(make_env("CartPole-v1", 3), n_steps=8).learn(48)
    assert model.n_envs == 3
    assert model.num_timesteps >= 48


def test_steps_episodes_and_schedules_restart_or_continue():
    rows = []
    model = make_ppo(learning_rate=lambda remaining: 1e-2 * remaining).learn(1_024)
    assert model.trainer.learner.episodes.count > 10
    model.learn(64, callback=lambda run, metrics: rows.append(metrics))
    before = model.trainer.learner.episodes.count
    assert before < 10
    assert model.num_timesteps == 64
    model.learn(64, callback=lambda run, row: rows.append(row), reset_num_timesteps=False)
    assert [row["time/total_timesteps"] for row in rows] == [32, 64, 96, 128]
    rates = [row["train/learning_rate"] for row in rows]
    assert rates == pytest.approx([1e-2, 5e-3, 5e-3, 2.5e-3])
    assert model.num_timesteps == 128
    assert model.trainer.learner.episodes.count >= before


def test_callback_function_stops_by_false_and_rlox_callbacks_are_called(tmp_path):
    steps = []

    class StepRecorder(Callback):
        def on_train_end(self, run):
            steps.append(run.budget_used)

    evaluation = EvalCallback(every=10, n_episodes=2, path=tmp_path)
    stop = lambda run, metrics: run.budget_used < 20  # noqa: E731
    make_model(A2C, "CartPole-v1").learn(1_000, callback=[StepRecorder(), evaluation, stop])
    assert steps == [20]
    (best,) = (file.parent for file in tmp_path.rglob("manifest.json"))
    assert A2C.load(best).predict(OBS)[0] in (0, 1)


@pytest.mark.parametrize(
    ("cls", "env", "keywords", "steps", "log_interval", "tables"),
    [
        (PPO, "CartPole-v1", {"n_steps": 16, "verbose": 1}, 64, 2, 2),
        (PPO, "CartPole-v1", {"n_steps": 16}, 64, None, 0),
        (A2C, "CartPole-v1", {"verbose": 1}, 1_000, None, 2),
        (SAC, "Pendulum-v1", {"learning_starts": 10_000, "verbose": 1}, 2_000, 4, 2),
        (SAC, "Pendulum-v1", {"learning_starts": 10_000, "verbose": 1}, 800, None, 1),
    ],
)
def test_verbose_writes_tables(cls, env, keywords, steps, log_interval, tables, capsys):
    if cls is SAC:
        keywords = {"buffer_size": 4_000, **keywords}
    make_model(cls, env, **keywords).learn(steps, log_interval=log_interval)
    assert capsys.readouterr().out.count("time/total_timesteps") == tables


@pytest.mark.services
def test_tensorboard_logs_are_named_and_numbered(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = make_ppo(tensorboard_log=str(tmp_path)).learn(64)
    model.learn(64)
    model.learn(64, reset_num_timesteps=False)
    model.learn(64, tb_log_name="other")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["PPO_1", "PPO_2", "other_1"]
    events = EventAccumulator(str(tmp_path / "PPO_2"))
    events.Reload()
    assert max(event.step for event in events.Scalars("time/total_timesteps")) == 128


@pytest.mark.filterwarnings("ignore:environments could not be restored")
@pytest.mark.parametrize("make_env", [gym.make, lambda name: rlox.make_vec(name, 2)])
def test_load_recreates_an_environment_with_an_id(make_env, tmp_path):
    model = make_ppo(make_env("CartPole-v1")).learn(64)
    model.save(tmp_path / "m.zip")
    loaded = PPO.load(tmp_path / "m")
    assert loaded.get_env().num_envs == model.n_envs
    assert (predict_actions(model) == predict_actions(loaded)).all()
    with rejects(ArgumentError, "env", "make a new model"):
        loaded.set_env("Acrobot-v1")
    assert loaded.learn(64, reset_num_timesteps=False).num_timesteps == 128


def test_env_id_of_returns_ids_of_equal_environments_only():
    assert env_id_of(gym.make("CartPole-v1", render_mode="rgb_array")) == "CartPole-v1"
    assert env_id_of(rlox.make_vec("CartPole-v1", 2)) == "CartPole-v1"
    for env in (
        double_rewards(),
        gym.make("CartPole-v1").unwrapped,
        gym.make("CartPole-v1", max_episode_steps=7),
        gym.wrappers.TimeAwareObservation(gym.make("CartPole-v1")),
        rlox.make_vec("CartPole-v1", 2, max_episode_steps=7),
        gym.make_vec("CartPole-v1", 2),
    ):
        assert env_id_of(env) is None


@pytest.mark.filterwarnings("ignore:environments could not be restored")
def test_model_without_environment_predicts_and_learns_after_set_env(tmp_path):
    model = make_ppo(double_rewards).learn(64)
    model.save(tmp_path / "m")
    loaded = PPO.load(tmp_path / "m")
    assert loaded.get_env() is None
    assert (predict_actions(model) == predict_actions(loaded)).all()
    for name in ("n_envs", "seed", "observation_space", "action_space", "num_timesteps", "gamma"):
        assert getattr(loaded, name) == getattr(model, name)
    assert evaluate_policy(loaded, "CartPole-v1", 2)[0] > 0
    for call in (lambda: loaded.learn(32), lambda: loaded.trainer, lambda: loaded.save("copy")):
        with rejects(ArgumentError, "env", "call set_env(env)"):
            call()
    with rejects(ArgumentError, "env", "pass the same env"):
        loaded.set_env("Acrobot-v1")
    assert loaded.get_env() is None
    loaded.set_env(double_rewards())
    assert loaded.learn(32, reset_num_timesteps=False).num_timesteps == 96


def test_set_env_rejects_another_checkpoint_at_the_path(tmp_path):
    model = make_ppo(double_rewards)
    model.save(tmp_path / "m")
    loaded = PPO.load(tmp_path / "m")
    model.learn(32).save(tmp_path / "m")
    with rejects(ArgumentError, "path", got=f"a different checkpoint at {tmp_path / 'm'}"):
        loaded.set_env(double_rewards())


def test_load_rejects_a_zip_of_stable_baselines3(tmp_path):
    make_ppo().save(tmp_path / "a.b")
    assert PPO.load(tmp_path / "a.b.zip").predict(OBS)[0] in (0, 1)
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as file:
        file.writestr("data", "{}")
    for name in ("model", "model.zip"):
        with rejects(ArgumentError, "path", "rlox.sb3.convert"):
            PPO.load(tmp_path / name)


def test_evaluate_policy_accepts_any_kind_of_environment():
    model = make_ppo().learn(32)
    vector, single = gym.make_vec("CartPole-v1", 3), gym.make("CartPole-v1")
    for env in ("CartPole-v1", single, vector, rlox.make_vec("CartPole-v1", 2)):
        returns, lengths = evaluate_policy(model, env, 5, return_episode_rewards=True)
        assert returns == lengths
        assert len(returns) == 5
    single.reset()
    single.step(0)  # the environment is still open
    mean, std = evaluate_policy(model, vector, 4, deterministic=False)
    assert mean > 8
    assert std >= 0
    with rejects(AssertionError, "reward_threshold"):
        evaluate_policy(model, vector, 2, reward_threshold=1e6)


@pytest.mark.parametrize("mode", gym.vector.AutoresetMode)
def test_episode_lengths_do_not_depend_on_the_autoreset_mode(mode):
    class AlwaysLeft:
        def predict(self, obs, deterministic):
            return np.zeros(len(obs), np.int64), None

    env = gym.make_vec("CartPole-v1", 2, "sync", vector_kwargs={"autoreset_mode": mode})
    env.reset(seed=3)
    lengths = evaluate_policy(AlwaysLeft(), env, 40, return_episode_rewards=True)[1]
    assert 8 <= min(lengths) <= max(lengths) <= 11


def test_sb3_models_work_without_torch_and_are_imported_lazily():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import rlox; assert not any(m.startswith('rlox.sb3') for m in sys.modules)\n"
        "from rlox.sb3 import PPO, SAC\n"
        "PPO('MlpPolicy', 'CartPole-v1', n_steps=16).learn(16)\n"
        "SAC('MlpPolicy', 'Pendulum-v1', buffer_size=300).learn(10)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_default_ppo_solves_cartpole():
    model = PPO("MlpPolicy", "CartPole-v1", seed=0).learn(50_000)
    mean, _ = evaluate_policy(model, "CartPole-v1", 20)
    assert mean >= 475
