"""When it is time to: after each multiple of so many environment steps."""

from rlox.settings import whole


class Every:
    """Says when so many environment steps have gone by: after each multiple of them, once.

    Args:
        every: Environment steps, all environments together.

    Raises:
        TypeError, ValueError: `every` is no integer of at least 1.

    >>> every = Every(100)
    >>> every.start(timesteps=0)
    >>> [every.due(steps) for steps in (64, 128, 192, 256, 512)]
    [False, True, False, True, True]
    """

    def __init__(self, every: int) -> None:
        self.steps = whole("every", every, 1, fix="pass a number of environment steps")
        self._next = self.steps

    def start(self, timesteps: int) -> None:
        """Goes on from here: the same multiples, whether a run was resumed or not."""
        self._next = (timesteps // self.steps + 1) * self.steps

    def due(self, timesteps: int) -> bool:
        """Whether a multiple was reached since it last was."""
        if timesteps < self._next:
            return False
        self.start(timesteps)
        return True
