"""Collecting steps: `collect_rollout`, and what it needs of environments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rlox import _spaces
from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._layout import Layout
from rlox._rlox import RolloutBuffer
from rlox._spaces import random_actions, uniform_log_prob
from rlox._types import Array
from rlox._validation import check_float
from rlox.envs._masks import Flags, adapt_to_masks, mask_width, random_allowed, read_action_masks
from rlox.envs._rollout_env import RolloutEnv

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RolloutBatch:
    """T steps of N environments, time-major; all but the masks are views of one `RolloutBuffer`.

    | field | shape | dtype | meaning |
    |---|---|---|---|
    | obs | (T, N, ...) | see below | the observations acted on |
    | actions | (T, N, ...) | int64, float32 | of the policy; integers count from 0 |
    | log_probs | (T, N) | float32 | log-probabilities of the actions |
    | values | (T, N) | float32 | the policy's values of `obs` |
    | rewards | (T, N) | float32 | |
    | terminated, truncated | (T, N) | bool | the task ended; the episode was cut |
    | valid | (T, N) | bool | True for transitions; False where NEXT_STEP environments only reset |
    | advantages, returns | (T, N) | float32 | GAE, and advantages + values |
    | action_masks | (T, N, k) | bool | what was allowed at `obs`; None if nothing was said of it |

    Observations of a Box are float32, or uint8 if the space's are; integers count from 0; those of
    Dict and Tuple spaces are dicts and tuples of arrays; see `rlox._layout.Layout`.
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
    action_masks: Flags | None = None


PolicyOutputs = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]
# From observations and what is allowed there, to what is done there, and to what they are worth.
Act = Callable[[Array, Flags | None], PolicyOutputs]
ValueFn = Callable[[Array, Flags | None], npt.ArrayLike]


def make_buffer(
    env: RolloutEnv,
    n_steps: int,
    *,
    normalize_obs: bool = False,
    mask_width: int | None = None,
    num_envs: int | None = None,
) -> RolloutBuffer:
    """A buffer for `n_steps` steps of such environments, with observations as `Layout` says.

    They are as many as `env` has, or `num_envs`. With `normalize_obs`, they are float32. With a
    `mask_width`, there is a field "action_masks", bool (n_steps, num_envs, mask_width).

    Raises:
        ValueError: `n_steps` is below 1; observations to be normalised that are no Box.
        MemoryError: It does not fit into memory.
    """
    layout, acts = Layout(env.single_observation_space), env.single_action_space
    count = env.num_envs if num_envs is None else num_envs
    shapes = (n_steps, count, layout.shape, acts.shape or ())
    if normalize_obs and not isinstance(layout.space, gym.spaces.Box):
        raise ArgumentError(
            "normalize_obs",
            "observations of one Box",
            str(layout.space),
            "set normalize_obs=False, or normalise in a wrapper",
        )
    dtypes: Any = {"action_dtype": _spaces.action_dtype(acts), "obs_dtype": layout.dtype.name}
    if normalize_obs:
        dtypes["obs_dtype"] = "float32"
    extra = None if mask_width is None else {"action_masks": ((mask_width,), "bool")}
    return RolloutBuffer(*shapes, extra=extra, **dtypes)


def collect_rollout(
    env: RolloutEnv, policy: Any, n_steps: int, gamma: float = 0.99, gae_lambda: float = 0.95
) -> RolloutBatch:
    """Collects `n_steps` steps from each environment and computes advantages.

    The environments go on where the last rollout left them. Where an episode is truncated, the
    value of its true last observation is bootstrapped. In DISABLED mode it is the rollout that
    resets environments; in NEXT_STEP mode, rows in which they only reset are not `valid`.

    Environments may say which of their actions are allowed, unless these are Box: native ones
    that have masks, others by `infos["action_mask"]` or a method `action_masks`.

    Args:
        env: A `VecEnv`, or what `make_vec` makes of another environment.
        policy: None for uniform ones of the allowed actions (values 0), a callable from
            observations (N, ...) to actions or to (actions, log_probs, values), or a torch module
            with `get_action_and_logprob(obs) -> (actions, log_probs)` and `get_value(obs) ->
            values` (or `act(obs)`, all three at once, where there is one, see `rlox.policies`).
            Actions are (N, ...), log_probs and values (N,). A callable, such as a trainer's
            `predict`, has integers as the environment has them, in observations and in actions,
            counted from the space's start; a torch module has them counted from 0.
            A parameter named `mask`, `action_mask` or `action_masks` gets the masks, bool (N, k):
            its default where there are none, all True for last observations' values. Where `act`
            lacks it, `get_action_and_logprob` is called in its place.
        n_steps: T, at least 1.
        gamma: Discount in [0, 1].
        gae_lambda: In [0, 1].

    Raises:
        TypeError: `env` is not made for rollouts.
        ValueError: A number out of range; what a step of the environment refuses; masks that allow
            nothing, or of other actions.
        MemoryError: The rollout does not fit into memory.

    >>> from rlox import VecEnv
    >>> batch = collect_rollout(VecEnv(n=4, seed=0), None, n_steps=8)
    >>> batch.obs.shape, batch.advantages.shape
    ((8, 4, 4), (8, 4))
    """
    if not hasattr(env, "step_rollout"):
        raise ArgumentTypeError(
            "env", "a VecEnv or GymVecEnv", type(env).__name__, "pass rlox.make_vec(env)"
        )
    gamma = check_float("gamma", gamma, 0, 1, fix="pass a number from 0 to 1")
    gae_lambda = check_float("gae_lambda", gae_lambda, 0, 1, fix="pass a number from 0 to 1")
    layout, buffer = Layout(env.single_observation_space), make_buffer(env, n_steps)
    act, value_fn = _random(env, n_steps) if policy is None else _policy(policy, env, layout)
    env.begin_rollout(buffer)
    if policy is None and getattr(env, "has_action_masks", None) is False:
        _fill_at_random(env, buffer)  # native ones know beforehand that they have no masks
        masks = None
    else:
        masks = _fill(env, buffer, act)
    free = None if masks is None else np.ones_like(masks, shape=(1, masks.shape[2]))
    rows = (buffer.final_obs, buffer.last_obs) if len(buffer.final_index) else (buffer.last_obs,)
    *final_values, last_values = (
        value_fn(x, None if free is None else free.repeat(len(x), 0)) for x in rows
    )
    buffer.finish(last_values, gamma, gae_lambda, *final_values)
    names = [n for n in RolloutBatch.__dataclass_fields__ if n not in ("obs", "action_masks")]
    arrays = {name: getattr(buffer, name) for name in names}
    return RolloutBatch(obs=layout.unpack(buffer.obs), action_masks=masks, **arrays)


def _fill(env: RolloutEnv, buffer: RolloutBuffer, act: Act) -> Flags | None:
    """Makes the steps of a rollout; what was allowed in them, if anything is said of it."""
    obs, masks = buffer.obs, None
    for t in range(buffer.n_steps):
        allowed = read_action_masks(env)
        if allowed is not None:
            masks = _no_limits(env, buffer.n_steps) if masks is None else masks
            masks[t] = allowed
        env.step_rollout(buffer, t, *act(obs[t], allowed))
    return masks


def _fill_at_random(env: RolloutEnv, buffer: RolloutBuffer) -> None:
    """As `_fill` does with `_random`, and nothing between two steps."""
    space, lead = env.single_action_space, (buffer.n_steps, env.num_envs)
    zeros = np.zeros(env.num_envs, np.float32)
    log_probs = zeros + np.float32(uniform_log_prob(space))
    for t, actions in enumerate(random_actions(space, env.action_stream, lead)):
        env.step_rollout(buffer, t, actions, log_probs, zeros)


def _no_limits(env: RolloutEnv, n_steps: int) -> Flags:
    """Masks that allow everything."""
    shape = (n_steps, env.num_envs, mask_width(env.single_action_space))
    return np.ones(shape, np.bool_)


def _random(env: RolloutEnv, n_steps: int) -> tuple[Act, ValueFn]:
    """Uniformly random actions, which are worth nothing."""
    space, n = env.single_action_space, env.num_envs
    zeros, queue = np.zeros(n, np.float32), list[Array]()
    log_probs = zeros + np.float32(uniform_log_prob(space))

    def act(rows: Array, masks: Flags | None) -> PolicyOutputs:
        if masks is not None:
            return *random_allowed(space, env.action_stream, masks), zeros
        if not queue:  # all at once, as that is faster
            chosen = random_actions(space, env.action_stream, (n_steps, n))
            queue.extend(chosen[::-1])
        return queue.pop(), log_probs, zeros

    return act, lambda rows, masks: np.zeros(len(rows), np.float32)


def _policy(policy: Any, env: RolloutEnv, layout: Layout) -> tuple[Act, ValueFn]:
    """What to do with rows of observations, and what they are worth, for each kind of policy."""
    if hasattr(policy, "get_action_and_logprob"):
        return _torch_policy(policy, layout)
    if not callable(policy):
        raise ArgumentTypeError(
            "policy",
            "None, a function of observations or a torch module with get_action_and_logprob and "
            "get_value",
            type(policy).__name__,
            "pass None for random actions, or a policy",
        )
    call_policy, space = adapt_to_masks(policy), env.single_action_space

    def decide(rows: Array, masks: Flags | None) -> PolicyOutputs:
        outputs = call_policy(layout.decode(rows.copy()), masks)  # who may write to it
        if isinstance(outputs, tuple):
            if len(outputs) != 3:
                raise ArgumentError(
                    "policy",
                    "actions, or (actions, log_probs, values)",
                    f"a tuple of {len(outputs)}",
                    "give all three",
                )
            actions, log_probs, values = outputs
            return actions, log_probs, values
        zeros = np.zeros(len(rows), np.float32)
        return outputs, zeros, zeros

    def act(rows: Array, masks: Flags | None) -> PolicyOutputs:
        actions, log_probs, values = decide(rows, masks)
        return _spaces.to_zero_based(space, actions, len(rows)), log_probs, values

    return act, lambda rows, masks: decide(rows, masks)[2]


def _torch_policy(module: Any, layout: Layout) -> tuple[Act, ValueFn]:
    import torch

    from rlox._nn.runtime import torch_dtype
    from rlox.policies import get_act_fn, takes_masks

    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    decide, masked = get_act_fn(module), takes_masks(module)

    def to_obs(rows: Array) -> Any:
        # A copy, as the module may write to it.
        return layout.unpack(torch.tensor(rows, device=device), torch_dtype)

    def to_numpy(tensor: Any) -> Array:
        # Which has no bfloat16.
        single = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        return np.asarray(single.cpu())

    def act(rows: Array, masks: Flags | None) -> PolicyOutputs:
        has_masks = masked and masks is not None
        limits = torch.as_tensor(masks, device=device) if has_masks else None
        with torch.no_grad():
            outputs = decide(to_obs(rows), limits)
            actions, log_probs, values = map(to_numpy, outputs)
            return actions, log_probs, values.reshape(len(rows))

    def value(rows: Array, masks: Flags | None) -> npt.ArrayLike:
        with torch.no_grad():
            return to_numpy(module.get_value(to_obs(rows)).reshape(len(rows)))

    return act, value
