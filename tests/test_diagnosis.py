"""What is left behind where NaN or infinity ended a run."""

import json

import gymnasium as gym
import numpy as np
import pytest

from rlox import NonFiniteError
from rlox.checkpoint import read_checkpoint
from rlox.trainers import DQNTrainer, SACTrainer
from support.runs import small

BACKENDS = ["native", "torch"]


def backend_or_skip(backend):
    if backend == "torch":
        pytest.importorskip("torch")
    return backend


class Spoiling(gym.Env):
    """Gives something that is not finite in its 38th step."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, what="reward", kind=np.nan):
        self.what, self.kind, self.made = what, kind, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.made += 1
        bad = self.made == 38
        obs = np.full(2, self.kind if bad and self.what == "obs" else 0.5, np.float32)
        reward = self.kind if bad and self.what == "reward" else 1.0
        return obs, reward, self.made % 10 == 0, False, {}


def told(trainer):
    return json.loads((trainer.run.path / "diagnosis/error.json").read_text())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [np.nan, np.inf])
@pytest.mark.parametrize("what", ["obs", "reward"])
def test_what_environments_give_leaves_a_bundle_and_the_message_says_where(
    tmp_path, backend, what, kind
):
    backend_or_skip(backend)
    env = {"env": Spoiling, "env_kwargs": {"what": what}}
    if kind is np.inf:
        env = {"env": lambda: Spoiling(what, np.inf)}
    trainer = small(**env, backend=backend, runs_dir=tmp_path)
    with pytest.raises(NonFiniteError) as raised:
        trainer.train(1_000)
    folder = trainer.run.path / "diagnosis"
    words = str(raised.value)
    assert words.endswith(f"; see {folder}")
    for part in (what, str(kind), "environment 0", "step 3"):
        assert part in words
    about = told(trainer)
    assert about["message"] in words
    assert about["timesteps"] == 64
    assert about["error"] == "NonFiniteError"
    assert read_checkpoint(folder / "checkpoint").manifest["counters"]["timesteps"] == 64
    assert not (trainer.run.path / "checkpoint").exists()


def test_tensors_that_are_not_finite_are_named(tmp_path):
    torch = pytest.importorskip("torch")
    trainer, name = small(backend="torch", runs_dir=tmp_path), "critic.0.weight"

    def spoil(trainer, metrics):
        with torch.no_grad():
            dict(trainer.learner.policy.named_parameters())[name][1, 2] = torch.nan

    with pytest.raises(FloatingPointError, match=r"values: expected finite numbers.*diagnosis"):
        trainer.train(1_000, callbacks=[spoil])
    (one,) = told(trainer)["not_finite"]
    assert one == {
        "name": f"networks.{name}",
        "shape": [64, 4],
        "count": 1,
        "first_at": [1, 2],
        "first": "nan",
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_diverging_losses_leave_a_bundle(tmp_path, backend):
    backend_or_skip(backend)
    trainer = DQNTrainer(
        env=lambda: Spoiling("reward", 1e38),
        seed=0,
        num_envs=1,
        learning_starts=8,
        learning_rate=1e30,
        backend=backend,
        runs_dir=tmp_path,
    )
    with pytest.raises((FloatingPointError, ValueError), match=r"diagnosis$"):
        trainer.train(5_000)
    assert told(trainer)["timesteps"] > 8
    assert not (trainer.run.path / "diagnosis/checkpoint/replay.safetensors").exists()


def test_callbacks_and_loggers_end_and_no_folder_means_no_bundle():
    with pytest.raises(ValueError, match="rewards") as raised:
        small(env=Spoiling).train(1_000)
    assert "diagnosis" not in str(raised.value)


def test_what_cannot_be_written_hides_nothing(tmp_path):
    trainer = small(env=Spoiling, runs_dir=tmp_path)

    def in_the_way(trainer, metrics):
        (trainer.run.path / "diagnosis").write_text("mine")

    with pytest.raises(ValueError, match="rewards: expected finite numbers") as raised:
        trainer.train(1_000, callbacks=[in_the_way])
    assert "diagnosis" not in str(raised.value)


def test_other_errors_leave_none(tmp_path):
    class Broken(Spoiling):
        def step(self, action):
            raise ValueError("mine")

    trainer = small(env=Broken, runs_dir=tmp_path)
    with pytest.raises(ValueError, match="mine"):
        trainer.train(1_000)
    assert not (trainer.run.path / "diagnosis").exists()


@pytest.mark.parametrize("backend", BACKENDS)
def test_off_policy_methods_leave_one_too(tmp_path, backend):
    backend_or_skip(backend)

    class Box(Spoiling):
        action_space = gym.spaces.Box(-1, 1, (1,))

    trainer = SACTrainer(env=Box, seed=0, num_envs=1, backend=backend, runs_dir=tmp_path)
    with pytest.raises(ValueError, match=r"^rewards: .*diagnosis$"):
        trainer.train(100)
    assert told(trainer)["timesteps"] == 37
