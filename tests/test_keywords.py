"""Unknown keywords: each is told which one was meant."""

import inspect

import gymnasium as gym
import numpy as np
import pytest

import rlox
from rlox.evaluation import evaluate
from rlox.keywords import refuse_unknown
from rlox.trainers import DQNTrainer, PPOTrainer, SACTrainer


class Still:
    def predict(self, obs, deterministic=True):
        return np.zeros(len(obs), np.int64)


def trainer():
    return PPOTrainer("CartPole-v1", 0, runs_dir=None)


def test_an_unknown_name_is_told_near_ones():
    with pytest.raises(TypeError, match=r"X has no setting 'nsteps'; did you mean 'n_steps'\?"):
        refuse_unknown(["nsteps"], ["gamma", "n_steps"], "X")
    with pytest.raises(TypeError, match=r"X has no setting 'zzz'; it has gamma, n_steps"):
        refuse_unknown(["zzz"], ["gamma", "n_steps"], "X")
    with pytest.raises(TypeError, match=r"'learning_rate' or 'lr_schedule'\?$"):
        refuse_unknown(["lr"], ["learning_rate", "lr_schedule"], "X")
    with pytest.raises(TypeError, match=r"'lam'; did you mean 'gae_lambda'\?$"):
        refuse_unknown(["lam"], ["gamma", "gae_lambda"], "X")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rlox.VecEnv(n=2, seeds=1), "VecEnv has no setting 'seeds'; did you mean 'seed'?"),
        (lambda: rlox.VecEnv(num_envs=2), "VecEnv has no setting 'num_envs'; did you mean 'n'?"),
        (lambda: rlox.VecEnv(num_env=2), "VecEnv has no setting 'num_env'; did you mean 'n'?"),
        (
            lambda: rlox.VecEnv(autoreset="SameStep"),
            "VecEnv has no setting 'autoreset'; did you mean 'autoreset_mode'?",
        ),
        (
            lambda: rlox.make_vec("CartPole-v1", nun_envs=2),
            "make_vec has no setting 'nun_envs'; did you mean 'num_envs'?",
        ),
        (
            lambda: rlox.make_vec("CartPole-v1", n=2),
            "make_vec has no setting 'n'; did you mean 'num_envs'?",
        ),
        (
            lambda: rlox.make_vec("FrozenLake-v1", id="x"),
            "make_vec has no setting 'id'; did you mean 'env'?",
        ),
        (
            lambda: rlox.make_vec("FrozenLake-v1", 2, seeds=2),
            "make_vec has no setting 'seeds'; did you mean 'seed'?",
        ),
        (
            lambda: rlox.make_vec(lambda: gym.make("CartPole-v1"), 2, wrapper=2),
            "make_vec has no setting 'wrapper'; did you mean 'wrappers'?",
        ),
        (
            lambda: trainer().train(total_timestep=10),
            "train() has no setting 'total_timestep'; did you mean 'total_timesteps'?",
        ),
        (
            lambda: trainer().train(n_epochs=3),
            "train() has no setting 'n_epochs'; n_epochs belongs to the constructor, "
            "PPOTrainer(...)",
        ),
        (
            lambda: PPOTrainer("CartPole-v1", total_timesteps=10),
            "PPOTrainer has no setting 'total_timesteps'; total_timesteps belongs to train(), not "
            "to the constructor",
        ),
        (
            lambda: PPOTrainer("CartPole-v1", n_timesteps=10),
            "PPOTrainer has no setting 'n_timesteps'; did you mean 'n_steps'? total_timesteps "
            "belongs to train(), not to the constructor",
        ),
        (
            lambda: PPOTrainer("CartPole-v1", policy_kwargs={"net_arch": [64]}),
            "PPOTrainer has no setting 'policy_kwargs'; pass net_arch, activation or "
            "features_extractor as they are",
        ),
        (
            lambda: SACTrainer("Pendulum-v1", replay_buffer_kwargs={"n_sampled_goal": 4}),
            "SACTrainer has no setting 'replay_buffer_kwargs'; pass her= for its "
            "goal_selection_strategy, and n_sampled_goal= as it is",
        ),
        (
            lambda: DQNTrainer("CartPole-v1", replay_buffer_class=dict),
            "DQNTrainer has no setting 'replay_buffer_class'; for goals in hindsight pass "
            'her="future" ("final", "episode"); DQN has prioritized=True',
        ),
        (
            lambda: SACTrainer("Pendulum-v1", goal_selection_strategy="future"),
            "SACTrainer has no setting 'goal_selection_strategy'; pass it as her=",
        ),
        (
            lambda: SACTrainer("Pendulum-v1", optimize_memory_usage=True),
            "SACTrainer has no setting 'optimize_memory_usage'; leave it out: next observations "
            "that follow are stored once anyway",
        ),
        (
            lambda: trainer().evaluate(episodes=3),
            "evaluate() has no setting 'episodes'; did you mean 'n_episodes'?",
        ),
        (
            lambda: evaluate(Still(), "CartPole-v1", sed=3),
            "evaluate() has no setting 'sed'; did you mean 'seed'?",
        ),
        (
            lambda: PPOTrainer.load("nowhere", n_steps=3),
            "load() has no setting 'n_steps'; n_steps belongs to the constructor, PPOTrainer(...)",
        ),
        (
            lambda: rlox.collect_rollout(rlox.VecEnv(2), None, 4, lam=0.9),
            "collect_rollout() has no setting 'lam'; did you mean 'gae_lambda'?",
        ),
    ],
)
def test_a_slip_is_told_what_was_meant(call, words):
    with pytest.raises(TypeError) as refused:
        call()
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rlox.VecEnv(foo=1), "env arguments: expected only sutton_barto_reward"),
        (lambda: rlox.make_vec("CartPole-v1", render_mode="x"), "render_mode: expected"),
        (lambda: rlox.make_vec("Pendulum-v1", g=float("nan")), "g: expected a finite number"),
    ],
)
def test_errors_that_no_slip_explains_stay_as_they_are(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def of_fuel(wrap=1):
    raise ValueError("simulator has no setting 'wrap'")


def within(mode="easy"):
    return of_fuel(mode=mode)


def about_wrappers(wrapper=1, **rest):
    raise TypeError("got an unexpected keyword argument 'wrapper'")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: rlox.make_vec(of_fuel, 2, wrap=3), ValueError, "simulator has no setting 'wrap'"),
        (lambda: rlox.make_vec(within, 2, mode="hard"), TypeError, r"of_fuel\(\) got an unexp"),
        (lambda: rlox.make_vec(about_wrappers, wrapper=3), TypeError, "^got an unexp"),
        (lambda: rlox.make_vec(about_wrappers, seeds=3), TypeError, "^got an unexp"),
        (lambda: rlox.make_vec("Fuel-v0", wrap=3), ValueError, "simulator has no setting 'wrap'"),
    ],
)
def test_errors_of_the_callers_own_stay_as_they_are(call, error, words, monkeypatch):
    spec = gym.envs.registration.EnvSpec("Fuel-v0", of_fuel)
    monkeypatch.setitem(gym.registry, "Fuel-v0", spec)
    with pytest.raises(error, match=words):
        call()


def test_signatures_can_be_seen():
    assert [*inspect.signature(PPOTrainer.train).parameters] == [
        "self",
        "total_timesteps",
        "progress_bar",
        "callbacks",
        "loggers",
    ]
    assert "path" in inspect.signature(PPOTrainer.load).parameters
    assert "n_episodes" in inspect.signature(evaluate).parameters


@pytest.mark.parametrize("name", ["MlpPolicy", "CnnPolicy", "MultiInputPolicy"])
def test_policies_are_not_named_in_the_place_of_environments(name):
    with pytest.raises(ValueError, match=f"env: expected an environment .*, got '{name}'; leave"):
        PPOTrainer(name, "CartPole-v1")
