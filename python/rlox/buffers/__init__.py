"""Rollout buffers, replay buffers and the collection of steps."""
