"""Minibatches of chosen transitions, on both backends: their losses by hand, and what moves."""

import numpy as np
import pytest

from rlox import make_vec
from rlox.algorithms import SAC, TD3, SACConfig, TD3Config
from rlox.native_off_policy import NativeSAC, NativeTD3

ROWS, BATCH = 40, 16
SMALL = {"learning_starts": 0, "batch_size": BATCH, "buffer_size": 100, "net_arch": (8,)}
OBS, ACTION = np.float32([0.6, -0.8, 1.5]), np.float32([0.25])


def remembering(backend, rewards, **settings):
    """A TD3 that remembers one transition, from a state to itself, with these rewards."""
    config = TD3Config(**SMALL, **settings)
    one = {"torch": TD3, "native": NativeTD3}[backend](make_vec("Pendulum-v1", 1), config, 1)
    while one.timesteps < ROWS:
        one.iterate()
    state = one.state()
    for name, value in (("obs", OBS), ("actions", ACTION), ("rewards", rewards)):
        state.replay[f"step.{name}"][:] = value
    state.replay["ahead.obs"][:] = OBS
    one.load_state(state)
    return one


def next_loss(one, backend):
    """The critics' loss in a minibatch of what is remembered."""
    if backend == "native":
        one._start()
        one.policy.begin(0.0)
        assert one.policy.learn(one.normalizer)
        return one.policy.said()["critic_loss"]
    with one.seeded():
        one.learn(1, 1e-3, 0.0)
    return one.last["critic_loss"]


def net(weights, name, *x):
    hidden = weights[f"{name}.0.weight"].astype(float) @ np.concatenate(x)
    hidden = np.maximum(hidden + weights[f"{name}.0.bias"], 0)
    return (weights[f"{name}.2.weight"].astype(float) @ hidden + weights[f"{name}.2.bias"])[0]


def critics(weights, part, action):
    return np.array([net(weights, f"{part}.qf{i}", OBS, [action]) for i in (0, 1)])


def test_normalised_rewards_on_torch_are_cut_to_ten():
    rewards = np.linspace(-1000, 1000, ROWS, dtype=np.float32)
    one = remembering("torch", rewards, normalize_reward=True)
    deviation = np.sqrt(one.normalizer.state()["return_var"][0] + 1e-8)
    assert 0.1 < deviation < 90
    seen = []
    for seed in range(20):
        got = one.replay.sample(np.random.default_rng(seed), one.normalizer).rewards.numpy()
        raw = one.replay._tensors["rewards"].numpy()
        np.testing.assert_allclose(got, (raw / deviation).clip(-10, 10), rtol=1e-5)
        seen.extend(got)
    assert (min(seen), max(seen)) == (-10, 10)
    assert (np.abs(seen) < 10).any()


@pytest.mark.parametrize("reward", [1e6, -1e6])
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_critics_learn_from_rewards_that_are_cut_to_ten(backend, reward):
    one = remembering(backend, reward, normalize_reward=True, gamma=0.0)
    said = critics(one.state().networks, "critic", ACTION[0])
    expected = ((said - 10 * np.sign(reward)) ** 2).sum()
    assert next_loss(one, backend) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("clip", [0.0, 0.125])
@pytest.mark.parametrize("backend", ["torch", "native"])
def test_the_noise_of_target_actions_is_cut(backend, clip):
    # So large that all of it is cut: each row has either end.
    settings = {"target_policy_noise": 1e6, "target_noise_clip": clip}
    one = remembering(backend, 1.5, **settings, gamma=0.9)
    weights = one.state().networks
    action = np.tanh(net(weights, "actor_target", OBS))
    assert abs(action) < 0.8
    said = critics(weights, "critic", ACTION[0])
    ends = [
        ((said - 1.5 - 0.9 * critics(weights, "critic_target", action + noise).min()) ** 2).sum()
        for noise in (-clip, clip)
    ]
    loss = next_loss(one, backend)
    if clip == 0:
        assert loss == pytest.approx(ends[0], rel=1e-4)
        return
    above = BATCH * (loss - ends[0]) / (ends[1] - ends[0])  # rows with the upper end
    assert 0 < round(above) < BATCH
    assert above == pytest.approx(round(above), abs=0.05)


TARGETS = {
    # The target follows after the first minibatch, and then after every other.
    "SAC": (SAC, NativeSAC, SACConfig(**SMALL, tau=1.0, target_update_interval=2), 0),
    # Targets wait for the actor, which first learns in the second one.
    "TD3": (TD3, NativeTD3, TD3Config(**SMALL, tau=1.0, policy_delay=2), 1),
}


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("algorithm", TARGETS)
def test_in_which_minibatches_targets_follow(algorithm, backend):
    torch_learner, native, config, first = TARGETS[algorithm]
    learner = torch_learner if backend == "torch" else native
    one = learner(make_vec("Pendulum-v1", 1), config, 1)
    for update in range(6):
        before = one.state().networks
        one.iterate()
        assert one.updates == update + 1
        after = one.state().networks
        for name in (name for name in after if name.startswith("critic.")):
            target = name.replace("critic.", "critic_target.")
            source = after[name] if update % 2 == first else before[target]
            np.testing.assert_array_equal(after[target], source, err_msg=f"{update}: {target}")
        assert (after["critic.qf0.0.weight"] != before["critic.qf0.0.weight"]).any()
