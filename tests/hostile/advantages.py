"""The kernels of advantages and returns, time-major and flat."""

import numpy as np

from hostile.arguments import (
    but,
    flags,
    floats,
    nothing,
    number,
    optional,
    out,
    replace,
    row,
    whole,
)
from hostile.table import call

T, N = 5, 3

STEPS = {
    "rewards": floats(1, -2, 0.5, 3, shape=(T, N)),
    "values": floats(0.5, 2, -1, 0.25, 4, shape=(T, N)),
    "dones": flags(0, 0, 1, 0, shape=(T, N)),
}
CUT = {
    "terminated": optional(flags(0, 0, 1, 0, 0, 0, 0, shape=(T, N))),
    "truncated": optional(flags(0, 1, 0, 0, 0, shape=(T, N))),
    "final_values": optional(floats(2, -3, 0.5, shape=(T, N))),
}
LAST = floats(1, 2, 0.5)
SINGLE = {
    "rewards": floats(1, -2, 0.5, 3, dtype="f4"),
    "values": floats(0.5, 2, -1, 0.25, dtype="f4"),
    "dones": flags(0, 0, 1, 0),
}


def scalar(value):
    """A number, or an array of one."""
    forms = number(value)
    return but(forms, same=("0-d",), odd=("two numbers", "no numbers", "a list", "None"))


DISCOUNT = {"gamma": number(0.5), "lam": number(0.75)}
FLAT = {name: replace(x, make=lambda x=x: x.make().T.ravel()) for name, x in STEPS.items()}
FLAT_CUT = {name: replace(x, make=lambda x=x: x.make().T.ravel()) for name, x in CUT.items()}
OUT = row(out(lambda: np.zeros((T, N))), out(lambda: np.zeros((T, N))), kind=tuple, written=True)
VTRACE = {"rho_bar": number(1.0), "c_bar": number(1.0), "lam": number(1.0), "pg_rho_bar": number(2)}
RHOS = floats(0.5, -0.25, 0, 1, shape=(T, N))
REWARDS_ONLY = {"rewards": STEPS["rewards"], "dones": STEPS["dones"]}
CUT_STEPS = {"rewards": STEPS["rewards"], "values": STEPS["values"], "dones": nothing()}

# Results are of the dtype of the rewards, and so must `out` be.
INTO = STEPS | {"rewards": but(STEPS["rewards"], "f2", ">f2", "f4", ">f4")}
CALLS = [
    call("compute_gae", **INTO, last_value=LAST, **DISCOUNT, out=optional(OUT)),
    call("compute_gae", **CUT_STEPS, last_value=LAST, **DISCOUNT, **CUT),
    call("compute_gae", **SINGLE, last_value=scalar(0.5), **DISCOUNT),
    call("compute_gae_batched", **FLAT, last_values=LAST, n_steps=whole(T), **DISCOUNT),
    call(
        "compute_gae_batched",
        rewards=FLAT["rewards"],
        values=FLAT["values"],
        dones=nothing(),
        last_values=LAST,
        n_steps=whole(T),
        **FLAT_CUT,
    ),
    call("compute_lambda_returns", **STEPS, last_value=LAST, **DISCOUNT),
    call("compute_lambda_returns", **CUT_STEPS, last_value=LAST, **CUT),
    call("compute_returns", **REWARDS_ONLY, last_value=LAST, gamma=number(0.5)),
    call("compute_returns", rewards=STEPS["rewards"], dones=nothing(), last_value=LAST, **CUT),
    call(
        "compute_vtrace", log_rhos=RHOS, **STEPS, bootstrap_value=LAST, gamma=number(0.5), **VTRACE
    ),
    call(
        "compute_vtrace", log_rhos=RHOS, **CUT_STEPS, bootstrap_value=LAST, gamma=number(0.5), **CUT
    ),
]
