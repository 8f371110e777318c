"""The version: here, so that no module imports the package for it."""

__version__ = "0.1.0"
