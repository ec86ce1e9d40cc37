"""`Phases`: where a learner's time goes."""

from time import perf_counter

PHASES = ("env_step", "inference", "gae_compute", "gradient_update", "buffer", "fused", "other")
"""What time is told apart into.

`env_step` is environments, `inference` the policy's actions and values, `gae_compute` advantages,
`gradient_update` losses, gradients and weights, `buffer` storing and fetching transitions and
minibatches. `fused` is what one call in Rust does of these without telling them apart: all of a
rollout of native environments on the native backend, and for off-policy methods the update, too.
`other` is the rest: callbacks, loggers, checkpoints.
"""


class Phases:
    """A clock that is always in one phase, so that phases add up to the time that went by.

    On a GPU, work counts where it is waited for.

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

    def read(self) -> dict[str, float]:
        """Seconds in each phase until now."""
        self.enter(self._phase)
        return dict(self._seconds)
