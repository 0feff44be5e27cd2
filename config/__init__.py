"""The service's settings, read from the environment."""

from config.settings import Settings, load, load_mongodb

__all__ = ["Settings", "load", "load_mongodb"]
