"""One worker, sockets for everybody, no access log: gunicorn as the HTTP benches start it."""

workers = 1
worker_connections = 20_000
backlog = 4096
loglevel = "warning"
control_socket_disable = True
