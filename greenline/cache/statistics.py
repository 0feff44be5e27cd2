"""Count what a cache has done since it was made."""


class CacheStatistics:
    """
    The cumulative counts of one cache, which the cache changes itself.

    - ``hits``: fresh values that were returned.
    - ``stale``: values that were returned after their time.
    - ``waits``: callers that waited for the load of another one.
    - ``loads``: loads that began.
    - ``shared``: those for which another worker of the host had loaded.
    - ``failures``: loads that raised an error, and not because their caller was interrupted.
    - ``evictions``: values that made room for others, and that no tag had invalidated.
    - ``invalidations``: calls that invalidated a key, a tag or everything.
    - ``too_large``: values that were not kept, because the cache may have fewer bytes.
    """

    def __init__(self) -> None:
        self.hits = 0
        self.stale = 0
        self.waits = 0
        self.loads = 0
        self.shared = 0
        self.failures = 0
        self.evictions = 0
        self.invalidations = 0
        self.too_large = 0

    def totals(self) -> dict[str, int]:
        """Return the counts."""
        return dict(vars(self))
