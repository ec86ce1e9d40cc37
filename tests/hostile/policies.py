"""Policies of torch."""

import numpy as np
import torch
from gymnasium import spaces

from hostile.arguments import (
    Argument,
    but,
    flag,
    flags,
    nothing,
    number,
    optional,
    replace,
    row,
    text,
    thing,
    whole,
)
from hostile.table import Subject, call
from rlox.distributions import Categorical, Gaussian
from rlox.policies import MlpPolicy, SdePolicy
from rlox.torch_state import own_generator, own_threads

BOX, DISCRETE = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
MASKS = optional(flags(1, 0, 1, 1, 0, 1, shape=(3, 2)))


def policy():
    with own_generator(0), own_threads(1):  # torch has no other threads in a forked child
        return MlpPolicy(BOX, DISCRETE)


def exploring():
    with own_generator(0), own_threads(1):
        return SdePolicy(BOX, BOX)


SUBJECTS = {
    "MlpPolicy": Subject(lambda _: policy(), lambda x: sorted(x.state_dict())),
    "SdePolicy": Subject(lambda _: exploring(), lambda x: sorted(x.state_dict())),
}


def tensor(*values, shape, dtype):
    """A tensor: torch itself says what is wrong with others."""

    def make():
        return torch.tensor(values, dtype=dtype).reshape(shape)

    return Argument(make, same={"a copy": lambda x: x.clone()}, drawn=False)


def as_arrays(method):
    """A method of policies, with tensors given as arrays."""

    def called(policy, **arguments):
        with torch.no_grad(), own_threads(1):
            said = getattr(policy, method)(**arguments)
        if isinstance(said, Gaussian | Categorical):
            said = said.mean if isinstance(said, Gaussian) else said.log_probs
        return [x.numpy() for x in (said if isinstance(said, tuple) else (said,))]

    return called


def policy_calls():
    """A mask is what users make themselves."""
    masked = {
        "obs": tensor(*np.linspace(-1, 1, 12), shape=(3, 4), dtype=torch.float32),
        "mask": replace(MASKS, called=("action_masks",)),
    }
    action = tensor(0, 1, 1, shape=(3,), dtype=torch.int64)
    for method, more in (
        ("distribution", {}),
        ("get_action_and_logprob", {"action": action}),
        ("get_action_and_logprob", {}),
        ("act", {}),
        ("evaluate_actions", {"action": action}),
        ("mode", {}),
    ):
        yield call(f"MlpPolicy.{method}", through=as_arrays(method), **masked, **more)
        # Real actions have no masks.
        more = {name: tensor(*range(12), shape=(3, 4), dtype=torch.float32) for name in more}
        unmasked = masked | {"mask": replace(nothing(), called=("action_masks",))}
        yield call(f"SdePolicy.{method}", through=as_arrays(method), **unmasked, **more)
    for kind in ("MlpPolicy", "SdePolicy"):
        yield call(f"{kind}.get_value", through=as_arrays("get_value"), obs=masked["obs"])
        yield call(f"{kind}.frozen_act")


SHAPE = {
    "observation_space": thing(lambda: BOX),
    "net_arch": optional(but(row(whole(4)), "a dict")),
    "shared_trunk": flag(False),
    "features_extractor": nothing(),
    "activation": text("relu"),
    "ortho_init": flag(True),
    "log_std_init": number(-0.5),
    "init": optional(thing(torch.Generator)),
}
CALLS = [
    *policy_calls(),
    call("MlpPolicy", action_space=thing(lambda: DISCRETE), **SHAPE),
    call("SdePolicy", action_space=thing(lambda: BOX), full_std=flag(True), **SHAPE),
    call(
        "check_policy",
        policy=thing(lambda: MlpPolicy(BOX, DISCRETE)),
        observation_space=thing(lambda: BOX),
        action_space=thing(lambda: DISCRETE),
    ),
    call("torch_dtype", dtype=thing(lambda: np.dtype("f4"))),
]
