"""What Stable-Baselines3's users may ask for that is not here: each is refused with what to do."""

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox.sb3 import A2C, DQN, PPO, SAC, TD3, evaluate_policy

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"


def theirs(name, module="stable_baselines3.common.vec_env.dummy_vec_env"):
    """An object of a class as Stable-Baselines3 has it."""
    return type(name, (), {"__module__": module})()


def ppo(**keywords):
    return PPO("MlpPolicy", CARTPOLE, **keywords)


def kwargs(**keywords):
    return ppo(policy_kwargs=keywords)


def small():
    return ppo(n_steps=8)


def pictures():
    space = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)
    return gym.wrappers.TransformObservation(
        gym.make(CARTPOLE), lambda obs: np.zeros((40, 40, 3), np.uint8), space
    )


REFUSED = {
    "a misspelt keyword": (lambda: ppo(n_step=8), "did you mean 'n_steps'"),
    "another algorithm's keyword": (
        lambda: ppo(buffer_size=8),
        "buffer_size belongs to DQN, SAC, TD3",
    ),
    "rlox's name of a keyword": (lambda: ppo(clip_coef=0.1), "clip_range"),
    "rlox's setting": (lambda: ppo(normalize_obs=True), "rlox.trainers"),
    "layers beside policy_kwargs": (lambda: ppo(net_arch=[8]), "policy_kwargs"),
    "environments by number": (lambda: ppo(n_envs=8), "make_vec"),
    "steps in the constructor": (lambda: ppo(total_timesteps=8), "learn()"),
    "too many arguments": (lambda: PPO("MlpPolicy", CARTPOLE, *range(40)), "by name"),
    "an argument twice": (
        lambda: PPO("MlpPolicy", CARTPOLE, 1e-3, learning_rate=1e-3),
        "learning_rate",
    ),
    "no environment": (lambda: PPO("MlpPolicy", None), "env: expected an environment"),
    "policy and environment in the other order": (lambda: PPO(CARTPOLE, "MlpPolicy"), "env: "),
    "their vector environment": (lambda: PPO("MlpPolicy", theirs("DummyVecEnv")), "DummyVecEnv"),
    "its class": (lambda: PPO("MlpPolicy", type(theirs("SubprocVecEnv"))), "SubprocVecEnv"),
    "an unknown policy": (lambda: PPO("MlpLstmPolicy", CARTPOLE), "policy: expected"),
    "a policy class": (lambda: PPO(object, CARTPOLE), "rlox.trainers take torch modules"),
    "a policy for dicts": (lambda: PPO("MultiInputPolicy", CARTPOLE), "rlox.trainers"),
    "pictures for numbers": (lambda: PPO("CnnPolicy", CARTPOLE), "pass 'MlpPolicy'"),
    "numbers for pictures": (lambda: PPO("MlpPolicy", pictures()), "pass 'CnnPolicy'"),
    "a schedule of another form": (
        lambda: ppo(learning_rate=lambda left: left**2),
        "learning_rate: expected a constant, or what falls linearly to 0",
    ),
    "a schedule that does not end at 0": (
        lambda: ppo(clip_range=lambda left: 0.1 + 0.1 * left),
        "clip_range: expected a constant",
    ),
    "a schedule that fails": (lambda: ppo(learning_rate=lambda: 1), "learning_rate: expected"),
    "a schedule as a text": (lambda: ppo(learning_rate="lin_0.1"), "lambda left"),
    "a schedule of values' clipping": (
        lambda: ppo(clip_range_vf=lambda left: left),
        "clip_range_vf: expected a number",
    ),
    "a rate that is none": (lambda: ppo(learning_rate=None), "learning_rate"),
    "a log that is no path": (lambda: ppo(tensorboard_log=3), "tensorboard_log: expected a path"),
    "another window": (lambda: ppo(stats_window_size=10), "last 100 episodes"),
    "another rollout buffer": (lambda: ppo(rollout_buffer_class=dict), "rollout_buffer_class"),
    "another replay buffer": (
        lambda: DQN("MlpPolicy", CARTPOLE, replay_buffer_class=dict),
        "replay_buffer_class",
    ),
    "less memory": (
        lambda: DQN("MlpPolicy", CARTPOLE, optimize_memory_usage=True),
        "optimize_memory_usage",
    ),
    "talk without end": (lambda: ppo(verbose=3), "verbose"),
    "talk as a text": (lambda: ppo(verbose="much"), "verbose"),
    "different layers": (lambda: kwargs(net_arch={"pi": [8], "vf": [9]}), "the same hidden layers"),
    "layers of one network": (lambda: kwargs(net_arch={"pi": [8]}), "the same hidden layers"),
    "layers of DQN by network": (
        lambda: DQN("MlpPolicy", CARTPOLE, policy_kwargs={"net_arch": {"pi": [8]}}),
        "DQN has one network",
    ),
    "layers that are none": (lambda: kwargs(net_arch=["many"]), "net_arch"),
    "an unknown activation": (lambda: kwargs(activation_fn="softplus"), "activation_fn"),
    "an activation that is none": (lambda: kwargs(activation_fn=dict), "activation_fn"),
    "features": (lambda: kwargs(features_extractor_class=dict), "features_extractor"),
    "an optimiser": (lambda: kwargs(optimizer_class=dict), "optimizer_class"),
    "an optimiser's keywords": (lambda: kwargs(optimizer_kwargs={"eps": 1.0}), "optimizer_kwargs"),
    "expln": (lambda: kwargs(use_expln=True), "use_expln"),
    "more critics": (
        lambda: SAC("MlpPolicy", PENDULUM, policy_kwargs={"n_critics": 3}),
        "n_critics",
    ),
    "a misspelt key": (lambda: kwargs(net_arc=[8]), "did you mean 'net_arch'"),
    "orthogonal weights of DQN": (
        lambda: DQN("MlpPolicy", CARTPOLE, policy_kwargs={"ortho_init": True}),
        "ortho_init",
    ),
    "policy_kwargs that are none": (lambda: ppo(policy_kwargs=[8]), "policy_kwargs"),
    "noise that is none": (
        lambda: TD3("MlpPolicy", PENDULUM, action_noise="normal", buffer_size=300),
        "action_noise",
    ),
    "an unknown device": (lambda: ppo(device=3), "device"),
    "actions of DQN": (lambda: DQN("MlpPolicy", PENDULUM, buffer_size=300), "use SAC"),
    "actions of SAC": (lambda: SAC("MlpPolicy", CARTPOLE, buffer_size=300), "use DQN"),
    "no steps": (lambda: small().learn(0), "total_timesteps"),
    "steps as a float": (lambda: small().learn(1e3), "pass 1000"),
    "a misspelt argument of learn": (lambda: small().learn(8, callbacks=[]), "callback"),
    "their callback": (
        lambda: small().learn(8, theirs("EvalCallback", "stable_baselines3.common.callbacks")),
        "rlox.callbacks.Callback",
    ),
    "a callback that is none": (lambda: small().learn(8, callback=3), "callback"),
    "part of a model": (lambda: small().save("x", exclude=["policy"]), "exclude"),
    "a model that is not there": (lambda: PPO.load("no/such/model"), "does not exist"),
    "other settings in load": (lambda: PPO.load("x", learning_rate=1), "make a new model"),
    "other objects in load": (lambda: PPO.load("x", custom_objects={"a": 1}), "custom_objects"),
    "as many environments": (lambda: small().set_env(rlox.make_vec(CARTPOLE, 2)), "num_envs"),
    "other spaces": (lambda: small().set_env("Acrobot-v1"), "observation space"),
    "no reset": (lambda: small().set_env(CARTPOLE, force_reset=False), "force_reset"),
    "no episodes": (lambda: evaluate_policy(small(), CARTPOLE, 0), "n_eval_episodes"),
    "rendering": (lambda: evaluate_policy(small(), CARTPOLE, render=True), "render_mode"),
    "a callback of episodes": (lambda: evaluate_policy(small(), CARTPOLE, callback=print), "loop"),
    "no model": (lambda: evaluate_policy(None, CARTPOLE), "model"),
    "their environment": (lambda: evaluate_policy(small(), theirs("VecNormalize")), "VecNormalize"),
    "an observation of another shape": (lambda: small().predict(np.zeros(3)), "obs"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_name_with_what_to_do(what, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    act, said = REFUSED[what]
    with pytest.raises((ValueError, TypeError, FileNotFoundError)) as caught:
        act()
    assert said in str(caught.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["train", "policy", "get_parameters", "save_replay_buffer"])
def test_attributes_of_theirs_are_named_with_ours(name):
    with pytest.raises(AttributeError, match=r"in rlox\.sb3; "):
        getattr(small(), name)
    assert not hasattr(small(), "anything")


def test_a_model_that_was_refused_an_environment_is_as_it_was():
    model = small().learn(16)
    env = model.get_env()
    with pytest.raises(ValueError, match="observation space"):
        model.set_env("Acrobot-v1")
    assert model.get_env() is env
    model.learn(16, reset_num_timesteps=False)
    assert model.num_timesteps == 32


def test_noise_objects_of_theirs_are_taken():
    module = "stable_baselines3.common.noise"
    noise = theirs("NormalActionNoise", module)
    noise._mu, noise._sigma = np.zeros(1), 0.3 * np.ones(1)
    model = TD3("MlpPolicy", PENDULUM, buffer_size=300, action_noise=noise)
    assert model.trainer.config.action_noise.sigma == 0.3
    vectorized = theirs("VectorizedActionNoise", module)
    with pytest.raises(ValueError, match="every environment has its own"):
        TD3("MlpPolicy", PENDULUM, buffer_size=300, action_noise=vectorized)


def test_pictures_have_their_policy():
    pytest.importorskip("torch")
    model = A2C("CnnPolicy", pictures())
    assert model.trainer.learner.backend == "torch"
    space = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)
    blind = gym.wrappers.TransformObservation(
        gym.make(PENDULUM), lambda obs: np.zeros((40, 40, 3), np.uint8), space
    )
    with pytest.raises(ValueError, match="policy: expected"):
        SAC("CnnPolicy", blind, buffer_size=300)


def test_torch_devices_are_named():
    assert ppo(device="cpu").trainer.config.device == "cpu"
    torch = pytest.importorskip("torch")
    assert ppo(device=torch.device("cpu")).trainer.config.device == "cpu"


@pytest.mark.parametrize("name", ["make_vec_env", "EvalCallback", "VecNormalize", "DummyVecEnv"])
def test_names_that_scripts_import_are_named_with_what_is_instead(name):
    with pytest.raises(ImportError, match=rf"rlox\.sb3 has no '{name}'; .*(rlox|leave)"):
        exec(f"from rlox.sb3 import {name}")
    with pytest.raises(ImportError, match="cannot import name"):
        from rlox.sb3 import nothing_of_theirs  # noqa: F401


def test_scores_are_of_environments_that_the_model_was_made_for():
    closed = []

    class Closing(gym.Wrapper):
        def close(self):
            closed.append(True)
            super().close()

    with pytest.raises(ValueError, match="env: expected observation space"):
        evaluate_policy(small(), lambda: Closing(gym.make(PENDULUM)))
    assert closed


def test_what_reset_gives_is_no_observation():
    model = small()
    with pytest.raises(TypeError, match=r"obs: expected .* pass obs of obs, infos = env\.reset"):
        model.predict(model.get_env().reset())
