"""What follows `lmcache` on a command line: one file per command, each with `run(arguments)`."""
