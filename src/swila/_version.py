"""The version, in a module of its own: the operator is traced with it."""

__version__ = "0.2.0.dev0"
