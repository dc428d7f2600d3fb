"""A whole server and its engines under one seed: see simulation.py."""
