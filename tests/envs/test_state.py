"""States of Gymnasium environments are saved and restored exactly."""

import contextlib
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers

from rlox import ArgumentError, make_vec
from rlox._serialize import from_arrays, to_arrays
from rlox.checkpoint import read_checkpoint
from rlox.trainers import DQNTrainer, PPOTrainer, SACTrainer
from support.checkpoints import assert_states_equal
from support.envs import Echo, Imitate, cartpole
from support.masked_envs import Doors
from support.rejections import rejects

CLASSIC = "CartPole-v1 Pendulum-v1 Acrobot-v1 MountainCar-v0 MountainCarContinuous-v0"
MUJOCO = "Ant-v5 InvertedDoublePendulum-v5 Pusher-v5"
MORE_MUJOCO = "HalfCheetah-v5 Hopper-v5 Humanoid-v5 HumanoidStandup-v5 Reacher-v5"
MORE_MUJOCO += " InvertedPendulum-v5 Swimmer-v5 Walker2d-v5"


class StatefulImitate(Imitate):
    """`Imitate` with `get_state` and `set_state`."""

    def get_state(self):
        return {"number": self.number, "steps": self.steps, "more": [1, {"pi": 3.5}]}

    def set_state(self, state):
        self.number, self.steps = state["number"], state["steps"]


class StatefulDoors(Doors):
    """`Doors` with `get_state` and `set_state`."""

    def get_state(self):
        return {"open": self.open, "at": self.at}

    def set_state(self, state):
        self.open, self.at = state["open"], state["at"]


def step_all(env, actions):
    return [tuple(map(np.copy, env.step(action)[:4])) for action in actions]


def check_exact_resume(make, before=60, after=150):
    """Check that new environments with a copied state continue as the original environments."""
    with contextlib.closing(make()) as first, contextlib.closing(make()) as second:
        first.action_space.seed(0)
        first.reset(seed=3)
        step_all(first, [first.action_space.sample() for _ in range(before)])
        state = first.get_state()
        assert state, first.unrestorable_reason
        state = {name: np.array(x) for name, x in state.items()}
        actions = [first.action_space.sample() for _ in range(after)]
        expected = step_all(first, actions)
        assert second.set_state(state)
        np.testing.assert_equal(step_all(second, actions), expected)


@pytest.mark.parametrize("env_id", CLASSIC.split())
def test_classic_control_resumes(env_id):
    check_exact_resume(lambda: make_vec(lambda: gym.make(env_id), 2, seed=3))


@pytest.mark.services
@pytest.mark.parametrize(
    "env_id", [*MUJOCO.split(), *(pytest.param(x, marks=pytest.mark.slow) for x in MORE_MUJOCO.split())]
)
@pytest.mark.filterwarnings("ignore")
def test_mujoco_resumes(env_id):
    pytest.importorskip("mujoco", reason="needs MuJoCo: pip install 'gymnasium[mujoco]'")
    check_exact_resume(lambda: make_vec(env_id, 2, seed=3))


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_environments_resume_after_the_end_of_an_episode(mode):
    check_exact_resume(lambda: make_vec(StatefulImitate, 3, seed=1, autoreset_mode=mode), before=10)


@pytest.mark.parametrize("env", ["Acrobot-v1", cartpole], ids=["id", "function"])
def test_worker_processes_resume(env):
    check_exact_resume(lambda: make_vec(env, 2, vectorization_mode="async"))


WRAPPERS = {
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 3),
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "TimeAwareObservation": wrappers.TimeAwareObservation,
    "DelayObservation": lambda env: wrappers.DelayObservation(env, 2),
    "StickyAction": lambda env: wrappers.StickyAction(env, 0.5),
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "RescaleAction": lambda env: wrappers.RescaleAction(env, np.float32(-1), np.float32(1)),
}


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.filterwarnings("ignore")
def test_wrappers_resume(name):
    check_exact_resume(lambda: make_vec("Pendulum-v1", 2, wrappers=[WRAPPERS[name]]))


def unchanged(env):
    return wrappers.TransformObservation(env, lambda obs: obs, env.observation_space)


class ObjectState(StatefulImitate):
    def get_state(self):
        return {"space": self.action_space}


def workers(mode):
    return gym.vector.AsyncVectorEnv([StatefulImitate], autoreset_mode=mode)


def list_of_infos():
    return wrappers.vector.DictInfoToList(gym.make_vec("CartPole-v1", 1))


MODE = gym.vector.AutoresetMode
WITHOUT_STATE = {
    "no methods": (lambda: make_vec(Echo), r"Echo has no get_state\(\) and set_state\(state\)"),
    "wrapper": (lambda: make_vec(lambda: unchanged(cartpole())), "^TransformObservation has no"),
    "not plain": (lambda: make_vec(ObjectState), r"state\['layers'\]\[0\]\['space'\]: .* a Box"),
    "vector wrapper": (lambda: make_vec(list_of_infos()), "DictInfoToList cannot be saved"),
    "workers of Gymnasium": (lambda: make_vec(workers(MODE.SAME_STEP)), "make_vec did not start"),
    "workers in NEXT_STEP mode": (lambda: make_vec(workers(MODE.NEXT_STEP)), "NEXT_STEP"),
}


@pytest.mark.parametrize("case", WITHOUT_STATE)
@pytest.mark.filterwarnings("ignore")
def test_unrestorable_environments_give_the_reason(case):
    make, reason = WITHOUT_STATE[case]
    env = make()
    env.reset(seed=0)
    assert env.get_state() == {}
    env.close()
    assert re.search(reason, env.unrestorable_reason)


def test_plain_data_is_encoded_and_decoded():
    value = {"a": [1, -2.5, float("inf"), None, True, "x"], "b": (np.arange(3), np.float32(1))}
    got = from_arrays(to_arrays(value))
    assert got["a"] == value["a"]
    np.testing.assert_array_equal(got["b"][0], np.arange(3))
    assert type(got["b"][1]) is np.float32
    stream = np.random.default_rng(1)
    again = from_arrays(to_arrays(stream))
    assert again.integers(2**60) == stream.integers(2**60)
    for bad in (object(), {1: 2}, np.array(["a"]), np.random.Generator(np.random.MT19937(0))):
        with rejects(ArgumentError, "state", "plain data"):
            to_arrays(bad)
    with rejects(ArgumentError, "state", "use another copy"):
        from_arrays({"tree": np.zeros(3, np.uint8)})


PPO = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 1}
DQN = {"num_envs": 2, "learning_starts": 20, "buffer_size": 100, "batch_size": 8, "train_freq": 4}
SAC = {"num_envs": 2, "learning_starts": 20, "buffer_size": 200, "batch_size": 8, "net_arch": (8,)}
CASES = {
    "ppo, classic control": (PPOTrainer, cartpole, PPO),
    "ppo, state methods": (PPOTrainer, StatefulImitate, PPO | {"normalize_obs": True, "normalize_reward": True}),
    "ppo, masks": (PPOTrainer, StatefulDoors, PPO | {"action_masks": True}),
    "dqn, classic control": (DQNTrainer, lambda: gym.make("MountainCar-v0"), DQN),
    "sac, state methods": (SACTrainer, StatefulImitate, SAC | {"normalize_obs": True}),
}


@pytest.mark.parametrize("mode", ["SameStep", "NextStep", "Disabled"])
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, case, backend, mode):
    cls, env, settings = CASES[case]
    make = lambda: make_vec(env, settings["num_envs"], autoreset_mode=mode)  # noqa: E731
    kwargs = {"seed": 1, "backend": backend, "runs_dir": None, **settings}
    halt = lambda run, metrics: run.budget_used >= 96 and run.stop()  # noqa: E731
    uninterrupted, first = cls(make(), **kwargs), cls(make(), **kwargs)
    uninterrupted.train(192)
    first.train(192, callbacks=[halt])
    first.save(tmp_path / "half")
    assert read_checkpoint(tmp_path / "half").manifest["env_state"] == "saved"
    second = cls.load(tmp_path / "half", env=make(), runs_dir=None)
    second.train()
    assert_states_equal(second.learner.state(), uninterrupted.learner.state())


def test_resuming_with_new_episodes_warns_once(tmp_path):
    with PPOTrainer(Echo, 1, runs_dir=None, **PPO) as trainer:
        trainer.save(tmp_path / "new")
        trainer.train(32)
        trainer.save(tmp_path / "saved")
    assert read_checkpoint(tmp_path / "new").manifest["env_state"] == "saved"
    manifest = read_checkpoint(tmp_path / "saved").manifest
    assert manifest["env_state"] == "missing"
    assert manifest["env_state_reason"] == "Echo has no get_state() and set_state(state)"
    loaded = PPOTrainer.load(tmp_path / "saved", env=Echo, runs_dir=None)
    with pytest.warns(UserWarning, match="environments could not be restored: Echo has no get_state.*new episodes"):
        loaded.train(32)
    loaded.train(32)
    PPOTrainer.load(tmp_path / "new", env=Echo, runs_dir=None).train(32)


def test_other_environments_start_new_episodes(tmp_path):
    trainer = PPOTrainer(cartpole, 1, runs_dir=None, **PPO)
    trainer.train(32)
    trainer.save(tmp_path / "saved")
    first = PPOTrainer(cartpole, 1, runs_dir=None, **PPO).learner
    first.iterate()
    other = lambda: wrappers.RecordEpisodeStatistics(cartpole())  # noqa: E731
    for env, reason in ((other, "the state is of other environments"), ("CartPole-v1", "they differ from")):
        loaded = PPOTrainer.load(tmp_path / "saved", env=env, runs_dir=None)
        with pytest.warns(UserWarning, match=reason):
            loaded.train(32)
        assert (loaded.learner.buffer.obs[0] != first.buffer.obs[0]).all()


def test_a_damaged_state_is_rejected_and_changes_nothing():
    env = make_vec(StatefulImitate, 2, seed=0)
    env.reset()
    state = env.get_state()
    before = step_all(env, [np.zeros((2, 1), np.float32)] * 3)
    assert env.set_state(state)
    saved = from_arrays(state)
    first, second = saved["snapshots"]
    other = to_arrays({"layers": [{}], "stream": np.random.default_rng(0)})
    wrong = {
        "rows": (saved["rows"][:, :0], saved["rows"].astype(np.int64)),
        "ended": (np.zeros(5, np.bool_), np.zeros(2)),
        "returns": (np.zeros(1),),
        "lengths": (np.zeros(3, np.int64), np.zeros(2)),
        "steps": ("x", 1.0),
        "masks": ([1],),
        "has_masks": (1,),
        "observations": ([], None),
        "snapshots": ([first], None),
    }
    for name, values in wrong.items():
        missing = {key: value for key, value in saved.items() if key != name}
        for damaged in (missing, *({**saved, name: value} for value in values)):
            with rejects(ArgumentError, "state", "pass the result of get_state()", section=name):
                env.set_state(to_arrays(damaged))
    for damaged in (
        {**state, "tree": state["tree"][:-1]},
        to_arrays({**saved, "snapshots": [first, {"tree": np.zeros(1, np.uint8)}]}),
        to_arrays({**saved, "snapshots": [other, second]}),
    ):
        with rejects(ArgumentError, "state", expected="the saved state of environments"):
            env.set_state(damaged)
    after = step_all(env, [np.zeros((2, 1), np.float32)] * 3)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
