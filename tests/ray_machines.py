"""A cluster of two machines, of which the one with the actor is lost with its rollout."""

import logging
import threading

import ray
from ray.cluster_utils import Cluster

from rlox.distributed.ray_actors import RayActor
from rlox.trainers import IMPALATrainer

# Such as notice within a second or two that a machine is gone.
SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 2,
}


def main():
    """Trains, and tells what was lost."""
    logging.basicConfig(level=logging.WARNING)
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": SOON}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    machines = [cluster.add_node(num_cpus=1)]
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    gone = threading.Event()
    plain_wait, plain_replace, lost = RayActor.wait, RayActor._replace, []

    def wait(actor, seconds):
        # Once a rollout is in the store of the other machine, and not fetched from there.
        ready = machines and ray.wait([actor._pending], timeout=seconds, fetch_local=False)[0]
        if ready:
            cluster.remove_node(machines.pop(), allow_graceful=False)
            gone.set()
        return None if machines else plain_wait(actor, seconds)

    def replace(actor, error):
        lost.append(error)
        plain_replace(actor, error)

    RayActor.wait, RayActor._replace = wait, replace
    how = {"num_envs": 64, "n_steps": 128, "seed": 1, "runs_dir": None}
    steps = []

    def train():
        with IMPALATrainer("CartPole-v1", actors="ray", **how) as trainer:
            steps.append(trainer.train(64 * 128 * 4)["timesteps"])

    learner = threading.Thread(target=train)
    learner.start()
    gone.wait(60)
    cluster.add_node(num_cpus=1)  # which only the main thread may do
    learner.join()
    print(f"removed {1 - len(machines)}, timesteps {steps[0]}, lost {len(lost)}")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
