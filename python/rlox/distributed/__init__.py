"""Training by more than one machine: `ray` on a cluster."""
