"""The version of the package, and that of the interface module made of it."""

__version__ = "0.6.0"
