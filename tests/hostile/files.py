"""Checkpoints and callbacks."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from hostile.arguments import (
    Argument,
    but,
    flag,
    floats,
    number,
    optional,
    path,
    record,
    row,
    text,
    thing,
    whole,
)
from hostile.forms import NO_SCALAR, always
from hostile.table import Subject, call
from rlox.callbacks import (
    Callback,
    CheckpointCallback,
    EarlyStoppingCallback,
    EvalCallback,
    Every,
    FunctionCallback,
    ProgressBar,
    TimingCallback,
)
from rlox.checkpoint import read_checkpoint, write_checkpoint


def written(path, manifest, members):
    """What is read of what was written."""
    write_checkpoint(path, manifest, members)
    return read_checkpoint(path)


def known():
    """A checkpoint that is there."""
    if not Path("known").exists():
        write_checkpoint("known", {"steps": 7}, {"networks": {"w": np.ones(2)}})
    return "known"


def every(_):
    """Where a run has begun."""
    made = Every(9)
    made.start(4)
    return made


SUBJECTS = {
    "ProgressBar": Subject(lambda _: ProgressBar(), lambda bar: None),
    "FunctionCallback": Subject(
        lambda _: FunctionCallback(lambda *told: None), lambda callback: None
    ),
    "Callback": Subject(lambda _: Callback(), lambda callback: None),
    "EvalCallback": Subject(lambda _: EvalCallback(9), lambda callback: callback.reward_threshold),
    "CheckpointCallback": Subject(lambda _: CheckpointCallback(9), lambda callback: callback.best),
    "EarlyStoppingCallback": Subject(
        lambda _: EarlyStoppingCallback(), lambda callback: [callback.patience, callback.min_delta]
    ),
    "TimingCallback": Subject(lambda _: TimingCallback(), lambda callback: callback.seconds),
    "Every": Subject(every, lambda every: every.steps),
}


def called(kind):
    """What a trainer calls. It is for the function to say what is wrong, or for nobody."""
    told = Argument(lambda: {"steps": 7}, odd={"a copy": dict}, drawn=False)
    yield call(f"{kind}.on_train_start", trainer=told)
    yield call(f"{kind}.on_iteration", trainer=told, metrics=told)
    yield call(f"{kind}.on_row_logged", trainer=told, metrics=told)
    yield call(f"{kind}.on_train_end", trainer=told)


def recorded(parts):
    return record(lambda: {key: part.make() for key, part in parts.items()}, **parts)


# A file holds the dtype that it was given, and other bytes have another checksum.
EXACT = but(floats(0.5, 2), odd=("f2", ">f2", "f4", ">f4", "g"))
MEMBERS = record(
    lambda: {"networks": {"w": np.array([0.5, 2.0])}},
    networks=recorded({"w": EXACT}),
)
# JSON holds most things, and what it does not is refused.
NUMBER = Argument(lambda: 7, odd=NO_SCALAR | {"NaN": always(np.nan), "bool": bool})
MANIFEST = recorded({"steps": NUMBER})
WORD = path(lambda: "word")  # any text may be one
WORD = replace(WORD, same={name: form for name, form in WORD.same.items() if name != "Path"})
ENV = Argument(
    lambda: "CartPole-v1",
    odd={"a function": always(dict), "another id": always("abc")},
    senseless={"a number": always(3), "numbers": always(np.zeros(3)), "a list": always(["a"])},
    drawn=False,
)
CALLS = [
    call("read_checkpoint", raises=(OSError,), path=path(known)),
    call(
        "write_checkpoint",
        through=written,
        raises=(OSError,),
        path=path(lambda: "new"),
        manifest=MANIFEST,
        members=MEMBERS,
    ),
    call("FunctionCallback", function=thing(lambda: print)),
    call("Callback"),
    *called("Callback"),
    *called("FunctionCallback"),
    call("ProgressBar", every=number(0.5)),
    call("TimingCallback", every=whole(9)),
    call("Every", every=whole(9)),
    call(
        "EvalCallback",
        every=whole(9),
        n_episodes=whole(3),
        reward_threshold=optional(number(0.5)),
        deterministic=flag(True),
        env=optional(ENV),
        save_best=optional(flag(True)),
        path=optional(path(lambda: "new")),
    ),
    call(
        "CheckpointCallback",
        every=whole(9),
        keep_last=optional(whole(3)),
        best=optional(WORD),
        replay=flag(True),
        path=optional(path(lambda: "new")),
    ),
    call(
        "EarlyStoppingCallback",
        metric=WORD,
        patience=whole(9),
        min_delta=number(0.5),
        mode=text("max"),
    ),
    call("as_callback", callback=thing(lambda: print)),
    call("as_callbacks", callbacks=row(thing(lambda: print))),
]
