"""Calls of the kernels of advantages and of language-model training."""

from dataclasses import replace

from hostile.arguments import (
    ANY,
    SAME,
    flags,
    floats,
    integers,
    moved,
    number,
    optional,
    out,
    row,
    text,
    without,
)
from hostile.table import call

T, N = 5, 3
STEPS = {
    "rewards": floats(1, -2, 0.5, 3, shape=(T, N)),
    "values": floats(0.5, 2, -1, 0.25, 4, shape=(T, N)),
    "dones": flags(0, 0, 1, 0, shape=(T, N)),
}
SINGLE = {
    "rewards": floats(1, -2, 0.5, 3, dtype="f4"),
    "values": floats(0.5, 2, -1, 0.25, dtype="f4"),
    "dones": flags(0, 0, 1, 0),
}
FLAT = {
    "rewards": floats(1, -2, 0.5, 3, shape=(T * N,)),
    "values": floats(0.5, 2, -1, 0.25, 4, shape=(T * N,)),
}
# Without `terminated`, the error names `dones`, which may take its place.
ENDS = replace(flags(0, 0, 1, 0, 0, 0, 0, shape=(T, N)), names=("dones",))
FLAT_ENDS = replace(flags(0, 0, 1, 0, 0, 0, 0, shape=(T * N,)), names=("dones",))
CUT = {"terminated": ENDS, "truncated": flags(0, 1, 0, 0, 0, shape=(T, N))}
CUT |= {"final_values": floats(2, -3, 0.5, shape=(T, N))}
FLAT_CUT = {"terminated": FLAT_ENDS, "truncated": flags(0, 1, 0, 0, 0, shape=(T * N,))}
FLAT_CUT |= {"final_values": floats(2, -3, 0.5, shape=(T * N,))}
LAST = floats(1, 2, 0.5)
# A number, or an array of one.
SCALAR = moved(number(0.5), ANY, "two numbers", "no numbers", "a list", "None")
SCALAR = moved(SCALAR, SAME, "0-d")
OUT = row(out((T, N)), out((T, N)), kind=tuple, written=True)
# Results have the dtype of the rewards, and so must `out`.
INTO = STEPS | {"rewards": without(STEPS["rewards"], "f2", ">f2", "f4", ">f4")}
CUT_STEPS = {"rewards": STEPS["rewards"], "values": STEPS["values"], "dones": None}
RETURNS = {"rewards": STEPS["rewards"], "last_value": LAST}
RHOS = {"log_rhos": floats(0.5, -0.25, 0, 1, shape=(T, N)), "bootstrap_value": LAST, "gamma": 0.5}

B, L = 3, 4
LOGS = floats(-1, -2, -0.5, -3, -0.25, shape=(B, L))
REF = floats(-2, -1, -0.5, -1.5, shape=(B, L))
MASK = flags(1, 1, 1, 0, 1, shape=(B, L))
TOKENS = {"log_probs": LOGS, "mask": MASK}
FLAT_TOKENS = {
    "log_probs_policy": floats(-1, -2, -0.5, -3, -0.25, shape=(B * L,)),
    "log_probs_ref": floats(-2, -1, -0.5, -1.5, shape=(B * L,)),
    "mask": flags(1, 1, 1, 0, 1, shape=(B * L,)),
}
GROUP = {"ddof": optional(1)}


def rewards(*values, shape):
    """Return rewards, of which None is a missing reward."""
    return moved(floats(*values, shape=shape), ANY, "Nones")


def token_calls():
    for end in ("", "_f32", "_schulman", "_schulman_f32"):
        more = {} if "schulman" in end else {"estimator": "k2"}
        yield call(f"compute_token_kl{end}", **FLAT_TOKENS, **more)
        yield call(f"compute_batch_token_kl{end}", **FLAT_TOKENS, **more, seq_len=L)
    for reduction in ("none", "token_mean", "sum"):
        yield call("token_kl", **TOKENS, ref_log_probs=REF, estimator="k3", reduction=reduction)
    for level in ("token", "sequence"):
        yield call("policy_ratios", **TOKENS, old_log_probs=REF, level=text(level))


CALLS = [
    call("compute_gae", **INTO, last_value=LAST, out=OUT),
    call("compute_gae", **CUT_STEPS, last_value=LAST, **CUT),
    call("compute_gae", **SINGLE, last_value=SCALAR),
    call("compute_gae_batched", **FLAT, dones=FLAT_ENDS, last_values=LAST, n_steps=T),
    call("compute_gae_batched", **FLAT, dones=None, last_values=LAST, n_steps=T, **FLAT_CUT),
    call("compute_lambda_returns", **STEPS, last_value=LAST),
    call("compute_lambda_returns", **CUT_STEPS, last_value=LAST, **CUT),
    call("compute_returns", **RETURNS, dones=STEPS["dones"]),
    call("compute_returns", **RETURNS, dones=None, **CUT),
    call("compute_vtrace", **RHOS, **STEPS, pg_rho_bar=2.0),
    call("compute_vtrace", **RHOS, **CUT_STEPS, **CUT),
    call("compute_group_advantages", rewards=rewards(1, 0, 3, 2, shape=(4,)), **GROUP),
    call(
        "compute_group_advantages",
        rewards=rewards(1, 0, 3, 2, shape=(4, 2)),
        weights=replace(floats(1, 2), names=("rewards",)),
    ),
    call(
        "compute_batch_group_advantages",
        rewards=rewards(1, 0, 3, 2, 5, 7, shape=(6,)),
        group_size=3,
        **GROUP,
    ),
    call(
        "compute_batch_group_advantages",
        rewards=rewards(1, 0, 3, 2, 5, 7, shape=(6, 2)),
        group_size=3,
        weights=replace(floats(0.5, 2), names=("rewards",)),
    ),
    *token_calls(),
    call(
        "policy_ratio_stats",
        **TOKENS,
        old_log_probs=REF,
        clip_high=0.5,
        advantages=floats(1, -1, 0.5),
    ),
    call("pack_lengths", lengths=integers(3, 2, 4, 1), max_length=5, overflow="truncate"),
    call(
        "pack_sequences",
        sequences=row(integers(1, 2, 3), integers(4, 5), integers(6, 7, 8, 9)),
        max_length=5,
        overflow="truncate",
    ),
]
