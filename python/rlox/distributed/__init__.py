"""More than one process: `ddp` has several learn as one under torchrun, `ray` is a cluster."""


class PeerError(RuntimeError):
    """Another process of the group failed, died, did not answer, or made another call."""
