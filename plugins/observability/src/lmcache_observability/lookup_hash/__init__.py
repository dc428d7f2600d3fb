"""A line for each lookup, with the hashes of the chunks that it asked for."""
