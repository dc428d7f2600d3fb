"""Serdes between L1 and any adapter: compression, quantization, encryption on the way to a backend and back."""
