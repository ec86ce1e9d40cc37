"""Calls everything of one group, in a process with limits of time and memory.

    python -m hostile.worker call GROUP JOURNAL EXAMPLES SEED START EVERY
    python -m hostile.worker share GROUP JOURNAL SEED [CLASS...]

The second command uses one object of each class in eight threads and in forked processes.

The journal contains the current call, so that a test knows which call ended the process. The last
line of the output is a JSON list of failures.
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

from hostile.arguments import ANY, HUGE, INVALID, MAYBE, SAME, SHAPES, Argument
from hostile.table import KNOWN, Call, Subject, callables, calls, equal, plain, subjects
from rlox._errors import StructuredError

SECONDS = 20  # limit of one call
MEMORY = 2**30  # limit above the memory in use at the start
REJECTED = (ValueError, TypeError, MemoryError)
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
    """Ends the process if a call takes too long."""

    def __init__(self, journal: str, extra: int = MEMORY) -> None:
        self.at = 0  # index of the call
        self._journal = os.open(journal, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + extra
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        faulthandler.enable()
        faulthandler.register(signal.SIGALRM, chain=True)

    def begin(self, call: str) -> None:
        line = f"{self.at} {call}"
        os.pwrite(self._journal, line.encode(errors="replace").ljust(400)[:400], 0)
        signal.alarm(SECONDS)

    def end(self) -> None:
        signal.alarm(0)


class Caller:
    """A valid call, and its results with other arguments."""

    def __init__(self, call: Call, subject: Subject | None, function: Any, limits: Limits) -> None:
        self.call, self.subject, self.limits = call, subject, limits
        self.function, self.shared = function, None
        self.valid = self.outcome({})
        if isinstance(self.valid, Exception):
            raise AssertionError(f"{call.name}: the valid call fails: {self.valid!r}")

    def outcome(self, forms: dict[str, Any], description: str = "the valid call") -> Any:
        """Return the result, the state of the object and the written arguments, or the error."""
        values = {name: argument.make() for name, argument in self.call.arguments.items()}
        values |= {name: form(values[name]) for name, form in forms.items()}
        function, thing = self.bound()
        state = self.state(thing)
        inputs = self.contents(values, written=False)
        outputs = self.contents(values, written=True)
        self.limits.begin(f"{self.call.name}({description})")
        try:
            result = function(**values)
        except (*REJECTED, *self.call.raises) as error:
            self.limits.end()
            if not equal([state, outputs], [self.state(thing), self.contents(values, True)]):
                raise AssertionError(f"a rejected call ({error!r}) changed something") from error
            return error
        finally:
            self.limits.end()
        if not equal(inputs, self.contents(values, written=False)):
            raise AssertionError("an argument has changed")
        return [plain(result), self.state(thing), self.contents(values, written=True)]

    def bound(self) -> tuple[Any, Any]:
        """Return the function to call, and its object."""
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

    def contents(self, values: dict[str, Any], written: bool) -> Any:
        arguments = self.call.arguments
        return {
            name: plain(value)
            for name, value in values.items()
            if isinstance(value, list | tuple | dict | np.ndarray) or type(value).__name__ in KNOWN
            if arguments[name].written == written
        }

    def singles(self, every: int, start: int) -> Iterator[list[str]]:
        """Yield the failures of every n-th form of an argument: call, form, description."""
        pairs = [(n, *form) for n, x in self.call.arguments.items() for form in x.forms.items()]
        for name, form_name, (kind, form) in pairs[start::every]:
            description = f"{name}: {form_name}"
            try:
                result = self.outcome({name: form}, description)
                failure = self.failure(kind, name, form_name, result)
            except Exception as error:
                failure = shown(error)
            except BaseException as error:  # a panic of PyO3
                failure = f"panics: {shown(error)}"
            if failure:
                yield [self.call.name, description, failure]

    def agrees(self, result: Any) -> bool:
        """Compare with the valid result; the state of a shared object may differ."""
        parts = ([x[0], x[2]] if self.call.shared else x for x in (result, self.valid))
        return equal(*parts, exactly=False)

    def failure(self, kind: str, name: str, form: str, result: Any) -> str:
        """Return why a result breaks the promise of a form, or an empty text."""
        if isinstance(result, Exception):
            if kind == SAME:
                return f"rejected: {shown(result)}"
            if not self.names_argument(name, form, result):
                return f"no argument is named: {shown(result)}"
        elif kind == INVALID:
            return f"accepted: {str(result[:2])[:200]}"
        elif kind != ANY and not self.agrees(result):
            return f"another result: {str(result)[:300]} instead of {str(self.valid)[:300]}"
        return ""

    def names_argument(self, name: str, form: str, error: Exception) -> bool:
        """Return whether an error names the argument, or any that a shape or a size contradicts."""
        *keys, last = form.split(": ")
        names = [name, *keys, *self.call.arguments[name].names]
        if isinstance(error, OSError):
            return True
        if isinstance(error, StructuredError):
            if last in SHAPES or last in HUGE:
                return True
            text = f"{error.argument} {error.section}"
        else:  # of another library
            text = "; ".join([str(error), *getattr(error, "__notes__", ())])
            names += ["broken", *(["Unable to allocate"] if isinstance(error, MemoryError) else [])]
            names += self.call.arguments if last in SHAPES or last in HUGE else []
        patterns = (rf"(?<![A-Za-z]){name.replace('_', '[_ ]')}" for name in names)
        return any(re.search(pattern, text) for pattern in patterns)

    def several(self, examples: int, number: int | None) -> str:
        """Pass several unusual arguments at once, as Hypothesis draws them."""
        arguments = self.call.arguments

        @settings(
            max_examples=examples,
            derandomize=number is None,
            database=None,
            deadline=None,
            print_blob=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(st.sampled_from(sorted(arguments)), min_size=1, unique=True), st.data())
        def run(names: list[str], data: Any) -> None:
            forms, kinds = {}, set()
            for name in names:
                kind, forms[name] = data.draw(form_of(arguments[name]), name)
                kinds.add(kind)
            result = self.outcome(forms, str(forms)[:380])
            if not isinstance(result, Exception) and kinds <= {SAME, MAYBE}:
                assert self.agrees(result), f"{result} instead of {self.valid}"

        try:
            (run if number is None else seed(number)(run))()
        except Exception as error:
            return f"{shown(error)} {getattr(error, '__notes__', '')}"
        except BaseException as error:
            return f"panics: {shown(error)} {getattr(error, '__notes__', '')}"
        return ""


class Drawn:
    """A form that ignores the valid value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, _: Any) -> Any:
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)[:100]


def form_of(argument: Argument) -> st.SearchStrategy[tuple[str, Any]]:
    forms = st.sampled_from(list(argument.forms.values()))
    return forms | ANYTHING.map(lambda x: (ANY, Drawn(x))) if argument.drawn else forms


def shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error!s:.300}"


def main(
    group: str, journal: str, examples: int, number: int | None, start: int, every: int
) -> None:
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", RuntimeWarning)
    functions, objects = callables(torch=group == "training"), subjects(group)
    limits, failures = Limits(journal), []
    for at, call in enumerate(calls(group)):
        if at < start:
            continue
        limits.at = at
        limits.begin(call.name)
        owner = call.name.partition(".")[0] if "." in call.name else ""
        try:
            caller = Caller(call, objects.get(owner), functions[call.name], limits)
        except Exception as error:
            failures.append([call.name, "the valid call", shown(error)])
            continue
        failures += caller.singles(every, at % every)
        if call.arguments and examples and (failure := caller.several(examples, number)):
            failures.append([call.name, "several arguments", failure])
    print(json.dumps(failures))


THREADS, SHARED_SECONDS = 8, 0.1
FINAL = ("close", "close_extras", "stop")  # an object is not used after these calls


class Shared:
    """An object of a class, and the calls of its methods."""

    def __init__(self, name: str, subject: Subject, group: str) -> None:
        self.name, self.subject = name, subject
        self.calls = [call for call in calls(group) if call.name.startswith(f"{name}.")]
        for call in self.calls:  # threads share the objects that are made once
            for argument in call.arguments.values():
                argument.make()
        self.failures: list[list[str]] = []

    def use(self, thing: Any, call: Call, rng: random.Random) -> None:
        """Make a valid call, or one with an unusual argument; ignore the result."""
        description, method = "", call.name.rpartition(".")[2]
        try:
            values = {name: x.make() for name, x in call.arguments.items()}
            if values and rng.random() < 0.3:
                name = rng.choice(sorted(values))
                form_name, (_, form) = rng.choice(list(call.arguments[name].forms.items()))
                description = f"{name}: {form_name}"
                values[name] = form(values[name])
            if call.through:
                call.through(thing, **values)
            else:
                getattr(thing, method)(**values)
        except (*REJECTED, *call.raises, *self.subject.meets):
            pass
        except BaseException as error:  # PyO3's panics are no Exception
            self.failures.append([call.name, description, shown(error)])

    def crowd(self, thing: Any, chosen: list[Call], seed: int) -> list[threading.Thread]:
        """Start threads that make random calls."""
        until = time.monotonic() + SHARED_SECONDS

        def work(number: int) -> None:
            rng = random.Random(seed * THREADS + number)
            while time.monotonic() < until and not self.failures:
                self.use(thing, rng.choice(chosen), rng)

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        return threads

    def fork(self, thing: Any, limits: Limits) -> None:
        """Use the inherited object and new objects in a child."""
        child = os.fork()
        if child == 0:
            self.failures.clear()
            rng = random.Random(0)
            for call in self.calls:
                limits.begin(f"{call.name}, in a forked process")
                self.use(thing, call, rng)
                self.use(self.subject.make(call.at), call, rng)
            print(json.dumps(self.failures), file=sys.stderr, flush=True)
            os._exit(bool(self.failures))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            self.failures.append([self.name, "in a forked process", f"ended with {status}"])

    def run(self, limits: Limits, seed: int) -> None:
        for forks, chosen in (
            (True, [call for call in self.calls if call.name.rpartition(".")[2] not in FINAL]),
            (False, self.calls),
        ):
            limits.begin(f"{self.name}, in {THREADS} threads")
            # A fork during a late import of torch would leave the import locked.
            for call in chosen:
                self.use(self.subject.make(call.at), call, random.Random(0))
            thing = self.subject.make(0)
            threads = self.crowd(thing, chosen, seed)
            if forks:
                time.sleep(SHARED_SECONDS / 4)
                self.fork(thing, limits)  # during calls of threads
            for thread in threads:
                thread.join()
            if forks:
                limits.begin(f"{self.name}, forking afterwards")
                self.fork(thing, limits)
            limits.end()


def share(group: str, journal: str, seed: int, *names: str) -> None:
    warnings.simplefilter("ignore")
    callables(torch=group == "training")  # imports before memory is limited
    failures, limits = [], Limits(journal, extra=2**33)
    for name, subject in subjects(group).items():
        shared = Shared(name, subject, group)
        if shared.calls and (not names or name in names):
            shared.run(limits, seed)
            failures += shared.failures
    print(json.dumps(failures))


if __name__ == "__main__":
    command, group, journal, *words = sys.argv[1:]
    if command == "share":
        share(group, journal, int(words[0]), *words[1:])
    else:
        examples, number, start, every = words
        seed_number = None if number == "-" else int(number)
        main(group, journal, int(examples), seed_number, int(start), int(every))
