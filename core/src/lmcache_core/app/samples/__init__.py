"""Samples of the server's parts: the catalogue, and those without an owner in a lower layer."""
