"""Fleets of real servers."""
