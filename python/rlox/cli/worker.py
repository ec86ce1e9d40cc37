"""`rlox worker`: environments and rollouts for trainers on other machines."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rlox.cli import UsageError
from rlox.cli._args import option, parse, to_flag
from rlox.distributed.remote import load_extension


@dataclass
class WorkerOptions:
    """Step environments and collect rollouts for trainers on other machines.

    The worker prints its address, and serves until SIGTERM or Ctrl-C.
    """

    bind: str = option("address; other than loopback needs TLS and a token", "127.0.0.1:0")
    tls_cert: str | None = option("file of the certificate chain, PEM", None)
    tls_key: str | None = option("file of its private key, PEM", None)
    token_file: str | None = option("token of the clients; else RLOX_WORKER_TOKEN", None)
    metrics: str | None = option("loopback address of /metrics for Prometheus", None)
    max_sessions: int = option("sessions at a time, each with a thread", 8)
    max_connections: int = option("connections at a time", 64)
    max_envs: int = option("environments of a session", 4096)
    max_message_bytes: int = option("of a message, in both directions", 4 << 20)
    credits: int = option("unanswered requests of a session", 4)


def worker(argv: Sequence[str]) -> int:
    """Serve sessions.

    Raises:
        UsageError: A wrong option, or an address that must not be served.
        OSError: A file cannot be read, or the address is in use.
    """
    options = vars(parse(WorkerOptions, "worker", argv))
    flags = [f"{to_flag(name)}={value}" for name, value in options.items() if value is not None]
    sys.stdout.flush()
    try:
        load_extension().run_worker(flags)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return 0
