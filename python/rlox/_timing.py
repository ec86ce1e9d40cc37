"""Where a thread's time goes: native calls and Python enter phases of one clock.

A thread's clock runs from `start` to `stop`, in one phase at a time, so that phases add up to the
time that went by; otherwise `enter` does nothing. On a GPU, work counts where it is waited for.

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
"""What time is told apart into.

`env_step` is environments, `inference` the policy's actions and values, `gae_compute` advantages,
`gradient_update` losses, gradients and weights, `buffer` storing and fetching transitions and
minibatches. `other` is the rest: callbacks, loggers, checkpoints.
"""


def read() -> dict[str, float]:
    """Seconds of this thread in each phase since its clock was started; 0 without one."""
    return dict(zip(PHASES, _rlox.phase_seconds(), strict=True))


class EveryNSteps:
    """Says when so many environment steps have gone by: after each multiple of them, once.

    Args:
        every: Environment steps, all environments together.

    Raises:
        TypeError, ValueError: `every` is no integer of at least 1.

    >>> every = EveryNSteps(100)
    >>> every.start(timesteps=0)
    >>> [every.ready(steps) for steps in (64, 128, 192, 256, 512)]
    [False, True, False, True, True]
    """

    def __init__(self, every: int) -> None:
        self.steps = check_int("every", every, 1, fix="pass a number of environment steps")
        self._next = self.steps

    def start(self, timesteps: int) -> None:
        """Goes on from here: the same multiples, whether a run was resumed or not."""
        self._next = (timesteps // self.steps + 1) * self.steps

    def ready(self, timesteps: int) -> bool:
        """Whether a multiple was reached since it last was."""
        if timesteps < self._next:
            return False
        self.start(timesteps)
        return True
