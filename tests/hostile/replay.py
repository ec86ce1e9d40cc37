"""Replay buffers."""

import tempfile
import uuid

import numpy as np

import rlox
from hostile.arguments import (
    but,
    dtype,
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

D = 2
SHAPE = but(row(whole(D), kind=tuple), "a dict")  # whose keys are a shape, too
DEEP = {f"{n} axes": always((1,) * n) for n in (30, 31, 33, 40, 70)}
SHAPE = replace(SHAPE, odd={**SHAPE.odd, **DEEP})


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


GOALS = {"observation": 1, "achieved_goal": 1, "desired_goal": 1}


def distance(achieved, desired, info):
    return -np.abs(achieved - desired)[:, 0]


def hindsight(count):
    made = rlox.HindsightReplayBuffer(6, GOALS, 1, compute_reward=distance, seed=0)
    for i in range(count):
        obs, following = ({name: [x] for name in GOALS} for x in (i, i + 1))
        made.push(obs, [0.5], i, False, i % 3 == 2, following)
    return made


SUBJECTS = {
    "HindsightReplayBuffer": Subject(hindsight, sampled),
    "MmapReplayBuffer": Subject(persistent, sampled),
    "ReplayBuffer": Subject(lambda n: pushed(rlox.ReplayBuffer(6, D, 1, seed=0), n), sampled),
    "PrioritizedReplayBuffer": Subject(
        lambda n: pushed(rlox.PrioritizedReplayBuffer(6, D, 1, seed=0), n),
        lambda made: [sampled(made), made.alpha, made.beta],
    ),
}
REPLAY = {
    "capacity": whole(6),
    "obs_dim": but(SHAPE, odd=("text",)),
    "act_dim": but(SHAPE, odd=("text",)),
    "num_envs": optional(whole(1)),
    "obs_dtype": optional(dtype("float32")),
    "act_dtype": optional(dtype("int64")),
    "frame_stack": optional(whole(1)),
    "n_step": optional(whole(2)),
    "gamma": number(0.5),
    "extra": optional(
        record(
            lambda: {"cost": ((2,), "float64")},
            cost=row(row(whole(2), kind=tuple), dtype("float64"), kind=tuple),
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


def folder(kind):
    """Where a buffer is; errors of what else may be there name the section."""
    return replace(path(lambda: saved(kind)), called=("section",))


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
    call("MmapReplayBuffer.state", at=4),
    # Right ones are of the same file: test_replay_state.py.
    call("MmapReplayBuffer.verify", at=4),
    call("ReplayBuffer", **REPLAY),
    call(
        "HindsightReplayBuffer",
        obs_dim=but(record(lambda: dict(GOALS)), "one key more", "surrogates as key"),
        compute_reward=thing(lambda: distance),
        compute_terminated=nothing(),
        strategy=text("final"),
        n_sampled_goal=whole(4),
        **{name: REPLAY[name] for name in ("capacity", "act_dim", "num_envs", "seed", "extra")},
        **{name: REPLAY[name] for name in ("obs_dtype", "act_dtype")},
    ),
    call(
        "HindsightReplayBuffer.sample",
        **{**SAMPLE, "out": nothing()},  # a dict of dicts: test_hindsight.py
        at=4,
    ),
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
    call(
        "ReplayBuffer.sample_sequences",
        batch_size=whole(2),
        length=whole(3),
        seed=optional(whole(7)),
        burn_in=optional(whole(1)),
        whole=flag(False),
        out=nothing(),  # which has four more: test_sequences.py
        at=4,
    ),
    call("ReplayBuffer.state", at=4),
    # Its arrays in all forms: test_replay_state.py.
    call("ReplayBuffer.load_state", arrays=record(replay_state), at=2),
    call("ReplayBuffer.save", path=path(place), raises=(OSError,), at=4),
    call("ReplayBuffer.load", path=folder("ReplayBuffer"), raises=(OSError,)),
    call(
        "PrioritizedReplayBuffer.load",
        path=folder("PrioritizedReplayBuffer"),
        raises=(OSError,),
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
]
