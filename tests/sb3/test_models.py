"""Models by Stable-Baselines3's names do what its users expect of them."""

import inspect
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox.callbacks import Callback
from rlox.sb3 import (
    A2C,
    DQN,
    PPO,
    SAC,
    TD3,
    NormalActionNoise,
    OrnsteinUhlenbeckActionNoise,
    evaluate_policy,
)
from rlox.sb3.keywords import DEFAULTS

SMALL = {"net_arch": [8]}
REPLAY = {"buffer_size": 400, "learning_starts": 20, "batch_size": 16}
CASES = [
    (PPO, "CartPole-v1", {"n_steps": 32}),
    (A2C, "Pendulum-v1", {}),
    (DQN, "CartPole-v1", REPLAY),
    (SAC, "Pendulum-v1", REPLAY),
    (TD3, "Pendulum-v1", REPLAY),
]


def made(kind, env, **keywords):
    return kind("MlpPolicy", env, seed=1, policy_kwargs=SMALL, **keywords)


def obs_of(model, n=5):
    return np.random.default_rng(0).normal(size=(n, *model.observation_space.shape))


@pytest.mark.parametrize(("kind", "env", "keywords"), CASES)
class TestEveryAlgorithm:
    def test_learns_and_gives_itself_back(self, kind, env, keywords):
        model = made(kind, env, **keywords)
        assert model.learn(64) is model
        assert model.num_timesteps >= 64

    def test_predicts_actions_and_the_state_as_it_came(self, kind, env, keywords):
        model = made(kind, env, **keywords)
        actions, state = model.predict(obs_of(model), deterministic=True)
        assert actions.shape == (5, *model.action_space.shape)
        assert state is None
        action, _ = model.predict(obs_of(model)[0], deterministic=True)
        assert isinstance(action, np.ndarray)
        assert model.action_space.contains(action[()] if action.ndim == 0 else action)
        assert (action == actions[0]).all()

    def test_what_was_saved_predicts_the_same_and_goes_on(self, kind, env, keywords, tmp_path):
        model = made(kind, env, **keywords).learn(64)
        model.save(tmp_path / "model.zip")
        loaded = kind.load(tmp_path / "model.zip")
        obs = obs_of(model)
        ours, theirs = (m.predict(obs, deterministic=True)[0] for m in (model, loaded))
        assert (ours == theirs).all()
        for each in (model, loaded):
            each.learn(40, reset_num_timesteps=False)
        ours, theirs = (m.predict(obs, deterministic=True)[0] for m in (model, loaded))
        assert (ours == theirs).all()
        assert loaded.num_timesteps == model.num_timesteps

    def test_goes_on_in_another_environment(self, kind, env, keywords):
        model = made(kind, env, **keywords).learn(40)
        before = model.predict(obs_of(model), deterministic=True)[0]
        model.set_env(gym.make(env))
        assert (model.predict(obs_of(model), deterministic=True)[0] == before).all()
        model.learn(40)
        assert "ForeignVecEnv" in repr(model.get_env())

    def test_the_settings_are_the_defaults_of_stable_baselines3(self, kind, env, keywords):
        model = kind(
            "MlpPolicy", env, **({"buffer_size": 300} if "buffer_size" in keywords else {})
        )
        plain = type(model.trainer.config)()
        differing = {
            name
            for name, value in vars(model.trainer.config).items()
            if value != getattr(plain, name)
        }
        assert differing <= {"buffer_size", "batch_size"}


def test_keywords_may_be_passed_by_their_place():
    model = PPO("MlpPolicy", "CartPole-v1", 1e-3, 16, 8)
    config = model.trainer.config
    assert (config.learning_rate, config.n_steps, config.batch_size) == (1e-3, 16, 8)


def test_the_order_of_keywords_is_stable_baselines3s():
    told = json.loads((Path(__file__).parent / "fixtures/signatures.json").read_text())
    for algorithm, keywords in told.items():
        assert list(DEFAULTS[algorithm].items()) == [(name, x) for name, x in keywords]


def test_keywords_become_settings():
    model = PPO(
        "MlpPolicy",
        "Pendulum-v1",
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.1,
        clip_range_vf=0.3,
        n_steps=16,
        use_sde=True,
        sde_sample_freq=4,
        target_kl=0.1,
        policy_kwargs={
            "net_arch": {"pi": [8, 8], "vf": [8, 8]},
            "activation_fn": "relu",
            "ortho_init": False,
            "log_std_init": -1,
        },
    )
    config = model.trainer.config
    assert (config.learning_rate, config.lr_schedule) == (1e-3, "linear")
    assert (config.clip_coef, config.clip_schedule, config.clip_coef_vf) == (0.1, "constant", 0.3)
    assert (config.net_arch, config.activation, config.log_std_init) == ((8, 8), "relu", -1)
    assert (config.use_sde, config.sde_sample_freq, config.ortho_init) == (True, 4, False)
    assert config.batch_size == 16  # all steps, as there


def test_torch_classes_name_activations():
    nn = pytest.importorskip("torch.nn")
    model = PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"activation_fn": nn.GELU})
    assert model.trainer.config.activation == "gelu"


def test_a2c_has_its_optimisers():
    config = A2C("MlpPolicy", "CartPole-v1", use_rms_prop=False, rms_prop_eps=1e-3).trainer.config
    assert (config.optimizer, config.optimizer_eps) == ("adam", 1e-5)
    config = A2C("MlpPolicy", "CartPole-v1", rms_prop_eps=1e-3).trainer.config
    assert (config.optimizer, config.optimizer_eps) == ("rmsprop", 1e-3)


def test_off_policy_keywords_become_settings():
    noise = NormalActionNoise(mean=np.zeros(1), sigma=0.2 * np.ones(1))
    keywords = {"train_freq": (2, "step"), "gradient_steps": -1, "action_noise": noise}
    config = TD3("MlpPolicy", "Pendulum-v1", buffer_size=300, **keywords).trainer.config
    assert (config.train_freq, config.gradient_steps) == (2, -1)
    assert config.action_noise.sigma == 0.2
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.5, theta=0.3)
    assert (noise.sigma, noise.theta) == (0.5, 0.3)


@pytest.mark.parametrize("make", [rlox.make_vec, gym.make_vec])
def test_vector_environments_of_rlox_and_of_gymnasium_are_taken(make):
    model = made(PPO, make("CartPole-v1", 3), n_steps=8).learn(48)
    assert model.n_envs == 3
    assert model.num_timesteps >= 48


def test_steps_and_schedules_begin_anew_or_go_on():
    model = made(PPO, "CartPole-v1", n_steps=32, learning_rate=lambda left: 1e-2 * left)
    rates = []

    def note(trainer, metrics):
        rates.append(metrics["train/learning_rate"])

    model.learn(64, callback=note)
    model.learn(64, callback=note)
    assert model.num_timesteps == 64
    model.learn(64, callback=note, reset_num_timesteps=False)
    assert model.num_timesteps == 128
    assert rates == pytest.approx([1e-2, 5e-3, 1e-2, 5e-3, 5e-3, 2.5e-3])


def test_a_function_ends_the_run_by_false_and_callbacks_are_rloxs():
    seen = []

    class Note(Callback):
        def on_train_end(self, trainer):
            seen.append(trainer.timesteps)

    model = made(A2C, "CartPole-v1")
    model.learn(1_000, callback=[Note(), lambda trainer, metrics: trainer.timesteps < 20])
    assert seen == [20]


def test_verbose_writes_tables(capsys):
    made(PPO, "CartPole-v1", n_steps=16, verbose=1).learn(64, log_interval=2)
    assert capsys.readouterr().out.count("time/total_timesteps") == 2
    made(PPO, "CartPole-v1", n_steps=16).learn(64)
    assert capsys.readouterr().out == ""


def test_episodes_are_evaluated_in_any_environment():
    model = made(PPO, "CartPole-v1", n_steps=32).learn(32)
    vector = gym.make_vec("CartPole-v1", 3)  # NEXT_STEP
    for env in ("CartPole-v1", gym.make("CartPole-v1"), vector, rlox.make_vec("CartPole-v1", 2)):
        returns, lengths = evaluate_policy(model, env, 5, return_episode_rewards=True)
        assert returns == lengths
        assert len(returns) == 5
    mean, deviation = evaluate_policy(model, vector, 4, deterministic=False)
    assert mean > 8
    assert deviation >= 0
    with pytest.raises(AssertionError, match="reward_threshold"):
        evaluate_policy(model, vector, 2, reward_threshold=1e6)


def test_episodes_take_all_steps_of_next_step_environments():
    class Left:
        def predict(self, obs, deterministic):
            return np.zeros(len(obs), np.int64), None

    def lengths(mode):
        env = gym.make_vec("CartPole-v1", 2, "sync", vector_kwargs={"autoreset_mode": mode})
        env.reset(seed=3)
        return evaluate_policy(Left(), env, 40, return_episode_rewards=True)[1]

    for mode in gym.vector.AutoresetMode:
        told = lengths(mode)
        assert 8 <= min(told) <= max(told) <= 11


@pytest.mark.parametrize(("kind", "env", "keywords"), CASES)
def test_a_model_trains_on_after_episodes_in_its_own_environment(kind, env, keywords):
    single = gym.make(env)
    for own in (single, env):
        model = made(kind, own, **keywords).learn(40)
        evaluate_policy(model, model.get_env(), 2)
        evaluate_policy(model, own, 2)
        model.learn(40, reset_num_timesteps=False)
        assert model.num_timesteps >= 80


def test_the_environment_is_not_closed_by_evaluation():
    env = gym.make("CartPole-v1")
    model = made(PPO, env, n_steps=16)
    evaluate_policy(model, env, 1)
    env.reset()
    env.step(0)


def test_importing_rlox_does_not_import_this():
    code = "import sys, rlox; sys.exit(any(m.startswith('rlox.sb3') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_models_are_made_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from rlox.sb3 import PPO, SAC\n"
        "PPO('MlpPolicy', 'CartPole-v1', n_steps=16).learn(16)\n"
        "SAC('MlpPolicy', 'Pendulum-v1', buffer_size=300).learn(10)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_zip_is_no_checkpoint(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as file:
        file.writestr("data", "{}")
    for name in ("model", "model.zip"):
        with pytest.raises(ValueError, match=r"rlox\.sb3\.convert"):
            PPO.load(tmp_path / name)


def test_models_say_their_parameters_in_their_signature():
    assert list(inspect.signature(PPO.learn).parameters)[1:] == [
        "total_timesteps",
        "callback",
        "log_interval",
        "tb_log_name",
        "reset_num_timesteps",
        "progress_bar",
    ]


@pytest.mark.slow
def test_the_defaults_of_stable_baselines3_solve_cartpole():
    model = PPO("MlpPolicy", "CartPole-v1", seed=0).learn(50_000)
    mean, _ = evaluate_policy(model, "CartPole-v1", 20)
    assert mean >= 475
