"""
Keep what is expensive to load in the memory of a worker, and load it once for all callers.

``Cache`` is for any function; ``greenline.flask.cached`` keeps the responses of a view.
"""

from greenline import lazy

__all__ = ["Cache", "NotKept"]

__getattr__ = lazy.attributes(__name__, {"Cache": "cache", "NotKept": "values"}, extra="cache")
