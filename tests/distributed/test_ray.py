"""Actors and runs on a real local Ray: the same rollouts, and nothing is lost where actors die."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rlox
from rlox import train_many
from rlox.configs import IMPALAConfig
from rlox.distributed.ray_actors import RayActor, connect
from rlox.native import NativeIMPALA
from rlox.trainers import IMPALATrainer, PPOTrainer
from rlox.vector import make_vec
from support.envs import Breaking, Echo

# Ray warns of its own future, and leaves sockets open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray", reason="the extra rlox[ray] is not installed")
    here = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    ray.init(
        num_cpus=3,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield ray
    ray.shutdown()


def workers():
    """The processes of actors."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(b"ray::_Worker"):
                yield int(path.parent.name)


def trained(kind=IMPALATrainer, steps=640, **settings):
    how = {"seed": 3, "lockstep": True, "max_lag": 2, "num_actors": 2, "runs_dir": None}
    with kind(env="CartPole-v1", **how | settings) as trainer:
        trainer.train(steps)
        return trainer.learner.state()


def test_actors_of_ray_collect_what_threads_do(ray):
    here, there = trained(), trained(actors="ray")
    np.testing.assert_equal(here.networks, there.networks)
    assert here.counters == there.counters
    how = {"num_envs": 4, "n_steps": 16, "batch_size": 32, "async_collect": True}
    here, there = (trained(PPOTrainer, **how, actors=where) for where in ("auto", "ray"))
    np.testing.assert_equal(here.networks, there.networks)


def test_actors_that_die_are_replaced_and_an_identity_is_learned(ray):
    how = {"seed": 0, "num_envs": 8, "gamma": 0.0, "runs_dir": None, "num_actors": 2}
    killed = []

    def kill(trainer, metrics):
        if trainer.timesteps in (2_000, 6_000, 10_000):
            killed.append(min(workers()))
            os.kill(killed[-1], signal.SIGKILL)

    with IMPALATrainer(env=Echo, actors="ray", **how) as trainer:
        result = trainer.train(20_000, callbacks=[kill])
        assert result["timesteps"] == trainer.timesteps == 20_000
        assert trainer.evaluate(10)["mean_reward"] == 10.0
    assert len(set(killed)) == 3


def test_a_rollout_outlives_its_actor(ray, monkeypatch, caplog):
    plain, killed, came = RayActor.wait, [], []

    def wait(actor, seconds):
        made = actor._made
        if made <= 2 and made not in killed and ray.wait([actor._pending], timeout=seconds)[0]:
            killed.append(made)
            ray.kill(actor._actor)
        said = plain(actor, seconds)
        came.extend([] if said is None else [made])
        return said

    monkeypatch.setattr(RayActor, "wait", wait)
    # Large enough to be in the object store rather than in a message.
    how = {"num_envs": 64, "n_steps": 128, "lockstep": True, "max_lag": 1, "seed": 1}
    with IMPALATrainer("CartPole-v1", actors="ray", runs_dir=None, **how) as trainer:
        assert trainer.train(64 * 128 * 4)["timesteps"] == 64 * 128 * 4
    assert killed == [1, 2]
    assert came == sorted(came)
    assert {*came} == {1, 2, 3}  # of each what was there when it was killed
    told = [x.message for x in caplog.records]
    assert len(told) == 2
    assert all(x.startswith("actor 0 is lost, another one takes its place (Actor") for x in told)


@pytest.mark.slow
def test_a_rollout_that_is_lost_with_its_machine_is_collected_again():
    pytest.importorskip("ray", reason="the extra rlox[ray] is not installed")
    script = Path(__file__).parents[1] / "ray_machines.py"
    path = os.pathsep.join([str(script.parent), str(Path(rlox.__file__).parents[1])])
    command = [sys.executable, script]
    how = {"capture_output": True, "text": True, "timeout": 110}
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False, **how)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (
        "actor 0 is lost, another one takes its place (ObjectReconstructionFailedE" in done.stderr
    )
    # Ray writes there, too.
    assert "removed 1, timesteps 32768, lost 1" in done.stdout.splitlines()


def test_statistics_outlive_actors(ray):
    how = {"seed": 0, "num_envs": 8, "normalize_obs": True, "runs_dir": None, "lockstep": True}

    def kill(trainer, metrics):
        if trainer.timesteps == 2_000:
            os.kill(min(workers()), signal.SIGKILL)

    with IMPALATrainer(env="CartPole-v1", actors="ray", **how) as trainer:
        trainer.train(4_000, callbacks=[kill])
        # Those of the rollouts that were lost are not counted, those of first observations are.
        assert 4_000 <= trainer.learner.normalizer.state()["obs_count"] < 4_200


def test_a_cluster_without_room_is_waited_for_until_ctrl_c(ray):
    how = {"num_envs": 8, "num_actors": 8, "runs_dir": None}
    with IMPALATrainer(env="CartPole-v1", actors="ray", **how) as trainer:
        threading.Timer(3.0, trainer.stop).start()
        assert trainer.train(1_000)["timesteps"] == 0
        assert trainer.learner.actors is None


def test_what_an_environment_raises_is_raised(ray):
    config = IMPALAConfig(num_envs=2, net_arch=(4,), actors="ray")
    learner = NativeIMPALA(make_vec(Breaking, 2), config, 0)

    def learn(one):
        for _ in range(10):
            one.iterate()

    with pytest.raises(ArithmeticError, match="the environment broke"):
        learn(learner)
    assert learner.actors is None
    config = replace(config, n_steps=32)  # so that none of them gets through
    dying = NativeIMPALA(make_vec(Breaking, 2, how="kill"), config, 0)
    with pytest.raises(RuntimeError, match="actor 0: expected one that fills rollouts, got 4"):
        learn(dying)


def test_runs_are_those_that_are_trained_here(ray):
    from rlox.distributed import ray as cluster

    how = {"runs_dir": None, "settings": [{"gamma": 0.9}, {"gamma": 0.99}]}
    there = cluster.train_many("ppo", "CartPole-v1", [1, 2], 512, **how)
    here = train_many("ppo", "CartPole-v1", [1, 2], 512, **how)
    for one, other in zip(there, here, strict=True):
        assert one["mean_reward"] == other["mean_reward"]
        assert one["timesteps"] == other["timesteps"] == 512


def test_a_run_that_fails_is_named_and_ctrl_c_ends_all(ray):
    from rlox.distributed import ray as cluster

    with pytest.raises(RuntimeError, match="ArithmeticError: the environment broke"):
        cluster.train_many("ppo", Breaking, [1], 512, runs_dir=None)
    threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    results = cluster.train_many("ppo", "CartPole-v1", [1, 2], 10**9, runs_dir=None)
    assert [result["interrupted"] for result in results] == [True, True]
    with pytest.raises(TypeError, match="no argument 'workers' on a cluster"):
        cluster.train_many("ppo", "CartPole-v1", [1], 512, workers=2)


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("127.0.0.1:1", ConnectionError, "a cluster that answers at 127.0.0.1:1, got .*; start it"),
        ("ray://127.0.0.1:1", ConnectionError, "a cluster that answers at ray://127.0.0.1:1, got"),
        ("nonsense", ValueError, "a cluster's host:port, .*, got 'nonsense'; set it so"),
    ],
)
def test_a_cluster_that_does_not_answer_is_named_at_once(monkeypatch, address, error, message):
    package = pytest.importorskip("ray", reason="the extra rlox[ray] is not installed")
    monkeypatch.setattr(package, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    began = time.monotonic()
    with pytest.raises(error, match=f"RAY_ADDRESS: expected {message}"):
        connect()
    assert time.monotonic() - began < 10
