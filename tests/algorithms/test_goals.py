"""Goals in hindsight: what is learned with them, and what is refused."""

import functools
import gc
import os

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rlox import make_vec
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer
from support.envs import AsRobotics, BitFlip, OneGoal, PointMass

FLIPS = {
    "num_envs": 8,
    "learning_starts": 200,
    "train_freq": 1,
    "gradient_steps": 2,
    "batch_size": 128,
    "learning_rate": 1e-3,
    "target_update_interval": 200,
    "gamma": 0.98,
    "exploration_final_eps": 0.1,
    "exploration_fraction": 0.3,
    "buffer_size": 50_000,
}


QUICK = {"learning_starts": 8, "batch_size": 8, "train_freq": 1, "net_arch": (8,)}


def flips(her):
    """The mean return of 8 bits: -5 at best, as the goal is left and met by turns; -8 at worst."""
    trainer = DQNTrainer(lambda: BitFlip(8), seed=1, her=her, runs_dir=None, **FLIPS)
    trainer.train(12_000)
    return trainer.evaluate(50)["mean_reward"]


@pytest.mark.parametrize("strategy", ["future", "final"])
def test_bits_are_flipped_with_goals_in_hindsight(strategy):
    assert flips(strategy) > -6


def test_bits_are_not_flipped_without():
    assert flips(None) < -7


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("trainer_class", "settings"), [(SACTrainer, {"ent_coef": 0.01}), (TD3Trainer, {})]
)
def test_a_point_comes_to_its_goal_with_goals_in_hindsight_alone(trainer_class, settings):
    how = {"num_envs": 8, "net_arch": (64, 64), "gamma": 0.9, "learning_starts": 1_000}
    how |= {"learning_rate": 1e-3, "utd_ratio": 0.25, **settings}

    def score(her):
        trainer = trainer_class(PointMass, seed=1, backend="torch", her=her, runs_dir=None, **how)
        trainer.train(10_000)
        return trainer.evaluate(50)["mean_reward"]

    # About three steps are left to go; who does nothing has -20.
    assert score("future") > -6
    assert score(None) < -15


@pytest.mark.parametrize("trainer_class", [SACTrainer, TD3Trainer])
@pytest.mark.parametrize("her", ["future", "final", "episode"])
@pytest.mark.filterwarnings("ignore:environment:UserWarning")  # new episodes
def test_a_run_repeats_and_goes_on_where_it_was_saved(trainer_class, her, tmp_path):
    settings = {"num_envs": 2, "learning_starts": 20, "batch_size": 16, "net_arch": (8,)}
    trainers = [
        trainer_class(PointMass, seed=3, her=her, runs_dir=None, **settings) for _ in range(2)
    ]
    for trainer in trainers:
        trainer.train(60)
    first, second = (trainer.learner.state() for trainer in trainers)
    for name, array in first.networks.items():
        np.testing.assert_array_equal(array, second.networks[name])
    trainers[0].save(tmp_path / "saved")
    again = trainer_class.load(tmp_path / "saved", env=PointMass, runs_dir=None)
    for name, array in again.learner.state().replay.items():
        np.testing.assert_array_equal(array, first.replay[name])
    # Gymnasium's environments begin new episodes; so shall the run that was not stopped.
    trainers[1].learner.started = False
    told = [trainer.train(60) for trainer in (trainers[1], again)]
    assert told[0]["mean_reward"] == told[1]["mean_reward"]
    whole, resumed = (trainer.learner.state() for trainer in (trainers[1], again))
    assert again.learner.updates == trainers[1].learner.updates > trainers[0].learner.updates
    for part in ("networks", "optimizer", "replay"):
        for name, array in getattr(whole, part).items():
            np.testing.assert_array_equal(array, getattr(resumed, part)[name], err_msg=name)


def test_compute_reward_is_called_once_a_batch():
    calls = []

    class Counting(PointMass):
        def compute_reward(self, achieved_goal, desired_goal, info):
            calls.append(np.shape(achieved_goal))
            return super().compute_reward(achieved_goal, desired_goal, info)

    trainer = SACTrainer(
        Counting,
        seed=0,
        her="future",
        learning_starts=10,
        batch_size=10,
        net_arch=(8,),
        runs_dir=None,
    )
    calls.clear()  # it was tried when the trainer was made
    trainer.train(11)
    assert [shape for shape in calls if len(shape) == 2] == [(8, 6)]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("ends", ["never", "norm"])
def test_ends_of_all_goals_at_once_leave_flags_as_they_were_recorded(ends, mode):
    env = make_vec(functools.partial(AsRobotics, ends=ends), 2, vectorization_mode=mode)
    trainer = DQNTrainer(env, seed=0, her="future", num_envs=2, runs_dir=None, **QUICK)
    trainer.train(40)
    assert trainer.learner.updates > 0
    assert trainer.learner.replay.buffer.compute_terminated is None
    env.close()


def test_a_flag_for_each_goal_is_computed():
    env = functools.partial(BitFlip, 4, ends_at_goal=True)
    trainer = DQNTrainer(env, seed=0, her="future", runs_dir=None, **QUICK)
    assert trainer.learner.replay.buffer.compute_terminated is not None


def test_what_takes_single_goals_is_refused_or_left_out():
    how = {"seed": 0, "her": "future", "runs_dir": None, **QUICK}
    with pytest.raises(ValueError, match=r"^her: expected a compute_reward that .* got shape \(\)"):
        DQNTrainer(functools.partial(OneGoal, "compute_reward"), **how)
    with pytest.warns(UserWarning, match=r"^her: compute_terminated failed .*flags stay"):
        trainer = DQNTrainer(functools.partial(OneGoal, "compute_terminated"), **how)
    trainer.train(12)
    assert trainer.learner.updates > 0


class Failing(BitFlip):
    """`BitFlip` whose `compute_reward` fails as a function does that is given."""

    def __init__(self, fail):
        super().__init__(4)
        self.fail, self.ready = fail, None

    def reset(self, *, seed=None, options=None):
        self.ready = np.ones(1, np.float32)
        return super().reset(seed=seed, options=options)

    def compute_reward(self, achieved_goal, desired_goal, info):
        self.fail(self, info)
        return super().compute_reward(achieved_goal, desired_goal, info)


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        (lambda env, info: info["scale"], r"KeyError\('scale'\)"),
        (lambda env, info: [0][len(info) + 1], "IndexError"),
        (lambda env, info: float(np.zeros(2)), "TypeError"),
        (lambda env, info: np.zeros(2) * np.zeros(3), "ValueError"),
    ],
)
def test_rewards_that_fail_for_any_goals_are_refused_at_once(fail, words):
    said = rf"^her: expected a compute_reward of many .* an empty info, .* got {words}.* alone$"
    with pytest.raises(ValueError, match=said) as refused:
        DQNTrainer(lambda: Failing(fail), seed=0, her="future", runs_dir=None, **QUICK)
    assert isinstance(refused.value.__cause__, Exception)


@pytest.mark.parametrize(
    "fail", [lambda env, info: env.bits, lambda env, info: env.ready * 2.0, "raises"]
)
def test_environments_that_were_not_reset_may_fail_at_first(fail):
    def closed(env, info):
        if env.ready is None:
            raise RuntimeError("not reset")

    fail = closed if fail == "raises" else fail
    with pytest.warns(UserWarning, match=r"^her: expected a compute_reward that can do with any"):
        trainer = DQNTrainer(lambda: Failing(fail), 0, her="future", runs_dir=None, **QUICK)
    trainer.train(12)
    assert trainer.learner.updates > 0


def test_what_a_minibatch_meets_is_named():
    def fail(env, info):
        if env.ready is not None and env.steps == 3:
            raise KeyError("scale")

    class Late(Failing):
        def step(self, action):
            self.fail = lambda env, info: None
            try:
                return super().step(action)
            finally:
                self.fail = fail

    trainer = DQNTrainer(lambda: Late(fail), seed=0, her="future", runs_dir=None, **QUICK)
    words = r"^compute_reward: expected values for goals \(\d, 4\) and an info with no keys, got K"
    with pytest.raises(RuntimeError, match=words) as failed:
        trainer.train(20)
    assert isinstance(failed.value.__cause__, KeyError)


def of(**parts):
    """A class of `PointMass` with other observations."""

    class Other(PointMass):
        def __init__(self):
            super().__init__()
            box = self.observation_space["observation"]
            names = ("observation", "achieved_goal", "desired_goal")
            kept = {name: box for name in names if name not in parts}
            there = {name: part for name, part in parts.items() if part is not None}
            self.observation_space = gym.spaces.Dict({**kept, **there})

    return Other


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"achieved_goal": None}, "Dict observations with .*, got .*desired_goal"),
        (
            {"desired_goal": gym.spaces.Box(-1, 1, (3,))},
            r"an achieved_goal and a desired_goal of one .*, got Box\(.*\(6,\), .*\(3,\), .*; give",
        ),
        (
            {"desired_goal": gym.spaces.Box(0, 9, (6,), np.uint8)},
            "an achieved_goal and a desired_goal of one .*uint8",
        ),
        (
            {"observation": gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,)))},
            r"one array as observation, got Dict\(.*; flatten it",
        ),
    ],
)
def test_goals_that_do_not_fit_are_refused_by_the_trainers_words(parts, message):
    with pytest.raises(ValueError, match=f"^her: expected {message}"):
        SACTrainer(of(**parts), seed=0, her="future", runs_dir=None)


def test_goals_of_other_floats_are_stored_alike_and_fit():
    goal = gym.spaces.Box(-1, 1, (6,), np.float64)
    SACTrainer(of(desired_goal=goal), seed=0, her="future", runs_dir=None)


class Noting(BitFlip):
    """`BitFlip` that writes down in a file who was asked about how many goals, and its closing."""

    def __init__(self, path):
        super().__init__(4, ends_at_goal=True)
        self.path = path

    def note(self, *what):
        with open(self.path, "a") as file:
            print(os.getpid(), *what, file=file)

    def compute_reward(self, achieved_goal, desired_goal, info):
        if np.ndim(achieved_goal) == 2:
            self.note("reward", len(achieved_goal))
        return super().compute_reward(achieved_goal, desired_goal, info)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        self.note("terminated", len(achieved_goal))
        return super().compute_terminated(achieved_goal, desired_goal, info)

    def close(self):
        self.note("closed")


@pytest.mark.timeout(60)
def test_workers_are_not_asked_what_goals_are_worth(tmp_path):
    path = tmp_path / "notes"
    makers = [functools.partial(Noting, path)] * 3
    env = gym.vector.AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    how = {"learning_starts": 6, "batch_size": 10, "train_freq": 1, "net_arch": (8,)}
    trainer = DQNTrainer(env, seed=0, her="future", buffer_size=100, runs_dir=None, **how)
    path.write_text("")
    trainer.train(15)
    assert trainer.learner.updates == 3
    # The first minibatch has 9 transitions, all that there are.
    counts = [7, 8, 8]
    here = str(os.getpid())
    asked = [[here, name, str(n)] for n in counts for name in ("reward", "terminated")]
    assert [line.split() for line in path.read_text().splitlines()] == asked
    env.close()
    path.write_text("")
    del trainer, env
    gc.collect()
    assert path.read_text().split() == [here, "closed"]


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("Pendulum-v1", {}, "^her: expected environments with a method compute_reward"),
        (PointMass, {"backend": "native"}, "^observation space: .*native"),
        (PointMass, {"n_steps": 3}, "^n_steps: expected 1 beside her"),
        (PointMass, {"her": "past"}, "^her: "),
    ],
)
def test_what_has_no_goals_is_refused(env, settings, message):
    with pytest.raises(ValueError, match=message):
        SACTrainer(env, seed=0, **{"her": "future", "runs_dir": None, **settings})


def test_priorities_beside_goals_are_refused():
    with pytest.raises(ValueError, match=r"^prioritized: expected False beside her='future'"):
        DQNTrainer(BitFlip, seed=0, her="future", prioritized=True, runs_dir=None)


def test_environments_that_reset_in_the_next_step_are_refused():
    env = gym.vector.SyncVectorEnv([BitFlip] * 2)
    with pytest.raises(ValueError, match=r"^her: expected None beside several environments"):
        DQNTrainer(env, seed=0, her="future", runs_dir=None)
