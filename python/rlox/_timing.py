"""Clock per thread that splits the time of a run into phases.

The clock runs from `start` to `stop` and is in one phase at a time, so the phases add up to the
elapsed time. While no clock runs, `enter` does nothing. GPU work counts in the phase that waits for
the result.

>>> start()
>>> enter("env_step")
>>> enter("other")
>>> stop()
"""

from rlox import _rlox
from rlox._rlox import enter_phase as enter
from rlox._rlox import start_phases as start
from rlox._rlox import stop_phases as stop
from rlox._validation import check_int

__all__ = ["PHASES", "EveryNSteps", "enter", "read", "start", "stop"]
PHASES = ("env_step", "inference", "gae_compute", "gradient_update", "buffer", "other")
"""Names of the phases.

- `env_step`: stepping the environments
- `inference`: actions and values of the policy
- `gae_compute`: advantages
- `gradient_update`: losses, gradients and weights
- `buffer`: storing transitions and sampling minibatches
- `other`: everything else, such as callbacks, loggers and checkpoints
"""


def read() -> dict[str, float]:
    """Return the seconds of this thread per phase since `start`; 0 if no clock was started."""
    return dict(zip(PHASES, _rlox.phase_seconds(), strict=True))


class EveryNSteps:
    """Trigger that is ready once after each multiple of `every` environment steps.

    Args:
        every: Number of environment steps, all environments together.

    Raises:
        ArgumentTypeError: `every` is not an integer.
        ArgumentError: `every` is below 1.

    >>> every = EveryNSteps(100)
    >>> every.start(timesteps=0)
    >>> [every.ready(steps) for steps in (64, 128, 192, 256, 512)]
    [False, True, False, True, True]
    """

    def __init__(self, every: int) -> None:
        self.steps = check_int("every", every, 1, fix="pass a number of environment steps")
        self._next = self.steps

    def start(self, timesteps: int) -> None:
        """Set the current step, so that the next trigger is at the next multiple of `every`."""
        self._next = (timesteps // self.steps + 1) * self.steps

    def ready(self, timesteps: int) -> bool:
        """Return whether a multiple of `every` was reached since the last call that returned True."""
        if timesteps < self._next:
            return False
        self.start(timesteps)
        return True
