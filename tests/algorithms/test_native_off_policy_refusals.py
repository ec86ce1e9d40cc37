"""What DQN, SAC and TD3 in Rust refuse, and how predictions follow from weights."""

import gymnasium as gym
import numpy as np
import pytest

from rlox import make_vec
from rlox.configs import DQNConfig, SACConfig, TD3Config
from rlox.native_off_policy import NativeDQN, NativeSAC, NativeTD3
from support.envs import Answer, Echo, Imitate

torch = pytest.importorskip("torch")


def small(config, **settings):
    return config(**{"net_arch": (8,), "batch_size": 8, "learning_starts": 4} | settings)


@pytest.mark.parametrize(
    ("learner", "config", "env", "said"),
    [
        (NativeDQN, DQNConfig, Imitate, "action space: expected Discrete for DQN, .*use SAC, TD3"),
        (NativeSAC, SACConfig, Echo, "action space: expected a Box for SAC, .*use DQN, PPO or A2C"),
        (NativeTD3, TD3Config, Echo, "action space: expected a Box for TD3, .*use DQN, PPO or A2C"),
        (
            NativeDQN,
            DQNConfig,
            lambda: Answer(gym.spaces.MultiDiscrete([2, 3])),
            "expected Discrete for DQN, .*use PPO or A2C",
        ),
        (
            NativeTD3,
            TD3Config,
            lambda: Answer(gym.spaces.Box(-np.inf, np.inf, (1,))),
            "action space: expected finite bounds for TD3",
        ),
    ],
)
def test_spaces_are_refused_with_an_algorithm_that_would_do(learner, config, env, said):
    with pytest.raises(ValueError, match=said):
        learner(make_vec(env, 1), small(config), 1)


def test_settings_of_other_backends_are_refused():
    with pytest.raises(ValueError, match=r"her: expected None on the native backend.*torch"):
        NativeSAC(make_vec(Imitate, 1), small(SACConfig, her="future"), 1)
    with pytest.raises(ValueError, match="elu"):
        NativeSAC(make_vec(Imitate, 1), small(SACConfig, activation="elu"), 1)
    env, space = gym.wrappers.TransformObservation, gym.spaces.Discrete(3)
    made = make_vec(lambda: env(Echo(), lambda obs: int(obs.argmax()), space), 1)
    with pytest.raises(ValueError, match="normalize_obs"):
        NativeDQN(made, small(DQNConfig, normalize_obs=True), 1)


def test_a_buffer_beyond_memory_is_refused_with_its_bytes():
    with pytest.raises(MemoryError, match=r"buffer_size: .* bytes"):
        NativeSAC(make_vec(Imitate, 1), small(SACConfig, buffer_size=10**14), 1)
    with pytest.raises(MemoryError, match="net_arch"):
        NativeSAC(make_vec(Imitate, 1), small(SACConfig, net_arch=(10**6, 10**6)), 1)


def test_integer_observations_are_one_hot():
    env = gym.wrappers.TransformObservation
    space = gym.spaces.Discrete(3, start=2)
    made = make_vec(lambda: env(Echo(), lambda obs: int(obs.argmax()) + 2, space), 2)
    learner = NativeDQN(made, small(DQNConfig, num_envs=2), 1)
    for _ in range(10):
        learner.iterate()
    assert learner.state().networks["q_net.0.weight"].shape == (8, 3)
    assert learner.predict(3) in (0, 1, 2)


class Poisoned(Imitate):
    """Pays NaN at the 20th step."""

    count = 0

    def step(self, action):
        self.count += 1
        obs, reward, *rest = super().step(action)
        return obs, np.nan if self.count == 20 else reward, *rest


def test_a_reward_that_is_no_number_is_named_and_the_next_run_goes_on():
    learner = NativeSAC(make_vec(Poisoned, 1), small(SACConfig), 1)
    for _ in range(19):
        learner.iterate()
    with pytest.raises(ValueError, match=r"rewards: expected finite numbers, got nan"):
        learner.iterate()
    assert learner.timesteps == 19
    learner.iterate()
    assert learner.timesteps == 20


@pytest.mark.parametrize(("learner", "config"), [(NativeSAC, SACConfig), (NativeTD3, TD3Config)])
def test_weights_too_large_are_named_and_nothing_moves(learner, config):
    made = learner(make_vec("Pendulum-v1", 1), small(config), 1)
    for _ in range(8):
        made.iterate()
    tensors = made.policy.tensors()
    tensors["critic.qf0.2.weight"] = np.full_like(tensors["critic.qf0.2.weight"], 3e38)
    made.policy.load(tensors)
    with pytest.raises(FloatingPointError, match=r"expected finite numbers|after 9 steps"):
        made.iterate()
    after = made.policy.tensors()
    for name in ("log_alpha", "actor.0.weight", "critic.qf0.0.weight", "critic.qf1.0.weight"):
        assert name not in after or (after[name] == tensors[name]).all()


def test_greedy_actions_are_what_torch_makes_of_the_weights():
    obs = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    rows = torch.from_numpy(obs)

    def layers(tensors, prefix, x):
        names = sorted({name.rsplit(".", 1)[0] for name in tensors if name.startswith(prefix)})
        for i, name in enumerate(names):
            w, b = (torch.from_numpy(tensors[f"{name}.{part}"]) for part in ("weight", "bias"))
            x = torch.nn.functional.linear(x, w, b)
            x = x if i == len(names) - 1 else torch.relu(x)
        return x

    for learner, config, mean in (
        (NativeSAC, SACConfig, lambda said: torch.tanh(said[:, :1])),
        (NativeTD3, TD3Config, torch.tanh),
    ):
        made = learner(make_vec("Pendulum-v1", 1), small(config, net_arch=(8, 8)), 1)
        for _ in range(20):
            made.iterate()
        expected = 2 * mean(layers(made.policy.tensors(), "actor.", rows)).numpy()
        np.testing.assert_allclose(made.predict(obs), expected, atol=1e-5)
    made = NativeDQN(make_vec(lambda: Echo(3), 1), small(DQNConfig), 1)
    values = layers(made.policy.tensors(), "q_net.", rows)
    assert (made.predict(obs) == values.argmax(1).numpy()).all()


def test_stopping_ends_an_iteration_early_and_the_steps_count():
    made = NativeSAC(make_vec("Pendulum-v1", 1), small(SACConfig, train_freq=10), 1)
    made.stopping = True
    assert made.iterate() == {}
    assert made.timesteps == 0
    made.stopping = False
    assert made.iterate()["time/total_timesteps"] == 10


def test_progress_and_states_of_other_kinds_are_refused():
    made = NativeTD3(make_vec("Pendulum-v1", 1), small(TD3Config), 1)
    with pytest.raises(ValueError, match="progress"):
        made.iterate(1.5)
    with pytest.raises(TypeError, match="state: expected a LearnerState"):
        made.load_state({})
