"""Buffers, normalisers and running statistics."""

import tempfile
import uuid

import numpy as np

import rlox
from hostile.arguments import (
    but,
    flag,
    flags,
    floats,
    nothing,
    number,
    optional,
    out,
    path,
    record,
    replace,
    row,
    text,
    thing,
    whole,
    wholes,
)
from hostile.forms import always
from hostile.table import Subject, call

T, N, D = 2, 3, 2
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
SHAPE = but(row(whole(D), kind=tuple), "a dict")  # whose keys are a shape, too
DEEP = {f"{n} axes": always((1,) * n) for n in (30, 31, 33, 40, 70)}
SHAPE = replace(SHAPE, odd={**SHAPE.odd, **DEEP})
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


def pushed(made, count):
    for i in range(count):
        made.push([i, -i], [0.5 * i], i, False, i % 3 == 2, [i + 1, -i - 1])
    return made


def sampled(made):
    return {"transitions": len(made), **(made.sample(len(made), seed=0) if len(made) else {})}


FOLDER = tempfile.TemporaryDirectory()


def place():
    """A path where nothing is."""
    return f"{FOLDER.name}/{uuid.uuid4()}.replay"


def persistent(pushes, path=None):
    return pushed(rlox.MmapReplayBuffer(3, 6, D, 1, path or place(), seed=0), pushes)


def kept():
    """A file that nobody uses."""
    path = place()
    persistent(4, path).close()
    return path


def replay_state():
    return pushed(rlox.ReplayBuffer(6, D, 1, seed=0), 8).state()


def saved(kind):
    """A folder with a buffer."""
    path = place()
    pushed(getattr(rlox, kind)(6, D, 1, seed=0), 8).save(path)
    return path


SUBJECTS = {
    "MmapReplayBuffer": Subject(persistent, sampled),
    "ReplayBuffer": Subject(lambda n: pushed(rlox.ReplayBuffer(6, D, 1, seed=0), n), sampled),
    "PrioritizedReplayBuffer": Subject(
        lambda n: pushed(rlox.PrioritizedReplayBuffer(6, D, 1, seed=0), n),
        lambda made: [sampled(made), made.alpha, made.beta],
    ),
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
REPLAY = {
    "capacity": whole(6),
    "obs_dim": but(SHAPE, odd=("text",)),
    "act_dim": but(SHAPE, odd=("text",)),
    "num_envs": optional(whole(1)),
    "obs_dtype": optional(text("float32")),
    "act_dtype": optional(text("int64")),
    "frame_stack": optional(whole(1)),
    "n_step": optional(whole(2)),
    "gamma": number(0.5),
    "extra": optional(
        record(
            lambda: {"cost": ((2,), "float64")},
            cost=row(row(whole(2), kind=tuple), text("float64"), kind=tuple),
        )
    ),
    "seed": optional(whole(3)),
}
TRANSITIONS = {
    "obs": floats(1, -2, 0.5, 3, shape=(2, D), dtype="f4"),
    "next_obs": floats(0.5, 3, 1, 1, shape=(2, D), dtype="f4"),
    "actions": floats(0.5, -1, shape=(2, 1), dtype="f4"),
    "rewards": floats(1, 0, dtype="f4"),
    "terminated": flags(0, 1),
    "truncated": flags(1, 0),
}
OUT = {name: (D,) if name.endswith("obs") else (1,) * (name == "actions") for name in TRANSITIONS}


def columns():
    kinds = dict.fromkeys(OUT, "f4") | dict.fromkeys(("terminated", "truncated"), "?")
    return {name: np.zeros((2, *shape), kinds[name]) for name, shape in OUT.items()}


SAMPLE = {
    "batch_size": whole(2),
    "seed": optional(whole(7)),
    "out": optional(
        replace(
            record(columns, **{name: out(lambda name=name: columns()[name]) for name in OUT}),
            written=True,
        )
    ),
}
# Something else may be there.
READING = (OSError, rlox.CorruptFileError)
CALLS = [
    call(
        "MmapReplayBuffer",
        hot_capacity=whole(3),
        total_capacity=whole(6),
        cold_path=path(place),
        **{name: REPLAY[name] for name in ("obs_dim", "act_dim", "extra", "seed")},
        **{name: REPLAY[name] for name in ("obs_dtype", "act_dtype")},
        raises=(OSError,),
    ),
    call(
        "MmapReplayBuffer.open",
        path=path(kept),
        hot_capacity=optional(whole(3)),
        seed=optional(whole(1)),
        raises=(OSError,),
    ),
    call(
        "MmapReplayBuffer.push",
        obs=floats(1, -2, dtype="f4"),
        action=floats(0.5, dtype="f4"),
        reward=number(0.5),
        terminated=flag(True),
        truncated=flag(False),
        next_obs=floats(0.5, 3, dtype="f4"),
        extra=nothing(),
        at=4,
    ),
    call("MmapReplayBuffer.push_batch", **TRANSITIONS, extra=nothing(), at=4),
    call("MmapReplayBuffer.sample", **SAMPLE, at=4),
    call("MmapReplayBuffer.flush", at=4),
    call("MmapReplayBuffer.verify", at=4),
    call("ReplayBuffer", **REPLAY),
    call("PrioritizedReplayBuffer", alpha=number(0.5), beta=number(0.25), **REPLAY),
    call(
        "ReplayBuffer.push",
        obs=floats(1, -2, dtype="f4"),
        action=floats(0.5, dtype="f4"),
        reward=number(0.5),
        terminated=flag(True),
        truncated=flag(False),
        next_obs=floats(0.5, 3, dtype="f4"),
        extra=nothing(),
        at=4,
    ),
    call("ReplayBuffer.push_batch", **TRANSITIONS, extra=nothing(), in_order=flag(True), at=4),
    call("ReplayBuffer.sample", **SAMPLE, at=4),
    call("ReplayBuffer.state", at=4),
    # Its arrays in all forms: test_replay_state.py.
    call("ReplayBuffer.load_state", arrays=record(replay_state), at=2),
    call("ReplayBuffer.save", path=path(place), raises=(OSError,), at=4),
    call("ReplayBuffer.load", path=path(lambda: saved("ReplayBuffer")), raises=READING),
    call(
        "PrioritizedReplayBuffer.load",
        path=path(lambda: saved("PrioritizedReplayBuffer")),
        raises=READING,
    ),
    call(
        "PrioritizedReplayBuffer.sample",
        **{**SAMPLE, "out": nothing()},  # which has two more: test_prioritized_replay.py
        beta=optional(number(0.5)),
        at=4,
    ),
    call(
        "PrioritizedReplayBuffer.update_priorities",
        indices=wholes(3, 1),
        priorities=floats(0.5, 4),
        at=4,
    ),
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
        action_dtype=optional(text("float32")),
        obs_dtype=optional(text("uint8")),
        extra=optional(
            record(
                lambda: {"masks": ((2,), "bool")},
                masks=row(row(whole(2), kind=tuple), text("bool"), kind=tuple),
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
