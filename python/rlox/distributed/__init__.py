"""Training in several processes: `ddp` (torchrun), `ray` (Ray) and `remote` (gRPC workers)."""

__all__ = ["PeerError"]


class PeerError(RuntimeError):
    """Another process of the group failed, exited, timed out or made a different call."""
