"""Action spaces of all algorithms: what is learned, sent and rejected."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from rlox._rlox import network_backends
from rlox.action_spaces import expect_actions_for
from rlox.trainers import A2CTrainer, PPOTrainer
from support.envs import Answer
from support.off_policy import iterated, make_learner

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
def test_answers_in_every_space_are_learned(name, kind, backend):
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


@EVERY_SPACE
def test_a_loaded_checkpoint_predicts_the_same(tmp_path, name, kind, backend):
    space, _ = SPACES[kind]
    make, settings = TRAINERS[name]
    env = lambda: Answer(space)  # noqa: E731
    trainer = make(env=env, seed=0, backend=backend, **settings)
    trainer.train(1)
    trainer.save(tmp_path / "saved")
    loaded = make.load(tmp_path / "saved", env=env, runs_dir=None)
    obs = np.random.default_rng(0).uniform(-1, 1, (20, *trainer.env.single_observation_space.shape))
    np.testing.assert_array_equal(trainer.predict(obs), loaded.predict(obs))


class Idle(Answer):
    """An environment that never steps, with any action space."""

    def __init__(self, space):
        super().__init__(Discrete(2))
        self.action_space = space


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", TRAINERS)
def test_unsuitable_action_spaces_are_rejected(name, backend):
    def make(space, **settings):
        return TRAINERS[name][0](lambda: Idle(space), 0, backend=backend, runs_dir=None, **settings)

    for space in (MultiDiscrete(np.zeros(0, int)), Box(-1, 1, (0,))):
        with pytest.raises(ValueError, match=r"^action space: expected one component or more"):
            make(space)
    for space in (Discrete(2, start=3), MultiDiscrete([2, 3]), MultiBinary(2)):
        with pytest.raises(ValueError, match=r"^use_sde: expected a Box action space") as error:
            make(space, use_sde=True)
        assert error.value.got == str(space)


class Sending(gym.Env):
    """Keep the actions in `sent` and check that the action space has them."""

    observation_space = Box(-1, 1, (3,))

    def __init__(self, action_space):
        self.action_space, self.sent = action_space, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.sent.append(np.array(action))
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "use_sde", "name", "backend"), alternating(BOXES, [False, True], TRAINERS)
)
def test_actions_of_a_box_are_sent_inside_its_bounds(name, space, use_sde, backend):
    env = Sending(space)
    settings = {"n_steps": 40, "log_std_init": 1.0, "use_sde": use_sde, "num_envs": 1}
    trainer = TRAINERS[name][0](lambda: env, 0, backend=backend, runs_dir=None, **settings)
    trainer.train(40)
    assert len(env.sent) == 40
    for deterministic in (False, True):
        assert space.contains(trainer.predict(np.zeros(3), deterministic=deterministic))


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", TRAINERS)
def test_every_integer_of_a_box_is_sent(name, backend):
    env = Sending(Box(-1, 1, (2,), np.int32))
    settings = {"n_steps": 200, "num_envs": 1}
    TRAINERS[name][0](lambda: env, 1, backend=backend, runs_dir=None, **settings).train(200)
    values, counts = np.unique(env.sent, return_counts=True)
    assert values.tolist() == [-1, 0, 1]
    # Of normal numbers 0.38 are within half of 0, and 0.31 beyond on each side.
    assert (counts > 0.2 * 400).all()


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_a_component_with_equal_bounds_has_that_value(algorithm, backend):
    env = Sending(Box(np.float32([0.3, -1]), np.float32([0.3, 1])))
    one = make_learner(algorithm, backend, 1, lambda: env)
    iterated(one, 15)
    assert one.updates == 10
    sent = np.array([*env.sent, *one.predict(np.zeros((9, 3), np.float32))])
    np.testing.assert_array_equal(sent[:, 0], np.float32(0.3))
    assert len(np.unique(sent[:, 1])) > 9


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Box(np.float32([-1, -np.inf]), np.float32([1, 1])), "finite bounds for"),
        (Box(np.float32([-1, -1]), np.float32([1, np.inf])), "finite bounds for"),
        (Box(0, 1, (2,), np.int64), "a Box of real numbers for"),
        (Box(0, 1, (2,), np.uint8), "a Box of real numbers for"),
        (Box(0, 1, (2,), np.bool_), "a Box of real numbers for"),
    ],
)
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_boxes_without_bounds_or_of_integers_are_rejected(algorithm, backend, space, expected):
    with pytest.raises(ValueError, match=rf"^action space: expected {expected} {algorithm}"):
        make_learner(algorithm, backend, env=lambda: Sending(space))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        ([-1, np.nan], [1, 1], "finite bounds for SAC"),
        ([[-1], [2]], [[1], [1]], r"low <= high for SAC, got 2.0 > 1.0 in component 1"),
    ],
)
def test_invalid_bounds_are_rejected(low, high, expected):
    space = Box(-1, 1, np.shape(low))
    space.low[:], space.high[:] = low, high  # Gymnasium's constructor rejects these bounds
    with pytest.raises(ValueError, match=f"^action space: expected {expected}"):
        expect_actions_for("sac", space)
