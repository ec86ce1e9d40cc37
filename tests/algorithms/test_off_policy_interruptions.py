"""What is cut short, in another thread or a failed load leaves a run as it would have been."""

import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlox import native_state, vector
from rlox.trainers import DQNTrainer, SACTrainer

BACKENDS = ("native", "torch")
SMALL = {"learning_starts": 10, "batch_size": 16, "buffer_size": 500, "net_arch": (16,)}


def sac(backend, **settings):
    return SACTrainer("Pendulum-v1", seed=1, backend=backend, runs_dir=None, **SMALL, **settings)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, MemoryError, ValueError])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_that_is_not_taken_leaves_environments_where_they_were(
    backend, failure, monkeypatch
):
    def refuse(*_):
        raise failure

    one, other = sac(backend), sac(backend)
    one.train(30)
    early = one.learner.state()
    other.train(30)
    for trainer in (one, other):
        trainer.train(30)
    with monkeypatch.context() as patch:
        if backend == "torch":
            patch.setattr(one.learner.replay, "load_state", refuse)
        else:
            usual = native_state.expect_part
            refusing = {"replay": refuse}
            patch.setattr(
                native_state,
                "expect_part",
                lambda part, *rest: refusing.get(part, usual)(part, *rest),
            )
        with pytest.raises(failure):
            one.learner.load_state(early)
    for trainer in (one, other):
        trainer.train(30)
    rows, wanted = (trainer.learner.replay.state() for trainer in (one, other))
    assert {*rows} == {*wanted}
    for name, array in wanted.items():
        np.testing.assert_array_equal(rows[name], array, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_predictions_of_another_thread_do_not_change_what_is_drawn(backend):
    def actions(predicting):
        trainer, done, failed = sac(backend), threading.Event(), []

        stream = np.random.default_rng(0)

        def ask_once():
            try:
                trainer.learner.predict(np.zeros(3, np.float32), False, stream)
            except RuntimeError as error:
                failed.append(str(error))

        def ask():
            while not done.wait(0.001):  # else each operation of training waits for the GIL
                ask_once()

        thread = threading.Thread(target=ask)
        if predicting:
            thread.start()
        try:
            trainer.train(200)
        finally:
            done.set()
            if predicting:
                thread.join()
        assert all("no other thread trains" in said for said in failed)
        return trainer.learner.replay.state()["step.actions"]

    np.testing.assert_array_equal(actions(False), actions(True))


class Stopping(gym.Env):
    """Calls `stopper` in the middle of an iteration."""

    observation_space, action_space = spaces.Box(-9, 9, (2,)), spaces.Discrete(2)
    stopper = staticmethod(lambda: None)

    def __init__(self):
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 25:
            self.stopper()
        obs = np.full(2, self.steps % 7, np.float32)
        return obs, 1.0, False, self.steps % 10 == 0, {}


@pytest.mark.parametrize(
    ("settings", "updates"), [({"gradient_steps": -1}, 65), ({"utd_ratio": 0.5}, 32)]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_minibatches_of_a_stopped_iteration_are_made_up_for(backend, settings, updates):
    env = Stopping()
    small = {"batch_size": 4, "buffer_size": 100, "net_arch": (8,)}
    about = {"learning_starts": 0, "train_freq": 10} | small | settings
    trainer = DQNTrainer(env, seed=1, backend=backend, runs_dir=None, **about)
    env.stopper = trainer.stop
    assert trainer.train(60)["timesteps"] == 25
    state = trainer.learner.state()
    trainer.train()
    assert (trainer.timesteps, trainer.learner.updates) == (65, updates)
    # What is owed is in the state, too.
    again = DQNTrainer(Stopping(), seed=1, backend=backend, runs_dir=None, **about)
    again.learner.load_state(state)
    again.train(40)
    assert (again.timesteps, again.learner.updates) == (65, updates)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_buffer_that_is_saved_again_is_told_of(backend, tmp_path):
    trainer = sac(backend)
    trainer.train(30)
    trainer.save(tmp_path / "without", replay=False)
    SACTrainer.load(tmp_path / "without", runs_dir=None).save(tmp_path / "again")
    with pytest.warns(UserWarning, match="replay: expected what was remembered"):
        SACTrainer.load(tmp_path / "again", runs_dir=None).train(2)


def test_environments_that_cannot_go_back_are_left_alone():
    env = vector.make_vec(lambda: gym.make("Pendulum-v1"), 1)
    trainer = SACTrainer(env, seed=1, backend="torch", runs_dir=None, **SMALL)
    trainer.train(30)
    state = trainer.learner.state()
    state.replay = state.replay | {"capacity": np.array([7])}
    with pytest.raises(ValueError, match="capacity"):
        trainer.learner.load_state(state)
    assert trainer.learner.started
