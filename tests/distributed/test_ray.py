"""Actors and runs on a local Ray cluster, and failures of actors and nodes."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rlox import ArgumentTypeError, train_many
from rlox.configs import IMPALAConfig
from rlox.envs import make_vec
from rlox.learners.native_on_policy import NativeIMPALA
from rlox.trainers import IMPALATrainer, PPOTrainer
from support.envs import Breaking, Echo
from support.rejections import rejects

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.services,
    # Ray raises warnings about Ray, and does not close all sockets.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def ray():
    ray = pytest.importorskip("ray", reason="the extra rlox[ray] is not installed")
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
    ray.init(
        num_cpus=3,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield ray
    ray.shutdown()


def actor_processes():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(b"ray::_Worker"):
                yield int(path.parent.name)


def train(cls=IMPALATrainer, steps=640, callbacks=(), **settings):
    """Return the state of a learner after training on CartPole."""
    defaults = {"seed": 3, "deterministic": True, "max_staleness": 2, "num_actors": 2}
    with cls(env="CartPole-v1", runs_dir=None, **defaults | settings) as trainer:
        trainer.train(steps, callbacks=callbacks)
        return trainer.learner.state()


def test_ray_actors_collect_the_same_rollouts_as_threads():
    local, remote = train(), train(actors="ray")
    np.testing.assert_equal(local.networks, remote.networks)
    assert local.counters == remote.counters
    settings = {"num_envs": 4, "n_steps": 16, "batch_size": 32, "async_collect": True}
    local, remote = (train(PPOTrainer, **settings, actors=actors) for actors in ("auto", "ray"))
    np.testing.assert_equal(local.networks, remote.networks)


@pytest.mark.kills
def test_killed_actors_are_restarted_and_training_succeeds():
    settings = {"seed": 0, "num_envs": 8, "gamma": 0.0, "runs_dir": None, "num_actors": 2}
    killed = []

    def kill(run, metrics):
        if run.budget_used in (2_000, 6_000, 10_000):
            killed.append(min(actor_processes()))
            os.kill(killed[-1], signal.SIGKILL)

    with IMPALATrainer(env=Echo, actors="ray", **settings) as trainer:
        result = trainer.train(20_000, callbacks=[kill])
        assert result["timesteps"] == trainer.timesteps == 20_000
        assert trainer.evaluate(10)["mean_reward"] == 10.0
    assert len(set(killed)) == 3


@pytest.mark.kills
def test_normalizer_statistics_survive_killed_actors():
    def kill(run, metrics):
        if run.budget_used == 2_000:
            os.kill(min(actor_processes()), signal.SIGKILL)

    settings = {"num_envs": 8, "normalize_obs": True, "num_actors": 1, "max_staleness": 1}
    state = train(actors="ray", steps=4_000, callbacks=[kill], **settings)
    # First observations are counted, lost rollouts are not.
    assert 4_000 <= state.normalizer["obs_count"] < 4_200


@pytest.mark.kills
def test_a_rollout_on_a_lost_node_is_collected_again():
    script = Path(__file__).parents[1] / "support" / "ray_nodes.py"
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=110, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    # Ray also writes to stdout.
    assert "nodes lost 1, timesteps 32768" in result.stdout.splitlines()


def test_a_run_waits_for_free_cpus_of_the_cluster_until_a_stop():
    settings = {"num_envs": 8, "num_actors": 8, "runs_dir": None}
    with IMPALATrainer(env="CartPole-v1", actors="ray", **settings) as trainer:
        threading.Timer(3.0, trainer.stop).start()
        assert trainer.train(1_000)["timesteps"] == 0
        assert trainer.learner.actors is None


@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_errors_of_environments_are_raised(fault):
    from ray.exceptions import RayActorError

    # An actor that fails in step 20 completes no rollout of 32 steps.
    config = IMPALAConfig(num_envs=2, net_arch=(4,), actors="ray", n_steps=32)
    learner = NativeIMPALA(make_vec(Breaking, 2, fault=fault), config, 0)

    with pytest.raises(ArithmeticError if fault == "raise" else RayActorError):
        any(not learner.iterate() for _ in range(10))
    assert learner.actors is None


def test_train_many_on_a_cluster_gives_the_results_of_local_runs():
    from rlox.distributed import ray as cluster

    kwargs = {"runs_dir": None, "settings": [{"gamma": 0.9}, {"gamma": 0.99}]}
    remote = cluster.train_many("ppo", "CartPole-v1", [1, 2], 512, **kwargs)
    local = train_many("ppo", "CartPole-v1", [1, 2], 512, **kwargs)
    for result, expected in zip(remote, local, strict=True):
        assert result["mean_reward"] == expected["mean_reward"]
        assert result["timesteps"] == expected["timesteps"] == 512


def test_train_many_on_a_cluster_reports_errors_and_stops_on_ctrl_c():
    from rlox.distributed import ray as cluster

    with pytest.raises(RuntimeError) as raised:
        cluster.train_many("ppo", Breaking, [1], 512, runs_dir=None)
    assert isinstance(raised.value.errors[0], ArithmeticError)
    threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    results = cluster.train_many("ppo", "CartPole-v1", [1, 2], 10**9, runs_dir=None)
    assert [result["interrupted"] for result in results] == [True, True]
    with rejects(ArgumentTypeError, "workers", got="2"):
        cluster.train_many("ppo", "CartPole-v1", [1], 512, workers=2)
