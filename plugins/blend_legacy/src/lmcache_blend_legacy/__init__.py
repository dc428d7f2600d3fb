"""Blending, as its first version asks for it: documents of a prompt between separators, in buffers of rows."""

__version__ = "0.1.0"
