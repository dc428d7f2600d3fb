"""What servers of a fleet and their coordinator share: messages, the directory of keys, contracts of plugins."""

__version__ = "0.1.0"
