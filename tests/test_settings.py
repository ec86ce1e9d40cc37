"""Settings: where they come from, and what is said of wrong ones."""

import numpy as np
import pytest

from rlox.settings import chosen_seed, refuse_unknown, resolve


def test_arguments_come_before_rl_zoo3_before_defaults():
    settings, sources = resolve({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2}, {"a": 3})
    assert settings == {"a": 3, "b": 2, "c": 1}
    assert sources == {"a": "argument", "b": "rl-zoo3", "c": "default"}


def test_a_policy_of_ones_own_takes_the_place_of_settings():
    settings, sources = resolve({"net": 1}, {"net": 2}, {}, without=["net"])
    assert (settings, sources) == ({"net": 1}, {"net": "default"})
    with pytest.raises(TypeError, match="net: expected no settings of the built-in policy"):
        resolve({"net": 1}, {}, {"net": 3}, without=["net"])


def test_an_unknown_name_is_told_near_ones():
    with pytest.raises(TypeError, match=r"X has no setting 'nsteps'; did you mean 'n_steps'\?"):
        refuse_unknown(["nsteps"], ["gamma", "n_steps"], "X")
    with pytest.raises(TypeError, match=r"X has no setting 'zzz'; it has gamma, n_steps"):
        refuse_unknown(["zzz"], ["gamma", "n_steps"], "X")


def test_a_seed_is_kept_or_chosen():
    assert (chosen_seed(7), chosen_seed(np.int64(7)), chosen_seed(0)) == (7, 7, 0)
    assert chosen_seed(None) != chosen_seed(None)
    for wrong in (-1, 1.5):
        with pytest.raises(ValueError, match="seed: expected None or an integer of at least 0"):
            chosen_seed(wrong)
