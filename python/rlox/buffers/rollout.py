"""Collection of rollouts with a policy."""

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
from rlox._types import Array, Flags, Floats
from rlox._validation import check_float
from rlox.envs._masks import adapt_to_masks, random_allowed
from rlox.envs._rollout_env import RolloutEnv, check_rollout_env
from rlox.envs.vec_env import VecEnv


@dataclass(frozen=True)
class RolloutBatch:
    """T steps of N environments, time-major; all but the masks are views of one `RolloutBuffer`.

    | field | shape | dtype | meaning |
    |---|---|---|---|
    | obs | (T, N, ...) | see below | observations that the policy acted on |
    | actions | (T, N, ...) | int64, float32 | actions of the policy; integers count from 0 |
    | log_probs | (T, N) | float32 | log-probabilities of the actions |
    | values | (T, N) | float32 | values of `obs` |
    | rewards | (T, N) | float32 | rewards of the environments |
    | terminated, truncated | (T, N) | bool | the task ended; the episode was cut |
    | valid | (T, N) | bool | True for transitions; False where NEXT_STEP environments only reset |
    | advantages, returns | (T, N) | float32 | GAE, and advantages + values |
    | action_masks | (T, N, k) | bool | actions allowed at `obs`; None without reported masks |

    Box observations are uint8 if the space is, else float32. Integer observations count from 0. The
    observations of Dict and Tuple spaces are dicts and tuples of arrays (see `rlox._layout`).
    """

    obs: Any  # (T, N, ...): an array, or nested dicts and tuples of arrays
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
# Function from observations, and optionally masks, to actions or `PolicyOutputs`; torch modules are
# such functions. None: random actions.
Policy = Callable[..., object] | None
# `Act` returns actions, log_probs and values; `ValueFn` returns only values.
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
    """Create a rollout buffer for environments with the spaces of `env`.

    Args:
        env: Environments whose spaces set the shapes and dtypes.
        n_steps: Steps of each environment, at least 1.
        normalize_obs: Store observations as float32.
        mask_width: Number of flags in an action mask. The buffer has a field "action_masks", bool
            (n_steps, num_envs, mask_width); None: no such field.
        num_envs: Number of environments; None: `env.num_envs`.

    Raises:
        ArgumentError: `n_steps` is below 1, or `normalize_obs` is set and the space is no Box.
        OutOfMemoryError: The buffer does not fit into memory.
    """
    layout = Layout(env.single_observation_space)
    action_space = env.single_action_space
    if normalize_obs and not isinstance(layout.space, gym.spaces.Box):
        fix = "set normalize_obs=False, or normalize in a wrapper"
        raise ArgumentError("normalize_obs", "a Box observation space", str(layout.space), fix)
    extra = None if mask_width is None else {"action_masks": ((mask_width,), "bool")}
    return RolloutBuffer(
        n_steps,
        env.num_envs if num_envs is None else num_envs,
        layout.shape,
        action_space.shape or (),
        action_dtype=_spaces.action_dtype(action_space),
        obs_dtype="float32" if normalize_obs else layout.dtype.name,
        extra=extra,
    )


def collect_rollout(
    env: RolloutEnv, policy: Policy, n_steps: int, gamma: float = 0.99, gae_lambda: float = 0.95
) -> RolloutBatch:
    """Collect `n_steps` steps from each environment and compute advantages (GAE).

    Collection starts at the current states, with a reset only before the first rollout. A truncated
    episode bootstraps from the value of its true last observation. In autoreset mode DISABLED, the
    rollout resets finished environments. In NEXT_STEP mode, `valid` is False for steps that only
    reset an environment.

    The policy is one of:

    - None: uniformly random allowed actions, with values of 0.
    - A callable, such as a trainer's `predict`, from observations (N, ...) to actions (N, ...) or
      to (actions, log_probs, values), with log_probs and values (N,). Integer observations and
      actions count from the `start` of their space.
    - A torch module with `get_value(obs) -> values` and `get_action_and_logprob(obs) -> (actions,
      log_probs, ...)`, or `act(obs) -> (actions, log_probs, values)`; see `rlox.policies`. Integer
      observations and actions count from 0.

    Native environments may have action masks. Other environments report masks in
    `infos["action_mask"]` or by a method `action_masks`. A parameter of the policy named `mask`,
    `action_mask` or `action_masks` receives the masks, bool (N, k). If there are no masks, the
    parameter has its default, or None. When the policy computes values of final or last
    observations, the masks allow all actions. If a module's `act` lacks the parameter,
    `get_action_and_logprob` is called instead.

    Args:
        env: A `VecEnv`, or the result of `make_vec` for another environment.
        policy: None, a callable or a torch module.
        n_steps: T, at least 1.
        gamma: Discount factor in [0, 1].
        gae_lambda: Lambda of GAE in [0, 1].

    Raises:
        ArgumentError: A number is out of range, an action is invalid, or a mask allows no action or
            has another shape.
        ArgumentTypeError: `env` has no `step_rollout`, or `policy` is none of the above.
        NonFiniteError: An observation, a reward or an output of the policy is not finite.
        OutOfMemoryError: The rollout does not fit into memory.

    >>> from rlox import VecEnv
    >>> batch = collect_rollout(VecEnv(n=4, seed=0), None, n_steps=8)
    >>> batch.obs.shape, batch.advantages.shape
    ((8, 4, 4), (8, 4))
    """
    check_rollout_env(env)
    gamma = check_float("gamma", gamma, 0, 1, fix="pass a number from 0 to 1")
    gae_lambda = check_float("gae_lambda", gae_lambda, 0, 1, fix="pass a number from 0 to 1")
    layout = Layout(env.single_observation_space)
    buffer = make_buffer(env, n_steps)
    act, value_fn = _random(env, n_steps) if policy is None else _policy(policy, env, layout)
    env.begin_rollout(buffer)
    if policy is None and isinstance(env, VecEnv) and not env.has_action_masks:
        _fill_at_random(env, buffer)
        masks = None
    else:
        masks = _fill(env, buffer, act)

    def evaluate(rows: Array) -> npt.ArrayLike:
        return value_fn(rows, None if masks is None else np.ones((len(rows), masks.shape[2]), np.bool_))

    final_values = evaluate(buffer.final_obs) if len(buffer.final_index) else None
    buffer.finish(evaluate(buffer.last_obs), gamma, gae_lambda, final_values)
    names = {*RolloutBatch.__dataclass_fields__} - {"obs", "action_masks"}
    arrays = {name: getattr(buffer, name) for name in names}
    return RolloutBatch(obs=layout.unpack(buffer.obs), action_masks=masks, **arrays)


def _fill(env: RolloutEnv, buffer: RolloutBuffer, act: Act) -> Flags | None:
    """Fill a rollout buffer; return the action masks, or None if none are reported."""
    obs = buffer.obs
    masks: Flags | None = None
    for t in range(buffer.n_steps):
        allowed = env.action_masks() if env.has_action_masks else None
        if allowed is not None:
            if masks is None:
                masks = np.ones((buffer.n_steps, *allowed.shape), np.bool_)
            masks[t] = allowed
        env.step_rollout(buffer, t, *act(obs[t], allowed))
    return masks


def _fill_at_random(env: RolloutEnv, buffer: RolloutBuffer) -> None:
    """Fill a rollout buffer with steps of random actions, which are drawn before the first step."""
    space = env.single_action_space
    zeros = np.zeros(env.num_envs, np.float32)
    log_probs = zeros + np.float32(uniform_log_prob(space))
    for t, actions in enumerate(random_actions(space, env.action_stream, (buffer.n_steps, env.num_envs))):
        env.step_rollout(buffer, t, actions, log_probs, zeros)


def _random(env: RolloutEnv, n_steps: int) -> tuple[Act, ValueFn]:
    """Return the functions of a uniformly random policy with values of 0."""
    space, n = env.single_action_space, env.num_envs
    zeros, queue = np.zeros(n, np.float32), list[Array]()
    log_probs = zeros + np.float32(uniform_log_prob(space))

    def act(rows: Array, masks: Flags | None) -> PolicyOutputs:
        if masks is not None:
            return *random_allowed(space, env.action_stream, masks), zeros
        if not queue:  # one draw for all steps is faster
            chosen = random_actions(space, env.action_stream, (n_steps, n))
            queue.extend(chosen[::-1])
        return queue.pop(), log_probs, zeros

    return act, lambda rows, masks: np.zeros(len(rows), np.float32)


def _policy(policy: Any, env: RolloutEnv, layout: Layout) -> tuple[Act, ValueFn]:
    """Return the functions that act on rows of observations and evaluate them."""
    if hasattr(policy, "get_action_and_logprob"):
        return _torch_policy(policy, layout)
    if not callable(policy):
        raise ArgumentTypeError(
            "policy",
            "None, a function of observations, or a torch module with get_action_and_logprob and get_value",
            type(policy).__name__,
            "pass a policy, or None for random actions",
        )
    call_policy, space = adapt_to_masks(policy), env.single_action_space

    def decide(rows: Array, masks: Flags | None) -> PolicyOutputs:
        outputs = call_policy(layout.decode(rows.copy()), masks)  # the policy may modify its input
        if isinstance(outputs, tuple):
            if len(outputs) != 3:
                raise ArgumentError(
                    "policy",
                    "actions or a tuple (actions, log_probs, values) as result",
                    f"a tuple of length {len(outputs)}",
                    "return all three values",
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

    def to_obs(rows: Array) -> object:
        # `torch.tensor` copies; the module may modify its input.
        return layout.unpack(torch.tensor(rows, device=device), torch_dtype)

    def to_numpy(tensor: torch.Tensor) -> Array:
        # NumPy has no bfloat16.
        return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu())

    def act(rows: Array, masks: Flags | None) -> PolicyOutputs:
        limits = torch.as_tensor(masks, device=device) if masked and masks is not None else None
        with torch.no_grad():
            actions, log_probs, values = map(to_numpy, decide(to_obs(rows), limits))
        return actions, log_probs, values.reshape(len(rows))

    def value(rows: Array, masks: Flags | None) -> npt.ArrayLike:
        with torch.no_grad():
            return to_numpy(module.get_value(to_obs(rows)).reshape(len(rows)))

    return act, value
