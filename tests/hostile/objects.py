"""Rollout buffers, normalisers and running statistics."""

import numpy as np

import rlox
from hostile.arguments import (
    but,
    dtype,
    flag,
    flags,
    floats,
    number,
    optional,
    record,
    row,
    text,
    thing,
    whole,
    wholes,
)
from hostile.replay import SHAPE, D
from hostile.table import Subject, call

T, N = 2, 3
OBS = floats(1, -2, 0.5, 3, shape=(N, D), dtype="f4")
SAID = {
    "actions": wholes(0, 1, 1),
    "log_probs": floats(-1, -0.5, -2, dtype="f4"),
    "values": floats(1, 2, -3, dtype="f4"),
}
FELT = {
    "rewards": floats(1, 0, -1),
    "terminated": flags(0, 0, 1),
    "truncated": flags(0, 1, 0),
}
STEPS = ("actions", "log_probs", "values", "rewards", "terminated", "truncated", "valid")
FIELDS = ("final_index", "final_obs", "next_step", "n_steps", "num_envs", "n_transitions")


def normalizer():
    made = rlox.Normalizer(N, (D,))
    made.update_obs(np.arange(6.0).reshape(N, D))
    return made


def buffer(steps):
    made = rlox.RolloutBuffer(T, N, (D,))
    if steps >= 0:
        made.begin(np.ones((N, D)))
    for t in range(steps):
        right = {name: x.make() for name, x in (SAID | FELT).items()}
        made.record(t, next_obs=OBS.make(), final_obs=OBS.make(), **right)
    return made


def fields_of(made):
    """What a buffer has taken: rows that are to come may hold anything."""
    taken = made.next_step
    found = {name: getattr(made, name)[:taken].copy() for name in STEPS}
    found |= {name: np.array(getattr(made, name)) for name in FIELDS}
    found["obs"] = np.concatenate([made.obs, made.last_obs[None]])[: taken + 1]
    if taken == made.n_steps:
        found |= {name: made.field(name).copy() for name in ("advantages", "returns")}
    return found


def statistics(_):
    made = rlox.RunningMeanStd((D,))
    made.update([[1.0, 2.0], [3.0, 5.0]])
    return made


SUBJECTS = {
    "RolloutBuffer": Subject(buffer, fields_of),
    "Normalizer": Subject(lambda _: normalizer(), lambda made: made.state()),
    "RunningMeanStd": Subject(statistics, lambda made: [made.mean, made.var, made.count]),
}
STATE = {
    "obs_mean": floats(0.5, -2),
    "obs_var": floats(0.25, 4),
    "obs_count": floats(8),
    "return_mean": floats(1.5),
    "return_var": floats(2),
    "return_count": floats(4),
    "returns": floats(1, -0.5, 2),
}
NORMALIZER = optional(thing(normalizer))
CALLS = [
    call("RunningMeanStd", shape=optional(but(SHAPE, odd=("text",)))),
    call("RunningMeanStd.update", x=floats(1, 2, 3, 4, shape=(4, D))),
    call("RunningMeanStd.merge", other=thing(lambda: statistics(0))),
    call(
        "Normalizer",
        num_envs=whole(N),
        obs_shape=SHAPE,
        obs=flag(True),
        reward=flag(True),
        gamma=number(0.5),
        clip_obs=number(4.0),
        clip_reward=number(2.0),
        epsilon=number(0.5),
    ),
    call("Normalizer.update_obs", obs=OBS),
    call("Normalizer.normalize_obs", obs=OBS),
    call("Normalizer.state"),
    call(
        "Normalizer.load_state",
        state=record(lambda: {name: x.make() for name, x in STATE.items()}, **STATE),
    ),
    call(
        "RolloutBuffer",
        n_steps=whole(T),
        num_envs=whole(N),
        obs_shape=SHAPE,
        action_shape=optional(but(row(whole(1), kind=tuple), "a dict")),
        action_dtype=optional(dtype("float32")),
        obs_dtype=optional(dtype("uint8")),
        extra=optional(
            record(
                lambda: {"masks": ((2,), "bool")},
                masks=row(row(whole(2), kind=tuple), dtype("bool"), kind=tuple),
            )
        ),
    ),
    call("RolloutBuffer.field", name=text("rewards")),
    call(
        "RolloutBuffer.begin",
        obs=OBS,
        fresh=flag(True),
        normalizer=NORMALIZER,
        ended=optional(flags(0, 1, 0)),
        at=-1,
    ),
    call(
        "RolloutBuffer.record",
        t=whole(1),
        next_obs=OBS,
        final_obs=optional(OBS),
        normalizer=NORMALIZER,
        **SAID,
        **FELT,
        at=1,
    ),
    call(
        "RolloutBuffer.finish",
        last_values=floats(1, 2, 3, dtype="f4"),
        gamma=number(0.5),
        gae_lambda=number(0.75),
        final_values=optional(floats(0.5, -1, dtype="f4")),
        at=T,
    ),
]
