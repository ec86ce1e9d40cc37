"""Actors and runs on a local Ray cluster: the same rollouts, also where actors die."""

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
from support.refusals import refuses

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.services,
    # Ray warns of its own future, and leaves sockets open.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
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


def actor_processes():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(b"ray::_Worker"):
                yield int(path.parent.name)


def trained(kind=IMPALATrainer, steps=640, callbacks=(), **settings):
    how = {"seed": 3, "deterministic": True, "max_staleness": 2, "num_actors": 2, "runs_dir": None}
    with kind(env="CartPole-v1", **how | settings) as trainer:
        trainer.train(steps, callbacks=callbacks)
        return trainer.learner.state()


def test_ray_actors_collect_what_threads_do():
    here, there = trained(), trained(actors="ray")
    np.testing.assert_equal(here.networks, there.networks)
    assert here.counters == there.counters
    how = {"num_envs": 4, "n_steps": 16, "batch_size": 32, "async_collect": True}
    here, there = (trained(PPOTrainer, **how, actors=where) for where in ("auto", "ray"))
    np.testing.assert_equal(here.networks, there.networks)


@pytest.mark.kills
def test_killed_actors_are_restarted_and_an_identity_is_learned():
    how = {"seed": 0, "num_envs": 8, "gamma": 0.0, "runs_dir": None, "num_actors": 2}
    killed = []

    def kill(trainer, metrics):
        if trainer.timesteps in (2_000, 6_000, 10_000):
            killed.append(min(actor_processes()))
            os.kill(killed[-1], signal.SIGKILL)

    with IMPALATrainer(env=Echo, actors="ray", **how) as trainer:
        result = trainer.train(20_000, callbacks=[kill])
        assert result["timesteps"] == trainer.timesteps == 20_000
        assert trainer.evaluate(10)["mean_reward"] == 10.0
    assert len(set(killed)) == 3


@pytest.mark.kills
def test_normalizer_statistics_outlive_killed_actors():
    def kill(trainer, metrics):
        if trainer.timesteps == 2_000:
            os.kill(min(actor_processes()), signal.SIGKILL)

    how = {"num_envs": 8, "normalize_obs": True, "num_actors": 1, "max_staleness": 1}
    state = trained(actors="ray", steps=4_000, callbacks=[kill], **how)
    # Rollouts that were lost do not count, first observations do.
    assert 4_000 <= state.normalizer["obs_count"] < 4_200


@pytest.mark.kills
def test_rollout_lost_with_its_node_is_collected_again():
    script = Path(__file__).parents[1] / "support" / "ray_nodes.py"
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # Ray writes to stdout, too.
    assert "nodes lost 1, timesteps 32768" in done.stdout.splitlines()


def test_cluster_without_room_is_waited_for_until_the_run_is_stopped():
    how = {"num_envs": 8, "num_actors": 8, "runs_dir": None}
    with IMPALATrainer(env="CartPole-v1", actors="ray", **how) as trainer:
        threading.Timer(3.0, trainer.stop).start()
        assert trainer.train(1_000)["timesteps"] == 0
        assert trainer.learner.actors is None


@pytest.mark.parametrize("fault", ["raise", "kill"])
def test_errors_of_environments_are_raised(fault):
    from ray.exceptions import RayActorError

    # Rollouts of 32 steps, so that an actor that dies in its 20th step fills none.
    config = IMPALAConfig(num_envs=2, net_arch=(4,), actors="ray", n_steps=32)
    learner = NativeIMPALA(make_vec(Breaking, 2, fault=fault), config, 0)

    with pytest.raises(ArithmeticError if fault == "raise" else RayActorError):
        any(not learner.iterate() for _ in range(10))
    assert learner.actors is None


def test_runs_on_a_cluster_are_those_that_are_trained_here():
    from rlox.distributed import ray as cluster

    how = {"runs_dir": None, "settings": [{"gamma": 0.9}, {"gamma": 0.99}]}
    there = cluster.train_many("ppo", "CartPole-v1", [1, 2], 512, **how)
    here = train_many("ppo", "CartPole-v1", [1, 2], 512, **how)
    for one, other in zip(there, here, strict=True):
        assert one["mean_reward"] == other["mean_reward"]
        assert one["timesteps"] == other["timesteps"] == 512


def test_run_that_fails_is_named_and_ctrl_c_ends_all():
    from rlox.distributed import ray as cluster

    with pytest.raises(RuntimeError) as failed:
        cluster.train_many("ppo", Breaking, [1], 512, runs_dir=None)
    assert isinstance(failed.value.errors[0], ArithmeticError)
    threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    results = cluster.train_many("ppo", "CartPole-v1", [1, 2], 10**9, runs_dir=None)
    assert [result["interrupted"] for result in results] == [True, True]
    with refuses(ArgumentTypeError, "workers", got="2"):
        cluster.train_many("ppo", "CartPole-v1", [1], 512, workers=2)
