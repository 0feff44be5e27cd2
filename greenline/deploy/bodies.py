"""Check how nginx buffers and limits bodies, and whether it replaces the service's answers."""

from collections.abc import Iterator

from greenline.deploy.facts import Facts
from greenline.deploy.findings import Check, Finding, Level


def check_buffers(facts: Facts) -> Iterator[Finding]:
    """Report where slow clients reach the worker, and where the size limits differ."""
    limit = facts.service.max_body_bytes
    for route in facts.routes:
        for name, found, what in (
            ("proxy_request_buffering", route.request_buffering, "sends its body"),
            ("proxy_buffering", route.buffering, "takes its answer"),
        ):
            # With buffering, nginx waits for a slow client, and the worker has the request only
            # while it works on it.
            if not found.value:
                yield Finding(
                    Level.WARNING,
                    "unbuffered",
                    found.where,
                    f"{name} is off",
                    f"a client that slowly {what} holds a place in a worker, and a request that "
                    "has begun to be sent is never asked elsewhere",
                    f"{name} on; off only in locations that stream",
                )
        most = route.max_body_bytes
        # 0 means unlimited to nginx, so it is not the lowest of the limits.
        if not most.value:
            yield Finding(
                Level.WARNING,
                "body-unlimited",
                most.where,
                "client_max_body_size is 0: no limit",
                "nginx takes in whatever comes before it asks: any client may fill the disk",
                f"client_max_body_size {_size(limit.value)}, the service's own limit",
            )
        elif most.value > limit.value:
            yield Finding(
                Level.WARNING,
                "body-limit",
                most.where,
                f"client_max_body_size is {_size(most.value)}, and {limit.where} "
                f"{_size(limit.value)}",
                "nginx takes in bodies that the service refuses: time and disk for nothing",
                f"client_max_body_size {_size(limit.value)}",
            )
        # Only if the service's limit was set: its default is far above nginx's default of 1 MiB.
        elif limit.is_set and most.value < limit.value:
            yield Finding(
                Level.WARNING,
                "body-limit",
                most.where,
                f"client_max_body_size is {_size(most.value)}{most.by_default}, "
                f"and {limit.where} {_size(limit.value)}",
                "nginx refuses what the service would take, with a page of its own for the 413",
                f"client_max_body_size {_size(limit.value)}",
            )


def check_pages(facts: Facts) -> Iterator[Finding]:
    """Report where nginx replaces the service's refusal by a page of its own."""
    for route in facts.routes:
        # Only 503, the answer to an overload: clients need its Retry-After.
        if "503" in route.replaced.value:
            yield Finding(
                Level.WARNING,
                "replaced-503",
                route.replaced.where,
                "proxy_intercept_errors is on, and error_page has 503",
                "the service's 503 loses its Retry-After and its problem document: clients do not "
                "know when to come again, and see maintenance where there is overload",
                "proxy_intercept_errors off: error_page then stands for nginx's own errors only",
            )


CHECKS: tuple[Check, ...] = (check_buffers, check_pages)


def _size(size_bytes: int) -> str:
    for unit, name in ((1024**3, "g"), (1024**2, "m"), (1024, "k")):
        # Exact multiples only, as the text is also suggested as a setting.
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return str(size_bytes)
