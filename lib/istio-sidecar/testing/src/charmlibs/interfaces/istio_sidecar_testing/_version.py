"""The version of the package: that of the library, which it needs exactly."""

__version__ = "0.6.0"
