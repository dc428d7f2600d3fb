"""Servers that read out of each other's memory."""
