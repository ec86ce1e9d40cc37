"""Ctrl-C: once to stop, twice to raise, and nothing is left behind."""

import signal
import threading

import pytest

from rlox.interrupt import stop_on_interrupt


def test_the_first_one_stops_and_the_second_one_raises():
    stopped = []
    usual = signal.getsignal(signal.SIGINT)

    def interrupt_twice():
        with stop_on_interrupt(lambda: stopped.append(True)):
            signal.raise_signal(signal.SIGINT)
            assert stopped == [True]
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupt_twice()
    assert stopped == [True]
    assert signal.getsignal(signal.SIGINT) is usual


def test_where_interrupts_are_ignored_they_stay_ignored():
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_on_interrupt(pytest.fail):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, usual)


def test_other_threads_can_train_too():
    errors = []

    def run():
        try:
            with stop_on_interrupt(pytest.fail):
                pass
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == []
