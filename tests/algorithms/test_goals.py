"""Goals in hindsight: what is learned with them, and what is refused."""

import functools
import gc
import os

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from goal_envs import AsRobotics, BitFlip, OneGoal, PointMass
from rlox import make_vec
from rlox.trainers import DQNTrainer, SACTrainer, TD3Trainer

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
