"""Reinforcement learning with a Rust core and a Python interface.

Environments, rollout buffers, advantage estimators and the training of small networks are native
code and need only NumPy, Gymnasium and safetensors. PyTorch (``pip install 'rlox[torch]'``) is
imported only when a learner uses it.

>>> import rlox
>>> env = rlox.VecEnv(n=8, seed=42, env_id="CartPole-v1")
>>> env.reset_all().shape
(8, 4)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rlox import envs as envs
from rlox._errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    CorruptFileError,
    NonFiniteError,
    OutOfMemoryError,
)
from rlox._rlox import (
    MmapReplayBuffer,
    Normalizer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
    RunningMeanStd,
    __version__,
    compute_batch_group_advantages,
    compute_batch_token_kl,
    compute_batch_token_kl_f32,
    compute_batch_token_kl_schulman,
    compute_batch_token_kl_schulman_f32,
    compute_gae,
    compute_gae_batched,
    compute_group_advantages,
    compute_lambda_returns,
    compute_returns,
    compute_token_kl,
    compute_token_kl_f32,
    compute_token_kl_schulman,
    compute_token_kl_schulman_f32,
    compute_vtrace,
    pack_lengths,
    pack_sequences,
    policy_ratio_stats,
    policy_ratios,
    token_kl,
)
from rlox.buffers.hindsight import HindsightReplayBuffer
from rlox.buffers.rollout import RolloutBatch, collect_rollout
from rlox.envs._make import make_vec
from rlox.envs.native import register_env
from rlox.envs.vec_env import VecEnv

if TYPE_CHECKING:
    from rlox import algorithms as algorithms
    from rlox import trainers as trainers
    from rlox.experiments.many import train_many
    from rlox.inference import load

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "ClosedError",
    "CorruptFileError",
    "HindsightReplayBuffer",
    "MmapReplayBuffer",
    "NonFiniteError",
    "Normalizer",
    "OutOfMemoryError",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "RolloutBatch",
    "RolloutBuffer",
    "RunningMeanStd",
    "VecEnv",
    "__version__",
    "algorithms",
    "collect_rollout",
    "compute_batch_group_advantages",
    "compute_batch_token_kl",
    "compute_batch_token_kl_f32",
    "compute_batch_token_kl_schulman",
    "compute_batch_token_kl_schulman_f32",
    "compute_gae",
    "compute_gae_batched",
    "compute_group_advantages",
    "compute_lambda_returns",
    "compute_returns",
    "compute_token_kl",
    "compute_token_kl_f32",
    "compute_token_kl_schulman",
    "compute_token_kl_schulman_f32",
    "compute_vtrace",
    "envs",
    "load",
    "make_vec",
    "pack_lengths",
    "pack_sequences",
    "policy_ratio_stats",
    "policy_ratios",
    "register_env",
    "token_kl",
    "train_many",
    "trainers",
]

_LAZY = ("algorithms", "trainers")
_LAZY_FUNCTIONS = {"load": "rlox.inference", "train_many": "rlox.experiments"}


def __getattr__(name: str) -> object:
    """Import trainers and algorithms at their first use, so that ``import rlox`` stays fast."""
    if name in _LAZY_FUNCTIONS:
        return getattr(importlib.import_module(_LAZY_FUNCTIONS[name]), name)
    if name in _LAZY:
        return importlib.import_module(f"rlox.{name}")
    raise AttributeError(f"module 'rlox' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
