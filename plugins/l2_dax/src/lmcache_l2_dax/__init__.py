"""The `dax` L2 adapter: objects in slots of memory that a device maps."""

__version__ = "0.1.0"
