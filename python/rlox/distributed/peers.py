"""`Peers`: what the processes of a group know of each other: who lives, and who failed first."""

import json
import threading
import time
from typing import Any

# Seconds between two looks, those after which a process that says nothing is given up, and those
# that one which failed gives the others to notice.
LOOK, QUIET, GRACE = 0.25, 30.0, 5.0
# Seconds in which it is heard why a launcher ends this process.
_WHY = 1.0
# Seconds in which a process that lives says something for certain, where a connection broke.
_SURELY = 2.5


class PeerError(RuntimeError):
    """Another process of the group failed, died or does something else; the message says which."""


class Peers:
    """A thread that tells the others that this process lives, and hears of their errors.

    It goes by the store in which processes find each other, beside the connections between them.

    Args:
        store: A `torch.distributed.Store` of all processes of the group.
        rank: Which one this is.
        size: How many there are.
        quiet: Seconds after which one that says nothing is given up.
    """

    def __init__(self, store: Any, rank: int, size: int, quiet: float = QUIET) -> None:
        self._store, self.rank, self.size, self._quiet = store, rank, size, quiet
        self.failure: PeerError | None = None
        self._beats = {k: (b"", time.monotonic()) for k in range(size)}
        self._reported, self._own = False, ""
        self._end = threading.Event()
        self._beat(0)
        self._thread = threading.Thread(target=self._watch, name="rlox-ddp-peers", daemon=True)
        self._thread.start()

    def expect_well(self) -> None:
        """Refuses to do anything together where that cannot be any more.

        Raises:
            PeerError: Another one has failed, or says nothing any more, or this one had failed.
        """
        if self.failure is not None:
            raise self.failure
        if self._own:
            raise PeerError(f"group: expected one that goes on, got {self.broken}; make another")

    @property
    def broken(self) -> str:
        """What failed, here or elsewhere; empty where nothing did."""
        own = f"rank {self.rank} that failed with {self._own}" if self._own else ""
        return own if self.failure is None else str(self.failure)

    def report(self, error: BaseException) -> None:
        """Tells the others that this process fails; the first one that does is heard."""
        if isinstance(error, PeerError) or self._reported:
            return
        self._reported = True
        self._own = f"{type(error).__name__}: {error}"
        said = {"rank": self.rank, "error": self._own}
        try:
            if self._store.add("failures", 1) == 1:
                self._store.set("failure", json.dumps(said))
        except RuntimeError:  # who keeps the store is gone, and nobody hears
            self._reported = False

    def wait_until_heard(self) -> None:
        """Gives the others time to hear what was reported, before this process ends.

        A launcher ends them all when one has ended.
        """
        until = time.monotonic() + GRACE
        try:
            while self._reported and time.monotonic() < until:
                if self._store.add("heard", 0) >= self.size - 1:
                    return
                time.sleep(0.02)
        except RuntimeError:
            return

    def end_soon(self) -> None:
        """Ends what all do together, as a launcher ends this process: who failed is heard first."""

        def end() -> None:
            if self.failure is None:
                self.failure = PeerError(
                    "launcher: expected it to let this process go on, got SIGTERM; look at the "
                    "output of the other ranks, whether one has failed"
                )

        timer = threading.Timer(_WHY, end)
        timer.daemon = True
        timer.start()

    def explain(self, error: BaseException) -> PeerError:
        """What a broken connection means: who failed, or who died."""
        began = time.monotonic()
        while self.failure is None and time.monotonic() < began + _SURELY:
            time.sleep(LOOK / 5)
        if self.failure is None:
            gone = [
                k for k, (_, at) in self._beats.items() if at < began + 2 * LOOK and k != self.rank
            ]
            who = " and ".join(f"rank {k}" for k in gone) or "another rank"
            self.failure = PeerError(
                f"{who}: expected a process that goes on, got one that ended without a word; look "
                f"at its output, and whether memory ran out ({str(error).splitlines()[0][:120]})"
            )
        return self.failure

    def close(self) -> None:
        """Ends the thread."""
        self._end.set()
        self._thread.join(2)

    def _watch(self) -> None:
        for turn in range(1, 2**62):
            if self._end.wait(LOOK):
                return
            try:
                self._beat(turn)
                self._look()
            except RuntimeError as error:
                if not self._end.is_set() and self.failure is None:
                    self.failure = PeerError(
                        "store: expected the process that keeps it to go on, rank 0 or the "
                        f"launcher, got none; look at its output ({str(error).splitlines()[0]})"
                    )
                return
            if self.failure is not None:
                return

    def _beat(self, turn: int) -> None:
        self._store.set(f"beat{self.rank}", str(turn))

    def _look(self) -> None:
        """Notes who has failed, and who has said nothing for long."""
        if self._store.check(["failure"]):
            said: dict[str, Any] = json.loads(self._store.get("failure"))
            if said["rank"] != self.rank:
                self.failure = PeerError(
                    f"rank {said['rank']}: expected it to go on, it failed with {said['error']}; "
                    "look there"
                )
                self._store.add("heard", 1)
            return
        names = [f"beat{k}" for k in range(self.size)]
        if not self._store.check(names):  # somebody has just begun
            return
        now = time.monotonic()
        for k, beat in enumerate(self._store.multi_get(names)):
            before, at = self._beats[k]
            if bytes(beat) != before:
                self._beats[k] = (bytes(beat), now)
            elif k != self.rank and now - at > self._quiet:
                self.failure = PeerError(
                    f"rank {k}: expected a word every {LOOK} s, got none for {self._quiet:g} s; "
                    "look whether it hangs or its machine is lost"
                )
