"""Long calls that Ctrl-C interrupts: `python interrupt_cases.py '["token_kl"]' '[0.05, 0.2]'`.

A case is a function that returns `make` and `state`. `make(n)` returns a call whose time grows with
n. An interrupted call must not change the result of `state()`. The script prints the error of each
case as JSON, or "" for success.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
from functools import partial

import numpy as np

import rlox
from rlox._rlox import NativeVectorEnv

# Largest delay between Ctrl-C and the end of a call, in seconds.
PROMISED = 0.25


def schedule_sigint(after):
    """Raise SIGINT in `after` seconds, whichever thread holds the GIL; return that time."""
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal_time = time.perf_counter() + after
    signal.setitimer(signal.ITIMER_REAL, after)
    return signal_time


def lateness(call, after):
    """Return the seconds from Ctrl-C to the end of a call; None if the call ended before."""
    signal_time = schedule_sigint(after)
    try:
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    except KeyboardInterrupt:
        return time.perf_counter() - signal_time
    return None


def machine_lateness():
    """Return the delay of an empty loop, which is the load of the machine."""

    def loop():
        while True:
            pass

    return max(lateness(loop, 0.02) for _ in range(5))


def long_call(make):
    """Return the call `make(n)` with n so large that it takes over 0.5 s, and the time."""
    n = 2**6
    while n < 2**40:
        call = make(n)
        start = time.perf_counter()
        result = call()
        elapsed = time.perf_counter() - start
        del result
        if elapsed > 0.5:
            return call, elapsed
        # Times below 0.1 s are too short to extrapolate from.
        n = 2 * n if elapsed < 0.1 else int(n * 0.65 / elapsed) + 1
    raise AssertionError("no call took long enough")


def check(make, state, shares=None, tries=4):
    """Interrupt a long call after 0.1 s, or after these shares of its time.

    Several tries tell a busy machine from a late call, which is late at every try.
    """
    call, elapsed = long_call(make)
    before = str(state())
    for after in [elapsed * share for share in shares] if shares else [0.1]:
        delays = []
        for _ in range(tries):
            slack, delay = machine_lateness(), lateness(call, after)
            assert str(state()) == before or delay is None
            delays.append((delay, max(slack, machine_lateness())))
            if delay is None:  # this call was faster than the first one
                after /= 2
            elif delay < PROMISED + delays[-1][1]:
                break
        else:
            raise AssertionError(f"seconds after Ctrl-C, of the call and of the machine: {delays}")


def no_state():
    pass


def case_of(arguments, call):
    """Return a case that calls `call` with prepared arguments."""
    return lambda: (lambda n: partial(call, *arguments(n)), no_state)


def noisy_acrobots(n):
    return NativeVectorEnv("Acrobot-v1", n, 0, None, None, {"torque_noise_max": 0.1})


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def gae_of_integers(n):
    x = zeros(2 * n, 64, dtype=np.int64)[:, ::2].T
    return x, x, zeros(32, 2 * n, dtype=bool), zeros(2 * n)


def orthogonal_weights():
    from rlox.configs import PPOConfig
    from rlox.learners.native_on_policy import NativePPO

    def make(n):
        width = int(40 * n ** (1 / 3))  # the time grows with the cube of the width
        config = PPOConfig(net_arch=(width, width))
        return lambda: NativePPO(rlox.make_vec("CartPole-v1", 1), config, seed=1)

    return make, no_state


def running_mean():
    statistics = [rlox.RunningMeanStd(())]

    def make(n):
        statistics[0] = rlox.RunningMeanStd(())
        rows = np.arange(n, dtype=np.float64)
        return lambda: statistics[0].update(rows)

    return make, lambda: (statistics[0].mean, statistics[0].var, statistics[0].count)


def env_case(call, state, env_id="CartPole-v1"):
    def case():
        env = []

        def make(n):
            env[:] = [rlox.VecEnv(n, seed=0, env_id=env_id)]
            env[0].reset()
            return call(env[0])

        return make, lambda: state(env[0])

    return case


def steps_into(n):
    env, steps = rlox.VecEnv(n, seed=0)._native, 20
    env.reset()
    obs, final_obs = zeros(2, steps, n, 4)
    rewards, (terminated, truncated) = np.zeros((steps, n)), zeros(2, steps, n, dtype=bool)
    actions = zeros(steps, n, dtype=np.int64)
    return lambda: env.steps_into(actions, obs, rewards, terminated, truncated, final_obs)


def set_states(env):
    first = env.get_state()
    second = {**first, "episode_returns": np.ones(env.num_envs)}
    return lambda: [env.set_state(first), env.set_state(second)]


ROWS = 3_000_000


def filled_buffer(cls=rlox.ReplayBuffer):
    column, off = np.arange(ROWS, dtype=np.float32), zeros(ROWS, dtype=bool)
    obs = np.repeat(column, 4).reshape(-1, 4)
    buffer = cls(ROWS, 4, 1, seed=0)
    buffer.push_batch(obs, obs, column[:, None], column, off, off)
    return buffer


def stream_of(buffer):
    """Return a function that reads the length and the random stream of a buffer."""
    return lambda: (len(buffer), buffer.state()["stream"].tolist())


def sample_by_priority():
    buffer = filled_buffer(rlox.PrioritizedReplayBuffer)

    def make(n):
        repeats = range(n // ROWS + 1)
        return lambda: [buffer.sample(min(n, ROWS), beta=0.7, seed=0) for _ in repeats]

    return make, lambda: (buffer.beta, buffer.state()["stream"].tolist())


def sample_from_a_file():
    rows = 1_000_000
    column, off = np.arange(rows, dtype=np.float32), zeros(rows, dtype=bool)
    path = os.path.join(tempfile.mkdtemp(), "replay")
    buffer = rlox.MmapReplayBuffer(1000, rows, 1, 1, path, seed=0)
    buffer.push_batch(column[:, None], column[:, None], column[:, None], column, off, off)
    os.remove(path)
    os.rmdir(os.path.dirname(path))
    return lambda n: lambda: buffer.sample(min(n, rows)), stream_of(buffer)


def sample_image_stacks():
    stacks, zero = zeros(2001, 4, 84, 84, dtype=np.uint8), zeros(2000)
    off = zeros(2000, dtype=bool)
    buffer = rlox.ReplayBuffer(40_000, (4, 84, 84), (), obs_dtype="uint8", frame_stack=4, seed=0)
    for _ in range(20):
        buffer.push_batch(stacks[:-1], stacks[1:], zero, zero, off, off, in_order=True)
    return lambda n: lambda: buffer.sample(min(n, 40_000)), stream_of(buffer)


def sample_a_long_sequence():
    column, off = np.arange(1001, dtype=np.float32)[:, None], zeros(1000, dtype=bool)
    buffer = rlox.ReplayBuffer(1000, 1, 1, seed=0)
    buffer.push_batch(column[:-1], column[1:], zeros(1000, 1), zeros(1000), off, off, in_order=True)
    return lambda n: lambda: buffer.sample_sequences(1, n), stream_of(buffer)


def replay_states():
    buffer = filled_buffer()
    return lambda n: lambda: [buffer.state() for _ in range(n // ROWS + 1)], lambda: len(buffer)


def training(phase, call, expected):
    """Return a case of training for hours: Ctrl-C ends `train`, and is raised by `iterate`."""

    def case(backend="native"):
        from rlox.trainers import PPOTrainer

        phases = {"collect": {"n_steps": 2_000_000}, "learn": {"n_steps": 64, "n_epochs": 10_000_000}}
        delays = []
        for _ in range(3):  # the machine may be busy
            slack = machine_lateness()
            settings = {"num_envs": 2, "runs_dir": None, "backend": backend, **phases[phase]}
            trainer = PPOTrainer("CartPole-v1", 1, **settings)
            signal_time = schedule_sigint(0.4)
            try:
                if call == "iterate":
                    result = trainer.learner.iterate()
                else:
                    result = trainer.train(10**9)["interrupted"], trainer.timesteps
            except KeyboardInterrupt:
                result = "raised"
            delays.append((time.perf_counter() - signal_time, max(slack, machine_lateness())))
            assert result == expected, result
            if delays[-1][0] < PROMISED + delays[-1][1]:
                return
        raise AssertionError(f"seconds after Ctrl-C, of the call and of the machine: {delays}")

    return case


CALLS = {
    "making environments": case_of(lambda n: ("CartPole-v1", n, 0), NativeVectorEnv),
    "a reset of copies": lambda: (lambda n: noisy_acrobots(n).reset, no_state),
    "compute_lambda_returns of integers": case_of(gae_of_integers, rlox.compute_lambda_returns),
    "orthogonal weights": orthogonal_weights,
    "token_kl": case_of(lambda n: [zeros(64, n)] * 2, rlox.token_kl),
    "pack_sequences": case_of(lambda n: ([np.zeros(300, np.int64)] * n, 1024), rlox.pack_sequences),
    "pack_lengths into a long row": case_of(lambda n: ([n], n), rlox.pack_lengths),
    "RunningMeanStd.update": running_mean,
    "weighted rewards": case_of(
        lambda n: (zeros(n, 2), 1), partial(rlox.compute_batch_group_advantages, weights=[1.0, 1.0])
    ),
    "a long seed": case_of(lambda n: (2, 1 << 8 * n), rlox.VecEnv),
    "extra fields": case_of(
        lambda n: ({f"field {i}": ((), "bool") for i in range(n)},),
        lambda extra: rlox.RolloutBuffer(1, 1, (1,), extra=extra),
    ),
}
# Cases that are slow to build, use up to 6 GiB, or resemble a case of CALLS.
SLOW = {
    "get_state": env_case(lambda env: env.get_state, lambda env: env._native.observe()),
    "reset": env_case(
        lambda env: lambda: env._native.reset(5),
        lambda env: (env._native.observe(), env._native.rng_states()),
        "Acrobot-v1",
    ),
    "set_state": env_case(
        set_states,
        lambda env: len(np.unique(env.get_state()["episode_returns"])),  # 1 if all environments changed, or none
    ),
    "half precision": case_of(lambda n: [zeros(64, n, dtype=np.float16)] * 2, rlox.token_kl),
    "long sequences": case_of(lambda n: ([np.zeros(n, np.int16)] * 10, 4 * n), rlox.pack_sequences),
    "groups with a missing reward": case_of(
        lambda n: (np.r_[np.nan, np.arange(2.0 * n - 1)], 2),
        partial(rlox.compute_batch_group_advantages, scale="batch"),
    ),
    "flags of floats": case_of(lambda n: [zeros(n)] * 3 + [0.0], rlox.compute_gae),
    "normalize_obs": case_of(lambda n: (zeros(n, 64),), rlox.Normalizer(1, (64,)).normalize_obs),
    "compute_gae of columns": case_of(
        lambda n: (zeros(n, 64), zeros(n, 64), zeros(n, 64) > 0, zeros(64)), rlox.compute_gae
    ),
    "compute_vtrace": case_of(lambda n: (*[zeros(n)] * 3, zeros(n) > 0, 0.0, 0.99), rlox.compute_vtrace),
    "policy_ratios": case_of(lambda n: [zeros(n)] * 2, rlox.policy_ratios),
    "steps_into": lambda: (steps_into, no_state),
    "samples of image stacks": sample_image_stacks,
    "samples by priority": sample_by_priority,
    "samples from a file": sample_from_a_file,
}
# Calls that are interrupted once, because their phases have no measurable length.
ONCE = {"a replay state": replay_states, "sample_sequences": sample_a_long_sequence}
TRAINING = {
    "collect by train": training("collect", "train", (True, 0)),  # half a rollout is discarded
    "learn by train": training("learn", "train", (True, 128)),
    "collect by iterate": training("collect", "iterate", "raised"),
    "learn by iterate": training("learn", "iterate", "raised"),
}


def held():
    """Return the control: a call that holds the GIL is late."""
    return lambda n: lambda: sum(range(n)), no_state


class InHandler:
    """Long call of `compute_gae` on up to 2 GiB, and a signal handler that runs during the call."""

    def __init__(self):
        for power in range(22, 28):
            x, y, z = zeros(3, 2**power)
            self.x, self.f, self.out = x, zeros(2**power, dtype=bool), (y, z)
            rlox.compute_gae(x, x, self.f, 0.0, out=self.out)
            start = time.perf_counter()
            rlox.compute_gae(x, x, self.f, 0.0, out=self.out)
            if time.perf_counter() - start > 0.3:
                break
        self.ran = False

    def interrupt(self, handler, after=0.1):  # the call has read its arguments by then
        def once(*_):
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.ran = True
            handler()

        signal.signal(signal.SIGALRM, once)
        signal.setitimer(signal.ITIMER_REAL, after)


def handler_changes_arrays():
    long = InHandler()
    x, f, out = long.x, long.f, long.out

    def change():
        x.dtype = np.uint8
        f.shape = (2, -1)
        out[0].dtype = np.uint8

    x[:] = 1.0
    long.interrupt(change)
    _, returns = rlox.compute_gae(x, x, f, 0.0, gamma=0.5, lam=0.0, out=out)
    assert long.ran
    assert returns.dtype == np.float32
    assert (returns[0], returns[-1]) == (1.5, 1.0)


def handler_makes_the_same_call():
    long = InHandler()
    x, f, out = long.x, long.f, long.out
    x[:] = 1.0
    expected, inner = rlox.compute_gae(x, x, f, 0.0), []
    long.interrupt(lambda: inner.extend(rlox.compute_gae(x, x, f, 0.0)))
    rlox.compute_gae(x, x, f, 0.0, out=out)
    assert long.ran
    for results in (inner, out):
        assert all(np.array_equal(*pair) for pair in zip(results, expected, strict=True))


def handler_uses_the_object_of_the_call():
    errors, long = [], InHandler()

    def use():
        try:
            buffer.final_index  # noqa: B018
        except rlox.ClosedError as error:
            errors.append(error)

    steps, n = 600, 100_000
    buffer = rlox.RolloutBuffer(steps, n, (1,), obs_dtype="uint8")
    obs, x, flags = zeros(n, 1, dtype=np.uint8), zeros(n), zeros(n, dtype=bool)
    buffer.begin(obs)
    for t in range(steps):
        buffer.record(t, zeros(n, dtype=np.int64), x, x, obs, x, flags, flags)
    buffer.finish(x, 0.99, 0.95)
    long.interrupt(use, 0.02)
    buffer.finish(x, 0.99, 0.95)
    assert long.ran
    assert len(errors) == 1
    assert buffer.final_index is not None


HANDLERS = {
    x.__name__: x for x in (handler_changes_arrays, handler_makes_the_same_call, handler_uses_the_object_of_the_call)
}


def run(name, shares):
    """Run a case; raise an error if it fails."""
    if name == "held":
        check(*held(), tries=1)
    elif name in TRAINING:
        TRAINING[name](*shares)  # `shares` has the backend
    elif name in HANDLERS:
        HANDLERS[name]()
    else:
        check(*{**CALLS, **SLOW, **ONCE}[name](), shares)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    names, shares = (json.loads(argument) for argument in sys.argv[1:])
    errors = {}
    for name in names:
        assert threading.current_thread() is threading.main_thread()
        try:
            run(name, shares)
            errors[name] = ""
        except BaseException as error:
            errors[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(errors))
