"""MongoDB through pymongo on patched sockets: client, limits, errors."""
