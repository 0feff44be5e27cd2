"""The service's settings, read from the environment."""

from config.settings import Settings, load

__all__ = ["Settings", "load"]
