"""What goes wrong with pages."""

from __future__ import annotations


class LayoutError(ValueError):
    """Tensors, hints or groups that describe no pages that can be copied.  The text names the tensor and the reason."""


class MemoryFault(OSError):  # noqa: N818 - the usual word for it
    """Memory of an engine vanished while it was copied: its segment was cut short.  What was written is undefined."""
