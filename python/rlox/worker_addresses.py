"""What `actors="grpc://host:port,host:port?reply_timeout=60"` says of workers."""

from urllib.parse import parse_qsl

from rlox._errors import ArgumentError

# Before the workers' addresses, and what stands before each: without TLS, and with it.
SCHEMES = {"grpc": "http://", "grpcs": "https://"}
_DAY = 86_400.0
WAITS = ("connect_timeout", "keepalive_timeout", "reply_timeout", "recovery_timeout")


def worker_addresses(actors: str) -> tuple[list[str], dict[str, float]] | None:
    """The workers' addresses, and the seconds that are waited for them; None for other places.

    Raises:
        ValueError: An address that is none; what stands after "?" is no time that can be set.

    >>> worker_addresses("grpc://127.0.0.1:50051,worker:50051?reply_timeout=60")
    (['http://127.0.0.1:50051', 'http://worker:50051'], {'reply_timeout': 60.0})
    >>> worker_addresses("threads")
    """
    scheme, _, rest = actors.partition("://")
    workers, _, waits = rest.partition("?")
    if scheme not in SCHEMES or not all(workers.split(",")) or "/" in workers:
        return None
    for worker in workers.split(","):
        host, _, port = worker.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 2**16:
            raise ArgumentError(
                "actors",
                f"workers as host:port, such as '{scheme}://host:50051,host:50052'",
                f"{worker!r} in {actors!r}",
                "a worker prints its address when it starts",
            )
    return [SCHEMES[scheme] + worker for worker in workers.split(",")], _seconds(actors, waits)


def _seconds(actors: str, waits: str) -> dict[str, float]:
    try:
        pairs = parse_qsl(waits, keep_blank_values=True, strict_parsing=True) if waits else []
        seconds = {name: float(text) for name, text in pairs}
    except ValueError:
        pairs, seconds = [], {"": 0.0}
    possible = all(0 < x <= _DAY for x in seconds.values())
    if not set(seconds) <= set(WAITS) or len(pairs) != len(seconds) or not possible:
        raise ArgumentError(
            "actors",
            f"seconds for {', '.join(WAITS)} after '?', more than 0 and at most a day, such as "
            "'?reply_timeout=60&recovery_timeout=60'",
            repr(actors),
            "correct it",
        )
    return seconds
