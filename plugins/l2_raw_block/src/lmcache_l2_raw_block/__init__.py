"""The `raw_block` L2 adapter: objects in slots of a block device or a pre-sized file."""

__version__ = "0.1.0"
