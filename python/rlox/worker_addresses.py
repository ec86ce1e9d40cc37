"""Addresses of workers in settings: `actors="grpc://host:port,host:port?reply_timeout=60"`."""

from urllib.parse import parse_qsl

from rlox._errors import ArgumentError

# Scheme of the setting, and prefix of each address: without TLS, and with TLS.
SCHEMES = {"grpc": "http://", "grpcs": "https://"}
WAITS = ("connect_timeout", "keepalive_timeout", "reply_timeout", "recovery_timeout")
_DAY = 86_400.0


def worker_addresses(actors: str) -> tuple[list[str], dict[str, float]] | None:
    """Return addresses and timeouts in seconds; None if `actors` names no workers.

    Raises:
        ValueError: An address without host or port, or a timeout that cannot be set.

    >>> worker_addresses("grpc://127.0.0.1:50051,worker:50051?reply_timeout=60")
    (['http://127.0.0.1:50051', 'http://worker:50051'], {'reply_timeout': 60.0})
    >>> worker_addresses("threads")
    """
    scheme, _, rest = actors.partition("://")
    workers, _, query = rest.partition("?")
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
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
        waits = {name: float(text) for name, text in pairs}
        valid = {*waits} <= {*WAITS} and len(pairs) == len(waits)
        valid = valid and all(0 < seconds <= _DAY for seconds in waits.values())
    except ValueError:
        valid = False
    if not valid:
        raise ArgumentError(
            "actors",
            f"seconds for {', '.join(WAITS)} after '?', more than 0 and at most a day, such as "
            "'?reply_timeout=60&recovery_timeout=60'",
            repr(actors),
            "write the seconds as a number after '='",
        )
    return [SCHEMES[scheme] + worker for worker in workers.split(",")], waits
