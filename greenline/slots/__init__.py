"""
Share a host's connections to one server among its processes, never more than the capacity.

Internal: applications import nothing from here. The service imports ``path`` and ``location``.
"""

from greenline.slots.location import path
from greenline.slots.pool_share import PoolShares
from greenline.slots.slot import Slot
from greenline.slots.table import SlotTable

__all__ = ["PoolShares", "Slot", "SlotTable", "path"]
