"""The host's connections to one server, shared by all of its processes and never exceeded."""

from greenline.ledger.ledger import Ledger
from greenline.ledger.place import path
from greenline.ledger.slot import Slot

__all__ = ["Ledger", "Slot", "path"]
