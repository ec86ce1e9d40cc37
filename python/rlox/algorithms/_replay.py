"""Replay buffer of a torch learner: stores raw transitions, returns normalized minibatches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlox import _types
from rlox._layout import Layout
from rlox._nn.runtime import TensorObs, torch_dtype
from rlox._rlox import Normalizer, PrioritizedReplayBuffer
from rlox._types import Array
from rlox.buffers._steps import Step
from rlox.buffers.hindsight import GoalFunctions
from rlox.buffers.replay import make_replay_buffer, parts_of
from rlox.configs import OffPolicyConfig
from rlox.learners import NORMALIZER_CLIP, NORMALIZER_EPS
from rlox.learners._native import check_part


class ReplayBatch(NamedTuple):
    """Minibatch of B transitions."""

    obs: TensorObs  # (B, *obs_shape), normalized, in the form that policies accept
    actions: Tensor  # (B,) int64, counted from 0, or (B, k) float32 in [-1, 1]
    rewards: Tensor  # (B,) float32; with `n_steps` > 1, the discounted sum of the rewards
    next_obs: TensorObs  # like obs; at the end of an episode, its last observation
    terminated: Tensor  # (B,) bool: the value of `next_obs` is 0; False after a time limit
    discounts: Tensor | float  # (B,) float32 or one number: factor of the value of `next_obs`
    weights: Tensor | None = None  # (B,) float32, importance weights; None: all 1
    # (B, n) bool: actions allowed at `next_obs`, all False where `terminated`; None: all allowed.
    next_masks: Tensor | None = None


def _map_arrays(change: Callable[[Any], Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """Return a nested dict with `change` applied to all values."""
    return {name: _map_arrays(change, x) if isinstance(x, dict) else change(x) for name, x in arrays.items()}


class Replay:
    """Replay buffer for the transitions of vectorized environments.

    Args:
        layout: Layout of the observations.
        action_space: Box or Discrete.
        config: Settings of an off-policy algorithm.
        num_envs: Number of environments; 1 if an environment's rows are not `num_envs` apart.
        device: Device of the minibatches.
        mask_width: Number of flags in an action mask; None: masks of next states are not stored.
        goals: Goal functions if `config.her` is set, else None.
        frames: Number of frames stacked in an observation; each frame is stored once.

    Raises:
        ArgumentError: `goals` and `config.prioritized` are both set, or observations have no goals.
        OutOfMemoryError: The buffer does not fit into memory.
    """

    def __init__(
        self,
        layout: Layout,
        action_space: gym.Space[Any],
        config: OffPolicyConfig,
        num_envs: int,
        device: torch.device,
        mask_width: int | None = None,
        goals: GoalFunctions | None = None,
        frames: int = 1,
    ) -> None:
        self.layout, self.config, self.device = layout, config, device
        # Asynchronous copies need events that tell when to reuse their source; only CUDA has them.
        self.pinned = device.type == "cuda"
        # Dict observations are stored by name, because goals are accessed by name.
        self.named = bool(parts_of(layout))
        self.buffer = make_replay_buffer(layout, action_space, config, num_envs, mask_width, goals, frames)
        self.empty = self.state()
        """State of the empty buffer."""
        self._out: dict[str, Any] = {}
        self._tensors: dict[str, Any] = {}
        self._copied: torch.cuda.Event | None = None
        # (B,) bool: True for transitions of the last sample that were not dropped; None: all True.
        self._used: Array | None = None

    def __len__(self) -> int:
        return len(self.buffer)

    def push(self, obs: Array, actions: Array, step: Step) -> None:
        """Store one step of all environments, except environments that only reset.

        Args:
            obs: (N, *layout.shape), not normalized: observations before the step.
            actions: (N,) counted from 0, or (N, k) in [-1, 1].
            step: Result of the step.

        Raises:
            MemoryError: The final observations of episodes do not fit into memory.
        """
        rest = [actions, step.rewards, step.terminated, step.truncated]
        obs_pair, valid, next_masks = [obs, step.next_obs], step.valid, step.next_masks
        if valid is not None:
            obs_pair, rest = [x[valid] for x in obs_pair], [x[valid] for x in rest]
            next_masks = None if next_masks is None else next_masks[valid]
            if not valid.any():
                return
        extra = None if next_masks is None else {"next_masks": next_masks}
        unpacked_obs: list[Any] = [self.layout.unpack(x) if self.named else x for x in obs_pair]
        self.buffer.push_batch(unpacked_obs[0], unpacked_obs[1], *rest, extra=extra)

    def sample(self, stream: np.random.Generator, normalizer: Normalizer | None, **options: Any) -> ReplayBatch | None:
        """Sample `batch_size` transitions, or as many as are stored while there are fewer.

        The next call overwrites the tensors. Transitions that bootstrap from a state with an
        unknown action mask are dropped.

        Args:
            stream: Random generator.
            normalizer: Normalizer with the current statistics; None: no normalization.
            options: `beta`, the exponent of the importance weights of a prioritized buffer.

        Returns:
            The minibatch, or None if all sampled transitions were dropped.
        """
        tensors = self._sample_raw(min(self.config.batch_size, len(self.buffer)), stream, options)
        if normalizer is not None:
            tensors = {**tensors, **_map_arrays(self._pin, self._normalize(normalizer))}
        tensors = self._with_known_masks(tensors)
        if len(tensors["rewards"]) == 0:
            if "weights" in tensors:
                self.prioritize(tensors["weights"])
            return None
        if self.device.type != "cpu":
            wanted = {name: x for name, x in tensors.items() if name in ReplayBatch._fields}
            tensors = _map_arrays(lambda x: x.to(self.device, non_blocking=self.pinned), wanted)
            if self.pinned:  # the next call waits until the copies have read this memory
                self._copied = self._copied or torch.cuda.Event()
                self._copied.record(torch.cuda.current_stream(self.device))
        return ReplayBatch(
            obs=self._unpack_obs(tensors["obs"]),
            actions=tensors["actions"],
            rewards=tensors["rewards"],
            next_obs=self._unpack_obs(tensors["next_obs"]),
            terminated=tensors["terminated"],
            discounts=tensors.get("discounts", self.config.gamma),
            weights=tensors.get("weights"),
            next_masks=tensors.get("next_masks"),
        )

    def _sample_raw(self, size: int, stream: np.random.Generator, options: dict[str, Any]) -> dict[str, Any]:
        """Sample transitions without normalization, into reused memory."""
        if len(self._tensors.get("rewards", ())) != size:
            sample: dict[str, Any] = self.buffer.sample(size, stream, **options)
            self._tensors = _map_arrays(lambda x: self._pin(torch.from_numpy(x)), sample)
            self._out = _map_arrays(lambda x: x.numpy(), self._tensors)
            return self._tensors
        if self._copied is not None:
            self._copied.synchronize()  # wait for copies from this memory to the device
        self.buffer.sample(size, stream, out=self._out, **options)
        return self._tensors

    def _with_known_masks(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Drop transitions that are not terminated and whose next action mask is unknown."""
        self._used = None
        if "next_masks" not in tensors:
            return tensors
        known = tensors["next_masks"].any(1) | tensors["terminated"]
        if known.all():
            return tensors
        self._used = known.numpy()
        return _map_arrays(lambda x: x[known], tensors)

    def _pin(self, tensor: Tensor) -> Tensor:
        """Pin the memory of a tensor for asynchronous copies to a CUDA device."""
        return tensor.pin_memory() if self.pinned else tensor

    def _normalize(self, normalizer: Normalizer) -> dict[str, Tensor]:
        """Return the normalized observations, rewards or both of the last sample, by name."""
        tensors = dict[str, Tensor]()
        if self.config.normalize_obs:
            for name in ("obs", "next_obs"):
                tensors[name] = torch.from_numpy(normalizer.normalize_obs(self._out[name]))
        if self.config.normalize_reward:
            deviation = float(np.sqrt(normalizer.state()["return_var"][0] + NORMALIZER_EPS))
            scaled = self._tensors["rewards"] / deviation
            tensors["rewards"] = scaled.clamp(-NORMALIZER_CLIP, NORMALIZER_CLIP)
        return tensors

    def _unpack_obs(self, rows: TensorObs) -> TensorObs:
        obs: TensorObs = rows if self.named else self.layout.unpack(rows, torch_dtype)
        return obs

    def prioritize(self, errors: Tensor) -> None:
        """Set the priorities of the last sample to the absolute TD errors (B,)."""
        assert isinstance(self.buffer, PrioritizedReplayBuffer)
        # The buffer rejects NaN. On a GPU, the learner reports NaN only after the iteration.
        priorities = errors.abs().nan_to_num(0.0, posinf=0.0).numpy(force=True)
        if self._used is not None:
            # Else dropped transitions would keep the largest priority and be sampled again and again.
            least = priorities.min() if len(priorities) else 0.0
            priorities, used_priorities = (np.full(len(self._used), least, priorities.dtype), priorities)
            priorities[self._used] = used_priorities
        self.buffer.update_priorities(self._out["indices"], priorities)  # adds a small epsilon

    def state(self) -> _types.Arrays:
        """Return copies of the stored transitions and the counters of the buffer."""
        return dict(self.buffer.state())

    def load_state(self, arrays: _types.Arrays | None) -> None:
        """Restore the result of `state`; None clears the buffer.

        Raises:
            ArgumentError: The arrays are damaged or of another buffer. The buffer is unchanged.
        """
        check_part("replay", self.buffer.load_state, self.empty if arrays is None else arrays)
