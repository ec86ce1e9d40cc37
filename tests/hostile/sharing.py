"""Uses one object of each class in eight threads, and in forked processes, in a process of its own.

    python -m hostile.sharing GROUP JOURNAL SEED

A JSON list of what went wrong is the last line of the output.
"""

import json
import os
import random
import sys
import threading
import time
import warnings
from typing import Any

from hostile.surface import callables
from hostile.table import Call, Subject, calls, subjects
from hostile.worker import REFUSED, Limits, told

THREADS, SECONDS = 8, 0.1
# What ends an object's use.
LAST = ("close", "close_extras", "stop")


class Shared:
    """An object of a class, and the calls of its methods."""

    def __init__(self, name: str, subject: Subject, group: str) -> None:
        self.name, self.subject = name, subject
        self.calls = [call for call in calls(group) if call.name.startswith(f"{name}.")]
        for call in self.calls:  # what is made only once is made now
            for argument in call.arguments.values():
                argument.make()
        self.wrong: list[list[str]] = []

    def use(self, thing: Any, call: Call, rng: random.Random) -> None:
        """A right call, or one with a strange argument; its answer may be any."""
        which, method = "", call.name.rpartition(".")[2]
        try:
            values = {name: x.make() for name, x in call.arguments.items()}
            if values and rng.random() < 0.3:
                name = rng.choice(sorted(values))
                _, form_name, form = rng.choice(list(call.arguments[name].forms()))
                which = f"{name}: {form_name}"
                values[name] = form(values[name])
            if call.through:
                call.through(thing, **values)
            else:
                getattr(thing, method)(**values)
        except (*REFUSED, *call.raises, *self.subject.meets):
            pass
        except BaseException as error:  # PyO3's panics are no Exception
            self.wrong.append([call.name, which, told(error)])

    def crowd(self, thing: Any, chosen: list[Call], seed: int) -> list[threading.Thread]:
        """Threads that call whatever comes to their minds."""
        until = time.monotonic() + SECONDS

        def work(number: int) -> None:
            rng = random.Random(seed * THREADS + number)
            while time.monotonic() < until and not self.wrong:
                self.use(thing, rng.choice(chosen), rng)

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        return threads

    def fork(self, thing: Any, limits: Limits) -> None:
        """A child uses what it inherited, and new objects."""
        child = os.fork()
        if child == 0:
            self.wrong.clear()
            rng = random.Random(0)
            for call in self.calls:
                limits.begin(f"{call.name}, in a forked process")
                self.use(thing, call, rng)
                self.use(self.subject.make(call.at), call, rng)
            print(json.dumps(self.wrong), file=sys.stderr, flush=True)
            os._exit(bool(self.wrong))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            self.wrong.append([self.name, "in a forked process", f"ended with {status}"])

    def run(self, limits: Limits, seed: int) -> None:
        for forks, chosen in (
            (True, [call for call in self.calls if call.name.rpartition(".")[2] not in LAST]),
            (False, self.calls),
        ):
            limits.begin(f"{self.name}, in {THREADS} threads")
            # Once alone: a fork in the middle of torch's late imports would leave them locked.
            for call in chosen:
                self.use(self.subject.make(call.at), call, random.Random(0))
            thing = self.subject.make(0)
            threads = self.crowd(thing, chosen, seed)
            if forks and self.subject.forks:
                time.sleep(SECONDS / 4)
                self.fork(thing, limits)  # while threads are in the middle of their calls
            for thread in threads:
                thread.join()
            if forks:
                limits.begin(f"{self.name}, forking afterwards")
                self.fork(thing, limits)
            limits.end()


def main(group: str, journal: str, seed: int) -> None:
    warnings.simplefilter("ignore")
    callables(torch=group == "training")  # imports before memory is limited
    wrong, limits = [], Limits(journal, extra=2**33)
    for name, subject in subjects(group).items():
        shared = Shared(name, subject, group)
        if shared.calls:
            shared.run(limits, seed)
            wrong += shared.wrong
    print(json.dumps(wrong))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
