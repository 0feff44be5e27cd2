"""Check how nginx buffers and limits bodies, and whether it replaces the service's answers."""

from collections.abc import Iterator
from math import inf

from greenline.deploy import edits
from greenline.deploy.facts import Facts
from greenline.deploy.findings import Check, Finding, Level

UNLIMITED_BYTES = 100 * 1024**2  # what is suggested where neither side has a limit


def check_buffers(facts: Facts) -> Iterator[Finding]:
    """Report where slow clients reach the worker."""
    for route in facts.routes:
        for name, found, what in (
            ("proxy_request_buffering", route.request_buffering, "sends its body"),
            ("proxy_buffering", route.buffering, "reads its answer"),
        ):
            # With buffering, nginx waits for a slow client, and the worker has the request only
            # while it works on it.
            if not found.value:
                yield Finding(
                    Level.WARNING,
                    "unbuffered",
                    found.where,
                    f"{name} is off",
                    f"a client that slowly {what} occupies a connection of a worker, and nginx "
                    "does not retry a request of which it has sent a part",
                    f"set {name} on; leave it off only in locations that stream",
                    (edits.directive(route, found, f"{name} on"),),
                )


def check_sizes(facts: Facts) -> Iterator[Finding]:
    """Report where the size limits of nginx and the service differ."""
    limit = facts.service.max_body_bytes
    if limit.value is None:
        most_bytes, limit_text, other = inf, "no limit", "another"
    else:
        most_bytes, limit_text, other = limit.value, _size(limit.value), "a lower"
    for route in facts.routes:
        most = route.max_body_bytes
        suggested = limit.value or most.value or UNLIMITED_BYTES
        text = f"client_max_body_size {_size(suggested)}"
        corrected = (edits.directive(route, most, text),)
        # 0 means unlimited to nginx, so it is not the lowest of the limits.
        if not most.value:
            yield Finding(
                Level.WARNING,
                "body-unlimited",
                most.where,
                "client_max_body_size is 0, which is no limit",
                "nginx stores a body on its disk before it sends the request to gunicorn: a client "
                "may fill the disk",
                f"set {text}, or {other} limit",
                corrected,
            )
        elif most.value > most_bytes:
            yield Finding(
                Level.WARNING,
                "body-limit",
                most.where,
                f"client_max_body_size is {_size(most.value)}, and {limit.where} is "
                f"{limit_text}{limit.by_default}",
                "nginx receives and stores bodies that the service then refuses",
                f"set {text}",
                corrected,
            )
        # Two defaults differ as well. Where nginx alone has a limit, it was chosen.
        elif most.value < most_bytes and (limit.is_set or not most.is_set):
            yield Finding(
                Level.WARNING,
                "body-limit",
                most.where,
                f"client_max_body_size is {_size(most.value)}{most.by_default}, "
                f"and {limit.where} is {limit_text}{limit.by_default}",
                "nginx refuses bodies that the service would accept, with a 413 and its own page",
                f"set {text}, or {other} limit, explicitly",
                corrected,
            )


def check_pages(facts: Facts) -> Iterator[Finding]:
    """Report where nginx replaces the service's error response by a page of its own."""
    for route in facts.routes:
        # Only 503, the answer to an overload: clients need its Retry-After.
        if "503" in route.replaced.value:
            yield Finding(
                Level.WARNING,
                "replaced-503",
                route.replaced.where,
                "proxy_intercept_errors is on, and error_page has 503",
                "nginx replaces the service's 503 by its own page: clients get no Retry-After "
                "header and no problem document",
                "set proxy_intercept_errors off; nginx then replaces only its own errors",
                (edits.directive(route, route.replaced, "proxy_intercept_errors off"),),
            )


BODY_CHECKS: tuple[Check, ...] = (check_buffers, check_sizes, check_pages)


def _size(size_bytes: int) -> str:
    for unit, name in ((1024**3, "g"), (1024**2, "m"), (1024, "k")):
        # Exact multiples only, as the text is also suggested as a setting.
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return str(size_bytes)
