"""Native PPO and A2C equal torch; states, errors, threads and memory of native learners."""

import os
import subprocess
import sys
import threading
from functools import partial
from types import SimpleNamespace
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from rlox import ArgumentError, ArgumentTypeError, ClosedError, NonFiniteError, RolloutBuffer, make_vec
from rlox._rlox import NativePolicy, network_backends
from rlox._rng import state_for_native
from rlox.algorithms import PPO, A2CConfig, PPOConfig
from rlox.learners.native_on_policy import NativeA2C, NativePPO
from rlox.trainers import A2CTrainer, DQNTrainer
from support.envs import Answer, Sampled
from support.off_policy import assert_learners_equal
from support.rejections import expect_rejection, rejections, rejects
from support.runs import pair

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


def ppo(env="CartPole-v1", num_envs=2, backend="native", **settings):
    settings = {"num_envs": num_envs, "n_steps": 32, **settings}
    return NativePPO(make_vec(env, num_envs), PPOConfig(**settings), 1, backend)


def gradients_from_moments(state):
    """Return the gradients, which the first moments of Adam contain after one step."""
    return {n.removesuffix(".exp_avg"): x for n, x in state.items() if n.endswith(".exp_avg")}


def update_both(native, torch_learner):
    """Return the metrics of an update of each learner."""
    return native.update(0.0), torch_learner.update(0.0)


def assert_close(actual, expected, rtol):
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol, atol=1e-5, err_msg=name)


ACTION_KINDS = ["Discrete", "MultiDiscrete", "MultiBinary", "Box", "gSDE"]
# gSDE reads the last hidden layer.
SPACES_AND_SHAPES = [(k, s) for k in ACTION_KINDS for s in SHAPES if k != "gSDE" or "no hidden" not in s]


@pytest.mark.parametrize(("action_kind", "shape"), SPACES_AND_SHAPES)
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_losses_and_gradients_equal_torch(algorithm, action_kind, shape):
    space = ACTIONS["Box" if action_kind == "gSDE" else action_kind]
    settings = {"use_sde": action_kind == "gSDE", "ent_coef": 0.02, "learning_rate": 0.0, **SHAPES[shape]}
    settings |= {"max_grad_norm": 1e9}
    if algorithm == "ppo":
        settings |= {"n_epochs": 1, "batch_size": 33, "clip_coef_vf": 0.1}
    else:
        settings |= {"optimizer": "adam"}
    native, torch_learner = pair(algorithm, lambda: Answer(space), **settings)
    assert_close(*update_both(native, torch_learner), rtol=1e-4)
    actual = gradients_from_moments(native.policy.optimizer_state())
    expected = gradients_from_moments(torch_learner.optimizer.state())
    assert any(np.abs(x).max() > 1e-3 for x in expected.values())
    assert_close(actual, expected, rtol=1e-5)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_weights_after_an_update_equal_torch(algorithm):
    settings = {"n_epochs": 3, "batch_size": 33} if algorithm == "ppo" else {}
    native, torch_learner = pair(algorithm, "CartPole-v1", learning_rate=1e-2, **settings)
    before = native.policy.tensors()
    update_both(native, torch_learner)
    after = native.policy.tensors()
    for name, expected in torch_learner.policy.state_dict().items():
        moved = np.abs(after[name] - before[name]).max()
        assert moved > 1e-3, name
        np.testing.assert_allclose(after[name], expected.numpy(), atol=moved * 0.02, err_msg=name)


# Each observation space and each action space occurs once.
PAIRS = [*zip([*OBSERVATIONS, "Box"], ACTIONS, strict=True)]


@pytest.mark.parametrize("backend", network_backends())
@pytest.mark.parametrize(("observations", "actions"), PAIRS)
def test_policies_convert_to_torch_and_back(observations, actions, backend):
    env = lambda: Sampled(OBSERVATIONS[observations], ACTIONS[actions])  # noqa: E731
    native = ppo(env, backend=backend, n_steps=8, batch_size=16, n_epochs=1)
    native.iterate()
    torch_learner = PPO(make_vec(env, 2), native.config, seed=2)
    torch_learner.policy.load_state_dict(native.to_torch().state_dict())
    space = OBSERVATIONS[observations]
    space.seed(3)
    batch = np.stack([space.sample() for _ in range(9)])
    for obs in (batch, batch[0]):
        actual, expected = native.predict(obs), torch_learner.predict(obs)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert ACTIONS[actions].contains(native.predict(batch[0], deterministic=False))
    with torch.no_grad():
        for parameter in torch_learner.policy.parameters():
            parameter.add_(0.25)
    native.load_torch(torch_learner.policy)
    np.testing.assert_allclose(native.predict(batch), torch_learner.predict(batch), rtol=1e-4, atol=1e-5)
    weights = {name: x.numpy() for name, x in torch_learner.policy.state_dict().items()}
    np.testing.assert_equal(native.policy.tensors(), weights)


def test_predict_samples_from_its_stream_and_normalizes_observations():
    native = ppo("Pendulum-v1", normalize_obs=True)
    native.iterate()
    torch_learner = PPO(make_vec("Pendulum-v1", 2), native.config, seed=2)
    torch_learner.policy.load_state_dict(native.to_torch().state_dict())
    torch_learner.normalizer.load_state(native.normalizer.state())
    obs = np.random.default_rng(0).normal(size=(3000, 3)) * 3
    np.testing.assert_allclose(native.predict(obs), torch_learner.predict(obs), rtol=1e-4, atol=1e-5)
    samples = [native.predict(obs, False, np.random.default_rng(s)) for s in (1, 1, 2)]
    np.testing.assert_array_equal(samples[0], samples[1])
    assert (samples[0] != samples[2]).any()
    spread = (samples[0] - native.predict(obs)).std()
    assert 0.5 < spread / np.exp(native.policy.tensors()["log_std"][0]) < 1.1  # some samples are clipped


@pytest.mark.parametrize("part", ["networks", "optimizer", "environment"])
def test_load_state_rejects_invalid_states_and_changes_nothing(part):
    learner = ppo()
    learner.iterate()
    before, arrays_of_part = learner.state(), getattr(learner.state(), part)
    name = next((n for n in arrays_of_part if "weight" in n), next(iter(arrays_of_part)))
    wrong = [
        {n: x for n, x in arrays_of_part.items() if n != name},
        {**arrays_of_part, name: np.zeros((3, 3), np.float32)},
        {**arrays_of_part, name: np.full_like(arrays_of_part[name], np.nan, dtype=np.float32)},
        {**arrays_of_part, name: np.array(["a"])},
    ]
    if part != "environment":  # the environment ignores unknown names
        wrong.append({**arrays_of_part, "other": np.zeros(3, np.float32)})
    learner.iterate()
    current, policy = learner.state(), learner.policy
    for arrays in wrong:
        state = learner.state()
        state.counters, state.streams = before.counters, before.streams
        setattr(state, part, arrays)
        # States are equal if weights are loaded and then restored. The mock detects such loads.
        learner.policy = mock.Mock(wraps=policy, load=mock.Mock(side_effect=AssertionError))
        with pytest.raises((ArgumentError, NonFiniteError)) as raised:
            learner.load_state(state)
        learner.policy = policy
        assert raised.value.section.split(", ")[0] == part
        assert_learners_equal(learner, SimpleNamespace(state=lambda: current))


@pytest.mark.parametrize(("env_id", "output"), [("CartPole-v1", "logits"), ("Pendulum-v1", "mean")])
def test_non_finite_outputs_are_located(env_id, output):
    learner = ppo(env_id)
    weights = learner.policy.tensors()
    for name in ("actor.2.bias", "actor.4.weight"):  # finite weights with infinite products
        weights[name] = np.full_like(weights[name], 3e38)
    learner.policy.load(weights)
    obs = np.zeros(learner.env.single_observation_space.shape, np.float32)

    def error_location(call):
        with pytest.raises(NonFiniteError) as raised:
            call()
        error = raised.value
        return error.argument, error.got, error.row, error.step

    assert error_location(lambda: learner.predict(obs)) == (output, "inf", 0, None)
    assert error_location(learner.iterate) == (output, "inf", 0, 0)
    learner.timesteps = 128
    assert error_location(learner.iterate) == (output, "inf", 0, 64)


def test_iterate_rejects_a_second_thread():
    learner = ppo(n_steps=4096, n_epochs=50)
    first = threading.Thread(target=learner.iterate)
    first.start()

    def iterate():
        while first.is_alive():
            learner.iterate()

    with rejects(ClosedError, "learner"):
        iterate()
    learner.stop_requested = True
    first.join()


SHAPE = {"net_arch": (8,), "activation": "tanh", "ortho_init": True, "shared_trunk": False}
SHAPE |= {"use_sde": False, "log_std_init": 0.0}
NUMBER_SPACE = {"kind": "numbers", "shape": (4,)}
TWO_ACTIONS = {"kind": "discrete", "n": 2, "start": 0}


def make_policy(observation=NUMBER_SPACE, action=TWO_ACTIONS):
    stream = state_for_native(np.random.default_rng(0))
    return NativePolicy(observation, action, stream, SHAPE, "native")


@pytest.mark.parametrize("make", [ppo, partial(DQNTrainer, "CartPole-v1", backend="native")])
@pytest.mark.parametrize(("obs", "masks"), [(np.zeros((2, 3)), None), (np.zeros((2, 4)), True), ("x", None)])
def test_rejected_predictions_leave_the_random_stream_unchanged(make, obs, masks):
    learner = make()
    learner = getattr(learner, "learner", learner)
    before = learner.state().streams
    with pytest.raises((ArgumentError, ArgumentTypeError)):
        learner.predict(obs, deterministic=False, action_masks=masks)
    assert learner.state().streams == before
    learner.predict(np.zeros((2, 4)), deterministic=False)
    assert learner.state().streams != before


@pytest.mark.timeout(60)
def test_predictions_and_training_with_statistics_do_not_deadlock():
    learner = ppo(n_steps=64, normalize_obs=True)
    over, obs = threading.Event(), np.zeros((64, 4), np.float32)

    def predict():
        while not over.is_set():
            learner.predict(obs)

    threads = [threading.Thread(target=predict, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        learner.iterate()
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_schedules_multiply_the_float32_learning_rate(schedule):
    learner = ppo(num_envs=1, n_steps=64, learning_rate=1e-3, lr_schedule=schedule)
    policy = learner.policy = mock.Mock(wraps=learner.policy)
    metrics = learner.iterate(0.3)
    remaining = 0.7 if schedule == "linear" else 1.0
    assert policy.ppo.call_args.args[1]["learning_rate"] == float(np.float32(1e-3)) * remaining
    assert metrics["train/learning_rate"] == 1e-3 * remaining


def test_closed_environment_raises_a_closed_error():
    learner = NativeA2C(make_vec("CartPole-v1", 2), A2CConfig(num_envs=2), seed=0)
    learner.iterate()
    learner.env.close()
    with pytest.raises(ClosedError):
        learner.iterate()


def test_update_rejects_rollouts_of_resets():
    learner = ppo(n_steps=4)
    resets = RolloutBuffer(1, 2, (4,))
    resets.begin(np.zeros((2, 4)), ended=[True, True])
    flags = np.zeros(2, bool), np.zeros(2, bool)
    resets.record(0, [0, 0], np.zeros(2), np.zeros(2), np.zeros((2, 4)), np.zeros(2), *flags)
    resets.finish(np.zeros(2), 0.9, 0.9)
    learner.buffer = resets
    with rejects(ArgumentError, "buffer", got="a rollout with only resets"):
        learner.update(0.0)


ONE_HOT = {"kind": "one_hot", "shape": (2,)}
DICT = gym.spaces.Dict({"a": Discrete(2)})


def predict_with_mask(*shape):
    make_policy().predict(np.zeros((2, 4)), None, np.ones(shape, bool))


def small_eps():
    A2CTrainer("CartPole-v1", 0, optimizer_eps=1e-50, backend="native", runs_dir=None)


@rejections(
    (lambda: make_policy().load(None), ArgumentTypeError, "tensors", "pass the tensors"),
    (lambda: make_policy().check_tensors([1.0]), ArgumentTypeError, "tensors"),
    (lambda: make_policy().load_optimizer_state(None), ArgumentTypeError, "state"),
    (lambda: make_policy().check_optimizer_state([1]), ArgumentTypeError, "state"),
    (lambda: make_policy(ONE_HOT | {"counts": [2]}), ArgumentError, "counts"),
    (lambda: make_policy(ONE_HOT | {"counts": [2, 0]}), ArgumentError, "counts"),
    (lambda: predict_with_mask(1, 2), ArgumentError, "action_masks"),
    (lambda: predict_with_mask(2, 3), ArgumentError, "action_masks"),
    (lambda: ppo(lambda: Sampled(DICT, DICT["a"])), ArgumentError, "observation space"),
    (lambda: ppo().update(0.0), ArgumentError, "buffer"),
    (small_eps, ArgumentError, "optimizer_eps"),
)
def test_native_learner_rejects_invalid_calls(rejection):
    expect_rejection(rejection)


def test_counts_beyond_memory_are_rejected():
    with pytest.raises((ValueError, MemoryError)):
        make_policy(ONE_HOT | {"counts": [2**63, 2**63 + 4]})


def test_predictions_do_not_depend_on_batch_size():
    native_policy, obs = make_policy(), np.random.default_rng(0).normal(size=(20_000, 4))
    np.testing.assert_array_equal(native_policy.predict(obs)[::1000], [native_policy.predict(x) for x in obs[::1000]])
    np.testing.assert_array_equal(native_policy.predict(obs, 7)[:50], native_policy.predict(obs[:50], 7))


def test_load_torch_accepts_half_precision_weights():
    native = ppo()
    native.load_torch(native.to_torch().bfloat16())
    weights = native.to_torch().bfloat16().state_dict()
    weights = {name: weight.float().numpy() for name, weight in weights.items()}
    np.testing.assert_equal(native.policy.tensors(), weights)


COMPLEX, META = torch.ones(1, dtype=torch.complex64), torch.ones(1, device="meta")


def module_with_state(state):
    """Return a module whose state_dict() returns `state`."""
    module = torch.nn.Module()
    module.state_dict = lambda: state
    return module


@pytest.mark.parametrize(
    ("module", "error", "argument", "got"),
    [
        (torch.nn.ReLU(), ArgumentError, "module", "relu"),
        (module_with_state({"actor.0.weight": [1.0]}), ArgumentTypeError, "module", "[1.0] as actor.0.weight"),
        (module_with_state({"a": COMPLEX}), ArgumentTypeError, "module", f"{COMPLEX!r} as a"),
        (module_with_state({"a": META}), ArgumentTypeError, "module", f"{META!r} as a"),
        (module_with_state([1.0]), ArgumentTypeError, "module", "[1.0] as state_dict()"),
        (module_with_state({"a": torch.ones(1)}), ArgumentError, "tensors", 'only ["a"]'),
        (7, ArgumentTypeError, "module", "int"),
    ],
)
def test_load_torch_rejects_other_modules_and_changes_nothing(module, error, argument, got):
    native = ppo()
    before = native.policy.tensors()
    with rejects(error, argument, got=got):
        native.load_torch(module)
    np.testing.assert_equal(native.policy.tensors(), before)


def test_learner_can_be_stopped_from_another_thread():
    learner = ppo(n_steps=10_000, n_epochs=10_000)
    timer = threading.Timer(0.5, lambda: setattr(learner, "stop_requested", True))
    timer.start()
    learner.iterate()  # takes hours without the stop
    timer.join()
    assert learner.iterate() == {}  # its steps do not count
    assert learner.timesteps <= 20_000


@pytest.mark.parametrize("algorithm", ["ppo", "ppo with target_kl", "a2c"])
def test_a_stopped_update_changes_nothing(algorithm):
    sizes = {"num_envs": 16, "n_steps": 20_000, "net_arch": (64, 64, 64)}
    if algorithm == "a2c":
        learner = NativeA2C(make_vec("CartPole-v1", 16), A2CConfig(**sizes), seed=1)
    else:
        kl = 0.1 if "target_kl" in algorithm else None
        learner = ppo(**sizes, batch_size=16 * 20_000, n_epochs=1, target_kl=kl)
    assert learner.collect()
    before = learner.policy.tensors(), learner.policy.optimizer_state()
    timer = threading.Timer(0.1, lambda: setattr(learner, "stop_requested", True))
    timer.start()
    assert learner.update(0.0) == {}  # takes a second without the stop
    assert learner.updates == 0
    timer.join()
    np.testing.assert_equal((learner.policy.tensors(), learner.policy.optimizer_state()), before)
    learner.stop_requested = False
    assert learner.update(0.0)["train/n_updates"] == 1


MEMORY_PROGRAM = """
import os, resource, sys
import numpy as np
from rlox import make_vec
from rlox.configs import PPOConfig
from rlox.learners.native_on_policy import NativePPO

config = PPOConfig(num_envs=8, n_steps=256, batch_size=2048, n_epochs=1, net_arch=(512, 512))
calls = {
    "make": lambda learner: NativePPO(learner.env, config, seed=0),
    "iterate": lambda learner: learner.iterate(),
    "predict": lambda learner: learner.predict(np.zeros((50_000, 4), np.float32)),
}

def outcome(call, mebibytes):
    learner = NativePPO(make_vec("CartPole-v1", 8), config, seed=0)
    before = learner.policy.tensors()
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (mebibytes << 20), resource.RLIM_INFINITY))
    try:
        call(learner)
        return "done"
    except MemoryError:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    after = learner.policy.tensors()
    assert all(np.array_equal(x, after[name]) for name, x in before.items())
    assert learner.timesteps == 0
    return "rejected"

for name, call in calls.items():
    # Between these limits, glibc can abort if thread-local data does not fit.
    for mebibytes in (1, 200):
        child = os.fork()  # a new process has no free memory of earlier cases
        if child == 0:
            print(name, outcome(call, mebibytes), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, (name, mebibytes)
"""


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_failed_allocation_raises_and_changes_nothing():
    # glibc aborts if a new thread gets no memory.
    env = {**os.environ, "RLOX_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEMORY_PROGRAM]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    lines = [line.split() for line in run.stdout.splitlines()]
    for name in ("make", "iterate", "predict"):
        outcomes = [outcome for call, outcome in lines if call == name]
        assert (len(outcomes), outcomes[0], outcomes[-1]) == (2, "rejected", "done"), name
