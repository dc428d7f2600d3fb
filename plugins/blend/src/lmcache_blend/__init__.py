"""Blending: finds stored chunks of a prompt wherever they are in it."""

__version__ = "0.1.0"
