"""`Phases`: where a learner's time goes."""

from time import perf_counter

from rlox import _rlox

PHASES = ("env_step", "inference", "gae_compute", "gradient_update", "buffer", "other")
"""What time is told apart into.

`env_step` is environments, `inference` the policy's actions and values, `gae_compute` advantages,
`gradient_update` losses, gradients and weights, `buffer` storing and fetching transitions and
minibatches. `other` is the rest: callbacks, loggers, checkpoints.
"""


class Phases:
    """A clock that is always in one phase, so that phases add up to the time that went by.

    On a GPU, work counts where it is waited for. Native calls tell afterwards what they were in:
    of steps of few environments, one in 64 environment steps is timed, and stands for the others.

    >>> phases = Phases()
    >>> phases.enter("env_step")
    >>> phases.enter("other")
    >>> sorted(phases.read()) == sorted(PHASES)
    True
    """

    __slots__ = ("_phase", "_seconds", "_since")

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._phase, self._since = "other", perf_counter()

    def enter(self, phase: str) -> None:
        """Ends the phase that was, and begins another, or the same again."""
        now = perf_counter()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now

    def tell_apart(self) -> None:
        """Ends the phase that was, a native call, in the proportions that it tells; begins `other`.

        Where it tells none, the time is that of the phase.
        """
        told = _rlox.phase_seconds()
        whole, since, phase = sum(told), self._since, self._phase
        self.enter("other")
        if whole > 0:
            spent = self._since - since
            self._seconds[phase] -= spent
            for name, seconds in zip(PHASES, told, strict=False):  # all but `other`
                self._seconds[name] += spent * seconds / whole

    def read(self) -> dict[str, float]:
        """Seconds in each phase until now."""
        self.enter(self._phase)
        return dict(self._seconds)
