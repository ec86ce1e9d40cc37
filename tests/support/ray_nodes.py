"""Train on a Ray cluster whose only worker node is lost with a rollout not yet fetched."""

import threading

import ray
from ray.cluster_utils import Cluster

from rlox.distributed.ray import RayWorker
from rlox.trainers import IMPALATrainer

# Detect a lost node within two seconds.
HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 2,
}


def main():
    """Train for four rollouts, and print the number of lost nodes."""
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH_CHECKS}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1)]
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    node_lost, poll, steps = threading.Event(), RayWorker.poll, []

    def poll_and_remove_node(worker, seconds):
        if worker.requested and nodes:
            # The rollout is in the object store of the other node only.
            if not ray.wait([worker._pending], timeout=seconds, fetch_local=False)[0]:
                return False
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            node_lost.set()
        return poll(worker, seconds)

    request = RayWorker.request

    def mark_request(worker, *arguments):
        request(worker, *arguments)
        worker.requested = True

    RayWorker.requested = False
    RayWorker.poll, RayWorker.request = poll_and_remove_node, mark_request

    def train():
        settings = {"num_envs": 64, "n_steps": 128, "seed": 1, "runs_dir": None}
        with IMPALATrainer("CartPole-v1", actors="ray", **settings) as trainer:
            steps.append(trainer.train(64 * 128 * 4)["timesteps"])

    learner = threading.Thread(target=train)
    learner.start()
    assert node_lost.wait(60)
    cluster.add_node(num_cpus=1)  # only the main thread may do this
    learner.join()
    print(f"nodes lost {1 - len(nodes)}, timesteps {steps[0]}")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
