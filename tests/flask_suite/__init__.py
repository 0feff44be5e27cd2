"""Flask's own test suite, run against `greenline.flask.Flask`."""
