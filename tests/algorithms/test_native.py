"""The learners in Rust agree with those in torch, and with themselves in other processes."""

import inspect
import os
import subprocess
import sys
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from learner_pairs import pair
from rlox import NonFiniteError, make_vec
from rlox.algorithms import PPO, A2CConfig, PPOConfig
from rlox.native import NativeA2C, NativePPO
from support.envs import Answer

SHAPES = {
    "plain": {},
    "wide": {"net_arch": (33, 17), "activation": "relu"},
    "no hidden layer": {"net_arch": ()},
    "shared": {"shared_trunk": True, "activation": "silu"},
    "shared, no hidden layer": {"shared_trunk": True, "net_arch": ()},
    "kaiming": {"ortho_init": False, "activation": "gelu"},
}
ACTIONS = {
    "Discrete": Discrete(3, start=-7),
    "MultiDiscrete": MultiDiscrete([[2, 3], [2, 2]]),
    "MultiBinary": MultiBinary(3),
    "Box": Box(np.float32([-3, 0]), np.float32([1, 2])),
    "Box, float64": Box(-0.1, 0.1, (2, 1), np.float64),
    "Box, integers": Box(-1, 3, (2,), np.int32),
}
OBSERVATIONS = {
    "Discrete": Discrete(5, start=2),
    "MultiDiscrete": MultiDiscrete([[2, 3], [4, 2]]),
    "MultiBinary": MultiBinary((2, 2)),
    "Box": Box(-1, 1, (2, 3)),
    "bytes": Box(0, 255, (6,), np.uint8),
}


class Noise(gym.Env):
    """Random observations of a space; seven steps."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.observation_space.sample(), float(self.steps % 3), False, self.steps == 7, {}


def gradients(optimizer):
    """What a first step of Adam without a learning rate leaves of the gradients, flat."""
    state = optimizer if isinstance(optimizer, dict) else optimizer.state()
    return {n.removesuffix(".exp_avg"): x for n, x in state.items() if n.endswith(".exp_avg")}


KINDS = ["Discrete", "MultiDiscrete", "MultiBinary", "Box", "gSDE"]
# gSDE reads the last hidden layer.
CASES = [(k, s) for k in KINDS for s in SHAPES if k != "gSDE" or "no hidden" not in s]


@pytest.mark.parametrize(("kind", "shape"), CASES)
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_losses_and_gradients_are_those_of_torch(algorithm, kind, shape):
    space = ACTIONS["Box" if kind == "gSDE" else kind]
    settings = {"use_sde": kind == "gSDE", "ent_coef": 0.02, "learning_rate": 0.0, **SHAPES[shape]}
    settings |= {"max_grad_norm": 1e9}
    if algorithm == "ppo":
        settings |= {"n_epochs": 1, "batch_size": 33, "clip_coef_vf": 0.1}
    else:
        settings |= {"optimizer": "adam"}
    native, torchs = pair(algorithm, lambda: Answer(space), **settings)
    mine = native.update(1.0)
    theirs = torchs.update(0.0, 0.2) if algorithm == "ppo" else torchs.update(0.0)
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-4, atol=1e-5, err_msg=name)
    mine = gradients(native.policy.optimizer_state())
    theirs = gradients(torchs.optimizer)
    assert mine.keys() == theirs.keys()
    assert any(np.abs(x).max() > 1e-3 for x in theirs.values())
    for name in theirs:
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("shape", ["plain", "shared"])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_optimizer_states_go_from_one_backend_to_the_other(algorithm, shape):
    settings = {"batch_size": 33} if algorithm == "ppo" else {}
    native, torchs = pair(algorithm, lambda: Answer(ACTIONS["Box"]), **settings, **SHAPES[shape])
    native.update(1.0)
    _ = torchs.update(1e-3, 0.2) if algorithm == "ppo" else torchs.update(1e-3)
    mine, theirs = native.policy.optimizer_state(), torchs.optimizer.state()
    torchs.optimizer.load_state(mine)
    native.policy.load_optimizer_state(theirs)
    loaded = native.policy.optimizer_state(), torchs.optimizer.state()
    for given, taken in zip((theirs, mine), loaded, strict=True):
        assert given.keys() == taken.keys()
        for name in given:
            np.testing.assert_array_equal(given[name], taken[name], err_msg=name)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_weights_after_an_update_are_those_of_torch(algorithm):
    settings = {"n_epochs": 3, "batch_size": 33} if algorithm == "ppo" else {}
    native, torchs = pair(algorithm, "CartPole-v1", learning_rate=1e-2, **settings)
    before = native.policy.tensors()
    native.update(1.0)
    _ = torchs.update(1e-2, 0.2) if algorithm == "ppo" else torchs.update(1e-2)
    after = native.policy.tensors()
    for name, theirs in torchs.policy.state_dict().items():
        moved = np.abs(after[name] - before[name]).max()
        assert moved > 1e-3, name
        np.testing.assert_allclose(after[name], theirs.numpy(), atol=moved * 0.02, err_msg=name)


@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("actions", ACTIONS)
def test_policies_go_to_torch_and_back(observations, actions):
    env = lambda: Noise(OBSERVATIONS[observations], ACTIONS[actions])  # noqa: E731
    config = PPOConfig(num_envs=2, n_steps=8, batch_size=16, n_epochs=1)
    native = NativePPO(make_vec(env, 2), config, seed=1)
    native.iterate()
    torchs = PPO(make_vec(env, 2), config, seed=2)
    torchs.policy.load_state_dict(native.to_torch().state_dict())
    space = OBSERVATIONS[observations]
    space.seed(3)
    batch = np.stack([space.sample() for _ in range(9)])
    for obs in (batch, batch[0]):
        mine, theirs = native.predict(obs), torchs.predict(obs)
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert ACTIONS[actions].contains(native.predict(batch[0], deterministic=False))
    with torch.no_grad():
        for parameter in torchs.policy.parameters():
            parameter.add_(0.25)
    native.load_torch(torchs.policy)
    np.testing.assert_allclose(native.predict(batch), torchs.predict(batch), rtol=1e-4, atol=1e-5)


def test_samples_belong_to_their_stream_and_normalisation_is_the_same():
    config = {"num_envs": 2, "n_steps": 32, "normalize_obs": True}
    native = NativePPO(make_vec("Pendulum-v1", 2), PPOConfig(**config), seed=1)
    native.iterate()
    torchs = PPO(make_vec("Pendulum-v1", 2), PPOConfig(**config), seed=2)
    torchs.policy.load_state_dict(native.to_torch().state_dict())
    torchs.normalizer.load_state(native.normalizer.state())
    obs = np.random.default_rng(0).normal(size=(3000, 3)) * 3
    np.testing.assert_allclose(native.predict(obs), torchs.predict(obs), rtol=1e-4, atol=1e-5)
    samples = [native.predict(obs, False, np.random.default_rng(s)) for s in (1, 1, 2)]
    np.testing.assert_array_equal(samples[0], samples[1])
    assert (samples[0] != samples[2]).any()
    spread = (samples[0] - native.predict(obs)).std()
    assert 0.5 < spread / np.exp(native.policy.tensors()["log_std"][0]) < 1.1  # some are clipped


def test_masks_are_obeyed():
    native = NativePPO(make_vec("CartPole-v1", 2), PPOConfig(num_envs=2), seed=1)
    obs = np.random.default_rng(0).normal(size=(50, 4))
    for allowed in (0, 1):
        masks = np.arange(2) == allowed
        for deterministic in (True, False):
            said = native.predict(obs, deterministic, action_masks=masks[None].repeat(50, 0))
            assert (said == allowed).all()
    with pytest.raises(ValueError, match="action_masks"):
        native.predict(obs, action_masks=np.zeros((50, 2), bool))


def trained_digest(seed=3):
    import hashlib

    from rlox import make_vec
    from rlox.configs import PPOConfig
    from rlox.native import NativePPO

    config = PPOConfig(num_envs=4, n_steps=64, n_epochs=2, normalize_obs=True)
    learner = NativePPO(make_vec("CartPole-v1", 4), config, seed=seed)
    for _ in range(3):
        learner.iterate()
    weights = b"".join(x.tobytes() for x in learner.policy.tensors().values())
    return hashlib.sha256(weights).hexdigest()


def test_weights_are_the_same_in_other_processes_on_one_and_on_two_threads():
    program = inspect.getsource(trained_digest) + "print(trained_digest())"
    said = []
    for threads in "12":
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "RLOX_NUM_THREADS": threads},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.strip())
    assert said == [trained_digest()] * 2
    assert trained_digest(seed=4) != trained_digest()


def test_the_two_halves_are_the_whole():
    def make():
        config = A2CConfig(num_envs=4, normalize_reward=True, use_sde=True)
        return NativeA2C(make_vec("Pendulum-v1", 4), config, seed=1)

    whole = make()
    for _ in range(20):
        last = whole.iterate(0.5)
    first, second = make(), make()
    for _ in range(10):
        first.iterate(0.5)
    second.load_state(first.state())
    for _ in range(10):
        again = second.iterate(0.5)
    np.testing.assert_equal(again, last)  # NaN before the first episode's end
    expected, got = whole.state(), second.state()
    assert (got.counters, got.streams) == (expected.counters, expected.streams)
    for part in ("networks", "optimizer", "normalizer", "environment"):
        mine, theirs = getattr(got, part), getattr(expected, part)
        assert mine
        assert mine.keys() == theirs.keys()
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name])


@pytest.mark.parametrize("part", ["networks", "optimizer"])
def test_a_state_that_does_not_fit_changes_nothing(part):
    learner = NativePPO(make_vec("CartPole-v1", 2), PPOConfig(num_envs=2, n_steps=32), seed=1)
    learner.iterate()
    before, good = learner.state(), getattr(learner.state(), part)
    name = next(n for n in good if "weight" in n)
    wrong = {
        "absent": {n: x for n, x in good.items() if n != name},
        "more": {**good, "other": np.zeros(3, np.float32)},
        "another shape": {**good, name: np.zeros((3, 3), np.float32)},
        "not finite": {**good, name: np.full_like(good[name], np.nan)},
        "texts": {**good, name: np.array(["a"])},
    }
    learner.iterate()
    now = learner.state()
    for what, arrays in wrong.items():
        state = learner.state()
        state.counters, state.streams = before.counters, before.streams
        setattr(state, part, arrays)
        with pytest.raises(ValueError, match=f"^(tensors|state), section {part}: expected"):
            learner.load_state(state)
        after = learner.state()
        assert after.counters == now.counters, what
        for kept in ("networks", "optimizer"):
            for key, array in getattr(now, kept).items():
                np.testing.assert_array_equal(getattr(after, kept)[key], array)


def test_weights_that_are_no_dict_are_refused_with_what_is():
    policy = NativePPO(make_vec("CartPole-v1", 1), PPOConfig(), seed=1).policy
    for name, argument in [("load", "tensors"), ("check_tensors", "tensors")] + [
        (name, "state") for name in ("load_optimizer_state", "check_optimizer_state")
    ]:
        for wrong, shown in [(None, "None"), ([1.0], r"\[1\.0\]")]:
            words = f"^{argument}: expected a dict of names and arrays, got {shown}; pass what a "
            with pytest.raises(TypeError, match=words):
                getattr(policy, name)(wrong)


@pytest.mark.parametrize(("env_id", "output"), [("CartPole-v1", "logits"), ("Pendulum-v1", "mean")])
def test_outputs_that_are_not_finite_are_named_when_acting(env_id, output):
    learner = NativePPO(make_vec(env_id, 2), PPOConfig(num_envs=2, n_steps=32), seed=1)
    weights = learner.policy.tensors()
    for name in ("actor.2.bias", "actor.4.weight"):  # finite, and their products are not
        weights[name] = np.full_like(weights[name], 3e38)
    learner.policy.load(weights)
    obs = np.zeros(learner.env.single_observation_space.shape, np.float32)

    def location(call):
        with pytest.raises(NonFiniteError) as raised:
            call()
        error = raised.value
        return error.argument, error.got, error.row, error.step

    assert location(lambda: learner.predict(obs)) == (output, "inf", 0, None)
    assert location(learner.iterate) == (output, "inf", 0, 0)
    learner.timesteps = 128
    assert location(learner.iterate) == (output, "inf", 0, 64)


def test_numbers_that_are_not_finite_end_the_run_and_are_named():
    learner = NativePPO(make_vec("CartPole-v1", 2), PPOConfig(num_envs=2, n_steps=32), seed=1)
    learner.iterate()
    learner.buffer.returns[3, 1] = np.nan
    before = learner.policy.tensors()
    with pytest.raises(FloatingPointError, match=r"returns: .*NaN in row.* at step 64"):
        learner.update(1.0)
    for name, array in learner.policy.tensors().items():
        np.testing.assert_array_equal(array, before[name])
    learner.iterate()  # the next rollout is a better one


def test_two_threads_do_not_learn_at_once():
    config = PPOConfig(num_envs=2, n_steps=4096, n_epochs=50)
    learner = NativePPO(make_vec("CartPole-v1", 2), config, seed=1)
    first = threading.Thread(target=learner.iterate)
    first.start()

    def iterate():
        while first.is_alive():
            learner.iterate()

    with pytest.raises(RuntimeError, match="a learner that no other thread uses"):
        iterate()
    learner.stopping = True
    first.join()


@pytest.mark.parametrize(
    "space", [gym.spaces.Dict({"a": Discrete(2)}), gym.spaces.Tuple([Box(0, 1)])]
)
def test_other_observations_name_the_torch_backend(space):
    env = make_vec(lambda: Noise(space, Discrete(2)), 1)
    with pytest.raises(ValueError, match=r"observation space: .*backend='torch'"):
        NativePPO(env, PPOConfig(), seed=0)


def test_networks_beyond_memory_are_refused():
    with pytest.raises(MemoryError, match="net_arch"):
        NativePPO(make_vec("CartPole-v1", 1), PPOConfig(net_arch=(2**40, 2**40)), seed=0)
