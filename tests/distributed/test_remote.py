"""Workers of `rlox worker`: what they do is what is done here, also where one is killed."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager

import numpy as np
import pytest

from rlox import VecEnv
from rlox.distributed.remote import RemoteVecEnv
from rlox.trainers import A2CTrainer, IMPALATrainer, PPOTrainer

WORKER = [sys.executable, "-m", "rlox", "worker"]
TOKEN = "0123456789abcdef"


@contextmanager
def worker(*words, **variables):
    """A worker's process and address."""
    env = {**os.environ, **variables}
    process = subprocess.Popen([*WORKER, *words], stdout=subprocess.PIPE, text=True, env=env)
    try:
        yield process, process.stdout.readline().split()[3].removeprefix("http://").rstrip(",")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def two():
    with worker() as (_, one), worker() as (_, other):
        yield [one, other]


def plain(said):
    """Without arrays of arrays, which NumPy does not compare."""
    if isinstance(said, dict):
        return {name: plain(x) for name, x in said.items()}
    if isinstance(said, tuple | list):
        return [plain(x) for x in said]
    return list(said) if getattr(said, "dtype", None) == np.object_ else said


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_trajectories_are_those_of_environments_here(two, env_id, mode):
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


def trained(kind=IMPALATrainer, env="CartPole-v1", steps=1_280, callbacks=(), **settings):
    with kind(env=env, seed=3, runs_dir=None, **settings) as trainer:
        trainer.train(steps, callbacks=callbacks)
        return trainer.learner.state()


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_learning_from_remote_environments_is_learning_from_those_here(two, backend):
    how = {"num_envs": 4, "n_steps": 32, "backend": backend}
    here = trained(PPOTrainer, VecEnv(4, 9), **how)
    there = trained(PPOTrainer, RemoteVecEnv(two, 4, 9), **how)
    np.testing.assert_equal(here.networks, there.networks)
    np.testing.assert_equal(here.environment, there.environment)


@pytest.mark.parametrize("kind", [IMPALATrainer, A2CTrainer])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_workers_collect_what_threads_do(two, kind, backend):
    how = {"lockstep": True, "max_lag": 2, "num_actors": 2, "backend": backend, "num_envs": 8}
    how |= {} if kind is IMPALATrainer else {"async_collect": True}
    here, there = (trained(kind, **how, actors=x) for x in ("auto", f"grpc://{','.join(two)}"))
    np.testing.assert_equal(here.networks, there.networks)
    assert here.counters == there.counters


@pytest.mark.filterwarnings("ignore:environment. expected environments that go on:UserWarning")
def test_a_loaded_run_goes_on_with_workers_that_have_other_addresses(two, tmp_path):
    how = {"seed": 3, "lockstep": True, "max_lag": 2, "num_actors": 2, "runs_dir": None}
    with worker() as (_, gone), IMPALATrainer("CartPole-v1", actors=f"grpc://{gone}", **how) as old:
        old.train(320)
        old.save(tmp_path / "saved")
    went = []
    for actors in (f"grpc://{','.join(two)}", "threads"):
        with IMPALATrainer.load(tmp_path / "saved", actors=actors, runs_dir=None) as trainer:
            trainer.train(320)
            went.append(trainer.learner.state().networks)
    np.testing.assert_equal(went[0], went[1])
    with (
        IMPALATrainer.load(tmp_path / "saved", runs_dir=None) as trainer,
        pytest.raises(RuntimeError, match=gone),
    ):
        trainer.train(320)


def test_a_killed_worker_changes_nothing(two):
    killed, told = [], []

    def killing(process):
        def after(trainer, metrics):
            told.append(metrics.get("workers/recovered", 0))
            if trainer.timesteps >= 640 and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed.append(process.wait())

        return after

    how = {"lockstep": True, "max_lag": 2, "num_actors": 2}
    with worker() as (process, dying):
        named = f"grpc://{dying},{two[0]}"
        there = trained(**how, actors=named, callbacks=[killing(process)])
    np.testing.assert_equal(there.networks, trained(**how).networks)
    assert told[0] == 0
    assert told[-1] == 1
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


def test_clear_errors(two, tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:1\b"):
        RemoteVecEnv(["127.0.0.1:1"], 2, 0, connect_timeout=0.5)
    for wrong in ("127.0.0.1:50051", None, [1], 7):
        with pytest.raises(TypeError, match="addresses: expected a list of workers' addresses, go"):
            RemoteVecEnv(wrong, 2, 0)
    with pytest.raises(ValueError, match="token: expected an address with https"):
        RemoteVecEnv(["worker.example:50051"], 2, 0, token=TOKEN)
    with pytest.raises(ValueError, match="max_episode_steps: expected at least 1, got 0"):
        RemoteVecEnv(two, 2, 0, max_episode_steps=0)
    with pytest.raises(ValueError, match="num_envs: expected at least 2, one for each worker"):
        RemoteVecEnv(two, 1, 0)
    with pytest.raises(ValueError, match=r'got "gravity" \(worker http://127'):
        RemoteVecEnv(two, 2, 0, gravity=1)
    with pytest.raises(ValueError, match="normalize_obs: expected False where workers collect"):
        trained(actors="grpc://127.0.0.1:1", normalize_obs=True)
    with pytest.raises(ValueError, match=r"actors: expected 'auto', .* or workers such as"):
        trained(actors="grpc://")
    (tmp_path / "token").write_text(TOKEN)
    with worker("--token-file", str(tmp_path / "token")) as (_, address):
        with pytest.raises(ValueError, match="token"):
            RemoteVecEnv([address], 2, 0)
        assert RemoteVecEnv([address], 2, 0, token=TOKEN).num_envs == 2
        monkeypatch.setenv("RLOX_WORKER_TOKEN", TOKEN)
        assert RemoteVecEnv([address], 2, 0).num_envs == 2


@pytest.mark.parametrize("asked", ["step(np.array([0, 1]))", "get_state()", "set_state(here)"])
def test_ctrl_c_ends_the_wait_for_a_worker_that_hangs(asked):
    """As a process, for the signal; what was left is taken in when the worker goes on."""
    told = """
import signal, sys, time
import numpy as np
from rlox import VecEnv
from rlox.distributed.remote import RemoteVecEnv
how = {"keepalive_timeout": 60, "recovery_timeout": 60}
env, twin = RemoteVecEnv([sys.argv[1]], 2, 0, **how), VecEnv(2, 0)
env.reset(seed=3), twin.reset(seed=3)
for _ in range(5):
    env.step(np.array([0, 1])), twin.step(np.array([0, 1]))
here = twin.get_state()
print("hang", flush=True)
sys.stdin.readline()
try:
    env.ASKED
except KeyboardInterrupt:
    print("left", flush=True)
sys.stdin.readline()
if "ASKED".startswith("step"):
    twin.step(np.array([0, 1]))
for _ in range(20):
    ours, theirs = env.step(np.array([0, 1])), twin.step(np.array([0, 1]))
    np.testing.assert_array_equal(ours[0], theirs[0])
np.testing.assert_equal(env.get_state(), twin.get_state())
print("on", flush=True)
""".replace("ASKED", asked)
    with worker() as (process, address):
        command = [sys.executable, "-c", told, address]
        trainer = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, bufsize=1)
        assert trainer.stdout.readline() == "hang\n"
        process.send_signal(signal.SIGSTOP)
        trainer.stdin.write("go\n")
        time.sleep(0.5)
        trainer.send_signal(signal.SIGINT)
        start = time.monotonic()
        assert trainer.stdout.readline() == "left\n"
        assert time.monotonic() - start < 2
        process.send_signal(signal.SIGCONT)
        assert trainer.communicate("go\n", timeout=30)[0] == "on\n"


def test_a_forked_process_is_told_to_connect_anew(two):
    with closing(RemoteVecEnv(two, 2, 0)) as env:
        env.reset(seed=1)
        child = os.fork()
        if child == 0:
            try:
                env.step(np.array([0, 1]))
            except ValueError as error:
                os._exit(0 if "connect anew in this process" in str(error) else 2)
            os._exit(1)
        start = time.monotonic()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert time.monotonic() - start < 2
        env.step(np.array([0, 1]))


def test_waits_stand_behind_the_addresses(two):
    there = trained(actors=f"grpc://{two[0]}?reply_timeout=60&keepalive_timeout=2.5", lockstep=True)
    np.testing.assert_equal(there.networks, trained(lockstep=True).networks)
    waits = ("reply_timeout", "reply_timeout=soon", "patience=3", "reply_timeout=1&&")
    seconds = ("reply_timeout=0", "reply_timeout=nan", "reply_timeout=inf", "reply_timeout=1e9")
    for wrong in (*waits, *seconds, "reply_timeout=2&reply_timeout=2"):
        with pytest.raises(ValueError, match="actors: expected seconds for connect_timeout, keep"):
            trained(actors=f"grpc://{two[0]}?{wrong}")
    most = "reply_timeout: expected more than 0 and at most a day"
    for wrong in (float("nan"), float("inf"), -1.0, 0.0, 1e9):
        with pytest.raises(ValueError, match=most):
            RemoteVecEnv(two, 2, 0, reply_timeout=wrong)
    for wrong in ("127.0.0.1:\N{ARABIC-INDIC DIGIT THREE}", "127.0.0.1:0", "127.0.0.1", ":1"):
        with pytest.raises(ValueError, match="actors: expected workers as host:port"):
            trained(actors=f"grpc://{wrong}")


def test_the_command_serves_until_it_is_told_to_end():
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        with worker() as (process, address):
            RemoteVecEnv([address], 2, 0).close()
            process.send_signal(number)
            assert process.wait(10) == code
    for words, said in (
        (["--bind", "0.0.0.0:0"], "bind: expected a loopback address, or TLS and a token"),
        (["--colour", "blue"], "--colour"),
    ):
        done = subprocess.run([*WORKER, *words], capture_output=True, text=True, timeout=30)
        assert done.returncode == 2
        assert said in done.stderr
    done = subprocess.run([*WORKER, "--help"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert "--tls-cert" in done.stdout
