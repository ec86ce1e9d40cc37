"""Collecting steps: `collect_rollout`, and what it needs of environments."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rlox import spaces
from rlox._rlox import NativeVectorEnv, Normalizer, RolloutBuffer
from rlox.keywords import knowing_keywords
from rlox.layouts import Layout
from rlox.memory import expect_memory
from rlox.settings import number, whole

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]


class RolloutEnv(Protocol):
    """What rollouts need of N environments: `VecEnv` and `ForeignVecEnv` have it."""

    @property
    def num_envs(self) -> int:
        """How many environments there are."""

    @property
    def single_observation_space(self) -> gym.Space[Any]:
        """The observation space of one environment."""

    @property
    def single_action_space(self) -> gym.Space[Any]:
        """The action space of one environment."""

    @property
    def action_stream(self) -> np.random.Generator:
        """The stream that uniformly random actions come from."""

    def begin_rollout(
        self,
        buffer: RolloutBuffer,
        normalizer: Normalizer | None = None,
        seed: int | None = None,
    ) -> None:
        """Puts the first observations of a rollout into `buffer.obs[0]`.

        The first time, or where a seed is given, they come from a reset, else from where the
        environments stand. With a normaliser they are normalised (and counted, after a reset).

        Raises:
            ValueError: A buffer made for other environments.
        """

    def step_rollout(
        self,
        buffer: RolloutBuffer,
        t: int,
        actions: npt.ArrayLike,
        log_probs: npt.ArrayLike,
        values: npt.ArrayLike,
        normalizer: Normalizer | None = None,
    ) -> None:
        """Stores row `t` of what a policy said, steps with its actions, stores what came back.

        In NEXT_STEP mode, an environment whose episode ended in the row before ignores its action
        and only resets: `buffer.valid` is False there. In DISABLED mode, environments whose
        episodes end are reset at once, so that the rollout is that of SAME_STEP.

        Args:
            buffer: Made for these environments; `begin_rollout` was called with it.
            t: 0, 1, ... in order.
            actions: (N, ...). Box actions are stored as they are and clipped to the bounds for the
                environment; Discrete ones count from 0, the space's start is added.
            log_probs: float32 (N,).
            values: float32 (N,).
            normalizer: Normalises the observations and rewards that are stored.

        Raises:
            ValueError: Not the next `t`, wrong shapes, actions out of range or not finite.
            TypeError: Actions of another kind.
        """

    def drain_episodes(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Returns (sums of raw rewards) and lengths of the episodes ended since the last call."""


@dataclass(frozen=True)
class RolloutBatch:
    """T steps of N environments, time-major; the arrays are views of one `RolloutBuffer`.

    | field | shape | dtype | meaning |
    |---|---|---|---|
    | obs | (T, N, ...) | see below | the observations acted on |
    | actions | (T, N, ...) | int64, float32 | as the policy gave them; Discrete ones count from 0 |
    | log_probs | (T, N) | float32 | log-probabilities of the actions |
    | values | (T, N) | float32 | the policy's values of `obs` |
    | rewards | (T, N) | float32 | |
    | terminated, truncated | (T, N) | bool | the task ended; the episode was cut |
    | valid | (T, N) | bool | True for transitions; False where NEXT_STEP environments only reset |
    | advantages, returns | (T, N) | float32 | GAE, and advantages + values |

    Observations of a Box are float32, or uint8 if the space's are; integers count from 0; those of
    Dict and Tuple spaces are dicts and tuples of arrays; see `rlox.layouts.Layout`.
    """

    obs: Any
    actions: npt.NDArray[Any]
    log_probs: Floats
    values: Floats
    rewards: Floats
    terminated: Flags
    truncated: Flags
    valid: Flags
    advantages: Floats
    returns: Floats


Said = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]


def make_buffer(
    env: RolloutEnv, n_steps: int, *, normalize_obs: bool = False, mask_width: int | None = None
) -> RolloutBuffer:
    """A buffer for `n_steps` steps of these environments, with observations as `Layout` says.

    With `normalize_obs`, they are float32. With a `mask_width`, there is a field "action_masks",
    bool (n_steps, num_envs, mask_width).

    Raises:
        ValueError: `n_steps` is below 1; observations to be normalised that are no Box.
        MemoryError: It does not fit into memory.
    """
    layout, acts = Layout(env.single_observation_space), env.single_action_space
    shapes = (n_steps, env.num_envs, layout.shape, acts.shape or ())
    if normalize_obs and not isinstance(layout.space, gym.spaces.Box):
        raise ValueError(
            f"normalize_obs: expected observations of one Box, got {layout.space}; set "
            "normalize_obs=False, or normalise in a wrapper"
        )
    dtypes: Any = {"action_dtype": spaces.action_dtype(acts), "obs_dtype": layout.dtype.name}
    if normalize_obs:
        dtypes["obs_dtype"] = "float32"
    extra = None if mask_width is None else {"action_masks": ((mask_width,), "bool")}
    return RolloutBuffer(*shapes, extra=extra, **dtypes)


@knowing_keywords()
def collect_rollout(
    env: RolloutEnv,
    policy: Any,
    n_steps: int,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
) -> RolloutBatch:
    """Collects `n_steps` steps from each environment and computes advantages.

    The environments go on where the last rollout left them. Where an episode is truncated, the
    value of its true last observation is bootstrapped. In DISABLED mode it is the rollout that
    resets environments; in NEXT_STEP mode, rows in which they only reset are not `valid`.

    Args:
        env: A `VecEnv`, or what `make_vec` makes of another environment.
        policy: None for uniformly random actions (values 0), a callable from observations (N, ...)
            to actions or to (actions, log_probs, values), or a torch module with
            `get_action_and_logprob(obs) -> (actions, log_probs)` and `get_value(obs) -> values`
            (or `act(obs)`, all three at once, where there is one, see `rlox.policies`).
            Actions are (N, ...), Discrete ones counted from 0; log_probs and values are (N,).
        n_steps: T, at least 1.
        gamma: Discount in [0, 1].
        gae_lambda: In [0, 1].

    Raises:
        TypeError: `env` is not made for rollouts.
        ValueError: A number out of range; what a step of the environment refuses.
        MemoryError: The rollout does not fit into memory.

    >>> from rlox import VecEnv
    >>> batch = collect_rollout(VecEnv(n=4, seed=0), None, n_steps=8)
    >>> batch.obs.shape, batch.advantages.shape
    ((8, 4, 4), (8, 4))
    """
    if not hasattr(env, "step_rollout"):
        raise TypeError(
            f"env: expected a VecEnv or ForeignVecEnv, got {type(env).__name__}; "
            "pass rlox.make_vec(env)"
        )
    gamma = number("gamma", gamma, 0, 1, fix="correct it")
    gae_lambda = number("gae_lambda", gae_lambda, 0, 1, fix="correct it")
    space = env.single_action_space
    layout, buffer = Layout(env.single_observation_space), make_buffer(env, n_steps)
    if policy is None:
        chosen = spaces.random_actions(space, env.action_stream, (n_steps, env.num_envs))
        env.begin_rollout(buffer)
        zeros = np.zeros(env.num_envs, np.float32)
        log_probs = zeros + np.float32(spaces.uniform_log_prob(space))
        for t, actions in enumerate(chosen):
            env.step_rollout(buffer, t, actions, log_probs, zeros)
        buffer.finish(zeros, gamma, gae_lambda, np.zeros(len(buffer.final_index), np.float32))
        return _batch(buffer, layout)
    act, worth = _policy(policy, layout)
    env.begin_rollout(buffer)
    obs = buffer.obs
    for t in range(n_steps):
        env.step_rollout(buffer, t, *act(obs[t]))
    final_values = worth(buffer.final_obs) if len(buffer.final_index) else None
    buffer.finish(worth(buffer.last_obs), gamma, gae_lambda, final_values)
    return _batch(buffer, layout)


def _batch(buffer: RolloutBuffer, layout: Layout) -> RolloutBatch:
    names = [name for name in RolloutBatch.__dataclass_fields__ if name != "obs"]
    arrays = {name: getattr(buffer, name) for name in names}
    return RolloutBatch(obs=layout.unpack(buffer.obs), **arrays)


def _policy(
    policy: Any, layout: Layout
) -> tuple[Callable[[Array], Said], Callable[[Array], npt.ArrayLike]]:
    """What to do with rows of observations, and what they are worth, for each kind of policy."""
    if hasattr(policy, "get_action_and_logprob"):
        return _torch_policy(policy, layout)
    if not callable(policy):
        raise TypeError(
            "policy: expected None, a function of observations or a torch module with "
            f"get_action_and_logprob and get_value, got {type(policy).__name__}; pass one of them"
        )

    def act(rows: Array) -> Said:
        said = policy(layout.unpack(rows))
        if isinstance(said, tuple):
            if len(said) != 3:
                raise ValueError(
                    "policy: expected actions, or (actions, log_probs, values), got a tuple of "
                    f"{len(said)}; give all three"
                )
            actions, log_probs, values = said
            return actions, log_probs, values
        zeros = np.zeros(len(rows), np.float32)
        return said, zeros, zeros

    return act, lambda rows: act(rows)[2]


def _torch_policy(
    module: Any, layout: Layout
) -> tuple[Callable[[Array], Said], Callable[[Array], npt.ArrayLike]]:
    import torch

    from rlox.policies import acting, torch_dtype

    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))

    def seen(rows: Array) -> Any:
        return layout.unpack(torch.as_tensor(rows, device=device), torch_dtype)

    def act(rows: Array) -> Said:
        with torch.no_grad():
            actions, log_probs, values = (np.asarray(x.cpu()) for x in acting(module)(seen(rows)))
            return actions, log_probs, values.reshape(len(rows))

    def value(rows: Array) -> npt.ArrayLike:
        with torch.no_grad():
            return np.asarray(module.get_value(seen(rows)).reshape(len(rows)).cpu())

    return act, value


def check_collection(mode: AutoresetMode, n: int, policy: object) -> int:
    """The number of steps, refused unless positive, as are other modes and kinds of policies."""
    if mode is not AutoresetMode.SAME_STEP:
        raise ValueError(
            f"autoreset_mode: expected SAME_STEP, got {mode.name}; make the VecEnv with "
            "autoreset_mode=AutoresetMode.SAME_STEP"
        )
    if policy is not None and not callable(policy):
        raise TypeError(
            f"policy: expected a function of observations or None, got {type(policy).__name__}; "
            "pass a callable"
        )
    return whole("n", n, 1, fix="pass how many steps to make")


def collect_steps(
    native: NativeVectorEnv,
    start: Floats,
    space: gym.Space[Any],
    n: int,
    choose: np.random.Generator | Callable[[Floats], npt.ArrayLike],
) -> dict[str, npt.NDArray[Any]]:
    """`n` steps from the observations `start`, (N, d): the body of `VecEnv.collect_n_steps`."""
    num_envs, dim = start.shape
    lead = (n, num_envs)
    kind, shape = np.dtype(spaces.action_dtype(space)), space.shape or ()
    bytes_each = 8 * dim + 10 + math.prod(shape) * kind.itemsize
    expect_memory("n", n, n * num_envs * bytes_each)
    obs = np.empty((n + 1, num_envs, dim), np.float32)
    final = np.empty((*lead, dim), np.float32)
    rewards = np.empty(lead)
    terminated, truncated = np.empty(lead, np.bool_), np.empty(lead, np.bool_)
    actions = np.empty((*lead, *shape), kind)
    obs[0] = start
    if isinstance(choose, np.random.Generator):
        # One call for all steps, but that Ctrl-C is looked for now and then.
        some = max(1, 1_000_000 // num_envs)
        for t in range(0, n, some):
            now = slice(t, min(t + some, n))
            chosen = spaces.random_actions(space, choose, ((now.stop - t) * num_envs,))
            sent = spaces.sent_actions(space, chosen, len(chosen))
            actions[now] = sent.reshape(-1, *actions.shape[1:])
            out = (obs[1:][now], rewards[now], terminated[now], truncated[now], final[now])
            native.steps_into(actions[now], *out)
    else:
        rows = zip(actions, obs, obs[1:], rewards, terminated, truncated, final, strict=False)
        for action, seen, *into in rows:
            said = choose(seen)
            native.step_into(said, *into)
            action[...] = said
    ended = np.flatnonzero(terminated | truncated)
    return {
        "obs": obs[:n],
        "actions": actions,
        "rewards": rewards,
        "terminated": terminated,
        "truncated": truncated,
        "last_obs": obs[n],
        "final_index": ended,
        "final_obs": final.reshape(n * num_envs, dim)[ended],
    }
