"""Workers of `rlox worker`: rollouts and steps equal local ones, also after kills."""

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
from support.rejections import rejects
from support.thread_runs import run_in_fork

WORKER = [sys.executable, "-m", "rlox", "worker"]
TOKEN = "0123456789abcdef"
DISTRIBUTED = pytest.mark.distributed
ACTORS = {"deterministic": True, "max_staleness": 2, "num_actors": 2}


@contextmanager
def start_worker(*arguments):
    """Start a worker; yield the process and the address."""
    process = subprocess.Popen([*WORKER, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process, process.stdout.readline().split()[3].removeprefix("http://").rstrip(",")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def addresses():
    """Return the addresses of two workers."""
    with start_worker() as (_, first), start_worker() as (_, second):
        yield [first, second]


def to_lists(value):
    """Convert arrays of objects to lists, as NumPy does not compare such arrays."""
    if isinstance(value, dict):
        return {name: to_lists(x) for name, x in value.items()}
    if isinstance(value, tuple | list):
        return [to_lists(x) for x in value]
    return list(value) if getattr(value, "dtype", None) == np.object_ else value


def train(cls=IMPALATrainer, env="CartPole-v1", steps=1_280, callbacks=(), **settings):
    """Return the state of a learner after training."""
    with cls(env=env, seed=3, runs_dir=None, **settings) as trainer:
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
def test_remote_trajectories_equal_local_trajectories(addresses, env_id, mode):
    kwargs = {"autoreset_mode": mode, "max_episode_steps": 15}
    local = VecEnv(5, 3, env_id, **kwargs)
    with closing(RemoteVecEnv(addresses, 5, 3, env_id, **kwargs)) as remote:
        assert remote.single_observation_space == local.single_observation_space
        np.testing.assert_equal(remote.reset(seed=7), local.reset(seed=7))
        local.action_space.seed(1)
        for _ in range(60):
            actions = local.action_space.sample()
            np.testing.assert_equal(to_lists(remote.step(actions)), to_lists(local.step(actions)))
        options = {"reset_mask": np.array([True, False, True, False, False])}
        if mode == "SameStep":
            np.testing.assert_equal(remote.reset(options=options), local.reset(options=options))


@pytest.mark.parametrize(
    ("cls", "backend"),
    [
        (IMPALATrainer, "native"),
        pytest.param(IMPALATrainer, "torch", marks=DISTRIBUTED),
        pytest.param(A2CTrainer, "native", marks=DISTRIBUTED),
        pytest.param(A2CTrainer, "torch", marks=DISTRIBUTED),
    ],
)
def test_remote_actors_collect_the_same_rollouts_as_threads(addresses, cls, backend):
    settings = {**ACTORS, "backend": backend, "num_envs": 8}
    settings |= {} if cls is IMPALATrainer else {"async_collect": True}
    url = f"grpc://{','.join(addresses)}"
    local, remote = (train(cls, **settings, actors=actors) for actors in ("auto", url))
    np.testing.assert_equal(local.networks, remote.networks)
    assert local.counters == remote.counters


@DISTRIBUTED
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_remote_and_local_environments_give_the_same_weights(addresses, backend):
    settings = {"num_envs": 4, "n_steps": 32, "backend": backend}
    local = train(PPOTrainer, VecEnv(4, 9), **settings)
    remote = train(PPOTrainer, RemoteVecEnv(addresses, 4, 9), **settings)
    np.testing.assert_equal(local.networks, remote.networks)
    np.testing.assert_equal(local.environment, remote.environment)


@DISTRIBUTED
@pytest.mark.filterwarnings("ignore:environments could not be restored:UserWarning")
def test_loaded_runs_continue_with_workers_at_other_addresses(addresses, tmp_path):
    settings = {"seed": 3, **ACTORS, "runs_dir": None}
    with (
        start_worker() as (_, old_address),
        IMPALATrainer("CartPole-v1", actors=f"grpc://{old_address}", **settings) as trainer,
    ):
        trainer.train(320)
        trainer.save(tmp_path / "saved")
    weights = []
    for actors in (f"grpc://{','.join(addresses)}", "threads"):
        with IMPALATrainer.load(tmp_path / "saved", actors=actors, runs_dir=None) as trainer:
            trainer.train(320)
            weights.append(trainer.learner.state().networks)
    np.testing.assert_equal(weights[0], weights[1])
    with (
        IMPALATrainer.load(tmp_path / "saved", runs_dir=None) as trainer,
        rejects(RuntimeError, f"worker http://{old_address}:"),
    ):
        trainer.train(320)


@DISTRIBUTED
@pytest.mark.kills
def test_a_killed_worker_does_not_change_the_results(addresses):
    exit_codes, restarts = [], []

    def kill_after_640_steps(process):
        def kill(run, metrics):
            restarts.append(metrics.get("workers/restarted", 0))
            if run.budget_used >= 640 and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                exit_codes.append(process.wait())

        return kill

    with start_worker() as (process, address):
        actors = f"grpc://{address},{addresses[0]}"
        remote = train(**ACTORS, actors=actors, callbacks=[kill_after_640_steps(process)])
    np.testing.assert_equal(remote.networks, train(**ACTORS).networks)
    assert restarts[0] == 0
    assert restarts[-1] == 1
    with start_worker() as (process, address):
        env = RemoteVecEnv([addresses[0], address], 4, 9, snapshot_every=12)
        callbacks = [kill_after_640_steps(process)]
        remote = train(PPOTrainer, env, num_envs=4, n_steps=32, callbacks=callbacks)
        faults = env.faults()
    assert (faults["lost"], faults["restarted"]) == (1, 1)
    assert 0 < faults["replayed"] <= 12
    assert 0 < faults["longest"] < 5
    local = train(PPOTrainer, VecEnv(4, 9), num_envs=4, n_steps=32)
    np.testing.assert_equal(remote.networks, local.networks)
    assert exit_codes == [-signal.SIGKILL] * 2


WAITS = ("reply_timeout=soon", "patience=3", "reply_timeout=nan", "reply_timeout=2&reply_timeout=2")
# Invalid arguments of `RemoteVecEnv` and of trainers, and the argument that the error names.
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


@pytest.mark.parametrize(("arguments", "error", "name"), REMOTE_REFUSALS, ids=[str(x[0]) for x in REMOTE_REFUSALS])
def test_remote_environments_reject_invalid_arguments(addresses, arguments, error, name):
    with rejects(error, name):
        RemoteVecEnv(**{"addresses": addresses, "n": 2, "seed": 0, **arguments})


@pytest.mark.parametrize(("settings", "name"), ACTOR_REFUSALS, ids=[str(x[0]["actors"]) for x in ACTOR_REFUSALS])
def test_trainers_reject_invalid_actors(settings, name):
    with rejects(ArgumentError, name):
        train(**settings)


@DISTRIBUTED
def test_errors_name_the_worker_and_tokens_are_checked(addresses, tmp_path, monkeypatch):
    with rejects(RuntimeError, "worker http://127.0.0.1:1:"):
        RemoteVecEnv(["127.0.0.1:1"], 2, 0, connect_timeout=0.5)
    url = f"http://{addresses[0]}"
    with rejects(ArgumentError, "env_kwargs", got='"gravity"', worker=url):
        RemoteVecEnv(addresses, 2, 0, gravity=1)
    actors = f"grpc://{addresses[0]}?reply_timeout=60&keepalive_timeout=2.5"
    remote = train(actors=actors, deterministic=True)
    np.testing.assert_equal(remote.networks, train(deterministic=True).networks)
    (tmp_path / "token").write_text(TOKEN)
    with start_worker("--token-file", str(tmp_path / "token")) as (_, address):
        with rejects(ArgumentError, "token"):
            RemoteVecEnv([address], 2, 0)
        assert RemoteVecEnv([address], 2, 0, token=TOKEN).num_envs == 2
        monkeypatch.setenv("RLOX_WORKER_TOKEN", TOKEN)
        assert RemoteVecEnv([address], 2, 0).num_envs == 2


HANGING = """
import signal, sys, time
import numpy as np
from rlox import VecEnv
from rlox.distributed.remote import RemoteVecEnv
timeouts = {"keepalive_timeout": 60, "recovery_timeout": 60}
env, twin = RemoteVecEnv([sys.argv[1]], 2, 0, **timeouts), VecEnv(2, 0)
env.reset(seed=3), twin.reset(seed=3)
state = twin.get_state()
calls = (lambda: env.step(np.array([0, 1])), env.get_state, lambda: env.set_state(state))
for call in calls:
    print("hang", flush=True)
    sys.stdin.readline()
    try:
        call()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    sys.stdin.readline()
    if call is calls[0]:
        twin.step(np.array([0, 1]))
    for _ in range(20):
        result, expected = env.step(np.array([0, 1])), twin.step(np.array([0, 1]))
        np.testing.assert_array_equal(result[0], expected[0])
    np.testing.assert_equal(env.get_state(), twin.get_state())
    env.step(np.array([0, 1])), twin.step(np.array([0, 1]))  # the next `get_state` calls the worker
    state = twin.get_state()
print("done", flush=True)
"""


@DISTRIBUTED
@pytest.mark.serial
def test_ctrl_c_interrupts_the_wait_for_a_hanging_worker():
    """Check in a child process that interrupted calls complete when the worker continues."""
    with start_worker() as (process, address):
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
                assert program.stdout.readline() == "interrupted\n"
                assert time.monotonic() - start < 2
                process.send_signal(signal.SIGCONT)
                program.stdin.write("go\n")
            assert program.communicate(timeout=30)[0] == "done\n"


def test_forked_processes_must_make_a_new_client(addresses):
    with closing(RemoteVecEnv(addresses, 2, 0)) as env:
        env.reset(seed=1)

        def work():
            with rejects(ClosedError, "workers", "make a new client in this process"):
                env.step(np.array([0, 1]))

        start = time.monotonic()
        run_in_fork(work)
        assert time.monotonic() - start < 2
        env.step(np.array([0, 1]))


@DISTRIBUTED
def test_worker_command_exits_on_sigterm_and_sigint():
    for signal_number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        with start_worker() as (process, address):
            RemoteVecEnv([address], 2, 0).close()
            process.send_signal(signal_number)
            assert process.wait(10) == code
    for arguments, message in ((["--bind", "0.0.0.0:0"], "bind: "), (["--colour", "blue"], "--colour")):
        result = subprocess.run([*WORKER, *arguments], capture_output=True, text=True, timeout=30)
        assert result.returncode == 2
        assert message in result.stderr
    result = subprocess.run([*WORKER, "--help"], capture_output=True, text=True, timeout=30)
    assert result.returncode == 0
    assert "--tls-cert" in result.stdout
