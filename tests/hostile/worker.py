"""Calls everything of one group, in a process of its own with limits of time and memory.

    python -m hostile.worker call GROUP JOURNAL EXAMPLES SEED START EVERY
    python -m hostile.worker share GROUP JOURNAL SEED

The second command uses one object of each class in eight threads and in forked processes.

The journal says what is called at the moment: when the process dies, that was it. A JSON list of
what went wrong is the last line of the output.
"""

import faulthandler
import json
import os
import random
import re
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, scalar_dtypes

from hostile.arguments import HUGE, SHAPES, Argument
from hostile.table import KNOWN, Call, Subject, callables, calls, equal, plain, subjects

SECONDS = 20  # for one call
MEMORY = 2**30  # more than there is at the start
REFUSED = (ValueError, TypeError, MemoryError)

ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from([2**31, 2**62, 2**63, 2**64, -(2**63), 10**40, b"x", 1j, object])
    | arrays(scalar_dtypes(), array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


class Limits:
    """Ends the process where a call takes too long; the journal tells which one it was."""

    def __init__(self, journal: str, extra: int = MEMORY) -> None:
        self.at = 0  # which of the calls
        self._journal = os.open(journal, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + extra
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        faulthandler.enable()
        faulthandler.register(signal.SIGALRM, chain=True)

    def begin(self, what: str) -> None:
        what = f"{self.at} {what}"
        os.pwrite(self._journal, what.encode(errors="replace").ljust(400)[:400], 0)
        signal.alarm(SECONDS)

    def end(self) -> None:
        signal.alarm(0)


class Caller:
    """One right call, and what becomes of it with other arguments."""

    def __init__(self, call: Call, subject: Subject | None, function: Any, limits: Limits) -> None:
        self.call, self.subject, self.limits = call, subject, limits
        self.function, self.shared = function, None
        self.right = self.outcome({})
        if isinstance(self.right, Exception):
            raise AssertionError(f"{call.name}: the right call fails: {self.right!r}")

    def outcome(self, forms: dict[str, Any], what: str = "the right call") -> Any:
        """The answer, the object's state and all that was written into, or the error."""
        values = {name: argument.make() for name, argument in self.call.arguments.items()}
        values |= {name: form(values[name]) for name, form in forms.items()}
        function, thing = self.bound()
        before = self.state(thing)
        kept = self.kept(values, written=False)
        into = self.kept(values, written=True)
        self.limits.begin(f"{self.call.name}({what})")
        try:
            answer = function(**values)
        except (*REFUSED, *self.call.raises) as error:
            self.limits.end()
            if not equal([before, into], [self.state(thing), self.kept(values, written=True)]):
                raise AssertionError(f"refused ({error!r}), but something has changed") from error
            return error
        finally:
            self.limits.end()
        if not equal(kept, self.kept(values, written=False)):
            raise AssertionError("an argument has changed")
        return [plain(answer), self.state(thing), self.kept(values, written=True)]

    def bound(self) -> tuple[Any, Any]:
        """What is called, and the object it belongs to."""
        call, thing = self.call, None
        function = call.through or self.function
        if self.subject is not None:
            thing = self.shared or self.subject.make(call.at)
            self.shared = thing if call.shared else None
            method = call.name.rpartition(".")[2]
            function = partial(call.through, thing) if call.through else getattr(thing, method)
        return function, thing

    def state(self, thing: Any) -> Any:
        return None if self.subject is None else plain(self.subject.state(thing))

    def kept(self, values: dict[str, Any], written: bool) -> Any:
        arguments = self.call.arguments
        return {
            name: plain(value)
            for name, value in values.items()
            if isinstance(value, list | tuple | dict | np.ndarray) or type(value).__name__ in KNOWN
            if arguments[name].written == written
        }

    def singles(self, every: int) -> Iterator[tuple[str, str]]:
        """Yield the failures of every n-th form of each argument: (argument, description)."""
        for name, argument in self.call.arguments.items():
            for kind, form_name, form in list(argument.forms())[::every]:
                which = f"{name}: {form_name}"
                try:
                    got = self.outcome({name: form}, which)
                    wrong = self.judge(kind, name, form_name, got)
                except Exception as error:
                    wrong = told(error)
                except BaseException as error:  # PyO3's panics
                    wrong = f"panics: {told(error)}"
                if wrong:
                    yield which, wrong

    def agrees(self, got: Any) -> bool:
        """Whether it is the right answer; the state of an object that is shared may be any."""
        parts = ([x[0], x[2]] if self.call.shared else x for x in (got, self.right))
        return equal(*parts, exactly=False)

    def judge(self, kind: str, name: str, form: str, got: Any) -> str:
        if isinstance(got, Exception):
            if kind == "same":
                return f"refused: {told(got)}"
            every = form.rpartition(": ")[2] in (*SHAPES, *HUGE)
            names = [*self.call.arguments, r"\w+: expected"] if every else [name]
            names += [*form.split(": ")[:-1], *self.call.arguments[name].called]
            names.append("broken")  # whose own words these are
            said = "; ".join([str(got), *getattr(got, "__notes__", ())])
            names += ["Unable to allocate"] if isinstance(got, MemoryError) else []
            names = [n.replace("_", "[_ ]") for n in names]
            system = isinstance(got, OSError)
            if not system and not any(re.search(rf"(?<![A-Za-z]){n}", said) for n in names):
                return f"no argument is named: {told(got)}"
        elif kind == "senseless":
            return f"accepted: {str(got[:2])[:200]}"
        elif kind != "odd" and not self.agrees(got):
            return f"another answer: {str(got)[:300]} instead of {str(self.right)[:300]}"
        return ""

    def several(self, examples: int, number: int | None) -> str:
        """Several strange arguments at once, as Hypothesis draws them."""
        arguments = self.call.arguments
        drawn = settings(
            max_examples=examples,
            derandomize=number is None,
            database=None,
            deadline=None,
            print_blob=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )

        @drawn
        @given(st.lists(st.sampled_from(sorted(arguments)), min_size=1, unique=True), st.data())
        def run(names: list[str], data: Any) -> None:
            forms, kinds = {}, set()
            for name in names:
                kind, _, forms[name] = data.draw(form_of(arguments[name]), name)
                kinds.add(kind)
            got = self.outcome(forms, str(dict(forms.items()))[:380])
            if not isinstance(got, Exception) and kinds <= {"same", "maybe"}:
                assert self.agrees(got), f"{got} instead of {self.right}"

        try:
            (run if number is None else seed(number)(run))()
        except Exception as error:
            notes = "; ".join(getattr(error, "__notes__", ()))
            return f"{told(error)} [{notes}]"
        except BaseException as error:
            return f"panics: {told(error)} {getattr(error, '__notes__', ())}"
        return ""


class Drawn:
    """A form that is any value, whatever the right one is."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, _: Any) -> Any:
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)[:100]


def form_of(argument: Argument) -> st.SearchStrategy[tuple[str, str, Any]]:
    forms = st.sampled_from(list(argument.forms()))
    return forms | ANYTHING.map(lambda x: ("odd", "", Drawn(x))) if argument.drawn else forms


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error!s:.300}"


def main(
    group: str, journal: str, examples: int, number: int | None, start: int, every: int
) -> None:
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", RuntimeWarning)
    functions, objects = callables(torch=group == "training"), subjects(group)
    limits, wrong = Limits(journal), []
    for at, call in enumerate(calls(group)):
        if at < start:
            continue
        limits.at = at
        limits.begin(call.name)
        owner = call.name.partition(".")[0] if "." in call.name else ""
        try:
            caller = Caller(call, objects.get(owner), functions[call.name], limits)
        except Exception as error:
            wrong.append([call.name, "the right call", told(error)])
            continue
        wrong += [[call.name, *found] for found in caller.singles(every)]
        if call.arguments and examples:
            found = caller.several(examples, number)
            wrong += [[call.name, "several arguments", found]] if found else []
    print(json.dumps(wrong))


THREADS, SHARED_SECONDS = 8, 0.1
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
        until = time.monotonic() + SHARED_SECONDS

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
                time.sleep(SHARED_SECONDS / 4)
                self.fork(thing, limits)  # while threads are in the middle of their calls
            for thread in threads:
                thread.join()
            if forks:
                limits.begin(f"{self.name}, forking afterwards")
                self.fork(thing, limits)
            limits.end()


def share(group: str, journal: str, seed: int) -> None:
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
    command, group, journal, *numbers = sys.argv[1:]
    if command == "share":
        share(group, journal, int(numbers[0]))
    else:
        examples, number, start, every = numbers
        seed_number = None if number == "-" else int(number)
        main(group, journal, int(examples), seed_number, int(start), int(every))
