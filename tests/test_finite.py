"""Where NaN came from: tensor, step and environment."""

import numpy as np
import pytest

from rlox import RolloutBuffer
from rlox.finite import refuse_nan, refuse_nan_policy, refuse_nan_rollout, refuse_spoiled


def rollout():
    """Two environments, three steps; the first is cut in the second step."""
    buffer = RolloutBuffer(3, 2, (1,))
    buffer.begin(np.zeros((2, 1)))
    for t in range(3):
        zeros = np.zeros(2, np.float32)
        cut = np.array([t == 1, False])
        final = np.ones((2, 1), np.float32)
        obs = np.zeros((2, 1), np.float32)
        rows = ([0, 1], zeros, zeros, obs, zeros, np.zeros(2, bool), cut, final)
        buffer.record(t, *rows)
    return buffer


@pytest.mark.parametrize(
    ("name", "where", "message"),
    [
        ("obs", (2, 1), "got inf in environment 1 at step 12; look at the environment's"),
        ("rewards", (0, 1), "got inf in environment 1 at step 10; look at the environment's"),
        ("log_probs", (1, 0), "got inf in environment 0 at step 11; go back to a checkpoint"),
        ("values", (2, 1), "got inf in environment 1 at step 12; go back to a checkpoint"),
        ("last_values", (1,), "got inf in environment 1 at step 13; go back"),
        ("final_values", (0,), "got inf in environment 0 at step 11; go back"),
    ],
)
def test_everything_that_advantages_come_from_is_looked_at(name, where, message):
    buffer = rollout()
    arrays = {"last_values": np.zeros(2, np.float32), "final_values": np.zeros(1, np.float32)}
    refuse_nan_rollout(buffer, **arrays, steps_before=10)
    arrays.get(name, getattr(buffer, name, None))[where] = np.inf
    with pytest.raises(FloatingPointError, match=f"^{name}: expected finite numbers, {message}"):
        refuse_nan_rollout(buffer, **arrays, steps_before=10)


def test_without_truncations_there_are_no_final_values():
    buffer = RolloutBuffer(1, 1, (1,))
    refuse_nan_rollout(buffer, np.zeros(1, np.float32), None, steps_before=0)


def test_a_number_in_a_larger_row_is_found():
    array = np.zeros((2, 3, 4))
    array[1, 2, 3] = np.nan
    with pytest.raises(FloatingPointError, match="got nan in environment 2 at step 1"):
        refuse_nan("obs", array, 0)


def test_what_the_policy_said_is_blamed_before_its_parameters():
    good, bad = np.zeros(2), np.array([0.0, np.nan])
    refuse_nan_policy([good, good, good], {"w": good}, 5)
    refuse_nan_policy([], {}, 5)
    with pytest.raises(FloatingPointError, match=r"^log_probs: .* environment 1 at step 5"):
        refuse_nan_policy([good, bad], {"w": bad}, 5)
    with pytest.raises(FloatingPointError, match=r"^w: .* at step 5"):
        refuse_nan_policy([], {"v": good, "w": bad}, 5)


def test_a_spoiled_loss_is_named():
    refuse_spoiled({"loss": 1.0}, 3)
    with pytest.raises(FloatingPointError, match=r"^loss: .* at step 3"):
        refuse_spoiled({"value_loss": 1.0, "loss": float("inf")}, 3)
