"""Threads that move objects between tiers and free space."""
