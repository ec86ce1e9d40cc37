"""Training by more than one process: `ddp` has several learn as one under torchrun."""
