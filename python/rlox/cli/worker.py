"""`rlox worker`: serve environments and rollouts to trainers on other machines."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rlox.cli import UsageError
from rlox.cli._args import option, parse, to_flag
from rlox.distributed.remote import load_extension


@dataclass
class WorkerOptions:
    """Step environments and collect rollouts for trainers on other machines.

    The worker prints its address, and runs until SIGTERM or Ctrl-C.
    """

    bind: str = option("address; all but loopback require TLS and a token", "127.0.0.1:0")
    tls_cert: str | None = option("PEM file of the certificate chain", None)
    tls_key: str | None = option("PEM file of the private key", None)
    token_file: str | None = option("file of the token; default: RLOX_WORKER_TOKEN", None)
    metrics: str | None = option("loopback address of /metrics for Prometheus", None)
    max_sessions: int = option("maximum number of sessions at a time", 8)
    max_connections: int = option("maximum number of connections at a time", 64)
    max_envs: int = option("maximum number of environments per session", 4096)
    max_message_bytes: int = option("maximum size of a message in either direction", 4 << 20)
    credits: int = option("maximum number of unanswered requests per session", 4)


def worker(argv: Sequence[str]) -> int:
    """Serve sessions until SIGTERM or Ctrl-C.

    Raises:
        UsageError: An option is wrong, or the address needs TLS and a token.
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
