import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, final, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import disjoint_base

_F32: TypeAlias = npt.NDArray[np.float32]
_F64: TypeAlias = npt.NDArray[np.float64]
_I64: TypeAlias = npt.NDArray[np.int64]
_Bool: TypeAlias = npt.NDArray[np.bool_]
_Floats: TypeAlias = npt.NDArray[np.floating[Any]]
_DType: TypeAlias = str | np.dtype[Any] | type[np.generic | bool | int | float]
_Dim: TypeAlias = Sequence[int] | int
_Obs: TypeAlias = npt.ArrayLike | Mapping[str, npt.ArrayLike]
_Estimator: TypeAlias = Literal["k1", "k2", "k3", "full"]

__version__: str
__all__ = [
    "GoalReplayBuffer",
    "MmapReplayBuffer",
    "NativeActors",
    "NativeAgent",
    "NativePolicy",
    "NativeVectorEnv",
    "Normalizer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "RolloutBuffer",
    "RunningMeanStd",
    "__version__",
    "available_memory",
    "check_normalizer",
    "check_step",
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
    "enter_phase",
    "env_ids",
    "isa",
    "network_backends",
    "num_threads",
    "pack_lengths",
    "pack_sequences",
    "phase_seconds",
    "policy_ratio_stats",
    "policy_ratios",
    "read_rollout",
    "remote_actors",
    "remote_env",
    "run_worker",
    "start_phases",
    "stop_phases",
    "token_kl",
    "write_rollout",
]

def write_rollout(buffer: RolloutBuffer) -> npt.NDArray[np.uint8]: ...
def read_rollout(buffer: RolloutBuffer, data: npt.NDArray[np.uint8]) -> None: ...
def remote_env(
    addresses: Sequence[str],
    env_id: object,
    n: int,
    seed: int,
    autoreset_mode: str,
    max_episode_steps: int | None,
    kwargs: dict[str, float],
    client_options: dict[str, Any],
) -> tuple[NativeVectorEnv, Callable[[], dict[str, float]]]: ...
def remote_actors(
    addresses: Sequence[str],
    env_id: str,
    num_actors: int,
    env: NativeVectorEnv,
    buffers: Sequence[RolloutBuffer],
    weights: NativePolicy,
    seed: int,
    stream: npt.NDArray[np.int64],
    max_staleness: int,
    deterministic: bool,
    gamma: float,
    gae_lambda: float,
    sde_sample_freq: int,
    autoreset_mode: str,
    max_episode_steps: int | None,
    kwargs: dict[str, float],
    client_options: dict[str, Any],
) -> tuple[NativeActors, Callable[[], dict[str, float]]]: ...
def run_worker(argv: Sequence[str]) -> None: ...
def compute_gae(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    dones: npt.ArrayLike | None,
    last_value: npt.ArrayLike,
    gamma: float = 0.99,
    lam: float = 0.95,
    *,
    terminated: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
    final_values: npt.ArrayLike | None = None,
    out: tuple[_Floats, _Floats] | None = None,
) -> tuple[_Floats, _Floats]: ...
def compute_gae_batched(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    dones: npt.ArrayLike | None,
    last_values: npt.ArrayLike,
    n_steps: int,
    gamma: float = 0.99,
    lam: float = 0.95,
    *,
    terminated: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
    final_values: npt.ArrayLike | None = None,
) -> tuple[_Floats, _Floats]: ...
def compute_group_advantages(
    rewards: npt.ArrayLike,
    *,
    ddof: int | None = None,
    eps: float = 0.0,
    scale: Literal["group", "batch", "none"] = "group",
    leave_one_out: bool = False,
    weights: npt.ArrayLike | None = None,
) -> _Floats: ...
def compute_batch_group_advantages(
    rewards: npt.ArrayLike,
    group_size: int,
    *,
    ddof: int | None = None,
    eps: float = 0.0,
    scale: Literal["group", "batch", "none"] = "group",
    leave_one_out: bool = False,
    weights: npt.ArrayLike | None = None,
) -> _Floats: ...
def compute_token_kl(
    log_probs_policy: npt.ArrayLike,
    log_probs_ref: npt.ArrayLike,
    *,
    mask: npt.ArrayLike | None = None,
    estimator: _Estimator = "k1",
) -> float: ...
def compute_token_kl_f32(
    log_probs_policy: npt.ArrayLike,
    log_probs_ref: npt.ArrayLike,
    *,
    mask: npt.ArrayLike | None = None,
    estimator: _Estimator = "k1",
) -> float: ...
def compute_token_kl_schulman(
    log_probs_policy: npt.ArrayLike, log_probs_ref: npt.ArrayLike, *, mask: npt.ArrayLike | None = None
) -> float: ...
def compute_token_kl_schulman_f32(
    log_probs_policy: npt.ArrayLike, log_probs_ref: npt.ArrayLike, *, mask: npt.ArrayLike | None = None
) -> float: ...
def compute_batch_token_kl(
    log_probs_policy: npt.ArrayLike,
    log_probs_ref: npt.ArrayLike,
    seq_len: int,
    *,
    mask: npt.ArrayLike | None = None,
    estimator: _Estimator = "k1",
) -> _F64: ...
def compute_batch_token_kl_f32(
    log_probs_policy: npt.ArrayLike,
    log_probs_ref: npt.ArrayLike,
    seq_len: int,
    *,
    mask: npt.ArrayLike | None = None,
    estimator: _Estimator = "k1",
) -> _F32: ...
def compute_batch_token_kl_schulman(
    log_probs_policy: npt.ArrayLike, log_probs_ref: npt.ArrayLike, seq_len: int, *, mask: npt.ArrayLike | None = None
) -> _F64: ...
def compute_batch_token_kl_schulman_f32(
    log_probs_policy: npt.ArrayLike, log_probs_ref: npt.ArrayLike, seq_len: int, *, mask: npt.ArrayLike | None = None
) -> _F32: ...
@overload
def token_kl(
    log_probs: npt.ArrayLike,
    ref_log_probs: npt.ArrayLike,
    mask: npt.ArrayLike | None = None,
    estimator: _Estimator = "k3",
    reduction: Literal["none"] = "none",
) -> _Floats: ...
@overload
def token_kl(
    log_probs: npt.ArrayLike,
    ref_log_probs: npt.ArrayLike,
    mask: npt.ArrayLike | None,
    estimator: _Estimator,
    reduction: Literal["token_mean"],
) -> float: ...
@overload
def token_kl(
    log_probs: npt.ArrayLike,
    ref_log_probs: npt.ArrayLike,
    mask: npt.ArrayLike | None = None,
    estimator: _Estimator = "k3",
    *,
    reduction: Literal["token_mean"],
) -> float: ...
@overload
def token_kl(
    log_probs: npt.ArrayLike,
    ref_log_probs: npt.ArrayLike,
    mask: npt.ArrayLike | None = None,
    estimator: _Estimator = "k3",
    reduction: Literal["none", "sum", "mean", "token_mean"] = "none",
) -> _Floats | float: ...
def policy_ratios(
    log_probs: npt.ArrayLike,
    old_log_probs: npt.ArrayLike,
    mask: npt.ArrayLike | None = None,
    level: Literal["token", "sequence"] = "token",
) -> _Floats: ...
def policy_ratio_stats(
    log_probs: npt.ArrayLike,
    old_log_probs: npt.ArrayLike,
    mask: npt.ArrayLike | None = None,
    *,
    clip_low: float = 0.2,
    clip_high: float | None = None,
    advantages: npt.ArrayLike | None = None,
) -> dict[str, float]: ...
def pack_sequences(
    sequences: Sequence[npt.ArrayLike], max_length: int, *, overflow: Literal["error", "truncate"] = "error"
) -> list[dict[str, npt.NDArray[Any]]]: ...
def pack_lengths(
    lengths: npt.ArrayLike, max_length: int, *, overflow: Literal["error", "truncate"] = "error"
) -> tuple[_I64, _I64]: ...
def compute_lambda_returns(
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    dones: npt.ArrayLike | None,
    last_value: npt.ArrayLike,
    gamma: float = 0.99,
    lam: float = 0.95,
    *,
    terminated: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
    final_values: npt.ArrayLike | None = None,
) -> _Floats: ...
def compute_returns(
    rewards: npt.ArrayLike,
    dones: npt.ArrayLike | None,
    last_value: npt.ArrayLike,
    gamma: float = 0.99,
    *,
    terminated: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
    final_values: npt.ArrayLike | None = None,
) -> _Floats: ...
def compute_vtrace(
    log_rhos: npt.ArrayLike,
    rewards: npt.ArrayLike,
    values: npt.ArrayLike,
    dones: npt.ArrayLike | None,
    bootstrap_value: npt.ArrayLike,
    gamma: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    *,
    lam: float = 1.0,
    pg_rho_bar: float = 1.0,
    terminated: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
    final_values: npt.ArrayLike | None = None,
) -> tuple[_Floats, _Floats]: ...
def available_memory() -> int | None: ...
def env_ids() -> list[str]: ...
def isa() -> str: ...
def num_threads() -> int: ...
def phase_seconds() -> list[float]: ...
def start_phases() -> None: ...
def stop_phases() -> None: ...
def enter_phase(phase: str) -> None: ...

@final
class Normalizer:
    def __new__(
        cls,
        num_envs: int,
        obs_shape: Sequence[int],
        *,
        obs: bool = True,
        reward: bool = True,
        gamma: float = 0.99,
        clip_obs: float = 10.0,
        clip_reward: float = 10.0,
        epsilon: float = 1e-8,
    ) -> Normalizer: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def obs_shape(self) -> tuple[int, ...]: ...
    @property
    def normalizes_obs(self) -> bool: ...
    def update_obs(self, obs: npt.ArrayLike) -> None: ...
    def normalize_obs(self, obs: npt.ArrayLike) -> _F32: ...
    def state(self) -> dict[str, _F64]: ...
    def load_state(self, state: Mapping[str, npt.ArrayLike]) -> None: ...

@final
class RunningMeanStd:
    def __new__(cls, shape: Sequence[int] | int | None = None) -> RunningMeanStd: ...
    def update(self, x: npt.ArrayLike) -> None: ...
    def merge(self, other: RunningMeanStd) -> None: ...
    @property
    def mean(self) -> _F64: ...
    @property
    def var(self) -> _F64: ...
    @property
    def count(self) -> float: ...

@final
class RolloutBuffer:
    def __new__(
        cls,
        n_steps: int,
        num_envs: int,
        obs_shape: Sequence[int] | int,
        action_shape: Sequence[int] | int | None = None,
        *,
        action_dtype: _DType = "int64",
        obs_dtype: _DType = "float32",
        extra: Mapping[str, tuple[Sequence[int], str]] | None = None,
    ) -> RolloutBuffer: ...
    @property
    def n_steps(self) -> int: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def next_step(self) -> int: ...
    @property
    def obs(self) -> npt.NDArray[Any]: ...
    @property
    def last_obs(self) -> npt.NDArray[Any]: ...
    @property
    def actions(self) -> npt.NDArray[Any]: ...
    @property
    def log_probs(self) -> _F32: ...
    @property
    def values(self) -> _F32: ...
    @property
    def rewards(self) -> _F32: ...
    @property
    def terminated(self) -> _Bool: ...
    @property
    def truncated(self) -> _Bool: ...
    @property
    def valid(self) -> _Bool: ...
    @property
    def n_transitions(self) -> int: ...
    @property
    def final_values(self) -> _F32: ...
    @property
    def advantages(self) -> _F32: ...
    @property
    def returns(self) -> _F32: ...
    @property
    def final_index(self) -> _I64: ...
    @property
    def final_obs(self) -> npt.NDArray[Any]: ...
    def field(self, name: str) -> npt.NDArray[Any]: ...
    def begin(
        self,
        obs: npt.ArrayLike,
        is_new: bool = True,
        normalizer: Normalizer | None = None,
        ended: npt.ArrayLike | None = None,
    ) -> None: ...
    def record(
        self,
        t: int,
        actions: npt.ArrayLike,
        log_probs: npt.ArrayLike,
        values: npt.ArrayLike,
        next_obs: npt.ArrayLike,
        rewards: npt.ArrayLike,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        final_obs: npt.ArrayLike | None = None,
        normalizer: Normalizer | None = None,
    ) -> None: ...
    def finish(
        self, last_values: npt.ArrayLike, gamma: float, gae_lambda: float, final_values: npt.ArrayLike | None = None
    ) -> None: ...

@disjoint_base
class ReplayBuffer:
    def __new__(
        cls,
        capacity: int,
        obs_dim: _Dim | Mapping[str, _Dim | tuple[_Dim, _DType]],
        act_dim: _Dim,
        *,
        num_envs: int = 1,
        obs_dtype: _DType = "float32",
        act_dtype: _DType = "float32",
        frame_stack: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        extra: Mapping[str, tuple[_Dim, _DType]] | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> ReplayBuffer: ...
    @property
    def capacity(self) -> int: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def push(
        self,
        obs: _Obs,
        action: npt.ArrayLike,
        reward: float,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        next_obs: _Obs | None = None,
        *,
        extra: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None: ...
    def push_batch(
        self,
        obs: _Obs,
        next_obs: _Obs | None,
        actions: npt.ArrayLike,
        rewards: npt.ArrayLike,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        *,
        extra: Mapping[str, npt.ArrayLike] | None = None,
        in_order: bool = False,
    ) -> None: ...
    def sample(
        self, batch_size: int, seed: int | np.random.Generator | None = None, *, out: dict[str, Any] | None = None
    ) -> dict[str, Any]: ...
    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        seed: int | np.random.Generator | None = None,
        *,
        burn_in: int = 0,
        whole_episodes: bool = False,
        out: dict[str, Any] | None = None,
    ) -> dict[str, Any]: ...
    def state(self) -> dict[str, npt.NDArray[Any]]: ...
    def load_state(self, arrays: dict[str, npt.NDArray[Any]]) -> None: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    @staticmethod
    def load(path: str | os.PathLike[str]) -> ReplayBuffer: ...

@disjoint_base
class PrioritizedReplayBuffer(ReplayBuffer):
    def __new__(
        cls,
        capacity: int,
        obs_dim: _Dim | Mapping[str, _Dim | tuple[_Dim, _DType]],
        act_dim: _Dim,
        alpha: float = 0.6,
        beta: float = 0.4,
        *,
        num_envs: int = 1,
        obs_dtype: _DType = "float32",
        act_dtype: _DType = "float32",
        frame_stack: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        extra: Mapping[str, tuple[_Dim, _DType]] | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> PrioritizedReplayBuffer: ...
    @property
    def alpha(self) -> float: ...
    @property
    def beta(self) -> float: ...
    def sample(
        self,
        batch_size: int,
        seed: int | np.random.Generator | None = None,
        *,
        beta: float | None = None,
        out: dict[str, Any] | None = None,
    ) -> dict[str, Any]: ...
    def update_priorities(self, indices: npt.ArrayLike, priorities: npt.ArrayLike) -> None: ...
    @staticmethod
    def load(path: str | os.PathLike[str]) -> PrioritizedReplayBuffer: ...

class GoalReplayBuffer(ReplayBuffer):
    def __new__(
        cls,
        capacity: int,
        obs_dim: Mapping[str, _Dim | tuple[_Dim, _DType]],
        act_dim: _Dim,
        strategy: str = "future",
        n_sampled_goal: int = 4,
        *,
        num_envs: int = 1,
        obs_dtype: _DType = "float32",
        act_dtype: _DType = "float32",
        extra: Mapping[str, tuple[_Dim, _DType]] | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> GoalReplayBuffer: ...
    @staticmethod
    def load(path: str | os.PathLike[str]) -> GoalReplayBuffer: ...

@final
class MmapReplayBuffer:
    def __new__(
        cls,
        hot_capacity: int,
        total_capacity: int,
        obs_dim: _Dim | Mapping[str, _Dim | tuple[_Dim, _DType]],
        act_dim: _Dim,
        cold_path: str | os.PathLike[str],
        *,
        obs_dtype: _DType = "float32",
        act_dtype: _DType = "float32",
        extra: Mapping[str, tuple[_Dim, _DType]] | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> MmapReplayBuffer: ...
    @staticmethod
    def open(
        path: str | os.PathLike[str], hot_capacity: int | None = None, seed: int | np.random.Generator | None = None
    ) -> MmapReplayBuffer: ...
    @property
    def capacity(self) -> int: ...
    @property
    def hot_capacity(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> MmapReplayBuffer: ...
    def __exit__(self, *_raised: object) -> None: ...
    def push(
        self,
        obs: _Obs,
        action: npt.ArrayLike,
        reward: float,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        next_obs: _Obs,
        *,
        extra: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None: ...
    def push_batch(
        self,
        obs: _Obs,
        next_obs: _Obs,
        actions: npt.ArrayLike,
        rewards: npt.ArrayLike,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        *,
        extra: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None: ...
    def sample(
        self, batch_size: int, seed: int | np.random.Generator | None = None, *, out: dict[str, Any] | None = None
    ) -> dict[str, Any]: ...
    def flush(self) -> None: ...
    def state(self) -> dict[str, npt.NDArray[Any]]: ...
    def load_state(self, arrays: dict[str, npt.NDArray[Any]]) -> None: ...
    def verify(self) -> None: ...
    def close(self) -> None: ...

def check_normalizer(buffer: RolloutBuffer, normalizer: Normalizer | None) -> None: ...
def check_step(
    buffer: RolloutBuffer,
    t: int,
    actions: npt.ArrayLike,
    log_probs: npt.ArrayLike,
    values: npt.ArrayLike,
    normalizer: Normalizer | None,
) -> None: ...

@final
class NativeVectorEnv:
    def __new__(
        cls,
        env_id: object,
        num_envs: int,
        seed: int | None = None,
        autoreset_mode: str | None = None,
        max_episode_steps: int | None = None,
        kwargs: Mapping[str, float] | None = None,
        count_name: str = "num_envs",
        *,
        single: bool = False,
    ) -> NativeVectorEnv: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def env_id(self) -> str: ...
    @property
    def autoreset_mode(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def spec(self) -> dict[str, Any]: ...
    def reset(
        self,
        seed: int | Sequence[int | None] | None = None,
        mask: _Bool | None = None,
        options: Mapping[str, float] | None = None,
    ) -> _F32: ...
    def step(self, actions: npt.ArrayLike) -> tuple[_F32, _F64, _Bool, _Bool, _F32 | None]: ...
    def step_into(
        self,
        actions: npt.ArrayLike,
        obs: _F32,
        rewards: _F64,
        terminated: _Bool,
        truncated: _Bool,
        final_obs: _F32 | None = None,
    ) -> None: ...
    def steps_into(
        self, actions: npt.ArrayLike, obs: _F32, rewards: _F64, terminated: _Bool, truncated: _Bool, final_obs: _F32
    ) -> None: ...
    def begin_rollout(
        self, buffer: RolloutBuffer, normalizer: Normalizer | None = None, seed: int | None = None
    ) -> None: ...
    def step_rollout(
        self,
        buffer: RolloutBuffer,
        t: int,
        actions: npt.ArrayLike,
        log_probs: npt.ArrayLike,
        values: npt.ArrayLike,
        normalizer: Normalizer | None = None,
    ) -> None: ...
    def pop_episodes(self) -> tuple[_F64, _I64]: ...
    @property
    def dropped_episodes(self) -> int: ...
    def observe(self) -> _F32: ...
    def action_masks(self, out: _Bool | None = None) -> _Bool: ...
    def final_action_masks(self) -> _Bool: ...
    def states(self) -> _F64: ...
    def get_state(self) -> dict[str, npt.NDArray[Any]]: ...
    def set_state(self, state: dict[str, npt.NDArray[Any]]) -> None: ...
    def rng_states(self) -> _I64: ...
    def set_rng_states(self, states: npt.ArrayLike) -> None: ...

def network_backends() -> list[str]:
    """Return the names of the network backends that this library was built with."""

@final
class NativeActors:
    """Actors that collect rollouts while a learner updates, created by `rlox.learners._actors`."""

    def __new__(
        cls,
        envs: Sequence[NativeVectorEnv],
        policies: Sequence[NativePolicy],
        buffers: Sequence[RolloutBuffer],
        weights: NativePolicy,
        stream: npt.NDArray[np.int64],
        normalizer: Normalizer | None,
        max_staleness: int,
        deterministic: bool,
        gamma: float,
        gae_lambda: float,
        sde_sample_freq: int,
    ) -> NativeActors: ...
    @staticmethod
    def start_python_actors(
        actors: Sequence[Any], weights: object, stream: npt.NDArray[np.int64], max_staleness: int, deterministic: bool
    ) -> NativeActors: ...
    def pop(
        self,
    ) -> (
        tuple[
            int,
            int,
            int,
            int,
            npt.NDArray[np.float64],
            npt.NDArray[np.int64],
            int,
            dict[str, npt.NDArray[np.float64]] | None,
        ]
        | None
    ): ...
    def set_stop_requested(self, stop: bool) -> None: ...
    def publish(self, policy: NativePolicy) -> None: ...
    def publish_tensors(self, tensors: Mapping[str, npt.ArrayLike]) -> None: ...
    def publish_object(self, weights: object) -> None: ...
    def stream(self) -> npt.NDArray[np.int64]: ...
    def stats(self) -> dict[str, float]: ...
    def close(self) -> None: ...

@final
class NativePolicy:
    """Policy and value networks on the CPU, created by `rlox.learners.native_on_policy`."""

    @property
    def stop_requested(self) -> bool: ...
    def __new__(
        cls,
        observation: Mapping[str, Any],
        action: Mapping[str, Any],
        stream: npt.NDArray[np.int64],
        shape: Mapping[str, Any],
        backend: str,
    ) -> NativePolicy: ...
    def set_stop_requested(self, stop: bool) -> None: ...
    def begin(self, seed: int, num_envs: int) -> None: ...
    def collect(
        self,
        env: NativeVectorEnv,
        buffer: RolloutBuffer,
        normalizer: Normalizer | None,
        gamma: float,
        gae_lambda: float,
        sde_sample_freq: int,
    ) -> bool: ...
    def act(
        self, buffer: RolloutBuffer, t: int, action_masks: npt.ArrayLike | None = None, noise: bool = False
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32], npt.NDArray[np.float32]]: ...
    def finish(self, buffer: RolloutBuffer, gamma: float, gae_lambda: float) -> None: ...
    def ppo(self, buffer: RolloutBuffer, settings: Mapping[str, Any]) -> dict[str, float]: ...
    def a2c(self, buffer: RolloutBuffer, settings: Mapping[str, Any]) -> dict[str, float]: ...
    def impala(self, buffer: RolloutBuffer, settings: Mapping[str, Any]) -> dict[str, float]: ...
    def predict(
        self,
        obs: npt.ArrayLike,
        seed: int | None = None,
        action_masks: npt.ArrayLike | None = None,
        normalizer: Normalizer | None = None,
    ) -> npt.NDArray[Any]: ...
    def tensors(self) -> dict[str, npt.NDArray[np.float32]]: ...
    def load(self, tensors: Mapping[str, npt.ArrayLike]) -> None: ...
    def optimizer_state(self) -> dict[str, npt.NDArray[np.float32]]: ...
    def check_tensors(self, tensors: Mapping[str, npt.ArrayLike]) -> None: ...
    def check_optimizer_state(self, state: Mapping[str, npt.ArrayLike]) -> None: ...
    def load_optimizer_state(self, state: Mapping[str, npt.ArrayLike]) -> None: ...

@final
class NativeAgent:
    """Off-policy algorithm with networks and a replay buffer, created by `rlox.learners.native_off_policy`."""

    @property
    def stop_requested(self) -> bool: ...
    @property
    def env_initialized(self) -> bool: ...
    @property
    def timesteps(self) -> int: ...
    def __new__(
        cls,
        algorithm: str,
        observation: Mapping[str, Any],
        action: Mapping[str, Any],
        num_envs: int,
        masked: bool,
        idling: bool,
        stream: npt.NDArray[np.int64],
        seeds: npt.NDArray[np.int64],
        settings: Mapping[str, Any],
        backend: str,
    ) -> NativeAgent: ...
    def set_stop_requested(self, stop: bool) -> None: ...
    def start(self, env: NativeVectorEnv, normalizer: Normalizer | None = None) -> None: ...
    def attach(self, env: NativeVectorEnv) -> None: ...
    def iterate(
        self,
        env: NativeVectorEnv,
        progress: float,
        normalizer: Normalizer | None = None,
        progress_per_step: float | None = None,
    ) -> bool: ...
    def metrics(self) -> dict[str, float]: ...
    def start_from_obs(
        self,
        obs: npt.ArrayLike,
        is_new: bool,
        action_masks: npt.ArrayLike | None = None,
        normalizer: Normalizer | None = None,
    ) -> None: ...
    def begin(self, progress: float, progress_per_step: float | None = None) -> None: ...
    def act(self, normalizer: Normalizer | None = None) -> npt.NDArray[Any]: ...
    def observe(
        self,
        next_obs: npt.ArrayLike,
        obs: npt.ArrayLike,
        rewards: npt.ArrayLike,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        valid: npt.ArrayLike | None = None,
        action_masks: npt.ArrayLike | None = None,
        final_action_masks: npt.ArrayLike | None = None,
        normalizer: Normalizer | None = None,
    ) -> None: ...
    def learn(self, normalizer: Normalizer | None = None) -> bool: ...
    def predict(
        self,
        obs: npt.ArrayLike,
        seed: int | None = None,
        action_masks: npt.ArrayLike | None = None,
        normalizer: Normalizer | None = None,
    ) -> npt.NDArray[Any]: ...
    def tensors(self) -> dict[str, npt.NDArray[np.float32]]: ...
    def load(self, tensors: Mapping[str, npt.ArrayLike]) -> None: ...
    def optimizer_state(self) -> dict[str, npt.NDArray[np.float32]]: ...
    def check_tensors(self, tensors: Mapping[str, npt.ArrayLike]) -> None: ...
    def check_optimizer_state(self, state: Mapping[str, npt.ArrayLike]) -> None: ...
    def load_optimizer_state(self, state: Mapping[str, npt.ArrayLike]) -> None: ...
    def streams(self) -> npt.NDArray[np.int64]: ...
    def replay_len(self) -> int: ...
    def replay_state(self) -> dict[str, npt.NDArray[Any]]: ...
    def load_replay_state(self, arrays: Mapping[str, npt.ArrayLike]) -> None: ...
    def progress_state(self) -> tuple[npt.NDArray[np.float32], float, float]: ...
    def pending_limit(self, timesteps: int) -> float: ...
    def load_progress_state(
        self,
        streams: npt.ArrayLike,
        noise: npt.ArrayLike,
        pending_updates: float,
        timesteps: int,
        updates: int,
        progress: float,
    ) -> None: ...
    def last_update(self) -> dict[str, float | None] | None: ...
    def load_last_update(self, last_update: Mapping[str, float | None] | None) -> None: ...
