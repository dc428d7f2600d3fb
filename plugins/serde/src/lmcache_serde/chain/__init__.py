"""Serdes around an adapter: one after the other, each object bounded in memory, checked and counted."""
