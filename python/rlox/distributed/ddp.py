"""PPO, A2C and SAC on several processes that learn the same weights, started by torchrun.

    # train.py, started by: torchrun --nproc-per-node 2 train.py
    from rlox.distributed import ddp

    with ddp.group() as group:
        trainer = group.trainer("ppo", "CartPole-v1", num_envs=8, seed=1)
        trainer.train(100_000)
        trainer.save("trained")

Every process runs the whole script. Each steps its share of the environments and learns from its
share of each minibatch; gradients are averaged, so that all have the same weights, which are those
of one process that had done it all, but for the random numbers. Gradients go over gloo, on GPUs
over NCCL.
"""

from typing import Literal

from rlox.distributed.groups import Group
from rlox.distributed.peers import PeerError

__all__ = ["Group", "PeerError", "group"]


def group(backend: Literal["gloo", "nccl"] | None = None, timeout: float = 1800.0) -> Group:
    """The processes that torchrun started, within a `with`.

    Where a process fails or dies, the others raise `PeerError` within seconds. In the end all wait
    for each other, and the trainers are closed.

    Args:
        backend: What gradients go over. None: NCCL where each process has a GPU, else gloo.
        timeout: Seconds that a process waits for another that lives, but does something else: at
            least as long as what rank 0 does alone, evaluations for instance. In the beginning they
            wait for each other so long, but for five minutes at most.

    Raises:
        RuntimeError: This process was not started by torchrun, or is in a group already; another
            one does not come, or cannot be reached.
        ValueError: Another backend, or NCCL without a GPU for each process; processes with other
            versions of rlox or torch, or that were told of other numbers of processes.
        ModuleNotFoundError: PyTorch is not installed.

    >>> group()
    Traceback (most recent call last):
    RuntimeError: group: expected to be started by torchrun, which sets RANK, ...
    """
    return Group(backend, timeout)
