"""Runs in processes, each of which trains one after the other."""

from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection

from rlox.interrupt import Group
from rlox.machine import threads
from rlox.many.job import Came, Job
from rlox.processes import Workers, sendable, serving


def in_processes(
    jobs: Sequence[Job], workers: int, group: Group
) -> Generator[tuple[int, Came], None, None]:
    """Runs in processes, and gives each that has ended, by its number.

    Args:
        jobs: What pickle takes.
        workers: How many processes, which share the cores.
        group: Which ends the runs.
    """
    left = iter(enumerate(jobs))

    def died(code: int | None) -> BaseException:
        return RuntimeError(f"process: expected to end, died with {code}")

    pool = Workers(
        workers,
        max(1, threads() // workers),
        serve,
        ends=lambda said: True,
        died=died,
    )
    with pool, group.going_on(pool.stop):
        while True:
            while pool.free and not group.stopping:
                number, job = next(left, (-1, None))
                if job is None:
                    break
                pool.begin(job, number)
            if not pool.busy:
                return
            yield from ((number, came) for number, came, _ in pool.told())


def serve(connection: Connection, ended: Connection) -> None:
    """Trains what comes, until nobody asks any more."""
    with serving(ended):
        while True:
            job: Job = connection.recv()
            try:
                came: Came = job.train()
            except BaseException as error:  # whatever ended this run, others go on
                came = sendable(error)
            connection.send(came)
