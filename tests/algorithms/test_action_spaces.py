"""Action spaces of all algorithms: learning, bounds of sent actions, and rejected spaces."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from rlox import ArgumentError
from rlox._rlox import network_backends
from rlox._spaces import check_supported_actions
from rlox.trainers import A2CTrainer, PPOTrainer
from support.envs import Answer, Sampled
from support.off_policy import make_learner, run_iterations
from support.rejections import rejects

# Spaces, and the least return that shows learning. Constant actions reach at most 5 with
# integers, and -3.3 with Box.
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
TRAINERS = {"PPO": (PPOTrainer, PPO | {"log_std_init": -1.0}), "A2C": (A2CTrainer, A2C | {"log_std_init": -1.5})}


# Each algorithm with each space, on alternating backends.
CASES = [
    (name, space_name, BACKENDS[(i + j) % len(BACKENDS)])
    for i, name in enumerate(TRAINERS)
    for j, space_name in enumerate(SPACES)
]


@pytest.mark.parametrize(("name", "space_name", "backend"), CASES)
def test_policies_learn_and_predict_the_same_after_loading(tmp_path, name, space_name, backend):
    space, score = SPACES[space_name]
    cls, settings = TRAINERS[name]
    env = lambda: Answer(space)  # noqa: E731
    trainer = cls(env, 0, backend=backend, **settings)
    trainer.train(5_000)
    assert trainer.evaluate(30)["mean_reward"] >= score
    trainer.save(tmp_path / "saved")
    loaded = cls.load(tmp_path / "saved", env=env, runs_dir=None)
    obs = np.random.default_rng(0).uniform(-1, 1, (20, *trainer.env.single_observation_space.shape))
    np.testing.assert_array_equal(trainer.predict(obs), loaded.predict(obs))


@pytest.mark.parametrize(("name", "space_name", "backend"), CASES)
def test_minibatches_may_have_different_sizes(name, space_name, backend):
    """Check the last minibatch of an epoch, and minibatches of rollouts with resetting rows."""
    kwargs = {"n_steps": 50, "batch_size": 64, "n_epochs": 2} if name == "PPO" else {}
    kwargs |= {"backend": backend, "num_envs": 3, "runs_dir": None}
    for mode in ("SameStep", "NextStep"):
        kwargs["env_kwargs"] = {"autoreset_mode": mode}
        trainer = TRAINERS[name][0](lambda: Answer(SPACES[space_name][0]), 0, **kwargs)
        assert trainer.train(600)["timesteps"] >= 600


def make_env(action_space):
    return Sampled(Box(-1, 1, (3,)), action_space)


BOXES = [
    Box(-1e-3, 1e-3, (2,)),
    Box(5.0, 6.0, (1, 2)),
    Box(np.float32([-1e30, 0]), np.float32([1e30, 0])),
    Box(-0.1, 0.1, (2,), np.float64),
    Box(-1, 3, (2,), np.int32),
    Box(0, 255, (2, 2), np.uint8),
]


@pytest.mark.parametrize("use_sde", [False, True])
@pytest.mark.parametrize("i", range(len(BOXES)))
def test_actions_of_a_box_are_sent_within_bounds(i, use_sde):
    space, name = BOXES[i], ("PPO", "A2C")[(i + use_sde) % 2]
    env, backend = make_env(space), BACKENDS[(i // 2 + use_sde) % len(BACKENDS)]
    settings = {"n_steps": 40, "log_std_init": 1.0, "use_sde": use_sde, "num_envs": 1}
    trainer = TRAINERS[name][0](lambda: env, 0, backend=backend, runs_dir=None, **settings)
    trainer.train(40)
    assert len(env.actions) == 40
    for deterministic in (False, True):
        assert space.contains(trainer.predict(np.zeros(3), deterministic=deterministic))


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", TRAINERS)
def test_every_integer_of_a_box_is_sent(name, backend):
    env = make_env(Box(-1, 1, (2,), np.int32))
    settings = {"n_steps": 200, "num_envs": 1}
    TRAINERS[name][0](lambda: env, 1, backend=backend, runs_dir=None, **settings).train(200)
    values, counts = np.unique(env.actions, return_counts=True)
    assert values.tolist() == [-1, 0, 1]
    # Standard normal numbers are within 0.5 of 0 with probability 0.38.
    assert (counts > 0.2 * 400).all()


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_a_component_with_equal_bounds_equals_the_bound(algorithm, backend):
    env = make_env(Box(np.float32([0.3, -1]), np.float32([0.3, 1])))
    learner = make_learner(algorithm, backend, 1, lambda: env)
    run_iterations(learner, 15)
    assert learner.updates == 10
    sent = np.array([*env.actions, *learner.predict(np.zeros((9, 3), np.float32))])
    np.testing.assert_array_equal(sent[:, 0], np.float32(0.3))
    assert len(np.unique(sent[:, 1])) > 9


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", TRAINERS)
def test_unsuitable_action_spaces_are_rejected(name, backend):
    def make(space, **settings):
        kwargs = {"backend": backend, "runs_dir": None, **settings}
        return TRAINERS[name][0](lambda: make_env(space), 0, **kwargs)

    for space in (MultiDiscrete(np.zeros(0, int)), Box(-1, 1, (0,))):
        with rejects(ArgumentError, "action space", got=str(space)):
            make(space)
    for space in (Discrete(2, start=3), MultiDiscrete([2, 3]), MultiBinary(2)):
        with rejects(ArgumentError, "use_sde", got=str(space)):
            make(space, use_sde=True)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(
    ("algorithm", "space", "hint"),
    [
        ("DQN", Box(-1, 1, (1,)), "use SAC, TD3, PPO or A2C"),
        ("DQN", MultiDiscrete([2, 3]), "use PPO or A2C"),
        ("SAC", Discrete(3), "use DQN, PPO or A2C"),
        ("TD3", MultiBinary(3), "use PPO or A2C"),
        ("SAC", Box(0, 3, (2,), np.int64), "use PPO or A2C"),
        ("TD3", Box(0, 1, (2,), np.bool_), "use PPO or A2C"),
        ("SAC", Box(np.float32([-1, -1]), np.float32([1, np.inf])), "rescale actions"),
        ("TD3", Box(-1e300, 1e300, (1,), np.float64), "rescale actions in a wrapper, or use PPO"),
    ],
)
def test_other_action_spaces_are_rejected_with_a_suitable_algorithm(algorithm, space, hint, backend):
    with rejects(ArgumentError, "action space", hint, got=str(space)):
        make_learner(algorithm, backend, env=lambda: make_env(space))


def test_invalid_bounds_are_rejected():
    space = Box(-1, 1, (2, 1))  # set later, as the constructor rejects invalid bounds
    for low, hint in ((2.0, "swap the bounds"), (np.nan, "rescale actions")):
        space.low[1] = low
        with rejects(ArgumentError, "action space", hint):
            check_supported_actions("sac", "box", space)
