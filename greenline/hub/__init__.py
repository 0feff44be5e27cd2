"""gevent's hub, and what other libraries know of it."""
