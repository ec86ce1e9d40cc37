"""DQN, SAC and TD3 in Rust: they learn, repeat, go on from a state, and step as Python does."""

import json
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from rlox import make_vec
from rlox.configs import DQNConfig, SACConfig, TD3Config
from rlox.native_off_policy import NativeDQN, NativeSAC, NativeTD3
from rlox.noise import GaussianNoise, OrnsteinUhlenbeckNoise
from support.envs import Answer, Echo, Imitate

SMALL = {"net_arch": (16,), "batch_size": 16, "learning_starts": 8, "buffer_size": 500}
WALK = OrnsteinUhlenbeckNoise(0.3)
CASES = {
    "dqn": (NativeDQN, DQNConfig, "CartPole-v1", {"train_freq": 2, "target_update_interval": 20}),
    "dqn_all": (
        NativeDQN,
        DQNConfig,
        "CartPole-v1",
        {"double": True, "dueling": True, "prioritized": True, "n_steps": 3, "utd_ratio": 0.4},
    ),
    "sac": (NativeSAC, SACConfig, "Pendulum-v1", {"action_noise": WALK}),
    "sac_sde": (
        NativeSAC,
        SACConfig,
        "Pendulum-v1",
        {"use_sde": True, "sde_sample_freq": 2, "train_freq": 3, "use_sde_at_warmup": True},
    ),
    "td3": (
        NativeTD3,
        TD3Config,
        "Pendulum-v1",
        {"action_noise": GaussianNoise(0.2), "normalize_obs": True, "normalize_reward": True},
    ),
}


def make(case, seed=1, num_envs=2, env=None, **settings):
    learner, config, env_id, chosen = CASES[case]
    chosen = config(num_envs=num_envs, **SMALL | chosen | settings)
    return learner(make_vec(env_id if env is None else env, num_envs), chosen, seed)


def run(learner, iterations, first=0):
    return [learner.iterate(min((first + i) / 100, 1.0)) for i in range(iterations)]


def expect_equal(a, b):
    one, two = a.state(), b.state()
    for part in ("networks", "optimizer", "normalizer", "environment"):
        x, y = getattr(one, part), getattr(two, part)
        assert x.keys() == y.keys()
        for name in x:
            np.testing.assert_array_equal(x[name], y[name], err_msg=name)
    assert json.dumps(one.counters) == json.dumps(two.counters)
    assert one.streams == two.streams


@pytest.mark.parametrize("case", CASES)
def test_two_runs_of_a_seed_are_equal_and_of_another_differ(case):
    first, second, other = make(case), make(case), make(case, seed=2)
    assert run(first, 30) == run(second, 30)
    expect_equal(first, second)
    run(other, 30)
    name = next(iter(first.state().networks))
    assert (first.state().networks[name] != other.state().networks[name]).any()


@pytest.mark.parametrize("case", CASES)
def test_stepping_in_python_does_what_stepping_in_rust_does(case):
    native, stepwise = make(case), make(case)
    stepwise.fused = False
    assert native.fused
    assert run(native, 30) == run(stepwise, 30)
    expect_equal(native, stepwise)


@pytest.mark.parametrize("case", CASES)
def test_a_state_has_all_that_is_needed_to_go_on(case):
    first, second = make(case), make(case, seed=9)
    run(first, 40)
    run(second, 3)
    second.load_state(first.state())
    expect_equal(first, second)
    assert (second.timesteps, second.updates) == (first.timesteps, first.updates)
    obs = np.linspace(-1, 1, 3 * first.spaces[0].shape[0]).reshape(3, -1).astype(np.float32)
    for deterministic in (True, False):
        draws = [each.predict(obs, deterministic) for each in (first, second)]
        assert (draws[0] == draws[1]).all()
    assert run(first, 10, 40) == run(second, 10, 40)
    expect_equal(first, second)


@pytest.mark.parametrize("case", CASES)
def test_every_row_of_metrics_has_the_same_names(case):
    rows = run(make(case), 8)
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert np.isnan(rows[0]["train/critic_loss" if case[0] != "d" else "train/loss"])
    assert rows[0]["train/n_updates"] == 0


def test_what_was_said_last_is_said_until_something_else_is():
    learner = make("td3", policy_delay=5, train_freq=1)
    told = [row["train/actor_loss"] for row in run(learner, 30)]
    assert learner.updates == 26
    assert len({*told[-5:]}) == 2
    again = make("td3", 2, policy_delay=5, train_freq=1)
    again.load_state(learner.state())
    assert run(again, 1, 30)[0]["train/actor_loss"] == told[-1]


@pytest.mark.parametrize(
    "part", ["networks", "optimizer", "replay", "noise", "streams", "learned", "actor_loss"]
)
def test_a_state_of_another_learner_is_refused_and_nothing_changes(part):
    learner = make("sac")
    run(learner, 20)
    before, state = learner.state(), learner.state()
    if part == "noise":
        state.counters["noise"] = [0.0]
    elif part == "learned":
        state.counters["learned"]["critic_loss"] = None
    elif part == "actor_loss":
        del state.counters["learned"][part]
    elif part == "streams":
        del state.streams["learning"]
    else:
        arrays = getattr(state, part)
        arrays.pop(next(iter(arrays)))
    with pytest.raises(
        ValueError, match=r"^(counters|streams|.*, section (networks|optimizer|replay)): "
    ):
        learner.load_state(state)
    after = learner.state()
    assert after.streams == before.streams
    assert after.counters == before.counters
    for name, array in before.networks.items():
        assert (after.networks[name] == array).all()


def score(learner, env, episodes=20):
    made, total = env(), 0.0
    for seed in range(episodes):
        obs, _ = made.reset(seed=seed)
        done = False
        while not done:
            obs, reward, terminated, truncated, _ = made.step(learner.predict(obs))
            total += reward
            done = terminated or truncated
    return total / episodes


def test_dqn_learns_which_action_an_observation_names():
    settings = {"train_freq": 1, "batch_size": 32, "learning_rate": 1e-2, "gamma": 0.0}
    learner = make("dqn", env=lambda: Echo(start=3), num_envs=4, **settings)
    assert not learner.fused
    run(learner, 300)
    assert score(learner, lambda: Echo(start=3)) > 9.5


@pytest.mark.parametrize("case", ["sac", "td3"])
def test_continuous_actions_learn_to_imitate_an_observation(case):
    settings = {"batch_size": 64, "learning_rate": 1e-2, "gamma": 0.0, "net_arch": (32,)}
    learner = make(case, env=Imitate, num_envs=4, **settings, action_noise=GaussianNoise(0.3))
    run(learner, 500)
    assert score(learner, Imitate) > -0.5


def test_masked_actions_are_never_chosen():
    from masked_envs import Doors

    learner = make("dqn", env=Doors, action_masks=True)
    run(learner, 60)


def test_next_step_environments_give_transitions_alone():
    def vector(mode):
        kwargs = {"autoreset_mode": mode}
        return gym.make_vec("CartPole-v1", 2, vectorization_mode="sync", vector_kwargs=kwargs)

    steps = {}
    for mode in gym.vector.AutoresetMode:
        learner = make("dqn", env=vector(mode), train_freq=1)
        run(learner, 100)
        steps[mode.name] = learner.timesteps
        assert learner.episodes.count > 0
    assert steps["SAME_STEP"] == 200 == steps["DISABLED"] > steps["NEXT_STEP"]
    with pytest.raises(ValueError, match="n_steps: expected 1 with environments of autoreset mode"):
        make("dqn", env=vector(gym.vector.AutoresetMode.NEXT_STEP), n_steps=2)


def test_a_run_is_the_same_on_one_thread_and_on_two():
    code = (
        "import hashlib, rlox\n"
        "from rlox.configs import SACConfig\n"
        "from rlox.native_off_policy import NativeSAC\n"
        "config = SACConfig(learning_starts=16, buffer_size=1000)\n"
        "learner = NativeSAC(rlox.make_vec('Pendulum-v1', 1), config, seed=1)\n"
        "[learner.iterate() for _ in range(30)]\n"
        "arrays = learner.state().networks.values()\n"
        "print(hashlib.sha256(b''.join(x.tobytes() for x in arrays)).hexdigest())\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"RLOX_NUM_THREADS": threads, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for threads in ("1", "2")
    ]
    assert said[0] == said[1]


def test_metrics_have_sb3s_names():
    said = {case: run(make(case), 30)[-1].keys() for case in CASES}
    common = {
        "rollout/ep_rew_mean",
        "rollout/ep_len_mean",
        "time/total_timesteps",
        "train/learning_rate",
        "train/n_updates",
    }
    assert said["dqn"] == common | {"rollout/exploration_rate", "train/loss"}
    entropy = {"train/ent_coef", "train/ent_coef_loss"}
    assert said["td3"] == common | {"train/critic_loss", "train/actor_loss"}
    assert said["sac"] == said["td3"] | entropy


def test_updates_follow_the_ratio_and_the_rest_is_carried_over():
    learner = make("sac", learning_starts=0, utd_ratio=0.75)
    updates = [int(said.get("train/n_updates", 0)) for said in run(learner, 4)]
    assert updates == [1, 3, 4, 6]
    state = make("sac", learning_starts=0, utd_ratio=0.75)
    run(state, 1)
    assert state.state().counters["due"] == 0.5


def test_answers_in_any_bounds_and_dtype_are_inside_of_them():
    space = gym.spaces.Box(np.array([-3.0, 0.0]), np.array([1.0, 9.0]), dtype=np.float64)
    learner = make("td3", env=lambda: Answer(space), action_noise=GaussianNoise(1.0))
    run(learner, 20)
    actions = learner.predict(np.ones((5, 2), np.float32))
    assert actions.dtype == np.float64
    assert all(map(space.contains, actions))
