"""Unknown names of settings: close names are suggested."""

import pytest

import rlox
from rlox.evaluation import evaluate
from rlox.keywords import hint, refuse_unknown
from rlox.trainers import PPOTrainer


def test_hint_names_close_names_else_all():
    assert hint("nsteps", ["gamma", "n_steps"]) == "did you mean 'n_steps'?"
    assert hint("cartpole", ["CartPole-v0", "CartPole-v1"]) == "did you mean 'CartPole-v1'?"
    assert hint("zzz", ["gamma", "n_steps"]) == "there are gamma, n_steps"
    assert hint("zzz", ["gamma", "n_steps"], "see the docs") == "see the docs"


def test_unknown_names_are_rejected_with_a_hint():
    refuse_unknown(["gamma"], ["gamma"], "X")
    with pytest.raises(TypeError, match=r"^X has no setting 'gama'; did you mean 'gamma'\?$"):
        refuse_unknown(["gama"], ["gamma", "n_steps"], "X")
    with pytest.raises(TypeError, match=r"^X has no setting 'lr'; pass learning_rate$"):
        refuse_unknown(["lr"], ["gamma"], "X", {"lr": "pass learning_rate"})


@pytest.mark.parametrize(
    ("name", "close"), [("gama", "gamma"), ("nsteps", "n_steps"), ("run_dir", "runs_dir")]
)
def test_trainers_reject_unknown_settings_with_a_hint(name, close):
    with pytest.raises(TypeError, match=f"PPOTrainer .*{name!r}.*{close!r}"):
        PPOTrainer("CartPole-v1", **{name: 1})


@pytest.mark.parametrize(
    "call",
    [
        lambda trainer: trainer.train(total_timestep=10),
        lambda trainer: evaluate(trainer, "CartPole-v1", total_timestep=3),
        lambda trainer: rlox.collect_rollout(trainer.env, None, 4, total_timestep=0.9),
    ],
    ids=["train", "evaluate", "collect_rollout"],
)
def test_python_rejects_unknown_keywords(call):
    with pytest.raises(TypeError, match="'total_timestep'"):
        call(PPOTrainer("CartPole-v1", 0, runs_dir=None))


def test_native_environments_reject_unknown_keywords():
    for call in (rlox.VecEnv, lambda **kwargs: rlox.make_vec("CartPole-v1", 2, **kwargs)):
        with pytest.raises(ValueError, match=r"^env arguments: .*sutton_barto_reward.*num_env"):
            call(num_env=2)
