"""Unknown names of settings: close names are suggested."""

from rlox import ArgumentTypeError
from rlox._validation import check_keywords, hint
from support.refusals import expect_refusal, refusals


def test_hint_names_close_names_else_all():
    assert hint("nsteps", ["gamma", "n_steps"]) == "did you mean 'n_steps'?"
    assert hint("cartpole", ["CartPole-v0", "CartPole-v1"]) == "did you mean 'CartPole-v1'?"
    assert hint("zzz", ["gamma", "n_steps"]) == "choose from gamma, n_steps"
    assert hint("zzz", ["gamma", "n_steps"], "see the docs") == "see the docs"


@refusals(
    (lambda: check_keywords(["gama"], ["gamma"], "X"), ArgumentTypeError, "gama", "'gamma'"),
    (
        lambda: check_keywords(["lr"], ["gamma"], "X", {"lr": "pass learning_rate"}),
        *(ArgumentTypeError, "lr", "pass learning_rate"),
    ),
)
def test_unknown_names_are_rejected_with_a_hint(refusal):
    check_keywords(["gamma"], ["gamma"], "X")
    expect_refusal(refusal)
