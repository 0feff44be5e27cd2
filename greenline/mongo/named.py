"""Note the commands that a slow request has waited for."""

from contextvars import ContextVar

from pymongo import monitoring

from greenline.hub import deadline, slow_waits

_sent: ContextVar[str] = ContextVar("sent", default="")


def collection_of(event: monitoring.CommandStartedEvent) -> str | None:
    """Return the collection of a command, or None."""
    name = event.command_name
    found = event.command.get("collection" if name == "getMore" else name)
    return found if isinstance(found, str) else None


class Names(monitoring.CommandListener):
    """Notes each command when it is answered: ``find books``."""

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Keep its name."""
        _sent.set(" ".join(filter(None, (event.command_name, collection_of(event)))))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Note how long it took."""
        _note(event.duration_micros)

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Note how long it took."""
        _note(event.duration_micros)


def _note(micros: int) -> None:
    environ = deadline.request_environ()
    if environ is not None:
        slow_waits.of(environ).note("mongodb", micros / 1e6, _sent.get())


_is_installed = False


def install() -> None:
    """Note the commands of the clients that are made from now on."""
    global _is_installed
    if not _is_installed:  # with preload_app the arbiter has done it
        _is_installed = True
        # A connection that is lent for several commands is one wait.
        slow_waits.noted_elsewhere.add("mongodb")
        monitoring.register(Names())
