"""Threads that move objects between tiers and make room."""
