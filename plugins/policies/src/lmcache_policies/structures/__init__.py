"""What the algorithms are made of."""
