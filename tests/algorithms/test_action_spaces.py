"""Every kind of action is learned by every algorithm, and what is sent is in the action space."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from rlox._rlox import network_backends
from rlox.trainers import A2CTrainer, PPOTrainer
from support.envs import Answer

# The score of ten steps that shows that the answer is known. A constant answer scores 5 at most
# where components are integers, and -3.3 at most for Box.
SPACES = {
    "Discrete": (Discrete(3, start=-7), 9.0),
    "MultiDiscrete": (MultiDiscrete([2, 3], start=[5, -1]), 8.5),
    "MultiDiscrete of two dimensions": (MultiDiscrete([[2, 3], [2, 2]]), 8.5),
    "MultiBinary": (MultiBinary(3), 9.0),
    "Box": (Box(np.float32([-3, 0]), np.float32([1, 2])), -0.4),
    "Box of two dimensions": (Box(-2.0, 2.0, (2, 1)), -0.3),
}
BACKENDS = ("native", "torch", *network_backends()[1:])
LINEAR = {"gamma": 0.0, "lr_schedule": "linear", "runs_dir": None}
PPO = {**LINEAR, "num_envs": 4, "n_steps": 64, "n_epochs": 5, "learning_rate": 5e-3}
A2C = {**LINEAR, "num_envs": 8, "learning_rate": 3e-3}
TRAINERS = {
    "PPO": (PPOTrainer, PPO | {"log_std_init": -1.0}),
    "A2C": (A2CTrainer, A2C | {"log_std_init": -1.5}),
}


def alternating(*lists):
    """Return the product of the lists with `BACKENDS`; every other case is marked slow."""
    return [
        pytest.param(*case, marks=pytest.mark.slow if sum(indices) % 2 else ())
        for indices, case in zip(
            itertools.product(*(range(len(each)) for each in (*lists, BACKENDS))),
            itertools.product(*lists, BACKENDS),
            strict=True,
        )
    ]


EVERY_SPACE = pytest.mark.parametrize(("name", "kind", "backend"), alternating(TRAINERS, SPACES))


@EVERY_SPACE
def test_an_answer_of_every_kind_is_learned(name, kind, backend):
    space, enough = SPACES[kind]
    make, settings = TRAINERS[name]
    env = lambda: Answer(space)  # noqa: E731
    trainer = make(env=env, seed=0, backend=backend, **settings)
    trainer.train(5_000)
    assert trainer.evaluate(30)["mean_reward"] >= enough


@EVERY_SPACE
def test_minibatches_may_be_smaller_than_those_before(name, kind, backend):
    """The last one of an epoch, and those of rollouts in which environments only reset."""
    space, _ = SPACES[kind]
    how = {"n_steps": 50, "batch_size": 64, "n_epochs": 2} if name == "PPO" else {}
    for mode in ("SameStep", "NextStep"):
        about = {"env_kwargs": {"autoreset_mode": mode}, "num_envs": 3, "runs_dir": None}
        about["backend"] = backend
        trainer = TRAINERS[name][0](env=lambda: Answer(space), seed=0, **about, **how)
        trainer.train(600)
        assert trainer.timesteps >= 600


BOXES = [
    Box(-1e-3, 1e-3, (2,)),
    Box(5.0, 6.0, (1, 2)),
    Box(np.float32([-1e30, 0]), np.float32([1e30, 0])),
    Box(-0.1, 0.1, (2,), np.float64),
    Box(-1, 3, (2,), np.int32),
    Box(0, 255, (2, 2), np.uint8),
]


@pytest.mark.parametrize(
    ("space", "use_sde", "name", "backend"), alternating(BOXES, [False, True], TRAINERS)
)
def test_box_actions_that_are_sent_are_always_inside(name, space, use_sde, backend):
    seen = []

    class Watch(gym.Env):
        observation_space = Box(-1.0, 1.0, (1,))
        action_space = space

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(1, np.float32), {}

        def step(self, action):
            seen.append(np.array(action))
            return np.zeros(1, np.float32), 0.0, False, False, {}

    trainer = TRAINERS[name][0](
        env=Watch,
        seed=0,
        backend=backend,
        n_steps=40,
        log_std_init=1.0,
        use_sde=use_sde,
        runs_dir=None,
    )
    trainer.train(40)
    assert len(seen) == 40
    assert all(space.contains(action) for action in seen)
    for deterministic in (False, True):
        assert space.contains(trainer.predict(np.zeros(1), deterministic=deterministic))


@EVERY_SPACE
def test_a_checkpoint_of_every_kind_predicts_the_same(tmp_path, name, kind, backend):
    space, _ = SPACES[kind]
    make, settings = TRAINERS[name]
    env = lambda: Answer(space)  # noqa: E731
    trainer = make(env=env, seed=0, backend=backend, **settings)
    trainer.train(1)
    trainer.save(tmp_path / "saved")
    loaded = make.load(tmp_path / "saved", env=env, runs_dir=None)
    obs = np.random.default_rng(0).uniform(-1, 1, (20, *trainer.env.single_observation_space.shape))
    np.testing.assert_array_equal(trainer.predict(obs), loaded.predict(obs))


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", TRAINERS)
def test_spaces_that_cannot_be_acted_in_are_refused_by_their_own_words(name, backend):
    def make(space, **settings):
        trainer = TRAINERS[name][0]
        return trainer(lambda: Answer(space), 0, backend=backend, runs_dir=None, **settings)

    class Idle(Answer):
        """There is nothing to do."""

        def __init__(self, space):
            super().__init__(Discrete(2))
            self.action_space = space

    for space in (MultiDiscrete(np.zeros(0, int)), Box(-1, 1, (0,))):
        with pytest.raises(ValueError, match=r"action space: expected one component or more, got "):
            TRAINERS[name][0](lambda space=space: Idle(space), 0, backend=backend, runs_dir=None)
    for space in (Discrete(2, start=3), MultiDiscrete([2, 3]), MultiBinary(2)):
        with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the whole text is compared
            make(space, use_sde=True)
        words = f"use_sde: expected a Box action space, got {space}; set use_sde=False"
        assert str(refusal.value) == words
