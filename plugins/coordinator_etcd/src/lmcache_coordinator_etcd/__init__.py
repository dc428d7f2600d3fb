"""State of a coordinator in etcd."""

__version__ = "0.1.0"
