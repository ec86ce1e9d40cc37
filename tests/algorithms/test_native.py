"""Native PPO and A2C against torch, and their states, errors, threads and memory."""

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

from rlox import ClosedError, NonFiniteError, RolloutBuffer, make_vec
from rlox._rlox import NativePolicy
from rlox.algorithms import PPO, A2CConfig, PPOConfig
from rlox.native import NativeA2C, NativePPO
from rlox.streams import state_for_native
from rlox.trainers import A2CTrainer
from support.envs import Answer
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


def ppo(env="CartPole-v1", num_envs=2, seed=1, **settings):
    settings = {"num_envs": num_envs, "n_steps": 32, **settings}
    return NativePPO(make_vec(env, num_envs), PPOConfig(**settings), seed)


class Noise(gym.Env):
    """Observations are samples of a space; episodes have seven steps."""

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
def test_optimizer_states_move_to_the_other_backend(algorithm, shape):
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
def test_policies_move_to_torch_and_back(observations, actions):
    env = lambda: Noise(OBSERVATIONS[observations], ACTIONS[actions])  # noqa: E731
    native = ppo(env, n_steps=8, batch_size=16, n_epochs=1)
    native.iterate()
    torchs = PPO(make_vec(env, 2), native.config, seed=2)
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


def test_samples_depend_on_their_stream_and_observations_are_normalised():
    native = ppo("Pendulum-v1", normalize_obs=True)
    native.iterate()
    torchs = PPO(make_vec("Pendulum-v1", 2), native.config, seed=2)
    torchs.policy.load_state_dict(native.to_torch().state_dict())
    torchs.normalizer.load_state(native.normalizer.state())
    obs = np.random.default_rng(0).normal(size=(3000, 3)) * 3
    np.testing.assert_allclose(native.predict(obs), torchs.predict(obs), rtol=1e-4, atol=1e-5)
    samples = [native.predict(obs, False, np.random.default_rng(s)) for s in (1, 1, 2)]
    np.testing.assert_array_equal(samples[0], samples[1])
    assert (samples[0] != samples[2]).any()
    spread = (samples[0] - native.predict(obs)).std()
    assert 0.5 < spread / np.exp(native.policy.tensors()["log_std"][0]) < 1.1  # some are clipped


def test_masked_actions_are_never_predicted():
    native = ppo()
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


def test_a_resumed_learner_equals_an_uninterrupted_one():
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
    learner = ppo()
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


def test_weights_that_are_no_dict_are_rejected():
    policy = ppo().policy
    for name, argument in [("load", "tensors"), ("check_tensors", "tensors")] + [
        (name, "state") for name in ("load_optimizer_state", "check_optimizer_state")
    ]:
        for wrong, shown in [(None, "None"), ([1.0], r"\[1\.0\]")]:
            words = f"^{argument}: expected a dict of names and arrays, got {shown}; pass what a "
            with pytest.raises(TypeError, match=words):
                getattr(policy, name)(wrong)


@pytest.mark.parametrize(("env_id", "output"), [("CartPole-v1", "logits"), ("Pendulum-v1", "mean")])
def test_outputs_that_are_not_finite_are_named(env_id, output):
    learner = ppo(env_id)
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


def test_returns_that_are_not_finite_are_named_and_nothing_moves():
    learner = ppo()
    learner.iterate()
    learner.buffer.returns[3, 1] = np.nan
    before = learner.policy.tensors()
    with pytest.raises(FloatingPointError, match=r"returns: .*NaN in row.* at step 64"):
        learner.update(1.0)
    for name, array in learner.policy.tensors().items():
        np.testing.assert_array_equal(array, before[name])
    learner.iterate()  # the next rollout is a better one


def test_two_threads_cannot_learn_at_once():
    learner = ppo(n_steps=4096, n_epochs=50)
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
def test_dict_observations_are_rejected_with_the_torch_backend_as_hint(space):
    with pytest.raises(ValueError, match=r"observation space: .*backend='torch'"):
        ppo(lambda: Noise(space, Discrete(2)))


def test_networks_beyond_memory_are_rejected():
    with pytest.raises(MemoryError, match="net_arch"):
        ppo(net_arch=(2**40, 2**40))


SHAPE = {
    "net_arch": (8,),
    "activation": "tanh",
    "ortho_init": True,
    "shared_trunk": False,
    "use_sde": False,
    "log_std_init": 0.0,
}


NUMBERS = {"kind": "numbers", "shape": (4,)}


TWO = {"kind": "discrete", "n": 2, "start": 0}


def policy(observation=NUMBERS, action=TWO):
    stream = state_for_native(np.random.default_rng(0))
    return NativePolicy(observation, action, stream, SHAPE, "native")


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


def test_a_sampled_prediction_does_not_change_the_noise_of_a_rollout():
    asked, seen = [], []

    class Opponent(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (3,))
        action_space = gym.spaces.Box(-100, 100, (1,))

        def reset(self, *, seed=None, options=None):
            return np.ones(3, np.float32), {}

        def step(self, action):
            seen.append(float(action[0]))
            for learner in asked:
                learner.predict(np.ones(3, np.float32), deterministic=False)
            return np.ones(3, np.float32), 0.0, False, False, {}

    settings = {"n_steps": 8, "use_sde": True, "log_std_init": -1.0, "batch_size": 8}
    learner = ppo(Opponent, 1, **settings)
    asked.append(learner)
    learner.iterate()
    assert len(set(seen)) == 1  # the same observation, the same noise


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_schedules_multiply_the_float32_learning_rate(schedule):
    learner = ppo(num_envs=1, n_steps=64, learning_rate=1e-3, lr_schedule=schedule)
    given = []
    real = learner.policy

    class Noting:
        def ppo(self, buffer, settings):
            given.append(settings["learning_rate"])
            return real.ppo(buffer, settings)

        def __getattr__(self, name):
            return getattr(real, name)

    learner.policy = Noting()
    metrics = learner.iterate(0.3)
    left = 0.7 if schedule == "linear" else 1.0
    assert given == [float(np.float32(1e-3)) * left]
    assert metrics["train/learning_rate"] == 1e-3 * left


def test_other_errors_are_not_reported_as_non_finite():
    with pytest.raises(ValueError, match="optimizer_eps: expected a number above 0 in float32"):
        A2CTrainer("CartPole-v1", 0, optimizer_eps=1e-50, backend="native", runs_dir=None)
    learner = NativeA2C(make_vec("CartPole-v1", 2), A2CConfig(num_envs=2), seed=0)
    learner.iterate()
    learner.env.close()
    with pytest.raises(ClosedError):
        learner.iterate()


def test_unfinished_rollouts_and_rollouts_of_resets_are_rejected():
    learner = ppo(n_steps=4)
    with pytest.raises(ValueError, match="buffer: expected a finished rollout with transitions"):
        learner.update(1.0)
    resets = RolloutBuffer(1, 2, (4,))
    resets.begin(np.zeros((2, 4)), ended=[True, True])
    flags = np.zeros(2, bool), np.zeros(2, bool)
    resets.record(0, [0, 0], np.zeros(2), np.zeros(2), np.zeros((2, 4)), np.zeros(2), *flags)
    resets.finish(np.zeros(2), 0.9, 0.9)
    learner.buffer = resets
    with pytest.raises(ValueError, match="got one of resets alone"):
        learner.update(1.0)


@pytest.mark.parametrize("counts", [[2], [2, 0], [2, 3, 4]])
def test_counts_that_do_not_fit_the_shape_are_rejected(counts):
    with pytest.raises(ValueError, match="counts: expected a positive count for each integer"):
        policy({"kind": "one_hot", "shape": (2,), "counts": counts})


def test_counts_beyond_memory_are_rejected():
    with pytest.raises((ValueError, MemoryError)):
        policy({"kind": "one_hot", "shape": (2,), "counts": [2**63, 2**63 + 4]})


@pytest.mark.parametrize("masks", [np.ones(4), np.ones((4, 1)), np.ones((2, 3)), np.ones((1, 2))])
def test_masks_of_another_shape_are_rejected(masks):
    with pytest.raises(ValueError, match="action_masks: expected shape"):
        policy().predict(np.zeros((2, 4)), None, masks.astype(bool))


def test_predictions_do_not_depend_on_the_number_of_rows():
    made, obs = policy(), np.random.default_rng(0).normal(size=(20_000, 4))
    np.testing.assert_array_equal(made.predict(obs)[::1000], [made.predict(x) for x in obs[::1000]])
    np.testing.assert_array_equal(made.predict(obs, 7)[:50], made.predict(obs[:50], 7))


def test_half_precision_weights_are_loaded():
    native = ppo()
    native.load_torch(native.to_torch().bfloat16())
    expected = native.to_torch().bfloat16().state_dict()
    for name, weight in native.policy.tensors().items():
        np.testing.assert_array_equal(weight, expected[name].float().numpy())


class Odd(torch.nn.Module):
    """A module with the given state_dict."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def state_dict(self):
        return self.state


@pytest.mark.parametrize(
    ("module", "error", "match"),
    [
        (torch.nn.ReLU(), ValueError, "module: expected the activation 'tanh', got relu; "),
        (Odd({"actor.0.weight": [1.0]}), TypeError, r"got \[1\.0\] as actor\.0\.weight; "),
        (Odd({"a": torch.ones(1, dtype=torch.complex64)}), TypeError, "expected real tensors"),
        (Odd({"a": torch.ones(1, device="meta")}), TypeError, "tensors with numbers in its"),
        (Odd([1.0]), TypeError, r"got \[1\.0\] as state_dict\(\); "),
        (Odd({"a": torch.ones(1)}), ValueError, 'one named "actor.0.weight"'),
        (7, TypeError, "module: expected a torch module, got int; "),
    ],
)
def test_other_modules_are_rejected_and_change_nothing(module, error, match):
    native = ppo()
    before = native.policy.tensors()
    with pytest.raises(error, match=match):
        native.load_torch(module)
    for name, weight in native.policy.tensors().items():
        np.testing.assert_array_equal(weight, before[name])


def test_a_learner_can_be_stopped_from_another_thread():
    learner = ppo(n_steps=10_000, n_epochs=10_000)
    timer = threading.Timer(0.5, lambda: setattr(learner, "stopping", True))
    timer.start()
    learner.iterate()  # hours, else
    timer.join()
    assert learner.iterate() == {}  # the steps of which do not count
    steps = learner.timesteps
    learner.stopping = False
    assert learner.timesteps == steps <= 20_000


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
    timer = threading.Timer(0.1, lambda: setattr(learner, "stopping", True))
    timer.start()
    assert learner.update(1.0) == {}  # which takes a second, else
    assert learner.updates == 0
    timer.join()
    after = learner.policy.tensors(), learner.policy.optimizer_state()
    for was, now in zip(before, after, strict=True):
        for name, array in was.items():
            np.testing.assert_array_equal(now[name], array)
    learner.stopping = False
    assert learner.update(1.0)["train/n_updates"] == 1


CALLS = """
import os, resource, sys
import numpy as np
from rlox import make_vec
from rlox.configs import PPOConfig
from rlox.native import NativePPO

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
    return "refused"

for name, call in calls.items():
    # Between these limits glibc can abort where thread-local data does not fit.
    for mebibytes in (1, 200):
        child = os.fork()  # a process that has no free memory of earlier cases
        if child == 0:
            print(name, outcome(call, mebibytes), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, (name, mebibytes)
"""


@pytest.mark.serial
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_refused_memory_is_an_error_and_changes_nothing():
    # glibc aborts a process in which a new thread gets no memory.
    env = {**os.environ, "RLOX_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CALLS]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    said = [line.split() for line in run.stdout.splitlines()]
    for name in ("make", "iterate", "predict"):
        outcomes = [outcome for call, outcome in said if call == name]
        assert (len(outcomes), outcomes[0], outcomes[-1]) == (2, "refused", "done"), name


@pytest.mark.parametrize("part", ["networks", "optimizer", "environment"])
def test_a_rejected_state_is_not_loaded_in_part(part):
    learner = ppo(n_steps=8, batch_size=16, n_epochs=1)
    learner.iterate()
    state = learner.state()
    getattr(state, part).clear()
    getattr(state, part)["nonsense"] = np.ones(1, np.float32)
    real = learner.policy

    class Checking:
        def load(self, tensors):
            raise AssertionError("loaded")

        def __getattr__(self, name):
            return getattr(real, name)

    learner.policy = Checking()
    with pytest.raises(ValueError, match=f"section {part}: "):
        learner.load_state(state)
