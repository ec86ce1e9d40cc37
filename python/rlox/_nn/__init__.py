"""Neural networks and optimizers on torch."""
