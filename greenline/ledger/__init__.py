"""The host's connections to one server, shared by all of its processes and never exceeded."""

from greenline.ledger.ledger import TOLD_CAPACITY, Ledger
from greenline.ledger.place import path
from greenline.ledger.sharers import Sharers
from greenline.ledger.slot import Slot

__all__ = ["TOLD_CAPACITY", "Ledger", "Sharers", "Slot", "path"]
