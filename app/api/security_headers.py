"""Add security headers for browsers to every answer: types, scripts, referrers, caching."""

from typing import Any

ALWAYS = [("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer")]
POLICY = ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
# The answer to a GET may be stored by the client and revalidated with its ETag; others may not.
READ = ("Cache-Control", "private, no-cache")
NO_STORE = ("Cache-Control", "no-store")


def add(environ: dict[str, Any], headers: list[tuple[str, str]]) -> None:
    """Add the headers to those of an answer."""
    # A response may have its own, as /docs must to run scripts.
    names = [name for name, _ in headers]
    headers += ALWAYS
    if POLICY[0] not in names:
        headers.append(POLICY)
    if READ[0] not in names:
        headers.append(READ if environ["REQUEST_METHOD"] in ("GET", "HEAD") else NO_STORE)
