"""What core itself offers, through the same hooks as any plugin: the adapter `memory`, LRU, the default policies, the log."""
