"""Services on gevent's hub and its greenlets: deadlines, disconnects, blocking calls, asyncio."""
