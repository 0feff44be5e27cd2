"""Name the commands that slow waits are for."""

from pymongo import monitoring

from greenline.hub import deadline


def collection_of(event: monitoring.CommandStartedEvent) -> str | None:
    """Return the collection of a command, or None."""
    name = event.command_name
    found = event.command.get("collection" if name == "getMore" else name)
    return found if isinstance(found, str) else None


class Names(monitoring.CommandListener):
    """Names each command when it is sent."""

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Name the command, as ``find books``."""
        words = event.command_name, collection_of(event)
        deadline.waits_for("mongodb", " ".join(filter(None, words)))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Keep the name: the wait ends when the connection is given back."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Keep the name, likewise."""


_is_installed = False


def install() -> None:
    """Name the commands of the clients that are made from now on."""
    global _is_installed
    if not _is_installed:  # with preload_app the arbiter has done it
        _is_installed = True
        monitoring.register(Names())
