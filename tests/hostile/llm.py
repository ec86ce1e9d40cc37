"""The kernels of language-model post-training."""

from hostile.arguments import but, flag, flags, floats, number, optional, row, text, whole, wholes
from hostile.table import call

B, L = 3, 4
LOGS = floats(-1, -2, -0.5, -3, -0.25, shape=(B, L))
REF = floats(-2, -1, -0.5, -1.5, shape=(B, L))
MASK = optional(flags(1, 1, 1, 0, 1, shape=(B, L)))
FLAT = {
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
        yield call(f"compute_token_kl{end}", **FLAT, **more)
        yield call(f"compute_batch_token_kl{end}", **FLAT, **more, seq_len=whole(L))


def rewards(*values, shape=None):
    # None is a missing one.
    return but(floats(*values, shape=shape), odd=("Nones",))


CALLS = [
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
