"""Server-driven transfer on NVIDIA GPUs: pages of an engine's cache to and from L1, in order with the engine's own work."""
