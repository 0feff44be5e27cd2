"""The green runtime: a library that hosts any WSGI application."""
