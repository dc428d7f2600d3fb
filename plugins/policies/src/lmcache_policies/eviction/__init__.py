"""Which objects leave L1 first: one algorithm per file."""
