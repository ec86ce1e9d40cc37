"""`rlox worker`: environments and rollouts for trainers on other machines."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields

from rlox.cli.mistakes import UsageError
from rlox.cli.usage import parse
from rlox.distributed.remote import extension


@dataclass
class Worker:
    """Step environments and collect rollouts for trainers on other machines.

    It prints its address, and serves until it gets SIGTERM or Ctrl-C.
    """

    bind: str = "127.0.0.1:0"  # where to listen; beyond loopback TLS and a token are needed
    tls_cert: str | None = None  # file of the certificate chain, PEM
    tls_key: str | None = None  # file of its private key, PEM
    token_file: str | None = None  # the token that clients must have; or RLOX_WORKER_TOKEN says it
    metrics: str | None = None  # where /metrics is told for Prometheus, on loopback
    max_sessions: int = 8  # sessions at a time, each with a thread
    max_connections: int = 64  # connections at a time
    max_envs: int = 4096  # environments of a session
    max_message_bytes: int = 4 << 20  # of a message, in both directions
    credits: int = 4  # unanswered requests of a session


def run(words: Sequence[str]) -> int:
    """Serves.

    Raises:
        UsageError: A flag that makes no sense, or what must not be served.
        OSError: A file that cannot be read, an address in use.
    """
    asked = parse(Worker, "worker", words)
    given = {field.name: getattr(asked, field.name) for field in fields(asked)}
    flags = [f"--{name.replace('_', '-')}={x}" for name, x in given.items() if x is not None]
    sys.stdout.flush()
    try:
        extension().run_worker(flags)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return 0
