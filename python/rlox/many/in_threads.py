"""Runs in threads of this process: native learners let others compute meanwhile."""

import queue
import threading
from collections.abc import Generator, Sequence

from rlox.interrupt import Group
from rlox.many.job import Came, Job

# How long threads that are to end are waited for, in seconds. Where one is left in C++, Python
# aborts.
_PATIENCE = 5.0


def in_threads(
    jobs: Sequence[Job], workers: int, group: Group
) -> Generator[tuple[int, Came], None, None]:
    """Runs in threads, and gives each that has ended, by its number."""
    ended: queue.Queue[tuple[int, Came] | None] = queue.Queue()
    left = iter(enumerate(jobs))
    taking = threading.Lock()

    def work() -> None:
        try:
            while not group.stopping:
                with taking:
                    number, job = next(left, (-1, None))
                if job is None:
                    return
                ended.put((number, _came(job, group)))
        finally:
            ended.put(None)

    # A daemon: what cannot be ended does not keep the program from its end.
    pool = [threading.Thread(target=work, name=f"rlox-{n}", daemon=True) for n in range(workers)]
    for thread in pool:
        thread.start()
    try:
        going = workers
        while going:
            one = ended.get()
            if one is None:
                going -= 1
            else:
                yield one
    except BaseException:
        group.stop()
        raise
    finally:
        for thread in pool:
            thread.join(_PATIENCE / workers)


def _came(job: Job, group: Group) -> Came:
    """What a run came to; whatever ended it, others go on."""
    try:
        with group.joined():
            return job.train()
    except BaseException as error:
        return error
