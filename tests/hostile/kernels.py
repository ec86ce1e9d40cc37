"""Calls of the kernels of advantages and of language-model training."""

import numpy as np

from hostile.arguments import (
    but,
    flag,
    flags,
    floats,
    nothing,
    number,
    optional,
    out,
    replace,
    row,
    text,
    whole,
    wholes,
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


B, L = 3, 4
LOGS = floats(-1, -2, -0.5, -3, -0.25, shape=(B, L))
REF = floats(-2, -1, -0.5, -1.5, shape=(B, L))
MASK = optional(flags(1, 1, 1, 0, 1, shape=(B, L)))
LLM_FLAT = {
    "log_probs_policy": floats(-1, -2, -0.5, -3, -0.25, shape=(B * L,)),
    "log_probs_ref": floats(-2, -1, -0.5, -1.5, shape=(B * L,)),
    "mask": optional(flags(1, 1, 1, 0, 1, shape=(B * L,))),
}
GROUP = {
    "ddof": optional(whole(1)),
    "eps": number(0.5),
    "scale": text("group"),
    "leave_one_out": flag(False),
}
OVERFLOW = text("truncate")


def kernels():
    for end in ("", "_f32", "_schulman", "_schulman_f32"):
        more = {} if "schulman" in end else {"estimator": text("k2")}
        yield call(f"compute_token_kl{end}", **LLM_FLAT, **more)
        yield call(f"compute_batch_token_kl{end}", **LLM_FLAT, **more, seq_len=whole(L))


def rewards(*values, shape=None):
    # None is a missing one.
    return but(floats(*values, shape=shape), odd=("Nones",))


LLM_CALLS = [
    call("compute_group_advantages", rewards=rewards(1, 0, 3, 2), **GROUP),
    call(
        "compute_group_advantages",
        rewards=rewards(1, 0, 3, 2, shape=(4, 2)),
        weights=optional(floats(1, 2)),
    ),
    call(
        "compute_batch_group_advantages",
        rewards=rewards(1, 0, 3, 2, 5, 7),
        group_size=whole(3),
        **GROUP,
    ),
    call(
        "compute_batch_group_advantages",
        rewards=rewards(1, 0, 3, 2, 5, 7, shape=(6, 2)),
        group_size=whole(3),
        weights=optional(floats(0.5, 2)),
    ),
    *kernels(),
    *(
        call(
            "token_kl",
            log_probs=LOGS,
            ref_log_probs=REF,
            mask=MASK,
            estimator=text("k3"),
            reduction=text(reduction),
        )
        for reduction in ("none", "token_mean", "sum")
    ),
    *(
        call("policy_ratios", log_probs=LOGS, old_log_probs=REF, mask=MASK, level=text(level))
        for level in ("token", "sequence")
    ),
    call(
        "policy_ratio_stats",
        log_probs=LOGS,
        old_log_probs=REF,
        mask=MASK,
        clip_low=number(0.25),
        clip_high=optional(number(0.5)),
        advantages=optional(floats(1, -1, 0.5)),
    ),
    call("pack_lengths", lengths=wholes(3, 2, 4, 1), max_length=whole(5), overflow=OVERFLOW),
    call(
        "pack_sequences",
        sequences=row(wholes(1, 2, 3), wholes(4, 5), wholes(6, 7, 8, 9)),
        max_length=whole(5),
        overflow=OVERFLOW,
    ),
]

CALLS += LLM_CALLS
