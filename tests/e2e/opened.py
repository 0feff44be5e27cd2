"""A WSGI application that opens both databases when it is imported."""

from tests.e2e.opened_by_call import app, open_both

open_both()

__all__ = ["app"]
