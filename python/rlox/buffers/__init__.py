"""Rollout and replay buffers."""
