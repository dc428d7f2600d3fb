"""Eviction of an L2 adapter: when, how much, and of what."""
