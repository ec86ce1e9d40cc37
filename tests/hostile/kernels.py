"""Calls of the kernels of advantages and of language-model training."""

from dataclasses import replace

from hostile.arguments import (
    ANY,
    SAME,
    booleans,
    choice,
    floats,
    integers,
    optional,
    output_array,
    real,
    sequence,
    with_outcome,
    without,
)
from hostile.table import call

T, N = 5, 3
STEPS = {
    "rewards": floats(1, -2, 0.5, 3, shape=(T, N)),
    "values": floats(0.5, 2, -1, 0.25, 4, shape=(T, N)),
    "dones": booleans(0, 0, 1, 0, shape=(T, N)),
}
SINGLE_STEPS = {
    "rewards": floats(1, -2, 0.5, 3, dtype="f4"),
    "values": floats(0.5, 2, -1, 0.25, dtype="f4"),
    "dones": booleans(0, 0, 1, 0),
}
FLAT = {"rewards": floats(1, -2, 0.5, 3, shape=(T * N,)), "values": floats(0.5, 2, -1, 0.25, 4, shape=(T * N,))}
# If `terminated` is missing, the error names `dones`, the alternative.
TERMINATED = replace(booleans(0, 0, 1, 0, 0, 0, 0, shape=(T, N)), names=("dones",))
FLAT_TERMINATED = replace(booleans(0, 0, 1, 0, 0, 0, 0, shape=(T * N,)), names=("dones",))
LIMITS = {"terminated": TERMINATED, "truncated": booleans(0, 1, 0, 0, 0, shape=(T, N))}
LIMITS |= {"final_values": floats(2, -3, 0.5, shape=(T, N))}
FLAT_LIMITS = {"terminated": FLAT_TERMINATED, "truncated": booleans(0, 1, 0, 0, 0, shape=(T * N,))}
FLAT_LIMITS |= {"final_values": floats(2, -3, 0.5, shape=(T * N,))}
LAST = floats(1, 2, 0.5)
# A number or an array of one number.
SCALAR = with_outcome(real(0.5), ANY, "two numbers", "no numbers", "a list", "None")
SCALAR = with_outcome(SCALAR, SAME, "0-d")
OUT = sequence(output_array((T, N)), output_array((T, N)), cls=tuple, written=True)
# `out` must have the dtype of the results, which is the dtype of the rewards.
GAE_STEPS = STEPS | {"rewards": without(STEPS["rewards"], "f2", ">f2", "f4", ">f4")}
STEPS_WITHOUT_DONES = {"rewards": STEPS["rewards"], "values": STEPS["values"], "dones": None}
RETURNS = {"rewards": STEPS["rewards"], "last_value": LAST}
RHOS = {"log_rhos": floats(0.5, -0.25, 0, 1, shape=(T, N)), "bootstrap_value": LAST, "gamma": 0.5}

B, L = 3, 4
LOG_PROBS = floats(-1, -2, -0.5, -3, -0.25, shape=(B, L))
REF_LOG_PROBS = floats(-2, -1, -0.5, -1.5, shape=(B, L))
MASK = booleans(1, 1, 1, 0, 1, shape=(B, L))
TOKENS = {"log_probs": LOG_PROBS, "mask": MASK}
FLAT_TOKENS = {
    "log_probs_policy": floats(-1, -2, -0.5, -3, -0.25, shape=(B * L,)),
    "log_probs_ref": floats(-2, -1, -0.5, -1.5, shape=(B * L,)),
    "mask": booleans(1, 1, 1, 0, 1, shape=(B * L,)),
}
GROUP = {"ddof": optional(1)}


def rewards(*values, shape):
    """Return rewards. None is a missing reward."""
    return with_outcome(floats(*values, shape=shape), ANY, "Nones")


def token_calls():
    for end in ("", "_f32", "_schulman", "_schulman_f32"):
        more = {} if "schulman" in end else {"estimator": "k2"}
        yield call(f"compute_token_kl{end}", **FLAT_TOKENS, **more)
        yield call(f"compute_batch_token_kl{end}", **FLAT_TOKENS, **more, seq_len=L)
    for reduction in ("none", "token_mean", "sum"):
        yield call("token_kl", **TOKENS, ref_log_probs=REF_LOG_PROBS, estimator="k3", reduction=reduction)
    for level in ("token", "sequence"):
        yield call("policy_ratios", **TOKENS, old_log_probs=REF_LOG_PROBS, level=choice(level))


CALLS = [
    call("compute_gae", **GAE_STEPS, last_value=LAST, out=OUT),
    call("compute_gae", **STEPS_WITHOUT_DONES, last_value=LAST, **LIMITS),
    call("compute_gae", **SINGLE_STEPS, last_value=SCALAR),
    call("compute_gae_batched", **FLAT, dones=FLAT_TERMINATED, last_values=LAST, n_steps=T),
    call("compute_gae_batched", **FLAT, dones=None, last_values=LAST, n_steps=T, **FLAT_LIMITS),
    call("compute_lambda_returns", **STEPS, last_value=LAST),
    call("compute_lambda_returns", **STEPS_WITHOUT_DONES, last_value=LAST, **LIMITS),
    call("compute_returns", **RETURNS, dones=STEPS["dones"]),
    call("compute_returns", **RETURNS, dones=None, **LIMITS),
    call("compute_vtrace", **RHOS, **STEPS, pg_rho_bar=2.0),
    call("compute_vtrace", **RHOS, **STEPS_WITHOUT_DONES, **LIMITS),
    call("compute_group_advantages", rewards=rewards(1, 0, 3, 2, shape=(4,)), **GROUP),
    call(
        "compute_group_advantages",
        rewards=rewards(1, 0, 3, 2, shape=(4, 2)),
        weights=replace(floats(1, 2), names=("rewards",)),
    ),
    call("compute_batch_group_advantages", rewards=rewards(1, 0, 3, 2, 5, 7, shape=(6,)), group_size=3, **GROUP),
    call(
        "compute_batch_group_advantages",
        rewards=rewards(1, 0, 3, 2, 5, 7, shape=(6, 2)),
        group_size=3,
        weights=replace(floats(0.5, 2), names=("rewards",)),
    ),
    *token_calls(),
    call("policy_ratio_stats", **TOKENS, old_log_probs=REF_LOG_PROBS, clip_high=0.5, advantages=floats(1, -1, 0.5)),
    call("pack_lengths", lengths=integers(3, 2, 4, 1), max_length=5, overflow="truncate"),
    call(
        "pack_sequences",
        sequences=sequence(integers(1, 2, 3), integers(4, 5), integers(6, 7, 8, 9)),
        max_length=5,
        overflow="truncate",
    ),
]
