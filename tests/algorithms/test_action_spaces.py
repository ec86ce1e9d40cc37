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
from support.refusals import refuses

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


# Each algorithm and space once; the backends alternate.
CASES = [
    (name, kind, BACKENDS[(i + j) % len(BACKENDS)])
    for i, name in enumerate(TRAINERS)
    for j, kind in enumerate(SPACES)
]


@pytest.mark.parametrize(("name", "kind", "backend"), CASES)
def test_answers_are_learned_and_predicted_after_loading(tmp_path, name, kind, backend):
    space, score = SPACES[kind]
    make, settings = TRAINERS[name]
    env = lambda: Answer(space)  # noqa: E731
    trainer = make(env, 0, backend=backend, **settings)
    trainer.train(5_000)
    assert trainer.evaluate(30)["mean_reward"] >= score
    trainer.save(tmp_path / "saved")
    loaded = make.load(tmp_path / "saved", env=env, runs_dir=None)
    obs = np.random.default_rng(0).uniform(-1, 1, (20, *trainer.env.single_observation_space.shape))
    np.testing.assert_array_equal(trainer.predict(obs), loaded.predict(obs))


@pytest.mark.parametrize(("name", "kind", "backend"), CASES)
def test_minibatches_may_be_smaller_than_those_before(name, kind, backend):
    """The last minibatch of an epoch, and those of rollouts in which environments only reset."""
    how = {"n_steps": 50, "batch_size": 64, "n_epochs": 2} if name == "PPO" else {}
    how |= {"backend": backend, "num_envs": 3, "runs_dir": None}
    for mode in ("SameStep", "NextStep"):
        how["env_kwargs"] = {"autoreset_mode": mode}
        trainer = TRAINERS[name][0](lambda: Answer(SPACES[kind][0]), 0, **how)
        assert trainer.train(600)["timesteps"] >= 600


def sampled(action_space):
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
def test_actions_of_a_box_are_sent_inside_its_bounds(i, use_sde):
    space, name = BOXES[i], ("PPO", "A2C")[(i + use_sde) % 2]
    env, backend = sampled(space), BACKENDS[(i // 2 + use_sde) % len(BACKENDS)]
    settings = {"n_steps": 40, "log_std_init": 1.0, "use_sde": use_sde, "num_envs": 1}
    trainer = TRAINERS[name][0](lambda: env, 0, backend=backend, runs_dir=None, **settings)
    trainer.train(40)
    assert len(env.actions) == 40
    for deterministic in (False, True):
        assert space.contains(trainer.predict(np.zeros(3), deterministic=deterministic))


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", TRAINERS)
def test_every_integer_of_a_box_is_sent(name, backend):
    env = sampled(Box(-1, 1, (2,), np.int32))
    settings = {"n_steps": 200, "num_envs": 1}
    TRAINERS[name][0](lambda: env, 1, backend=backend, runs_dir=None, **settings).train(200)
    values, counts = np.unique(env.actions, return_counts=True)
    assert values.tolist() == [-1, 0, 1]
    # Of normal numbers 0.38 are within half of 0, and 0.31 beyond on each side.
    assert (counts > 0.2 * 400).all()


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_a_component_with_equal_bounds_has_that_value(algorithm, backend):
    env = sampled(Box(np.float32([0.3, -1]), np.float32([0.3, 1])))
    one = make_learner(algorithm, backend, 1, lambda: env)
    run_iterations(one, 15)
    assert one.updates == 10
    sent = np.array([*env.actions, *one.predict(np.zeros((9, 3), np.float32))])
    np.testing.assert_array_equal(sent[:, 0], np.float32(0.3))
    assert len(np.unique(sent[:, 1])) > 9


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", TRAINERS)
def test_unsuitable_action_spaces_are_rejected(name, backend):
    def make(space, **settings):
        how = {"backend": backend, "runs_dir": None, **settings}
        return TRAINERS[name][0](lambda: sampled(space), 0, **how)

    for space in (MultiDiscrete(np.zeros(0, int)), Box(-1, 1, (0,))):
        with refuses(ArgumentError, "action space", got=str(space)):
            make(space)
    for space in (Discrete(2, start=3), MultiDiscrete([2, 3]), MultiBinary(2)):
        with refuses(ArgumentError, "use_sde", got=str(space)):
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
def test_other_action_spaces_are_rejected_with_a_suitable_algorithm(
    algorithm, space, hint, backend
):
    with refuses(ArgumentError, "action space", hint, got=str(space)):
        make_learner(algorithm, backend, env=lambda: sampled(space))


def test_invalid_bounds_are_rejected():
    space = Box(-1, 1, (2, 1))  # Gymnasium's constructor rejects these bounds
    for low, hint in ((2.0, "swap the bounds"), (np.nan, "rescale actions")):
        space.low[1] = low
        with refuses(ArgumentError, "action space", hint):
            check_supported_actions("sac", "box", space)
