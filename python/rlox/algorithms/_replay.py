"""`Replay`: a learner's replay buffer, raw transitions in, normalised minibatches of torch out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlox import _types
from rlox._errors import add_section
from rlox._layout import Layout
from rlox._nn.runtime import torch_dtype
from rlox._rlox import Normalizer
from rlox._types import Array
from rlox.buffers._steps import Step
from rlox.buffers.hindsight import GoalFunctions
from rlox.buffers.replay import make_replay_buffer, parts_of


class ReplayBatch(NamedTuple):
    """B transitions to learn from."""

    obs: Any  # (B, *obs_shape), normalised; rows of a `Layout`, or what policies take
    actions: Tensor  # (B,) int64, counted from 0, or (B, k) float32 in [-1, 1]
    rewards: Tensor  # (B,) float32; over several steps the discounted sum
    next_obs: Any  # as obs: the true next ones, of an episode that ended its last
    terminated: Tensor  # (B,) bool: nothing comes after; a time limit is none
    discounts: Tensor | float  # (B,) float32, or one for all: what the next value counts
    weights: Tensor | None = None  # (B,) float32, importance; None: as likely as all others
    # (B, n) bool: what is allowed then, nothing where `terminated`; None: everything.
    next_masks: Tensor | None = None


def _map_arrays(change: Callable[[Any], Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """A dict, and the dicts in it, with all else changed."""
    return {
        name: _map_arrays(change, x) if isinstance(x, dict) else change(x)
        for name, x in arrays.items()
    }


class Replay:
    """A replay buffer for an environment's transitions.

    Args:
        layout: Of the observations.
        action_space: Box or Discrete.
        config: An off-policy algorithm's settings.
        num_envs: How many environments each push has a row of; 1: rows that stand for themselves.
        device: Where minibatches are wanted.
        mask_width: Flags of the masks of what is allowed next; None: no masks.
        goals: What other goals are worth, with `her`; None without.
        frames: How many frames observations stack along their first axis; each is stored once.

    Raises:
        MemoryError: It does not fit into memory.
        ValueError: Goals are asked for, and observations have none.
    """

    def __init__(
        self,
        layout: Layout,
        action_space: gym.Space[Any],
        config: Any,
        num_envs: int,
        device: torch.device,
        mask_width: int | None = None,
        goals: GoalFunctions | None = None,
        frames: int = 1,
    ) -> None:
        self.layout, self.config, self.device = layout, config, device
        # Elsewhere nothing would tell when a copy that nobody waited for has read its memory.
        self.pinned = device.type == "cuda"
        # Dict observations by name, as goals need them.
        self.named = bool(parts_of(layout))
        args = (layout, action_space, config, num_envs, mask_width, goals, frames)
        self.buffer = make_replay_buffer(*args)
        self.empty = self.state()
        """What `state` gives when nothing is stored."""
        self._out: dict[str, Any] = {}
        self._tensors: dict[str, Any] = {}
        self._copied: Any = None
        # (B,): which transitions of the last sample were learned from; None: all.
        self._used: Array | None = None

    def __len__(self) -> int:
        return len(self.buffer)

    def push(self, obs: Array, actions: Array, step: Step) -> None:
        """Stores a step of all environments, but of those that only reset.

        Args:
            obs: (N, *layout.shape), raw: what was acted on.
            actions: (N,) counted from 0, or (N, k) in [-1, 1].
            step: What came of it.

        Raises:
            MemoryError: There is no room for next observations that are no other row's.
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

    def sample(
        self, stream: np.random.Generator, normalizer: Normalizer | None, **options: Any
    ) -> ReplayBatch | None:
        """A minibatch, or as many transitions as there are while those are fewer.

        Its tensors share memory that the next one overwrites. Transitions that bootstrap from a
        state whose action mask is not known are left out; None if no others are sampled.

        Args:
            stream: Decides which.
            normalizer: Normalises observations and rewards by its statistics of now.
            how: `beta`, where priorities decide.
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
            self._note_copies()
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

    def _sample_raw(
        self, size: int, stream: np.random.Generator, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Raw transitions in memory that is used again."""
        if len(self._tensors.get("rewards", ())) != size:
            self._reserve(self.buffer.sample(size, stream, **options))
            return self._tensors
        if self._copied is not None:
            self._copied.synchronize()  # what is still on its way to the device
        self.buffer.sample(size, stream, out=self._out, **options)
        return self._tensors

    def _with_known_masks(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Leave out transitions that need an action mask of the next state that is not known."""
        self._used = None
        if "next_masks" not in tensors:
            return tensors
        known = tensors["next_masks"].any(1) | tensors["terminated"]
        if known.all():
            return tensors
        self._used = known.numpy()
        return _map_arrays(lambda x: x[known], tensors)

    def _reserve(self, like: dict[str, Any]) -> None:
        """Memory for minibatches."""
        self._tensors = _map_arrays(lambda x: self._pin(torch.from_numpy(x)), like)
        self._out = _map_arrays(lambda x: x.numpy(), self._tensors)

    def _pin(self, tensor: Tensor) -> Tensor:
        """Pinned where it goes to a GPU, so that copies need no waiting."""
        return tensor.pin_memory() if self.pinned else tensor

    def _note_copies(self) -> None:
        """Marks when all copies so far are done: before that their memory is not written to."""
        if self.pinned:
            self._copied = self._copied or torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(self.device))

    def _normalize(self, normalizer: Normalizer) -> dict[str, Tensor]:
        """What is normalised of what was sampled."""
        tensors = dict[str, Tensor]()
        if self.config.normalize_obs:
            for name in ("obs", "next_obs"):
                tensors[name] = torch.from_numpy(normalizer.normalize_obs(self._out[name]))
        if self.config.normalize_reward:
            deviation = float(np.sqrt(normalizer.state()["return_var"][0] + 1e-8))
            tensors["rewards"] = (self._tensors["rewards"] / deviation).clamp(-10, 10)
        return tensors

    def _unpack_obs(self, rows: Any) -> Any:
        return rows if self.named else self.layout.unpack(rows, torch_dtype)

    def prioritize(self, errors: Tensor) -> None:
        """Gives the transitions sampled last priorities by their TD errors, (B,)."""
        buffer: Any = self.buffer
        # On a GPU, where looking would wait, the iteration ends before what is NaN is refused.
        priorities = errors.abs().nan_to_num(0.0, posinf=0.0).numpy(force=True)
        if self._used is not None:
            # Those left out would keep the largest priority and fill later minibatches.
            least = priorities.min() if len(priorities) else 0.0
            priorities, used_priorities = (
                np.full(len(self._used), least, priorities.dtype),
                priorities,
            )
            priorities[self._used] = used_priorities
        buffer.update_priorities(
            self._out["indices"], priorities
        )  # it adds what keeps them above 0

    def state(self) -> _types.Arrays:
        """Copies of all that the buffer holds, and where it stands."""
        buffer: Any = self.buffer
        return dict(buffer.state())

    def load_state(self, arrays: _types.Arrays | None) -> None:
        """Goes back to what `state` gave; None: forgets everything.

        Raises:
            ValueError: It is of another buffer, or damaged; nothing has changed then.
        """
        buffer: Any = self.buffer
        try:
            buffer.load_state(self.empty if arrays is None else arrays)
        except (TypeError, ValueError) as error:
            raise add_section(error, "replay") from error
