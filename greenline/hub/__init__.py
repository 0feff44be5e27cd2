"""What the runtime needs of gevent's hub and of the greenlets that run in it."""
