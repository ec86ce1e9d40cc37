"""Ctrl-C by the system's clock, and how late this machine lets a program see it."""

import signal
import time

# In seconds: so soon after it Ctrl-C has ended any call.
PROMISED = 0.25


def press(after):
    """Has SIGINT come in `after` seconds, whoever holds the GIL then; returns when that will be."""
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    due = time.perf_counter() + after
    signal.setitimer(signal.ITIMER_REAL, after)
    return due


def lateness(call, after):
    """How long after Ctrl-C a call ends by it; None if it ended before."""
    due = press(after)
    try:
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return time.perf_counter() - due
    return None


def machines():
    """How late a loop of nothing sees it at most: what else the machine is busy with."""

    def loop():
        while True:
            pass

    return max(lateness(loop, 0.02) for _ in range(5))


def long_call(made):
    """The call `made(n)` with n so large that it takes over 0.7 s, and how long it takes."""
    n = 2**6
    while n < 2**40:
        call = made(n)
        began = time.perf_counter()
        kept = call()
        took = time.perf_counter() - began
        del kept
        if took > 0.7:
            return call, took
        # Double while it is too short to be measured.
        n = 2 * n if took < 0.1 else int(n * 0.9 / took) + 1
    raise AssertionError("no call took long enough")


def check(made, state, shares=None):
    """Presses Ctrl-C in a long call: after 0.1 s, or after these shares of the time it takes.

    The call must end at once and leave the state as it was. Where it is late, the machine may have
    been busy elsewhere: what takes time in the call itself does so every time.
    """
    call, took = long_call(made)
    before = str(state())
    for after in [took * share for share in shares] if shares else [0.1]:
        tries = []
        for _ in range(3):
            slack, late = machines(), lateness(call, after)
            assert late is not None, f"ended by itself within {after} s, and took {took} s before"
            assert str(state()) == before
            tries.append((late, max(slack, machines())))
            if late < PROMISED + tries[-1][1]:
                break
        else:
            raise AssertionError(f"seconds after Ctrl-C, and the machine's own: {tries}")
