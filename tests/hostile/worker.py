"""Call everything of one group in a process with limits of time and memory.

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
    """Limits of time and memory that end the process if a call exceeds them."""

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
    """Valid call whose arguments are replaced by other forms."""

    def __init__(self, call: Call, subject: Subject | None, function: Any, limits: Limits) -> None:
        self.call, self.subject, self.limits = call, subject, limits
        self.function, self.shared = function, None
        self.valid = self.call_with({})
        if isinstance(self.valid, Exception):
            raise AssertionError(f"{call.name}: the valid call fails: {self.valid!r}")

    def call_with(self, forms: dict[str, Any], description: str = "the valid call") -> Any:
        """Call and return the result, the object's state and written arguments, or the error."""
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
        """Return the function of the call and its object."""
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

    def try_each_form(self, every: int, start: int) -> Iterator[list[str]]:
        """Yield [call, form, failure] for every n-th form of an argument that fails."""
        pairs = [(n, *form) for n, x in self.call.arguments.items() for form in x.forms.items()]
        for name, form_name, (outcome, form) in pairs[start::every]:
            description = f"{name}: {form_name}"
            try:
                result = self.call_with({name: form}, description)
                failure = self.find_failure(outcome, name, form_name, result)
            except Exception as error:
                failure = describe(error)
            except BaseException as error:  # a panic in Rust
                failure = f"panics: {describe(error)}"
            if failure:
                yield [self.call.name, description, failure]

    def agrees(self, result: Any) -> bool:
        """Compare with the valid result. The state of a shared object can differ."""
        parts = ([x[0], x[2]] if self.call.shared else x for x in (result, self.valid))
        return equal(*parts, exactly=False)

    def find_failure(self, outcome: str, name: str, form: str, result: Any) -> str:
        """Return how a result contradicts the outcome of a form, or an empty string."""
        if isinstance(result, Exception):
            if outcome == SAME:
                return f"rejected: {describe(result)}"
            if not self.names_argument(name, form, result):
                return f"no argument is named: {describe(result)}"
        elif outcome == INVALID:
            return f"accepted: {str(result[:2])[:200]}"
        elif outcome != ANY and not self.agrees(result):
            return f"another result: {str(result)[:300]} instead of {str(self.valid)[:300]}"
        return ""

    def names_argument(self, name: str, form: str, error: Exception) -> bool:
        """Return whether an error names the argument or an argument of related shape or size."""
        *keys, last = form.split(": ")
        names = [name, *keys, *self.call.arguments[name].names]
        if isinstance(error, OSError):
            return True
        if isinstance(error, StructuredError):
            if last in SHAPES or last in HUGE:
                return True
            text = f"{error.argument} {error.section}"
        else:  # errors of other libraries
            text = "; ".join([str(error), *getattr(error, "__notes__", ())])
            names += ["broken", *(["Unable to allocate"] if isinstance(error, MemoryError) else [])]
            names += self.call.arguments if last in SHAPES or last in HUGE else []
        patterns = (rf"(?<![A-Za-z]){name.replace('_', '[_ ]')}" for name in names)
        return any(re.search(pattern, text) for pattern in patterns)

    def try_combinations(self, examples: int, seed_value: int | None) -> str:
        """Pass several unusual arguments at once and return a failure or an empty string."""
        arguments = self.call.arguments

        @settings(
            max_examples=examples,
            derandomize=seed_value is None,
            database=None,
            deadline=None,
            print_blob=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(st.sampled_from(sorted(arguments)), min_size=1, unique=True), st.data())
        def run(names: list[str], data: Any) -> None:
            forms, outcomes = {}, set()
            for name in names:
                outcome, forms[name] = data.draw(form_of(arguments[name]), name)
                outcomes.add(outcome)
            result = self.call_with(forms, str(forms)[:380])
            if not isinstance(result, Exception) and outcomes <= {SAME, MAYBE}:
                assert self.agrees(result), f"{result} instead of {self.valid}"

        try:
            (run if seed_value is None else seed(seed_value)(run))()
        except Exception as error:
            return f"{describe(error)} {getattr(error, '__notes__', '')}"
        except BaseException as error:
            return f"panics: {describe(error)} {getattr(error, '__notes__', '')}"
        return ""


class DrawnForm:
    """Form that ignores the valid value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, _: Any) -> Any:
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)[:100]


def form_of(argument: Argument) -> st.SearchStrategy[tuple[str, Any]]:
    forms = st.sampled_from(list(argument.forms.values()))
    return forms | ANYTHING.map(lambda x: (ANY, DrawnForm(x))) if argument.drawn else forms


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error!s:.300}"


def main(group: str, journal: str, examples: int, seed_value: int | None, start: int, every: int) -> None:
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
            failures.append([call.name, "the valid call", describe(error)])
            continue
        failures += caller.try_each_form(every, at % every)
        if call.arguments and examples and (failure := caller.try_combinations(examples, seed_value)):
            failures.append([call.name, "several arguments", failure])
    print(json.dumps(failures))


THREADS, SHARED_SECONDS = 8, 0.1
FINAL = ("close", "close_extras", "stop")  # objects are unusable after these calls


class Shared:
    """Object of a class and the calls of its methods."""

    def __init__(self, name: str, subject: Subject, group: str) -> None:
        self.name, self.subject = name, subject
        self.calls = [call for call in calls(group) if call.name.startswith(f"{name}.")]
        for call in self.calls:  # threads share the objects that are created once
            for argument in call.arguments.values():
                argument.make()
        self.failures: list[list[str]] = []

    def use(self, thing: Any, call: Call, rng: random.Random) -> None:
        """Make a valid call or a call with one unusual argument and ignore the result."""
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
        except BaseException as error:  # panics in Rust are not Exceptions
            self.failures.append([call.name, description, describe(error)])

    def crowd(self, thing: Any, chosen: list[Call], seed: int) -> list[threading.Thread]:
        """Start threads that make random calls."""
        until = time.monotonic() + SHARED_SECONDS

        def work(index: int) -> None:
            rng = random.Random(seed * THREADS + index)
            while time.monotonic() < until and not self.failures:
                self.use(thing, rng.choice(chosen), rng)

        threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        return threads

    def fork(self, thing: Any, limits: Limits) -> None:
        """Use the inherited object and new objects in a child process."""
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
    callables(torch=group == "training")  # import before the memory limit
    failures, limits = [], Limits(journal, extra=2**33)
    for name, subject in subjects(group).items():
        shared = Shared(name, subject, group)
        if shared.calls and (not names or name in names):
            shared.run(limits, seed)
            failures += shared.failures
    print(json.dumps(failures))


if __name__ == "__main__":
    command, group, journal, *args = sys.argv[1:]
    if command == "share":
        share(group, journal, int(args[0]), *args[1:])
    else:
        examples, seed_text, start, every = args
        seed_value = None if seed_text == "-" else int(seed_text)
        main(group, journal, int(examples), seed_value, int(start), int(every))
