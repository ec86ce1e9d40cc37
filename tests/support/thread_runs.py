"""Functions that run code in threads, forked children and child processes."""

import os
import signal
import subprocess
import sys
import textwrap
import threading


def start_threads(work, count=1):
    """Start threads that run `work`; return the threads, and a list for their errors."""
    errors = []

    def run():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, errors


def join(threads, seconds=60):
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads)


def run_threads(work, count=1):
    """Run `work` in threads to the end; return their errors."""
    threads, errors = start_threads(work, count)
    join(threads)
    return errors


def run_in_fork(work):
    """Run `work` in a forked child, which must not raise and must end within 60 s."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def run_program(code, *arguments, **variables):
    """Run code in a new process; return the standard output."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout
