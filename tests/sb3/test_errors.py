"""Unsupported values of Stable-Baselines3 and invalid values: argument and hint of the errors."""

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox import ArgumentError, ArgumentTypeError
from rlox.sb3 import A2C, DQN, PPO, SAC, TD3, NormalActionNoise, evaluate_policy
from rlox.sb3.kwargs import HINTS
from support.rejections import expect_rejection, rejections, rejects

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"


def sb3_object(name, module="vec_env.dummy_vec_env"):
    """Return an object of a class of Stable-Baselines3."""
    return type(name, (), {"__module__": f"stable_baselines3.common.{module}"})()


def ppo(**keywords):
    return PPO("MlpPolicy", CARTPOLE, **{"n_steps": 8, **keywords})


def kwargs(**keywords):
    return ppo(policy_kwargs=keywords)


def dqn(env=CARTPOLE, **keywords):
    return DQN("MlpPolicy", env, buffer_size=300, **keywords)


def td3(**keywords):
    return TD3("MlpPolicy", PENDULUM, buffer_size=300, **keywords)


def images(env):
    space = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)
    return gym.wrappers.TransformObservation(gym.make(env), lambda obs: np.zeros((40, 40, 3), np.uint8), space)


CALLBACK = sb3_object("EvalCallback", "callbacks")
NOISE = sb3_object("VectorizedActionNoise", "noise")


@rejections(
    (lambda: ppo(n_step=8), ArgumentTypeError, "n_step", "did you mean 'n_steps'"),
    (lambda: ppo(buffer_size=8), ArgumentTypeError, "buffer_size", "belongs to DQN, SAC, TD3"),
    (lambda: ppo(net_arch=[8]), ArgumentTypeError, "net_arch", "policy_kwargs"),
    (lambda: ppo(total_timesteps=8), ArgumentTypeError, "total_timesteps", "learn()"),
    (lambda: ppo(n_envs=8), ArgumentTypeError, "n_envs", "make_vec"),
    (lambda: ppo(normalize_obs=True), ArgumentTypeError, "normalize_obs", "rlox.trainers"),
    (lambda: ppo(clip_coef=0.1), ArgumentTypeError, "clip_range", "use clip_range"),
    (lambda: PPO("MlpPolicy", CARTPOLE, *range(40)), ArgumentTypeError, "PPO", "by name"),
    (lambda: PPO("MlpPolicy", CARTPOLE, 1e-3, learning_rate=1e-3), *(ArgumentTypeError, "learning_rate", "remove one")),
    # Environments and policies.
    (lambda: PPO("MlpPolicy", None), ArgumentTypeError, "env", "pass an id"),
    (lambda: PPO(CARTPOLE, "MlpPolicy"), ArgumentError, "policy"),
    (lambda: PPO("MlpPolicy", sb3_object("DummyVecEnv")), ArgumentTypeError, "env", "rlox.make_vec"),
    (lambda: PPO("MlpPolicy", type(sb3_object("SubprocVecEnv"))), ArgumentTypeError, "env", "make_vec"),
    (lambda: PPO("MlpLstmPolicy", CARTPOLE), ArgumentError, "policy"),
    (lambda: PPO(object, CARTPOLE), ArgumentTypeError, "policy", "torch modules"),
    (lambda: PPO("MultiInputPolicy", CARTPOLE), ArgumentError, "policy", "rlox.trainers"),
    (lambda: PPO("CnnPolicy", CARTPOLE), ArgumentError, "policy", "pass 'MlpPolicy'"),
    (lambda: PPO("MlpPolicy", images(CARTPOLE)), ArgumentError, "policy", "pass 'CnnPolicy'"),
    (lambda: SAC("CnnPolicy", images(PENDULUM), buffer_size=300), *(ArgumentError, "policy", "rlox.trainers")),
    (lambda: dqn(PENDULUM), ArgumentError, "action space", "use SAC"),
    # Keywords.
    (lambda: ppo(learning_rate=lambda x: x**2), ArgumentError, "learning_rate", "remaining"),
    (lambda: ppo(clip_range=lambda x: 0.1 + x / 10), ArgumentError, "clip_range", "remaining * 0."),
    (lambda: ppo(learning_rate=lambda: 1), ArgumentTypeError, "learning_rate", "pass a number"),
    (lambda: ppo(learning_rate="lin_0.1"), ArgumentTypeError, "learning_rate", "pass a number"),
    (lambda: ppo(learning_rate=None), ArgumentTypeError, "learning_rate", "pass a number"),
    (lambda: ppo(device=3), ArgumentError, "device", "'cpu'"),
    (lambda: ppo(rollout_buffer_class=dict), ArgumentError, "rollout_buffer_class", "remove it"),
    (lambda: ppo(clip_range=-1.0), ArgumentError, "clip_range", "pass at least 0"),
    (lambda: ppo(clip_range_vf=-1.0), ArgumentError, "clip_range_vf", "pass at least 0"),
    (lambda: A2C("MlpPolicy", CARTPOLE, rms_prop_eps=-1.0), ArgumentError, "rms_prop_eps"),
    (lambda: ppo(clip_range_vf=lambda x: x), ArgumentError, "clip_range_vf", "pass a number"),
    (lambda: ppo(tensorboard_log=3), ArgumentTypeError, "tensorboard_log", "pathlib.Path"),
    (lambda: ppo(stats_window_size=10), ArgumentError, "stats_window_size", "100 episodes"),
    (lambda: dqn(replay_buffer_class=dict), ArgumentError, "replay_buffer_class", "her="),
    (lambda: dqn(optimize_memory_usage=True), ArgumentError, "optimize_memory_usage", "buffer_size"),
    (lambda: ppo(verbose=3), ArgumentError, "verbose"),
    (lambda: ppo(verbose="much"), ArgumentTypeError, "verbose", "pass 0, 1 or 2"),
    (lambda: td3(action_noise="normal"), ArgumentTypeError, "action_noise", "rlox.noise"),
    (lambda: NormalActionNoise("a", 0.1), ArgumentTypeError, "mean", "pass a number"),
    (lambda: td3(action_noise=NOISE), ArgumentError, "action_noise", "rlox.noise"),
    # policy_kwargs.
    (lambda: kwargs(net_arch={"pi": [8]}), ArgumentError, "net_arch", "custom policy"),
    (lambda: kwargs(net_arch={"pi": [8], "vf": [9]}), *(ArgumentError, "net_arch", "custom policy")),
    (lambda: kwargs(net_arch=["many"]), ArgumentTypeError, "net_arch", "(64, 64)"),
    (lambda: dqn(policy_kwargs={"ortho_init": True}), ArgumentTypeError, "ortho_init"),
    (lambda: dqn(policy_kwargs={"net_arch": {"pi": [8]}}), ArgumentError, "net_arch", "pass a list"),
    (lambda: kwargs(activation_fn=dict), ArgumentError, "activation_fn", "classes"),
    (lambda: kwargs(features_extractor_class=dict), *(ArgumentError, "policy_kwargs", "features_extractor=")),
    (lambda: kwargs(optimizer_class=dict), ArgumentError, "policy_kwargs", "RMSpropTFLike"),
    (lambda: kwargs(optimizer_kwargs={"eps": 1.0}), ArgumentError, "policy_kwargs", "remove optimizer_kwargs"),
    (
        lambda: SAC("MlpPolicy", PENDULUM, policy_kwargs={"n_critics": 3}),
        *(ArgumentError, "policy_kwargs", "custom policy"),
    ),
    (lambda: ppo(policy_kwargs={3: 4}), ArgumentTypeError, "3"),
    (lambda: kwargs(net_arc=[8]), ArgumentTypeError, "net_arc", "did you mean 'net_arch'"),
    (lambda: ppo(policy_kwargs=[8]), ArgumentTypeError, "policy_kwargs", "dict(net_arch=...)"),
    # Methods.
    (lambda: ppo().learn(0), ArgumentError, "total_timesteps", "number of steps"),
    (lambda: ppo().learn(1e3), ArgumentTypeError, "total_timesteps", "pass 1000"),
    (lambda: ppo().learn(8, 3), ArgumentTypeError, "callback", "derived from Callback"),
    (lambda: ppo().learn(8, lambda trainer: None), ArgumentTypeError, "callback"),
    (lambda: ppo().learn(8, callbacks=[]), TypeError, "'callbacks'"),
    (lambda: ppo().learn(8, CALLBACK), ArgumentTypeError, "callback", "derived from Callback"),
    (lambda: ppo().save("x", exclude=["policy"]), TypeError, "'exclude'"),
    (lambda: PPO.load("no/such/model"), FileNotFoundError, "path", "does not exist"),
    (lambda: PPO.load("x", learning_rate=1), TypeError, "'learning_rate'"),
    (lambda: ppo().set_env(rlox.make_vec(CARTPOLE, 2)), ArgumentError, "env"),
    (lambda: ppo().set_env("Acrobot-v1"), ArgumentError, "env", "new model"),
    (lambda: ppo().predict((np.zeros(4), {})), ArgumentTypeError, "observation", "env.reset"),
    (lambda: ppo().predict(np.zeros(3)), ArgumentError, "observation", "reshape"),
    (lambda: evaluate_policy(None, CARTPOLE), ArgumentTypeError, "model", "pass the model"),
    (lambda: evaluate_policy(ppo(), CARTPOLE, 0), ArgumentError, "n_eval_episodes", "one or more"),
    (lambda: evaluate_policy(ppo(), CARTPOLE, render=True), TypeError, "'render'"),
    (lambda: evaluate_policy(ppo(), sb3_object("VecNormalize")), *(ArgumentTypeError, "env", "normalize_obs")),
    (lambda: evaluate_policy(ppo(), PENDULUM), ArgumentError, "env", "the same spaces"),
)
def test_unsupported_and_invalid_values_are_rejected(rejection, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    expect_rejection(rejection)
    assert [*tmp_path.iterdir()] == []


def test_environment_with_other_spaces_is_closed():
    closed = []

    class Closing(gym.Wrapper):
        def close(self):
            closed.append(self)
            super().close()

    with rejects(ArgumentError, "env", "the same spaces"):
        evaluate_policy(ppo(), lambda: Closing(gym.make(PENDULUM)))
    assert len(closed) == 1


@pytest.mark.parametrize("name", ["make_vec_env", "EvalCallback", "VecNormalize", "DummyVecEnv"])
def test_missing_name_is_reported_with_the_alternative(name):
    with rejects(ImportError, name, HINTS[name]) as raised:
        exec(f"from rlox.sb3 import {name}")
    assert raised.value.name == "rlox.sb3"
    with pytest.raises(ImportError) as raised:
        from rlox.sb3 import unknown_name  # noqa: F401
    assert raised.value.name == "rlox.sb3"
