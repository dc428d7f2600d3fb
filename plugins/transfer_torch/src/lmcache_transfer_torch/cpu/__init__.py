"""Engines whose KV cache lies in host memory."""
