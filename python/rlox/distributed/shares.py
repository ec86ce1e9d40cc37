"""What of the settings of a whole run each process does."""

from dataclasses import replace
from typing import Any

import numpy as np

from rlox._errors import ArgumentError

# A key of children of a seed's sequence that nothing else takes: learners take the first ones,
# evaluations the last two.
_RANKS = 2**32 - 3


def rank_seed(seed: int, rank: int) -> int:
    """The seed of a rank's learner: rank 0 has the run's own, the others children of it.

    >>> rank_seed(7, 0), rank_seed(7, 1) == rank_seed(7, 1) != rank_seed(7, 2)
    (7, True)
    """
    if rank == 0:
        return seed
    words = np.random.SeedSequence(seed, spawn_key=(_RANKS, rank)).generate_state(4)
    return int.from_bytes(words.tobytes(), "little")


def share(config: Any, size: int, *, own_envs: bool, device: str | None) -> tuple[Any, Any]:
    """The settings of all processes together, and those of each.

    Environments, minibatches, the replay buffer and the random steps are shared out; where
    minibatches are counted by transitions, each counts those of all. The rest is the same.

    Args:
        config: What was asked for.
        size: How many processes.
        own_envs: Whether `num_envs` is what each process was given already made.
        device: Where networks that are to be on a GPU are; None: all on the CPU.

    Raises:
        ValueError: Something cannot be shared out evenly.

    >>> from rlox.configs import PPOConfig
    >>> share(PPOConfig(num_envs=4, n_steps=8, batch_size=16), 2, own_envs=False, device=None)[1]
    PPOConfig(num_envs=2, n_steps=8, batch_size=8, ...)
    """
    if device is not None and config.device.partition(":")[0] == "cuda":
        config = replace(config, device=device)
    if getattr(config, "async_collect", False):
        raise ArgumentError(
            "async_collect", "False where several processes learn together", "True", "leave it out"
        )
    if own_envs:
        config = replace(config, num_envs=config.num_envs * size)
    changes: dict[str, Any] = {}
    for name in ("num_envs", "batch_size"):
        whole = getattr(config, name, 0)
        if whole % size:
            near = max(whole - whole % size, size)
            raise ArgumentError(
                name,
                f"a multiple of the {size} processes that share it",
                str(whole),
                f"pass {near}, or start another number of processes",
            )
        changes |= {name: whole // size} if whole else {}
    if hasattr(config, "buffer_size"):
        changes["buffer_size"] = config.buffer_size // size
        changes["learning_starts"] = -(-config.learning_starts // size)
        each = config.utd_ratio if config.gradient_steps != -1 else 1.0
        if each is not None:
            changes |= {"utd_ratio": each * size, "gradient_steps": 1}
    return config, replace(config, **changes)
