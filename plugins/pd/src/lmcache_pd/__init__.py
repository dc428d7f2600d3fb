"""A proxy in front of engines that prefill and engines that decode."""

__version__ = "0.1.0"
