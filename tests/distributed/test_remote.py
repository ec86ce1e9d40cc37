"""Workers of `rlox worker`: their rollouts and steps are those made here, also if one is killed."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager

import numpy as np
import pytest

from rlox import ArgumentError, ArgumentTypeError, ClosedError, VecEnv
from rlox.distributed.remote import RemoteVecEnv
from rlox.trainers import A2CTrainer, IMPALATrainer, PPOTrainer
from support.refusals import refuses
from support.thread_runs import run_in_fork

WORKER = [sys.executable, "-m", "rlox", "worker"]
TOKEN = "0123456789abcdef"
DISTRIBUTED = pytest.mark.distributed
ACTORS = {"lockstep": True, "max_lag": 2, "num_actors": 2}


@contextmanager
def worker(*words):
    """A worker's process and address."""
    process = subprocess.Popen([*WORKER, *words], stdout=subprocess.PIPE, text=True)
    try:
        yield process, process.stdout.readline().split()[3].removeprefix("http://").rstrip(",")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def two():
    with worker() as (_, one), worker() as (_, other):
        yield [one, other]


def plain(value):
    """Convert arrays of arrays, which NumPy does not compare."""
    if isinstance(value, dict):
        return {name: plain(x) for name, x in value.items()}
    if isinstance(value, tuple | list):
        return [plain(x) for x in value]
    return list(value) if getattr(value, "dtype", None) == np.object_ else value


def trained(kind=IMPALATrainer, env="CartPole-v1", steps=1_280, callbacks=(), **settings):
    with kind(env=env, seed=3, runs_dir=None, **settings) as trainer:
        trainer.train(steps, callbacks=callbacks)
        return trainer.learner.state()


@pytest.mark.parametrize(
    ("env_id", "mode"),
    [
        ("CartPole-v1", "SameStep"),
        pytest.param("CartPole-v1", "NextStep", marks=DISTRIBUTED),
        pytest.param("Pendulum-v1", "SameStep", marks=DISTRIBUTED),
        pytest.param("Acrobot-v1", "NextStep", marks=DISTRIBUTED),
    ],
)
def test_remote_trajectories_equal_local_ones(two, env_id, mode):
    how = {"autoreset_mode": mode, "max_episode_steps": 15}
    here = VecEnv(5, 3, env_id, **how)
    with closing(RemoteVecEnv(two, 5, 3, env_id, **how)) as there:
        assert there.single_observation_space == here.single_observation_space
        np.testing.assert_equal(there.reset(seed=7), here.reset(seed=7))
        here.action_space.seed(1)
        for _ in range(60):
            actions = here.action_space.sample()
            np.testing.assert_equal(plain(there.step(actions)), plain(here.step(actions)))
        options = {"reset_mask": np.array([True, False, True, False, False])}
        if mode == "SameStep":
            np.testing.assert_equal(there.reset(options=options), here.reset(options=options))


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        (IMPALATrainer, "native"),
        pytest.param(IMPALATrainer, "torch", marks=DISTRIBUTED),
        pytest.param(A2CTrainer, "native", marks=DISTRIBUTED),
        pytest.param(A2CTrainer, "torch", marks=DISTRIBUTED),
    ],
)
def test_remote_actors_collect_what_threads_do(two, kind, backend):
    how = {**ACTORS, "backend": backend, "num_envs": 8}
    how |= {} if kind is IMPALATrainer else {"async_collect": True}
    here, there = (trained(kind, **how, actors=x) for x in ("auto", f"grpc://{','.join(two)}"))
    np.testing.assert_equal(here.networks, there.networks)
    assert here.counters == there.counters


@DISTRIBUTED
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_learning_from_remote_environments_equals_learning_from_local_ones(two, backend):
    how = {"num_envs": 4, "n_steps": 32, "backend": backend}
    here = trained(PPOTrainer, VecEnv(4, 9), **how)
    there = trained(PPOTrainer, RemoteVecEnv(two, 4, 9), **how)
    np.testing.assert_equal(here.networks, there.networks)
    np.testing.assert_equal(here.environment, there.environment)


@DISTRIBUTED
@pytest.mark.filterwarnings("ignore:environment. expected environments that go on:UserWarning")
def test_loaded_run_goes_on_with_workers_at_other_addresses(two, tmp_path):
    how = {"seed": 3, **ACTORS, "runs_dir": None}
    with worker() as (_, gone), IMPALATrainer("CartPole-v1", actors=f"grpc://{gone}", **how) as old:
        old.train(320)
        old.save(tmp_path / "saved")
    weights = []
    for actors in (f"grpc://{','.join(two)}", "threads"):
        with IMPALATrainer.load(tmp_path / "saved", actors=actors, runs_dir=None) as trainer:
            trainer.train(320)
            weights.append(trainer.learner.state().networks)
    np.testing.assert_equal(weights[0], weights[1])
    with (
        IMPALATrainer.load(tmp_path / "saved", runs_dir=None) as trainer,
        refuses(RuntimeError, f"worker http://{gone}:"),
    ):
        trainer.train(320)


@DISTRIBUTED
@pytest.mark.kills
def test_killed_worker_changes_nothing(two):
    killed, recovered = [], []

    def killing(process):
        def after(trainer, metrics):
            recovered.append(metrics.get("workers/recovered", 0))
            if trainer.timesteps >= 640 and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed.append(process.wait())

        return after

    with worker() as (process, dying):
        named = f"grpc://{dying},{two[0]}"
        there = trained(**ACTORS, actors=named, callbacks=[killing(process)])
    np.testing.assert_equal(there.networks, trained(**ACTORS).networks)
    assert recovered[0] == 0
    assert recovered[-1] == 1
    with worker() as (process, dying):
        env = RemoteVecEnv([two[0], dying], 4, 9, snapshot_every=12)
        there = trained(PPOTrainer, env, num_envs=4, n_steps=32, callbacks=[killing(process)])
        faults = env.faults()
    assert (faults["lost"], faults["recovered"]) == (1, 1)
    assert 0 < faults["replayed"] <= 12
    assert 0 < faults["longest"] < 5
    here = trained(PPOTrainer, VecEnv(4, 9), num_envs=4, n_steps=32)
    np.testing.assert_equal(there.networks, here.networks)
    assert killed == [-signal.SIGKILL] * 2


WAITS = ("reply_timeout=soon", "patience=3", "reply_timeout=nan", "reply_timeout=2&reply_timeout=2")
# Calls with the arguments of `RemoteVecEnv` or of a trainer, by argument.
REMOTE_REFUSALS = [
    ({"addresses": "127.0.0.1:50051"}, ArgumentTypeError, "addresses"),
    ({"addresses": [1]}, ArgumentTypeError, "addresses"),
    ({"addresses": ["worker.example:50051"], "token": TOKEN}, ArgumentError, "token"),
    ({"max_episode_steps": 0}, ArgumentError, "max_episode_steps"),
    ({"n": 1}, ArgumentError, "n"),
    *(({"reply_timeout": x}, ArgumentError, "reply_timeout") for x in (float("nan"), 0.0, 1e9)),
]
ACTOR_REFUSALS = [
    ({"actors": "grpc://127.0.0.1:1", "normalize_obs": True}, "normalize_obs"),
    ({"actors": "grpc://"}, "actors"),
    *(({"actors": f"grpc://127.0.0.1:1?{wait}"}, "actors") for wait in WAITS),
    *(({"actors": f"grpc://{x}"}, "actors") for x in ("a:\u0663", "a:0", ":1")),
]


@pytest.mark.parametrize(
    ("arguments", "error", "name"), REMOTE_REFUSALS, ids=[str(x[0]) for x in REMOTE_REFUSALS]
)
def test_remote_environments_refuse_wrong_arguments(two, arguments, error, name):
    with refuses(error, name):
        RemoteVecEnv(**{"addresses": two, "n": 2, "seed": 0, **arguments})


@pytest.mark.parametrize(
    ("settings", "name"), ACTOR_REFUSALS, ids=[str(x[0]["actors"]) for x in ACTOR_REFUSALS]
)
def test_trainers_refuse_wrong_workers(settings, name):
    with refuses(ArgumentError, name):
        trained(**settings)


@DISTRIBUTED
def test_errors_name_the_worker_and_tokens_are_checked(two, tmp_path, monkeypatch):
    with refuses(RuntimeError, "worker http://127.0.0.1:1:"):
        RemoteVecEnv(["127.0.0.1:1"], 2, 0, connect_timeout=0.5)
    url = f"http://{two[0]}"
    with refuses(ArgumentError, "env_kwargs", got='"gravity"', worker=url):
        RemoteVecEnv(two, 2, 0, gravity=1)
    there = trained(actors=f"grpc://{two[0]}?reply_timeout=60&keepalive_timeout=2.5", lockstep=True)
    np.testing.assert_equal(there.networks, trained(lockstep=True).networks)
    (tmp_path / "token").write_text(TOKEN)
    with worker("--token-file", str(tmp_path / "token")) as (_, address):
        with refuses(ArgumentError, "token"):
            RemoteVecEnv([address], 2, 0)
        assert RemoteVecEnv([address], 2, 0, token=TOKEN).num_envs == 2
        monkeypatch.setenv("RLOX_WORKER_TOKEN", TOKEN)
        assert RemoteVecEnv([address], 2, 0).num_envs == 2


HANGING = """
import signal, sys, time
import numpy as np
from rlox import VecEnv
from rlox.distributed.remote import RemoteVecEnv
how = {"keepalive_timeout": 60, "recovery_timeout": 60}
env, twin = RemoteVecEnv([sys.argv[1]], 2, 0, **how), VecEnv(2, 0)
env.reset(seed=3), twin.reset(seed=3)
here = twin.get_state()
calls = (lambda: env.step(np.array([0, 1])), env.get_state, lambda: env.set_state(here))
for call in calls:
    print("hang", flush=True)
    sys.stdin.readline()
    try:
        call()
    except KeyboardInterrupt:
        print("left", flush=True)
    sys.stdin.readline()
    if call is calls[0]:
        twin.step(np.array([0, 1]))
    for _ in range(20):
        ours, theirs = env.step(np.array([0, 1])), twin.step(np.array([0, 1]))
        np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_equal(env.get_state(), twin.get_state())
    env.step(np.array([0, 1])), twin.step(np.array([0, 1]))  # `get_state` asks the worker again
    here = twin.get_state()
print("on", flush=True)
"""


@DISTRIBUTED
@pytest.mark.serial
def test_ctrl_c_ends_the_wait_for_a_worker_that_hangs():
    """In a process of its own, for the signal; the call is done when the worker goes on."""
    with worker() as (process, address):
        command = [sys.executable, "-c", HANGING, address]
        with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, bufsize=1) as program:
            for _ in range(3):
                assert program.stdout.readline() == "hang\n"
                process.send_signal(signal.SIGSTOP)
                os.waitpid(process.pid, os.WUNTRACED)  # a thread could still answer until then
                program.stdin.write("go\n")
                time.sleep(0.5)
                program.send_signal(signal.SIGINT)
                start = time.monotonic()
                assert program.stdout.readline() == "left\n"
                assert time.monotonic() - start < 2
                process.send_signal(signal.SIGCONT)
                program.stdin.write("go\n")
            assert program.communicate(timeout=30)[0] == "on\n"


def test_forked_process_must_connect_anew(two):
    with closing(RemoteVecEnv(two, 2, 0)) as env:
        env.reset(seed=1)

        def work():
            with refuses(ClosedError, "workers", "connect anew in this process"):
                env.step(np.array([0, 1]))

        start = time.monotonic()
        run_in_fork(work)
        assert time.monotonic() - start < 2
        env.step(np.array([0, 1]))


@DISTRIBUTED
def test_worker_command_serves_until_it_is_told_to_end():
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        with worker() as (process, address):
            RemoteVecEnv([address], 2, 0).close()
            process.send_signal(number)
            assert process.wait(10) == code
    for words, message in ((["--bind", "0.0.0.0:0"], "bind: "), (["--colour", "blue"], "--colour")):
        done = subprocess.run([*WORKER, *words], capture_output=True, text=True, timeout=30)
        assert done.returncode == 2
        assert message in done.stderr
    done = subprocess.run([*WORKER, "--help"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert "--tls-cert" in done.stdout
