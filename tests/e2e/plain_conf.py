"""gunicorn as it comes, but for what a test's machine may not have."""

control_socket_disable = True
