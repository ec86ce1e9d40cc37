"""Hindsight experience replay: learning, and rejected environments."""

import functools
import gc
import os

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlox import ArgumentError, make_vec
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer
from support.envs import BitFlip, PointMass
from support.off_policy import assert_learners_equal
from support.rejections import rejects

QUICK = {"learning_starts": 8, "batch_size": 8, "train_freq": 1, "net_arch": (8,)}
HER = {"seed": 0, "her": "future", "runs_dir": None}
FLIPS = {"num_envs": 8, "learning_starts": 200, "train_freq": 1, "gradient_steps": 2}
FLIPS |= {"batch_size": 128, "learning_rate": 1e-3, "target_update_interval": 200, "gamma": 0.98}
FLIPS |= {"exploration_final_eps": 0.1, "exploration_fraction": 0.3, "buffer_size": 50_000}


class CustomBitFlip(BitFlip):
    """`BitFlip` whose methods are replaced by functions."""

    def __init__(self, **methods):
        super().__init__(4)
        vars(self).update(methods)


def never_terminated(achieved_goal, desired_goal, info):
    return False


def terminated_if_any_near(achieved_goal, desired_goal, info):
    """Return a single flag for all goals, as Gymnasium-Robotics does."""
    return bool(np.linalg.norm(achieved_goal - desired_goal) <= 0.45)


def scalar_reward(achieved_goal, desired_goal, info):
    return 0.0 if np.array_equal(achieved_goal, desired_goal) else -1.0


def scalar_terminated(achieved_goal, desired_goal, info):
    return bool((achieved_goal == desired_goal).all(-1))


def bit_flip_return(her, steps=7_000):
    """Return the mean return with 8 bits: -5 at best, -8 at worst."""
    trainer = DQNTrainer(lambda: BitFlip(8), seed=1, her=her, runs_dir=None, **FLIPS)
    trainer.train(steps)
    return trainer.evaluate(50)["mean_reward"]


@pytest.mark.parametrize(
    ("strategy", "steps"), [("future", 7_000), pytest.param("final", 12_000, marks=pytest.mark.slow)]
)
def test_dqn_flips_bits_with_hindsight_goals(strategy, steps):
    assert bit_flip_return(strategy, steps) > -6


def test_dqn_does_not_flip_bits_without_hindsight_goals():
    assert bit_flip_return(None) < -7


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("trainer_class", "settings"), [(SACTrainer, {"ent_coef": 0.01}), (TD3Trainer, {})])
def test_a_point_reaches_its_goal_only_with_hindsight_goals(trainer_class, settings):
    kwargs = {"num_envs": 8, "net_arch": (64, 64), "gamma": 0.9, "learning_starts": 1_000}
    kwargs |= {"learning_rate": 1e-3, "utd_ratio": 0.25, **settings}

    def score(her):
        trainer = trainer_class(PointMass, seed=1, backend="torch", her=her, runs_dir=None, **kwargs)
        trainer.train(10_000)
        return trainer.evaluate(50)["mean_reward"]

    assert score("future") > -6
    assert score(None) < -15


REPEATED = [(SACTrainer, "future"), (TD3Trainer, "final"), (SACTrainer, "episode")]


@pytest.mark.parametrize(("trainer_class", "her"), REPEATED)
@pytest.mark.filterwarnings("ignore:environment:UserWarning")  # new episodes
def test_runs_with_hindsight_goals_repeat_and_resume(trainer_class, her, tmp_path):
    settings = {"num_envs": 2, "learning_starts": 20, "batch_size": 16, "net_arch": (8,)}
    kwargs = {"seed": 3, "her": her, "runs_dir": None, **settings}
    first, second = (trainer_class(PointMass, **kwargs) for _ in "ab")
    for trainer in (first, second):
        trainer.train(60)
    assert_learners_equal(first.learner, second.learner)
    first.save(tmp_path / "saved")
    again = trainer_class.load(tmp_path / "saved", env=PointMass, runs_dir=None)
    np.testing.assert_equal(again.learner.state().replay, first.learner.state().replay)
    # A loaded run begins new episodes, so the uninterrupted run must do the same.
    second.learner.env_initialized = False
    results = [trainer.train(60) for trainer in (second, again)]
    assert results[0]["mean_reward"] == results[1]["mean_reward"]
    assert again.learner.updates == second.learner.updates > first.learner.updates
    expected, state = second.learner.state(), again.learner.state()
    for part in ("networks", "optimizer", "replay"):
        np.testing.assert_equal(getattr(state, part), getattr(expected, part))


def test_compute_reward_is_called_once_for_the_relabelled_rows_of_a_minibatch():
    shapes = []

    class Counting(PointMass):
        def compute_reward(self, achieved_goal, desired_goal, info):
            shapes.append(np.shape(achieved_goal))
            return super().compute_reward(achieved_goal, desired_goal, info)

    settings = {"learning_starts": 10, "batch_size": 10, "net_arch": (8,)}
    trainer = SACTrainer(Counting, **HER, **settings)
    shapes.clear()  # the constructor of the trainer calls the method
    trainer.train(11)
    assert [shape for shape in shapes if len(shape) == 2] == [(8, 6)]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("compute_terminated", [never_terminated, terminated_if_any_near])
def test_a_scalar_compute_terminated_is_not_used(compute_terminated, mode):
    env = make_vec(functools.partial(CustomBitFlip, compute_terminated=compute_terminated), 2, vectorization_mode=mode)
    trainer = DQNTrainer(env, num_envs=2, **HER, **QUICK)
    trainer.train(40)
    assert trainer.learner.updates > 0
    assert trainer.learner.replay.buffer.compute_terminated is None
    env.close()


def test_a_vectorized_compute_terminated_is_used():
    trainer = DQNTrainer(functools.partial(BitFlip, 4, terminates_at_goal=True), **HER, **QUICK)
    assert trainer.learner.replay.buffer.compute_terminated is not None


def test_scalar_rewards_are_rejected_and_failing_flags_are_ignored():
    with rejects(ArgumentError, "her", "along the last axis", got="shape () for goals of shape (2, 4)"):
        DQNTrainer(functools.partial(CustomBitFlip, compute_reward=scalar_reward), **HER, **QUICK)
    with pytest.warns(UserWarning, match=r"^her: compute_terminated failed .*flags stay"):
        trainer = DQNTrainer(functools.partial(CustomBitFlip, compute_terminated=scalar_terminated), **HER, **QUICK)
    trainer.train(12)
    assert trainer.learner.updates > 0


class Failing(BitFlip):
    """`BitFlip` whose `compute_reward` calls a function that may raise."""

    def __init__(self, fail):
        super().__init__(4)
        self.fail, self.ready = fail, None

    def reset(self, *, seed=None, options=None):
        self.ready = np.ones(1, np.float32)
        return super().reset(seed=seed, options=options)

    def compute_reward(self, achieved_goal, desired_goal, info):
        self.fail(self, info)
        return super().compute_reward(achieved_goal, desired_goal, info)


FAILURES = {
    KeyError: lambda env, info: info["scale"],
    IndexError: lambda env, info: [0][len(info) + 1],
    ValueError: lambda env, info: np.zeros(2) * np.zeros(3),
}


@pytest.mark.parametrize("error", FAILURES)
def test_a_compute_reward_that_always_fails_is_rejected(error):
    with rejects(ArgumentError, "her", "compute rewards along the last axis") as raised:
        DQNTrainer(lambda: Failing(FAILURES[error]), **HER, **QUICK)
    assert type(raised.value.__cause__) is error


def fail_before_reset(env, info):
    if env.ready is None:
        raise RuntimeError("not reset")


@pytest.mark.parametrize(
    "fail",
    [lambda env, info: env.at, lambda env, info: env.ready * 2.0, fail_before_reset],
    ids=["AttributeError", "TypeError", "RuntimeError"],
)
def test_a_compute_reward_that_needs_a_reset_is_accepted_with_a_warning(fail):
    with pytest.warns(UserWarning, match=r"^her: .*compute_reward"):
        trainer = DQNTrainer(lambda: Failing(fail), **HER, **QUICK)
    trainer.train(12)
    assert trainer.learner.updates > 0


@pytest.mark.filterwarnings("ignore:her")
@pytest.mark.parametrize("error", [KeyError("scale"), TypeError("scalar")])
def test_a_compute_reward_that_fails_for_a_minibatch_is_named(error):
    trainers = []

    def compute_reward(achieved_goal, desired_goal, info):
        if np.ndim(achieved_goal) == 2 and (trainers or type(error) is TypeError):
            raise error
        return np.where((achieved_goal == desired_goal).all(-1), 0.0, -1.0)

    trainers.append(DQNTrainer(lambda: CustomBitFlip(compute_reward=compute_reward), **HER, **QUICK))
    with rejects(RuntimeError, "compute_reward") as raised:
        trainers[0].train(20)
    assert raised.value.__cause__ is error


def with_spaces(**parts):
    """Return a class of `PointMass` with replaced observation spaces; None removes a key."""

    class Other(PointMass):
        def __init__(self):
            super().__init__()
            spaces = {**self.observation_space.spaces, **parts}
            spaces = {name: space for name, space in spaces.items() if space is not None}
            self.observation_space = gym.spaces.Dict(spaces)

    return Other


BOX, BYTES = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(0, 9, (6,), np.uint8)
NESTED = gym.spaces.Dict(a=BOX)
REJECTED = {
    "no compute_reward": (SACTrainer, "Pendulum-v1", {}, "her", "implement it"),
    "no goal": (SACTrainer, with_spaces(achieved_goal=None), {}, "her", "add the missing keys"),
    "other shape": (SACTrainer, with_spaces(desired_goal=BOX), {}, "her", "use the same space"),
    "other dtype": (SACTrainer, with_spaces(desired_goal=BYTES), {}, "her", "use the same space"),
    "nested": (SACTrainer, with_spaces(observation=NESTED), {}, "her", "flatten it"),
    "native": (SACTrainer, PointMass, {"backend": "native"}, "observation space", "torch"),
    "strategy": (SACTrainer, PointMass, {"her": "past"}, "her", "future"),
    "prioritized": (DQNTrainer, BitFlip, {"prioritized": True}, "prioritized", "her=None"),
    "next step": (DQNTrainer, lambda: gym.vector.SyncVectorEnv([BitFlip] * 2), {}, "her", ""),
}


@pytest.mark.parametrize("case", REJECTED)
def test_unsuitable_environments_and_settings_are_rejected(case):
    trainer, env, settings, argument, hint = REJECTED[case]
    env = env() if case == "next step" else env
    with rejects(ArgumentError, argument, hint):
        trainer(env, **{**HER, **settings})


def test_goals_of_float64_are_accepted():
    goal = gym.spaces.Box(-1, 1, (6,), np.float64)
    SACTrainer(with_spaces(desired_goal=goal), **HER)


class Logging(BitFlip):
    """`BitFlip` that logs calls with the process id and the number of goals."""

    def __init__(self, path):
        super().__init__(4, terminates_at_goal=True)
        self.path = path

    def log(self, *values):
        with open(self.path, "a") as file:
            print(os.getpid(), *values, file=file)

    def compute_reward(self, achieved_goal, desired_goal, info):
        if np.ndim(achieved_goal) == 2:
            self.log("reward", len(achieved_goal))
        return super().compute_reward(achieved_goal, desired_goal, info)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        self.log("terminated", len(achieved_goal))
        return super().compute_terminated(achieved_goal, desired_goal, info)

    def close(self):
        self.log("closed")


@pytest.mark.timeout(60)
def test_workers_do_not_compute_rewards(tmp_path):
    path = tmp_path / "calls"
    makers = [functools.partial(Logging, path)] * 3
    env = gym.vector.AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    settings = {"learning_starts": 6, "batch_size": 10, "train_freq": 1, "net_arch": (8,)}
    trainer = DQNTrainer(env, seed=0, her="future", buffer_size=100, runs_dir=None, **settings)
    path.write_text("")
    trainer.train(15)
    assert trainer.learner.updates == 3
    # The first minibatch has all 9 transitions of the buffer.
    counts = [7, 8, 8]
    pid = str(os.getpid())
    calls = [[pid, name, str(n)] for n in counts for name in ("reward", "terminated")]
    assert [line.split() for line in path.read_text().splitlines()] == calls
    env.close()
    path.write_text("")
    del trainer, env
    gc.collect()
    assert path.read_text().split() == [pid, "closed"]
