"""More than one process: `ddp` has several learn as one under torchrun, `ray` is a cluster."""
